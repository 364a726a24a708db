"""What must never be read in a log, and how it is hidden.

Rather too much than too little: whoever reads `***` can ask, whoever reads a key has it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import quote, quote_plus

HIDDEN: Final = "***"

SHORTEST: Final = 6
"""A literal that is shorter cannot be told from ordinary words; it is hidden where its place says
that it is a secret, and nowhere else."""
DEEPEST: Final = 8

_HEADERS = r"(?:proxy-)?authorization|x-(?:\w+-)*key|(?:set-)?cookie"
_NAMES = r"password|passwd|passphrase|secret|api[_-]?key|(?:access_|refresh_)?token"
_VALUE = r"""(?:b?"[^"]*"|b?'[^']*'|[^\s&;,"'}\]]+)"""

SECRET_NAME: Final = re.compile(rf"(?:\w*[_-])?(?:{_HEADERS}|password|passwd|passphrase)", re.I)
"""The names of facts that are secret whatever they hold. Not `token`: a lease has one."""

KEY: Final = re.compile(r"(ulak_[a-z0-9]{8}_)[0-9A-Za-z_-]{8,}")
"""A key, or the code of a link: the part by which it is found may be seen."""
JWT: Final = re.compile(r"eyJ[0-9A-Za-z_-]{5,}(?:\.[0-9A-Za-z_-]*){1,4}")

_PATTERNS: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (re.compile(r"(/auth/link)[?#/][^\s\"'<>]*"), rf"\1?{HIDDEN}"),
    # Up to the last @, since a password that was not encoded may have one of its own.
    (re.compile(r"(://[^:/@?\s]*):\S*@"), rf"\1:{HIDDEN}@"),
    (
        re.compile(
            rf"({_HEADERS})((?:[\"']?\s*[:=]\s*|[\"']\s*,\s*)(?:b?[\"'])?)(?!\s)[^\r\n\"']+", re.I
        ),
        rf"\1\2{HIDDEN}",
    ),
    (re.compile(r"\b(bearer)\s+[^\s\"',;)]{8,}", re.I), rf"\1 {HIDDEN}"),
    (re.compile(rf"({_NAMES})=(?!=){_VALUE}", re.I), rf"\1={HIDDEN}"),
    (re.compile(rf"([\"'](?:\w*[_-])?(?:{_NAMES})[\"']\s*:\s*){_VALUE}", re.I), rf'\1"{HIDDEN}"'),
    (KEY, rf"\1{HIDDEN}"),
    (JWT, HIDDEN),
)


class Hiding:
    """Hides what looks like a secret, and the secrets that it was told of, however written."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        written = {form for secret in secrets if len(secret) >= SHORTEST for form in _forms(secret)}
        # The longest first: a form that is part of another must not leave the rest of it.
        ordered = sorted(written, key=len, reverse=True)
        self._literals = re.compile("|".join(map(re.escape, ordered))) if ordered else None

    def text(self, text: str) -> str:
        """Return a text without its secrets. What is hidden already stays as it is."""
        if self._literals is not None:
            # Before the patterns, one of which might hide a part of a literal and leave the rest.
            text = self._literals.sub(HIDDEN, text)
        for pattern, shown in _PATTERNS:
            text = pattern.sub(shown, text)
        return text

    def fact(self, name: str, value: Any, depth: int = 0) -> Any:
        """Return a fact without its secrets: by its name, and by what it holds at any depth."""
        if value is None or isinstance(value, bool | int | float):
            return value
        if SECRET_NAME.fullmatch(name):
            return HIDDEN
        if isinstance(value, str):
            return self.text(value)
        if depth < DEEPEST:
            if isinstance(value, Mapping):
                return {
                    self.text(str(key)): self.fact(str(key), held, depth + 1)
                    for key, held in value.items()
                }
            if isinstance(value, list | tuple | set | frozenset):
                return [self.fact(name, held, depth + 1) for held in value]
        return self._printed(value)

    def _printed(self, value: object) -> object:
        try:
            text = str(value)
        except Exception:  # noqa: BLE001 - of whatever class, and a log line must not fail over it
            return f"({type(value).__name__} cannot be printed)"
        hidden = self.text(text)
        return value if hidden == text else hidden


def _forms(secret: str) -> Iterable[str]:
    """Return how a text may be written in a line: as it is, escaped, or percent-encoded."""
    encoded = secret.encode("utf-8", "surrogatepass")
    yield secret
    yield repr(secret)[1:-1]
    yield ascii(secret)[1:-1]
    yield repr(encoded)[2:-1]
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield quote(encoded)
    yield quote(encoded, safe="")
    yield quote_plus(encoded)
