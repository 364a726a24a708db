"""What a store cannot do is refused when it is asked for, with the call and the cure."""

import asyncio
import sqlite3
from typing import Any

import pytest

from ulak import Flow, Lifecycle
from ulak.errors import NotSupported
from ulak.testing import Harness


def note(**options: Any) -> Flow[Any]:
    flow: Flow[Any] = Flow("note", Lifecycle("kept", {"kept": ["done"]}))

    @flow.stage("kept", **options)
    def keep(run: Any) -> None: ...

    return flow


@pytest.mark.shows("E-57")
def test_a_transaction_that_the_store_cannot_share_is_refused() -> None:
    with Harness(note()) as harness, sqlite3.connect(":memory:") as mine:
        engine, flow = harness.engine, harness.engine.flows[0]
        assert not engine.store.features.caller_transactions
        call = r"submit\(connection=\.\.\.\).* memory store.*leave connection= out.*dedup_key"
        with pytest.raises(NotSupported, match=call):
            engine.submit(flow, {}, connection=mine)
        with pytest.raises(NotSupported, match=call):
            asyncio.run(engine.aio.submit(flow, {}, connection=mine))
        assert engine.counts() == []
        assert not mine.in_transaction
        assert engine.submit(flow, {}, connection=None).created
    mine.close()
