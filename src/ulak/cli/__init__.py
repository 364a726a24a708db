"""The command line: one file per group of commands, one place where errors become lines."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import NoReturn

from ulak.errors import UlakError


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit: 0 when it did its work, 1 when it could not, 2 when misused."""
    from ulak.cli.program import program
    from ulak.kit.commands.output import complain

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A terminal that cannot show a character gets its number, not an error.
            stream.reconfigure(errors="backslashreplace")
    try:
        program(args=None if arguments is None else list(arguments), prog_name="ulak")
    except UlakError as error:
        complain(str(error))
    except OSError as error:
        # A folder that is missing, a file that may not be read: the message names it.
        complain(str(error))
    sys.exit(1)
