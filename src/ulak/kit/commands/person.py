"""Who types: the operating system's word for it, not the environment's."""

from __future__ import annotations

import os
import pwd
from typing import Annotated

import typer


def user_name() -> str:
    """Return the name of the user who runs this process."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid-{os.getuid()}"


ActorOption = Annotated[
    str, typer.Option(default_factory=user_name, show_default="you", help="Who acts.")
]
NoteOption = Annotated[str, typer.Option("--note", "-n", help="Why, for whoever reads the trail.")]
