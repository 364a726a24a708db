"""Who decides about changes, and where the other one is: `HOS_MODE` and what belongs to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from typing import Final, Literal, cast, get_args

from ulak.errors import BadInput
from ulak.idempotency import Scope
from ulak.settings import header_text, read_settings, setting, span, web_address, whole_number

Mode = Literal["embedded", "hybrid", "remote"]
MODES: Final[tuple[str, ...]] = get_args(Mode)

LONGEST_RETRY: Final = timedelta(days=3)
"""For how long an event is tried again; whoever remembers its key must do so for longer."""
KEY_PREFIX: Final = "pazar"
"""Whose proofs they are; two systems that tell the same remote need two."""

# Guesses: who waits longer than a minute or asks more often at once has another problem.
LONGEST_TIMEOUT_MS: Final = 60_000
MOST_RETRIES: Final = 10
LONGEST_PREFIX: Final = 100


def _mode(text: str) -> Mode:
    if text not in MODES:
        raise ValueError(f"it is {text!r}; write {', '.join(MODES[:-1])} or {MODES[-1]}")
    return cast(Mode, text)


def _key_prefix(text: str) -> str:
    if len(text) > LONGEST_PREFIX or not all("!" <= letter <= "~" for letter in text):
        raise ValueError(
            f"it is {text[:LONGEST_PREFIX]!r}; write 1 to {LONGEST_PREFIX} letters, digits and "
            "signs without spaces"
        )
    return text


# Each `setting` is a field, and no default that is shared.
# ruff: noqa: RUF009
@dataclass(frozen=True, slots=True)
class RemoteSettings:
    """The settings of the remote service; `BadInput` when these cannot be used together."""

    _: KW_ONLY
    mode: Mode = setting("HOS_MODE", _mode, "embedded")
    """`embedded`: there is no remote. `hybrid`: changes are decided here, and told to the remote
    afterwards. `remote`: the remote decides."""
    base_url: str = setting("HOS_BASE_URL", web_address)
    """Where the remote is, without a slash at the end; '' when nobody has said it."""
    api_key: str = setting("HOS_API_KEY", header_text, secret=True)
    """The key that the remote knows this service by; '' when nobody has said it."""
    timeout: timedelta = setting(
        "HOS_TIMEOUT_MS", span(whole_number(1, LONGEST_TIMEOUT_MS), "milliseconds"), "1500"
    )
    """How long a request may take, from connecting to the last byte of the answer."""
    retries: int = setting("HOS_RETRIES", whole_number(0, MOST_RETRIES), "1")
    """How often a request that found nobody is repeated at once, inside one attempt."""
    ttl: timedelta = setting(
        "HOS_REMOTE_TTL_SECONDS", span(whole_number(1, 10**9)), timedelta(days=7)
    )
    key_prefix: str = setting("HOS_KEY_PREFIX", _key_prefix, KEY_PREFIX)
    """What the keys of events begin with: of two systems that tell one remote, each has its own,
    since both count their proofs from 1."""

    def __post_init__(self) -> None:
        if self.mode == "embedded":
            return
        if lacking := self.lacking:
            raise BadInput(
                f"HOS_MODE={self.mode} needs {' and '.join(lacking)}; set "
                f"{'it' if len(lacking) == 1 else 'them'}, or HOS_MODE=embedded for no remote"
            )
        # A key that the remote forgets while we still try would be a second change.
        Scope("HOS_REMOTE_TTL_SECONDS", ttl=self.ttl, fed_for=LONGEST_RETRY)

    @property
    def lacking(self) -> tuple[str, ...]:
        """The variables that must be set before anything can be sent."""
        said = {"HOS_BASE_URL": self.base_url, "HOS_API_KEY": self.api_key}
        return tuple(name for name, value in said.items() if not value)


def load(environ: Mapping[str, str] | None = None) -> RemoteSettings:
    """Read the settings of this process; `BadInput` names every value that cannot be used or is
    missing."""
    return RemoteSettings(**read_settings(RemoteSettings, environ))
