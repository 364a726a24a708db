"""What owners cost: nothing where a flow has none, and one statement where it has."""

from typing import Any

import psycopg
import pytest

from ulak.core.flow import Flow
from ulak.store.postgres import PostgresStore
from ulak.store.postgres.intake import OWN
from ulak.store.postgres.pipeline import Pipeline
from ulak.testing.conformance.desk import Desk
from ulak.testing.conformance.flows import LINE, OWNED


@pytest.mark.shows("E-75")
@pytest.mark.parametrize(("flow", "statements"), [(LINE, 0), (OWNED, 3)])
def test_only_a_flow_with_owners_writes_them(
    store: PostgresStore, flow: Flow[Any], statements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, said, send = Desk(store), list[str](), Pipeline.send

    def noted(self: Pipeline, statement: str, *facts: Any, **more: Any) -> None:
        said.append(statement)
        send(self, statement, *facts, **more)

    monkeypatch.setattr(Pipeline, "send", noted)
    desk.submit(flow, submitter="ada", dedup_key="k")
    desk.submit(flow, submitter="ada")
    store.add([desk.new(flow, submitter="bob", dedup_key="k")])
    assert said
    assert sum("owners" in statement for statement in said) == statements


@pytest.mark.shows("E-75", "E-90")
def test_owners_go_with_a_job_that_the_release_before_removes(
    store: PostgresStore, url: str
) -> None:
    desk = Desk(store)
    kept, gone = (desk.submit(OWNED, submitter="ada") for _ in range(2))
    with psycopg.connect(url) as db:
        db.execute("DELETE FROM ulak.jobs WHERE id = %s::uuid", (gone.id.hex(),))
    assert store.find_owners(gone.id) == []
    assert store.find_owners(kept.id) == ["ada"]


@pytest.mark.shows("E-75")
def test_nobody_becomes_an_owner_of_a_job_that_is_being_pruned_and_nobody_waits(
    store: PostgresStore, url: str
) -> None:
    desk = Desk(store)
    job = desk.submit(OWNED, submitter="ada", dedup_key="k")
    with psycopg.connect(url) as pruning:
        pruning.execute("SELECT FROM ulak.jobs WHERE id = %s::uuid FOR UPDATE", (job.id.hex(),))
        store.add([desk.new(OWNED, submitter="bob", dedup_key="k")])
        pruning.execute("DELETE FROM ulak.jobs WHERE id = %s::uuid", (job.id.hex(),))
        pruning.execute("DELETE FROM ulak.dedup WHERE job_id = %s::uuid", (job.id.hex(),))
    assert store.find_owners(job.id) == []
    with psycopg.connect(url) as submitting, psycopg.connect(url) as worker:
        other = desk.submit(OWNED, submitter="ada")
        facts = (desk.now, [other.id.hex()], ["bob"])
        submitting.execute(OWN, facts)  # type: ignore[arg-type] # a string of ours
        # Its lock keeps the job from being removed, and from nothing else.
        worker.execute("SET lock_timeout = '5s'")
        worker.execute("UPDATE ulak.jobs SET seq = seq WHERE id = %s::uuid", (other.id.hex(),))
        found = worker.execute("SELECT id FROM ulak.jobs FOR UPDATE SKIP LOCKED").fetchall()
        assert found == []
