"""Strict bodies: JSON that says one thing, read once the caller is known, each fault named.

    @router.post("/letters", openapi_extra=describe_body(Letter))
    async def write(principal: Caller, letter: Sent[Letter]) -> Written: ...

FastAPI alone reads a body before it asks who sends it, and takes `NaN` and a member that is there
twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from json import JSONDecodeError
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from ulak.errors import PayloadTooLarge
from ulak.strict_json import read_json
from ulak.web.schemas import Body, storable

__all__ = [
    "Body", "MaybeSent", "Sent", "bounded_body", "describe_body", "inline_schema", "read_object",
    "storable", "strict_body",
]  # fmt: skip

Model = TypeVar("Model", bound=BaseModel)


def strict_body(model: type[Model], *, optional: bool = False) -> Any:
    """Return the annotation of a route's parameter that gets the body as this model; with
    `optional`, the defaults of the model where nothing was sent.

    A body that is no JSON, that has a member twice or one that the model does not know, or a value
    of another type, is answered with 422 and a sentence for each fault.
    """

    async def read(request: Request) -> Model:
        sent = await request.body()
        try:
            return model() if optional and not sent else model.model_validate(_read(sent))
        except ValidationError as error:
            wrong = error.errors(include_url=False, include_context=False, include_input=False)
            raise RequestValidationError(
                [{**each, "loc": ("body", *each["loc"])} for each in wrong]
            ) from None

    vars(read)["openapi_extra"] = describe_body(model)
    return Depends(read)


def bounded_body(largest: int) -> Any:
    """Return the annotation of a route's parameter that gets the body as bytes: `largest` of them
    at most, else the answer is 413."""

    async def read(request: Request) -> bytes:
        body = await request.body()
        if len(body) > largest:
            raise PayloadTooLarge(
                f"the body has {len(body):,} bytes, {largest:,} are the most; send less at once"
            )
        return body

    return Depends(read)


def read_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object that a body is, for routes that check it themselves; anything else is
    answered as by `strict_body`."""
    document = _read(body)
    if not isinstance(document, dict):
        raise _unreadable("write a JSON object, as {...}")
    return document


def _read(body: bytes) -> Any:
    try:
        return read_json(body)
    except JSONDecodeError as error:
        raise _unreadable("json_invalid", error.pos) from None
    except (ValueError, RecursionError) as error:
        raise _unreadable(f"this is no JSON that can be read: {error}") from None


if TYPE_CHECKING:
    Sent = Annotated[Model, strict_body]
    MaybeSent = Annotated[Model, strict_body]
else:

    class Sent:
        """`Sent[Letter]` is the parameter of a route that gets the body as this model."""

        optional = False

        def __class_getitem__(cls, model: type[Model]) -> Any:
            return Annotated[model, strict_body(model, optional=cls.optional)]

    class MaybeSent(Sent):
        """`MaybeSent[Letter]` is the same, and the defaults of the model where nothing was sent."""

        optional = True


def describe_body(
    model: type[BaseModel], example: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the `openapi_extra` of a route that reads its body by `strict_body`, which FastAPI
    cannot see."""
    schema = model.model_json_schema()
    described = inline_schema(schema, schema.pop("$defs", {}))
    if example is not None:
        described["example"] = example
    content = {"application/json": {"schema": described}}
    return {"requestBody": {"required": True, "content": content}}


def inline_schema(schema: Any, definitions: Mapping[str, Any]) -> Any:
    """Return a JSON schema with each definition in the place of its reference: a route does not
    know names of the whole OpenAPI document."""
    if isinstance(schema, list):
        return [inline_schema(part, definitions) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return inline_schema(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    return {name: inline_schema(part, definitions) for name, part in schema.items()}


def _unreadable(fault: str, *place: int) -> RequestValidationError:
    return RequestValidationError([{"type": fault, "loc": ("body", *place), "msg": fault}])
