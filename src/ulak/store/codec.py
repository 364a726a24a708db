"""Payloads and results as bytes: JSON outside, the user's own types inside.

msgspec is imported when the first value is encoded, so that `import ulak` stays bare.
"""

from __future__ import annotations

import json
from typing import Any

from ulak.errors import BadInput

_canonical = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")
)


def encode(value: object) -> bytes:
    """Write a value as JSON.

    Dataclasses, msgspec and pydantic objects, enums, dates and sets are written as their fields.

    Raises:
        BadInput: it holds something that JSON cannot carry.
    """
    import msgspec

    try:
        data = msgspec.json.encode(value, enc_hook=_unknown)
        if b"null" in data:
            # msgspec writes NaN as null, which would come back as a different value.
            _canonical.encode(msgspec.to_builtins(value, enc_hook=_unknown, str_keys=True))
    except (TypeError, ValueError, UnicodeEncodeError, RecursionError) as error:
        raise BadInput(f"{_short(value)} cannot be stored as JSON: {error}") from error
    return data


def decode(data: bytes, kind: Any = Any) -> Any:
    """Read JSON as a value of this type.

    Raises:
        BadInput: the data is not JSON, or not of that type.
    """
    import msgspec

    try:
        if _is_pydantic(kind):
            return kind.model_validate_json(data)
        return msgspec.json.decode(data, type=kind)
    except (ValueError, TypeError) as error:  # msgspec's and pydantic's errors are ValueErrors
        raise BadInput(f"stored data is not a {_name(kind)}: {error}") from error


def convert(plain: object, kind: Any) -> Any:
    """Turn plain data (dicts, lists, texts, numbers) into a value of this type.

    Raises:
        BadInput: it does not fit.
    """
    import msgspec

    try:
        if _is_pydantic(kind):
            return kind.model_validate(plain)
        return msgspec.convert(plain, kind)
    except (ValueError, TypeError) as error:
        raise BadInput(f"{_short(plain)} is not a {_name(kind)}: {error}") from error


def canonical(value: object) -> str:
    """Write a value so that equal values give equal texts: sorted keys, no spaces.

    Raises:
        BadInput: it holds something that JSON cannot carry.
    """
    import msgspec

    try:
        return _canonical.encode(msgspec.to_builtins(value, enc_hook=_unknown, str_keys=True))
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(f"{_short(value)} cannot be stored as JSON: {error}") from error


def is_instance(value: object, kind: Any) -> bool:
    """Tell whether a value is already of a payload type."""
    return isinstance(kind, type) and isinstance(value, kind)


def _unknown(value: object) -> object:
    """Write what msgspec does not know: pydantic models."""
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise TypeError(f"{type(value).__name__} has no JSON form")
    return dump(mode="json")


def _is_pydantic(kind: Any) -> bool:
    return hasattr(kind, "model_validate_json")


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", str(kind))


def _short(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 80 else text[:77] + "..."
