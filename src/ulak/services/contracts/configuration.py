"""The settings of contracts, and the contracts that they make of an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from ulak import Engine
from ulak.services.contracts import tables
from ulak.services.contracts.contracts import TRANSITION, Contracts, OnChange
from ulak.settings import read_variables
from ulak.wiring import idempotency_settings

VERSION: Final = "HOS_CONTRACT_VERSION"
"""Names the version that is in force where nobody pins another."""
TABLES: Final = "HOS_CONTRACT_TABLES"
"""Names a folder with versions of an operator's own."""
DEFAULT_VERSION: Final = "2025-12-28"


def versions_in_force(environ: Mapping[str, str] | None = None) -> tables.Versions:
    """Read the versions that the settings name.

    Raises:
        BadInput: a file cannot be used, or the active version is not among them.
    """
    said = read_variables({VERSION: str, TABLES: _folder}, environ)
    return tables.load(said.get(VERSION, DEFAULT_VERSION), said.get(TABLES))


def contracts_of(engine: Engine, *, on_change: OnChange | None = None) -> Contracts:
    """Make the contracts of an engine, as the settings say; nothing is opened.

    Raises:
        BadInput: a setting cannot be used; one of them is for how long answers are kept.
        NotSupported: the engine's store has no transactions to share.
    """
    usual = idempotency_settings().scope(TRANSITION.name)
    scope = replace(usual, fed_for=TRANSITION.fed_for)
    return Contracts(engine, versions_in_force(), scope=scope, on_change=on_change)


def _folder(text: str) -> Path:
    folder = Path(text).expanduser()
    if not folder.is_dir():
        raise ValueError(f"there is no folder {text}")
    return folder
