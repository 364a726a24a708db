"""One write, and what a store answers to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from ulak.clock import Instant
from ulak.core.job import Event, JobRow, Message, NewJob, Request, Result
from ulak.core.lifecycle import Role


class Change(NamedTuple):
    """Everything that one decision writes, whole or not at all.

    Exactly one guard is set. With `token`, the change is a worker's: it is written only while
    the stored token is this one. With `version`, it is an operator's or upkeep's: it is written
    only while the stored version is this one and nobody has leased the job.
    """

    row: JobRow
    """The job as it will be; its side columns are not written."""
    commit_id: bytes
    token: int | None = None
    version: int | None = None
    events: tuple[Event, ...] = ()
    results: tuple[Result, ...] = ()
    voids: tuple[str, ...] = ()
    """Stages whose results are removed, because they were undone; `EVERY_STAGE` means all of them,
    but not what operators did (`RELEASED_ACT`, `RETRIED_ACT`)."""
    messages: tuple[Message, ...] = ()
    spawns: tuple[NewJob, ...] = ()
    frees_key: bool = False
    takes_key: bool = False
    frees_slot: str | None = None
    takes_slot: str | None = None
    """The lease goes on into a limited stage: without a free slot nothing is written."""
    answers: tuple[tuple[str, str], ...] = ()
    """(kind, name) of the requests that this change settles."""
    proofs: tuple[bytes, ...] = ()
    """What is chained into the tenant's proofs, one per event that is one."""
    moved_from: str | None = None
    """The state left, for the counters; None when state and role stay."""
    role_from: Role | None = None
    """The role left with it: a job may begin its undos in the state where it stands."""
    pauses: tuple[tuple[str, Instant], ...] = ()
    """(key, until) of the keys that are paused with it; a longer pause stays as it is."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The change is durable. `requests` came in while the job was leased."""

    requests: tuple[Request, ...] = ()


@dataclass(frozen=True, slots=True)
class Stale:
    """The version had moved or the job is leased; `row` is how it stands."""

    row: JobRow | None


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """The token had moved: another claim, rescue or give-back came first."""


@dataclass(frozen=True, slots=True)
class SlotTaken:
    """No slot was free for the stage the lease would have gone on to."""

    limit: str


@dataclass(frozen=True, slots=True)
class KeyTaken:
    """Another job holds the dedup key."""

    holder: bytes


Receipt = Committed | Stale | LeaseLost | SlotTaken | KeyTaken

COMMITTED: Final = Committed()
EVERY_STAGE: Final = "*"

RELEASED_ACT: Final = "/released"
RETRIED_ACT: Final = "/retried"
"""Stand for a stage where the result is what an operator did, by the code that was dealt with; no
void removes those."""
