"""`ulak flows` and `ulak schedules`: what a program declares, and what the clock submits."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from ulak.clock import rfc3339
from ulak.core.flow import Flow
from ulak.engine import migration
from ulak.engine.engine import Engine
from ulak.engine.schedules import Schedule, ScheduleTick
from ulak.engine.view import job_document
from ulak.errors import BadInput, JobNotFound
from ulak.kit.commands import output as out
from ulak.kit.commands.target import ActorOption, AppOption, NoteOption, in_force, load, reading

flow_group = typer.Typer(invoke_without_command=True, help="What a program declares.")


@flow_group.callback()
def flows(
    context: typer.Context,
    app: AppOption = None,
    mermaid: Annotated[
        str | None, typer.Option(metavar="NAME", help="Draw this flow, or NAME@VERSION.")
    ] = None,
    as_json: out.JsonOption = False,
) -> None:
    """Show the flows of a program; the store is not asked."""
    if context.invoked_subcommand is not None:
        return
    engine = load(in_force(app))
    if mermaid is not None:
        flow = find(engine, mermaid)
        if as_json:
            out.print_json({"flow": flow.name, "version": flow.version, "mermaid": flow.mermaid()})
        else:
            print(flow.mermaid(), end="")
        return
    declared = sorted(engine.inspect.flows, key=lambda f: (f.name, f.version))
    if as_json:
        out.print_json({"flows": [_flow_document(flow) for flow in declared]})
        return
    rows = [(f.name, str(f.version), ", ".join(_own_states(f)), _lanes(f)) for f in declared]
    out.print_table(("flow", "version", "states", "lanes"), rows, keep=("flow", "version"))


@flow_group.command("migrate")
def migrate(
    flow: Annotated[str, typer.Argument(metavar="FLOW", help="The name of the flow.")],
    from_version: Annotated[int, typer.Option("--from", metavar="VERSION", help="Which jobs.")],
    actor: ActorOption,
    to_version: Annotated[
        int | None, typer.Option("--to", metavar="VERSION", help="Else the newest of this program.")
    ] = None,
    states: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="OLD=NEW", help="Where the jobs of a state go; repeatable."),
    ] = None,
    same: Annotated[
        bool,
        typer.Option("--same", help="States that both have in the same role go to themselves."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count; change nothing.")] = False,
    why: NoteOption = "",
    app: AppOption = None,
    as_json: out.JsonOption = False,
) -> None:
    """Move jobs of one version of a flow to another by an explicit map; exit 1 if any are left."""
    wanted = migration.StateMap(
        flow, from_version=from_version, to_version=to_version, states=_read_map(states or []),
        same=same,
    )  # fmt: skip
    with reading(app) as engine:
        done = migration.migrate(engine.kernel, wanted, actor=actor, note=why, dry_run=dry_run)
    if as_json:
        out.print_json(_migration_document(done, dry_run))
    else:
        _print_migration(done, dry_run)
    if done.leased or done.left_count or (done.standing and not dry_run):
        raise typer.Exit(1)


def _read_map(pairs: list[str]) -> dict[str, str]:
    states: dict[str, str] = {}
    for pair in pairs:
        old, equals, new = pair.partition("=")
        if not (old and equals and new):
            raise typer.BadParameter(f"{pair!r} is not OLD=NEW", param_hint="--map")
        if states.setdefault(old, new) != new:
            raise typer.BadParameter(
                f'"{old}" goes to "{states[old]}" and to "{new}"; say one', param_hint="--map"
            )
    return states


def _migration_document(done: migration.Migrated, dry_run: bool) -> dict[str, Any]:
    return {
        "flow": done.flow,
        "from_version": done.from_version,
        "to_version": done.to_version,
        "dry_run": dry_run,
        "moved": [{"from": a, "to": b, "jobs": n} for (a, b), n in sorted(done.moved.items())],
        "leased": done.leased,
        "left": [{"id": job.id, "code": job.code, "detail": job.detail} for job in done.left],
        "left_count": done.left_count,
        "standing": done.standing,
    }


def _print_migration(done: migration.Migrated, dry_run: bool) -> None:
    if done.moved:
        rows = [(old, new, str(jobs)) for (old, new), jobs in sorted(done.moved.items())]
        out.print_table(("from", "to", "jobs"), rows, keep=("jobs",))
    jobs = out.some(sum(done.moved.values()), "job")
    verb = "would move" if dry_run else "moved"
    print(f"{verb} {jobs} of {done.flow} from version {done.from_version} to {done.to_version}")
    for job in done.left:
        out.note(job.detail)
    if done.left_count > len(done.left):
        out.note(f"{done.left_count - len(done.left)} more could not be moved")
    if done.leased:
        cure = "run this again when their stages have ended"
        out.note(f"left alone: {out.some(done.leased, 'job')}, leased by a worker; {cure}")
    elif done.standing and not dry_run:
        jobs = out.some(sum(done.standing.values()), "job")
        out.note(f"left: {jobs} in states of the map; run it again")


def find(engine: Engine, name: str) -> Flow[Any]:
    """Return a flow by NAME, its newest version, or by NAME@VERSION. Raises `BadInput`: there is
    none."""
    wanted, _, version = name.partition("@")
    declared = engine.inspect.flows
    found = [f for f in declared if f.name == wanted and version in ("", str(f.version))]
    if not found:
        known = ", ".join(sorted({f.name for f in declared})) or "none"
        raise BadInput(f"there is no flow {name!r}; this program declares {known}")
    return max(found, key=lambda f: f.version)


def _flow_document(flow: Flow[Any]) -> dict[str, Any]:
    return {
        "flow": flow.name,
        "version": flow.version,
        "initial": flow.lifecycle.initial,
        "states": {state: place.role for state, place in flow.table.places.items()},
        "moves": {state: list(ways) for state, ways in flow.lifecycle.moves.items()},
        "gates": {gate.state: dict(gate.choices) for gate in flow.declared.gates},
        "undos": [s.state for s in flow.declared.stages if s.undo_function is not None],
        "lanes": sorted(flow.table.lanes),
    }


def _own_states(flow: Flow[Any]) -> list[str]:
    moves = flow.lifecycle.moves.items()
    return list(dict.fromkeys([flow.lifecycle.initial, *(s for a, b in moves for s in (a, *b))]))


def _lanes(flow: Flow[Any]) -> str:
    # Flow, version and stage are shown beside them.
    return "\n".join(sorted({"/".join(lane.split("/")[:2]) for lane in flow.table.lanes})) or "-"


schedule_group = typer.Typer(no_args_is_help=True, help="What the clock submits, and when.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.")]


@schedule_group.command("list")
def list_schedules(app: AppOption = None, as_json: out.JsonOption = False) -> None:
    """List schedules with their next and their last date."""
    with reading(app) as engine:
        found = [(schedule, _last(engine, schedule)) for schedule in engine.schedules.all()]
    rows = [
        (s.name, s.flow, _rule(s), _next(s), out.when(None if last is None else last.due_at))
        for s, last in found
    ]
    columns, keep = ("name", "flow", "rule", "next", "last"), ("name", "last")
    document = {"schedules": [_schedule_document(schedule, last) for schedule, last in found]}
    out.print_list(document, as_json, columns, rows, keep=keep, empty="no schedules")


@schedule_group.command("show")
def show(name: NameArgument, app: AppOption = None, as_json: out.JsonOption = False) -> None:
    """Show one schedule: its rule, its dates, and what it submits."""
    with reading(app) as engine:
        schedule = engine.schedules.get(name)
        last = _last(engine, schedule)
    if as_json:
        out.print_json(_schedule_document(schedule, last))
        return
    facts = [
        ("schedule", schedule.name),
        ("flow", f"{schedule.flow} version {schedule.version}"),
        ("rule", _rule(schedule)),
        ("catch up", schedule.catch_up),
        ("next", _next(schedule)),
        ("last", "-" if last is None else f"{out.when(last.due_at)} job {last.job_id}"),
        ("tenant", schedule.tenant),
        ("priority", str(schedule.priority)),
        ("expires", "" if schedule.expires is None else f"after {schedule.expires}"),
        ("payload", out.pretty(schedule.payload)),
    ]
    if schedule.paused_at is not None:
        said = f": {schedule.pause_note}" if schedule.pause_note else ""
        facts.append(("paused", f"{out.when(schedule.paused_at)} by {schedule.paused_by}{said}"))
    if not schedule.is_declared:
        facts.append(("note", "this program does not declare it"))
    out.print_facts([(name, value) for name, value in facts if value])


@schedule_group.command("history")
def history(
    name: NameArgument,
    app: AppOption = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 50,
    as_json: out.JsonOption = False,
) -> None:
    """List the dates that were seen to, the latest first, and what became of their jobs."""
    with reading(app) as engine:
        ticks = [(tick, _state(engine, tick)) for tick in engine.schedules.ticks(name, limit=limit)]
    lines = [{**_tick_document(tick), "state": state} for tick, state in ticks]
    rows = [(out.when(tick.due_at), tick.job_id, state or "-") for tick, state in ticks]
    document, keep = {"schedule": name, "ticks": lines}, ("due", "job")
    out.print_list(document, as_json, ("due", "job", "state"), rows, keep=keep, empty="no ticks")


def _add_act(verb: str, about: str) -> None:
    @schedule_group.command(verb, help=about)
    def act(
        name: NameArgument, actor: ActorOption, app: AppOption = None, note: NoteOption = "",
        as_json: out.JsonOption = False,
    ) -> None:  # fmt: skip
        with reading(app) as engine:
            done = getattr(engine.schedules, verb)(name, actor=actor, note=note)
            _print_act(engine, done, as_json)


_add_act("pause", "Let a schedule submit nothing until it is resumed.")
_add_act("resume", "End a pause; dates that have passed meanwhile are skipped.")


@schedule_group.command("run")
def run(
    name: NameArgument, actor: ActorOption, app: AppOption = None, as_json: out.JsonOption = False
) -> None:
    """Submit a schedule's job now, besides its dates."""
    with reading(app) as engine:
        job = engine.schedules.run(name, actor=actor)
    if as_json:
        out.print_json(job_document(job))
    else:
        print(f"submitted {job.id}" if job.created else f"{job.id} holds its key already")


def _print_act(engine: Engine, schedule: Schedule, as_json: bool) -> None:
    if as_json:
        out.print_json(_schedule_document(schedule, _last(engine, schedule)))
    else:
        out.print_facts([(schedule.name, f"next {_next(schedule)}")])


def _schedule_document(schedule: Schedule, last: ScheduleTick | None) -> dict[str, Any]:
    document = asdict(schedule)
    expires = document.pop("expires")
    document["expires_s"] = None if expires is None else expires.total_seconds()
    for name in ("next_at", "paused_at"):
        document[name] = None if document[name] is None else rfc3339(document[name])
    document["last"] = None if last is None else _tick_document(last)
    return document


def _tick_document(tick: ScheduleTick) -> dict[str, Any]:
    return {"due_at": rfc3339(tick.due_at), "job_id": tick.job_id}


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
    return out.when(schedule.next_at) + ("" if schedule.is_declared else ", not declared here")
