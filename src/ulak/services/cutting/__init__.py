"""Cutting: orders of furniture parts on their way through an optimiser to the saw.

ulak up --service cutting
"""

from __future__ import annotations

from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ulak import Engine
from ulak.auth import OPERATOR, SERVICE, VIEWER, AccessScope
from ulak.errors import NotSupported
from ulak.service import Condition, Service
from ulak.settings import Settings, read_variables
from ulak.tables import JobView, Schema, TrailView

if TYPE_CHECKING:
    from ulak.services.cutting.jobs import Cutting

FLOW: Final = "cutting"
FOLDER: Final = "CUTTING_FOLDER"
"""The variable that names the folder of `rules.json` and `paths.json`."""
SCHEMA: Final = Schema(
    "cutting", folder=files(__name__) / "sql", version_table="cutting_schema",
    why="a step of an order and its rows are one commit",
    jobs=JobView("cutting_flow_jobs", flow=FLOW), trail=TrailView("cutting_flow_trail", flow=FLOW),
)  # fmt: skip
READ: Final = AccessScope(
    "cutting:read", "read orders of cutting, their plans and their customers",
    roles={VIEWER, OPERATOR, SERVICE}, of_a_tenant=False,
)  # fmt: skip
ACT: Final = AccessScope(
    "cutting:act", "send orders to be cut, and approve, retry and cancel them",
    roles={OPERATOR, SERVICE}, of_a_tenant=False,
)  # fmt: skip
CONFIGURE: Final = AccessScope(
    "cutting:configure", "change rules and paths of cutting, and reset its breaker",
    roles=(), of_a_tenant=False,
)  # fmt: skip
SCOPES: Final = (READ, ACT, CONFIGURE)


def attach(engine: Engine, platform: Settings) -> Cutting:
    """Give an engine the flows of cutting; the files of rules and paths are made where they are
    absent, the store is not opened. Raises `BadInput`: a file or a setting cannot be used, and
    which key is why; `NotSupported`: the extra is not installed, or the store is no database."""
    made: Cutting = _import("jobs").Cutting(engine, find_folder(platform))
    return made


def find_folder(platform: Settings) -> Path:
    """Return the folder of rules and paths: below the data folder, if no variable names it."""
    named = read_variables({FOLDER: Path}).get(FOLDER)
    return platform.data / "cutting" if named is None else named


def _check_condition(platform: Settings) -> Condition:
    from ulak.services.cutting.codes import ConfigUnavailable
    from ulak.services.cutting.rules import Config

    folder = find_folder(platform)
    shown = {FOLDER: (str(folder), FOLDER if read_variables({FOLDER: str}) else "default")}
    if not (folder / "paths.json").exists():
        return Condition(shown, ["rules and paths of cutting are made at the first start"])
    try:
        program = Config(folder).paths().exe_path
    except ConfigUnavailable as error:
        return Condition(shown, missing=[f"{error}; until it is mended nothing is cut"])
    notes = [] if program.exists() else [f"{program} is not there: new orders are cut in mode E"]
    return Condition(shown, notes)


def _import(module: str) -> Any:
    """Return a module of cutting. Raises `NotSupported`: the extra is not installed."""
    wanted = ("openpyxl", "defusedxml", "pydantic")
    if missing := next((name for name in wanted if find_spec(name) is None), ""):
        raise NotSupported(f"cutting needs {missing}; pip install 'ulak[cutting,web]'")
    return import_module(f"{__name__}.{module}")


service: Final = Service(
    "cutting", attach=attach, scopes=SCOPES, condition=_check_condition,
    start=lambda engine, cutting, address: cutting.start(address),
    routes=lambda engine, cutting: _import("routes").make_routes(engine, cutting),
    address=lambda engine, cutting: _import("routes").BARE.make(engine),
    commands=lambda: _import("commands").group,
)  # fmt: skip
