"""Waiting for what may hang."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from ulak import Stopped
from ulak.errors import StoreError
from ulak.kit import threads
from ulak.kit.threads import Aside, poll, until_stopped


@pytest.fixture
def aside() -> Iterator[Aside]:
    made = Aside("test", 2, at_once=False)
    yield made
    made.close()


def wait(
    aside: Aside, look: Callable[[], Any], *, for_s: float = 60.0, longest_pause_s: float = 0.01,
    checkpoint: Callable[[], None] = lambda: None,
) -> Any:  # fmt: skip
    ends_at = time.monotonic() + for_s
    return asyncio.run(
        poll(
            aside, look, longest_pause_s=longest_pause_s, checkpoint=checkpoint,
            is_over=lambda: time.monotonic() >= ends_at,
        )
    )  # fmt: skip


def say(*answers: Any) -> Callable[[], Any]:
    """Return what answers so, one after the other."""
    left = list(answers)

    def look() -> Any:
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return look


def test_an_answer_ends_the_wait_and_a_share_that_is_away_does_not(aside: Aside) -> None:
    look = say(None, OSError("stale"), StoreError("locked"), TimeoutError("slow"), None, [], 7)
    assert wait(aside, look) == []


def test_other_errors_are_raised(aside: Aside) -> None:
    with pytest.raises(ZeroDivisionError):
        wait(aside, say(None, ZeroDivisionError()))


def test_the_last_trouble_is_told_when_time_is_over(aside: Aside) -> None:
    for answers, told in (((OSError("stale"), None), ""), ((None, OSError("stale")), "stale")):
        with pytest.raises(TimeoutError) as raised:
            wait(aside, say(*answers, *[answers[-1]] * 1000), for_s=0.05)
        assert str(raised.value) == told


def test_it_is_looked_once_however_late_it_is(aside: Aside) -> None:
    assert wait(aside, say("there"), for_s=-60.0) == "there"
    with pytest.raises(TimeoutError):
        wait(aside, say(None), for_s=-60.0)


def test_pauses_grow_up_to_the_longest(aside: Aside) -> None:
    at: list[float] = []

    def look() -> bool | None:
        at.append(time.monotonic())
        return len(at) >= 7 or None

    wait(aside, look, longest_pause_s=0.1)
    pauses = [later - earlier for earlier, later in pairwise(at)]
    assert pauses[0] < 0.1 <= min(pauses[-2:])


def test_what_hangs_is_not_called_again_and_ends_with_the_time_or_the_run(
    aside: Aside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "HANGS_S", 0.02)
    released, calls, checks = threading.Event(), list[int](), list[int]()

    def look() -> None:
        calls.append(1)
        released.wait()
        raise OSError("nobody hears this")

    with pytest.raises(TimeoutError, match="there is no answer"):
        wait(aside, look, for_s=0.1)

    def checkpoint() -> None:
        checks.append(1)
        if len(checks) == 3:
            raise KeyError("told to stop")

    with pytest.raises(KeyError):
        wait(aside, look, checkpoint=checkpoint)
    assert len(calls) == 2
    released.set()


def test_without_threads_the_look_has_one_of_its_own() -> None:
    seen: list[threading.Thread] = []

    def look() -> str:
        seen.append(threading.current_thread())
        return "there"

    found = asyncio.run(poll(None, look, longest_pause_s=0.01, is_over=lambda: False))
    assert found == "there"
    assert seen[0] is not threading.main_thread()
    seen[0].join(5)
    assert not seen[0].is_alive()


def test_work_that_is_not_told_to_stop_comes_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "CHECK_EVERY_S", 0.01)
    checks: list[int] = []

    async def work() -> str:
        while len(checks) < 3:
            await asyncio.sleep(0.001)
        return "done"

    assert asyncio.run(until_stopped(work(), lambda: checks.append(1))) == "done"

    async def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(until_stopped(fail(), lambda: None))


def test_work_has_ended_when_it_is_told_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "CHECK_EVERY_S", 0.01)
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(600)
        finally:
            await asyncio.sleep(0.05)
            ended.append("work")

    def checkpoint() -> None:
        raise Stopped

    with pytest.raises(Stopped):
        asyncio.run(until_stopped(work(), checkpoint))
    assert ended == ["work"]
