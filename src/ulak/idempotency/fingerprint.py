"""Fingerprints: two requests are the same if they ask for the same, however they are written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any, Final
from urllib.parse import parse_qsl

from ulak.strict_json import read_json

# Members of a JSON body that change from one attempt to the next and ask for nothing.
LEFT_OUT: Final = frozenset({"idempotency_key", "request_id", "attempt", "sent_at"})

# What is nested deeper counts by its bytes. A limit of our own, because Python's depends on how
# deep its caller is, and one request must not have two digests. A guess: nobody means more.
DEEPEST: Final = 100

_text = json.encoder.encode_basestring


class _Number(str):
    """A number as it was written: 1 and 1.0 are different, and no digit is lost."""

    __slots__ = ()


def fingerprint(
    *,
    method: str = "",
    path: str = "",
    query: str = "",
    actor: str = "",
    body: bytes = b"",
    media_type: str = "",
    fields: Sequence[str] | None = None,
) -> str:
    """Return the SHA-256 of a request, in lower-case hex.

    A JSON body counts by what it says: the order of members and white space do not matter, the
    order of arrays and the way a number is written do. `idempotency_key`, `request_id`,
    `attempt` and `sent_at` of its outermost object are left out. Any other body counts by its
    bytes and its media type. Headers do not count.

    Args:
        method: The HTTP method.
        path: The path with its parameters filled in.
        query: The query string; its order does not matter.
        actor: Who asks: the same key of another actor is another request.
        body: What was sent.
        media_type: Of the body; parameters such as `charset` do not count.
        fields: The members of the outermost object that count, instead of all.
    """
    kind = media_type.partition(";")[0].strip().lower()
    what = _canonical(body, fields) if _is_json(kind) else None
    if what is None:
        what = kind.encode() + b"\0" + body
        kind = "bytes"
    else:
        kind = "json"
    # Bytes that are no text stay apart, instead of all becoming the same mark.
    asked = sorted(parse_qsl(query, keep_blank_values=True, errors="surrogateescape"))
    head = json.dumps([method.upper(), path, asked, actor, kind], separators=(",", ":"))
    return sha256(head.encode("utf-8", "surrogatepass") + b"\n" + what).hexdigest()


def _is_json(kind: str) -> bool:
    return kind == "application/json" or kind.endswith("+json")


def _canonical(body: bytes, fields: Sequence[str] | None) -> bytes | None:
    """Write JSON in the one way; None when it is none, or says a member twice, or is too deep."""
    try:
        value = read_json(body, number=_Number)
        if isinstance(value, dict):
            value = {
                name: member
                for name, member in value.items()
                if (name not in LEFT_OUT if fields is None else name in fields)
            }
        return "".join(_written(value)).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        return None


def _written(value: Any, depth: int = 0) -> Iterable[str]:
    if depth > DEEPEST:
        raise ValueError("this is nested too deep")
    if isinstance(value, dict):
        mark = "{"
        for name in sorted(value):
            yield f"{mark}{_text(name)}:"
            yield from _written(value[name], depth + 1)
            mark = ","
        yield "}" if value else "{}"
    elif isinstance(value, list):
        mark = "["
        for member in value:
            yield mark
            yield from _written(member, depth + 1)
            mark = ","
        yield "]" if value else "[]"
    elif isinstance(value, _Number):
        yield str(value)
    elif isinstance(value, str):
        yield _text(value)
    else:
        yield "null" if value is None else "true" if value else "false"
