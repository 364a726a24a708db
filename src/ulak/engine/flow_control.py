"""What operators change while everything runs: limits, rates, pauses, stops and weights, all
audited."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from ulak.clock import (
    Duration,
    Instant,
    duration_complaint,
    micros,
    read_micros,
    rfc3339,
    to_datetime,
    to_instant,
)
from ulak.core.acts import must_act
from ulak.core.admission import EVERY_TENANT, StopRow
from ulak.core.bounds import storable_key
from ulak.core.flow import Flow, names
from ulak.core.job import queue_of
from ulak.core.policy import Rate
from ulak.engine.ports import Apart
from ulak.errors import BadInput, NotSupported, UnknownName
from ulak.store.flow_control import FLOW, HEAVIEST, KEY, QUEUE, is_keyed, stage_of
from ulak.store.protocol import Features, JobFilter, LimitRow, PauseRow, RateRow, Store

if TYPE_CHECKING:
    from ulak.engine.kernel import Kernel

T = TypeVar("T")


RETRY_AFTER = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class StageLimit:
    """How many runs of a stage, or jobs in its busy state, there may be at once: of the stage, or
    of each key of it."""

    name: str
    n: int
    declared: int
    """What the flow declares; for a single key, what the other keys have."""
    keyed: bool
    actor: str | None
    """Who has set `n`; None while it is what the flow declares."""
    at: datetime
    key: str | None = None
    """The one key that has this limit; None for the limit of the stage, or of each key of it."""


@dataclass(frozen=True, slots=True)
class StageRate:
    """How many tokens the bucket of a stage, or of each key of it, gets in a span of time."""

    name: str
    n: int
    per: timedelta
    burst: int
    declared: tuple[int, timedelta, int]
    actor: str | None
    """Who has set the rate; None while it is what the flow declares."""
    at: datetime


@dataclass(frozen=True, slots=True)
class Pause:
    """No job of this queue, flow or key is begun until the end of the pause."""

    kind: str
    name: str
    until: datetime | None
    """When it ends by itself; None means that somebody must resume."""
    actor: str
    note: str | None
    at: datetime
    replaces: Pause | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """A flow takes no new jobs, of one tenant or of all (`*`); submits are refused."""

    flow: str
    tenant: str
    retry_after: timedelta
    actor: str
    note: str | None
    at: datetime


@dataclass(frozen=True, slots=True)
class Weight:
    """How many turns a tenant of fair flows has for each turn of others."""

    tenant: str
    weight: int
    actor: str
    at: datetime


class FlowControl:
    """`engine.flow_control`: each verb is one transaction, its line of audit included."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def apart(self, queue: str, *, workers: int = 1, lease: Duration | None = None) -> None:
        """Have `ulak up` serve a queue by processes of its own, and not beside the API.

        For stages whose crash or hunger would harm what runs beside them. Said again, the last word
        counts. `ulak worker` and `engine.working` serve what they are told, this queue too. Each of
        the `workers` has places of its own; `lease` is how long the jobs of a vanished one stay
        taken, instead of `--lease`. `BadInput`: nobody would serve it.
        """
        if workers < 1:
            raise BadInput(f'{workers} workers cannot serve the queue "{queue}"; 1 or more can')
        if lease is not None:
            read_micros(lease, "lease=")
        self._kernel.queues_apart[queue] = Apart(workers, lease)

    def set_limit(
        self,
        name: str,
        n: int | None,
        *,
        key: str | None = None,
        actor: str,
        note: str = "",
        connection: Any = None,
    ) -> StageLimit:
        """Set how many runs of a stage, or jobs in its busy state, there may be at once.

        In force at once, in every process, and after a restart. A lowered limit drains: what runs
        ends its stage.

        Args:
            name: The limit, `flow/state`.
            n: How many; of a limit with a key, for each key. 0 lets nobody begin. None goes back
                to what the flow declares; with `key=`, to what the other keys have.
            key: Set it for this key alone.
            connection: Your own open transaction (sqlite3, psycopg or SQLAlchemy), to act in: it
                is in force when you commit. Every verb that changes something takes one.

        `UnknownName`: there is no such limit. `BadInput`: `n` is negative, or the limit has no
        keys.
        """
        if n is not None and n < 0:
            raise BadInput(f"a limit of {n} makes no sense; 0 lets nobody begin")
        who = must_act(actor, note)
        if key is not None:
            storable_key(key, f'set_limit: the key of "{name}"')

        def act(store: Store) -> StageLimit:
            row = store.change_limit(name, n, actor=who, note=note, key=key)
            if row is not None:
                return _limit(row)
            limits = store.limits()
            if any(limit.name == name for limit in limits):
                raise BadInput(f'the limit "{name}" has no keys; set it without key=')
            raise UnknownName(f'there is no limit "{name}"; there are {_list(limits)}')

        return self._steer("set_limit", connection, act)

    def limits(self) -> list[StageLimit]:
        """Return every limit and who has set it, single keys with a limit of their own too."""
        rows = self._kernel.open().store.limits()
        others = {row.name: row.n for row in rows}
        return [
            _limit(row._replace(declared=others[stage_of(row.name)]) if is_keyed(row.name) else row)
            for row in rows
            if stage_of(row.name) in others
        ]

    def set_rate(
        self, name: str, rate: Rate | None, *, actor: str, note: str = "", connection: Any = None
    ) -> StageRate:
        """Set the rate of a stage (`flow/state`), None for what its flow declares.

        In force at once, in every process, and after a restart. The bucket keeps its tokens; key
        and cost stay what the flow declares. `UnknownName`: there is no such rate. `BadInput`: it
        makes no sense.
        """
        terms = None
        if rate is not None:
            wrong = rate.complaint()
            if wrong is not None:
                raise BadInput(wrong)
            terms = rate.terms()
        who = must_act(actor, note)

        def act(store: Store) -> StageRate:
            row = store.change_rate(name, terms, actor=who, note=note)
            if row is None:
                raise UnknownName(f'there is no rate "{name}"; there are {_list(store.rates())}')
            return _rate(row)

        return self._steer("set_rate", connection, act)

    def rates(self) -> list[StageRate]:
        """Return every rate and who has set it."""
        return [_rate(row) for row in self._kernel.open().store.rates()]

    def pause(
        self,
        *,
        queue: str | None = None,
        flow: str | None = None,
        key: str | None = None,
        actor: str,
        note: str = "",
        until: datetime | Duration | None = None,
        connection: Any = None,
    ) -> Pause:
        """Let no job of a queue, a flow or a key be begun; what runs ends its stage.

        Pausing again sets another end; `replaces` is then the pause before. A worker learns of a
        pause with its next claim, within a second, and until then may go on to the next stage of a
        job that it has leased.

        Args:
            queue: The queue, or
            flow: the flow, in every version and queue, or
            key: the key of a limit or a rate, in every flow that has it.
            until: When it ends by itself, or after how long; without it, `resume` ends it.

        Raises:
            UnknownName: nobody knows such a queue or flow.
            BadInput: the end has passed.
        """
        kind, name = self._pausable(queue, flow, key)
        who = must_act(actor, note)

        def act(store: Store) -> Pause:
            now = store.clock.now()
            ends = None if until is None else _instant(until, now)
            if ends is not None and ends <= now:
                raise BadInput(f"a pause until {rfc3339(to_datetime(ends))} would be over already")
            self._must_be_known(store, kind, name)
            before = store.pause(kind, name, until=ends, actor=who, note=note)
            replaced = None if before is None else _pause(before)
            return _pause(PauseRow(kind, name, ends, who, note or None, now), replaced)

        return self._steer("pause", connection, act)

    def resume(
        self,
        *,
        queue: str | None = None,
        flow: str | None = None,
        key: str | None = None,
        actor: str,
        note: str = "",
        connection: Any = None,
    ) -> Pause:
        """End a pause; return what has ended. `UnknownName`: it is not paused."""
        kind, name = self._pausable(queue, flow, key)
        who = must_act(actor, note)

        def act(store: Store) -> Pause:
            ended = store.resume(kind, name, actor=who, note=note)
            if ended is None:
                known = names([f"{row.kind} {row.name}" for row in store.pauses()])
                raise UnknownName(f'the {kind} "{name}" is not paused; what is paused: {known}')
            return _pause(ended)

        return self._steer("resume", connection, act)

    def pauses(self) -> list[Pause]:
        """Return every pause that is not over."""
        return [_pause(row) for row in self._kernel.open().store.pauses()]

    def _pausable(self, queue: str | None, flow: str | None, key: str | None) -> tuple[str, str]:
        given = [(QUEUE, queue), (FLOW, flow), (KEY, key)]
        said = [(kind, name) for kind, name in given if name is not None]
        if len(said) != 1:
            raise BadInput("say one of queue=, flow= and key=")
        kind, name = said[0]
        return kind, storable_key(name, f"the {kind}")

    def _must_be_known(self, store: Store, kind: str, name: str) -> None:
        """Refuse to pause what nobody has heard of: a slip of the pen would pause nothing."""
        if kind == FLOW:
            known = {f.name for f in self._kernel.flows} | {c.flow for c in store.counts()}
        elif kind == QUEUE:
            lanes = {lane for f in self._kernel.flows for lane in f.table.lanes}
            lanes |= {lane for worker in store.workers() for lane in worker.lanes.split()}
            known = {queue_of(lane) for lane in lanes}
            if name not in known and store.list_jobs(JobFilter(queue=name), limit=1):
                return
        else:
            return
        if name not in known:
            raise UnknownName(f'there is no {kind} "{name}"; there are {names(sorted(known))}')

    def stop_accepting(
        self,
        flow: str,
        *,
        tenant: str = EVERY_TENANT,
        retry_after: Duration = RETRY_AFTER,
        actor: str,
        note: str = "",
        connection: Any = None,
    ) -> Stop:
        """Refuse new jobs of a flow, in every version, until `accept`: a submit raises
        `Overloaded`.

        In force at once, in every process, and after a restart. A repeat of a known job still gets
        that job; spawned and scheduled jobs are not refused. Stopping again sets another
        `retry_after`, which is how long a refused caller should wait. The tenant `*` is all of
        them. `UnknownName`: nobody knows such a flow; `BadInput`: something cannot be used.
        """
        who, wait_us = must_act(actor, note), read_micros(retry_after, "retry_after=")
        if tenant:
            storable_key(tenant, "the tenant")

        def act(store: Store) -> Stop:
            self._must_be_known(store, FLOW, flow)
            stop = StopRow(flow, tenant, wait_us, who, note or None, store.clock.now())
            store.stop_accepting(stop)
            return _stop(stop)

        return self._steer("stop_accepting", connection, act)

    def accept(
        self,
        flow: str,
        *,
        tenant: str = EVERY_TENANT,
        actor: str,
        note: str = "",
        connection: Any = None,
    ) -> Stop:
        """End a stop; return what has ended. `UnknownName`: the flow is not stopped for this
        tenant, or for all."""
        who = must_act(actor, note)

        def act(store: Store) -> Stop:
            ended = store.accept(flow, tenant, actor=who, note=note)
            if ended is None:
                known = names([f"{row.flow} for {row.tenant}" for row in store.stops()])
                raise UnknownName(
                    f'"{flow}" is not stopped for "{tenant}"; what is stopped: {known}'
                )
            return _stop(ended)

        return self._steer("accept", connection, act)

    def stops(self) -> list[Stop]:
        """Return every stop that is in force."""
        return [_stop(row) for row in self._kernel.open().store.stops()]

    def set_weight(
        self, tenant: str, weight: int | None, *, actor: str, note: str = "", connection: Any = None
    ) -> Weight | None:
        """Give a tenant so many turns, 1 to 1,000, in fair flows for each turn of others; None for
        one.

        `BadInput`: the weight is another number.
        """
        if weight is not None and not 1 <= weight <= HEAVIEST:
            raise BadInput(f"a weight of {weight} cannot be used; 1 to {HEAVIEST} can")
        who = must_act(actor, note)

        def act(store: Store) -> Weight | None:
            store.weigh(tenant, weight, actor=who, note=note)
            if weight is None:
                return None
            return Weight(tenant, weight, who, to_datetime(store.clock.now()))

        return self._steer("set_weight", connection, act)

    def weights(self) -> list[Weight]:
        """Return every weight that was set."""
        rows = self._kernel.open().store.weights()
        return [Weight(r.tenant, r.weight, r.actor, to_datetime(r.at)) for r in rows]

    def _steer(self, verb: str, connection: Any, act: Callable[[Store], T]) -> T:
        features = self._kernel.store.features
        if not features.flow_control:
            raise _cannot(features, "flow control")
        return self._kernel.acting_on(connection, f"flow_control.{verb}", act)


def refuse_if_unable(features: Features, flow: Flow[Any]) -> None:
    """Raise `NotSupported` for a flow that needs flow control of a store that has none."""
    table = flow.table
    if not features.flow_control and (
        flow.fair or table.keyed or table.rates or table.keeps or table.asks
    ):
        what = "a key, a rate, a limit of a state, fair=True or admission"
        raise _cannot(features, f"{flow.name}: {what}")


def _cannot(features: Features, what: str) -> NotSupported:
    return NotSupported(
        f"{what} is not to be had from the {features.name} store; connect to SQLite or PostgreSQL"
    )


def _instant(until: datetime | Duration, now: Instant) -> Instant:
    if not isinstance(until, datetime):
        wrong = duration_complaint(until)
        if wrong is not None:
            raise BadInput(f"until= cannot be used: {wrong}")
        return now + micros(until)
    if until.tzinfo is None:
        raise BadInput(f"until={until} has no time zone; say which it is")
    return to_instant(until)


def _limit(row: LimitRow) -> StageLimit:
    stage = stage_of(row.name)
    key = row.name.removeprefix(f"{stage}/") if is_keyed(row.name) else None
    return StageLimit(
        stage, row.n, row.declared, bool(row.keyed), row.actor, to_datetime(row.at), key
    )


def _rate(row: RateRow) -> StageRate:
    declared = (row.declared_n, _span(row.declared_per_us), row.declared_burst)
    return StageRate(
        row.name, row.n, _span(row.per_us), row.burst, declared, row.actor, to_datetime(row.at)
    )


def _span(microseconds: int) -> timedelta:
    return timedelta(microseconds=microseconds)


def _pause(row: PauseRow, replaces: Pause | None = None) -> Pause:
    until = None if row.until_at is None else to_datetime(row.until_at)
    return Pause(row.kind, row.name, until, row.actor, row.note, to_datetime(row.at), replaces)


def _stop(row: StopRow) -> Stop:
    wait = _span(row.retry_after_us)
    return Stop(row.flow, row.tenant, wait, row.actor, row.note, to_datetime(row.at))


def _list(rows: list[LimitRow] | list[RateRow]) -> str:
    return names([row.name for row in rows if not is_keyed(row.name)]) if rows else "none"
