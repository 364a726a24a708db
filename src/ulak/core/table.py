"""The table that a checked flow is decided by: for every state, what may happen there."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ulak.clock import micros
from ulak.core import checks
from ulak.core.flow import Flow, Gate, Stage, Wait, pool_of
from ulak.core.job import BY_ENTRY, OF_STATE, JobRow, is_of_state, lane_for, lane_of
from ulak.core.lifecycle import (
    BUSY,
    DONE,
    FAILED,
    FINAL,
    HELD,
    READY,
    UNDOING,
    WAITING,
    Role,
    Same,
    ends_of,
    moves_of,
)
from ulak.core.policy import Backoff, LimitTerms, RateTerms

SLOT, RATE, COST = "slot", "rate", "cost"

NO_KEY = ""
"""The key of jobs that were submitted before their flow asked for one; they share it."""


@dataclass(frozen=True, slots=True)
class Place:
    """What the engine may do with a job that stands in one state."""

    state: str
    role: Role
    stage: Stage[Any, Any] | None = None
    gate: Gate[Any] | None = None
    wait: Wait[Any] | None = None
    to: str | None = None
    """Where the stage goes by itself; None when it must say so with a `Goto`."""
    ways: tuple[str, ...] = ()
    during: str | None = None
    """The busy state that the claim of this stage enters; None in that state itself."""
    enters: str | None = None
    """The busy state that is entered when the stage's `before` lets the job pass."""
    lane: str = ""
    slot: str | None = None
    rate: str | None = None
    cost: int = 0
    """The tokens of a run, if they are the same for every payload."""
    keys_slot: bool = False
    keys_rate: bool = False
    is_particular: bool = False
    """Lane, slot, rate or cost are not the same for every job: `needs_of` answers them."""
    retry: Backoff | None = None
    timeout_us: int = 0
    undo_wait_us: int = 0
    """How long after a lost run began an undo may begin."""
    has_undo: bool = False
    awaits: str | None = None
    deadline_us: int | None = None
    is_final: bool = False


class Needs(NamedTuple):
    """What a claim must have for one run of a stage."""

    lane: str
    slot: str | None
    rate: str | None
    cost: int


@dataclass(frozen=True, slots=True)
class Table:
    """A flow, resolved: nothing here needs the declaration again."""

    places: Mapping[str, Place]
    legal: frozenset[tuple[str, str]]
    undo_lanes: Mapping[str, str]
    """For each stage with an undo, the lane in which that undo is claimed."""
    retry_to: str | Same
    limits: Mapping[str, LimitTerms]
    rates: Mapping[str, RateTerms]
    keyed: bool
    entries: Mapping[str, str]
    """The busy state that a claim enters, for each state that has one."""
    keeps: frozenset[str]
    """Those of `entries` whose busy state has slots of its own."""
    lanes: frozenset[str]
    straight: Mapping[str, Place]
    """Where a stage that returns nothing leads, if that is all there is to such a move."""
    asks: bool = False
    """Whether a submit asks the flow if it takes the job now."""


def needs_of(place: Place, tenant: str, keys: str | None) -> Needs:
    lane = lane_for(place.lane, tenant)
    if place.stage is None or not (place.slot or place.rate):
        return Needs(lane, None, None, 0)
    own = {} if keys is None else json.loads(keys).get(place.stage.state, {})
    slot, rate = place.slot, place.rate
    if place.keys_slot:
        slot = f"{slot}/{own.get(SLOT, NO_KEY)}"
    if place.keys_rate:
        rate = f"{rate}/{own.get(RATE, NO_KEY)}"
    cost = place.cost
    if rate is not None and not cost:
        cost = own.get(COST, 1)
    return Needs(lane, slot, rate, cost)


def find_missing(table: Table, job: JobRow) -> str | None:
    """Return the state or the stage of a job that this version of its flow lacks, if there is one.
    A program of another version has put it there. Such a job is left to programs that know its
    state."""
    if not knows(table, job.state, job.role):
        return job.state
    if not job.started and job.undo_to is None:
        return None
    owed = job.started.split()
    missing = [stage for stage in owed if stage not in table.undo_lanes]
    named = [job.undo_to, job.resume] if owed else [job.undo_to]
    missing += [state for state in named if state is not None and state not in table.places]
    return missing[0] if missing else None


def kept_entries(flows: Iterable[Flow[Any]]) -> frozenset[tuple[str, int, str]]:
    """Return the (flow, version, state) of stages whose busy state has slots of its own."""
    return frozenset((f.name, f.version, state) for f in flows for state in f.table.keeps)


def enterable(table: Table, place: Place) -> Place:
    """Return the place itself, or the one before a busy state that only its stage may enter,
    because it has slots of its own or its stage has a `before`."""
    if place.stage is None or place.role != BUSY:
        return place
    if not is_of_state(place.slot) and place.stage.before_function is None:
        return place
    return table.places[place.stage.state]


def knows(table: Table, state: str, role: str) -> bool:
    """Tell whether a state is declared, and does what it did for the program that stored it."""
    place = table.places.get(state)
    return place is not None and role in (place.role, UNDOING)


def build(flow: Flow[Any]) -> Table:
    """Check a flow and resolve it, or raise `FlowError` naming the flow, the state and the cure."""
    checks.check(flow)
    roles = checks.roles_of(flow)
    places = {state: _place(flow, state, role) for state, role in roles.items()}
    stages = flow.declared.stages
    undo_lanes = {
        stage.state: _lane(flow, stage, flow.queue, pool_of(stage.undo_function))
        for stage in stages
        if stage.undo_function is not None
    }
    retry_to = flow.lifecycle.retry_to
    if retry_to is None:
        retry_to = flow.lifecycle.initial if undo_lanes else Same()
    return Table(
        places=places,
        legal=_legal(flow, roles, retry_to),
        undo_lanes=undo_lanes,
        retry_to=retry_to,
        limits={
            slot_name(flow, stage): LimitTerms(
                stage.limit.n,
                stage.limit.key is not None,
                stage.during if stage.limit.of == "state" else None,
                _slot_mark(stage, stage.state),
            )
            for stage in stages
            if stage.limit is not None
        },
        rates={slot_name(flow, s): s.rate.terms() for s in stages if s.rate is not None},
        keyed=any(
            place.keys_slot or place.keys_rate or (place.rate is not None and not place.cost)
            for place in places.values()
        ),
        entries={
            s.state: s.during for s in stages if s.during is not None and s.before_function is None
        },
        keeps=frozenset(s.state for s in stages if s.limit is not None and s.limit.of == "state"),
        straight=_straight(flow, places),
        lanes=frozenset(p.lane for p in places.values() if p.lane) | set(undo_lanes.values()),
        asks=flow.admission is not None or flow.max_waiting is not None,
    )


def _straight(flow: Flow[Any], places: Mapping[str, Place]) -> dict[str, Place]:
    """Find the moves that free nothing, take nothing, wait for nothing and owe nothing."""
    if flow.proofs or flow.fair:
        return {}
    if any(stage.undo_function is not None for stage in flow.declared.stages):
        return {}
    ways = {
        state: places[place.to]
        for state, place in places.items()
        if place.stage is not None and place.slot is None and place.to in place.ways
    }
    return {
        state: to
        for state, to in ways.items()
        if (to.role == READY or (to.role == DONE and flow.on_end is None))
        and (to.slot, to.rate, to.during, to.wait, to.deadline_us) == (None,) * 5
    }


def slot_name(flow: Flow[Any], stage: Stage[Any, Any]) -> str:
    """Name the limit or the rate of a stage, as every table holds it; keys come after a slash."""
    return f"{flow.name}/{stage.state}"


def _place(flow: Flow[Any], state: str, role: Role) -> Place:
    moves = moves_of(flow.lifecycle)
    wait = next((w for w in flow.declared.waits if w.state == state), None)
    deadline = None if wait is None else wait.deadline
    gate = next((g for g in flow.declared.gates if g.state == state), None)
    if gate is not None:
        deadline = gate.deadline
    stage = next((s for s in flow.declared.stages if state in (s.state, s.during)), None)
    if stage is None:
        return Place(
            state, role, gate=gate, wait=wait, awaits=wait.signal if wait else None,
            deadline_us=None if deadline is None else micros(deadline), is_final=role in FINAL,
        )  # fmt: skip
    origin = stage.during or stage.state
    enters = None
    if stage.before_function is not None and state == stage.state:
        enters, origin = stage.during, state
    ways = tuple(way for way in moves.get(origin, ()) if way != enters)
    onward = [s for s in ways if s not in ends_of(flow.lifecycle)] or list(ways)
    to = stage.to or (onward[0] if len(onward) == 1 else None)
    limit, rate = stage.limit, stage.rate
    keys_slot = limit is not None and limit.key is not None
    keys_rate = rate is not None and rate.key is not None
    fixed_cost = rate is None or isinstance(rate.cost, int)
    return Place(
        state,
        role,
        stage=stage,
        to=to if enters is None else None,
        ways=ways,
        during=stage.during if state == stage.state and enters is None else None,
        enters=enters,
        lane=_lane(flow, stage, stage.queue or flow.queue, stage.pool),
        slot=None if limit is None else _slot_mark(stage, state) + slot_name(flow, stage),
        rate=None if rate is None else slot_name(flow, stage),
        cost=rate.cost if rate is not None and isinstance(rate.cost, int) else 0,
        keys_slot=keys_slot,
        keys_rate=keys_rate,
        is_particular=flow.fair or keys_slot or keys_rate or not fixed_cost,
        retry=stage.retry or flow.retry,
        timeout_us=micros(stage.timeout),
        undo_wait_us=micros(stage.timeout if stage.undo_wait is None else stage.undo_wait),
        has_undo=stage.undo_function is not None,
    )


def _lane(flow: Flow[Any], stage: Stage[Any, Any], queue: str, pool: str) -> str:
    return lane_of(queue, pool, flow.name, flow.version, stage.state, fair=flow.fair)


def _slot_mark(stage: Stage[Any, Any], state: str) -> str:
    if state == stage.state:
        return "" if stage.before_function is None else BY_ENTRY
    return OF_STATE if stage.limit is not None and stage.limit.of == "state" else ""


def _legal(
    flow: Flow[Any], roles: Mapping[str, Role], retry_to: str | Same
) -> frozenset[tuple[str, str]]:
    """Every move that may ever be written, the declared ones and those that roles imply."""
    lifecycle = flow.lifecycle
    legal = {(a, b) for a, ways in moves_of(flow.lifecycle).items() for b in ways}
    unfinished = {s for s, role in roles.items() if role not in FINAL}
    legal |= {(a, b) for a in unfinished for b in ends_of(lifecycle) if a != b}
    workable = {s for s, role in roles.items() if role in (READY, BUSY, WAITING, HELD)}
    workable -= {lifecycle.held}
    if any(s.undo_function is not None for s in flow.declared.stages):
        # A refusal at a gate reaches its end only after the undos, from where they ran.
        refused = {g.choices[c] for g in flow.declared.gates for c in checks.refusals_of(flow, g)}
        origins = unfinished if lifecycle.undoing is None else {lifecycle.undoing, lifecycle.held}
        legal |= {(a, b) for a in origins for b in refused if a != b}
        if lifecycle.undoing is None:
            # A held job is undone in the state it was held from.
            legal |= {(lifecycle.held, b) for b in workable}
    release_to = lifecycle.release_to
    released = workable if isinstance(release_to, Same) else {release_to}
    retried = workable if isinstance(retry_to, Same) else {retry_to}
    legal |= {(lifecycle.held, b) for b in released}
    dead = [s for s, role in roles.items() if role == FAILED]
    legal |= {(a, b) for a in dead for b in retried}
    if flow.retry_via is not None:
        for stage in flow.declared.stages:
            legal.add((stage.during or stage.state, flow.retry_via))
            legal.add((flow.retry_via, stage.state))
            if stage.before_function is not None:
                legal.add((stage.state, flow.retry_via))
    return frozenset(legal)


def mermaid(flow: Flow[Any]) -> str:
    """Draw a flow as a Mermaid state diagram: the declared moves, and what makes each."""
    table = flow.table
    moves = moves_of(flow.lifecycle)
    shown = dict.fromkeys([flow.lifecycle.initial])
    for state, ways in moves.items():
        shown.update(dict.fromkeys([state, *ways]))
    alias = {state: f"s{n}" for n, state in enumerate(shown)}
    lines = ["stateDiagram-v2"]
    lines += [
        f'    state "{state} ({table.places[state].role})" as {alias[state]}' for state in shown
    ]
    lines.append(f"    [*] --> {alias[flow.lifecycle.initial]}")
    for state, ways in moves.items():
        for to in ways:
            label = _label(flow, state, to)
            lines.append(f"    {alias[state]} --> {alias[to]}" + (f" : {label}" if label else ""))
    lines += [f"    {alias[s]} --> [*]" for s in shown if table.places[s].role in FINAL]
    undos = [s.state for s in flow.declared.stages if s.undo_function is not None]
    if undos:
        last = alias[flow.lifecycle.initial]
        # On lines of its own: Mermaid ends a note of one line at its second colon.
        lines.append(f"    note right of {last}")
        lines.append(f"        undone in reverse order, if started - {', '.join(undos)}")
        lines.append("    end note")
    return "\n".join(lines) + "\n"


def _label(flow: Flow[Any], state: str, to: str) -> str:
    place = flow.table.places[state]
    if place.gate is not None:
        choices = [c for c, target in place.gate.choices.items() if target == to]
        if place.gate.on_expiry == to:
            choices.append("deadline")
        return ", ".join(choices)
    if place.wait is not None:
        said = [place.wait.signal] if place.wait.to == to and place.wait.signal else []
        return ", ".join([*said, *(["time"] if place.wait.on_expiry == to else [])])
    if place.stage is not None and place.stage.during != to:
        return getattr(place.stage.function, "__name__", "")
    return ""
