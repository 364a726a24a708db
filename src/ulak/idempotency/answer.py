"""Answers: what is kept of one, and how it comes back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from ulak.errors import AnswerNotStored
from ulak.idempotency.scope import Scope
from ulak.store.records import COMPLETED, FAILED, RecordRow

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
class Answer:
    """What was answered: a status, a body to the byte, and headers."""

    status: int = 200
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def is_success(self) -> bool:
        """Whether the operation was carried out."""
        return self.status < 400

    def is_kept(self, scope: Scope) -> bool:
        """Whether a repeated request gets this answer again, instead of another try."""
        if self.status in _TRANSIENT or self.status >= 500:
            return scope.cache_errors
        return self.status not in _NOT_ASKED

    def in_row(self, row: RecordRow, scope: Scope) -> RecordRow:
        """Return the record with this answer in it."""
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
    """Return what a finished record was answered with.

    Raises:
        AnswerNotStored: it was too large to be kept.
    """
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
