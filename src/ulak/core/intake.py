"""How a job begins: the row, the first event and the key of a submission."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, NamedTuple, TypedDict

from ulak.clock import Duration, Instant, micros, read_micros
from ulak.core import event as kinds
from ulak.core.bounds import LONGEST_KEY, is_utf8, storable_key
from ulak.core.change import proof_body
from ulak.core.flow import Flow, Stage
from ulak.core.job import Event, JobRow, NewJob, Payload
from ulak.core.lifecycle import WAITING
from ulak.core.table import COST, RATE, SLOT, needs_of
from ulak.errors import BadInput, PayloadTooLarge

PRIORITIES = range(4)
NORMAL = 1

ROW_BEGINS: Mapping[str, int | str | None] = {
    "version": 1, "seq": 1, "round": 1, "attempt": 0, "lapses": 0, "code": None, "permanent": 0,
    "resume": None, "started": "", "undo_to": None, "has_results": 0, "parked_on": None,
    "leased_by": None, "leased_at": None, "token": 0, "stood": 0, "lapsed": 0, "requests": 0,
}  # fmt: skip
"""What the row of every new job has: a store may write it into its statement."""
EVENT_BEGINS: Mapping[str, int | str | None] = {
    "seq": 1, "kind": kinds.SUBMITTED, "from_state": None, "code": None, "message": None,
    "details": None, "round": 1, "attempt": 0, "worker": None, "token": 0, "started_at": None,
    "emitted": 0,
}  # fmt: skip
"""What the first event of every job has."""
_beginning_of_row = itemgetter(*map(JobRow._fields.index, ROW_BEGINS))
_beginning_of_event = itemgetter(*map(Event._fields.index, EVENT_BEGINS))
_ROW_BEGINS, _EVENT_BEGINS = tuple(ROW_BEGINS.values()), tuple(EVENT_BEGINS.values())


def has_begun(row: JobRow, event: Event) -> bool:
    """Tell whether these are as `begin` makes them, with nothing that came later."""
    begins: tuple[Any, Any] = _beginning_of_row(row), _beginning_of_event(event)
    return begins == (_ROW_BEGINS, _EVENT_BEGINS)


class Submission(NamedTuple):
    """What a caller says about a job besides its payload."""

    tenant: str = ""
    submitter: str = ""
    priority: int = NORMAL
    after: Duration | None = None
    dedup_key: str | None = None
    expires: Duration | None = None
    scheduled_for: Instant | None = None
    keys: str | None = None


class SubmitOptions(TypedDict, total=False):
    """The options of a submit, for type checkers; `engine.submit` says what each means."""

    tenant: str
    actor: str
    priority: int
    after: Duration | None
    expires: Duration | None
    dedup_key: str | None


class LoneSubmitOptions(SubmitOptions, total=False):
    """The options of a submit of one job."""

    connection: Any
    repeat_note: str | None


class CallOptions(LoneSubmitOptions, total=False):
    """The options of a call."""

    timeout: Duration | None


def begin(
    flow: Flow[Any],
    payload: Payload,
    submission: Submission,
    now: Instant,
    *,
    job_id: bytes,
    commit_id: bytes,
) -> NewJob:
    """Return the new job, standing in its flow's initial state; `BadInput` if it cannot be
    accepted."""
    check_submission(submission)
    if len(payload.data) > flow.max_payload:
        check_payload(flow, payload.data)
    place = flow.table.places[flow.lifecycle.initial]
    after_us = 0 if submission.after is None else micros(submission.after)
    expires = submission.expires or flow.expires
    expires_at = None if expires is None else now + micros(expires)
    deadline = None
    if place.deadline_us is not None:
        deadline = now + (after_us if after_us and place.role == WAITING else place.deadline_us)
    wake = deadline if expires_at is None else expires_at
    if deadline is not None and expires_at is not None:
        wake = min(deadline, expires_at)
    lane, slot, rate, cost = place.lane, place.slot, place.rate, place.cost
    if place.is_particular:
        lane, slot, rate, cost = needs_of(place, submission.tenant, submission.keys)
    # By position, in the order of JobRow: naming 40 fields takes as long as all the rest.
    row = JobRow(
        job_id, submission.tenant, flow.name, flow.version, now, submission.submitter,
        submission.dedup_key, submission.priority, expires_at, submission.scheduled_for,
        submission.keys,
        place.state, place.role, 1, 1, 1, 0, 0, now,  # version, seq, round, attempt, lapses
        None, 0, None, "", None, 0,  # code, permanent, resume, started, undo_to, has_results
        lane, now + after_us, slot, rate, cost, None, place.awaits, deadline, wake,
        None, None, 0, 0, 0, 0,  # leased_by, leased_at, token, stood, lapsed, requests
    )  # fmt: skip
    event = Event(
        job_id, 1, kinds.SUBMITTED, None, place.state, submission.submitter or kinds.ENGINE,
        None, None, None, 1, 0, None, 0, None, now, 0, commit_id,
    )  # fmt: skip
    keep = None if flow.dedup is None else flow.dedup.keep
    return NewJob(
        row, event, payload,
        key_expires_at=None if keep is None else now + micros(keep),
        proof=proof_body(event) if flow.proofs else None,
        owner=submission.submitter if flow.owners else "",
    )  # fmt: skip


def check_payload(flow: Flow[Any], data: bytes) -> None:
    """Raise `PayloadTooLarge` for a payload that is larger than its flow allows."""
    if len(data) > flow.max_payload:
        raise PayloadTooLarge(
            f"{flow.name}: this payload has {len(data):,} bytes, and {flow.max_payload:,} are "
            "allowed; store the bytes as an artifact and submit its key, or declare "
            "Flow(max_payload=...)"
        )


def check_submission(submission: Submission) -> None:
    """Raise `BadInput` for what no store can keep."""
    if submission.priority not in PRIORITIES:
        raise BadInput(f"priority {submission.priority} is not one of 0 (most urgent) to 3")
    if submission.after is not None:
        read_micros(submission.after, "after=")
    if submission.expires is not None and read_micros(submission.expires, "expires=") <= 0:
        raise BadInput(f"expires={submission.expires}: the job would have no time at all")
    if not (submission.tenant or submission.submitter or submission.dedup_key):
        return
    for name in ("tenant", "submitter", "dedup_key"):
        text = getattr(submission, name)
        if not text:
            continue
        if "\x00" in text or not is_utf8(text):
            raise BadInput(f"{name} {text!r} holds a character that no store can keep")
        if len(text) > LONGEST_KEY:
            raise BadInput(f"{name} has {len(text)} characters; {LONGEST_KEY} are allowed")


def keys_of(flow: Flow[Any], payload: Any) -> str | None:
    """Return the keys and costs of a payload as `jobs.keys` holds them; None when there are none.
    `BadInput`: a key is no text that can be stored, or a cost is more than its bucket holds."""
    found: dict[str, dict[str, str | int]] = {}
    for stage in flow.declared.stages:
        own: dict[str, str | int] = {}
        if stage.limit is not None and stage.limit.key is not None:
            own[SLOT] = _key(flow, stage, "limit", stage.limit.key, payload)
        if stage.rate is not None and stage.rate.key is not None:
            own[RATE] = _key(flow, stage, "rate", stage.rate.key, payload)
        if stage.rate is not None and not isinstance(stage.rate.cost, int):
            own[COST] = _cost(flow, stage, stage.rate.cost(payload))
        if own:
            found[stage.state] = own
    return json.dumps(found, ensure_ascii=False, separators=(",", ":")) if found else None


def _key(
    flow: Flow[Any], stage: Stage[Any, Any], what: str, key: Callable[[Any], str], payload: Any
) -> str:
    where = f'{flow.name}: the key of the {what} of "{stage.state}" for this payload'
    return storable_key(key(payload), where)


def _cost(flow: Flow[Any], stage: Stage[Any, Any], cost: object) -> int:
    where = f'{flow.name}: a run of "{stage.state}" costs {cost!r} for this payload'
    if not isinstance(cost, int) or isinstance(cost, bool) or cost < 1:
        raise BadInput(f"{where}; it must be a whole number of tokens, 1 or more")
    burst = 0 if stage.rate is None else stage.rate.terms().burst
    if cost > burst:
        raise BadInput(f"{where}, and its bucket never holds more than {burst}; raise burst=")
    return cost
