"""Keys and fingerprints: which requests are the same one, repeated."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any, Final
from urllib.parse import parse_qsl

from ulak.errors import BadKey
from ulak.strict_json import read_json

REQUIRED: Final = "idempotency_key_required"
INVALID: Final = "idempotency_key_invalid"
CONFLICT: Final = "idempotency_key_conflict"

HEADER: Final = "Idempotency-Key"
REPLAYED: Final = "Idempotent-Replayed"
LONGEST: Final = 255

# Members of a JSON body that change from one attempt to the next and ask for nothing.
LEFT_OUT: Final = frozenset({"idempotency_key", "request_id", "attempt", "sent_at"})

# What is nested deeper counts by its bytes. A limit of our own, because Python's depends on how
# deep its caller is, and one request must not have two digests. A guess: nobody means more.
DEEPEST: Final = 100

_KEY = re.compile(rf"[\x21-\x7e]{{1,{LONGEST}}}")
# A string of RFC 8941: printable ASCII in quotes, with \" and \\; parameters say nothing to us.
_QUOTED = re.compile(r'"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"(?:\s*;.*)?')
_ESCAPE = re.compile(r"\\(.)")
_text = json.encoder.encode_basestring


def read_key(lines: Sequence[str], in_body: object = None, *, required: bool = True) -> str | None:
    """Return the one key of a request; None when it has none and needs none.

    Args:
        lines: The values of every `Idempotency-Key` header of the request, in order. Both the
            quoted string of the draft and the bare text are a key.
        in_body: The key in the body, if the operation has one there.
        required: Whether there must be one.

    Raises:
        BadKey: `idempotency_key_required`, `_invalid` or `_conflict`.
    """
    if len(lines) > 1:
        raise BadKey(f"the request has {len(lines)} {HEADER} headers; send one", code=CONFLICT)
    found = {_unquoted(line) for line in lines}
    if in_body is not None:
        if not isinstance(in_body, str):
            raise BadKey("the idempotency key of the body is no text", code=INVALID)
        found.add(in_body)
    found = {key for key in found if key.strip()}
    if not found:
        # An empty header, or a null in the body, is how a caller without a key looks.
        if required or lines or in_body is not None:
            raise BadKey(
                f"this operation needs an idempotency key: send the header {HEADER}, the same "
                "each time this very request is repeated",
                code=REQUIRED,
            )
        return None
    if len(found) > 1:
        raise BadKey(
            "the header and the body have different idempotency keys; send one", code=CONFLICT
        )
    (key,) = found
    if not _KEY.fullmatch(key):
        raise BadKey(
            f"an idempotency key has 1 to {LONGEST} visible ASCII characters without spaces, "
            f"this one has {len(key)}" + ("" if len(key) > LONGEST else " and among them others"),
            code=INVALID,
        )
    return key


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
        path: The path with its parameters filled in.
        query: The query string; its order does not matter.
        actor: Who asks: the same key of another actor is another request.
        media_type: Of the body; parameters such as `charset` do not count.
        fields: The members of the outermost object that count, instead of all.
    """
    kind = media_type.partition(";")[0].strip().lower()
    is_json = kind == "application/json" or kind.endswith("+json")
    content = _canonical(body, fields) if is_json else None
    if content is None:
        kind, content = "bytes", kind.encode() + b"\0" + body
    else:
        kind = "json"
    # Bytes that are no text stay apart, instead of all becoming the same mark.
    pairs = sorted(parse_qsl(query, keep_blank_values=True, errors="surrogateescape"))
    head = json.dumps([method.upper(), path, pairs, actor, kind], separators=(",", ":"))
    return sha256(head.encode("utf-8", "surrogatepass") + b"\n" + content).hexdigest()


def _unquoted(line: str) -> str:
    """Return the key of a header: what is between the quotes, or the text as it is."""
    text = line.strip(" \t")  # what HTTP lets stand around a value, and no other space
    quoted = _QUOTED.fullmatch(text)
    return text if quoted is None else _ESCAPE.sub(r"\1", quoted[1])


class _Number(str):
    """A number as it was written: 1 and 1.0 are different, and no digit is lost."""

    __slots__ = ()


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
