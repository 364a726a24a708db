"""What every store promises. A store compares, swaps and reads; the rules are in `ulak.core`.

Verbs are synchronous and batched. Every verb is one transaction: it happens whole or not at all.
`ulak.testing.conformance` holds a store to each sentence here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from ulak.clock import Clock, Instant
from ulak.core.change import Change, Receipt
from ulak.core.job import Event, JobRow, Message, NewJob, Payload, Request, Result
from ulak.core.policy import LimitTerms, RateTerms
from ulak.store.records import RecordStore

LARGEST_BATCH = 500
LARGEST_BATCH_BYTES = 4 * 1024 * 1024
LARGEST_CLAIM_BYTES = 16 * 1024 * 1024
"""A claim takes jobs until their payloads have so many bytes together; so it takes at least one."""

NO_RATES: Final[Mapping[str, RateTerms]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Features:
    """What a store can do; the conformance suite and the engine read these, never its name."""

    _: KW_ONLY
    name: str
    durable: bool
    """What was committed survives the death of the process."""
    shared: bool
    """Several processes may use it at once."""
    caller_transactions: bool = False
    """`submit(connection=...)` writes in the caller's own transaction: it is a `caller.Guest`."""
    stage_transactions: bool = False
    """Stages may have `transaction=True`: it is a `stage.StageStore`."""
    open_transactions: bool = False
    """Rows of a program, jobs and idempotency records may be one commit: it is a
    `transaction.TransactionStore`."""
    on_loop: bool = False
    """Such a transaction may begin and end on an event loop: it is a
    `transaction.LoopTransaction`."""
    one_writer: bool = False
    """While such a transaction is open, nobody else writes: it is a
    `transaction.PartedTransaction`."""
    dialect: str = ""
    """Which SQL the connections of its transactions speak: `sqlite`, `postgresql`, or none."""
    flow_control: bool = False
    """Limits with keys, rates, pauses and fair flows are kept to."""
    durability: str = ""
    """In a sentence, what a power cut may cost."""


class Added(NamedTuple):
    """The answer to one new job: `created` is False when its key was held by `row`."""

    row: JobRow
    created: bool


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


class DedupRow(NamedTuple):
    """Which job holds a dedup key, and until when at most."""

    tenant: str
    flow: str
    key: str
    job_id: bytes
    expires_at: Instant | None


class SlotRow(NamedTuple):
    """One place of a limited stage, or of one key of it. A closed one is not given again."""

    limit: str
    n: int
    job_id: bytes | None
    closed: int


# --- flow control: what operators may change at any time --------------------------


class LimitRow(NamedTuple):
    """How many runs of a stage there may be at once: of the stage, or of each key of it."""

    name: str
    """`flow/state`; the slots of a key are named `flow/state/key`."""
    n: int
    """How many, now."""
    declared: int
    """How many the flow declares."""
    keyed: int
    actor: str | None
    """Who has set `n`; None while it is what the flow declares."""
    at: Instant
    """Since when it is `n`."""


class RateRow(NamedTuple):
    """How many tokens a bucket gets: that of a stage, or of each key of it."""

    name: str
    """`flow/state`; the bucket of a key is named `flow/state/key`."""
    n: int
    per_us: int
    burst: int
    """In force now: `n` tokens come in `per_us`, at most `burst` are kept."""
    declared_n: int
    declared_per_us: int
    declared_burst: int
    actor: str | None
    """Who has set the rate; None while it is what the flow declares."""
    at: Instant


class BucketRow(NamedTuple):
    """A bucket that is not full, or for which jobs are parked. One that has no row is full."""

    name: str
    level: int
    """In parts of a token: a token has `per_us` of them, and `n` come every microsecond."""
    filled_at: Instant
    """When the level was this."""
    ready_at: Instant | None
    """When the most urgent job parked on it can be paid; None when nobody is parked."""


class PauseRow(NamedTuple):
    """No job of this queue, flow or key is claimed until the end of the pause."""

    kind: str
    """`queue`, `flow` or `key`."""
    name: str
    until_at: Instant | None
    """When it ends by itself; None means never."""
    actor: str
    note: str | None
    at: Instant


class WeightRow(NamedTuple):
    """How many turns a tenant of fair flows has for each turn of others; without a row, one."""

    tenant: str
    weight: int
    actor: str
    at: Instant


class AuditRow(NamedTuple):
    """One act of an operator on limits, rates, pauses, weights, schedules or credentials,
    committed with the act."""

    position: int
    """Rises with every line; there may be gaps."""
    at: Instant
    actor: str
    act: str
    """`limit`, `rate`, `pause`, `resume` or `weight`; of credentials `created`, `revoked` ..."""
    subject: str
    """The limit, the rate or the tenant; a pause as `queue/...`, `flow/...` or `key/...`; a
    credential as `credential/KIND/ID`."""
    note: str | None
    details: str
    """What it is now and what it was before, as JSON."""


class CredentialRow(NamedTuple):
    """What makes a caller known: a key, a person's password, or a link that logs in once.

    Nothing here is a secret: of a key or a link the hash is stored, of a password a slow one.
    """

    kind: str
    """`key`, `user` or `link`."""
    id: str
    """The public part of a key or a link, the name of a user; unique within its kind."""
    name: str
    """Who the caller is; of a user the same as `id`. A rotated key keeps it."""
    tenant: str | None
    """The only tenant that the caller sees; None sees all."""
    roles: str
    """Separated by spaces, as are scopes."""
    scopes: str
    hash: str
    created_at: Instant
    created_by: str
    expires_at: Instant | None
    revoked_at: Instant | None
    used_at: Instant | None
    """When it was last used, to the minute."""
    version: int
    """Moves with every change but `used_at`; the guard."""


class OutboxRow(NamedTuple):
    """A message and how far it has come."""

    message: Message
    sent_at: Instant | None
    tries: int
    not_before: Instant
    dead: int


class ProofRow(NamedTuple):
    """One link of a tenant's chain: `hash` covers `body` and the hash before it."""

    tenant: str
    proof_id: int
    job_id: bytes
    seq: int
    body: bytes
    hash: bytes


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


class ScheduleRow(NamedTuple):
    """What the clock submits, and when next. Columns that are declared come first."""

    name: str
    flow: str
    flow_version: int
    tenant: str
    priority: int
    expires_us: int | None
    payload: bytes
    rule: str
    """A cron expression or an interval, as `ulak.core.schedule` writes it."""
    zone: str
    catch_up: str
    """Which of the dates are run that nobody saw in time: `none`, `last` or `all`."""

    next_at: Instant
    """The first date that nobody has seen to."""
    paused_at: Instant | None = None
    """Set exactly while it is paused; nobody ticks it then."""
    paused_by: str | None = None
    pause_note: str | None = None

    @property
    def declared(self) -> tuple[object, ...]:
        """What a program declares: two rows that agree in it make the same jobs."""
        return self[: ScheduleRow._fields.index("next_at")]


class Tick(NamedTuple):
    """What is to be written for one schedule whose date has come."""

    row: ScheduleRow
    """The schedule as it was read; the guard."""
    jobs: tuple[NewJob, ...]
    """One for each date that is run: its `scheduled_for`. None when every date is skipped."""
    next_at: Instant
    """The first date after those."""


class TickRow(NamedTuple):
    """A date of a schedule, and the job that was stored for it."""

    schedule: str
    due_at: Instant
    job_id: bytes


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs a list shows; every condition that is set must hold."""

    _: KW_ONLY
    tenant: str | None = None
    flow: str | None = None
    state: str | None = None
    role: str | None = None
    code: str | None = None
    queue: str | None = None


class Store(RecordStore, Protocol):
    """The truth about every job."""

    features: Features
    clock: Clock

    # --- life -------------------------------------------------------------------

    def open(self) -> None:
        """Be ready for use. Creates the schema when there is none.

        Raises:
            StoreError: the schema is of another version, with the command that mends it.
        """

    def close(self) -> None:
        """Give back connections and files; closing twice is nothing."""

    def migrate(self) -> tuple[int, int]:
        """Bring the schema to this release; answer its version before and after."""

    # --- writing ----------------------------------------------------------------

    def add(self, jobs: Sequence[NewJob]) -> list[Added]:
        """Store new jobs with payload, first event and key; answer each in order.

        A job whose (tenant, flow, dedup key) is held by an unexpired key is not stored: the
        holder is answered with `created=False`. An id that is already stored is answered as
        created: repeating an `add` whose answer was lost is safe.

        Raises:
            Refused: the data cannot be stored; nothing was written.
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
            Refused: the data of some change cannot be stored, or the batch is none; nothing was
                written.
            Contended: somebody else holds what one of them needs; nothing was written.
            StoreError: nothing was written, or it is not known: look with `find_commits`.
        """

    def claim(self, request: ClaimRequest) -> Claimed:
        """Lease jobs to a worker: lapsed leases are given back first, whoever held them.

        Takes, per want, up to `places` jobs of its lanes that are unleased, not parked and due,
        the most urgent first, then the longest due, then by id; at most one with two or more
        lapses, and none when `suspects` is false. With `ageing_us` the order is by
        `not_before + priority * ageing_us`. The token and `stood` of each move; a `ready` job
        whose state is in `entries` enters its busy state with an `entered` event.
        A lapse moves the token, counts, frees the slot, makes the job due at once and writes a
        `lapsed` event.

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

    def request(self, request: Request) -> bool:
        """Ask something of a job; the same (kind, name) asked twice is one request.

        Returns whether the job is leased now, so that its worker will see it.
        """

    def dismiss(self, job_id: bytes, answers: Sequence[tuple[str, str]]) -> None:
        """Drop requests that need no change: the job has ended."""

    def report(self, progress: Sequence[Progress]) -> None:
        """Keep the latest progress of running jobs. Not in the trail, guards nothing."""

    # --- flow control -----------------------------------------------------------

    def declare(
        self, limits: Mapping[str, LimitTerms], rates: Mapping[str, RateTerms] = NO_RATES
    ) -> None:
        """Take over what flows declare, except where an operator has set another value.

        A limit has exactly so many open slots; a lowered one closes and drains. A job in a closed
        slot still counts: no slot is given while as many jobs hold one, open or closed, as there
        are open slots. Of a keyed limit this holds for each key. A bucket keeps its tokens when
        its rate changes, as far as it can hold them. What is not named stays as it is.
        """

    def change_limit(self, name: str, n: int | None, *, actor: str, note: str) -> LimitRow | None:
        """Set a limit, or with None go back to the declared one; audited.

        Returns the limit as it is now, or None when there is none of this name.
        """

    def change_rate(
        self, name: str, terms: RateTerms | None, *, actor: str, note: str
    ) -> RateRow | None:
        """Set a rate, or with None go back to the declared one; audited.

        Returns the rate as it is now, or None when there is none of this name.
        """

    def pause(
        self, kind: str, name: str, *, until: Instant | None, actor: str, note: str
    ) -> PauseRow | None:
        """Let no job of a queue, a flow or a key be claimed until then, or until `resume`; audited.

        What runs goes on to the end of its stage. Returns the pause that this one replaces, or
        None when it was not paused.
        """

    def resume(self, kind: str, name: str, *, actor: str, note: str) -> PauseRow | None:
        """End a pause; audited. Returns what has ended, or None when it was not paused.

        A large crowd parked on a key is unparked by this and the claims that follow.
        """

    def weigh(self, tenant: str, weight: int | None, *, actor: str, note: str) -> int | None:
        """Give a tenant so many turns for each turn of others, None for one; audited.

        Returns the weight that it had, None for one.
        """

    def sweep(self, limit: int) -> int:
        """Remove up to `limit` of each: slots of keys that nobody holds or waits for, full
        buckets, pauses that are over, and turns that count for nothing; answer how many.
        """

    def limits(self) -> list[LimitRow]:
        """Return every limit, by name."""

    def rates(self) -> list[RateRow]:
        """Return every rate, by name."""

    def buckets(self, name: str | None = None) -> list[BucketRow]:
        """Return every bucket that has a row, or the one of this name."""

    def pauses(self, *, over: bool = False) -> list[PauseRow]:
        """Return every pause that is not over, by kind and name; with `over`, those too that no
        claim has ended yet."""

    def weights(self) -> list[WeightRow]:
        """Return every weight that was set, by tenant."""

    def audit_trail(
        self, *, subject: str | None = None, before: int | None = None, limit: int = 100
    ) -> list[AuditRow]:
        """Return what operators did, the latest first, below the position `before`."""

    # --- upkeep -----------------------------------------------------------------

    def due(self, limit: int, *, after: tuple[Instant, bytes] = (0, b"")) -> list[JobRow]:
        """Return jobs that nobody has leased and that are past their `wake_at`, the oldest first.

        `after` is the (wake_at, id) of the last job of the page before.
        """

    def overdue_leased(self, limit: int) -> list[JobRow]:
        """Return leased jobs past their `wake_at` for which no expiry is requested."""

    def asked(self, limit: int, *, after: bytes = b"") -> list[tuple[JobRow, list[Request]]]:
        """Return unleased jobs that have requests, by id, above `after`."""

    def unpark(self, limit: int) -> int:
        """Unpark jobs whose limit has a free slot that no commit has passed on, and those whose
        bucket or pause nobody will look at again; at most so many jobs.

        Looks at a bounded part of what jobs are parked on; the next call goes on from there.
        """

    def fold_counts(self) -> None:
        """Sum up the deltas that commits appended; the sums stay the same."""

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
        that is neither sent nor dead. A key without a date goes with its job, and so do the
        ticks that name it.
        """

    # --- schedules --------------------------------------------------------------

    def keep_schedules(self, rows: Sequence[ScheduleRow]) -> None:
        """Store what a program declares.

        A new name is stored as given. Of a stored one the declared columns are taken over;
        `next_at` moves only when the rule or the zone has changed, and a pause stays. Schedules
        that are not named stay as they are.
        """

    def due_schedules(
        self, by: Instant, limit: int, *, after: tuple[Instant, str] = (-1, "")
    ) -> list[ScheduleRow]:
        """Return schedules that are not paused and are due by then, the earliest first.

        `after` is the (next_at, name) of the last one of the page before.
        """

    def tick(self, ticks: Sequence[Tick]) -> list[bool]:
        """Store the jobs of schedules with a tick row for each, and move `next_at`; answer for
        each, in order, whether it was written.

        A tick is written whole while the stored schedule is exactly `tick.row`, is not paused,
        and `next_at` has come by the store's time. Otherwise nothing of it is: of several
        processes one wins. Neither harms its neighbours. A date that has a tick row gets no
        second job. A job whose dedup key is held is not stored: its tick row names the holder.
        Repeating a `tick` whose answer was lost is safe. At most one tick per schedule, at most
        `LARGEST_BATCH` jobs. Schedules are taken by name, before any job is written.

        Raises:
            Refused: the data of some job cannot be stored, or the batch is none; nothing was
                written.
            StoreError: nothing was written, or it is not known.
        """

    def pause_schedule(self, name: str, *, actor: str, note: str) -> bool:
        """Let nobody tick a schedule from now on; audited, of the subject `schedule/name`.

        Returns False, and writes nothing, when there is none or it is paused.
        """

    def resume_schedule(self, name: str, *, next_at: Instant, actor: str, note: str) -> bool:
        """End a pause; audited. The next date is `next_at`, after those that passed meanwhile.

        Returns False, and writes nothing, when there is none or it is not paused.
        """

    def schedules(self) -> list[ScheduleRow]:
        """Return every schedule, by name, undeclared ones too."""

    def ticks(
        self, schedule: str, *, before: Instant | None = None, limit: int = 100
    ) -> list[TickRow]:
        """Return the ticks of a schedule, the latest first, due before then."""

    # --- credentials ------------------------------------------------------------

    def add_credential(self, row: CredentialRow, *, act: str, actor: str, note: str) -> bool:
        """Store a credential; audited, with everything of it but the hash.

        Returns False, and writes nothing, when its kind has this id.
        """

    def change_credential(self, row: CredentialRow, *, act: str, actor: str, note: str) -> bool:
        """Store a credential as given, with the next version; audited, without hashes. When it
        was last used is kept as it is stored.

        Returns False, and writes nothing, when the stored version is not `row.version`: of two
        that change it at once, or spend it, one wins.
        """

    def note_use(self, kind: str, id: str, at: Instant) -> None:
        """Keep when a credential was last used; never backwards, not audited, moves no version."""

    def find_credential(self, kind: str, id: str) -> CredentialRow | None:
        """Return a credential, revoked and expired ones too."""

    def credentials(self, kind: str) -> list[CredentialRow]:
        """Return every credential of a kind, by id."""

    def forget_credentials(self, kind: str, *, before: Instant) -> int:
        """Remove the credentials of a kind that expired before then; answer how many."""

    # --- outbox -----------------------------------------------------------------

    def take_messages(self, limit: int, *, hold_us: int) -> list[OutboxRow]:
        """Take the head of up to `limit` keys for this relay alone, for `hold_us`.

        The head of a key is its oldest message that is neither sent nor dead; a key whose head
        is not due, or is taken, gives nothing: order per key is kept and no key waits for another.
        """

    def hold_messages(self, rows: Sequence[OutboxRow], *, hold_us: int) -> list[OutboxRow]:
        """Hold taken messages for `hold_us` from now; return those that are held, as they are now.

        A message that was sent or is dead, or that another relay has taken or tried since, is left
        as it is: its `not_before` is not that of the row.
        """

    def settle_messages(
        self, sent: Sequence[Message], failed: Sequence[tuple[Message, Instant, bool]]
    ) -> None:
        """Record what was published, and for failures when to try again or that they are dead.

        What was published is recorded however late, of a message that is dead meanwhile too.
        """

    def dead_messages(self, limit: int) -> list[OutboxRow]:
        """Return messages that gave up, the oldest first."""

    def revive_message(self, message: Message, *, actor: str, note: str) -> bool:
        """Let a dead message be tried again; audited, of the subject `message/JOB/SEQ/N`.

        Returns False, and writes nothing, when it is not dead.
        """

    # --- reading ----------------------------------------------------------------

    def find_job(self, job_id: bytes) -> JobRow | None:
        """Return the job as it is stored."""

    def find_payload(self, job_id: bytes) -> Payload | None:
        """Return the payload as it was submitted."""

    def find_results(self, job_id: bytes) -> list[Result]:
        """Return every result of the job, the latest round last."""

    def find_key(self, tenant: str, flow: str, key: str) -> bytes | None:
        """Return the job that holds a dedup key now."""

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

    def counts(self) -> list[CountRow]:
        """Return exact counts per flow, version and state, without counting jobs."""

    def workers(self) -> list[WorkerRow]:
        """Return every registered worker, lapsed ones too."""

    def leased(self, worker: str) -> list[JobRow]:
        """Return the jobs that a worker has leased, by id, whether or not it knows of them.

        A worker that never heard the answer to its claim finds here what it has to give back;
        nobody else would, for as long as it renews its lease.
        """

    def pending_requests(self, job_id: bytes) -> list[Request]:
        """Return the requests for a job that are not settled."""

    def slots(self, limit: str | None = None) -> list[SlotRow]:
        """Return every slot, or those of one limit or key, by limit and number."""

    # --- whole-store reads for `verify`, by id upward ---------------------------

    def scan_jobs(self, *, after: bytes = b"", limit: int = 1000) -> list[JobRow]:
        """Return jobs by id, upward."""

    def scan_messages(self, job_id: bytes) -> list[OutboxRow]:
        """Return every message of a job, sent ones too."""

    def scan_keys(self) -> Iterator[DedupRow]:
        """Return every dedup key."""

    def scan_proofs(self, tenant: str, *, after: int = 0, limit: int = 1000) -> list[ProofRow]:
        """Return a tenant's proofs in order."""

    def proof_heads(self) -> dict[str, tuple[int, bytes]]:
        """Return each tenant's last proof id and hash."""

    def scan_orphans(self) -> list[str]:
        """Name rows of other tables that belong to no job, one sentence each."""

    # --- waking -----------------------------------------------------------------

    def changed_elsewhere(self) -> bool:
        """Tell cheaply whether another process has committed since the last call.

        A store that cannot tell others' commits from its own may say so once too often.
        """

    def on_commit(self, ring: Callable[[], None]) -> None:
        """Call `ring` after each commit of this process that may have made a job due."""
