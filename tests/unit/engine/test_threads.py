"""The threads for plain stages, and the one for what a loop may not do."""

import asyncio
import threading

import pytest

from ulak.engine.threads import Aside, Threads


@pytest.mark.shows("E-86")
def test_work_runs_on_as_many_threads_as_are_needed_and_no_more() -> None:
    threads = Threads(3, "test")
    names: set[str] = set()
    done = threading.Semaphore(0)

    def work() -> None:
        names.add(threading.current_thread().name)
        done.release()

    for _ in range(50):
        threads.run(work)
        assert done.acquire(timeout=120)
    assert 1 <= len(names) <= 3
    together = threading.Barrier(3, timeout=10)

    def meet() -> None:
        together.wait()
        done.release()

    for _ in range(3):
        threads.run(meet)
    for _ in range(3):
        assert done.acquire(timeout=120), "three at once: none waits behind another"
    threads.close()


@pytest.mark.shows("E-83")
def test_work_that_raises_does_not_cost_its_thread() -> None:
    threads, done = Threads(1, "test"), threading.Event()

    def fail() -> None:
        raise ValueError

    threads.run(fail)
    threads.run(done.set)
    assert done.wait(60)
    threads.close()


def test_threads_that_hang_may_be_replaced() -> None:
    threads, go_on, done = Threads(1, "test"), threading.Event(), threading.Event()
    threads.run(lambda: go_on.wait(60) and None)
    threads.run(done.set)
    threads.resize(2)
    assert done.wait(60)
    go_on.set()
    threads.close()


def test_a_thread_that_hangs_is_not_waited_for() -> None:
    threads = Threads(1, "test")
    go_on = threading.Event()
    threads.run(lambda: go_on.wait(120) and None)
    threads.close()
    go_on.set()


def test_what_is_done_aside_is_answered_first_to_then() -> None:
    async def scenario() -> list[str]:
        aside, order = Aside("test"), list[str]()

        async def wait(future: asyncio.Future[str]) -> None:
            order.append(f"waited for {await future}")

        done = aside.run(str.upper, "a", then=lambda answer: order.append(f"then {answer}"))
        await wait(done)
        with pytest.raises(ValueError, match="invalid literal"):
            await aside.run(int, "x", then=lambda _: order.append("never"))
        with pytest.raises(ZeroDivisionError):
            await aside.run(int, "0", then=lambda answer: 1 // answer)
        aside.close()
        return order

    assert asyncio.run(scenario()) == ["then A", "waited for A"]


def test_what_fails_aside_and_whoever_stops_waiting_do_not_end_its_thread(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> str:
        aside, gate = Aside("test"), threading.Event()
        aside.submit(int, "x")
        given_up = aside.run(gate.wait, 10)
        given_up.cancel()
        gate.set()
        answer = await aside.run(lambda: threading.current_thread().name)
        aside.close()
        return answer

    assert asyncio.run(scenario()) == "ulak-test-0"
    assert "work that nobody waits for failed" in caplog.text
