"""How a payload becomes the records of a new job."""

from __future__ import annotations

from typing import Any

from ulak.clock import Instant
from ulak.core.flow import Flow
from ulak.core.intake import Submission, begin
from ulak.core.job import NewJob, Payload
from ulak.core.keys import keys_of, short_key
from ulak.errors import BadInput
from ulak.ids import time_ordered_id, unguessable_id
from ulak.store import codec


def make_job(
    flow: Flow[Any],
    payload: Any,
    submission: Submission,
    now: Instant,
    *,
    commit_id: bytes,
    trace: str | None = None,
) -> NewJob:
    """Make the records of a new job without storing them.

    Its dedup key is the flow's own unless the submission has one.

    Raises:
        BadInput: the payload or the submission cannot be used.
    """
    dedup_key = submission.dedup_key
    try:
        if dedup_key is None:
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
    """Return the payload as the type that the flow declares.

    Raises:
        BadInput: it does not fit.
    """
    kind = flow.payload
    if kind is None or codec.is_instance(payload, kind):
        return payload
    return codec.convert(payload, kind)
