"""Dispatchers die at any moment, several at once; the remote ends where this service stands."""

import itertools
import random
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.services.contracts.house import House
from tests.services.contracts.outbox import pair
from tests.services.contracts.outbox.pair import Home, served, towards

SUBJECTS = [str(number) for number in range(8)]
STEPS = [("pending", "confirmed"), ("confirmed", "checked_in"), ("checked_in", "completed")]
DISPATCHERS = 2
KILLS = 4
PATIENCE_S = 120
CHILD = f"from {pair.__name__} import dispatch_for_ever as run; import sys; run(*sys.argv[1:])"


class Dispatchers:
    """Processes that send, and are killed."""

    def __init__(self, url: str, address: str) -> None:
        self._where = (url, address)
        self._running = [self._start() for _ in range(DISPATCHERS)]

    def kill_the_eldest(self) -> None:
        """Kill one, and start another in its place."""
        self._end(self._running.pop(0))
        self._running.append(self._start())

    def close(self) -> None:
        while self._running:
            self._end(self._running.pop())

    def _start(self) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, *self._where],
            cwd=Path(__file__).parents[4], stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert child.stdout is not None
        assert child.stdout.readline() == "begun\n"
        return child

    def _end(self, child: subprocess.Popen[str]) -> None:
        child.kill()
        child.communicate()


@pytest.mark.shows("I-50", "I-51", "I-52")
def test_whoever_dies_every_change_arrives_once_and_in_order(url: str, tmp_path: Path) -> None:
    dice = random.Random(9)  # noqa: S311 - a test that can be repeated
    with ExitStack() as stack:
        home = stack.enter_context(closing(Home(url, towards("http://127.0.0.1:1"))))
        remote = stack.enter_context(closing(House(f"sqlite:///{tmp_path / 'remote.db'}")))
        address = stack.enter_context(served(remote))
        dispatchers = stack.enter_context(closing(Dispatchers(url, address)))
        changes = itertools.product(STEPS, SUBJECTS)
        for _ in range(KILLS):
            for (before, after), subject in itertools.islice(changes, 5):
                move(home, subject, before, after)
            time.sleep(dice.uniform(0, 0.2))  # when it dies is what is varied here
            dispatchers.kill_the_eldest()
        for (before, after), subject in changes:
            move(home, subject, before, after)
        deadline = time.monotonic() + PATIENCE_S
        while left := [event for event in home.events() if event.status != "sent"]:
            assert time.monotonic() < deadline, left
            time.sleep(0.05)
        dispatchers.close()
        events = home.events()
        assert len(events) == len(SUBJECTS) * len(STEPS)
        assert {event.drift for event in events} == {None}
        for subject in SUBJECTS:
            told = remote.proofs(subject_type="reservation", subject_id=subject)
            assert [(proof["from"], proof["to"]) for proof in reversed(told)] == STEPS


def move(home: Home, subject: str, before: str, after: str) -> None:
    answer = home.move(
        f"{subject}-{after}", subject_ref={"type": "reservation", "id": subject}, from_=before,
        to=after,
    )  # fmt: skip
    assert answer.status_code == 200, answer.text
