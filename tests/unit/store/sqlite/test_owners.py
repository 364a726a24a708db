"""What owners cost: nothing where a flow has none, and one statement where it has."""

from typing import Any

import pytest

from ulak.core.flow import Flow
from ulak.store.sqlite import SqliteStore
from ulak.testing.conformance.desk import Desk
from ulak.testing.conformance.flows import LINE, OWNED


@pytest.mark.shows("E-75")
@pytest.mark.parametrize(("flow", "statements"), [(LINE, 0), (OWNED, 3)])
def test_only_a_flow_with_owners_writes_them(
    store: SqliteStore, flow: Flow[Any], statements: int
) -> None:
    desk, said = Desk(store), list[str]()
    lone = desk.new(flow, submitter="ada", dedup_key="k")
    plain = desk.new(flow, submitter="ada")
    repeat = desk.new(flow, submitter="bob", dedup_key="k")
    db = store._writer.db
    db.set_trace_callback(said.append)
    for job in (lone, plain, repeat):
        store.add([job])
    db.set_trace_callback(None)
    assert sum("owners" in statement for statement in said) == statements


@pytest.mark.shows("E-75", "E-90")
def test_owners_go_with_a_job_that_the_release_before_removes(store: SqliteStore) -> None:
    desk = Desk(store)
    kept, gone = (desk.submit(OWNED, submitter="ada") for _ in range(2))
    db = store._writer.db
    db.execute("BEGIN IMMEDIATE")
    db.execute("DELETE FROM jobs WHERE id = ?", (gone.id,))
    db.execute("COMMIT")
    assert store.find_owners(gone.id) == []
    assert store.find_owners(kept.id) == ["ada"]
