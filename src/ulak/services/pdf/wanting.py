"""Who wants to be told of the end of which job: each is a job that waits for it.

It is stored with the PDF job, in one transaction where the store has them, and goes on when the
PDF job has ended. Its owner is the PDF job: by that it is found.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, Final

from ulak import Engine, Flow, JobFilter
from ulak.errors import FlowError
from ulak.services.pdf.flow import walk

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
    digest = hashlib.sha256(wanted.url.encode()).hexdigest()
    engine.submit(
        _find_flow(engine), wanted, tenant=tenant, actor=wanted.job_id,
        dedup_key=f"{wanted.job_id}/{digest}", connection=connection,
    )  # fmt: skip


def wake(engine: Engine, job_id: str) -> None:
    """Tell everybody who waits for the end of a job that it has ended; twice is nothing."""
    for waiting in walk(engine, JobFilter(flow=FLOW, owner=job_id, state=WAITING)):
        engine.signal(waiting.id, ENDED, actor=FLOW)


def _find_flow(engine: Engine) -> Flow[Any]:
    for flow in engine.inspect.flows:
        if flow.name == FLOW:
            return flow
    raise FlowError(f"the engine has no flow `{FLOW}`; run it with the service")
