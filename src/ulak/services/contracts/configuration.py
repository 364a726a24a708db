"""The contracts that the settings make of an engine."""

from __future__ import annotations

from dataclasses import replace

from ulak import Engine
from ulak.services.contracts.contracts import TRANSITION, Contracts, OnChange
from ulak.services.contracts.tables import versions_in_force
from ulak.wiring import guard_and_scope


def contracts_of(engine: Engine, *, on_change: OnChange | None = None) -> Contracts:
    """Make the contracts of an engine, as the settings say; nothing is opened. Raises `BadInput`
    for a setting that cannot be used, also for how long answers are kept, and `NotSupported` as
    `Contracts`."""
    guard, usual = guard_and_scope(engine, TRANSITION.name)
    scope = replace(usual, fed_for=TRANSITION.fed_for)
    return Contracts(engine, versions_in_force(), guard=guard, scope=scope, on_change=on_change)
