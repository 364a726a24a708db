"""JSON as the standard has it: what Python reads besides, and what says two things, is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NoReturn


def read_json(text: str | bytes, *, number: Callable[[str], Any] | None = None) -> Any:
    """Return what a document says, if it says it once.

    `NaN` and `Infinity` are no JSON. An object that has a member twice is refused: one reader
    would take the first, another the last, and both would be sure.
    Bytes are UTF-8. `number` makes a number of its text, else it is an `int` or a `float`.
    Raises `ValueError`: it is no such document, by a `JSONDecodeError` or a `UnicodeDecodeError`
    where that tells the place; `RecursionError`: it is nested deeper than Python can follow.
    """
    return json.loads(
        text.decode() if isinstance(text, bytes) else text, parse_int=number, parse_float=number,
        parse_constant=_refuse, object_pairs_hook=_once_each,
    )  # fmt: skip


def canonical_json(value: Any) -> str:
    """Return the one text of a document: sorted keys, no spaces, 18 for 18.0. Raises `ValueError`
    and `TypeError`: it is none, as `NaN`."""
    return json.dumps(
        _with_whole_numbers(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False,
        allow_nan=False,
    )  # fmt: skip


def _with_whole_numbers(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _with_whole_numbers(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_with_whole_numbers(each) for each in value]
    # Beyond that a float is no whole number of its own, but one of several.
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
    return int(value) if is_whole else value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number of JSON")


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a member is there twice")
    return members
