"""Events of the saga: what a task is told, how it is read again, and the points of its steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID, uuid5

from ulak.kit import FaultSteps
from ulak.kit.clock import rfc3339

if TYPE_CHECKING:
    from ulak.services.publishing.articles import Article

step: Final = FaultSteps("publishing")
"""Each await, HTTP call, submit and transaction of the saga stands in a block of it, so that a test
may kill the process before and after; a test reads the sources for that."""
SCHEMA: Final = 1
BROKEN: Final = "broken_payload"

_IDS: Final = ("event_id", "publication_id", "post_id")
_MEMBERS: Final = dict.fromkeys((*_IDS, "author_id", "requested_by", "enqueued_at"), str) | {
    "revision": int, "schema": int,
}  # fmt: skip


class TaskRefused(Exception):
    """The task cannot be done, and no retry will mend it; the code says why."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class Event:
    """One step of one publication. Its text is fetched, not carried."""

    event_id: str
    publication_id: str
    post_id: str
    revision: int
    is_stuck: bool = False


def make_event_id(task: str, post: Article) -> str:
    """Return the id of the step that a post in a publication waits for; a sweep that starts it
    again gives it another."""
    return str(uuid5(UUID(post.publication_id), f"{task}:{post.sweeps}"))


def make_payload(
    task: str, post: Article, now: datetime, *, requested_by: str = "", stuck: bool = False
) -> dict[str, Any]:
    """Return what a task of a post in a publication is told; its author has requested it, unless
    somebody else is named. `stuck` marks one that fails at once: a dead letter."""
    return {
        "event_id": make_event_id(task, post), "publication_id": post.publication_id,
        "post_id": post.id, "author_id": post.author_id,
        "requested_by": requested_by or post.author_id, "revision": post.revision,
        "enqueued_at": rfc3339(now), "schema": SCHEMA, **({"stuck": True} if stuck else {}),
    }  # fmt: skip


def read_payload(payload: Any) -> Event:
    """Return the event of a task. Raises `TaskRefused`: it names the members that are wrong."""
    members = payload if isinstance(payload, Mapping) else {}
    wrong = [name for name, kind in _MEMBERS.items() if type(members.get(name)) is not kind]
    wrong += [name for name in _IDS if name not in wrong and not _is_id(members[name])]
    if not wrong and members["schema"] != SCHEMA:
        wrong = [f"schema {SCHEMA}"]
    if wrong:
        raise TaskRefused(BROKEN, f"the payload lacks {', '.join(wrong)}, as this release reads it")
    ids = {name: members[name] for name in _IDS}
    return Event(**ids, revision=members["revision"], is_stuck=members.get("stuck") is True)


def _is_id(text: str) -> bool:
    try:
        return bool(UUID(text))
    except ValueError:
        return False
