"""What a store cannot do is refused when it is asked for, with the call and the cure."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import ulak
from ulak import Flow, Lifecycle
from ulak.errors import FlowError, NotSupported
from ulak.testing import Harness


def note(**options: Any) -> Flow[Any]:
    flow: Flow[Any] = Flow("note", Lifecycle("kept", {"kept": ["done"]}))

    @flow.stage("kept", **options)
    def keep(run: Any) -> None: ...

    return flow


@pytest.mark.shows("E-57")
def test_a_transaction_that_the_store_cannot_share_is_refused() -> None:
    with Harness(note()) as harness, sqlite3.connect(":memory:") as mine:
        engine, flow = harness.engine, harness.engine.inspect.flows[0]
        assert not engine.store.features.caller_transactions
        call = r"submit\(connection=\.\.\.\).* memory store.*leave connection= out.*dedup_key"
        with pytest.raises(NotSupported, match=call):
            engine.submit(flow, {}, connection=mine)
        with pytest.raises(NotSupported, match=call):
            asyncio.run(engine.aio.submit(flow, {}, connection=mine))
        assert engine.inspect.counts() == []
        assert not mine.in_transaction
        assert engine.submit(flow, {}, connection=None).created
    mine.close()


@pytest.mark.shows("E-36", "E-57")
@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("memory://", "no transaction that rows"),
        ("sqlite:///{}/jobs.db", "renewals of leases would wait"),
    ],
    ids=["memory", "sqlite"],
)
def test_a_stage_that_wants_a_transaction_is_refused_when_the_engine_is_built(
    url: str, why: str, tmp_path: Path
) -> None:
    url = url.format(tmp_path)
    said = rf'note: the stage for "kept" has transaction=True.*{why}.*run\.key.*PostgreSQL'
    harness = Harness(note(transaction=True), url=url)
    with pytest.raises(NotSupported, match=said):
        harness.engine.open()
    with Harness(note(), url=url) as other:
        other.engine.open()
        late: Flow[Any] = Flow("late", Lifecycle("kept", {"kept": ["done"]}))
        late.stage("kept", transaction=True)(lambda run: None)
        with pytest.raises(NotSupported, match="late"):
            other.engine.add(late)
        assert [flow.name for flow in other.engine.inspect.flows] == ["note"]


@pytest.mark.shows("E-36", "E-57")
def test_a_job_function_that_wants_a_transaction_is_refused_too() -> None:
    engine = ulak.connect("memory://")

    @engine.job(transaction=True)
    def book(connection: Any, seat: int) -> None: ...

    with pytest.raises(NotSupported, match="book"):
        engine.submit(book, 42)


@pytest.mark.shows("E-36")
def test_a_job_function_with_a_transaction_must_have_a_place_for_it() -> None:
    with pytest.raises(FlowError, match=r"book: .*first argument.*def book\(connection, \.\.\.\)"):

        @ulak.connect("memory://").job(transaction=True)  # type: ignore[arg-type]
        def book() -> None: ...


@pytest.mark.shows("E-36")
def test_a_stage_without_transaction_has_no_connection() -> None:
    flow: Flow[Any] = Flow("note", Lifecycle("kept", {"kept": ["done"]}), retry=0)
    flow.stage("kept")(lambda run: run.connection)
    with Harness(flow) as harness:
        job = harness.submit(flow, {})
        harness.run_until_idle()
        assert harness.job(job.id).state == "failed"
        assert "run.connection is for stages with transaction=True" in str(
            harness.trail(job.id)[-1].message
        )
