"""Scopes and answers: how an operation is protected, and what is stored of its answer."""

from __future__ import annotations

import json
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from hashlib import sha256
from typing import Final, Literal

from ulak.clock import Duration, micros, read_micros, seconds
from ulak.errors import AnswerNotStored, BadInput
from ulak.store.records import COMPLETED, FAILED, RecordRow

Mode = Literal["transactional", "lease"]

TTL: Final = timedelta(days=7)
LEASE: Final = timedelta(seconds=60)
LOCK_WAIT: Final = timedelta(seconds=2)
LARGEST_BODY: Final = 1024 * 1024
LONGEST_NAME: Final = 200

ALWAYS_REPLAYED: Final = frozenset({"content-type", "location", "etag", "link"})
"""The headers that are kept whatever the scope says, in lower case."""
NEVER_REPLAYED: Final = frozenset(
    {
        "set-cookie", "date", "connection", "keep-alive", "proxy-authenticate",
        "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade", "content-length",
    }
)  # fmt: skip
"""The headers that are never kept: of one moment, one connection or one person."""

# Nothing was asked that could be answered, or the caller is not one who may ask.
_NOT_ASKED: Final = frozenset({400, 401, 403, 404, 405, 413, 415})
_TRANSIENT: Final = frozenset({408, 425, 429})


@dataclass(frozen=True, slots=True)
class Scope:
    """What is protected, and how. The same key in two scopes is two records. Raises `BadInput`:
    a value cannot be used, or its records are forgotten while some caller may still try again."""

    name: str
    """Such as `letters.write`; '' is one too."""
    _: KW_ONLY
    mode: Mode = "transactional"
    """`transactional` where all effects are in the store's database: they and the record are one
    commit. `lease` where some are elsewhere: the claim is committed before the work begins."""
    ttl: Duration = TTL
    """How long an answer is kept, from the end of the execution."""
    lease: Duration = LEASE
    """How long an execution of mode `lease` is left alone when its process has died."""
    lock_wait: Duration = LOCK_WAIT
    """How long a duplicate waits for a transaction that has claimed the key."""
    cache_errors: bool = False
    """Whether 408, 425, 429 and 5xx are stored too, so that a retry does not try again."""
    max_body_bytes: int = LARGEST_BODY
    headers: tuple[str, ...] = ()
    """Which headers are replayed besides Content-Type, Location, ETag and Link."""
    fingerprint_fields: tuple[str, ...] | None = None
    """The members of a JSON body that count; None means all."""
    fed_for: Duration | None = None
    """For how long the outbox that feeds it tries again, if one does."""

    def __post_init__(self) -> None:
        for name in ("ttl", "lease", "lock_wait"):
            if read_micros(getattr(self, name), f"{self._named()}: {name}=") == 0:
                self._refuse(f"{name} is {getattr(self, name)}; it must be positive")
        if len(self.name) > LONGEST_NAME or not self.name.isprintable():
            self._refuse(f"its name must be printable and at most {LONGEST_NAME} characters long")
        if self.max_body_bytes < 0:
            self._refuse(f"max_body_bytes is {self.max_body_bytes}; 0 keeps empty bodies only")
        if self.fed_for is None:
            return
        if micros(self.ttl) <= read_micros(self.fed_for, f"{self._named()}: fed_for="):
            self._refuse(
                f"answers are kept for {seconds(self.ttl):.0f} s and the outbox that feeds "
                f"it tries for {seconds(self.fed_for):.0f} s: a late retry would be "
                "executed a second time; keep them longer"
            )

    def _refuse(self, why: str) -> None:
        raise BadInput(f"{self._named()}: {why}")

    def _named(self) -> str:
        return f'the idempotency scope "{self.name}"'


@dataclass(frozen=True, slots=True)
class Answer:
    """What was answered: a status, a body to the byte, and headers."""

    status: int = 200
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def is_success(self) -> bool:
        return self.status < 400

    def is_kept(self, scope: Scope) -> bool:
        """Whether a repeated request gets this answer again, instead of another try."""
        if self.status in _TRANSIENT or self.status >= 500:
            return scope.cache_errors
        return self.status not in _NOT_ASKED

    def in_row(self, row: RecordRow, scope: Scope) -> RecordRow:
        text, data, digest = None, None, None
        if len(self.body) > scope.max_body_bytes:
            digest = sha256(self.body).hexdigest()
        else:
            try:
                text = self.body.decode()
            except UnicodeDecodeError:
                data = self.body
            if text is not None and "\0" in text:  # which PostgreSQL has no text for
                text, data = None, self.body
        return row._replace(
            status=COMPLETED if self.is_success else FAILED,
            response_status=self.status,
            response_headers=json.dumps(self._kept_headers(scope)),
            response_json=text,
            response_bytes=data,
            response_digest=digest,
        )

    def _kept_headers(self, scope: Scope) -> list[tuple[str, str]]:
        wanted = (ALWAYS_REPLAYED | {name.lower() for name in scope.headers}) - NEVER_REPLAYED
        return [(name, value) for name, value in self.headers if name.lower() in wanted]


def answer_in(row: RecordRow) -> Answer:
    """Return the answer of a finished record; `AnswerNotStored`: it was too large to be kept."""
    if row.response_digest is not None:
        raise AnswerNotStored(
            f"this request was executed and answered with {row.response_status}; the answer was "
            f"too large to be kept (SHA-256 {row.response_digest})"
        )
    body = row.response_bytes
    if body is None:
        body = (row.response_json or "").encode()
    headers = tuple((name, value) for name, value in json.loads(row.response_headers or "[]"))
    return Answer(row.response_status or 200, body, headers)
