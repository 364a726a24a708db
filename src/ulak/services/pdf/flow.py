"""The flow `pdf`: its states, its retries, its key, and the stage that renders."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final

from ulak import Backoff, Dedup, Engine, Flow, Lifecycle, Limit, OnEnd, Run
from ulak.core import event as kinds
from ulak.core.keys import short_key
from ulak.engine.view import TrailEvent
from ulak.errors import FlowError
from ulak.services.pdf.model import PdfErrorCode, PdfJobStatus, TransientPdfError
from ulak.services.pdf.settings import PdfRenderConfig

FLOW: Final = "pdf"
QUEUE: Final = "pdf"
"""Served apart, by workers that have a browser."""

_LIFECYCLE: Final = Lifecycle(
    "queued",
    {
        "queued": ["running", "expired"],
        "running": ["succeeded", "failed"],
        "succeeded": ["expired"],
        "failed": ["queued", "expired"],
    },
    done="succeeded",
    cancelled="expired",
    release_to="queued",
    retry_to="queued",
)

STATUSES: Final = {
    **{str(status): status for status in PdfJobStatus},
    # What the engine adds to every flow. A job is held when its payload or its result cannot be
    # read: nobody renders it, and a person who lets it go on has asked for a retry.
    "held": PdfJobStatus.FAILED,
}
"""For each state of the flow, the status that callers see."""

_TIMED_OUT: Final = (kinds.TIMEOUT, kinds.WORKER_DIED)
_DETAIL: Final = re.compile(r"\(([a-z][a-z_]*)\)\Z")


@dataclass(frozen=True, slots=True)
class PdfPayload:
    """What a job is submitted with."""

    template_name: str
    payload: dict[str, Any] = field(repr=False)
    """What the key was made of: variables, content version, options (`keys.payload_of`)."""
    _: KW_ONLY
    job_key: str = field(repr=False)
    timeout_s: int | None = None
    """The hard timeout that the request asked for."""
    correlation_id: str = ""
    tenant: str = ""
    """Whose job it is: what the limit of a tenant's attempts is kept by."""


class PdfFlow(Flow[PdfPayload]):
    """The flow, and what belongs to it."""

    kept: dict[type, Any]
    """What this process keeps beside the engine's store where that is its memory too."""


def make_flow(config: PdfRenderConfig, *, on_end: OnEnd | None = None) -> PdfFlow:
    """Make the flow as the settings say, for one engine.

    A retry passes through `failed` in one commit, and a worker that vanished counts as a failed
    attempt. The key is free again once the job has failed for good or expired. Whoever operates
    the store may retry any failed job, which begins a new round of attempts. Tenants take turns,
    and where the settings bound how many attempts of one run at once, the rest of its jobs wait
    outside of the queue; where they bound how many wait, no more are taken.

    Args:
        config: The settings.
        on_end: What is submitted when a job has ended (`callbacks.attach`).
    """
    at_once = config.tenant_concurrency
    flow = PdfFlow(
        FLOW,
        _LIFECYCLE,
        payload=PdfPayload,
        queue=QUEUE,
        retry=Backoff(
            config.max_retries, first=config.retry_base, longest=config.retry_max, jitter="full"
        ),
        transient=(TransientPdfError,),
        permanent=(Exception,),
        dedup=Dedup(lambda payload: payload.job_key, until=["failed", "expired"]),
        retries_permanent=True,
        retry_via="failed",
        on_lapse=str(PdfErrorCode.NAVIGATION_TIMEOUT),
        # The body, and what stands beside it.
        max_payload=config.max_payload_bytes + 1024 * 1024,
        secret=("payload", "job_key"),
        unguessable_ids=True,
        fair=True,
        max_waiting=config.tenant_queue or None,
        on_end=on_end,
    )
    flow.kept = {}

    @flow.stage(
        "queued",
        during="running",
        to="succeeded",
        timeout=config.stage_timeout,
        limit=Limit(at_once, key=tenant_key) if at_once else None,
    )
    async def render(run: Run[PdfPayload]) -> dict[str, Any]:
        # Here and not above: the process that accepts jobs has no browser and needs none of this.
        from ulak.services.pdf.worker import PdfRenderWorker

        worker = run.resource(PdfRenderWorker)
        return await worker.perform(
            run.job_id,
            run.payload,
            retry_count=run.attempt - 1,
            is_first=run.token <= 1 and run.attempt == 1,
        )

    return flow


def tenant_key(payload: PdfPayload) -> str:
    """Return the key of a tenant's limit, as `tenant/acme`: a tenant may be called anything, and
    a key must be a text that is not empty, nor too long."""
    return short_key(f"tenant/{payload.tenant}")


def flow_of(engine: Engine) -> PdfFlow:
    """Return the flow of an engine.

    Raises:
        FlowError: the engine has none; `ulak.services.pdf.service` brings it.
    """
    for flow in engine.inspect.flows:
        if isinstance(flow, PdfFlow):
            return flow
    raise FlowError("the engine has no flow `pdf`; run it with the service, or add `make_flow`")


@dataclass(frozen=True, slots=True)
class Entry:
    """A status that a job has entered."""

    status: PdfJobStatus
    _: KW_ONLY
    error_code: PdfErrorCode | None = None
    """Why, of a job that has failed."""
    error_detail: str = ""
    is_retry: bool = False
    """Whether it is queued again after a failure."""


def entries_of(event: TrailEvent) -> Iterator[Entry]:
    """Return the status that a job enters with one line of its trail, if it enters one.

    Every transition of the specification is in exactly one line, and a line that is none of them
    (a lease given back, for one) answers nothing.
    """
    before = None if event.from_state is None else STATUSES.get(event.from_state)
    after = STATUSES.get(event.to_state)
    if after is None or (before is after and event.kind != kinds.SUBMITTED):
        return
    if after is PdfJobStatus.FAILED:
        yield Entry(after, error_code=error_code_of(event.code), error_detail=_detail_of(event))
    elif after is PdfJobStatus.QUEUED:
        yield Entry(after, is_retry=before is PdfJobStatus.FAILED)
    else:
        yield Entry(after)


def error_code_of(code: str | None) -> PdfErrorCode:
    """Return the code of the closed set for what the trail says: UNKNOWN for anything else."""
    if code in _TIMED_OUT:
        return PdfErrorCode.NAVIGATION_TIMEOUT
    return PdfErrorCode(code) if code in _STORED_CODES else PdfErrorCode.UNKNOWN


def _detail_of(event: TrailEvent) -> str:
    if event.code == kinds.CANCELLED_CODE:
        return "cancelled"
    found = _DETAIL.search(event.message or "")
    return "" if found is None else found[1]


_STORED_CODES: Final = frozenset(PdfErrorCode) - {
    PdfErrorCode.PDF_RENDER_UNAVAILABLE,
    PdfErrorCode.BACKPRESSURE_ACTIVE,
}
