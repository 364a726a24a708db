"""What upkeep costs the one writer: statements that hardly grow with the rows."""

import pytest

from ulak.core.outcome import Elapsed
from ulak.store.sqlite import SqliteStore
from ulak.store.sqlite.rows import SIZES
from ulak.testing.conformance.desk import Desk
from ulak.testing.conformance.flows import WAITS


@pytest.mark.shows("E-85")
def test_expiring_a_page_takes_a_statement_for_many_jobs(store: SqliteStore) -> None:
    """Broken by a statement for each job."""
    desk = Desk(store)
    counted = []
    for jobs in (SIZES[0], 2 * SIZES[0]):
        rows = desk.submit_many(jobs, WAITS)
        desk.turn(hours=2)
        changes = [desk.act(row, Elapsed(), flow=WAITS) for row in rows]
        said: list[str] = []
        db = store._writer.db
        db.set_trace_callback(said.append)
        store.commit(changes)
        db.set_trace_callback(None)
        counted.append(len(said))
        assert {desk.job(row.id).state for row in rows} == {"late"}
    few, more = counted
    assert few <= 12, "a look, a move, its events, the counters and the transaction"
    assert more - few == 2, "one more statement for the rows, and one for their events"
