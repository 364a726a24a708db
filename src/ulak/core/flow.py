"""A flow: a lifecycle with the stages, gates, waits and undos that leave its states."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    Protocol,
    Required,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

from ulak.clock import Duration
from ulak.core.lifecycle import Lifecycle
from ulak.core.policy import Backoff, Dedup, Limit, Rate, Submitter, as_backoff
from ulak.errors import FlowError

if TYPE_CHECKING:
    from ulak.core.admission import Intake
    from ulak.core.change import EndJob
    from ulak.core.outcome import Goto, Hold, RetryLater
    from ulak.core.run import Run
    from ulak.core.table import Table

P = TypeVar("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
D = TypeVar("D")

Pool = Literal["loop", "thread", "process"]
Undo: TypeAlias = "Callable[[Run[P]], object]"

# Long enough for a slow report, short enough that a stuck stage is noticed within a shift.
DEFAULT_TIMEOUT = timedelta(minutes=15)
# As much as a store writes in one transaction. What is larger belongs into artifacts: every claim
# and every read of the job carries its payload.
MAX_PAYLOAD = 4 * 1024 * 1024


@dataclass(eq=False, repr=False)
class Stage(Generic[P, R_co]):
    """The work that leaves one state. Its stored name is that state's.

    The decorated function stays callable, so a test may call it with a `Run` of its own.
    """

    flow: Flow[P]
    state: str
    function: Callable[[Run[P]], Any]
    during: str | None
    to: str | None
    retry: Backoff | None
    timeout: Duration
    limit: Limit | None
    rate: Rate | None
    isolate: str | None
    transaction: bool
    queue: str | None
    undo_function: Callable[[Run[P]], object] | None = None
    undo_wait: Duration | None = None
    before_function: Callable[[Run[P]], Any] | None = None

    def __call__(self, run: Run[P]) -> Any:
        return self.function(run)

    @overload
    def undo(self, function: Undo[P], /) -> Undo[P]: ...
    @overload
    def undo(self, /, *, wait: Duration) -> Callable[[Undo[P]], Undo[P]]: ...
    def undo(self, function: Undo[P] | None = None, /, *, wait: Duration | None = None) -> Any:
        """Declare how this stage is taken back.

        It runs when the job gives up, is cancelled, is refused at a gate or expires, if the stage
        has started. It may run more than once and must succeed when nothing is to undo. After a
        lapse the lost run may still be working somewhere, so the undo waits for the stage's
        timeout, or for `wait` if it is less.
        """

        def declare(function: Undo[P]) -> Undo[P]:
            self.flow.must_be_open()
            if self.undo_function is not None:
                raise FlowError(
                    f'{self.flow.name}: stage "{self.state}" has two undos; keep one function'
                )
            self.undo_function, self.undo_wait = function, wait
            return function

        return declare if function is None else declare(function)

    def before(self, function: Callable[[Run[P]], Any]) -> Callable[[Run[P]], Any]:
        """Declare what is called before the stage, leased in its source state and without a slot.

        None goes on: the job enters the busy state with its slot, or is parked where it stands
        until there is one, and this is called again then. A `Hold`, `Goto`, `RetryLater` or an
        exception ends the run from the source state.
        """
        self.flow.must_be_open()
        if self.before_function is not None:
            raise FlowError(
                f'{self.flow.name}: stage "{self.state}" has two functions before it; keep one'
            )
        self.before_function = function
        return function

    @property
    def pool(self) -> Pool:
        """Where the stage runs: on the loop, in a thread, or in a process of its own."""
        return "process" if self.isolate == "process" else pool_of(self.function)

    def __repr__(self) -> str:
        return f"<stage {self.flow.name}/{self.state}>"


class StageDecorator(Protocol[P]):
    """Turns a function into a stage of the type of its result: a `Goto`, `Hold` or `RetryLater` is
    none."""

    @overload
    def __call__(
        self, function: Callable[[Run[P]], Awaitable[R | Goto | Hold | RetryLater]], /
    ) -> Stage[P, R]: ...
    @overload
    def __call__(
        self, function: Callable[[Run[P]], R | Goto | Hold | RetryLater], /
    ) -> Stage[P, R]: ...


@dataclass(frozen=True, slots=True, eq=False)
class Gate(Generic[D]):
    """A planned question to a person, asked in one state."""

    flow_name: str
    state: str
    choices: Mapping[str, str]
    data: type[D] | None
    by: frozenset[str]
    not_by: frozenset[str | Submitter]
    deadline: Duration | None
    on_expiry: str | None
    refusals: frozenset[str] | None


@dataclass(frozen=True, slots=True, eq=False)
class Wait(Generic[D]):
    """A state in which time or a signal decides."""

    flow_name: str
    state: str
    signal: str | None
    to: str | None
    data: type[D] | None
    deadline: Duration | None
    on_expiry: str | None


@dataclass(slots=True)
class Declared:
    """What the decorators of one flow have collected, in the order they were written."""

    stages: list[Stage[Any, Any]] = field(default_factory=list)
    gates: list[Gate[Any]] = field(default_factory=list)
    waits: list[Wait[Any]] = field(default_factory=list)


class FlowOptions(TypedDict, total=False):
    """The options of a flow, for type checkers; `Flow` says what each means."""

    version: int
    queue: str | None
    retry: int | Backoff
    transient: Collection[type[BaseException]]
    permanent: Collection[type[BaseException]]
    holds_on: Collection[type[BaseException]]
    dedup: Dedup | None
    operator_retry: Backoff | None
    retries_permanent: bool
    retry_via: str | None
    on_lapse: str | None
    max_lapses: int
    max_payload: int
    expires: Duration | None
    undo_retry: int | Backoff
    proofs: bool
    secret: Collection[str]
    secret_results: Collection[str]
    schema: int
    upgrade: Callable[[int, Any], Any] | None
    unguessable_ids: bool
    fair: bool
    admission: Callable[[Intake], Duration | None] | None
    max_waiting: int | None
    on_end: EndJob | None
    owners: bool


class GateOptions(TypedDict, total=False):
    """The options of a gate, for type checkers; `Flow.gate` says what each means."""

    choices: Required[Mapping[str, str]]
    by: Collection[str]
    not_by: str | Submitter | Collection[str | Submitter]
    deadline: Duration | None
    on_expiry: str | None
    refusals: Collection[str] | None


class WaitOptions(TypedDict, total=False):
    """The options of a wait, for type checkers; `Flow.wait` says what each means."""

    signal: str | None
    to: str | None
    after: Duration | None
    deadline: Duration | None
    on_expiry: str | None


class Flow(Generic[P]):
    """One kind of job: its lifecycle, its payload, and the functions that move it.

    A flow is a plain value until an engine registers it; then it is checked whole, and a
    declaration that cannot work is refused with a sentence that says how to mend it.

    Args:
        name: Stored with every job; renaming a flow orphans its jobs.
        payload: A dataclass, msgspec or pydantic class, or nothing for plain JSON.
        version: Stored with every job. An old job finishes by the version it started with.
        queue: The queue of its stages, by default the flow's name.
        retry: The automatic retry of every stage that has none of its own.
        transient: Error classes that are worth a retry even if a wider class is permanent.
        permanent: Error classes that are never retried.
        holds_on: Error classes for which a person must look.
        dedup: When two submissions are the same job.
        operator_retry: How often and after which delays an operator may retry a failed job.
        retries_permanent: Whether an operator may retry a permanent failure.
        retry_via: A state that a run passes through which is retried, in the same commit; one
            that is cancelled or expires too, if the table has a move from there.
        on_lapse: A code that makes the loss of a worker a failed attempt.
        max_lapses: After so many lost workers at one stage the job is held.
        max_payload: How many bytes a payload may have as JSON; a larger one is refused.
        expires: How long a job may take from its submit to its end.
        undo_retry: The automatic retry of undos.
        proofs: Chain every move into the tenant's proofs.
        secret: Payload fields hidden on every surface.
        secret_results: Fields of the result that are, where it is an object.
        schema: The version of the payload's shape, stored with it.
        upgrade: Turns the plain data of an older schema into today's.
        unguessable_ids: Make job ids that tell nothing, for ids that are capabilities.
        fair: Take jobs from its tenants in turn, so that a crowd of one's keeps no other waiting.
        admission: Judges each new job: None takes it, a duration refuses it for so long. Called
            by every submit, not for spawned and scheduled jobs, nor for a repeat of a known one.
        max_waiting: How many jobs of a tenant may wait for the first stage before a submit is
            refused; submits that are under way together may exceed it.
        on_end: The job that is submitted in the commit that ends one of these: `OnEnd(...)`.
        owners: Keep who submitted a job, and who submitted it again under its dedup key, as its
            owners: `JobFilter(owner=...)` finds it by any of them.
    """

    @overload
    def __init__(
        self, name: str, lifecycle: Lifecycle, *, payload: type[P], **options: Unpack[FlowOptions]
    ) -> None: ...
    @overload
    def __init__(
        self: Flow[Any],
        name: str,
        lifecycle: Lifecycle,
        *,
        payload: None = None,
        **options: Unpack[FlowOptions],
    ) -> None: ...
    def __init__(
        self,
        name: str,
        lifecycle: Lifecycle,
        *,
        payload: type[P] | None = None,
        version: int = 1,
        queue: str | None = None,
        retry: int | Backoff = 3,
        transient: Collection[type[BaseException]] = (),
        permanent: Collection[type[BaseException]] = (),
        holds_on: Collection[type[BaseException]] = (),
        dedup: Dedup | None = None,
        operator_retry: Backoff | None = None,
        retries_permanent: bool = False,
        retry_via: str | None = None,
        on_lapse: str | None = None,
        max_lapses: int = 20,
        max_payload: int = MAX_PAYLOAD,
        expires: Duration | None = None,
        undo_retry: int | Backoff = 5,
        proofs: bool = False,
        secret: Collection[str] = (),
        secret_results: Collection[str] = (),
        schema: int = 1,
        upgrade: Callable[[int, Any], Any] | None = None,
        unguessable_ids: bool = False,
        fair: bool = False,
        admission: Callable[[Intake], Duration | None] | None = None,
        max_waiting: int | None = None,
        on_end: EndJob | None = None,
        owners: bool = False,
    ) -> None:
        self.name = name
        self.lifecycle = lifecycle
        self.payload = payload
        self.version = version
        self.queue = name if queue is None else queue
        self.retry = as_backoff(retry)
        self.transient = tuple(transient)
        self.permanent = tuple(permanent)
        self.holds_on = tuple(holds_on)
        self.dedup = dedup
        self.operator_retry = operator_retry
        self.retries_permanent = retries_permanent
        self.retry_via = retry_via
        self.on_lapse = on_lapse
        self.max_lapses = max_lapses
        self.max_payload = max_payload
        self.expires = expires
        self.undo_retry = as_backoff(undo_retry)
        self.proofs = proofs
        self.secret = frozenset(secret)
        self.secret_results = frozenset(secret_results)
        self.schema = schema
        self.upgrade = upgrade
        self.unguessable_ids = unguessable_ids
        self.fair = fair
        self.admission = admission
        self.max_waiting = max_waiting
        self.on_end = on_end
        self.owners = owners
        self.declared = Declared()
        self._table: Table | None = None

    @classmethod
    def steps(
        cls,
        name: str,
        *functions: Callable[[Run[P]], Any] | tuple[str, Callable[[Run[P]], Any]],
        payload: type[P] | None = None,
        **options: Unpack[FlowOptions],
    ) -> Flow[P]:
        """Make a linear flow: one stage after the other, then `done`.

        Each function's name is stored as its state; `("state", function)` names it apart, so
        that the function may be renamed later. `options` are those of `Flow`.
        """
        named = [f if isinstance(f, tuple) else (f.__name__, f) for f in functions]
        if not named:
            raise FlowError(f"{name}: steps needs at least one function")
        states = [state for state, _ in named] + ["done"]
        moves = {a: [b] for a, b in itertools.pairwise(states)}
        lifecycle = Lifecycle(states[0], moves)
        flow: Flow[P] = cls(name, lifecycle, payload=payload, **options)
        for state, function in named:
            flow.stage(state)(function)
        return flow

    def stage(
        self,
        state: str,
        *,
        during: str | None = None,
        to: str | None = None,
        retry: int | Backoff | None = None,
        timeout: Duration = DEFAULT_TIMEOUT,
        limit: Limit | None = None,
        rate: Rate | None = None,
        isolate: Literal["process"] | None = None,
        transaction: bool = False,
        queue: str | None = None,
    ) -> StageDecorator[P]:
        """Declare the work that leaves `state`.

        The function is run at least once; the move it leads to is counted once. It returns its
        result, or a `Goto`, `Hold` or `RetryLater`; it raises to fail.

        Args:
            during: A state of its own while it runs, entered durably before the function starts.
            to: Where it goes; may be left out when the table leaves one way.
            retry: Replaces the flow's `retry`.
            timeout: An async stage is cancelled and a process killed then; a thread is asked.
            limit: How many runs there may be at once over all workers.
            rate: How many runs there may be in a span of time over all workers.
            isolate: "process" runs it in a child of its own, whose death touches this job only.
            transaction: `run.connection` is the transaction in which its move commits, so that
                rows written with it and the move are one; for stores that can.
            queue: Replaces the flow's queue.
        """

        own = None if retry is None else as_backoff(retry)
        options = (during, to, own, timeout, limit, rate, isolate, transaction, queue)

        def declare(function: Callable[[Run[P]], Any]) -> Stage[P, Any]:
            self.must_be_open()
            made: Stage[P, Any] = Stage(self, state, function, *options)
            self.declared.stages.append(made)
            return made

        return declare

    @overload
    def gate(self, state: str, *, data: type[D], **options: Unpack[GateOptions]) -> Gate[D]: ...
    @overload
    def gate(
        self, state: str, *, data: None = None, **options: Unpack[GateOptions]
    ) -> Gate[Any]: ...
    def gate(
        self,
        state: str,
        *,
        choices: Mapping[str, str],
        data: type[Any] | None = None,
        by: Collection[str] = (),
        not_by: str | Submitter | Collection[str | Submitter] = (),
        deadline: Duration | None = None,
        on_expiry: str | None = None,
        refusals: Collection[str] | None = None,
    ) -> Gate[Any]:
        """Declare a question to a person, asked in `state` and answered by `engine.decide`.

        Args:
            choices: The possible answers and the state each leads to.
            data: What the answer may carry.
            by: The roles that may answer; empty means anyone.
            not_by: Who may not, `SUBMITTER` for whoever submitted the job.
            deadline: How long the question stands.
            on_expiry: Where the job goes when nobody answered in time.
            refusals: The choices that undo what was done so far; by default those that lead to
                a failed, cancelled or expired state.
        """
        self.must_be_open()
        barred = (not_by,) if isinstance(not_by, str | Submitter) else tuple(not_by)
        made: Gate[Any] = Gate(
            self.name, state, dict(choices), data, frozenset(by), frozenset(barred), deadline,
            on_expiry, None if refusals is None else frozenset(refusals),
        )  # fmt: skip
        self.declared.gates.append(made)
        return made

    @overload
    def wait(self, state: str, *, data: type[D], **options: Unpack[WaitOptions]) -> Wait[D]: ...
    @overload
    def wait(
        self, state: str, *, data: None = None, **options: Unpack[WaitOptions]
    ) -> Wait[Any]: ...
    def wait(
        self,
        state: str,
        *,
        signal: str | None = None,
        to: str | None = None,
        data: type[Any] | None = None,
        after: Duration | None = None,
        deadline: Duration | None = None,
        on_expiry: str | None = None,
    ) -> Wait[Any]:
        """Declare a state in which time or a signal decides.

        `wait(s, signal="paid", to="paid", deadline=..., on_expiry="abandoned")` waits for
        `engine.signal`; `wait(s, after=timedelta(hours=1), to="checked")` for the clock. On a
        final state it says when the job leaves it by itself.
        """
        self.must_be_open()
        if after is not None:
            deadline, on_expiry = after, on_expiry or to
        made: Wait[Any] = Wait(self.name, state, signal, to, data, deadline, on_expiry)
        self.declared.waits.append(made)
        return made

    @property
    def table(self) -> Table:
        """The checked table, by which every decision is made; `FlowError`: the declaration cannot
        work."""
        if self._table is None:
            from ulak.core.table import build

            self._table = build(self)
        return self._table

    def must_be_open(self) -> None:
        """Refuse further declarations once the flow was checked: jobs may already follow it."""
        if self._table is not None:
            raise FlowError(
                f"{self.name}: the flow is already registered with an engine; "
                "declare every stage, gate and undo before connecting it"
            )

    def mermaid(self) -> str:
        """Draw the lifecycle as a Mermaid state diagram."""
        from ulak.core.table import mermaid

        return mermaid(self)

    def __repr__(self) -> str:
        return f"<flow {self.name} version {self.version}>"


def pool_of(function: Callable[..., Any]) -> Pool:
    """Return where a function can run: coroutines on the loop, everything else in a thread."""
    return "loop" if inspect.iscoroutinefunction(function) else "thread"


def names(items: Sequence[str]) -> str:
    """Write states for a sentence: "a", "b" or "c"."""
    quoted = [f'"{item}"' for item in items]
    if len(quoted) < 2:
        return "".join(quoted) or "nothing"
    return ", ".join(quoted[:-1]) + f" or {quoted[-1]}"
