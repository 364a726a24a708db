"""Who wants to be told of the end of which job: each is a job that waits for it.

It is stored with the PDF job, in one transaction where the store has them, and goes on when the
PDF job has ended. Its key is the PDF job and a number: who ends that job finds them one by one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from ulak import Engine, Flow
from ulak.errors import FlowError

FLOW: Final = "pdf-wanted"
WAITING: Final = "waiting"
ENDED: Final = "ended"
"""The signal that the PDF job has ended, and where it leads."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One URL that is to be told of the end of one job."""

    job_id: str
    url: str = field(repr=False)
    root: str = ""
    """Where the application was mounted that was asked, for the links of its document."""


def want(engine: Engine, wanted: Wanted, *, tenant: str, connection: Any = None) -> None:
    """Store one; while it waits, the same again is nothing.

    Args:
        engine: With the flows of callbacks.
        wanted: Of a job that is there, or that is stored in the same transaction.
        tenant: Of that job.
        connection: An open transaction to store it in.
    """
    flow = _find_flow(engine)
    for number in count():
        key = _key(wanted.job_id, number)
        found = engine.find(FLOW, key, tenant=tenant)
        if found is None:
            found = engine.submit(
                flow, wanted, tenant=tenant, actor=FLOW, dedup_key=key, connection=connection
            )
            if found.created:
                return
        if not found.is_final:
            known = engine.inspect.payload(found.id, reveal=True)
            if known["url"] == wanted.url:
                return


def wake(engine: Engine, job_id: str, *, tenant: str) -> None:
    """Tell everybody who waits for the end of a job that it has ended; twice is nothing."""
    for number in count():
        found = engine.find(FLOW, _key(job_id, number), tenant=tenant)
        if found is None:
            return
        if found.state == WAITING:
            engine.signal(found.id, ENDED, actor=FLOW)


def _find_flow(engine: Engine) -> Flow[Any]:
    for flow in engine.inspect.flows:
        if flow.name == FLOW:
            return flow
    raise FlowError(f"the engine has no flow `{FLOW}`; run it with the service")


def _key(job_id: str, number: int) -> str:
    return f"{job_id}/{number}"
