"""The platform's settings: where each comes from, and every bad one named at once.

An environment variable wins over `[tool.ulak]` in ./pyproject.toml, which wins over the default;
what is typed on the command line wins over all three. This file and `wiring.py` are the only
ones that read the environment.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Container, Mapping
from dataclasses import KW_ONLY, Field, dataclass, field, fields, replace
from datetime import timedelta
from ipaddress import ip_network
from pathlib import Path
from shlex import quote
from typing import Any, Final
from urllib.parse import urlsplit

from ulak.auth import secrets
from ulak.auth.tokens import SHORTEST_SECRET, is_token
from ulak.errors import BadInput, Unauthenticated
from ulak.store import without_password

__all__ = [
    "ENVIRONMENTS",
    "Settings",
    "describe_settings",
    "describe_variables",
    "header_text",
    "is_placeholder",
    "load",
    "number",
    "queue_name",
    "read_env_file",
    "read_settings",
    "read_variables",
    "setting",
    "span",
    "variable",
    "web_address",
    "whole_number",
    "yes_no",
]

PREFIX = "ULAK_"
ENVIRONMENTS = ("dev", "production")
HIGHEST_PORT = 65535
COMMAND_LINE: Final = "command line"
"""The source of a setting that was typed."""

SECRETS: Final = frozenset({"secret", "admin_key"})
"""Settings whose values nobody is shown, and that no file of a project may hold."""
MAKE_ONE: Final = "make one with `openssl rand -hex 32`"
_QUEUE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,99}")
_YES_NO: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
# How the secrets of examples read. Whoever copies one has the same as everybody else.
PLACEHOLDERS: Final = (
    "change-me", "change_me", "changeme", "replace-me", "replace_me", "replaceme", "placeholder",
    "your-secret", "your_secret", "xxxxxxxx",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Settings:
    """What is in force."""

    _: KW_ONLY
    app: str = ""
    """`module:engine` of the program, '' when nobody has said it."""
    host: str = "127.0.0.1"
    """The address that `ulak up` listens on: only this machine, unless told otherwise."""
    port: int = 8000
    env: str = "dev"
    """`dev` logs lines for people, `production` one JSON document a line."""
    data: Path = Path(".ulak")
    """The folder of what ulak keeps beside the store: in dev, the secret that it has made."""
    secret: str = field(default="", repr=False)
    """What tokens are signed with, the same in every process; '' when nobody has said it."""
    admin_key: str = field(default="", repr=False)
    """The first admin key, stored at start if it is not; '' for none."""
    service: str = ""
    """The installed services that are run, with commas between them, '' for none."""
    store: str = ""
    """The URL of the store when services are run without an `app`, '' for a file in the data
    folder."""
    trusted_proxies: str = ""
    """The addresses and networks of the proxies before `ulak up`, with commas between them: what
    they say of who calls, and by which scheme, is believed. '' believes nobody."""
    rq_queues: str = ""
    """The queues whose jobs RQ workers run, with commas between them, '' for none."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """For each setting that is not the default, where its value was found."""

    def source(self, name: str) -> str:
        return self.sources.get(name, "default")

    @property
    def services(self) -> tuple[str, ...]:
        return tuple(filter(None, self.service.split(",")))

    @property
    def queues_by_rq(self) -> tuple[str, ...]:
        return tuple(filter(None, self.rq_queues.split(",")))

    @property
    def program(self) -> str:
        """What is run, for people: the app, and the services."""
        services = ", ".join(self.services)
        return " with ".join(filter(None, (self.app, services)))

    @property
    def address(self) -> str:
        """The URL at which `ulak up` serves with these settings."""
        return http_address(self.host, self.port)

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of a child that is to know the address that was taken."""
        own = {variable("host"): self.host, variable("port"): str(self.port)}
        return {**os.environ, **own}

    def command(self, words: str, *, name: str = "ulak") -> str:
        """Return a line to type that runs a command about this same program."""
        typed = {setting for setting, source in self.sources.items() if source == COMMAND_LINE}
        service = f"{variable('service')}={self.service} " if "service" in typed else ""
        app = f" -a {self.app}" if "app" in typed else ""
        return f"{service}{name} {words}{app}"

    def link_command(self, address: str, *, name: str = "ulak") -> str:
        """Return the line that prints a link to log in at this address."""
        is_usual = address == Settings().address
        words = "link" if is_usual else f"link --address {quote(address)}"
        # An app tells which store it is; a service is named only where nothing else does.
        needed = {k: source for k, source in self.sources.items() if k != "service" or not self.app}
        return replace(self, sources=needed).command(words, name=name)

    def shown(self, name: str) -> Any:
        """Return a setting as it may be printed: of a secret, only whether it is set."""
        value = getattr(self, name)
        if name in SECRETS:
            return "set" if value else "not set"
        if name == "store":
            return without_password(value)
        return str(value) if isinstance(value, Path) else value

    def listening(self, host: str | None, port: int | None, usual: int | None = None) -> Settings:
        """Return these settings with the address that was typed; where no port was typed or is set,
        it is the usual one of a process."""
        default = usual if self.source("port") == "default" else None
        return self.override(COMMAND_LINE, host=host, port=default if port is None else port)

    def override(self, source: str, **typed: Any) -> Settings:
        """Return these settings with those that were typed, that is, those that are not None."""
        said = {name: value for name, value in typed.items() if value is not None}
        return replace(self, **said, sources={**self.sources, **dict.fromkeys(said, source)})


def load(environ: Mapping[str, str] | None = None, folder: Path | None = None) -> Settings:
    """Read the settings of this process, from its environment and the pyproject.toml of the current
    directory unless others are given. Raises `BadInput`: naming every value that cannot be used."""
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
            said = "" if name in SECRETS else f" is {value!r}"
            wrong.append(f"{source}{said}: {error}")

    for name, value in _of_project(path, wrong).items():
        if name in SECRETS:
            wrong.append(
                f"[tool.ulak] {name} in {path}: a secret does not belong in a file that many "
                f"read; set {variable(name)}"
            )
        elif name in _READERS:
            take(name, value, f"[tool.ulak] {name} in {path}")
        else:
            known = ", ".join(name for name in _READERS if name not in SECRETS)
            wrong.append(f"[tool.ulak] {name} in {path} is no setting; there are {known}")
    for name in _READERS:
        # An empty variable is how shells and compose files say "not set".
        if value := environ.get(variable(name), ""):
            take(name, value, variable(name))
    if wrong:
        raise BadInput("; ".join(wrong))
    return Settings(**found, sources=sources)


def read_env_file(folder: Path | None = None) -> bool:
    """Take the variables of the file `.env` of the current directory, or of another, into the
    environment of this process; those that are set already win. False: there is a file, and
    python-dotenv, which reads it, is not installed."""
    path = (Path() if folder is None else folder) / ".env"
    if not path.is_file():
        return True
    try:
        from dotenv import load_dotenv
    except ModuleNotFoundError:
        return False
    load_dotenv(path)
    return True


def read_variables(
    readers: Mapping[str, Callable[[str], Any]], environ: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the values of variables of another name than `ULAK_...`, as specifications of services
    name them, of those that are set; an empty variable is not set.

    A reader takes the text of its variable and raises `ValueError` saying what to write instead,
    without quoting a secret. Raises `BadInput`: naming every value that cannot be used.
    """
    environ = os.environ if environ is None else environ
    found: dict[str, Any] = {}
    wrong: list[str] = []
    for name, read in readers.items():
        if text := environ.get(name, "").strip():
            try:
                found[name] = read(text)
            except ValueError as error:
                wrong.append(f"{name}: {error}")
    if wrong:
        raise BadInput("; ".join(wrong))
    return found


def setting(name: str, read: Callable[[str], Any], usual: Any = "", *, secret: bool = False) -> Any:
    """Return a field of a dataclass of settings, which has the value of a variable:

        @dataclass(frozen=True, slots=True)
        class LettersSettings:
            url: str = setting("LETTERS_URL", web_address, "https://letters.example.org")
            key: str = setting("LETTERS_KEY", header_text, secret=True)

    Args:
        name: The variable.
        read: Reads its text, as `read_variables` has it.
        usual: What holds where it is not set: a text as it would be written there, or the value.
        secret: Whether nobody is shown it.
    """
    default = read(usual) if isinstance(usual, str) and usual else usual
    return field(default=default, repr=not secret, metadata={"variable": name, "read": read})


def read_settings(
    kind: type[Any],
    environ: Mapping[str, str] | None = None,
    *,
    readers: Mapping[str, Callable[[str], Any]] | None = None,
) -> dict[str, Any]:
    """Return the values that are set of a dataclass whose fields are made by `setting`, by field.

    `readers` are of variables besides, whose values are found by the names of the variables, or
    stand in for those of the fields. Raises `BadInput`: naming every value that cannot be used.
    """
    declared = _fields_by_variable(kind)
    own = {name: each.metadata["read"] for name, each in declared.items()}
    found = read_variables(own | dict(readers or {}), environ)
    return {declared[name].name if name in declared else name: found[name] for name in found}


def describe_settings(settings: Any) -> Mapping[str, tuple[str, str]]:
    """Return what `describe_variables` does, of a dataclass whose fields are made by `setting`."""
    declared = _fields_by_variable(settings)
    values = {name: getattr(settings, each.name) for name, each in declared.items()}
    return describe_variables(values, secrets=[name for name in values if not declared[name].repr])


def describe_variables(
    values: Mapping[str, Any],
    *,
    secrets: Container[str],
    environ: Mapping[str, str] | None = None,
) -> Mapping[str, tuple[str, str]]:
    """Return, for each variable, its value as it may be printed and where that is from: as
    `Condition` has them."""
    said = read_variables(dict.fromkeys(values, str), environ)
    shown = {name: _show(value, name in secrets) for name, value in values.items()}
    return {name: (text, name if name in said else "default") for name, text in shown.items()}


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """Return a reader, as `read_variables` takes them, of a number from `least` to `most`."""

    def read(text: str) -> int:
        # Twelve digits are more than any setting takes, and int() of a million takes its time.
        good = text.isascii() and text.isdigit() and len(text) <= 12
        if not good or not least <= int(text) <= most:
            raise ValueError(f"it is {text[:20]!r}; write a number from {least} to {most}")
        return int(text)

    return read


def number(least: float, most: float) -> Callable[[str], float]:
    """Return a reader of a number from `least` to `most`, which may have a decimal point."""

    def read(text: str) -> float:
        is_number = re.fullmatch(r"\d{1,12}(\.\d{1,9})?", text, re.ASCII)
        if not is_number or not least <= float(text) <= most:
            raise ValueError(f"it is {text[:20]!r}; write a number from {least:g} to {most:g}")
        return float(text)

    return read


def span(read: Callable[[str], float], unit: str = "seconds") -> Callable[[str], timedelta]:
    """Return a reader of a span, of one that reads its number; the unit is one of `timedelta`'s."""
    return lambda text: timedelta(**{unit: read(text)})


def yes_no(text: str) -> bool:
    """Read true or false, yes or no, 1 or 0, in either case."""
    if text.lower() not in _YES_NO:
        raise ValueError(f"it is {text[:20]!r}; write true or false")
    return _YES_NO[text.lower()]


def queue_name(text: str) -> str:
    """Read the name of a queue."""
    if not _QUEUE.fullmatch(text):
        raise ValueError(f"it is {text[:100]!r}; write letters, digits and . _ : -")
    return text


def web_address(text: str) -> str:
    """Read the address of a web server, perhaps with a path; without a slash at the end. Raises
    `ValueError`: it is none, and how one looks."""
    # Not quoted: who wrote a password into it need not find it in a log.
    advice = "write it as https://example.org"
    try:
        parts = urlsplit(text)
        port_is_good = parts.port is None or parts.port > 0
    except ValueError:
        raise ValueError(f"it is no URL; {advice}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_good:
        raise ValueError(f"it is no address of a web server; {advice}")
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"it has a user in it, which others would read; {advice}")
    if parts.query or parts.fragment or not text.isprintable() or " " in text:
        raise ValueError(f"it has more in it than an address and a path; {advice}")
    return text.rstrip("/")


def header_text(text: str) -> str:
    """Read what is sent in a header, as a key. Raises `ValueError`, without quoting it."""
    if not all("!" <= letter <= "~" for letter in text):
        raise ValueError("it has characters that no header takes; write the key alone")
    return text


def http_address(host: str, port: int) -> str:
    """Return the URL of a host and a port, an IPv6 address in brackets."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def variable(name: str) -> str:
    return PREFIX + name.upper()


def names() -> tuple[str, ...]:
    return tuple(f.name for f in fields(Settings) if f.name in _READERS)


def _fields_by_variable(settings: Any) -> Mapping[str, Field[Any]]:
    return {f.metadata["variable"]: f for f in fields(settings) if "variable" in f.metadata}


def _show(value: Any, is_secret: bool) -> str:
    if is_secret:
        return "set" if value else "not set"
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g} s"
    if isinstance(value, frozenset | tuple):
        return ", ".join(sorted(value)) or "none"
    return "not set" if value in (None, "") else str(value)


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
    is_number = not isinstance(value, bool) and text.isascii() and text.isdigit()
    if not is_number or int(text) > HIGHEST_PORT:
        raise ValueError(f"write a number from 0 to {HIGHEST_PORT}")
    return int(text)


def _env(value: Any) -> str:
    if value not in ENVIRONMENTS:
        raise ValueError(f"write {' or '.join(ENVIRONMENTS)}")
    return str(value)


def _networks(value: Any) -> str:
    try:
        found = [str(ip_network(each.strip())) for each in _text(value).split(",")]
    except ValueError as error:
        raise ValueError(f"{error}; write addresses or networks, as 10.0.0.7,10.1.0.0/16") from None
    return ",".join(found)


def _queues(value: Any) -> str:
    parts = value if isinstance(value, list) else _text(value).split(",")
    return ",".join(dict.fromkeys(queue_name(str(part).strip()) for part in parts))


def _folder(value: Any) -> Path:
    text = _text(value)
    if "\x00" in text:
        raise ValueError("write the path of a folder")
    return Path(text).expanduser()


def _secret(value: Any) -> str:
    text = _text(value)
    if len(text) < SHORTEST_SECRET:
        raise ValueError(
            f"it has {len(text)} characters, {SHORTEST_SECRET} or more are needed; {MAKE_ONE}"
        )
    return _of_ones_own(text)


def _admin_key(value: Any) -> str:
    text = _of_ones_own(_text(value))
    try:
        secrets.id_of(text)
    except Unauthenticated as error:
        raise ValueError(f"{error}; {MAKE_ONE}") from None
    if is_token(text):
        raise ValueError(f"it has the form of a token; {MAKE_ONE}")
    return text


def is_placeholder(secret: str) -> bool:
    """Tell whether a secret was copied from an example, so that everybody knows it."""
    return any(word in secret.lower() for word in PLACEHOLDERS)


def _of_ones_own(text: str) -> str:
    if is_placeholder(text):
        raise ValueError(f"it is a placeholder that everybody knows; {MAKE_ONE}")
    return text


def read_services(value: Any) -> str:
    """Read names of services, as a text with commas between them or as a list. Raises `ValueError`:
    something in it is no name."""
    parts = value.split(",") if isinstance(value, str) else value
    is_list = isinstance(parts, list) and all(isinstance(part, str) for part in parts)
    names = [part.strip() for part in parts] if is_list else []
    if not names or not all(names):
        raise ValueError("write names with commas between them")
    return ",".join(dict.fromkeys(names))


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "app": _text,
    "host": _text,
    "port": _port,
    "env": _env,
    "data": _folder,
    "secret": _secret,
    "admin_key": _admin_key,
    "service": read_services,
    "store": _text,
    "trusted_proxies": _networks,
    "rq_queues": _queues,
}
