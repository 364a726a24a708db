"""Jobs: stored, moved, read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ulak.clock import Instant
from ulak.core.admission import StopRow, Waiting
from ulak.core.backlog import Standing
from ulak.core.change import Change, Receipt
from ulak.core.job import Event, JobRow, NewJob, Payload, Request, Result
from ulak.store.protocol.filters import JobFilter


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

    def add_owner(self, job_id: bytes, owner: str) -> None:
        """Let one more own a job; nothing changes if they do, or if there is no such job."""

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
