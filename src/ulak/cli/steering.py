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
    pretty,
    print_fact,
    print_facts,
    print_json,
    print_list,
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


@limits.callback()
def list_limits(context: typer.Context, app: AppOption = None, as_json: JsonOption = False) -> None:
    """List every limit, what is declared, and who has set another."""
    if context.invoked_subcommand is not None:
        return
    with reading(app) as engine:
        found = engine.flow_control.limits()
    rows = [
        (_limit_name(row), _places(row), str(row.declared), row.actor or "-", when(row.at))
        for row in found
    ]
    columns = ("limit", "at once", "declared", "set by", "since")
    document = {"limits": [asdict(limit) for limit in found]}
    print_list(document, as_json, columns, rows, keep=("limit",), empty="no limits")


@limits.command("set")
def set_limit(
    name: NameArgument, actor: ActorOption,
    n: Annotated[int | None, typer.Argument(metavar="N", min=0, help="How many.")] = None,
    reset: ResetOption = False,
    key: Annotated[str | None, typer.Option("--key", help="Of this key alone.")] = None,
    app: AppOption = None, note: NoteOption = "", as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Set a limit; it stays until it is reset."""
    _must_be_one_of(n is not None, reset)
    with reading(app) as engine:
        changed = engine.flow_control.set_limit(name, n, key=key, actor=actor, note=note)
    what = f"{_places(changed)}, {changed.declared} declared"
    print_fact(asdict(changed), as_json, _limit_name(changed), what)


def _limit_name(limit: StageLimit) -> str:
    return limit.name if limit.key is None else f"{limit.name}/{limit.key}"


def _places(limit: StageLimit) -> str:
    return f"{limit.n} for each key" if limit.keyed and limit.key is None else str(limit.n)


@rates.callback()
def list_rates(context: typer.Context, app: AppOption = None, as_json: JsonOption = False) -> None:
    """List every rate, what is declared, and who has set another."""
    if context.invoked_subcommand is not None:
        return
    with reading(app) as engine:
        found = engine.flow_control.rates()
    rows = [
        (row.name, _terms(row.n, row.per, row.burst), _terms(*row.declared), row.actor or "-")
        for row in found
    ]
    columns = ("rate", "in force", "declared", "set by")
    document = {"rates": [_rate_document(rate) for rate in found]}
    print_list(document, as_json, columns, rows, keep=("rate",), empty="no rates")


@rates.command("set")
def set_rate(
    name: NameArgument, actor: ActorOption,
    n: Annotated[int | None, typer.Argument(metavar="N", min=1, help="How many tokens.")] = None,
    per: Annotated[str, typer.Option("--per", help="In which span: 1s, 5m, 1h.")] = "1s",
    burst: Annotated[int | None, typer.Option("--burst", help="How many are kept.")] = None,
    reset: ResetOption = False, app: AppOption = None, note: NoteOption = "",
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Set a rate; it stays until it is reset."""
    _must_be_one_of(n is not None, reset)
    rate = None if n is None else Rate(n, per=read_span(per, "--per"), burst=burst)
    with reading(app) as engine:
        changed = engine.flow_control.set_rate(name, rate, actor=actor, note=note)
    terms = _terms(changed.n, changed.per, changed.burst)
    print_fact(_rate_document(changed), as_json, changed.name, terms)


def _terms(n: int, per: timedelta, burst: int) -> str:
    return f"{n} in {per.total_seconds():g} s, {burst} at most"


def _rate_document(rate: StageRate) -> dict[str, Any]:
    document = asdict(rate)
    document["per_s"] = document.pop("per").total_seconds()
    n, per, burst = document["declared"]
    document["declared"] = {"n": n, "per_s": per.total_seconds(), "burst": burst}
    return document


def pause(
    actor: ActorOption, queue: QueueOption = None, flow: FlowOption = None, key: KeyOption = None,
    lasts: Annotated[str | None, typer.Option("--for", help="How long: 45s, 15m, 12h.")] = None,
    until: TimeOption = None, app: AppOption = None, note: NoteOption = "",
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Let no job of a queue, a flow or a key be begun."""
    ends = until if lasts is None else read_span(lasts, "--for")
    with reading(app) as engine:
        made = engine.flow_control.pause(
            queue=queue, flow=flow, key=key, actor=actor, note=note, until=ends
        )
    if as_json:
        print_json(asdict(made))
        return
    facts = [(f"{made.kind} {made.name}", f"paused {_until(made)}")]
    if made.replaces is not None:
        facts.append(("before", f"paused {_until(made.replaces)} by {made.replaces.actor}"))
    print_facts(facts)


def resume(
    actor: ActorOption, queue: QueueOption = None, flow: FlowOption = None, key: KeyOption = None,
    app: AppOption = None, note: NoteOption = "", as_json: JsonOption = False,
) -> None:  # fmt: skip
    """End a pause."""
    with reading(app) as engine:
        ended = engine.flow_control.resume(queue=queue, flow=flow, key=key, actor=actor, note=note)
    what = f"resumed; {ended.actor} had paused it"
    print_fact(asdict(ended), as_json, f"{ended.kind} {ended.name}", what)


def pauses(app: AppOption = None, as_json: JsonOption = False) -> None:
    """List what is paused, by whom and until when."""
    with reading(app) as engine:
        found = engine.flow_control.pauses()
    rows = [
        (row.kind, row.name, _until(row), row.actor, when(row.at), row.note or "") for row in found
    ]
    columns = ("what", "name", "until", "by", "since", "note")
    document = {"pauses": [asdict(row) for row in found]}
    print_list(document, as_json, columns, rows, keep=("name",), empty="nothing is paused")


def _until(pause: Pause) -> str:
    return "until resumed" if pause.until is None else f"until {when(pause.until)}"


@weights.callback()
def list_weights(
    context: typer.Context, app: AppOption = None, as_json: JsonOption = False
) -> None:
    """List the tenants that have more than one turn."""
    if context.invoked_subcommand is not None:
        return
    with reading(app) as engine:
        found = engine.flow_control.weights()
    rows = [(row.tenant, str(row.weight), row.actor, when(row.at)) for row in found]
    columns = ("tenant", "turns", "set by", "since")
    document = {"weights": [asdict(weight) for weight in found]}
    print_list(
        document, as_json, columns, rows, keep=("tenant",), empty="every tenant has one turn"
    )


@weights.command("set")
def set_weight(
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="Whose turns.")],
    actor: ActorOption,
    weight: Annotated[int | None, typer.Argument(metavar="N", min=1, help="How many.")] = None,
    reset: Annotated[bool, typer.Option("--reset", help="Back to one.")] = False,
    app: AppOption = None, note: NoteOption = "", as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Give a tenant so many turns for each turn of others."""
    _must_be_one_of(weight is not None, reset)
    with reading(app) as engine:
        engine.flow_control.set_weight(tenant, weight, actor=actor, note=note)
    document = {"tenant": tenant, "weight": weight or 1}
    print_fact(document, as_json, tenant, f"{weight or 1} for each turn of others")


def audit(
    app: AppOption = None,
    subject: Annotated[str | None, typer.Option("--subject", help="Of this only.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """List what operators did to limits, rates, pauses, weights, schedules and credentials."""
    with reading(app) as engine:
        lines = engine.inspect.audit(subject=subject, limit=limit)
    rows = [
        (when(line.at), line.actor, line.act, line.subject, line.note or pretty(line.details))
        for line in lines
    ]
    columns, keep = ("at", "who", "act", "subject", "note"), ("at", "subject")
    document = {"audit": [asdict(line) for line in lines]}
    print_list(document, as_json, columns, rows, keep=keep, empty="nothing was changed yet")


def _must_be_one_of(is_set: bool, is_reset: bool) -> None:
    if is_set == is_reset:
        raise typer.BadParameter("say how many, or --reset")
