"""Contracts whose records are in Redis: no transaction is shared, and the proofs stand for it."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import redis

from tests.services.contracts.child import die
from tests.services.contracts.house import House
from tests.services.contracts.test_transitions import (  # noqa: F401 - told again, on Redis
    test_a_key_is_for_one_request,
    test_a_pinned_version_that_nobody_knows_is_refused_and_the_key_stays_free,
    test_a_refusal_is_kept_and_told_again_though_the_subject_has_moved,
    test_a_refused_request_creates_no_subject,
    test_a_replay_after_a_restart_has_the_same_bytes_and_no_effect,
    test_a_replay_has_the_version_of_the_first_execution,
    test_a_stale_status_or_version_is_refused_and_that_is_kept,
    test_a_subject_may_be_created_where_it_begins_without_a_proof,
    test_a_target_that_is_reached_already_changes_nothing,
    test_a_transition_changes_the_subject_and_leaves_one_proof,
    test_an_event_that_overtook_the_creation_of_its_subject_succeeds_later,
    test_every_answer_names_its_key_and_whether_it_is_a_replay,
    test_the_same_key_and_subject_of_another_tenant_are_others,
)
from ulak.clock import ManualClock
from ulak.errors import InProgress
from ulak.idempotency import Answered
from ulak.services.contracts.contracts import TRANSITION
from ulak.services.contracts.requests import Transition
from ulak.testing import faults

PAID = Transition("acme", "order", "1", "paid", key="a", from_="pending", caller="service")
CROWD = 24


@pytest.fixture
def open_house(url: str, redis_url: str) -> Iterator[Callable[..., House]]:
    """Start another process on the same stores."""
    made: list[House] = []

    def start(**options: Any) -> House:
        made.append(House(url, records=redis_url, **options))
        return made[-1]

    yield start
    for house in made:
        house.close()


def paying(url: str, redis_url: str, dies: str) -> None:
    """The life of a process that is asked for one change."""
    house = House(url, records=redis_url, clock=ManualClock(), on_change=die if dies else None)
    house.contracts.transition(PAID)


def after_the_lease(open_house: Callable[..., House]) -> House:
    """Another process, in whose world the lease of one that died has lapsed."""
    clock = ManualClock()
    clock.advance(timedelta(seconds=1) + TRANSITION.lease)
    return open_house(clock=clock)


@pytest.mark.shows("I-60", "I-46")
def test_a_change_whose_record_was_never_finished_is_told_from_its_proof(
    open_house: Callable[..., House], url: str, redis_url: str
) -> None:
    house = open_house(clock=ManualClock())
    # The second write of a record: the change is committed, and Redis was never told.
    assert faults.run(paying, url, redis_url, "", kill_at="record.before", nth=2).killed
    assert (house.subject()["status"], len(house.proofs())) == ("paid", 1)
    before = house.subject(), house.proofs()
    later = after_the_lease(open_house)
    told = later.contracts.transition(PAID)
    assert (told.is_replay, told.answer.status) == (True, 200)
    assert later.contracts.transition(PAID) == Answered(told.answer, is_replay=True)
    assert (later.subject(), later.proofs()) == before


@pytest.mark.shows("I-60", "I-35")
def test_a_process_that_dies_in_the_middle_of_a_change_leaves_none(
    open_house: Callable[..., House], url: str, redis_url: str
) -> None:
    house = open_house(clock=ManualClock())
    house.contracts.find_subject("", "", "")
    assert faults.run(paying, url, redis_url, "dies").killed
    assert (house.subject(), house.proofs()) == (None, [])
    with pytest.raises(InProgress):
        house.contracts.transition(PAID)
    answered = after_the_lease(open_house).contracts.transition(PAID)
    assert (answered.is_replay, answered.answer.status) == (False, 200)
    assert len(house.proofs()) == 1


@pytest.mark.shows("I-60", "I-46", "I-7")
def test_records_that_redis_has_lost_yield_no_second_proof_and_the_same_bytes(
    house: House, redis_url: str
) -> None:
    first = house.move("a", from_="pending", to="paid", meta={"x": 1})
    house.move("b", to="cancelled")
    before = house.subject(), house.proofs()
    redis.Redis.from_url(redis_url).flushdb()
    for _ in range(2):
        again = house.move("a", from_="pending", to="paid", meta={"x": 1})
        assert (again.status_code, again.content) == (200, first.content)
        assert again.headers["Idempotent-Replayed"] == "true"
    redis.Redis.from_url(redis_url).flushdb()
    other = house.move("a", from_="pending", to="cancelled")
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
    assert (house.subject(), house.proofs()) == before


@pytest.mark.shows("I-60", "I-10")
def test_of_many_who_ask_two_processes_at_once_one_changes(
    house: House, open_house: Callable[..., House]
) -> None:
    houses = [house, open_house()]
    house.contracts.find_subject("", "", "")
    with ThreadPoolExecutor(CROWD) as threads:
        asked = [
            threads.submit(houses[n % 2].move, "a", from_="pending", to="paid")
            for n in range(CROWD)
        ]
        answers = [one.result() for one in asked]
    done = [answer for answer in answers if answer.status_code == 200]
    assert {answer.status_code for answer in answers} <= {200, 409}
    assert len({answer.content for answer in done}) == 1
    assert [answer.headers["Idempotent-Replayed"] for answer in done].count("false") == 1
    assert (len(house.proofs()), house.subject()["version"]) == (1, 1)
