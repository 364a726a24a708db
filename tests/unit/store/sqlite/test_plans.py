"""Every hot query reads one range of the index that was made for it."""

import sqlite3
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ulak.store.protocol import JobFilter
from ulak.store.sql import control
from ulak.store.sql import outbox as shared_outbox
from ulak.store.sql import reads as shared_reads
from ulak.store.sql.reads import OWNED_BY
from ulak.store.sqlite import SqliteStore, claims, leases, outbox, session, upkeep
from ulak.store.sqlite import control as own_control
from ulak.store.sqlite.session import translate

LAST = b"\xff" * 16
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def plan(path: Path, statement: str) -> str:
    statement = translate(statement)
    db = sqlite3.connect(path)
    try:
        bound = tuple(0 for _ in range(statement.count("?")))
        highest = max((n for n in range(1, 9) if f"?{n}" in statement), default=0)
        facts = bound[: highest or None] or defaultdict(int)
        rows = db.execute(f"EXPLAIN QUERY PLAN {statement}", facts).fetchall()
    finally:
        db.close()
    return "\n".join(row[3] for row in rows)


@pytest.mark.shows("E-23")
@pytest.mark.parametrize("statement", [claims.CANDIDATES, claims.CROWD, claims.NEXT_DUE])
def test_a_claim_reads_one_range_per_lane_and_priority(
    store: SqliteStore, path: Path, statement: str
) -> None:
    found = plan(path, statement)
    assert "SEARCH jobs USING COVERING INDEX jobs_claimable" in found
    assert "(lane=? AND priority=? AND not_before" in found
    assert "SCAN jobs" not in found
    assert "TEMP B-TREE" not in found


@pytest.mark.shows("E-23", "E-50")
@pytest.mark.parametrize(
    ("statement", "look"),
    [(claims.standing_in(3), "(lane=?)"), (claims.families_standing_in(3), "(lane>? AND lane<?)")],
)
def test_a_lane_in_which_nothing_stands_costs_one_look(
    store: SqliteStore, path: Path, statement: str, look: str
) -> None:
    found = plan(path, statement)
    assert f"SEARCH jobs USING COVERING INDEX jobs_claimable {look}" in found
    assert "SCAN jobs" not in found
    assert "TEMP B-TREE" not in found


@pytest.mark.shows("E-23", "E-60")
@pytest.mark.parametrize("statement", [claims.PRESENT, claims.NEXT_OF_FAMILY])
def test_a_claim_skips_along_the_index_from_tenant_to_tenant(
    store: SqliteStore, path: Path, statement: str
) -> None:
    found = plan(path, statement)
    assert "SEARCH jobs USING COVERING INDEX jobs_claimable (lane>? AND lane<?)" in found
    assert "SEARCH jobs USING COVERING INDEX jobs_claimable (lane=? AND priority=?" in found
    assert "SCAN jobs" not in found
    assert "TEMP B-TREE" not in found


@pytest.mark.shows("E-23", "E-60")
def test_whoever_uses_no_flow_control_pays_one_step_for_it(store: SqliteStore, path: Path) -> None:
    found = plan(path, claims.LOOK)
    assert "USING COVERING INDEX pauses_ending" in found
    assert "USING COVERING INDEX buckets_ready" in found


@pytest.mark.shows("E-60")
@pytest.mark.parametrize(
    ("statement", "index"),
    [
        (own_control.READY_BUCKETS, "buckets_ready (ready_at<?)"),
        (own_control.PARKED, "jobs_parked (parked_on=?)"),
        (control.OVER, "pauses_ending (until_at<?)"),
        (shared_reads.PARKED_NAMES, "jobs_parked (parked_on>?)"),
    ],
)
def test_what_is_parked_is_found_by_an_index_of_its_own(
    store: SqliteStore, path: Path, statement: str, index: str
) -> None:
    found = plan(path, statement)
    assert index in found
    assert "SCAN jobs" not in found


@pytest.mark.shows("E-23")
@pytest.mark.parametrize("statement", [leases.LEASE, leases.LEASED, leases.ENTER])
def test_leasing_finds_jobs_by_id(store: SqliteStore, path: Path, statement: str) -> None:
    found = plan(path, statement)
    assert "SEARCH jobs USING PRIMARY KEY (id=?)" in found
    assert "SCAN jobs" not in found


@pytest.mark.shows("E-25")
def test_rescue_reads_the_index_of_leased_jobs(store: SqliteStore, path: Path) -> None:
    assert "USING INDEX jobs_leased (leased_by=?)" in plan(path, leases.LEASED_BY)


@pytest.mark.shows("E-29")
def test_a_freed_slot_finds_the_most_urgent_parked_job_without_sorting(
    store: SqliteStore, path: Path
) -> None:
    found = plan(path, own_control.UNPARK)
    assert "USING COVERING INDEX jobs_parked (parked_on=?)" in found
    assert "TEMP B-TREE" not in found


@pytest.mark.parametrize(
    ("statement", "index"),
    [
        (shared_reads.DUE, "jobs_waking ((wake_at,id)>(?,?) AND wake_at<?)"),
        (upkeep.ENDED, "jobs_ended (changed_at<?)"),
        (outbox.TAKE, "deliveries_heads (handler=? AND not_before<?)"),
        (outbox.RAISE_HEAD, "deliveries_open (handler=? AND key=?)"),
        (outbox.POST, "deliveries_open (handler=? AND key=?)"),
        (shared_outbox.LIST + " AND state IN ('dead', 'refused')", "deliveries_gave_up"),
    ],
)
def test_upkeep_and_relays_read_an_index_of_their_own(
    store: SqliteStore, path: Path, statement: str, index: str
) -> None:
    found = plan(path, statement)
    assert index in found
    assert "TEMP B-TREE" not in found


@pytest.mark.shows("E-85")
def test_leased_jobs_past_their_date_are_looked_for_among_the_leased(
    store: SqliteStore, path: Path
) -> None:
    assert "USING INDEX jobs_leased (leased_by>?)" in plan(path, shared_reads.OVERDUE_LEASED)


@pytest.mark.shows("E-75")
@pytest.mark.parametrize(
    ("where", "ways"),
    [
        (JobFilter(), ["SEARCH jobs USING PRIMARY KEY (id<?)"]),
        (JobFilter(role="failed"), ["jobs_remarkable (role=? AND id<?)"]),
        (JobFilter(role="failed", changed_since=NOON), ["jobs_remarkable (role=? AND id<?)"]),
        (JobFilter(id_prefix="01"), ["SEARCH jobs USING PRIMARY KEY (id>? AND id<?)"]),
        (JobFilter(dedup_key="k", flow="f"), ["jobs_keyed (dedup_key=? AND id<?)"]),
        (JobFilter(owner="ada", flow="f"), ["owners_jobs (owner=? AND job_id<?)"]),
        (JobFilter(role="done", changed_since=NOON), ["jobs_ended (changed_at>?)"]),
        (
            JobFilter(submitted_since=NOON, flow="f"),
            ["SEARCH jobs USING PRIMARY KEY (id>? AND id<?)", "jobs_unordered (created_at>?)"],
        ),
        (
            JobFilter(submitted_since=NOON, role="held"),
            ["jobs_remarkable (role=? AND id>? AND id<?)", "jobs_remarkable (role=? AND id<?)"],
        ),
    ],
)
def test_a_list_reads_the_index_that_serves_its_filter(
    store: SqliteStore, path: Path, where: JobFilter, ways: list[str]
) -> None:
    assert where.unserved is None
    found = [plan(path, statement) for statement, _ in upkeep.list_statements(where, LAST, 9)]
    assert len(found) == len(ways)
    for read, way in zip(found, ways, strict=True):
        assert way in read
        assert "SCAN" not in read
        # What an index has by date is sorted by id; the rest comes in order.
        assert ("TEMP B-TREE" in read) == ("(c" in way)


@pytest.mark.shows("E-74")
@pytest.mark.parametrize(
    ("statement", "ways"),
    [
        ("lanes", ["COVERING INDEX jobs_claimable (lane>?)"]),
        ("look", ["COVERING INDEX jobs_claimable (lane=?)"]),
        ("first", ["COVERING INDEX jobs_claimable (lane=? AND priority=?)"]),
        (
            "due",
            ["COVERING INDEX jobs_claimable (lane=? AND priority=? AND not_before<?)"],
        ),
        (
            "delayed",
            ["COVERING INDEX jobs_claimable (lane=? AND priority=? AND not_before>?)"],
        ),
        ("next", ["COVERING INDEX jobs_parked (parked_on>?)"]),
        ("parked", ["COVERING INDEX jobs_parked (parked_on>? AND parked_on<?)"]),
        ("leased", ["INDEX jobs_leased"]),
        ("ends", ["INDEX jobs_ended (changed_at>?)"]),
    ],
)
def test_jobs_are_counted_along_the_index_of_their_kind(
    store: SqliteStore, path: Path, statement: str, ways: list[str]
) -> None:
    found = plan(path, upkeep.STATEMENTS[statement])
    for way in ways:
        assert way in found
    assert "SCAN jobs\n" not in found + "\n"


@pytest.mark.shows("E-75")
def test_lists_have_two_indexes_on_the_hot_row_and_no_more(store: SqliteStore, path: Path) -> None:
    of_lists = {"jobs_keyed", "jobs_unordered"}
    of_work = {"claimable", "ended", "leased", "parked", "remarkable", "waking"}
    db = sqlite3.connect(path)
    try:
        found = {row[1] for row in db.execute("PRAGMA index_list(jobs)") if row[3] == "c"}
    finally:
        db.close()
    assert found == of_lists | {f"jobs_{name}" for name in of_work}


@pytest.mark.shows("E-75")
def test_the_jobs_of_an_owner_are_read_in_the_order_of_time(store: SqliteStore, path: Path) -> None:
    found = plan(path, OWNED_BY)
    assert "COVERING INDEX owners_since (owner=? AND (at,job_id)<(?,?))" in found
    assert "TEMP B-TREE" not in found


@pytest.mark.shows("E-47")
def test_a_claim_finds_the_jobs_with_proofs_by_their_first_event(
    store: SqliteStore, path: Path
) -> None:
    found = plan(path, session.JOBS_WITH_PROOFS)
    assert "USING INDEX proofs_first (job_id=?)" in found
    assert "SCAN proofs" not in found
