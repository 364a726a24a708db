"""`ulak flows`: what a program declares."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ulak.cli.output import JsonOption, print_json, print_table
from ulak.cli.target import AppOption, in_force, load
from ulak.core.flow import Flow
from ulak.engine.engine import Engine
from ulak.errors import BadInput


def flows(
    app: AppOption = None,
    mermaid: Annotated[
        str | None, typer.Option(metavar="NAME", help="Draw this flow, or NAME@VERSION.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the flows of a program; the store is not asked."""
    engine = load(in_force(app))
    if mermaid is not None:
        flow = find(engine, mermaid)
        if as_json:
            print_json({"flow": flow.name, "version": flow.version, "mermaid": flow.mermaid()})
        else:
            print(flow.mermaid(), end="")
        return
    declared = sorted(engine.flows, key=lambda f: (f.name, f.version))
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


def find(engine: Engine, name: str) -> Flow[Any]:
    """Answer a flow by NAME, its newest version, or by NAME@VERSION.

    Raises:
        BadInput: there is none.
    """
    wanted, _, version = name.partition("@")
    found = [
        f for f in engine.flows if f.name == wanted and (not version or str(f.version) == version)
    ]
    if not found:
        known = ", ".join(sorted({f.name for f in engine.flows})) or "none"
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
