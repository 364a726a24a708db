"""One example for every schema: the one that it carries, or one made of its fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ulak.web.schemas import A_JOB, A_MOMENT

REF: Final = "#/components/schemas/"

_BY_FORMAT: Final = {"date-time": A_MOMENT, "uuid": A_JOB}


def example_of(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Any:
    """Return a value that a schema describes.

    Args:
        schema: The schema, or a reference to one.
        schemas: What references name.
    """
    schema = resolved(schema, schemas)
    if "example" in schema:
        return _whole(schema["example"], schema)
    for several in ("examples", "enum"):
        if schema.get(several):
            return schema[several][0]
    for given in ("const", "default"):
        if given in schema:
            return schema[given]
    for kind in ("anyOf", "oneOf", "allOf"):
        if schema.get(kind):
            return example_of(schema[kind][0], schemas)
    return _of_type(schema, schemas)


def resolved(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow a reference."""
    while "$ref" in schema:
        schema = schemas[schema["$ref"].removeprefix(REF)]
    return schema


def _whole(example: Any, schema: Mapping[str, Any]) -> Any:
    """Put back what FastAPI leaves out of examples: fields that are null."""
    fields = schema.get("properties", {})
    if not isinstance(example, dict):
        return example
    required = schema.get("required", [])
    return {name: example.get(name) for name in fields if name in example or name in required}


def _of_type(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Any:
    kind = schema.get("type")
    if kind == "object":
        fields = schema.get("properties", {})
        return {name: example_of(field, schemas) for name, field in fields.items()}
    if kind == "array":
        return [example_of(schema.get("items", {}), schemas)]
    if kind == "string":
        return _BY_FORMAT.get(schema.get("format", ""), "text")
    if kind == "integer":
        return int(schema.get("minimum", 1))  # FastAPI writes every bound as a float
    if kind == "number":
        return schema.get("minimum", 1)
    return {"boolean": False}.get(str(kind))
