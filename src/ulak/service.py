"""Services: flows, routes and commands that a package brings, found by name and never imported
before somebody asks for them.

A package declares one under the entry-point group `ulak.services`:

    [project.entry-points."ulak.services"]
    letters = "acme_letters:service"
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Final

from ulak.auth.principal import AccessScope, Scopes, add_scopes
from ulak.engine.engine import Engine
from ulak.errors import BadInput, NotFound, UlakError
from ulak.settings import Settings

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    import typer
    from fastapi import FastAPI

    from ulak.web.access import Routes

__all__ = ["Address", "Condition", "Service", "attach", "get_service"]

GROUP: Final = "ulak.services"


@dataclass(frozen=True, slots=True)
class Condition:
    """How it stands with a service on this machine, for `ulak doctor`."""

    settings: Mapping[str, tuple[str, str]]
    """For each of its variables the value in force, as it may be printed, and where it is from."""
    notes: Sequence[str] = ()
    """What is missing or weaker here, and how to mend it, a sentence or two each."""
    missing: Sequence[str] = ()
    """What keeps it from working here, what that costs and how to mend it: `ulak up` says it, and
    `ulak doctor` exits 1."""
    try_out: Callable[[], Sequence[str]] | None = None
    """Finds what keeps it from working here and only a try shows, as `missing` has it; called by
    `ulak doctor` alone."""


@dataclass(frozen=True, slots=True)
class Address:
    """A further address of a service: what other programs know by a port and paths of its own."""

    port: int
    """Of the host on which `ulak up` listens; 0 for any."""
    variable: str
    """The environment variable that chooses the port."""
    app: Callable[[Callable[[], str | None]], FastAPI]
    """Makes the application that is served there, once the engines are open. It gets a function
    that says what the process still lacks before it can work, None when nothing."""


@dataclass(frozen=True, slots=True)
class Service:
    """What a package brings. Every part is a function, called when it is needed and not before:
    a worker needs no web framework, and a command line no flows."""

    name: str
    """The same as that of its entry point."""
    _: KW_ONLY
    attach: Callable[[Engine, Settings], Any]
    """Gives an engine the service's flows, resources, schedules and queues apart; called once
    for each engine, before it is opened. What it returns is handed to `routes`."""
    routes: Callable[[Engine, Any], Routes] | None = None
    """Makes its routes, each with a line that says who may call it; called with the engine and
    with what `attach` has returned for it."""
    scopes: Sequence[AccessScope] = ()
    """What callers of its routes may be allowed to do, besides what the platform knows."""
    commands: Callable[[], typer.Typer] | None = None
    """Makes its commands, which stand below `ulak NAME`."""
    condition: Callable[[Settings], Condition] | None = None
    """Tells what of it is in force here, and what this machine lacks."""
    store: Callable[[], str] | None = None
    """Returns the URL of the store that it is run on where neither an APP nor ULAK_STORE names one;
    '' for the file in the data folder."""
    engines: Callable[[Any], Iterable[Engine]] | None = None
    """Returns, of what `attach` has returned, further engines of the service, on stores of its own:
    `ulak up` and `ulak worker` open them and run their jobs too."""
    start: Callable[[Engine, Any, str | None], Mapping[str, str]] | None = None
    """Called by `ulak up`, with the address at which it serves, and by `ulak worker`, with None,
    before they work: with the engine and with what `attach` has returned; all engines are open. It
    returns what `ulak up` says of it: a word, and what is to be read after it. What it raises ends
    the process."""
    address: Callable[[Engine, Any], Address] | None = None
    """Returns the address that `ulak up` opens for it besides its own, and prints by its name;
    called with the engine and with what `attach` has returned."""
    verify: Callable[[Engine, Settings], Iterable[tuple[str, str, str]]] | None = None
    """Finds what the service keeps that does not fit its jobs: a kind, which is stable, the id of
    the job or '', and a sentence with a cure. `ulak verify` prints it with its own findings."""


def installed(group: str = GROUP) -> Mapping[str, list[EntryPoint]]:
    """Return what packages of this environment declare, the services unless another group is
    named, by name and in the order of the packages' names; nothing is imported."""
    # Here and not above: every command would pay for it, and few ask.
    from importlib.metadata import entry_points

    found: dict[str, list[EntryPoint]] = {}
    # Python lists packages as the file system does, and two machines would answer differently.
    for point in sorted(entry_points(group=group), key=package_of):
        found.setdefault(point.name, []).append(point)
    return dict(sorted(found.items()))


def get_service(name: str) -> Service:
    """Import an installed service and return it. Raises `NotFound`: no installed package brings it;
    `BadInput`: two packages bring it, or it cannot be imported or is no service."""
    known = installed()
    if name not in known:
        names = ", ".join(known) or "none"
        raise NotFound(f'there is no service "{name}"; installed are {names}')
    if len(known[name]) > 1:
        packages = " and ".join(package_of(point) for point in known[name])
        raise BadInput(f'{packages} both bring the service "{name}"; uninstall one of them')
    (point,) = known[name]
    which = f'the service "{name}" of {package_of(point)}'
    try:
        found = point.load()
    except Exception as error:
        raise BadInput(f"{which} cannot be imported: {_said(error)}") from error
    if not isinstance(found, Service):
        raise BadInput(f"{which} cannot be used: {point.value} is a {type(found).__name__}")
    if found.name != name:
        raise BadInput(f'{which} cannot be used: {point.value} calls itself "{found.name}"')
    return found


def attach(service: Service, engine: Engine, settings: Settings) -> None:
    """Give an engine what a service brings. Raises `UlakError`: as the service or the engine says
    it; `BadInput`: the service failed in a way of its own."""
    try:
        engine.kernel.attached[service.name] = service, service.attach(engine, settings)
    except UlakError:
        raise
    except Exception as error:
        raise BadInput(f'the service "{service.name}" cannot be started: {_said(error)}') from error


def further_engines(engine: Engine) -> list[Engine]:
    """Return the engines that the services of an engine have besides it."""
    return [
        further
        for service, attached in engine.kernel.attached.values()
        if service.engines is not None
        for further in service.engines(attached)
        if further is not engine
    ]


def further_addresses(engine: Engine) -> dict[str, Address]:
    """Return the addresses that the services of an engine have of their own, by service."""
    return {
        name: service.address(engine, attached)
        for name, (service, attached) in engine.kernel.attached.items()
        if service.address is not None
    }


def start(engine: Engine, address: str | None) -> Mapping[str, str]:
    """Have the services of an engine begin; return what they say of it. Raises what they do."""
    said: dict[str, str] = {}
    for service, attached in engine.kernel.attached.values():
        if service.start is not None:
            said |= service.start(engine, attached, address)
    return said


def scopes_in(engine: Engine) -> Scopes:
    """Return the platform's scopes and those of the services that an engine has."""
    return add_scopes(*(service.scopes for service, _ in engine.kernel.attached.values()))


def package_of(point: EntryPoint) -> str:
    return "an unknown package" if point.dist is None else f"package {point.dist.name}"


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
