"""Jobs: stored, claimed, moved, read and kept tidy."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from ulak.clock import Instant, rfc3339, to_datetime
from ulak.core.admission import StopRow, Waiting
from ulak.core.backlog import Standing
from ulak.core.change import Change, Receipt
from ulak.core.job import Event, JobRow, NewJob, Payload, Request, Result
from ulak.store.protocol.filters import JobFilter
from ulak.store.protocol.outbox import OutboxRow

LARGEST_BATCH = 500
LARGEST_BATCH_BYTES = 4 * 1024 * 1024
LARGEST_CLAIM_BYTES = 16 * 1024 * 1024
"""A claim takes jobs until their payloads have so many bytes together; so it takes at least one."""


class Added(NamedTuple):
    """The answer to one new job: `created` is False when its key was held by `row`."""

    row: JobRow
    created: bool
    stop: StopRow | None = None
    """Why the job was not stored: its flow takes no new ones; `row` is the job itself then."""


class CountRow(NamedTuple):
    """How many jobs of a flow stand in a state."""

    flow: str
    flow_version: int
    state: str
    role: str
    jobs: int


class Progress(NamedTuple):
    """How far a running stage says it is."""

    job_id: bytes
    fraction: float
    note: str | None
    at: Instant


class JobStore(Protocol):
    """The jobs with everything of theirs. Every change is guarded."""

    def add(self, jobs: Sequence[NewJob]) -> list[Added]:
        """Store new jobs with payload, first event and key; answer each in order.

        A job whose (tenant, flow, dedup key) is held by an unexpired key is not stored: the
        holder is answered with `created=False`. An id that is already stored is answered as
        created: repeating an `add` whose answer was lost is safe.

        A job with an `owner` is stored with a row that says so; if the holder of its key is
        answered, the same `owner` is added to that one, if it is not among them yet.

        A new job of a flow that is stopped, for its tenant or for all, is not stored either,
        unless it `is_admitted`; the answer has the stop. Stops are read in this transaction.

        Raises:
            WriteRefused: the data cannot be stored; nothing was written.
            Contended: somebody else holds the key of one of them; nothing was written.
            StoreError: nothing was written, or it is not known.
        """

    def commit(self, changes: Sequence[Change]) -> list[Receipt]:
        """Write each change whole - job, events, results, outbox, spawned jobs, key, slot,
        counters, proofs - or not at all, and answer one receipt per change, in order.

        A worker's change is written while the stored token is `change.token`; an operator's
        while the version is `change.version` and the job is not leased. An operator's writes
        `flow_version` and `keys` too, which no worker's moves. A change that its guard refuses
        writes nothing and never harms its neighbours. A change that `takes_slot` is refused as
        `SlotTaken` when none is free, one that `takes_key` as `KeyTaken` when another job holds
        it. A freed slot unparks the most urgent, oldest job parked on that limit.
        The key of a slot that is paused has none free. `pauses` pause keys until then; a pause
        that ends later, or never, stays as it is.
        A change whose commit id is already in the trail is answered `Committed`: repeating is
        safe. At most one change per job, at most `LARGEST_BATCH` changes.
        Whatever the order of the batch, its jobs are taken by id, and written before keys, keys
        before slots, slots before pauses, and the heads of chains last: two batches never wait
        in a circle.

        Raises:
            WriteRefused: the data of some change cannot be stored, or the batch is none; nothing
                was written.
            Contended: somebody else holds what one of them needs; nothing was written.
            StoreError: nothing was written, or it is not known: look with `find_commits`.
        """

    def request(self, request: Request) -> bool:
        """Ask something of a job; the same (kind, name) asked twice is one request.

        Returns whether the job is leased now, so that its worker will see it.
        """

    def dismiss(self, job_id: bytes, answers: Sequence[tuple[str, str]]) -> None:
        """Drop requests that need no change: the job has ended."""

    def report(self, progress: Sequence[Progress]) -> None:
        """Keep the latest progress of running jobs. Not in the trail, guards nothing."""

    def find_job(self, job_id: bytes) -> JobRow | None:
        """Return the job as it is stored."""

    def find_payload(self, job_id: bytes) -> Payload | None:
        """Return the payload as it was submitted."""

    def find_results(self, job_id: bytes) -> list[Result]:
        """Return every result of the job, the latest round last."""

    def find_key(self, tenant: str, flow: str, key: str) -> bytes | None:
        """Return the job that holds a dedup key now."""

    def add_owner(self, job_id: bytes, owner: str, *, since: Instant | None = None) -> None:
        """Let one more own a job, by default since now; of one who owns it already the earlier time
        counts. Without such a job nothing changes."""

    def find_owners(self, job_id: bytes) -> list[str]:
        """Return who owns a job, in the order in which they became owners, then by name."""

    def find_owned(
        self, owner: str, *, before: tuple[Instant, bytes] | None = None, limit: int = 100
    ) -> list[tuple[Instant, bytes]]:
        """Return when they became an owner of which jobs, the last first, then the greatest id;
        `before` is the last one of the page before."""

    def find_commits(self, changes: Sequence[Change]) -> list[bool]:
        """Tell which changes are in the trail, by their commit ids."""

    def find_progress(self, job_id: bytes) -> Progress | None:
        """Return the latest progress."""

    def trail(self, job_id: bytes, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """Return the events after that number, in order."""

    def list_jobs(
        self, where: JobFilter, *, after: bytes | None = None, limit: int = 100
    ) -> list[JobRow]:
        """Return jobs by id, newest first, below `after`."""

    def count_jobs(self, where: JobFilter, *, after: bytes | None = None) -> int:
        """Return how many jobs `list_jobs` would answer without a limit, by counting them."""

    def count_waiting(self, waiting: Waiting) -> int:
        """Return how many jobs of these lanes and this tenant nobody has leased, up to its limit;
        those that are parked as it says count too."""

    def counts(self) -> list[CountRow]:
        """Return exact counts per flow, version and state, without counting jobs."""

    def count_standing(self) -> Standing:
        """Count the jobs that are due, delayed, parked or leased, by lane, and the last ends.

        No more than `MOST_COUNTED` of a kind are counted in a lane, and no more than that of all
        leased ones or of all that are parked on one thing; what is not exact says so.
        """

    def pending_requests(self, job_id: bytes) -> list[Request]:
        """Return the requests for a job that are not settled."""

    def ended(
        self, flow: str, state: str, *, before: Instant, limit: int, after: bytes = b""
    ) -> list[JobRow]:
        """Return finished jobs that came into this state of a flow before then, by id; `after`
        is the last one of the page before."""

    def prune(
        self,
        *,
        before: Instant,
        limit: int,
        actor: str = "",
        note: str = "",
        of: tuple[str, str] | None = None,
    ) -> int:
        """Remove up to `limit` jobs that ended before then, with everything of theirs except
        proofs; answer how many. If somebody acts, audited, of the subject `jobs`. With `of` only
        those of a (flow, state).

        Unfinished jobs stay. So does a job that is still needed: one whose dedup key expires at
        a date that has not come, since a duplicate is answered with it, and one with a message
        that is neither sent nor dead. A key without a date goes with its job, and so do its
        owners and the ticks that name it.
        """


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


class UpkeepStore(Protocol):
    """What no worker or person comes for: dates that have passed, sums, and what is left over."""

    def due(self, limit: int, *, after: tuple[Instant, bytes] = (0, b"")) -> list[JobRow]:
        """Return jobs that nobody has leased and that are past their `wake_at`, the oldest first.

        `after` is the (wake_at, id) of the last job of the page before.
        """

    def find_claimable(self, lane: str, limit: int) -> list[JobRow]:
        """Return jobs of a lane that are unleased, not parked and due, the most urgent first, then
        the longest due. Nothing is leased, and no pause is looked at."""

    def overdue_leased(self, limit: int) -> list[JobRow]:
        """Return leased jobs past their `wake_at` for which no expiry is requested."""

    def asked(self, limit: int, *, after: bytes = b"") -> list[tuple[JobRow, list[Request]]]:
        """Return unleased jobs that have requests, by id, above `after`."""

    def unpark(self, limit: int) -> int:
        """Unpark jobs whose limit has a free slot that no commit has passed on, and those whose
        bucket or pause nobody will look at again; at most so many jobs.

        Looks at a bounded part of what jobs are parked on; the next call goes on from there.
        """

    def sweep(self, limit: int) -> int:
        """Remove up to `limit` of each: slots of keys that nobody holds or waits for, full
        buckets, pauses that are over, and turns that count for nothing; free slots of a state
        that their job does not keep any more; return how many.
        """

    def fold_counts(self) -> None:
        """Sum up the deltas that commits appended; the sums stay the same."""


class DedupRow(NamedTuple):
    """Which job holds a dedup key, and until when at most."""

    tenant: str
    flow: str
    key: str
    job_id: bytes
    expires_at: Instant | None


class ProofRow(NamedTuple):
    """One link of a tenant's chain: `hash` covers `body` and the hash before it."""

    tenant: str
    proof_id: int
    job_id: bytes
    seq: int
    body: bytes
    hash: bytes


class ScanStore(Protocol):
    """Everything that is stored, a page at a time."""

    def scan_jobs(self, *, after: bytes = b"", limit: int = 1000) -> list[JobRow]:
        """Return jobs by id, upward."""

    def scan_messages(self, job_id: bytes) -> list[OutboxRow]:
        """Return every delivery of the messages of a job, sent ones too."""

    def scan_keys(self) -> Iterator[DedupRow]:
        """Return every dedup key."""

    def scan_proofs(self, tenant: str, *, after: int = 0, limit: int = 1000) -> list[ProofRow]:
        """Return a tenant's proofs in order."""

    def proof_heads(self) -> dict[str, tuple[int, bytes]]:
        """Return each tenant's last proof id and hash."""

    def scan_orphans(self) -> list[str]:
        """Name rows of other tables that belong to no job, one sentence each."""


PRUNE: Final = "prune"
PRUNE_SUBJECT: Final = "jobs"


def prune_details(jobs: int, before: Instant) -> str:
    """Write how many were removed, and when they had ended at the latest."""
    return json.dumps(
        {"jobs": jobs, "ended_before": rfc3339(to_datetime(before))}, separators=(",", ":")
    )
