"""Cutting: orders of furniture parts on their way through an optimiser to the saw.

ulak up --service cutting
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ulak import Engine
from ulak.errors import NotSupported
from ulak.service import Condition, Service
from ulak.services.cutting.scopes import SCOPES
from ulak.settings import Settings, read_variables
from ulak.tables import JobView, Schema, Tables, TrailView

if TYPE_CHECKING:
    from ulak.services.cutting.delivery import Deliveries
    from ulak.services.cutting.jobs import Jobs
    from ulak.services.cutting.order import Customers
    from ulak.services.cutting.panel import Breaker
    from ulak.services.cutting.rules import Config

FLOW: Final = "cutting"
FOLDER: Final = "CUTTING_FOLDER"
"""The variable that names the folder of `rules.json` and `paths.json`."""
SCHEMA: Final = Schema(
    "cutting",
    folder=files(__name__) / "sql",
    version_table="cutting_schema",
    why="a step of an order and its rows are one commit",
    jobs=JobView("cutting_flow_jobs", flow=FLOW),
    trail=TrailView("cutting_flow_trail", flow=FLOW),
)


@dataclass(frozen=True, slots=True)
class Cutting:
    """Everything of cutting in one process."""

    engine: Engine
    config: Config
    tables: Tables
    customers: Customers
    deliveries: Deliveries
    breaker: Breaker
    jobs: Jobs


def attach(engine: Engine, platform: Settings) -> Cutting:
    """Give an engine the flows of cutting; the files of rules and paths are made where they are
    absent, the store is not opened. Raises `BadInput`: a file or a setting cannot be used, and
    which key is why; `NotSupported`: the extra is not installed, or the store is no database."""
    _check_extra()
    from ulak.services.cutting.delivery import Deliveries
    from ulak.services.cutting.flow import Stages
    from ulak.services.cutting.jobs import Jobs
    from ulak.services.cutting.order import Customers
    from ulak.services.cutting.panel import Breaker
    from ulak.services.cutting.records import Records
    from ulak.services.cutting.rules import Config

    tables = Tables(engine, SCHEMA)
    config = Config(find_folder(platform))
    config.start()
    customers, breaker = Customers(tables), Breaker(tables)
    deliveries = Deliveries(engine, tables)
    records = Records(tables)
    stages = Stages(engine, config, records, deliveries, breaker, customers)
    jobs = Jobs(engine, stages.declare(), tables, config, records)
    return Cutting(engine, config, tables, customers, deliveries, breaker, jobs)


def find_folder(platform: Settings) -> Path:
    """Return the folder of rules and paths: below the data folder, if no variable names it."""
    named = read_variables({FOLDER: Path}).get(FOLDER)
    return platform.data / "cutting" if named is None else named


def _start(engine: Engine, cutting: Cutting, address: str | None) -> Mapping[str, str]:
    """Make the tables, with the views for people who look with SQL; bring the slots of the
    optimiser to what the rules say."""
    from ulak.services.cutting.chores import set_slots

    cutting.tables.ensure()
    set_slots(engine, cutting.config.rules())
    return {} if address is None else {"orders": f"{address}/cutting/"}


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


def _check_extra() -> None:
    wanted = ("openpyxl", "defusedxml", "pydantic")
    if missing := next((name for name in wanted if find_spec(name) is None), ""):
        raise NotSupported(f"cutting needs {missing}; pip install 'ulak[cutting,web]'")


def _import(module: str) -> Any:
    _check_extra()
    return import_module(f"{__name__}.{module}")


service: Final = Service(
    "cutting", attach=attach, scopes=SCOPES, condition=_check_condition, start=_start,
    routes=lambda engine, cutting: _import("routes").make_routes(engine, cutting),
    address=lambda engine, cutting: _import("routes").BARE.make(engine),
    commands=lambda: _import("commands").group,
)  # fmt: skip
