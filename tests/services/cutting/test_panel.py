"""The breaker of the optimiser and the worker panel, on either database."""

import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest

from ulak import Engine, Flow, Lifecycle
from ulak.clock import ManualClock
from ulak.kit.breakers import LOOKS_AGAIN, PROBE_LASTS, CircuitBreaker
from ulak.kit.clock import rfc3339, to_datetime
from ulak.services.cutting import SCHEMA
from ulak.services.cutting.jobs import make_panel
from ulak.tables import Tables
from ulak.wiring import store_of

FAILED = "E_OPTI_RUNNER_FAILED"
SECOND = timedelta(seconds=1)
REST = 300 * SECOND


class Shop:
    """A store with a breaker, and a clock that stands."""

    def __init__(self, url: str) -> None:
        self.clock = ManualClock()
        self.engine = Engine(store_of(url, clock=self.clock))
        self.tables = Tables(self.engine, SCHEMA)
        self.breaker = CircuitBreaker(self.tables, "cutting_breakers", "optimiser")

    def panel(self) -> dict[str, object]:
        return make_panel(self.engine, self.breaker)

    @property
    def state(self) -> object:
        breaker = self.panel()["breaker"]
        assert isinstance(breaker, dict)
        return breaker["state"]

    def fail(self, *keys: str) -> None:
        for key in keys:
            assert self.breaker.may_start(key) is None
            self.breaker.failed(key, FAILED, f"{key} has failed")


@pytest.fixture
def shop(url: str) -> Iterator[Shop]:
    made = Shop(url)
    yield made
    made.engine.close()


@pytest.mark.shows("C-82")
def test_three_failures_in_a_row_open_the_breaker(shop: Shop) -> None:
    shop.fail("a/1/optimise", "b/1/optimise")
    shop.breaker.succeeded("c/1/optimise")
    shop.fail("d/1/optimise", "e/1/optimise")
    assert shop.state == "closed"
    shop.fail("f/1/optimise")
    assert shop.state == "open"
    assert shop.breaker.may_start("g/1/optimise") == REST


@pytest.mark.shows("C-82")
def test_after_the_rest_one_run_is_the_probe(shop: Shop) -> None:
    shop.fail("a/1/optimise", "b/1/optimise", "c/1/optimise")
    shop.clock.advance(REST - SECOND)
    assert shop.breaker.may_start("d/1/optimise") == SECOND
    shop.clock.advance(SECOND)
    assert shop.state == "half-open"
    # A run may be asked for twice: its worker may vanish in between.
    assert [shop.breaker.may_start("d/1/optimise") for _ in range(2)] == [None, None]
    assert shop.breaker.may_start("e/1/optimise") == LOOKS_AGAIN
    shop.breaker.succeeded("d/1/optimise")
    assert shop.state == "closed"
    assert shop.breaker.may_start("e/1/optimise") is None


@pytest.mark.shows("C-82")
def test_a_probe_that_fails_begins_another_rest(shop: Shop) -> None:
    shop.fail("a/1/optimise", "b/1/optimise", "c/1/optimise")
    shop.clock.advance(REST)
    shop.fail("d/1/optimise")
    assert shop.state == "open"
    assert shop.breaker.may_start("e/1/optimise") == REST
    shop.clock.advance(REST)
    assert shop.breaker.may_start("e/1/optimise") is None


@pytest.mark.shows("C-82")
def test_of_many_at_once_one_is_the_probe(shop: Shop) -> None:
    shop.fail("a/1/optimise", "b/1/optimise", "c/1/optimise")
    shop.clock.advance(REST)
    answers: list[object] = []
    barrier = threading.Barrier(8)

    def ask(number: int) -> None:
        barrier.wait()
        answers.append(shop.breaker.may_start(f"{number}/1/optimise"))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, answers)) == sorted(["None", *[str(LOOKS_AGAIN)] * 7])


def test_a_probe_that_ends_without_a_word_frees_its_place(shop: Shop) -> None:
    shop.fail("a/1/optimise", "b/1/optimise", "c/1/optimise")
    shop.clock.advance(REST)
    assert shop.breaker.may_start("d/1/optimise") is None
    shop.breaker.let_go("e")
    assert shop.breaker.may_start("e/1/optimise") == LOOKS_AGAIN
    shop.breaker.let_go("d")
    assert shop.breaker.may_start("e/1/optimise") is None
    # Nobody lets this one go: its time runs out.
    shop.clock.advance(PROBE_LASTS)
    assert shop.breaker.may_start("f/1/optimise") is None


def test_a_run_that_is_told_twice_counts_once(shop: Shop) -> None:
    for _ in range(3):
        shop.fail("a/1/optimise")
    shop.breaker.failed("b/1/optimise", FAILED, "once")
    assert shop.panel()["runs"] == 2
    assert shop.panel()["failed_runs"] == 2
    assert shop.state == "closed"
    # It ran again after its worker had vanished, and this time it went well.
    shop.breaker.succeeded("b/1/optimise")
    shop.breaker.succeeded("b/1/optimise")
    assert shop.panel()["runs"] == 2
    shop.fail("c/1/optimise", "d/1/optimise")
    assert shop.state == "closed"


def test_a_clock_that_was_set_back_keeps_nobody_out(shop: Shop) -> None:
    shop.fail("a/1/optimise", "b/1/optimise", "c/1/optimise")
    shop.clock.step(-timedelta(days=1))
    assert shop.breaker.may_start("d/1/optimise") is None


@pytest.mark.shows("C-82")
def test_an_administrator_closes_the_breaker(shop: Shop) -> None:
    shop.fail("a/1/optimise", "b/1/optimise", "c/1/optimise")
    shop.breaker.reset("user:ada")
    breaker = shop.panel()["breaker"]
    assert isinstance(breaker, dict)
    assert (breaker["state"], breaker["failures"]) == ("closed", 0)
    assert breaker["reset_by"] == "user:ada"
    assert breaker["reset_at"] == rfc3339(to_datetime(shop.tables.now), "milliseconds")
    assert shop.breaker.may_start("d/1/optimise") is None


@pytest.mark.shows("C-82")
def test_the_panel_tells_what_waits_what_runs_and_what_went_wrong(shop: Shop) -> None:
    flow = Flow("cutting", Lifecycle("NEW", {"NEW": ["DONE"]}, done="DONE"))

    @flow.stage("NEW", to="DONE")
    def finish(run: object) -> None: ...

    shop.engine.add(flow)
    job = shop.engine.submit(flow, {})
    shop.engine.submit(flow, {}, after=timedelta(hours=1))
    fresh = shop.panel()
    assert (fresh["queue_length"], fresh["running"], fresh["runs"]) == (2, 0, 0)
    assert shop.engine.worker().take(job.id) is not None
    busy = shop.panel()
    assert (busy["queue_length"], busy["running"]) == (1, 1)
    assert (fresh["last_run_at"], fresh["last_code"]) == (None, None)
    shop.breaker.succeeded("a/1/optimise")
    shop.clock.advance(SECOND)
    shop.breaker.failed("b/1/optimise", FAILED, "x" * 9999)
    at = rfc3339(to_datetime(shop.tables.now), "milliseconds")
    told = shop.panel()
    assert (told["runs"], told["failed_runs"], told["last_code"]) == (2, 1, FAILED)
    assert (told["last_run_at"], told["last_failed_at"]) == (at, at)
    assert told["last_message"] == "x" * 500
    assert told["breaker"] == {
        "state": "closed", "failures": 1, "opened_at": None, "probe": None, "probe_from_at": None,
        "reset_at": None, "reset_by": None,
    }  # fmt: skip
    shop.fail("c/1/optimise", "d/1/optimise")
    breaker = shop.panel()["breaker"]
    assert isinstance(breaker, dict)
    later = rfc3339(to_datetime(shop.clock.advance(REST)), "milliseconds")
    assert (breaker["opened_at"], breaker["probe_from_at"]) == (at, later)
    shop.breaker.may_start("e/1/optimise")
    breaker = shop.panel()["breaker"]
    assert isinstance(breaker, dict)
    assert (breaker["state"], breaker["probe"]) == ("half-open", "e/1/optimise")
