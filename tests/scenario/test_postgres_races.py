"""Two processes that write to one PostgreSQL at once, and a transaction that stands in the way."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest

import ulak
from tests.conformance.stores import make_schema, postgres
from tests.databases import Databases
from tests.scenario.doubles import SOON, engine_on, eventually, quickest, settings
from ulak.core.change import Committed, LeaseLost
from ulak.core.outcome import Finished, Left
from ulak.errors import Contended, UnknownOutcome
from ulak.store.postgres import PostgresStore
from ulak.store.postgres.connections import COMMIT_PATIENCE_MS
from ulak.testing.conformance import Reopen
from ulak.testing.conformance.desk import Desk, patiently
from ulak.testing.conformance.flows import PROVEN, SINGLE
from ulak.testing.conformance.races import WORKER, Racer, race

ROUNDS = 100
TENANTS = [f"tenant-{n}" for n in range(40)]
DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
# A circle is found before anybody has waited too long for a lock and goes another way.
LOOK_FOR_CIRCLES_SOON = "?options=-c%20deadlock_timeout%3D10ms"
HOLD_KEY = "INSERT INTO ulak.dedup (tenant, flow, key, job_id) VALUES ('', %s, %s, %s)"
NOBODY = "0" * 32


@pytest.fixture
def url(databases: Databases) -> Iterator[str]:
    with databases.lend(make_schema) as url:
        yield url


# --- E-21 ---------------------------------------------------------------------------


def commit_the_same_jobs(racer: Racer) -> None:
    """Commit the same jobs, the one forwards, the other backwards, each with one lost lease.

    Every commit moves jobs, frees keys and takes keys for what it spawns.
    """
    desk, way = racer.desk, -1 if racer.number else 1
    for _ in range(ROUNDS):
        if racer.number == 0:
            desk.store.add([desk.new(SINGLE, dedup_key=f"key-{n}") for n in range(30)])
            desk.claim(WORKER, 100, SINGLE)
        rows = sorted(racer.leased())
        changes = []
        for row in rows:
            key = str(row.dedup_key)
            spawned = () if key.startswith("of-") else (desk.new(SINGLE, dedup_key=f"of-{key}"),)
            changes.append(desk.end(row, Finished(Left(spawns=spawned)), flow=SINGLE))
        # One of its changes has lost its lease, and it is not the same one.
        changes[racer.number] = changes[racer.number]._replace(token=99)
        racer.meet()
        receipts = patiently(desk.store.commit, changes[::way])[::way]
        assert receipts[racer.number] == LeaseLost()
        assert receipts[1 - racer.number] == Committed()
        assert len({type(receipt) for receipt in receipts[2:]}) == 1


def submit_the_same_keys(racer: Racer) -> None:
    """Submit the same keys, the one forwards, the other backwards."""
    desk, way = racer.desk, -1 if racer.number else 1
    for n in range(ROUNDS):
        new = [desk.new(SINGLE, dedup_key=f"{n}-{key}") for key in range(100)]
        racer.meet()
        patiently(desk.store.add, new[::way])


def prove_to_the_same_tenants(racer: Racer) -> None:
    """Go on in the same chains, the one from the first tenant on, the other from the last."""
    desk, way = racer.desk, -1 if racer.number else 1
    for _ in range(ROUNDS):
        new = [desk.new(PROVEN, tenant=tenant) for tenant in TENANTS[::way]]
        racer.meet()
        patiently(desk.store.add, new)


@pytest.mark.shows("E-21")
@pytest.mark.parametrize(
    "write",
    [
        commit_the_same_jobs,
        submit_the_same_keys,
        pytest.param(prove_to_the_same_tenants, marks=pytest.mark.shows("E-47")),
    ],
)
def test_writes_in_opposite_orders_never_wait_in_a_circle(
    write: Callable[[Racer], None], url: str
) -> None:
    """Broken by jobs in the order of the batch or a lock on what has lost its lease, by keys in
    the order of the submits, and by heads of chains in the order of the jobs."""
    race(write, Reopen(postgres, url + LOOK_FOR_CIRCLES_SOON))
    with psycopg.connect(url) as db:
        (deadlocks,) = db.execute(DEADLOCKS).fetchone() or (None,)
    print(f"{deadlocks} deadlocks in {ROUNDS} rounds")  # noqa: T201 - a figure to look at
    assert deadlocks == 0


# --- E-47 ---------------------------------------------------------------------------


def is_held(url: str, flow: str, key: str) -> bool:
    """Whether a transaction that has not ended holds a key. It may give up soon, so ask quickly."""
    with psycopg.connect(url, options="-c lock_timeout=1ms") as probe:
        try:
            probe.execute(HOLD_KEY, (flow, key, NOBODY))
        except psycopg.errors.LockNotAvailable:
            return True
        finally:
            probe.rollback()
    return False


@pytest.mark.shows("E-47")
def test_whoever_waits_for_the_head_of_a_chain_holds_everything_else_already(url: str) -> None:
    """Broken by a head that is taken before the key."""
    store = PostgresStore(url)
    store.open()
    desk = Desk(store)
    desk.submit(PROVEN)
    with psycopg.connect(url) as foreign, ThreadPoolExecutor(1) as pool:
        foreign.execute("SELECT FROM ulak.proof_heads WHERE tenant = '' FOR UPDATE")
        adding = pool.submit(patiently, store.add, [desk.new(PROVEN, dedup_key="mine")])
        eventually(lambda: is_held(url, PROVEN.name, "mine"))
        assert not adding.done()
        # Nobody waits for the chain of another tenant, or for any who proves nothing.
        desk.submit(PROVEN, tenant="acme")
        desk.submit(SINGLE)
        foreign.rollback()
        assert adding.result(120)[0].created
    store.close()


# --- E-34 ---------------------------------------------------------------------------


def keyed_flow() -> ulak.Flow[Any]:
    flow: ulak.Flow[Any] = ulak.Flow(
        "keyed", ulak.Lifecycle("go", {"go": ["done"]}), dedup=ulak.Dedup(key=str), retry=0
    )

    @flow.stage("go")
    async def go(run: ulak.Run[Any]) -> None: ...

    return flow


@pytest.mark.shows("E-34", "E-84")
@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_a_transaction_that_holds_a_key_delays_the_submit_of_that_key_alone(
    ends: str, url: str
) -> None:
    """Broken by an intake that waits for the key, or tries the whole batch again."""
    flow = keyed_flow()
    with (
        engine_on(PostgresStore(url), flow) as engine,
        psycopg.connect(url) as foreign,
        ThreadPoolExecutor(200) as pool,
    ):
        foreign.execute(HOLD_KEY, ("keyed", "held", NOBODY))
        new = [engine.kernel.prepare(flow, "held" if n == 100 else n) for n in range(200)]
        began = time.monotonic()
        offers = [engine.kernel.intake.offer([job]) for job in new]
        blocked = offers.pop(100)
        for other in offers:
            assert other.result(120)[0].created
        took_s = time.monotonic() - began
        print(f"199 submits beside a blocked one took {took_s:.2f} s")  # noqa: T201 - a figure
        assert took_s < 1.0
        alone = pool.submit(engine.submit, flow, "held")
        assert engine.submit(flow, "beside").created
        assert not blocked.done()
        assert not alone.done()
        getattr(foreign, ends)()
        # Whoever held the key has stored no job with it: one of the two is the first.
        answers = [blocked.result(120)[0].created, alone.result(120).created]
        assert sorted(answers) == [False, True]
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-34")
def test_a_key_that_is_held_for_longer_than_a_submit_waits(url: str) -> None:
    flow = keyed_flow()
    store = PostgresStore(url)
    with (
        engine_on(store, flow, submit_timeout=timedelta(seconds=3)) as engine,
        psycopg.connect(url) as foreign,
    ):
        foreign.execute(HOLD_KEY, ("keyed", "held", NOBODY))
        with pytest.raises(Contended):
            store.add([engine.kernel.prepare(flow, "held")])
        with pytest.raises(UnknownOutcome) as unknown:
            engine.submit(flow, "held")
        foreign.rollback()
        with engine_on(PostgresStore(url), flow) as patient:
            again = patient.submit(flow, "held")
        # On a busy machine the last try of the first job may come after the key is free.
        assert again.created or again.id == unknown.value.job_id


@pytest.mark.shows("E-34", "E-84")
def test_a_transaction_that_holds_a_job_delays_the_commit_of_that_job_alone(url: str) -> None:
    """Broken by a committer that waits for the row, or takes the refusal for a lost connection."""
    flow: ulak.Flow[Any] = ulak.Flow("crowd", ulak.Lifecycle("go", {"go": ["done"]}), retry=0)
    holding: list[psycopg.Connection] = []

    @flow.stage("go")
    async def go(run: ulak.Run[int]) -> None:
        if run.payload == 7 and not holding:
            foreign = psycopg.connect(url)
            foreign.execute("SELECT 1 FROM ulak.jobs WHERE id = %s FOR UPDATE", (run.job_id,))
            holding.append(foreign)

    with engine_on(PostgresStore(url), flow) as engine:
        jobs = engine.submit_many(flow, range(100))
        with engine.working(settings()):
            eventually(lambda: holding)
            for job in jobs:
                if job is not jobs[7]:
                    engine.wait(job.id, timeout=SOON)
            others = quickest(lambda: engine.wait(engine.submit(flow, 8).id, timeout=SOON))
            assert others < COMMIT_PATIENCE_MS / 1000, "nobody waits beside it for its row"
            assert engine.get(jobs[7].id).state == "go"
            holding[0].close()
            engine.wait(jobs[7].id, timeout=SOON)
        assert [event.kind for event in engine.inspect.trail(jobs[7].id)] == ["submitted", "moved"]
        assert engine.inspect.verify() == []
