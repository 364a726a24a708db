"""Payloads and results as bytes: JSON outside, the user's own types inside.

msgspec is imported when the first value is encoded, so that `import ulak` stays bare.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
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
        if b"null" in data and value is not None:
            # msgspec writes NaN as null, which would come back as a different value.
            _canonical.encode(msgspec.to_builtins(value, enc_hook=_unknown, str_keys=True))
    except (TypeError, ValueError, UnicodeEncodeError, RecursionError) as error:
        raise BadInput(_unwritable(value, error)) from None
    return data


def decode(data: bytes, kind: Any = Any) -> Any:
    """Read JSON as a value of this type; raise `BadInput` if it is not one."""
    import msgspec

    try:
        if _is_pydantic(kind):
            return kind.model_validate_json(data)
        return _whole(msgspec.json.decode(data, type=kind), kind)
    except (ValueError, TypeError) as error:  # msgspec's and pydantic's errors are ValueErrors
        raise BadInput(f"stored data is not a {_name(kind)}: {_why(error)}") from None


def convert(plain: object, kind: Any) -> Any:
    """Turn plain data into a value of this type, or raise `BadInput`."""
    import msgspec

    try:
        if _is_pydantic(kind):
            return kind.model_validate(plain)
        return _whole(msgspec.convert(plain, kind), kind)
    except (ValueError, TypeError) as error:
        raise BadInput(f"this is not a {_name(kind)}: {_why(error)}") from None


def canonical(value: object) -> str:
    """Write a value so that equal values give equal texts, or raise `BadInput`."""
    import msgspec

    try:
        return _canonical.encode(msgspec.to_builtins(value, enc_hook=_unknown, str_keys=True))
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(_unwritable(value, error)) from None


def is_instance(value: object, kind: Any) -> bool:
    return isinstance(kind, type) and isinstance(value, kind)


# msgspec leaves a default of a plain dataclass to the class and writes what the object itself has:
# a value read from JSON would be written without it, and have another key than the same one made
# by a program.


def _whole(value: Any, kind: Any) -> Any:
    """Have every object say its defaults itself; only where the type can have any."""
    try:
        if kind is not Any and _can_be_silent(kind):
            _say_defaults(value)
    except TypeError:  # a kind that cannot be hashed or looked into has been read all the same
        _say_defaults(value)
    return value


@cache
def _can_be_silent(kind: Any) -> bool:
    """Whether a value of this type may hold a dataclass that leaves defaults to its class."""
    import msgspec

    return any(_leaves_defaults(found) for found in _types_in(msgspec.inspect.type_info(kind)))


def _leaves_defaults(info: Any) -> bool:
    import msgspec

    return (
        isinstance(info, msgspec.inspect.DataclassType)
        and "__slots__" not in vars(info.cls)
        and any(f.default is not msgspec.NODEFAULT for f in info.fields)
    )


def _types_in(info: Any) -> Iterator[Any]:
    waiting, seen = [info], set[int]()
    while waiting:
        found = waiting.pop()
        if id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        for part in _parts_of(found):
            waiting += part if isinstance(part, tuple) else [part]


def _parts_of(info: Any) -> Iterator[Any]:
    import msgspec

    if isinstance(info, (msgspec.inspect.Type, msgspec.inspect.Field)):
        for name in info.__struct_fields__:
            yield getattr(info, name)


def _say_defaults(value: Any) -> None:
    """Write into each plain dataclass, however deep, what it has left to its class."""
    if isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            _say_defaults(item)
    elif isinstance(value, dict):
        for item in value.values():
            _say_defaults(item)
    elif is_dataclass(value):
        own = getattr(value, "__dict__", None)
        if own is not None:
            said = {f.name: getattr(value, f.name) for f in fields(value)}
            own.update(said | own)
        for f in fields(value):
            _say_defaults(getattr(value, f.name))
    else:
        for name in getattr(value, "__struct_fields__", ()):
            _say_defaults(getattr(value, name))


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
