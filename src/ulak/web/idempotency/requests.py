"""What of a request counts: its key, what it asks for, and how long its caller would wait."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from starlette.types import Scope as Connection

from ulak.clock import Duration, read_micros, seconds
from ulak.idempotency import Asked, Scope, fingerprint
from ulak.idempotency.key import HEADER, read_key

Policy = Literal["required", "optional", "off"]

LONGEST_WAIT_S: Final = 30
_WAIT: Final = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?(\d{1,6})\"?(?:$|[,;\s])")
_KEY: Final = HEADER.lower().encode()
# Above this a fingerprint takes longer than a loop should be held up: some ten milliseconds.
LARGE_BYTES: Final = 256 * 1024


class Requested(NamedTuple):
    """What a fingerprint is made of."""

    method: str
    path: str
    """With its parameters filled in."""
    query: str
    actor: str
    body: bytes
    media_type: str


Fingerprint = Callable[[Requested], str]
"""Makes of a request the text that must be the same under one key, for a route that knows better;
at most 64 characters, as a SHA-256 in hex."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How the requests of one route are read."""

    scope: Scope
    policy: Policy = "required"
    in_body: str | None = None
    """The member of a JSON body that may hold the key too."""
    fingerprint: Fingerprint | None = None
    wait: Duration = 0
    """How long a duplicate waits for the first answer when it does not say so itself."""

    def __post_init__(self) -> None:
        read_micros(self.wait, f'the idempotency scope "{self.scope.name}": wait=')

    async def read(
        self, connection: Connection, body: bytes, tenant: str, actor: str
    ) -> Asked | None:
        """Return the request with its key; None when it has none, and needs none.

        Raises:
            BadKey: it has no key and needs one, or has one that is none.
        """
        key = read_key(
            key_lines(connection), self._key_in(body, connection),
            required=self.policy == "required",
        )  # fmt: skip
        if key is None:
            return None
        requested = Requested(
            connection["method"], connection["path"],
            connection.get("query_string", b"").decode("latin-1"), actor, body,
            header(connection, b"content-type"),
        )  # fmt: skip
        if len(body) > LARGE_BYTES:
            digest = await asyncio.to_thread(self._digest, requested)
        else:
            digest = self._digest(requested)
        return Asked(self.scope, key, request_hash=digest, tenant=tenant, actor=actor)

    def patience(self, connection: Connection) -> float:
        """Return for how many seconds the caller would wait for somebody else's answer."""
        said = _WAIT.search(header(connection, b"prefer"))
        wanted_s = seconds(self.wait) if said is None else int(said[1])
        return min(wanted_s, LONGEST_WAIT_S)

    def _digest(self, requested: Requested) -> str:
        if self.fingerprint is not None:
            return self.fingerprint(requested)
        return fingerprint(**requested._asdict(), fields=self.scope.fingerprint_fields)

    def _key_in(self, body: bytes, connection: Connection) -> Any:
        if self.in_body is None or b"json" not in header(connection, b"content-type").encode():
            return None
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            return None  # whoever reads the body says what is wrong with it
        return document.get(self.in_body) if isinstance(document, dict) else None


def key_lines(connection: Connection) -> list[str]:
    """Return the value of every header line with a key."""
    return [value.decode("latin-1") for name, value in _headers(connection) if name == _KEY]


def header(connection: Connection, name: bytes) -> str:
    """Return the value of a header, '' when there is none."""
    for found, value in _headers(connection):
        if found == name:
            return value.decode("latin-1")
    return ""


def _headers(connection: Connection) -> Iterable[tuple[bytes, bytes]]:
    headers: Iterable[tuple[bytes, bytes]] = connection["headers"]
    return headers
