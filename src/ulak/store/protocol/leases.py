"""Leases: which worker runs which job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from ulak.clock import Instant
from ulak.core.job import JobRow, Payload, Request, Result


@dataclass(frozen=True, slots=True)
class Want:
    """How many jobs may be taken from these lanes together: the free places of one pool."""

    lanes: tuple[str, ...]
    places: int


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """What one worker can run now."""

    worker: str
    wants: tuple[Want, ...]
    entries: Mapping[tuple[str, int, str], str] = field(default_factory=dict)
    """(flow, version, state) of stages with a busy state, and that state."""
    suspects: bool = True
    """Whether one job with two or more lapses may be among them."""
    ageing_us: int = 0
    """How much waiting one level of priority is worth; 0 means that priorities are strict."""
    keeps: frozenset[tuple[str, int, str]] = frozenset()
    """Those of `entries` whose busy state has slots: what enters it keeps its slot there."""


class Claim(NamedTuple):
    """One leased job with what its stage needs."""

    row: JobRow
    payload: Payload
    results: tuple[Result, ...]


class Claimed(NamedTuple):
    """What a claim took, and what it saw on the way."""

    claims: list[Claim]
    now: Instant
    """The store's time; the engine adds its own monotonic difference to it."""
    requests: list[Request]
    """What is asked of jobs that this worker has leased."""
    next_at: Instant | None
    """When a claim could find more: the next delayed job of these lanes becomes due, a bucket has
    filled for a job that is parked on it, or a pause ends; at once where every place was taken.
    The lanes of a want without a place left need not count: a free one is reason to look again."""
    unparked: int = 0
    paused: frozenset[tuple[str, str]] = frozenset()
    """(kind, name) of every queue and flow that is paused, so that no lease is kept into one."""


class WorkerRow(NamedTuple):
    """One worker's lease: every job it holds lives by this row."""

    id: str
    started_at: Instant
    renewed_at: Instant
    expires_at: Instant
    lanes: str
    """Every lane it serves, separated by spaces; for `why` and `doctor`."""
    about: str
    """Host and process, for people."""


class Renewal(NamedTuple):
    """The answer to a renewal. `alive` is False when the lease had lapsed and was taken away."""

    alive: bool
    now: Instant
    requests: list[Request]


class LeaseStore(Protocol):
    """Jobs for workers. A lease is a token; one row per worker keeps all of its leases alive."""

    def claim(self, request: ClaimRequest) -> Claimed:
        """Lease jobs to a worker: lapsed leases are given back first, whoever held them.

        Takes, per want, up to `places` jobs of its lanes that are unleased, not parked and due,
        the most urgent first, then the longest due, then by id; at most one with two or more
        lapses, and none when `suspects` is false. With `ageing_us` the order is by
        `not_before + priority * ageing_us`. The token and `stood` of each move; a `ready` job
        whose state is in `entries` enters its busy state with an `entered` event; where it is in
        `keeps` too, its slot is the state's from then on (`OF_STATE`).
        A lapse moves the token, counts, frees the slot unless it is a state's, makes the job due
        at once and writes a `lapsed` event.

        A job that lacks something is parked instead, and the next one is looked at in its place:
        on `/key/...` when a key of its slot or its bucket is paused, on its limit when no slot is
        free, on `/rate/...` when its bucket cannot pay it or a more urgent job is parked there.
        It takes slot and tokens together or neither. The slots of a key are opened when the first
        job needs one; a bucket without a row is full; a run that costs more than the bucket can
        hold takes all of it. Before it chooses, a claim unparks what a filled bucket can pay, by
        priority and age, and what was parked on a key whose pause is over.
        The lanes of paused queues and flows are left out.

        A lane that ends in `/*` is a family: the lanes of a fair flow, one for each tenant. The
        family's most urgent job says which priority is next; it is taken from the tenant of that
        priority that has had the least, then by name. A turn costs a tenant `1 / weight`; who
        comes new, or back, has had as much as whoever had the last turn had before it.

        A worker that was never registered, or whose lease has lapsed, gets nothing.
        """

    def register(self, worker: str, *, lease_us: int, lanes: Sequence[str], about: str) -> Instant:
        """Begin a worker's lease and answer the store's time."""

    def renew(self, worker: str, *, lease_us: int) -> Renewal:
        """Extend a worker's lease, unless it lapsed and was taken away."""

    def unregister(self, worker: str) -> None:
        """End a worker's lease at once: what it still holds can be rescued now."""

    def workers(self) -> list[WorkerRow]:
        """Return every registered worker, lapsed ones too."""

    def leased(self, worker: str) -> list[JobRow]:
        """Return the jobs that a worker has leased, by id, whether or not it knows of them.

        A worker that never heard the answer to its claim finds here what it has to give back;
        nobody else would, for as long as it renews its lease.
        """
