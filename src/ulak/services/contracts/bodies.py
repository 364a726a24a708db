"""Bodies of requests: read once, with the parts that are kept as they were written.

Routes take bytes and read them here, after the caller is known: what nobody may ask is not read,
and a missing idempotency key is told before anything else is judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import msgspec
from fastapi import Depends, HTTPException, Request
from pydantic import BaseModel, ValidationError

from ulak.idempotency import HEADER, REPLAYED, read_key
from ulak.kit import read_json
from ulak.web import problems

KEY: Final = "idempotency_key"

Model = TypeVar("Model", bound=BaseModel)


async def _raw(request: Request) -> RawBody:
    marks = request.scope.setdefault(problems.EXTRA, {})
    return RawBody(await request.body(), request.headers.getlist(HEADER), marks)


class RawBody:
    """What was sent; it is read when somebody asks, in the thread of the route.

    Args:
        body: All of it.
        keys: The lines of the header of idempotency keys.
        marks: The headers that a problem of this request will have.
    """

    def __init__(self, body: bytes, keys: Sequence[str], marks: dict[str, str]) -> None:
        self._body = body
        self._keys = keys
        self._marks = marks

    def key(self, *, required: bool = True) -> str | None:
        """Return the idempotency key, of the header or of the body; whatever is wrong with the
        rest, the answer will name it.

        Raises:
            BadKey: there is none and one is needed, it is no key, or there are two.
        """
        self._marks[REPLAYED] = "false"
        if len(self._keys) == 1 and self._keys[0].strip():
            self._marks[HEADER] = self._keys[0]
        key = read_key(self._keys, self._found.members.get(KEY), required=required)
        if key is not None:
            self._marks[HEADER] = key
        return key

    def read(self, model: type[Model]) -> Model:
        """Return the body as a model.

        Raises:
            HTTPException: 400, naming what is wrong with it.
        """
        if self._found.wrong:
            raise HTTPException(400, self._found.wrong)
        try:
            return model.model_validate(self._found.members)
        except ValidationError as error:
            wrong = (
                f"{'.'.join(map(str, each['loc'])) or 'body'}: {each['msg']}"
                for each in error.errors(include_url=False, include_context=False)
            )
            raise HTTPException(400, "; ".join(wrong)) from None

    def written(self, *names: str) -> dict[str, str]:
        """Return members as they were written, number by number; what is null is left out."""
        return {
            name: bytes(self._found.written[name]).decode()
            for name in names
            if self._found.members.get(name) is not None
        }

    @cached_property
    def _found(self) -> _Found:
        members: dict[str, Any] = {}
        try:
            found = read_json(self._body)
            if not isinstance(found, dict):
                raise ValueError("it is no object")
            members = found
            return _Found(members, msgspec.json.decode(self._body, type=dict[str, msgspec.Raw]))
        except (ValueError, RecursionError, msgspec.DecodeError) as error:
            # A key may be there all the same: half a character elsewhere is found only then.
            return _Found(members, {}, f"the body is no JSON object that can be read: {error}")


class _Found(NamedTuple):
    """A body that was read: its members, as values and as they were written."""

    members: Mapping[str, Any]
    written: Mapping[str, msgspec.Raw]
    wrong: str = ""
    """Why it cannot be used."""


Sent = Annotated[RawBody, Depends(_raw)]
"""What a route declares to get its body."""
