"""The job key: one digest for one template and everything that changes what is printed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ulak.errors import BadInput

DEEPEST = 64
"""How deep lists and objects may lie in each other; a guess, deeper than any document needs."""


def compute_job_key(template_name: str, payload: Mapping[str, Any]) -> str:
    """Return the SHA-256, in hex, of canonical JSON over the template's name and the payload.

    Canonical means: the keys of every object sorted by code point, no whitespace, UTF-8, every
    character as itself. The order in which keys were given never matters. Values are compared as
    they would be printed: `1`, `1.0`, `"1"` and `true` are four values, `0.0` and `-0.0` two, and
    no text is normalised.

    Raises:
        BadInput: the payload is no JSON: a number that is not finite, a key that is no text, half
            a surrogate pair, another type, or more than 64 levels.
    """
    _must_be_json(payload, 0)
    document = {"payload": payload, "template_name": template_name}
    text = json.dumps(
        document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    try:
        return hashlib.sha256(text.encode("utf-8")).hexdigest()
    except UnicodeEncodeError:
        raise BadInput("a text of the payload has half a surrogate pair in it") from None


def payload_of(
    variables: Mapping[str, Any], *, template_version: str, options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Make the payload of a job: what is hashed for its key, and nothing about its delivery.

    Args:
        variables: What the template is filled with.
        template_version: The digest of the template's files (`Templates.version`), so that a
            changed template is another document.
        options: Those that change the printed bytes.
    """
    return {
        "variables": dict(variables),
        "template_version": template_version,
        "options": dict(options or {}),
    }


def _must_be_json(value: object, depth: int) -> None:
    """Refuse what `json` would write in silence: `{1: ...}` as `{"1": ...}`, for one."""
    if depth > DEEPEST:
        raise BadInput(f"the payload has more than {DEEPEST} levels; make it flatter")
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise BadInput(f"a key of the payload is a {type(key).__name__}; keys are texts")
            _must_be_json(inner, depth + 1)
    elif isinstance(value, list | tuple):
        for inner in value:
            _must_be_json(inner, depth + 1)
    elif isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise BadInput("a number of the payload is not finite; JSON has no NaN and no Infinity")
    elif not (value is None or isinstance(value, str | int)):
        raise BadInput(f"a value of the payload is a {type(value).__name__}, which JSON lacks")
