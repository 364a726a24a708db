"""`ulak schedules`: what the clock submits, when next, and what it has submitted."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from ulak.clock import rfc3339
from ulak.engine.engine import Engine
from ulak.engine.schedules import Schedule, ScheduleTick
from ulak.engine.view import job_document
from ulak.errors import JobNotFound
from ulak.kit.commands.output import (
    JsonOption,
    note,
    pretty,
    print_facts,
    print_json,
    print_table,
    when,
)
from ulak.kit.commands.person import ActorOption, NoteOption
from ulak.kit.commands.target import AppOption, reading

group = typer.Typer(no_args_is_help=True, help="What the clock submits, and when.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.")]


@group.command("list")
def list_schedules(app: AppOption = None, as_json: JsonOption = False) -> None:
    """List schedules with their next and their last date."""
    with reading(app) as engine:
        found = [(schedule, _last(engine, schedule)) for schedule in engine.schedules.all()]
    if as_json:
        print_json({"schedules": [_document(schedule, last) for schedule, last in found]})
    elif found:
        print_table(
            ("name", "flow", "rule", "next", "last"),
            [
                (
                    schedule.name, schedule.flow, _rule(schedule), _next(schedule),
                    when(None if last is None else last.due_at),
                )
                for schedule, last in found
            ],
            keep=("name", "last"),
        )  # fmt: skip
    else:
        note("no schedules")


@group.command("show")
def show(name: NameArgument, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Show one schedule: its rule, its dates, and what it submits."""
    with reading(app) as engine:
        schedule = engine.schedules.get(name)
        last = _last(engine, schedule)
    if as_json:
        print_json(_document(schedule, last))
        return
    facts = [
        ("schedule", schedule.name),
        ("flow", f"{schedule.flow} version {schedule.version}"),
        ("rule", _rule(schedule)),
        ("catch up", schedule.catch_up),
        ("next", _next(schedule)),
        ("last", "-" if last is None else f"{when(last.due_at)} job {last.job_id}"),
        ("tenant", schedule.tenant),
        ("priority", str(schedule.priority)),
        ("expires", "" if schedule.expires is None else f"after {schedule.expires}"),
        ("payload", pretty(schedule.payload)),
    ]
    if schedule.paused_at is not None:
        said = f": {schedule.pause_note}" if schedule.pause_note else ""
        facts.append(("paused", f"{when(schedule.paused_at)} by {schedule.paused_by}{said}"))
    if not schedule.is_declared:
        facts.append(("note", "this program does not declare it"))
    print_facts([(name, value) for name, value in facts if value])


@group.command("history")
def history(
    name: NameArgument,
    app: AppOption = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """List the dates that were seen to, the latest first, and what became of their jobs."""
    with reading(app) as engine:
        ticks = [(tick, _state(engine, tick)) for tick in engine.schedules.ticks(name, limit=limit)]
    if as_json:
        lines = [
            {"due_at": rfc3339(tick.due_at), "job_id": tick.job_id, "state": state}
            for tick, state in ticks
        ]
        print_json({"schedule": name, "ticks": lines})
    elif ticks:
        rows = [(when(tick.due_at), tick.job_id, state or "-") for tick, state in ticks]
        print_table(("due", "job", "state"), rows, keep=("due", "job"))
    else:
        note("no ticks")


@group.command("pause")
def pause(
    name: NameArgument, actor: ActorOption, app: AppOption = None, note: NoteOption = "",
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Let a schedule submit nothing until it is resumed."""
    with reading(app) as engine:
        _print_act(engine, engine.schedules.pause(name, actor=actor, note=note), as_json)


@group.command("resume")
def resume(
    name: NameArgument, actor: ActorOption, app: AppOption = None, note: NoteOption = "",
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """End a pause; dates that have passed meanwhile are skipped."""
    with reading(app) as engine:
        _print_act(engine, engine.schedules.resume(name, actor=actor, note=note), as_json)


@group.command("run")
def run(
    name: NameArgument, actor: ActorOption, app: AppOption = None, as_json: JsonOption = False
) -> None:
    """Submit a schedule's job now, besides its dates."""
    with reading(app) as engine:
        job = engine.schedules.run(name, actor=actor)
    if as_json:
        print_json(job_document(job))
    else:
        print(f"submitted {job.id}" if job.created else f"{job.id} holds its key already")


def _print_act(engine: Engine, schedule: Schedule, as_json: bool) -> None:
    if as_json:
        print_json(_document(schedule, _last(engine, schedule)))
    else:
        print_facts([(schedule.name, f"next {_next(schedule)}")])


def _document(schedule: Schedule, last: ScheduleTick | None) -> dict[str, Any]:
    document = asdict(schedule)
    expires = document.pop("expires")
    document["expires_s"] = None if expires is None else expires.total_seconds()
    for name in ("next_at", "paused_at"):
        document[name] = None if document[name] is None else rfc3339(document[name])
    document["last"] = None
    if last is not None:
        document["last"] = {"due_at": rfc3339(last.due_at), "job_id": last.job_id}
    return document


def _last(engine: Engine, schedule: Schedule) -> ScheduleTick | None:
    found = engine.schedules.ticks(schedule.name, limit=1)
    return found[0] if found else None


def _state(engine: Engine, tick: ScheduleTick) -> str | None:
    try:
        return engine.get(tick.job_id).state
    except JobNotFound:  # pruned since the tick was read
        return None


def _rule(schedule: Schedule) -> str:
    return schedule.rule if schedule.rule.startswith("@") else f"{schedule.rule} {schedule.zone}"


def _next(schedule: Schedule) -> str:
    if schedule.paused_at is not None:
        return f"paused by {schedule.paused_by}"
    return when(schedule.next_at) + ("" if schedule.is_declared else ", not declared here")
