"""Commands that installed packages bring: those of services, groups under names of their own, and
additions to groups of ulak.

A package declares a group of commands under the entry-point group `ulak.commands`:

    [project.entry-points."ulak.commands"]
    proof = "acme_proofs:commands"

It is imported when a command of that name is looked for, and not before.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from ulak.errors import BadInput, NotSupported
from ulak.kit.commands.output import note
from ulak.service import get_service, installed, package_of

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


class WithServices(TyperGroup):
    """ulak's own commands and, after them, one for each installed service, and one for each group
    that a package brings. None of them replaces a command of ulak's own, and no group replaces a
    service."""

    def list_commands(self, ctx: Any) -> list[str]:
        own = super().list_commands(ctx)
        brought = dict.fromkeys([*installed(), *installed(GROUP)])
        return [*own, *(name for name in brought if name not in own)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, or what stands for those of a service or of a package."""
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        if points := installed().get(cmd_name):
            packages = " and ".join(map(package_of, points))
            return OfService(cmd_name, help=f"Commands of the service {cmd_name}, {packages}.")
        if points := _points(cmd_name):
            packages = " and ".join(dict.fromkeys(map(package_of, points)))
            return OfPackages(cmd_name, help=f"Commands of {packages}.")
        return None


class OfService(TyperCommand):
    """Stands in the help for a service, and becomes its commands when they are used."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """Import the service and go on with its commands. Raises `UlakError`: it cannot be
        imported; `NotSupported`: it has no commands."""
        name = str(self.name)
        made = get_service(name).commands
        if made is None:
            raise NotSupported(f'the service "{name}" has no commands; ulak up --service {name}')
        group = typer.main.get_group(made())
        return group.make_context(info_name, args, parent, **extra)


GROUP: Final = "ulak.commands"


class Extensible(TyperGroup):
    """The commands of a group and, after them, those that packages add under its name. No package
    replaces a command of the group's own. One that cannot be imported takes nothing but its own
    commands away."""

    def list_commands(self, ctx: Any) -> list[str]:
        own = super().list_commands(ctx)
        found: list[str] = []
        for point in _points(str(self.name)):
            try:
                found += _commands_of(point)
            except BadInput as error:
                note(str(error))
        return [*own, *(name for name in dict.fromkeys(found) if name not in own)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; None when nobody has one of this name. Raises `BadInput`: two packages
        bring it; or none does, and one that might cannot be imported."""
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        found: dict[EntryPoint, Any] = {}
        broken: list[BadInput] = []
        for point in _points(str(self.name)):
            try:
                if (command := _commands_of(point).get(cmd_name)) is not None:
                    found[point] = command
            except BadInput as error:
                broken.append(error)
        if len(found) > 1:
            packages = " and ".join(package_of(point) for point in found)
            raise BadInput(
                f'{packages} both bring "ulak {self.name} {cmd_name}"; uninstall one of them'
            )
        if not found and broken:
            raise broken[0]
        return next(iter(found.values()), None)


class OfPackages(TyperCommand):
    """Stands in the help for a group that is none of ulak's own, and becomes it when it is used."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """Go on with the commands of the packages, and with what one of them says of itself."""
        said = self.help
        for point in _points(str(self.name)):
            with suppress(BadInput):  # `list_commands` tells of it
                help = _load(point).info.help
                said = help if isinstance(help, str) else said
        group = Extensible(name=self.name, help=said, no_args_is_help=True)
        return group.make_context(info_name, args, parent, **extra)


def _points(name: str) -> list[EntryPoint]:
    return installed(GROUP).get(name, [])


def _commands_of(point: EntryPoint) -> Mapping[str, Any]:
    return typer.main.get_group(_load(point)).commands


def _load(point: EntryPoint) -> typer.Typer:
    which = f'the commands "ulak {point.name}" of {package_of(point)}'
    try:
        group = point.load()
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise BadInput(f"{which} cannot be imported: {why}") from error
    if not isinstance(group, typer.Typer):
        raise BadInput(f"{which} cannot be used: {point.value} is a {type(group).__name__}")
    return group
