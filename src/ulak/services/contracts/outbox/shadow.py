"""Mode `hybrid`: changes are decided here, and a remote is told of each afterwards."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from ulak import Engine
from ulak.services.contracts.outbox.dispatcher import Dispatcher
from ulak.services.contracts.outbox.events import KEY_PREFIX, StatusChange, write
from ulak.services.contracts.outbox.remote import Remote
from ulak.services.contracts.outbox.tables import Tables
from ulak.services.contracts.proofs import Proof


class Shadow:
    """Writes the event of each change; `Contracts(on_change=...)` takes one."""

    def __init__(self, tables: Tables, *, key_prefix: str = KEY_PREFIX) -> None:
        self._tables = tables
        self._key_prefix = key_prefix

    def __call__(self, connection: Any, proof: Proof) -> None:
        """Write the event in the transaction of the change and its proof; nobody is asked."""
        change = StatusChange(
            proof.proof_id,
            tenant_id=proof.tenant_id,
            subject_type=proof.subject_type or "",
            subject_id=proof.subject_id or "",
            from_status=proof.from_status or "",
            to_status=proof.to_status or "",
            contract_version=proof.contract_version or "",
            actor_id=proof.actor_id or "",
            source=proof.source,
            request_id=proof.request_id or "",
        )
        session = self._tables.joined(connection)
        write(session, change, now=self._tables.now, key_prefix=self._key_prefix)


def dispatch_beside_workers(engine: Engine, remote: Remote) -> None:
    """Have every worker of the engine send events, on a thread, for as long as it works.

    A resource and not a schedule: nothing of this is a job that anybody would look for, and a
    worker that drains waits for what is being sent.
    """

    @engine.resource(Dispatcher)
    @asynccontextmanager
    async def dispatching() -> AsyncIterator[Dispatcher]:
        dispatcher = Dispatcher(Tables(engine), remote)
        thread = threading.Thread(target=dispatcher.run, name="ulak-outbox", daemon=True)
        thread.start()
        try:
            yield dispatcher
        finally:
            dispatcher.stop()
            await asyncio.to_thread(thread.join)
