"""Payloads and results as bytes: JSON outside, the user's own types inside.

msgspec is imported when the first value is encoded, so that `import ulak` stays bare.
"""

from __future__ import annotations

import json
import re
from typing import Any

from ulak.errors import BadInput

# msgspec names the place and the types, but quotes a value that is none of an enumeration.
_QUOTED = re.compile(r"(Invalid (?:enum )?value) .*?(?= - at|$)")

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
        raise BadInput(_unwritable(value, error)) from None
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
        raise BadInput(f"stored data is not a {_name(kind)}: {_why(error)}") from None


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
        raise BadInput(f"this is not a {_name(kind)}: {_why(error)}") from None


def canonical(value: object) -> str:
    """Write a value so that equal values give equal texts: sorted keys, no spaces.

    Raises:
        BadInput: it holds something that JSON cannot carry.
    """
    import msgspec

    try:
        return _canonical.encode(msgspec.to_builtins(value, enc_hook=_unknown, str_keys=True))
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(_unwritable(value, error)) from None


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


def _unwritable(value: object, error: Exception) -> str:
    return f"a value of type {type(value).__name__} cannot be stored as JSON: {_why(error)}"


def _why(error: Exception) -> str:
    """Say what is wrong and where, and never the value: it may be a secret, and texts are kept."""
    details = getattr(error, "errors", None)
    if details is not None:  # pydantic's, which would quote its input
        found = details(include_input=False, include_url=False, include_context=False)
        return "; ".join(f"{'.'.join(map(str, e['loc'])) or 'it'}: {e['msg']}" for e in found)
    if isinstance(error, UnicodeError):
        return f"it holds a character that is no text ({error.reason})"  # type: ignore[attr-defined]
    return _QUOTED.sub(r"\1", str(error))
