"""Admission: at every submit, and at nothing else, a flow says whether it takes new jobs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ulak.core.admission import Ask, find_waiting, judge
from ulak.core.flow import Flow
from ulak.core.job import NewJob
from ulak.errors import Overloaded
from ulak.store import codec
from ulak.store.caller import Guest, Steps
from ulak.store.protocol import Added

if TYPE_CHECKING:
    from ulak.engine.kernel import Kernel


def find_asking(kernel: Kernel, jobs: Sequence[NewJob]) -> Flow[Any] | None:
    """Return the flow of these jobs, which are of one call, if it has an admission."""
    if not jobs:
        return None
    row = jobs[0].row
    flow = kernel.find_flow(row.flow, row.flow_version)
    return flow if flow is not None and flow.table.asks else None


def must_admit(kernel: Kernel, flow: Flow[Any], jobs: Sequence[NewJob]) -> None:
    """Refuse the jobs of one call, all of them, when the flow does not take one that is new.

    Raises:
        Overloaded: saying when to try again; nothing was stored.
        BadInput: the flow's own rule cannot be used for one of them.
    """
    store, tenant = kernel.store, jobs[0].row.tenant
    waiting = store.count_waiting(find_waiting(flow, tenant, _others(kernel, flow)))
    most = flow.max_waiting
    if flow.admission is None and most is not None and waiting + len(jobs) <= most:
        return
    seen: set[str] = set()
    for job in jobs:
        key = job.row.dedup_key
        if key is not None:
            if key in seen or store.find_key(tenant, flow.name, key) is not None:
                continue
            seen.add(key)
        _judge(kernel, flow, job, waiting)
        waiting += 1


def add_steps(kernel: Kernel, guest: Guest, job: NewJob) -> Steps[Added]:
    """Return the steps that store a job in a caller's transaction, if its flow takes it."""
    flow = find_asking(kernel, [job])
    if flow is None:
        return guest.add_steps(job)
    waiting = find_waiting(flow, job.row.tenant, _others(kernel, flow))
    return guest.add_steps(job, Ask(waiting, partial(_judge, kernel, flow, job)))


def _judge(kernel: Kernel, flow: Flow[Any], job: NewJob, waiting: int) -> None:
    def read() -> Any:
        return codec.decode(job.payload.data, Any if flow.payload is None else flow.payload)

    try:
        judge(flow, job.row, read, waiting)
    except Overloaded:
        kernel.telemetry.refused([job])
        raise


def _others(kernel: Kernel, flow: Flow[Any]) -> tuple[Flow[Any], ...]:
    return tuple(f for f in kernel.flows if f.name == flow.name and f is not flow)
