"""Keys: what a caller may write, in the header, in the body, or in both."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from ulak.errors import BadKey

REQUIRED: Final = "idempotency_key_required"
INVALID: Final = "idempotency_key_invalid"
CONFLICT: Final = "idempotency_key_conflict"

HEADER: Final = "Idempotency-Key"
REPLAYED: Final = "Idempotent-Replayed"
"""The header that tells whether an answer was given before."""
LONGEST: Final = 255

_KEY = re.compile(rf"[\x21-\x7e]{{1,{LONGEST}}}")
# A string of RFC 8941: printable ASCII in quotes, with \" and \\; parameters say nothing to us.
_QUOTED = re.compile(r'"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"(?:\s*;.*)?')
_ESCAPE = re.compile(r"\\(.)")


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
    found = {unquoted(line) for line in lines}
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


def unquoted(line: str) -> str:
    """Return the key of a header: what is between the quotes, or the text as it is."""
    text = line.strip(" \t")  # what HTTP lets stand around a value, and no other space
    quoted = _QUOTED.fullmatch(text)
    return text if quoted is None else _ESCAPE.sub(r"\1", quoted[1])
