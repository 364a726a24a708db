"""The commands of installed packages, as commands of `ulak`; a package is imported when one of
its own is typed, and not before."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from ulak.cli import commands
from ulak.errors import NotSupported
from ulak.service import get_service, installed, package_of


class WithServices(TyperGroup):
    """ulak's own commands and, after them, one for each installed service, and one for each
    group that a package brings.

    None of them replaces a command of ulak's own, and no group replaces a service.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """Name every command."""
        own = super().list_commands(ctx)
        brought = dict.fromkeys([*installed(), *commands.names()])
        return [*own, *(name for name in brought if name not in own)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, or what stands for those of a service or of a package."""
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        if cmd_name not in (known := installed()):
            return commands.stand_in(cmd_name)
        packages = " and ".join(package_of(point) for point in known[cmd_name])
        return OfService(cmd_name, help=f"Commands of the service {cmd_name}, {packages}.")


class OfService(TyperCommand):
    """Stands in the help for a service, and becomes its commands when they are used."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """Import the service and go on with its commands.

        Raises:
            UlakError: it cannot be imported.
            NotSupported: it has no commands.
        """
        name = str(self.name)
        made = get_service(name).commands
        if made is None:
            raise NotSupported(f'the service "{name}" has no commands; ulak up --service {name}')
        group = typer.main.get_group(made())
        return group.make_context(info_name, args, parent, **extra)
