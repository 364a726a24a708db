"""The platform's settings: where each comes from, and every bad one named at once.

An environment variable wins over `[tool.ulak]` in ./pyproject.toml, which wins over the default;
what is typed on the command line wins over all three. This file and `wiring.py` are the only
ones that read the environment.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ulak.errors import BadInput

PREFIX = "ULAK_"
ENVIRONMENTS = ("dev", "production")
HIGHEST_PORT = 65535


@dataclass(frozen=True, slots=True)
class Settings:
    """What is in force."""

    _: KW_ONLY
    app: str = ""
    """`module:engine` of the program, '' when nobody has said it."""
    host: str = "127.0.0.1"
    """The address that `ulak up` listens on; nobody is asked who they are, so only this machine."""
    port: int = 8000
    env: str = "dev"
    """`dev` logs lines for people, `production` one JSON document a line."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """For each setting that is not the default, where its value was found."""

    def source(self, name: str) -> str:
        """Say where a setting's value comes from."""
        return self.sources.get(name, "default")

    def override(self, source: str, **typed: Any) -> Settings:
        """Answer these settings with those that were typed, that is, those that are not None."""
        said = {name: value for name, value in typed.items() if value is not None}
        return replace(self, **said, sources={**self.sources, **dict.fromkeys(said, source)})


def load(environ: Mapping[str, str] | None = None, folder: Path | None = None) -> Settings:
    """Read the settings of this process.

    Args:
        environ: The environment, by default the process's own.
        folder: Where pyproject.toml may stand, by default the current directory.

    Raises:
        BadInput: naming every value that cannot be used.
    """
    environ = os.environ if environ is None else environ
    path = (Path() if folder is None else folder) / "pyproject.toml"
    wrong: list[str] = []
    found: dict[str, Any] = {}
    sources: dict[str, str] = {}

    def take(name: str, value: Any, source: str) -> None:
        try:
            found[name] = _READERS[name](value)
            sources[name] = source
        except ValueError as error:
            wrong.append(f"{source} is {value!r}: {error}")

    for name, value in _of_project(path, wrong).items():
        if name in _READERS:
            take(name, value, f"[tool.ulak] {name} in {path}")
        else:
            known = ", ".join(_READERS)
            wrong.append(f"[tool.ulak] {name} in {path} is no setting; there are {known}")
    for name in _READERS:
        # An empty variable is how shells and compose files say "not set".
        if value := environ.get(variable(name), ""):
            take(name, value, variable(name))
    if wrong:
        raise BadInput("; ".join(wrong))
    return Settings(**found, sources=sources)


def variable(name: str) -> str:
    """Name the environment variable of a setting."""
    return PREFIX + name.upper()


def names() -> tuple[str, ...]:
    """Every setting, in the order they are shown."""
    return tuple(f.name for f in fields(Settings) if f.name in _READERS)


def _of_project(path: Path, wrong: list[str]) -> Mapping[str, Any]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        wrong.append(f"{path} cannot be read: {error}")
        return {}
    tool = document.get("tool", {})
    section = tool.get("ulak", {}) if isinstance(tool, dict) else {}
    if not isinstance(section, dict):
        wrong.append(f"[tool.ulak] in {path} is not a table")
        return {}
    return section


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("write a text")
    return value.strip()


def _port(value: Any) -> int:
    text = str(value)
    if isinstance(value, bool) or not (text.isascii() and text.isdigit()):
        raise ValueError(f"write a number from 0 to {HIGHEST_PORT}")
    if int(text) > HIGHEST_PORT:
        raise ValueError(f"write a number from 0 to {HIGHEST_PORT}")
    return int(text)


def _env(value: Any) -> str:
    if value not in ENVIRONMENTS:
        raise ValueError(f"write {' or '.join(ENVIRONMENTS)}")
    return str(value)


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "app": _text,
    "host": _text,
    "port": _port,
    "env": _env,
}
