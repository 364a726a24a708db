"""What a store cannot do is refused when it is asked for, with the call and the cure."""

import asyncio
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ulak import Flow, Lifecycle
from ulak.errors import NotSupported
from ulak.testing import Harness


def note() -> Flow[Any]:
    flow: Flow[Any] = Flow("note", Lifecycle("kept", {"kept": ["done"]}))

    @flow.stage("kept")
    def keep(run: Any) -> None: ...

    return flow


@pytest.mark.shows("E-57")
def test_a_transaction_that_the_store_cannot_share_is_refused(jobs_file: Path | None) -> None:
    with Harness(note(), path=jobs_file) as harness, sqlite3.connect(":memory:") as mine:
        engine, flow = harness.engine, harness.engine.flows[0]
        assert not engine.store.features.caller_transactions
        call = rf"submit\(connection=\.\.\.\).* {engine.store.features.name} store.*dedup_key"
        with pytest.raises(NotSupported, match=call):
            engine.submit(flow, {}, connection=mine)
        with pytest.raises(NotSupported, match=call):
            asyncio.run(engine.aio.submit(flow, {}, connection=mine))
        assert engine.counts() == []
        assert not mine.in_transaction
        assert engine.submit(flow, {}, connection=None).created
    mine.close()


@pytest.mark.shows("E-57")
def test_a_transaction_is_never_left_out_in_silence() -> None:
    with Harness(note()) as harness:
        store: Any = harness.engine.store
        store.features = replace(store.features, caller_transactions=True)
        with pytest.raises(NotSupported, match="this release"):
            harness.engine.submit(harness.engine.flows[0], {}, connection=object())
        assert harness.engine.counts() == []
