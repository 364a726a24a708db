"""How a payload becomes the records of a new job."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ulak.clock import Instant
from ulak.core.admission import Ask, find_waiting, judge
from ulak.core.bounds import short_key
from ulak.core.flow import Flow
from ulak.core.intake import Submission, begin, keys_of
from ulak.core.job import NewJob, Payload
from ulak.errors import BadInput, Overloaded
from ulak.ids import time_ordered_id, unguessable_id
from ulak.store import codec
from ulak.store.caller import Guest, Steps
from ulak.store.protocol import Added

if TYPE_CHECKING:
    from ulak.engine.kernel import Kernel


def make_job(
    flow: Flow[Any],
    payload: Any,
    submission: Submission,
    now: Instant,
    *,
    commit_id: bytes,
    trace: str | None = None,
) -> NewJob:
    """Make the records of a new job without storing them; `BadInput` if something cannot be used.
    Its dedup key is the flow's own unless the submission has one."""
    dedup_key = submission.dedup_key
    try:
        if dedup_key is None and flow.dedup is not None:
            dedup_key = make_dedup_key(flow, payload)
        keys = keys_of(flow, payload) if flow.table.keyed else None
    except BadInput:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # Not what it says: that may quote the payload.
        raise BadInput(
            f"{flow.name}: no key can be made of this payload ({type(error).__name__})"
        ) from error
    if dedup_key is not None or keys is not None:
        key = None if dedup_key is None else short_key(dedup_key)
        submission = submission._replace(dedup_key=key, keys=keys)
    return begin(
        flow, Payload(codec.encode(payload), flow.schema, trace), submission, now,
        job_id=unguessable_id() if flow.unguessable_ids else time_ordered_id(now),
        commit_id=commit_id,
    )  # fmt: skip


def make_dedup_key(flow: Flow[Any], payload: Any) -> str | None:
    """Return the dedup key of a payload, by the flow's rule."""
    if flow.dedup is None:
        return None
    rule = flow.dedup.key
    return short_key(codec.canonical(payload) if rule is None else rule(payload))


def fit(flow: Flow[Any], payload: Any) -> Any:
    """Return the payload as the type that the flow declares, else raise `BadInput`."""
    kind = flow.payload
    is_fit = kind is None or codec.is_instance(payload, kind)
    return payload if is_fit else codec.convert(payload, kind)


def find_asking(kernel: Kernel, jobs: Sequence[NewJob]) -> Flow[Any] | None:
    """Return the flow of these jobs, which are of one call, if it has an admission."""
    flow = kernel.find_flow(jobs[0].row.flow, jobs[0].row.flow_version) if jobs else None
    return flow if flow is not None and flow.table.asks else None


def must_admit(kernel: Kernel, flow: Flow[Any], jobs: Sequence[NewJob]) -> None:
    """Raise `Overloaded` for the jobs of one call when the flow does not take one that is new.
    `BadInput`: the flow's own rule cannot be used for one of them. Nothing was stored."""
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
