"""What can be wrong with a flow's declaration, each with the sentence that mends it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

from ulak.clock import Duration, duration_complaint, micros
from ulak.core import admission
from ulak.core.flow import Flow, Gate, Stage, names
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
    named_roles,
    states_of,
)
from ulak.core.policy import Backoff, Until
from ulak.errors import FlowError

Complaints = Iterator[str]

STORABLE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,99}")


def check(flow: Flow[Any]) -> None:
    """Raise `FlowError` for the first thing that cannot work, naming flow, state and cure."""
    for rule in _RULES:
        for complaint in rule(flow):
            raise FlowError(f"{flow.name}: {complaint}")


def roles_of(flow: Flow[Any]) -> dict[str, Role]:
    """Return every state of the flow with its role."""
    life = flow.lifecycle
    roles: dict[str, Role] = dict.fromkeys(states_of(flow.lifecycle), READY)
    roles.update({s.during: BUSY for s in flow.declared.stages if s.during is not None})
    roles.update({g.state: HELD for g in flow.declared.gates})
    roles.update({w.state: WAITING for w in flow.declared.waits})
    roles.update(named_roles(flow.lifecycle))
    if life.undoing is not None:
        roles[life.undoing] = UNDOING
    return roles


def refusals_of(flow: Flow[Any], gate: Gate[Any]) -> frozenset[str]:
    """Return the choices of a gate that undo what was done."""
    bad = {s for s, role in named_roles(flow.lifecycle).items() if role in FINAL and role != DONE}
    undone = frozenset(choice for choice, to in gate.choices.items() if to in bad)
    return undone if gate.refusals is None else undone | gate.refusals


def _names_are_storable(flow: Flow[Any]) -> Complaints:
    for what, name in [("flow", flow.name), ("queue", flow.queue)]:
        if not STORABLE_NAME.fullmatch(name):
            yield f"{what} name {name!r} cannot be stored; use letters, digits and . _ : - (100)"
    for state in states_of(flow.lifecycle):
        if not STORABLE_NAME.fullmatch(state):
            yield f"state {state!r} cannot be stored; use letters, digits and . _ : - (100)"
    if flow.version < 1 or flow.schema < 1:
        yield "version and schema count from 1"


def _the_table_knows_its_states(flow: Flow[Any]) -> Complaints:
    life, moves = flow.lifecycle, moves_of(flow.lifecycle)
    if life.initial not in moves:
        yield f'the initial state "{life.initial}" has no moves; give it a line in the table'
    if life.initial in named_roles(flow.lifecycle) or life.initial == life.undoing:
        text = f'a job cannot begin in "{life.initial}", where no work leaves it; '
        text += "begin in a state with a stage, a gate or a wait"
        yield text
    if not life.done_states():
        yield "no state means success; name at least one in done="
    roles: dict[str, str] = {}
    special = [(s, "done") for s in life.done_states()]
    special += [(life.held, "held"), (life.failed, "failed")]
    if life.expired != life.failed:
        special += [(life.expired, "expired")]
    if life.cancelled not in (life.expired, life.failed):
        special += [(life.cancelled, "cancelled")]
    special += [(s, n) for s, n in [(life.undoing, "undoing"), (life.undone, "undone")] if s]
    for state, role in special:
        if state in roles:
            yield f'"{state}" is both {roles[state]} and {role}; a state has one role'
        roles[state] = role
    for state in states_of(flow.lifecycle):
        if state not in moves and state not in roles:
            came = next(a for a, ways in moves.items() if state in ways)
            text = f'"{came}" may move to "{state}", which the table does not know; '
            text += f'give "{state}" a line of its own or name it in done='
            yield text


def _everything_is_reached(flow: Flow[Any]) -> Complaints:
    life, moves = flow.lifecycle, moves_of(flow.lifecycle)
    todo = {life.initial, *ends_of(life)}
    todo |= {s for s in (life.release_to, life.retry_to) if isinstance(s, str)}
    seen: set[str] = set()
    while todo:
        seen |= todo
        todo = {to for state in todo for to in moves.get(state, ())} - seen
    for state in [*moves, *life.done_states()]:
        if state not in seen:
            yield f'nothing leads to "{state}"; add a move to it or delete it'


def _stages_fit_the_table(flow: Flow[Any]) -> Complaints:
    life = flow.lifecycle
    moves, roles, known = moves_of(life), named_roles(life), set(states_of(life))
    taken: dict[str, str] = {}
    for stage in flow.declared.stages:
        state = stage.state
        if state not in known:
            text = f'there is a stage for "{state}", which the table does not know; '
            text += f"its states are {names(sorted(known))}"
            yield text
        if state in roles or state == flow.lifecycle.undoing:
            role = roles.get(state, UNDOING)
            yield f'"{state}" is {role} and has a stage, which would never run; delete it'
        if state in taken:
            yield f'"{state}" has two stages; a state is left by one'
        if not moves.get(state):
            yield f'there is a stage for "{state}" but no move leads out of it; add one'
        taken[state] = "stage"
    yield from _during_states_fit(flow, taken)
    yield from _stages_know_where_to_go(flow)


def _during_states_fit(flow: Flow[Any], taken: dict[str, str]) -> Complaints:
    moves, owners = moves_of(flow.lifecycle), dict[str, str]()
    asked = {g.state for g in flow.declared.gates} | {w.state for w in flow.declared.waits}
    for stage in flow.declared.stages:
        during = stage.during
        if during is None:
            continue
        if during in owners:
            text = f'"{during}" is the during state of "{owners[during]}" and of "{stage.state}"; '
            text += "it belongs to one stage"
            yield text
        owners[during] = stage.state
        if during not in moves.get(stage.state, ()):
            text = f'the stage for "{stage.state}" runs during "{during}", but the table has no '
            text += f'move "{stage.state}" to "{during}"; add it'
            yield text
        own = {*taken, *asked, *named_roles(flow.lifecycle), flow.lifecycle.undoing}
        if during in own or during == flow.lifecycle.initial:
            yield (
                f'"{during}" is a during state and cannot begin a job or have a stage, a gate, a '
                "wait or a role of its own; give it a name of its own"
            )
        if not moves.get(during):
            yield f'nothing leads out of "{during}"; add the move that its stage makes'
    yield from _limited_states_are_entered_by_their_stage(flow)


def _limited_states_are_entered_by_their_stage(flow: Flow[Any]) -> Complaints:
    moves, life = moves_of(flow.lifecycle), flow.lifecycle
    for stage in flow.declared.stages:
        is_limited = stage.limit is not None and stage.limit.of == "state"
        if is_limited and stage.during is None:
            text = f'the stage for "{stage.state}" has a Limit of="state" and no busy state to '
            text += 'count; name one with during=, or limit its runs with of="run"'
            yield text
        if stage.during is None or not (is_limited or stage.before_function is not None):
            continue
        why = 'has slots of its own (Limit of="state")' if is_limited else "is entered by a before"
        for state, ways in moves.items():
            if stage.during in ways and state != stage.state:
                yield (
                    f'"{state}" may move to "{stage.during}", which {why}: only its stage enters '
                    f'it; move to "{stage.state}" instead'
                )
        for option, target in [("release_to", life.release_to), ("retry_to", life.retry_to)]:
            if target == stage.during:
                text = f'{option}="{target}" names a state that {why}: only its stage enters it; '
                text += f'name "{stage.state}"'
                yield text


def _stages_know_where_to_go(flow: Flow[Any]) -> Complaints:
    moves, ends = moves_of(flow.lifecycle), ends_of(flow.lifecycle)
    for stage in flow.declared.stages:
        origin = stage.during or stage.state
        ways = moves.get(origin, ())
        if stage.to is not None and stage.to not in ways:
            yield (
                f'the stage for "{stage.state}" goes to "{stage.to}", but "{origin}" may move to '
                f"{names(ways)}"
            )
        if stage.to is None and not [w for w in ways if w not in ends] and len(ways) != 1:
            yield f'the stage for "{stage.state}" has no way on; add a move or say to='


def _stage_options_make_sense(flow: Flow[Any]) -> Complaints:
    for stage in flow.declared.stages:
        where = f'the stage for "{stage.state}"'
        if micros(stage.timeout) <= 0:
            yield f"{where} has a timeout of {stage.timeout}; it must be longer than nothing"
        if stage.undo_wait is not None and micros(stage.undo_wait) > micros(stage.timeout):
            yield (
                f'the undo of "{stage.state}" has wait={stage.undo_wait}, and a run of its stage '
                f"has ended after {stage.timeout}; say less, or leave wait= out"
            )
        if stage.limit is not None and stage.limit.n < 1:
            yield f"{where} has Limit({stage.limit.n}); at least one run must be allowed"
        if stage.limit is not None and stage.limit.of not in ("run", "state"):
            yield f'{where} has a Limit of={stage.limit.of!r}; say "run" or "state"'
        if stage.rate is not None:
            wrong = stage.rate.complaint()
            if wrong is not None:
                yield f"{where} has {wrong}"
        if stage.isolate not in (None, "process"):
            yield f'{where} has isolate={stage.isolate!r}; "process" is the only isolation'
        yield from _function_fits(stage, where)
        if stage.queue is not None and not STORABLE_NAME.fullmatch(stage.queue):
            yield f"{where} has the queue {stage.queue!r}; use letters, digits and . _ : -"
        yield from backoff_makes_sense(stage.retry, where)
    yield from backoff_makes_sense(flow.retry, "retry=")
    yield from backoff_makes_sense(flow.undo_retry, "undo_retry=")
    yield from backoff_makes_sense(flow.operator_retry, "operator_retry=")


def _durations_are_durations(flow: Flow[Any]) -> Complaints:
    for where, value in _durations(flow):
        wrong = None if value is None else duration_complaint(value)
        if wrong is not None:
            yield f"{where}: {wrong}"


def _durations(flow: Flow[Any]) -> Iterator[tuple[str, Duration | None]]:
    yield "expires=", flow.expires
    if flow.dedup is not None:
        yield "Dedup(keep=)", flow.dedup.keep
    backoffs: list[tuple[str, Backoff | None]] = [
        ("retry=", flow.retry), ("undo_retry=", flow.undo_retry),
        ("operator_retry=", flow.operator_retry),
    ]  # fmt: skip
    for stage in flow.declared.stages:
        yield f'the timeout of the stage for "{stage.state}"', stage.timeout
        yield f'wait= of the undo of "{stage.state}"', stage.undo_wait
        backoffs.append((f'retry= of the stage for "{stage.state}"', stage.retry))
    for gate in flow.declared.gates:
        yield f'the deadline of the gate in "{gate.state}"', gate.deadline
    for wait in flow.declared.waits:
        yield f'the time of the wait in "{wait.state}"', wait.deadline
    for where, backoff in backoffs:
        if backoff is not None:
            yield f"{where} has a delay", backoff.first
            yield f"{where} has a delay", backoff.longest
            for delay in backoff.delays or ():
                yield f"{where} has a delay", delay


def _function_fits(stage: Stage[Any, Any], where: str) -> Complaints:
    function, before = stage.function, stage.before_function
    is_async = inspect.iscoroutinefunction(function)
    if stage.isolate == "process" and is_async:
        yield f"{where} is async and isolated; a stage in a process of its own is a plain def"
    elif stage.isolate == "process" and "<" in getattr(function, "__qualname__", "<"):
        text = f"{where} is isolated but its function is not at the top of a module, so a child "
        text += "process cannot import it; move it there"
        yield text
    if before is not None and stage.during is None:
        yield f"{where} has a before and no busy state to enter after it; name one with during="
    elif before is not None and is_async != inspect.iscoroutinefunction(before):
        is_so, cure = ("a plain def", "async") if is_async else ("async", "a plain def")
        yield f"{where} has a before that is {is_so}, and the stage is not; make it {cure} as well"
    if stage.transaction and stage.isolate is not None:
        text = f"{where} has transaction=True and a process of its own, which cannot share a "
        text += "connection of the worker; keep one of the two"
        yield text
    elif stage.transaction and is_async:
        text = f"{where} has transaction=True and is async; the commit that it shares is "
        text += "synchronous, so make it a plain def, which runs in a thread"
        yield text


def backoff_makes_sense(backoff: Backoff | None, where: str) -> Complaints:
    """Find what is wrong with how something is tried again."""
    if backoff is None:
        return
    spans = [backoff.first, backoff.longest, *(backoff.delays or ())]
    jitter = backoff.jitter
    is_odd = jitter != "full" if isinstance(jitter, str) else jitter < 0
    if backoff.retries < 0 or backoff.factor < 1 or is_odd:
        yield f"{where} has {backoff}; retries and jitter are not negative, the factor is not < 1"
    elif any(micros(span) < 0 for span in spans):
        yield f"{where} has a negative delay; a retry cannot come before its failure"


def _every_state_has_a_way_on(flow: Flow[Any]) -> Complaints:
    moves, declared = moves_of(flow.lifecycle), flow.declared
    asked = [g.state for g in declared.gates] + [w.state for w in declared.waits]
    for state in asked:
        if asked.count(state) > 1 or state in {s.state for s in declared.stages}:
            yield f'"{state}" has two ways of being left; keep one stage, gate or wait'
    roles, undoing = roles_of(flow), flow.lifecycle.undoing
    served = {s.state for s in declared.stages} | {s.during for s in declared.stages} | set(asked)
    for state in moves:
        if state not in served and roles[state] == READY and state != undoing:
            yield f'nothing leads out of "{state}"; add a stage, a gate or a wait'


def _gates_fit_the_table(flow: Flow[Any]) -> Complaints:
    life = flow.lifecycle
    moves, roles, known = moves_of(life), named_roles(life), set(states_of(life))
    for gate in flow.declared.gates:
        where = f'the gate in "{gate.state}"'
        if gate.state not in known:
            yield f"{where} is not in the table; its states are {names(sorted(known))}"
        if gate.state in roles or gate.state == flow.lifecycle.undoing:
            role = roles.get(gate.state, UNDOING)
            yield f'{where} asks nobody: "{gate.state}" is {role}; ask in a state of its own'
        if not gate.choices:
            yield f"{where} has no choices; nobody could answer it"
        ways = (*moves.get(gate.state, ()), *ends_of(flow.lifecycle))
        for choice, to in gate.choices.items():
            if to not in ways:
                text = f'{where} lets "{choice}" lead to "{to}", but "{gate.state}" may move to '
                text += f"{names(moves.get(gate.state, ()))}"
                yield text
        if (gate.deadline is None) != (gate.on_expiry is None):
            yield f"{where} needs both deadline= and on_expiry=, or neither"
        if gate.deadline is not None and micros(gate.deadline) <= 0:
            yield f"{where} has a deadline of {gate.deadline}; give people some time"
        if gate.on_expiry is not None and gate.on_expiry not in ways:
            text = f'{where} expires to "{gate.on_expiry}", but "{gate.state}" may move to '
            text += f"{names(moves.get(gate.state, ()))}"
            yield text
        if gate.refusals is not None and not gate.refusals <= set(gate.choices):
            strange = sorted(gate.refusals - set(gate.choices))[0]
            yield f'{where} has no choice "{strange}" to refuse with; add it or drop the refusal'


def _waits_fit_the_table(flow: Flow[Any]) -> Complaints:
    moves, roles, known = moves_of(flow.lifecycle), roles_of(flow), set(states_of(flow.lifecycle))
    for wait in flow.declared.waits:
        where = f'the wait in "{wait.state}"'
        if wait.state not in known:
            yield f"{where} is not in the table; its states are {names(sorted(known))}"
            return
        final = roles[wait.state] in FINAL
        if wait.signal is None and wait.deadline is None:
            yield f"{where} waits for nothing; give it signal= or after="
        if wait.state == flow.lifecycle.undoing:
            yield f'{where} never ends: "{wait.state}" is undoing; wait in a state of its own'
        if wait.signal is not None and roles[wait.state] != WAITING:
            yield f'{where} would never hear "{wait.signal}": the state is {roles[wait.state]}'
        if wait.signal is not None and wait.to is None:
            yield f'{where} does not say where "{wait.signal}" leads; add to='
        if (wait.deadline is None) != (wait.on_expiry is None):
            yield f"{where} needs both deadline= and on_expiry=, or neither"
        if wait.deadline is not None and micros(wait.deadline) <= 0:
            yield f"{where} takes {wait.deadline}; it must take some time"
        ways = (
            moves.get(wait.state, ())
            if final
            else (*moves.get(wait.state, ()), *ends_of(flow.lifecycle))
        )
        for to in (wait.to, wait.on_expiry):
            if to is not None and to not in ways:
                yield f'{where} leads to "{to}", but "{wait.state}" may move to {names(ways)}'
            if to is not None and final and roles[to] not in FINAL:
                # Its key and its undos were settled when it ended; nothing may go on from there.
                yield f'{where} leads from an end back to "{to}"; lead to another final state'


def _operators_have_somewhere_to_go(flow: Flow[Any]) -> Complaints:
    life, roles = flow.lifecycle, roles_of(flow)
    for option, target in [("release_to", life.release_to), ("retry_to", life.retry_to)]:
        if target is None or isinstance(target, Same):
            continue
        if roles.get(target, UNDOING) in (*FINAL, UNDOING) or target == life.held:
            text = f'{option}="{target}" is not a state where work goes on; '
            text += f'name one, such as "{life.initial}"'
            yield text
    undos = [s.state for s in flow.declared.stages if s.undo_function is not None]
    if undos and isinstance(life.retry_to, Same):
        text = f'retry_to=SAME would go back to work that the undo of "{undos[0]}" took away; '
        text += f'name a state, such as "{life.initial}"'
        yield text
    for option, target in [("undoing", life.undoing), ("undone", life.undone)]:
        if target is not None and not undos:
            yield f'{option}="{target}" but no stage has an undo; declare one or drop it'
    if flow.retry_via is not None and flow.retry_via not in roles:
        text = f'retry_via="{flow.retry_via}" is not a state of the table; '
        text += f'name one, such as "{life.failed}"'
        yield text


def _dedup_leaves_no_gap(flow: Flow[Any]) -> Complaints:
    if flow.dedup is None:
        return
    if flow.dedup.keep is not None and micros(flow.dedup.keep) < 0:
        yield f"Dedup(keep={flow.dedup.keep}) is negative; say how long the key is kept"
    until = flow.dedup.until
    if isinstance(until, Until):
        if until is Until.FORGOTTEN and flow.dedup.keep is None:
            yield "Until.FORGOTTEN keeps the key for ever; say how long with keep="
        return
    roles = roles_of(flow)
    if isinstance(until, str):
        yield f'until="{until}" is one text; write a list of states: until=["{until}"]'
    for state in until:
        if roles.get(state) not in FINAL:
            text = f'the dedup key is freed in "{state}", from which the job goes on without it: a '
            text += "second job could start beside it; free keys in final states only"
            yield text
    open_ends = [s for s, role in roles.items() if role == FAILED and s not in until]
    if open_ends and flow.dedup.keep is None:
        text = f'a job that ends in "{open_ends[0]}" keeps its dedup key, so the work can never be '
        text += "submitted again; add that state to until= or say keep="
        yield text


def _error_classes_are_apart(flow: Flow[Any]) -> Complaints:
    owner: dict[type[BaseException], str] = {}
    for option in ("transient", "permanent", "holds_on"):
        for error in getattr(flow, option):
            if not (isinstance(error, type) and issubclass(error, BaseException)):
                yield f"{option} names {error!r}, which is not an exception class; name classes"
            elif error in owner:
                yield f"{error.__name__} is both {owner[error]} and {option}; choose one"
            else:
                owner[error] = option


def _numbers_make_sense(flow: Flow[Any]) -> Complaints:
    if flow.max_lapses < 1:
        yield f"max_lapses={flow.max_lapses} would hold every job before it ran; use 1 or more"
    if flow.max_payload < 1:
        yield f"max_payload={flow.max_payload} would refuse every job; use 1 byte or more"
    if flow.expires is not None and micros(flow.expires) <= 0:
        yield f"expires={flow.expires}; a job needs some time: say how long, or leave it out"
    if flow.payload is None:
        return
    fields = {f for kind in flow.payload.__mro__ for f in getattr(kind, "__annotations__", ())}
    for secret in sorted(flow.secret):
        if fields and secret not in fields:
            yield f"secret field {secret!r} is not a field of {flow.payload.__name__}; rename it"


def _on_end_makes_sense(flow: Flow[Any]) -> Complaints:
    if flow.on_end is None:
        return
    if not hasattr(flow.on_end, "complaint"):
        yield f"on_end={flow.on_end!r} cannot be used; write on_end=OnEnd(flow, payload=f)"
        return
    wrong = flow.on_end.complaint()
    if wrong is not None:
        yield wrong
    moves, roles = moves_of(flow.lifecycle), roles_of(flow)
    ends = {state for state, role in roles.items() if role in FINAL}
    for state in sorted(ends):
        reached, look = set[str](), {state}
        while look:
            look = {to for s in look for to in moves.get(s, ()) if to in ends} - reached
            reached |= look
        if state in reached:
            text = f'on_end= submits once for each final state, and "{state}" can be entered again '
            text += "from another one; take that move away"
            yield text
            return


_RULES: tuple[Callable[[Flow[Any]], Complaints], ...] = (
    _names_are_storable,
    _durations_are_durations,
    _the_table_knows_its_states,
    _stages_fit_the_table,
    _everything_is_reached,
    _stage_options_make_sense,
    _gates_fit_the_table,
    _waits_fit_the_table,
    _every_state_has_a_way_on,
    _operators_have_somewhere_to_go,
    _dedup_leaves_no_gap,
    _error_classes_are_apart,
    _numbers_make_sense,
    admission.complaints,
    _on_end_makes_sense,
)
