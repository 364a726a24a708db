"""A transaction of somebody else that stays open, and other single bad things: each harms itself
alone, and everything else goes on."""

import logging
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import psycopg
import pytest

import ulak
from tests.conformance.stores import make_schema
from tests.databases import Databases
from tests.scenario.doubles import (
    Double,
    Gathering,
    engine_on,
    eventually,
    settings,
    store_of,
)
from ulak.engine.engine import Engine
from ulak.engine.upkeep import Upkeep
from ulak.ids import from_text
from ulak.store.postgres import PostgresStore
from ulak.testing import Harness

SECOND = timedelta(seconds=1)
HOLD_KEY = "INSERT INTO ulak.dedup (tenant, flow, key, job_id) VALUES ('', %s, %s, %s)"
NOBODY = "0" * 32
MANY = 20
LONG = timedelta(seconds=120)


@pytest.fixture
def url(databases: Databases) -> Iterator[str]:
    """The URL of an empty PostgreSQL store."""
    with databases.lend(make_schema) as url:
        yield url


def flow_of(name: str, **options: Any) -> ulak.Flow[Any]:
    flow: ulak.Flow[Any] = ulak.Flow(name, ulak.Lifecycle("go", {"go": ["done"]}), **options)

    @flow.stage("go")
    async def go(run: ulak.Run[Any]) -> None: ...

    return flow


def waiting_flow(name: str) -> ulak.Flow[Any]:
    """Jobs that nobody claims: after an hour upkeep ends them."""
    moves = {"new": ["late", "paid"]}
    flow: ulak.Flow[Any] = ulak.Flow(name, ulak.Lifecycle("new", moves, done=["late", "paid"]))
    flow.wait("new", signal="paid", to="paid", deadline=timedelta(hours=1), on_expiry="late")
    return flow


def said(caplog: pytest.LogCaptureFixture, words: str) -> int:
    return sum(words in record.getMessage() for record in caplog.records)


@pytest.mark.shows("E-84")
def test_a_schedule_whose_key_is_held_stops_neither_claims_nor_other_schedules(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Broken by a tick that waits for the key, or by upkeep on the claims' thread."""
    held, free, plain = flow_of("held", dedup=ulak.Dedup(key=str)), flow_of("free"), flow_of("p")
    engine = engine_on(PostgresStore(url), held, free, plain)
    engine.schedules.add("held", held, "k", every=SECOND)
    engine.schedules.add("free", free, "k", every=SECOND)
    with engine, psycopg.connect(url) as foreign:
        foreign.execute(HOLD_KEY, ("held", "k", NOBODY))
        with engine.working(settings()):
            eventually(lambda: said(caplog, "the job of a schedule must wait for somebody else"))
            before = len(engine.schedules.ticks("free"))
            eventually(lambda: len(engine.schedules.ticks("free")) >= before + 2)
            for job in engine.submit_many(plain, range(50)):
                engine.wait(job.id, timeout=LONG)
            assert engine.schedules.ticks("held") == []
            assert said(caplog, "the job of a schedule must wait for somebody else") == 1
            foreign.rollback()
            eventually(lambda: engine.schedules.ticks("held"))
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-84")
def test_claims_go_on_while_upkeep_stands_still(jobs_url: str) -> None:
    store, release, stands = Double(store_of(jobs_url)), threading.Event(), threading.Event()

    def stand_still(*_: Any) -> None:
        stands.set()
        assert release.wait(120)

    flow = flow_of("plain")
    store.before["unpark"] = stand_still
    with engine_on(store, flow) as engine:
        try:
            with engine.working(settings()):
                assert stands.wait(120)
                for job in engine.submit_many(flow, range(20)):
                    engine.wait(job.id, timeout=LONG)
                release.set()
        finally:
            release.set()


@pytest.mark.shows("E-84")
def test_a_job_that_somebody_holds_keeps_no_other_deadline(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    flow = waiting_flow("late")
    with Harness(flow, url=url) as harness, psycopg.connect(url) as foreign:
        held, *others = harness.engine.submit_many(flow, range(20))
        foreign.execute("SELECT FROM ulak.jobs WHERE id = %s FOR UPDATE", (held.id,))
        harness.clock.advance(timedelta(hours=2))
        upkeep = Upkeep(harness.engine.kernel, 0)
        for _ in range(3):
            upkeep.tick()
        assert {harness.job(job.id).state for job in others} == {"late"}
        assert harness.job(held.id).state == "new"
        assert said(caplog, "upkeep must leave a job for now") == 1
        foreign.rollback()
        upkeep.tick()
        assert harness.job(held.id).state == "late"


@pytest.mark.shows("E-84")
@pytest.mark.parametrize("verb", ["due", "overdue_leased", "asked", "unpark", "fold_counts"])
@pytest.mark.parametrize("error", [ulak.errors.Contended("held"), KeyError("unheard of")])
def test_a_step_of_upkeep_that_fails_ends_no_other(
    verb: str, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    flow = flow_of("nightly")
    with Harness(flow) as harness:
        harness.engine.schedules.add("nightly", flow, 1, every=SECOND)
        store: Any = harness.engine.store

        def fail(*_: Any, **__: Any) -> None:
            raise error

        setattr(store, verb, fail)
        upkeep = Upkeep(harness.engine.kernel, 0)
        for _ in range(3):
            harness.clock.advance(SECOND)
            upkeep.tick()
        assert len(harness.engine.schedules.ticks("nightly")) == 3
        assert said(caplog, "a step of upkeep") == 1


@pytest.mark.shows("E-84")
def test_a_schedule_that_cannot_make_its_job_harms_no_other(
    jobs_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    is_bad = False

    def key(payload: Any) -> str:
        if is_bad and payload == "bad":
            raise RuntimeError("no key today")
        return str(payload)

    moves = {"go": ["done"]}
    flow: ulak.Flow[Any] = ulak.Flow("keyed", ulak.Lifecycle("go", moves))

    @flow.stage("go", limit=ulak.Limit(1, key=key))
    async def go(run: ulak.Run[Any]) -> None: ...

    with Harness(flow, url=jobs_url) as harness:
        for name in ("bad", "good"):
            harness.engine.schedules.add(name, flow, name, cron="0 3 * * *")
        is_bad = True
        with caplog.at_level(logging.ERROR, "ulak.ticker"):
            harness.clock.advance(timedelta(days=1))
            upkeep = Upkeep(harness.engine.kernel, 0)
            for _ in range(3):
                upkeep.tick()
        assert len(harness.engine.schedules.ticks("good")) == 1
        assert harness.engine.schedules.ticks("bad") == []
        assert said(caplog, "a schedule cannot tick") == 1
        is_bad = False
        upkeep.tick()
        assert len(harness.engine.schedules.ticks("bad")) == 1


@pytest.mark.shows("E-84")
def test_every_statement_waits_only_so_long_for_a_lock(url: str) -> None:
    """Broken by a write that asks for no patience, and has none of its session."""
    store = PostgresStore(url)
    store.open()
    with psycopg.connect(url) as foreign:
        foreign.execute("LOCK TABLE ulak.count_deltas, ulak.weights")
        with pytest.raises(ulak.errors.Contended, match="somebody else"):
            store.fold_counts()
        with pytest.raises(ulak.errors.Contended, match="somebody else"):
            store.weights()
    store.close()


# --- an error of the database that is neither data nor connection -------------------


def forbid(url: str, verb: str, job_id: bytes, states: str) -> None:
    """Let a trigger fail when a job is to be inserted or updated in one of some states."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as db:
            # Not RAISE, which is a constraint to SQLite, but a statement that cannot be run.
            db.execute(
                f"CREATE TRIGGER forbid BEFORE {verb} ON jobs WHEN NEW.id = x'{job_id.hex()}' "
                f"AND NEW.leased_by IS NULL AND NEW.state IN ({states}) "
                "BEGIN SELECT json('{'); END"
            )
        return
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(
            "CREATE FUNCTION forbid() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'the auditors object'; END $$"
        )
        db.execute(
            f"CREATE TRIGGER forbid BEFORE {verb} ON ulak.jobs FOR EACH ROW WHEN (NEW.id = "
            f"'{job_id.hex()}' AND NEW.leased_by IS NULL AND NEW.state IN ({states})) "
            "EXECUTE FUNCTION forbid()"
        )


def run_beside_a_forbidden_job(
    engine: Engine, flow: ulak.Flow[Any], url: str, states: str, *, until: str | None = None
) -> str:
    """Run jobs, the first of which a trigger keeps out of some states; return its id.

    It is waited for in the state `until`, and then one more job is submitted and run.
    """
    bad, *good = engine.submit_many(flow, range(MANY))
    forbid(url, "UPDATE", from_text(bad.id), states)
    with engine.working(settings()) as worker:
        for job in good:
            engine.wait(job.id, timeout=LONG)
        if until is not None:
            engine.wait(bad.id, until=until, timeout=LONG)
        engine.wait(engine.submit(flow, "later").id, timeout=LONG)
        eventually(lambda: worker.running == 0)
    return bad.id


@pytest.mark.shows("E-84", "E-19")
def test_a_trigger_that_raises_ends_the_run_of_its_own_job(
    shared_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Broken by a committer that repeats a batch for ever which the database has refused."""
    together = Gathering(MANY)

    async def first(run: ulak.Run[Any]) -> None:
        if run.payload != "later":
            await together.wait()

    flow: ulak.Flow[Any] = ulak.Flow.steps("crowd", first)
    with engine_on(store_of(shared_url), flow) as engine:
        bad = run_beside_a_forbidden_job(engine, flow, shared_url, "'done'", until="held")
        held = engine.get(bad)
        assert held.code == "commit-rejected"
        message = engine.inspect.trail(bad)[-1].message or ""
        assert "auditors object" in message or "malformed JSON" in message
        assert said(caplog, "a job is held until a person has looked") == 1
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-84")
def test_a_job_that_can_be_neither_moved_nor_held_keeps_no_other(shared_url: str) -> None:
    flow = flow_of("plain")
    with engine_on(store_of(shared_url), flow) as engine:
        bad = run_beside_a_forbidden_job(engine, flow, shared_url, "'done', 'held', 'go'")
        assert engine.get(bad).state == "go"


@pytest.mark.shows("E-84")
def test_a_trigger_that_raises_refuses_its_own_submit(shared_url: str) -> None:
    flow = flow_of("plain")
    with engine_on(store_of(shared_url), flow) as engine:
        new = [engine.kernel.prepare(flow, n) for n in range(MANY)]
        forbid(shared_url, "INSERT", new[7].row.id, "'go'")
        offers = [engine.kernel.intake.offer([job]) for job in new]
        bad = offers.pop(7)
        assert all(offer.result(120)[0].created for offer in offers)
        with pytest.raises(ulak.errors.WriteRefused, match=r"auditors object|malformed JSON"):
            bad.result(120)
