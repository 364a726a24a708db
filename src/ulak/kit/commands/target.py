"""Which program a command is about, `module:engine`, and who types the command."""

from __future__ import annotations

import importlib
import os
import pwd
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any
from urllib.parse import quote

import typer

from ulak import settings
from ulak.engine.engine import Engine
from ulak.errors import BadInput
from ulak.kit.commands.output import note
from ulak.service import attach, get_service
from ulak.settings import COMMAND_LINE, Settings, read_services
from ulak.wiring import connect

DATABASE = "ulak.db"

AppOption = Annotated[
    str | None,
    typer.Option("--app", "-a", metavar="APP", help="module:engine; else ULAK_APP or pyproject."),
]
AppArgument = Annotated[
    str | None, typer.Argument(metavar="APP", help="module:engine; else ULAK_APP or pyproject.")
]


ServiceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--service", metavar="NAMES",
        help="Installed services, with commas between them; else ULAK_SERVICE or pyproject.",
    ),
]  # fmt: skip


def user_name() -> str:
    """Return the user of this process, as the system and not the environment knows it."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid-{os.getuid()}"


ActorOption = Annotated[
    str, typer.Option(default_factory=user_name, show_default="you", help="Who acts.")
]
HostOption = Annotated[
    str | None, typer.Option(help="Listen on this address; else ULAK_HOST or 127.0.0.1.")
]
NoteOption = Annotated[str, typer.Option("--note", "-n", help="Why, for whoever reads the trail.")]


@contextmanager
def reading(app: str | None) -> Iterator[Engine]:
    """Load the engine of a command that reads or acts, open it, and close it afterwards."""
    engine = load(in_force(app))
    if not engine.store.features.shared:
        note(f"the {engine.store.features.name} store is not shared: no other process's jobs here")
    with engine:
        yield engine


def in_force(app: str | None, services: list[str] | None = None) -> Settings:
    """Return the settings with the APP and the services that were typed, those of a file `.env`
    too; `BadParameter`: there are none."""
    settings.read_env_file()
    try:
        service = read_services(",".join(services)) if services else None
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--service") from None
    found = settings.load().override(COMMAND_LINE, app=app, service=service)
    if not found.app and not found.service:
        raise typer.BadParameter(
            "which program? Name it as module:engine, in ULAK_APP, or as [tool.ulak] app "
            "in ./pyproject.toml; or name installed services in ULAK_SERVICE.",
            param_hint="APP",
        )
    return found


def load(found: Settings) -> Engine:
    """Return the engine that APP names, or one on the store of the settings, with the services.
    Raises `BadInput` when there is no such engine, importing it fails or a service cannot be
    used, and `NotFound` when a service is not installed."""
    services = [get_service(name) for name in found.services]
    wanted = [service.store() for service in services if service.store is not None]
    if found.app:
        engine = _named(found)
    elif store := found.store or next(filter(None, wanted), ""):
        engine = connect(store)
    else:
        found.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        engine = connect(f"sqlite:///{quote(str(found.data / DATABASE))}")
    for service in services:
        attach(service, engine, found)
    return engine


def load_service(name: str, app: str | None = None) -> tuple[Settings, Engine, Any]:
    """Return the settings, the engine that `--app` or they name, and what a service has attached to
    it: for the service's own commands. Nothing is opened. Raises as `load`."""
    found = in_force(app, [name])
    engine = load(found)
    return found, engine, engine.kernel.attached[name][1]


@contextmanager
def opened_service(name: str, app: str | None = None) -> Iterator[Any]:
    """Return, for the length of a block, what a service has attached to the engine that `--app` or
    the settings name; the engine is open. Raises as `load`."""
    _, engine, attached = load_service(name, app)
    with engine:
        yield attached


def _named(found: Settings) -> Engine:
    app, source = found.app, found.source("app")
    module_name, colon, path = app.partition(":")
    parts = [*module_name.split("."), *path.split(".")]
    is_file = "/" in module_name or module_name.endswith(".py")
    if is_file or not colon or not all(part.isidentifier() for part in parts):
        hint = "write module:engine, for example examples.demo:engine"
        if is_file:
            hint = "write the module with dots, for example examples.demo:engine"
        raise BadInput(f"APP {app!r} ({source}) names no engine; {hint}")
    found_thing: Any = _module(module_name)
    for part in path.split("."):
        try:
            found_thing = getattr(found_thing, part)
        except AttributeError:
            raise BadInput(f"APP {app!r}: {module_name} has no {path!r}") from None
    if not isinstance(found_thing, Engine):
        kind = type(found_thing).__name__
        raise BadInput(f"APP {app!r} is a {kind}, not an engine; ulak.connect(...) makes one")
    return found_thing


def _module(name: str) -> ModuleType:
    # A program lies where the command is typed, as with `python -m`.
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise BadInput(f"there is no module {name!r} in {here} or installed") from None
        raise BadInput(f"{name} cannot be imported: {_last_line(error)}") from error
    except Exception as error:
        raise BadInput(f"{name} cannot be imported: {_last_line(error)}") from error


def _last_line(error: Exception) -> str:
    """Say what a module raised, and in which of its lines."""
    said = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    if isinstance(error, SyntaxError):
        return f"{said} ({error.filename}, line {error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    return f"{said} ({frames[-1].filename}, line {frames[-1].lineno})" if frames else said
