"""The flow `pdf`: its payload and key, its states, its retries, the stage that renders, and a job
as the specification has it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final

from ulak import Backoff, Dedup, Engine, Flow, Job, JobFilter, Lifecycle, Limit, OnEnd, Run
from ulak.core import event as kinds
from ulak.core.bounds import short_key
from ulak.core.job import JobRow
from ulak.engine.view import TrailEvent
from ulak.errors import BadInput, FlowError
from ulak.kit.clock import to_datetime
from ulak.kit.ids import to_text
from ulak.services.pdf.model import (
    JOB_CODES,
    PdfError,
    PdfErrorCode,
    PdfJob,
    PdfJobStatus,
    TransientPdfError,
)
from ulak.services.pdf.settings import PdfRenderConfig

A_PAGE: Final = 500
DEEPEST: Final = 64
"""How deep lists and objects may lie in a payload; a guess, deeper than any document needs."""
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

BLOCKED: Final = "pdf.blocked"
"""A line of the trail: the requests that were refused to the page of a failed attempt, by why."""
_TIMED_OUT: Final = (kinds.TIMEOUT, kinds.WORKER_DIED)
_DETAIL: Final = re.compile(r"\(([a-z][a-z_]*)\)\Z")


@dataclass(frozen=True, slots=True)
class PdfPayload:
    """What a job is submitted with."""

    template_name: str
    payload: dict[str, Any] = field(repr=False)
    """What the key was made of: variables, content version, options (`payload_of`)."""
    _: KW_ONLY
    job_key: str = field(repr=False)
    timeout_s: int | None = None
    correlation_id: str = ""
    tenant: str = ""
    """Whose job it is: what the limit of a tenant's attempts is kept by."""


def compute_job_key(template_name: str, payload: Mapping[str, Any]) -> str:
    """Return the SHA-256, in hex, of canonical JSON over the template's name and the payload.

    Canonical means: the keys of every object sorted by code point, no whitespace, UTF-8. Values
    are compared as they would be printed: `1`, `1.0`, `"1"` and `true` are four values, `0.0` and
    `-0.0` two, and no text is normalised. Raises BadInput: the payload is no JSON.
    """
    _must_be_json(payload, 0)
    document = {"payload": payload, "template_name": template_name}
    text = json.dumps(
        document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    try:
        return hashlib.sha256(text.encode("utf-8")).hexdigest()
    except UnicodeEncodeError:
        raise BadInput("a text of the payload has half a surrogate pair in it") from None


def payload_of(
    variables: Mapping[str, Any], *, template_version: str, options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Make the payload of a job: what is hashed for its key, and nothing about its delivery.

    `template_version` is the digest of the template's files, so that a changed template is another
    document; `options` are those that change the printed bytes.
    """
    return {
        "variables": dict(variables),
        "template_version": template_version,
        "options": dict(options or {}),
    }


def _must_be_json(value: object, depth: int) -> None:
    """Refuse what `json` would write in silence: `{1: ...}` as `{"1": ...}`, for one."""
    if depth > DEEPEST:
        raise BadInput(f"the payload has more than {DEEPEST} levels; make it flatter")
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise BadInput(f"a key of the payload is a {type(key).__name__}; keys are texts")
            _must_be_json(inner, depth + 1)
    elif isinstance(value, list | tuple):
        for inner in value:
            _must_be_json(inner, depth + 1)
    elif isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise BadInput("a number of the payload is not finite; JSON has no NaN and no Infinity")
    elif not (value is None or isinstance(value, str | int)):
        raise BadInput(f"a value of the payload is a {type(value).__name__}, which JSON lacks")


def make_flow(config: PdfRenderConfig, *, on_end: OnEnd | None = None) -> Flow[PdfPayload]:
    """Make the flow as the settings say; `on_end` is submitted when a job has ended.

    A retry passes through `failed` in one commit, and a worker that vanished counts as a failed
    attempt. The key is free again once the job has failed for good or expired. An operator may
    retry any failed job, which begins a new round of attempts. Tenants take turns.
    """
    at_once = config.tenant_concurrency
    flow = Flow(
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
        secret_results=("artifact_key",),
        unguessable_ids=True,
        fair=True,
        max_waiting=config.tenant_queue or None,
        on_end=on_end,
        owners=True,
    )

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
        try:
            return await worker.perform(
                run.job_id,
                run.payload,
                retry_count=run.attempt - 1,
                is_first=run.token <= 1 and run.attempt == 1,
            )
        except PdfError as error:
            # What succeeds has a report of it.
            if error.blocked:
                run.note(BLOCKED, **error.blocked)
            raise

    return flow


def tenant_key(payload: PdfPayload) -> str:
    """Return the key of a tenant's limit: never empty and never too long, as a name may be."""
    return short_key(f"tenant/{payload.tenant}")


def flow_of(engine: Engine, name: str = FLOW) -> Flow[Any]:
    """Return a flow of an engine. Raises FlowError: the engine has none of this name."""
    for flow in engine.inspect.flows:
        if flow.name == name:
            return flow
    other = ", or add `make_flow`" if name == FLOW else ""
    raise FlowError(f"the engine has no flow `{name}`; run it with the service{other}")


def walk(engine: Engine, where: JobFilter) -> Iterator[Job]:
    """Return every job of a filter, page by page."""
    after: str | None = None
    while page := engine.jobs(where, after=after, limit=A_PAGE):
        yield from page
        after = page[-1].id


@dataclass(frozen=True, slots=True)
class Entry:
    """A status that a job has entered."""

    status: PdfJobStatus
    _: KW_ONLY
    error_code: PdfErrorCode | None = None
    error_detail: str = ""
    is_retry: bool = False


def find_entry(event: TrailEvent) -> Entry | None:
    """Return the status that a job enters with one line of its trail, None when it enters none.

    Every transition of the specification is in exactly one line.
    """
    before = None if event.from_state is None else STATUSES.get(event.from_state)
    after = STATUSES.get(event.to_state)
    if after is None or (before is after and event.kind != kinds.SUBMITTED):
        return None
    if after is PdfJobStatus.FAILED:
        detail = find_detail(event)
        if event.code == kinds.CANCELLED_CODE:
            detail = "cancelled"
        return Entry(after, error_code=error_code_of(event.code), error_detail=detail)
    return Entry(after, is_retry=after is PdfJobStatus.QUEUED and before is PdfJobStatus.FAILED)


def find_detail(event: TrailEvent) -> str:
    """Return the stable word at the end of a line's message, '' when there is none."""
    found = _DETAIL.search(event.message or "")
    return "" if found is None else found[1]


def error_code_of(code: str | None) -> PdfErrorCode:
    """Return the code of the closed set for what the trail says: UNKNOWN for anything else."""
    if code in _TIMED_OUT:
        return PdfErrorCode.NAVIGATION_TIMEOUT
    return PdfErrorCode(code) if code in JOB_CODES else PdfErrorCode.UNKNOWN


def view_of(engine: Engine, row: JobRow) -> PdfJob:
    """Return a job of the flow `pdf` as it stood when its row was read."""
    job_id = to_text(row.id)
    given = engine.inspect.payload(job_id, reveal=True)
    times = _times_of(engine.inspect.trail(job_id))
    status, heartbeat_at = STATUSES[row.state], None
    if status is PdfJobStatus.RUNNING:
        renewed = (w.renewed_at for w in engine.store.workers() if w.id == row.leased_by)
        heartbeat_at = next(map(to_datetime, renewed), None)
    report = engine.inspect.result(job_id) if row.has_results else None
    # Jobs of the release before have no owners but this one.
    owners = {*engine.owners.all(job_id), row.submitter} - {""}
    return PdfJob(
        job_id, row.dedup_key or given["job_key"], status, given["template_name"],
        given["payload"], created_at=to_datetime(row.created_at),
        artifact_key=None if report is None else report.get("artifact_key"),
        **times, tenant_id=row.tenant, owners=frozenset(owners), attempt_id=row.token,
        heartbeat_at=heartbeat_at, correlation_id=given.get("correlation_id", ""),
    )  # fmt: skip


def view_of_new(made: PdfPayload, submitted: Job) -> PdfJob:
    """Return a job as it was stored; a worker may have it already."""
    return PdfJob(
        submitted.id, made.job_key, PdfJobStatus.QUEUED, made.template_name, made.payload,
        created_at=submitted.created_at, tenant_id=submitted.tenant,
        owners=frozenset({submitted.submitter} - {""}), correlation_id=made.correlation_id,
    )  # fmt: skip


def _times_of(trail: list[TrailEvent]) -> dict[str, Any]:
    """Read what the trail tells of the latest attempt, and how many there were before it."""
    latest: dict[str, Any] = {}
    retries = 0
    for event in trail:
        entry = find_entry(event)
        if entry is None:
            continue
        if entry.status is PdfJobStatus.QUEUED:
            latest = {}
            retries += entry.is_retry
        elif entry.status is PdfJobStatus.RUNNING:
            latest = {"started_at": event.at}
        elif entry.status is not PdfJobStatus.EXPIRED:
            latest |= {
                "finished_at": event.at, "error_code": entry.error_code,
                "error_detail": entry.error_detail,
            }  # fmt: skip
    return {**latest, "retry_count": retries}
