"""`ulak flows`: what a program declares, and jobs moved from one version of a flow to another."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ulak.core.flow import Flow
from ulak.engine import migration
from ulak.engine.engine import Engine
from ulak.errors import BadInput
from ulak.kit.commands.output import JsonOption, note, print_json, print_table, some
from ulak.kit.commands.target import ActorOption, AppOption, NoteOption, in_force, load, reading

group = typer.Typer(invoke_without_command=True, help="What a program declares.")


@group.callback()
def flows(
    context: typer.Context,
    app: AppOption = None,
    mermaid: Annotated[
        str | None, typer.Option(metavar="NAME", help="Draw this flow, or NAME@VERSION.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the flows of a program; the store is not asked."""
    if context.invoked_subcommand is not None:
        return
    engine = load(in_force(app))
    if mermaid is not None:
        flow = find(engine, mermaid)
        if as_json:
            print_json({"flow": flow.name, "version": flow.version, "mermaid": flow.mermaid()})
        else:
            print(flow.mermaid(), end="")
        return
    declared = sorted(engine.inspect.flows, key=lambda f: (f.name, f.version))
    if as_json:
        print_json({"flows": [_document(flow) for flow in declared]})
        return
    print_table(
        ("flow", "version", "states", "lanes"),
        [
            (f.name, str(f.version), ", ".join(_own_states(f)), "\n".join(_lanes(f)))
            for f in declared
        ],
        keep=("flow", "version"),
    )  # fmt: skip


@group.command("migrate")
def migrate(
    flow: Annotated[str, typer.Argument(metavar="FLOW", help="The name of the flow.")],
    from_version: Annotated[int, typer.Option("--from", metavar="VERSION", help="Which jobs.")],
    actor: ActorOption,
    to_version: Annotated[
        int | None,
        typer.Option("--to", metavar="VERSION", help="Else the newest of this program."),
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
    as_json: JsonOption = False,
) -> None:
    """Move jobs of one version of a flow to another by an explicit map; exit 1 if any are left."""
    wanted = migration.StateMap(
        flow, from_version=from_version, to_version=to_version, states=_read_map(states or []),
        same=same,
    )  # fmt: skip
    with reading(app) as engine:
        done = migration.migrate(engine.kernel, wanted, actor=actor, note=why, dry_run=dry_run)
    if as_json:
        print_json(_migration_document(done, dry_run))
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
        print_table(("from", "to", "jobs"), rows, keep=("jobs",))
    jobs = some(sum(done.moved.values()), "job")
    verb = "would move" if dry_run else "moved"
    print(f"{verb} {jobs} of {done.flow} from version {done.from_version} to {done.to_version}")
    for job in done.left:
        note(job.detail)
    if done.left_count > len(done.left):
        note(f"{done.left_count - len(done.left)} more could not be moved")
    if done.leased:
        jobs = some(done.leased, "job")
        note(f"left alone: {jobs}, leased by a worker; run this again when their stages have ended")
    elif done.standing and not dry_run:
        note(f"left: {some(sum(done.standing.values()), 'job')} in states of the map; run it again")


def find(engine: Engine, name: str) -> Flow[Any]:
    """Return a flow by NAME, its newest version, or by NAME@VERSION.

    Raises:
        BadInput: there is none.
    """
    wanted, _, version = name.partition("@")
    found = [
        f
        for f in engine.inspect.flows
        if f.name == wanted and (not version or str(f.version) == version)
    ]
    if not found:
        known = ", ".join(sorted({f.name for f in engine.inspect.flows})) or "none"
        raise BadInput(f"there is no flow {name!r}; this program declares {known}")
    return max(found, key=lambda f: f.version)


def _document(flow: Flow[Any]) -> dict[str, Any]:
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
    """The states that the flow's own moves reach, in the order of the table."""
    own = dict.fromkeys([flow.lifecycle.initial])
    for state, ways in flow.lifecycle.moves.items():
        own.update(dict.fromkeys([state, *ways]))
    return list(own)


def _lanes(flow: Flow[Any]) -> list[str]:
    """Queue and pool of each lane; flow, version and stage are shown beside them."""
    return sorted({"/".join(lane.split("/")[:2]) for lane in flow.table.lanes}) or ["-"]
