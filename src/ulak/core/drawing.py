"""The lifecycle as a picture: generated, so that it cannot lie."""

from __future__ import annotations

from typing import Any

from ulak.core import checks
from ulak.core.flow import Flow
from ulak.core.lifecycle import FINAL


def mermaid(flow: Flow[Any]) -> str:
    """Draw a flow as a Mermaid state diagram: the declared moves, and what makes each."""
    table = flow.table
    moves = checks.moves_of(flow)
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
