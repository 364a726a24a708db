"""Events of the saga: what a task is told, and how it is read again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID, uuid5

from ulak.kit.clock import rfc3339

if TYPE_CHECKING:
    from ulak.services.publishing.articles import Article

SCHEMA: Final = 1
STUCK: Final = "stuck"

_MEMBERS: Final = {
    "event_id": str, "publication_id": str, "post_id": str, "author_id": str,
    "requested_by": str, "revision": int, "enqueued_at": str, "schema": int,
}  # fmt: skip
_IDS: Final = ("event_id", "publication_id", "post_id")


class BrokenPayload(Exception):
    """The payload is not one that this release can read; no retry will mend it."""

    code = "broken_payload"


@dataclass(frozen=True, slots=True)
class Event:
    """One step of one publication. Its text is fetched, not carried."""

    event_id: str
    publication_id: str
    post_id: str
    author_id: str
    requested_by: str
    revision: int
    is_stuck: bool = False


def make_event_id(publication_id: str, task: str, sweeps: int) -> str:
    """Return the id of a step of a publication; a sweep that starts it again gives it another."""
    return str(uuid5(UUID(publication_id), f"{task}:{sweeps}"))


def make_payload(
    task: str, post: Article, *, requested_by: str, now: datetime, stuck: bool
) -> dict[str, Any]:
    """Return what a task of this post is told. Raises `BrokenPayload`: it is in no publication."""
    if post.publication_id is None:
        raise BrokenPayload(f"post {post.id} is in no publication; publish it first")
    return {
        "event_id": make_event_id(post.publication_id, task, post.sweeps),
        "publication_id": post.publication_id,
        "post_id": post.id,
        "author_id": post.author_id,
        "requested_by": requested_by,
        "revision": post.revision,
        "enqueued_at": rfc3339(now),
        "schema": SCHEMA,
    } | ({STUCK: True} if stuck else {})


def read_payload(payload: Any) -> Event:
    """Return the event of a task. Raises `BrokenPayload`: it names the members that are wrong."""
    if not isinstance(payload, Mapping):
        raise BrokenPayload(f"the payload is {type(payload).__name__}; it must be an object")
    wrong = [name for name, kind in _MEMBERS.items() if type(payload.get(name)) is not kind]
    wrong += [name for name in _IDS if name not in wrong and not _is_id(payload[name])]
    if wrong:
        raise BrokenPayload(f"the payload lacks {', '.join(wrong)}, or has them of another type")
    if payload["schema"] != SCHEMA:
        raise BrokenPayload(f"the payload has schema {payload['schema']}; this release reads 1")
    return Event(
        *(payload[name] for name in tuple(_MEMBERS)[:6]), is_stuck=payload.get(STUCK) is True
    )


def find_dedup_key(payload: Any) -> str:
    """Return the id of the event in a payload, whatever else is wrong with it."""
    found = payload.get("event_id") if isinstance(payload, Mapping) else None
    return found if isinstance(found, str) and found else repr(payload)


def _is_id(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True
