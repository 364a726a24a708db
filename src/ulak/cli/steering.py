"""`ulak limits`, `rates`, `pause`, `resume`, `pauses`, `weights`, `audit`: flow control by hand."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Annotated, Any

import typer

from ulak.cli.spans import TimeOption, read_span
from ulak.core.policy import Rate
from ulak.engine.flow_control import Pause, StageLimit, StageRate
from ulak.kit.commands.output import (
    JsonOption,
    note,
    pretty,
    print_facts,
    print_json,
    print_table,
    when,
)
from ulak.kit.commands.target import ActorOption, AppOption, NoteOption, reading

limits = typer.Typer(invoke_without_command=True, help="How many runs there may be at once.")
rates = typer.Typer(invoke_without_command=True, help="How many runs there may be in a span.")
weights = typer.Typer(invoke_without_command=True, help="How tenants of fair flows share.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="flow/state.")]
ResetOption = Annotated[bool, typer.Option("--reset", help="Back to what the flow declares.")]
QueueOption = Annotated[str | None, typer.Option("--queue", help="A queue.")]
FlowOption = Annotated[str | None, typer.Option("--flow", help="A flow.")]
KeyOption = Annotated[str | None, typer.Option("--key", help="The key of a limit or a rate.")]


# --- limits ---------------------------------------------------------------------


@limits.callback()
def list_limits(context: typer.Context, app: AppOption = None, as_json: JsonOption = False) -> None:
    """List every limit, what is declared, and who has set another."""
    if context.invoked_subcommand is not None:
        return
    with reading(app) as engine:
        found = engine.flow_control.limits()
    if as_json:
        print_json({"limits": [asdict(limit) for limit in found]})
    elif found:
        rows = [
            (_limit_name(row), _places(row), str(row.declared), row.actor or "-", when(row.at))
            for row in found
        ]
        print_table(("limit", "at once", "declared", "set by", "since"), rows, keep=("limit",))
    else:
        note("no limits")


@limits.command("set")
def set_limit(
    name: NameArgument,
    actor: ActorOption,
    n: Annotated[int | None, typer.Argument(metavar="N", min=0, help="How many.")] = None,
    reset: ResetOption = False,
    key: Annotated[str | None, typer.Option("--key", help="Of this key alone.")] = None,
    app: AppOption = None,
    note: NoteOption = "",
    as_json: JsonOption = False,
) -> None:
    """Set a limit; it stays until it is reset."""
    _one_of(n is not None, reset, "say how many, or --reset")
    with reading(app) as engine:
        changed = engine.flow_control.set_limit(name, n, key=key, actor=actor, note=note)
    if as_json:
        print_json(asdict(changed))
    else:
        print_facts([(_limit_name(changed), f"{_places(changed)}, {changed.declared} declared")])


def _limit_name(limit: StageLimit) -> str:
    return limit.name if limit.key is None else f"{limit.name}/{limit.key}"


def _places(limit: StageLimit) -> str:
    return f"{limit.n} for each key" if limit.keyed and limit.key is None else str(limit.n)


# --- rates ----------------------------------------------------------------------


@rates.callback()
def list_rates(context: typer.Context, app: AppOption = None, as_json: JsonOption = False) -> None:
    """List every rate, what is declared, and who has set another."""
    if context.invoked_subcommand is not None:
        return
    with reading(app) as engine:
        found = engine.flow_control.rates()
    if as_json:
        print_json({"rates": [_rate_document(rate) for rate in found]})
    elif found:
        rows = [
            (row.name, _terms(row.n, row.per, row.burst), _terms(*row.declared), row.actor or "-")
            for row in found
        ]
        print_table(("rate", "in force", "declared", "set by"), rows, keep=("rate",))
    else:
        note("no rates")


@rates.command("set")
def set_rate(
    name: NameArgument,
    actor: ActorOption,
    n: Annotated[int | None, typer.Argument(metavar="N", min=1, help="How many tokens.")] = None,
    per: Annotated[str, typer.Option("--per", help="In which span: 1s, 5m, 1h.")] = "1s",
    burst: Annotated[int | None, typer.Option("--burst", help="How many are kept.")] = None,
    reset: ResetOption = False,
    app: AppOption = None,
    note: NoteOption = "",
    as_json: JsonOption = False,
) -> None:
    """Set a rate; it stays until it is reset."""
    _one_of(n is not None, reset, "say how many, or --reset")
    rate = None if n is None else Rate(n, per=read_span(per, "--per"), burst=burst)
    with reading(app) as engine:
        changed = engine.flow_control.set_rate(name, rate, actor=actor, note=note)
    if as_json:
        print_json(_rate_document(changed))
    else:
        print_facts([(changed.name, _terms(changed.n, changed.per, changed.burst))])


def _terms(n: int, per: timedelta, burst: int) -> str:
    return f"{n} in {per.total_seconds():g} s, {burst} at most"


def _rate_document(rate: StageRate) -> dict[str, Any]:
    document = asdict(rate)
    document["per_s"] = document.pop("per").total_seconds()
    n, per, burst = document["declared"]
    document["declared"] = {"n": n, "per_s": per.total_seconds(), "burst": burst}
    return document


# --- pauses ---------------------------------------------------------------------


def pause(
    actor: ActorOption,
    queue: QueueOption = None,
    flow: FlowOption = None,
    key: KeyOption = None,
    lasts: Annotated[str | None, typer.Option("--for", help="How long: 45s, 15m, 12h.")] = None,
    until: TimeOption = None,
    app: AppOption = None,
    note: NoteOption = "",
    as_json: JsonOption = False,
) -> None:
    """Let no job of a queue, a flow or a key be begun."""
    ends = until if lasts is None else read_span(lasts, "--for")
    with reading(app) as engine:
        made = engine.flow_control.pause(
            queue=queue, flow=flow, key=key, actor=actor, note=note, until=ends
        )
    if as_json:
        print_json(_pause_document(made))
        return
    facts = [(f"{made.kind} {made.name}", f"paused {_until(made)}")]
    if made.replaces is not None:
        facts.append(("before", f"paused {_until(made.replaces)} by {made.replaces.actor}"))
    print_facts(facts)


def resume(
    actor: ActorOption,
    queue: QueueOption = None,
    flow: FlowOption = None,
    key: KeyOption = None,
    app: AppOption = None,
    note: NoteOption = "",
    as_json: JsonOption = False,
) -> None:
    """End a pause."""
    with reading(app) as engine:
        ended = engine.flow_control.resume(queue=queue, flow=flow, key=key, actor=actor, note=note)
    if as_json:
        print_json(_pause_document(ended))
    else:
        print_facts([(f"{ended.kind} {ended.name}", f"resumed; {ended.actor} had paused it")])


def pauses(app: AppOption = None, as_json: JsonOption = False) -> None:
    """List what is paused, by whom and until when."""
    with reading(app) as engine:
        found = engine.flow_control.pauses()
    if as_json:
        print_json({"pauses": [_pause_document(row) for row in found]})
    elif found:
        rows = [
            (row.kind, row.name, _until(row), row.actor, when(row.at), row.note or "")
            for row in found
        ]
        print_table(("what", "name", "until", "by", "since", "note"), rows, keep=("name",))
    else:
        note("nothing is paused")


def _until(pause: Pause) -> str:
    return "until resumed" if pause.until is None else f"until {when(pause.until)}"


def _pause_document(pause: Pause) -> dict[str, Any]:
    return asdict(pause)


# --- weights and audit ----------------------------------------------------------


@weights.callback()
def list_weights(
    context: typer.Context, app: AppOption = None, as_json: JsonOption = False
) -> None:
    """List the tenants that have more than one turn."""
    if context.invoked_subcommand is not None:
        return
    with reading(app) as engine:
        found = engine.flow_control.weights()
    if as_json:
        print_json({"weights": [asdict(weight) for weight in found]})
    elif found:
        rows = [(row.tenant, str(row.weight), row.actor, when(row.at)) for row in found]
        print_table(("tenant", "turns", "set by", "since"), rows, keep=("tenant",))
    else:
        note("every tenant has one turn")


@weights.command("set")
def set_weight(
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="Whose turns.")],
    actor: ActorOption,
    weight: Annotated[int | None, typer.Argument(metavar="N", min=1, help="How many.")] = None,
    reset: Annotated[bool, typer.Option("--reset", help="Back to one.")] = False,
    app: AppOption = None,
    note: NoteOption = "",
    as_json: JsonOption = False,
) -> None:
    """Give a tenant so many turns for each turn of others."""
    _one_of(weight is not None, reset, "say how many, or --reset")
    with reading(app) as engine:
        engine.flow_control.set_weight(tenant, weight, actor=actor, note=note)
    if as_json:
        print_json({"tenant": tenant, "weight": weight or 1})
    else:
        print_facts([(tenant, f"{weight or 1} for each turn of others")])


def audit(
    app: AppOption = None,
    subject: Annotated[str | None, typer.Option("--subject", help="Of this only.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """List what operators did to limits, rates, pauses, weights, schedules and credentials."""
    with reading(app) as engine:
        lines = engine.inspect.audit(subject=subject, limit=limit)
    if as_json:
        print_json({"audit": [asdict(line) for line in lines]})
    elif lines:
        rows = [
            (when(line.at), line.actor, line.act, line.subject, line.note or pretty(line.details))
            for line in lines
        ]
        print_table(("at", "who", "act", "subject", "note"), rows, keep=("at", "subject"))
    else:
        note("nothing was changed yet")


def _one_of(first: bool, second: bool, cure: str) -> None:
    if first == second:
        raise typer.BadParameter(cure)
