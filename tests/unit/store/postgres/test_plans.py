"""Statements read what they are after and no more, whatever else a table holds."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.rows import tuple_row

from bench.postgres_claims import engine_on, load
from ulak.clock import micros
from ulak.store.postgres.claims import CANDIDATES
from ulak.store.postgres.pipeline import Pipeline
from ulak.store.postgres.reads import ALONG_INDEXES, STATEMENTS, list_statements
from ulak.store.postgres.records import CLEAN
from ulak.store.postgres.straight import ANYWAY, STRAIGHT, WITHOUT_ENTRIES
from ulak.store.postgres.values import Texts, own_cursor
from ulak.store.protocol import ClaimRequest, JobFilter, Want
from ulak.store.sql.reads import OWNED_BY
from ulak.store.sql.session import Id

# A hundredth of the table of E-23: nearly all of it is none of this worker's business.
SCALE = 0.01
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def reads(plan: dict[str, Any]) -> Iterator[str]:
    """Return by which of its indexes a plan reads the table of jobs, or that it reads all of it."""
    for part in parts(plan):
        if part.get("Relation Name") == "jobs" and part["Node Type"] == "Seq Scan":
            yield "all of it"
        if part.get("Index Name", "").startswith("jobs_"):
            yield part["Index Name"]


@pytest.mark.shows("E-23")
@pytest.mark.parametrize("analyzed", [True, False])
def test_a_claim_looks_for_jobs_in_the_index_of_claimable_ones_alone(
    url: str, analyzed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[str, set[str]]] = []
    send = Pipeline.send

    def explain(self: Pipeline, statement: str, facts: Any = (), answer: Any = None) -> None:
        if not statement.startswith(("EXPLAIN", "BEGIN", "COMMIT")):
            ((plan,),) = self.ask(f"EXPLAIN (FORMAT JSON) {statement}", facts)
            read.append((statement, set(reads(plan[0]["Plan"]))))
        send(self, statement, facts, answer)

    with engine_on(url) as engine:
        load(engine, url, SCALE)
        with psycopg.connect(url, autocommit=True) as db:
            if not analyzed:
                db.execute("DELETE FROM pg_statistic WHERE starelid = 'ulak.jobs'::regclass")
        served, limited, _ = engine.inspect.flows
        engine.submit_many(served, [None] * 20)
        lanes = tuple(sorted(served.table.lanes | limited.table.lanes))
        store = engine.store
        store.register("w", lease_us=micros(timedelta(minutes=5)), lanes=lanes, about="")
        monkeypatch.setattr(Pipeline, "send", explain)
        entries = {(served.name, served.version, "nowhere"): "busy"}
        for some in ({}, entries):
            straight = Want(tuple(served.table.lanes), 2)
            assert len(store.claim(ClaimRequest("w", (straight,), some)).claims) == 2
        for _ in range(3):
            assert len(store.claim(ClaimRequest("w", (Want(lanes, 5),))).claims) == 5
        monkeypatch.undo()

    of_jobs = [(statement, found) for statement, found in read if found]
    sent = {statement for statement, _ in of_jobs}
    assert {STRAIGHT, WITHOUT_ENTRIES, ANYWAY, CANDIDATES} <= sent
    for statement, found in of_jobs:
        # What was found is locked and written by its id.
        is_by_id = "ANY (%(ids)s" in statement or "not_before" not in statement
        assert found <= {"jobs_claimable", "jobs_pkey"}, statement
        assert is_by_id or "jobs_claimable" in found, statement


@pytest.mark.shows("E-75")
@pytest.mark.parametrize("analyzed", [True, False])
def test_a_list_reads_the_index_that_serves_its_filter(
    loaded: psycopg.Connection[Any], analyzed: bool
) -> None:
    if not analyzed:
        loaded.execute("DELETE FROM pg_statistic WHERE starelid = 'ulak.jobs'::regclass")
    for where, ways in (
        (JobFilter(), ["jobs_pkey"]),
        (JobFilter(role="failed"), ["jobs_remarkable"]),
        (JobFilter(role="failed", changed_since=NOON), ["jobs_remarkable"]),
        (JobFilter(id_prefix="01"), ["jobs_pkey"]),
        (JobFilter(dedup_key="k", flow="f"), ["jobs_keyed"]),
        (JobFilter(owner="ada", flow="f"), ["owners_jobs"]),
        (JobFilter(role="done", changed_since=NOON), ["jobs_ended"]),
        (JobFilter(submitted_since=NOON, flow="f"), ["jobs_pkey", "jobs_unordered"]),
        (JobFilter(submitted_since=NOON, role="held"), ["jobs_remarkable", "jobs_remarkable"]),
    ):
        assert where.unserved is None
        statements = list(list_statements(where, b"\xff" * 16, 100))
        for (statement, facts), way in zip(statements, ways, strict=True):
            found = explain(loaded, statement, facts)
            assert way in found, (where, found)
            assert "Seq Scan" not in found, where


@pytest.mark.shows("E-74")
@pytest.mark.parametrize("analyzed", [True, False])
def test_jobs_are_counted_along_the_index_of_their_kind(
    loaded: psycopg.Connection[Any], analyzed: bool
) -> None:
    if not analyzed:
        loaded.execute("DELETE FROM pg_statistic WHERE starelid = 'ulak.jobs'::regclass")
    facts: dict[str, Any] = {"lanes": Texts(["served/loop/served@1#work"] * 3), "now": 1}
    facts |= {"limit": 10_001, "start": "a", "end": "b", "since": 1}
    counting = {"next": "jobs_parked", "parked": "jobs_parked", "leased": "jobs_leased"}
    for name, statement in STATEMENTS.items():
        index = "jobs_ended" if name == "ends" else counting.get(name, "jobs_claimable")
        with loaded.transaction():
            loaded.execute(ALONG_INDEXES)
            found = explain(loaded, statement, facts)
        assert index in found, statement
        assert "Seq Scan" not in found, statement
        # A plan that is estimated to be dear is compiled first, which takes longer than to count.
        assert "JIT" not in found, statement


@pytest.mark.shows("E-74")
def test_jobs_are_counted_in_few_round_trips(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []
    wait = Pipeline._wait

    def counted(self: Pipeline, pgconn: Any) -> Any:
        waits.append(len(self._awaited))
        return wait(self, pgconn)

    with engine_on(url) as engine:
        load(engine, url, SCALE)
        monkeypatch.setattr(Pipeline, "_wait", counted)
        assert engine.inspect.backlog()
    # What every count begins with, what its lanes tell, and then one for each long kind of a flow.
    assert len(waits) <= 6, waits


@pytest.mark.shows("E-75")
def test_lists_have_two_indexes_on_the_hot_row_and_no_more(
    loaded: psycopg.Connection[Any],
) -> None:
    of_lists = {"jobs_keyed", "jobs_unordered"}
    of_work = {"claimable", "ended", "leased", "month", "parked", "pkey", "remarkable", "waking"}
    statement = "SELECT indexname FROM pg_indexes WHERE schemaname = 'ulak' AND tablename = 'jobs'"
    found = {name for (name,) in loaded.execute(statement)}
    assert found == of_lists | {f"jobs_{name}" for name in of_work}


@pytest.mark.shows("E-75")
def test_the_jobs_of_an_owner_are_read_in_the_order_of_time(
    loaded: psycopg.Connection[Any],
) -> None:
    found = explain(loaded, OWNED_BY, ("owner 1", 2, Id(b"\xff" * 16), 100))
    assert "owners_since" in found
    assert "Sort" not in found


@pytest.fixture
def loaded(url: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection of ours to a table with many jobs of other kinds than those that are meant."""
    with engine_on(url) as engine:
        load(engine, url, SCALE)
        with psycopg.connect(url, autocommit=True, row_factory=tuple_row) as db:
            db.execute(
                "INSERT INTO ulak.owners (job_id, owner, at) "
                "SELECT id, 'owner ' || row_number() OVER () % 20, 1 FROM ulak.jobs"
            )
            db.execute("ANALYZE ulak.owners")
            yield db


def explain(db: psycopg.Connection[Any], statement: str, facts: Any) -> str:
    """Return the plan of a statement, as it would be sent."""
    with own_cursor(psycopg.Cursor(db, row_factory=tuple_row)) as cursor:
        cursor.execute(f"EXPLAIN {statement}", facts)
        return "\n".join(row[0] for row in cursor.fetchall())


@pytest.mark.shows("I-23", "E-84")
def test_expired_records_are_looked_for_once_whatever_the_planner_knows(url: str) -> None:
    """One that takes the table for empty may loop over it, and look for a batch in each round."""
    with engine_on(url) as engine, psycopg.connect(url, autocommit=True) as db:
        engine.open()
        db.execute(
            "INSERT INTO ulak.idempotency_records (tenant_id, scope, key, status, request_hash, "
            "actor_id, attempt, created_at, updated_at, expires_at) "
            "SELECT '', 's', 'k' || n, 'completed', 'h', '', 1, 1, 1, 1 "
            "FROM generate_series(1, 500) AS n"
        )
        db.execute(
            "UPDATE pg_class SET reltuples = 1, relpages = 10000 "
            "WHERE oid = 'ulak.idempotency_records'::regclass"
        )
        facts = {"now": 2, "by_server": False, "limit": 10}
        ((plan,),) = db.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {CLEAN}", facts)
        looks = [p for p in parts(plan[0]["Plan"]) if p["Node Type"] == "LockRows"]
        assert [look["Actual Loops"] for look in looks] == [1]
        left = db.execute("SELECT count(*) FROM ulak.idempotency_records").fetchone()
    assert left == (490,)


def parts(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Return every part of a plan."""
    yield plan
    for part in plan.get("Plans", ()):
        yield from parts(part)
