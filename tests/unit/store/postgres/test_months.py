"""Months: partitions that are made ahead, and go whole (E-52)."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ulak.clock import ManualClock, to_instant
from ulak.core.outcome import Cancel
from ulak.store.postgres import PostgresStore, months
from ulak.store.postgres.session import Session
from ulak.testing.conformance.desk import Desk

JANUARY = datetime(2026, 1, 15, tzinfo=UTC)

# Rows of the trail, by the table that has them and how many have ever been deleted there.
PLACES = """
    SELECT tableoid::regclass::text, count(*) FROM ulak.events GROUP BY 1 ORDER BY 1
"""
DELETED = """
    SELECT coalesce(sum(n_tup_del), 0)::bigint FROM pg_stat_user_tables
    WHERE schemaname = 'ulak' AND relname ~ '^(events|payloads|results)_'
"""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(JANUARY)


@pytest.fixture
def store(url: str, clock: ManualClock) -> Iterator[PostgresStore]:
    store = PostgresStore(url, clock=clock)
    store.open()
    yield store
    store.close()


@pytest.fixture
def db(url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url, autocommit=True) as db:
        yield db


def ended(desk: Desk, n: int) -> list[bytes]:
    """Ids of so many jobs that were submitted now and have ended."""
    rows = desk.submit_many(n)
    return [row.id for row in desk.write(*(desk.act(row, Cancel("ada")) for row in rows))]


def everything_of(job_id: bytes, store: PostgresStore) -> tuple[object, ...]:
    return (store.find_job(job_id), store.trail(job_id), store.find_payload(job_id))


@given(st.integers(0, 80_000), st.integers(0, 86_399_999_999))
def test_a_month_is_the_calendars(days: int, us: int) -> None:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=days, microseconds=us)
    month = months.month_of(to_instant(moment))
    assert month == moment.year * 100 + moment.month
    first = moment.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    assert months.next_month(month) == months.month_of(to_instant(first + timedelta(days=32)))
    assert months.month_of(to_instant(first)) == month
    assert months.month_of(to_instant(first) - 1) < month


@pytest.mark.shows("E-52")
def test_partitions_are_made_ahead_and_upkeep_makes_more(
    store: PostgresStore, clock: ManualClock
) -> None:
    assert set(store.about()["months"]) >= {202601, 202602, 202603}
    assert 202604 not in store.about()["months"]
    clock.advance(timedelta(days=31))
    store.fold_counts()
    assert 202604 in store.about()["months"]


@pytest.mark.shows("E-52")
def test_a_month_whose_jobs_have_ended_goes_by_dropping_and_not_by_deleting(
    store: PostgresStore, clock: ManualClock, db: psycopg.Connection
) -> None:
    desk = Desk(store)
    ended(desk, 20)
    assert db.execute(PLACES).fetchall() == [("ulak.events_202601", 40)]
    clock.advance(timedelta(days=31))
    (kept,) = desk.submit_many(1)
    clock.advance(timedelta(days=31))
    assert store.prune(before=clock.now(), limit=500) == 20
    assert db.execute("SELECT to_regclass('ulak.events_202601')").fetchone() == (None,)
    assert 202601 not in store.about()["months"]
    assert [row.id for row in desk.jobs()] == [kept.id]
    assert db.execute(PLACES).fetchall() == [("ulak.events_202602", 1)]
    assert store.scan_orphans() == []
    db.execute("SELECT pg_stat_force_next_flush()")
    assert db.execute(DELETED).fetchone() == (0,)


@pytest.mark.shows("E-52")
def test_a_month_with_one_unfinished_job_stays_and_nothing_of_it_is_touched(
    store: PostgresStore, clock: ManualClock, db: psycopg.Connection
) -> None:
    desk = Desk(store)
    gone = ended(desk, 5)
    (unfinished,) = desk.submit_many(1)
    before = everything_of(unfinished.id, store)
    clock.advance(timedelta(days=62))
    assert store.prune(before=clock.now(), limit=500) == 5
    assert everything_of(unfinished.id, store) == before
    assert db.execute(PLACES).fetchall() == [("ulak.events_202601", 1)]
    assert all(store.trail(job_id) == [] for job_id in gone)
    assert store.scan_orphans() == []


@pytest.mark.shows("E-52")
def test_a_job_whose_month_nobody_foresaw_is_in_the_last_partition_and_well(
    store: PostgresStore, clock: ManualClock, db: psycopg.Connection
) -> None:
    desk = Desk(store)
    clock.advance(timedelta(days=200))
    (job_id,) = ended(desk, 1)
    assert db.execute(PLACES).fetchall() == [("ulak.events_other", 2)]
    assert [event.seq for event in store.trail(job_id)] == [1, 2]
    assert store.find_payload(job_id) is not None
    before = everything_of(job_id, store)
    # Its month is made late; it moves there, and goes like any other.
    store.fold_counts()
    assert db.execute(PLACES).fetchall() == [("ulak.events_202608", 2)]
    assert everything_of(job_id, store) == before
    assert 202608 in store.about()["months"]
    clock.advance(timedelta(days=1))
    assert store.prune(before=clock.now(), limit=500) == 1
    assert db.execute(PLACES).fetchall() == []


def test_a_month_that_another_process_is_just_making_is_left_to_it(
    url: str, db: psycopg.Connection
) -> None:
    # A table is there for others when the type of its rows is, and that may come in between.
    db.execute("CREATE TYPE ulak.events_204001 AS ENUM ()")
    store = PostgresStore(url, clock=ManualClock(datetime(2040, 1, 15, tzinfo=UTC)))
    store.open()
    try:
        made = store.about()["months"]
        assert isinstance(made, list)
        assert {204001, 204002, 204003} & set(made) == {204002, 204003}
    finally:
        store.close()
        db.execute("DROP TYPE ulak.events_204001")


def test_whoever_is_in_the_way_of_a_drop_keeps_the_month_for_the_next_time(
    store: PostgresStore, url: str, clock: ManualClock
) -> None:
    desk = Desk(store)
    ended(desk, 1)
    clock.advance(timedelta(days=62))
    with psycopg.connect(url) as reader:
        reader.execute("SELECT count(*) FROM ulak.events")
        assert store.prune(before=clock.now(), limit=500) == 1
        assert 202601 in store.about()["months"]
        assert store.scan_orphans() == []
    assert store.prune(before=clock.now(), limit=500) == 0
    assert 202601 not in store.about()["months"]


@pytest.mark.shows("E-85", "E-52")
def test_more_rows_than_can_be_moved_beside_workers_wait_for_a_migration(
    store: PostgresStore,
    clock: ManualClock,
    db: psycopg.Connection,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = Desk(store)
    clock.advance(timedelta(days=200))
    first = ended(desk, 3)
    clock.advance(timedelta(days=200))
    second = ended(desk, 3)
    monkeypatch.setattr(months.make, "__kwdefaults__", {"most": 6})
    store.fold_counts()
    assert db.execute(PLACES).fetchall() == [("ulak.events_other", 12)]
    assert "too many rows in the last partition" in caplog.text
    before = [everything_of(job_id, store) for job_id in first + second]
    store.migrate()
    places = [("ulak.events_202608", 6), ("ulak.events_202702", 6)]
    assert db.execute(PLACES).fetchall() == places
    assert [everything_of(job_id, store) for job_id in first + second] == before
    assert store.scan_orphans() == []


@pytest.mark.shows("E-84")
def test_whoever_wants_a_month_for_itself_waits_only_for_a_moment(
    store: PostgresStore, url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken by a wait, behind which every worker would wait too."""
    desk = Desk(store)
    ended(desk, 1)
    clock.advance(timedelta(days=62))
    waits: list[int] = []
    plainly = Session.plainly

    def heard(self: Session, statement: str) -> None:
        waits.extend(int(n) for n in re.findall(r"lock_timeout = (\d+);", statement))
        plainly(self, statement)

    monkeypatch.setattr(Session, "plainly", heard)
    with psycopg.connect(url) as reader:
        reader.execute("SELECT count(*) FROM ulak.events")
        store.prune(before=clock.now(), limit=500)
        store.fold_counts()
        # Its open transaction is in nobody's way.
        desk.submit_many(3)
    assert len(waits) > months.MOST_TRIES
    assert max(waits) <= 100
