"""The commands of installed services, as commands of `ulak`; a service is imported when one of
its own is typed, and not before."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from ulak.errors import NotSupported
from ulak.service import get_service, installed, package_of


class WithServices(TyperGroup):
    """ulak's own commands and, after them, one for each installed service.

    A service never replaces a command of ulak's own.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """Name every command."""
        own = super().list_commands(ctx)
        return [*own, *(name for name in installed() if name not in own)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Answer a command, or what stands for those of a service."""
        own = super().get_command(ctx, cmd_name)
        if own is not None or cmd_name not in (known := installed()):
            return own
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
        commands = get_service(name).commands
        if commands is None:
            raise NotSupported(f'the service "{name}" has no commands; ulak up --service {name}')
        group = typer.main.get_group(commands())
        return group.make_context(info_name, args, parent, **extra)
