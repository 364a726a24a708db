"""Guessing is slow, and does not keep others out."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from ulak.auth import attempts as module
from ulak.auth.attempts import FOR_SUSPECTS, LONGEST_DELAY_S, PLACES, Attempts
from ulak.clock import ManualClock
from ulak.errors import Overloaded


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def attempts(clock: ManualClock) -> Attempts:
    return Attempts(clock)


def fail(attempts: Attempts, user: str = "ada", address: str = "10.0.0.1") -> None:
    assert not attempts.check(user, address, lambda: False)


def find_delay(attempts: Attempts, user: str = "ada", address: str = "10.0.0.1") -> float:
    """Return how long a try is refused, 0 when it was looked at."""
    try:
        assert attempts.check(user, address, lambda: True)
    except Overloaded as refusal:
        return refusal.retry_after.total_seconds()
    return 0


def test_the_delay_doubles_with_each_failure_up_to_five_minutes(attempts, clock) -> None:
    delays = []
    for _ in range(12):
        fail(attempts)
        delays.append(find_delay(attempts))
        clock.advance(timedelta(seconds=delays[-1]))
    assert delays == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]
    assert delays[-1] == LONGEST_DELAY_S


def test_nothing_is_checked_while_somebody_has_to_wait(attempts, clock) -> None:
    fail(attempts)
    checked: list[bool] = []
    with pytest.raises(Overloaded, match="too many wrong passwords; try again in 1 s"):
        attempts.check("ada", "10.0.0.1", lambda: bool(checked.append(True)))
    assert not checked
    clock.advance(timedelta(seconds=1))
    assert find_delay(attempts) == 0


def test_an_address_waits_with_every_user_and_a_user_at_that_address_alone(attempts) -> None:
    fail(attempts, "ada", "10.0.0.1")
    assert find_delay(attempts, "bob", "10.0.0.1") == 1
    assert find_delay(attempts, "ada", "10.0.0.2") == 0


def test_the_right_password_ends_the_delays_of_a_user_and_not_those_of_the_address(
    attempts, clock
) -> None:
    for seconds in (1, 2, 4):
        fail(attempts)
        clock.advance(timedelta(seconds=seconds))
    assert find_delay(attempts) == 0
    fail(attempts)
    assert find_delay(attempts) == 8, "the fourth of this address"


def test_failures_are_forgotten_after_ten_minutes(attempts, clock) -> None:
    for _ in range(5):
        fail(attempts)
        clock.advance(timedelta(minutes=5))
    clock.advance(timedelta(minutes=10))
    fail(attempts)
    assert find_delay(attempts) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("2001:db8::1", "2001:db8::ffff:2"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80::2"),
    ],
)
def test_addresses_of_one_person_wait_together(attempts, one: str, other: str) -> None:
    fail(attempts, address=one)
    assert find_delay(attempts, address=other) == 1


def test_no_more_failures_are_remembered_than_there_is_room_for(attempts, monkeypatch) -> None:
    monkeypatch.setattr(module, "MOST_REMEMBERED", 10)
    for n in range(50):
        fail(attempts, address=f"10.0.0.{n}")
    assert len(attempts._failures) == 10
    assert find_delay(attempts, address="10.0.0.49") == 1


class Held:
    """Checks that last until they are let go."""

    def __init__(self, attempts: Attempts) -> None:
        self._attempts = attempts
        self._go = threading.Event()
        self._pool = ThreadPoolExecutor(64)
        self.begun: list[str] = []

    def check(self, user: str, address: str) -> Callable[[], bool]:
        def last() -> bool:
            self.begun.append(user)
            assert self._go.wait(30)
            return True

        return self._pool.submit(self._attempts.check, user, address, last).result

    def take(self) -> Callable[[], bool]:
        """Hold a place for a stranger."""

        def hold() -> bool:
            with self._attempts.place():
                self.begun.append("stranger")
                assert self._go.wait(30)
            return True

        return self._pool.submit(hold).result

    def end(self) -> None:
        self._go.set()
        self._pool.shutdown()


@pytest.fixture
def held(attempts: Attempts):
    made = Held(attempts)
    yield made
    made.end()


def until(condition: Callable[[], bool]) -> None:
    tick = threading.Event()
    for _ in range(3000):
        if condition():
            return
        tick.wait(0.01)
    raise AssertionError("it did not happen")


def test_two_thirds_of_the_places_are_left_for_those_who_have_not_failed(
    attempts, clock, held
) -> None:
    for n in range(10):
        fail(attempts, f"guesser {n}", f"10.0.1.{n}")
    clock.advance(timedelta(seconds=1))
    guessers = [held.check(f"guesser {n}", f"10.0.1.{n}") for n in range(10)]
    until(lambda: len(held.begun) == FOR_SUSPECTS and attempts._waiting == 10 - FOR_SUSPECTS)
    others = [held.check(f"user {n}", f"10.0.2.{n}") for n in range(PLACES - FOR_SUSPECTS)]
    until(lambda: len(held.begun) == PLACES)
    assert sum(user.startswith("user") for user in held.begun) == len(others)
    held.end()
    assert all(result() for result in (*guessers, *others))


def test_strangers_who_register_take_no_more_places_than_suspects(attempts, held, clock) -> None:
    fail(attempts, "guesser", "10.0.1.1")
    clock.advance(timedelta(seconds=1))
    strangers = [held.take() for _ in range(FOR_SUSPECTS)]
    until(lambda: len(held.begun) == FOR_SUSPECTS)
    late = held.take()
    guesser = held.check("guesser", "10.0.1.1")
    until(lambda: attempts._waiting == 2)
    others = [held.check(f"user {n}", f"10.0.2.{n}") for n in range(PLACES - FOR_SUSPECTS)]
    until(lambda: len(held.begun) == PLACES)
    assert sum(user.startswith("user") for user in held.begun) == len(others)
    held.end()
    assert all(result() for result in (*strangers, late, guesser, *others))


def test_strangers_who_register_leave_logins_room_to_wait(attempts, held, monkeypatch) -> None:
    monkeypatch.setattr(module, "MOST_STRANGERS_WAITING", 1)
    strangers = [held.take() for _ in range(FOR_SUSPECTS + 1)]
    until(lambda: attempts._waiting == 1)
    with pytest.raises(Overloaded), attempts.place():
        raise AssertionError("there was a place")
    login = held.check("ada", "10.0.0.1")
    until(lambda: "ada" in held.begun)
    held.end()
    assert all(result() for result in (*strangers, login))


def test_no_more_are_checked_or_wait_than_the_machine_can_bear(attempts, held, monkeypatch) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 3)
    results = [held.check(f"user {n}", f"10.0.0.{n}") for n in range(PLACES + 3)]
    until(lambda: len(held.begun) == PLACES and attempts._waiting == 3)
    with pytest.raises(Overloaded, match="too many people log in at this moment"):
        attempts.check("another", "10.0.3.1", lambda: True)
    held.end()
    assert all(result() for result in results)


def test_a_try_that_waited_is_not_looked_at_when_another_of_the_same_user_has_failed(
    attempts, held, monkeypatch
) -> None:
    monkeypatch.setattr(module, "PLACES", 1)
    first = held.check("ada", "10.0.0.9")
    until(lambda: held.begun == ["ada"])
    with ThreadPoolExecutor() as pool:
        results = [pool.submit(attempts.check, "ada", "10.0.0.1", lambda: False) for _ in range(4)]
        until(lambda: attempts._waiting == 4)
        held.end()
        ended = [result.exception() for result in results]
    assert first()
    assert [type(error) for error in ended].count(Overloaded) == 3
    assert ended.count(None) == 1
