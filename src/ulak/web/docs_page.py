"""The OpenAPI document as one page, and one example for every schema."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, Final

from ulak.web import pages
from ulak.web.pages import prose
from ulak.web.schemas import A_JOB, A_MOMENT

STYLE: Final = """
:root { --get: #1a6b4a; --post: #1d4f9c; --put: #8a5a00; --delete: #a12622 }
@media (prefers-color-scheme: dark) {
  :root { --get: #6fcf9f; --post: #8ab4f8; --put: #e5b567; --delete: #f28b82 } }
nav a { margin-right: 1rem; display: inline-block }
h2::first-letter, nav a::first-letter { text-transform: uppercase }
details { border-top: 1px solid var(--line) }
details:last-of-type { border-bottom: 1px solid var(--line) }
summary { padding: .45rem 0; cursor: pointer; display: flex; gap: .8rem; flex-wrap: wrap }
summary .says { color: var(--faint) }
.method { font-weight: 700; min-width: 4.2rem }
.get { color: var(--get) } .post { color: var(--post) }
.put { color: var(--put) } .delete { color: var(--delete) }
.inside { padding: 0 0 1rem 1rem }
"""


def page(document: Mapping[str, Any], base: str) -> str:
    """Write the page.

    Args:
        document: The OpenAPI document.
        base: Where the application is served, for lines to type.
    """
    info = document["info"]
    tags = [tag["name"] for tag in document["tags"]]
    links = "".join(f'<a href="#{_anchor(tag)}">{escape(tag)}</a>' for tag in tags)
    parts = "\n".join(_section(document, tag, base) for tag in document["tags"])
    version = escape(info["version"])
    return pages.page(
        f"ulak {info['version']}: the API",
        f"""<h1>ulak {version}</h1>
<p>{prose(info["description"])}</p>
<p>The same for programs: <a href="openapi.json">openapi.json</a>. Lines to type take an API key
from <code>ULAK_KEY</code>: <code>export ULAK_KEY=ulak_...</code></p>
<nav>{links}</nav>
{parts}""",
        style=STYLE,
    )


def _section(document: Mapping[str, Any], tag: Mapping[str, str], base: str) -> str:
    name = tag["name"]
    about = f"<p>{prose(tag['description'])}</p>" if "description" in tag else ""
    inside = "\n".join(
        _operation(document, path, method, operation, base)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if operation["tags"][0] == name
    )
    return f'<section id="{_anchor(name)}"><h2>{escape(name)}</h2>{about}\n{inside}</section>'


def _operation(
    document: Mapping[str, Any], path: str, method: str, operation: Mapping[str, Any], base: str
) -> str:
    said = "".join(f"<p>{prose(part)}</p>" for part in operation["description"].split("\n\n"))
    return f"""<details id="{operation["operationId"]}">
<summary><span class="method {method}">{method.upper()}</span><code>{escape(path)}</code>
<span class="says">{prose(operation["summary"])}</span></summary>
<div class="inside">{said}
{_parameters(operation)}
<pre>{escape(curl(document, path, method, base))}</pre>
{_responses(operation)}
</div></details>"""


def curl(document: Mapping[str, Any], path: str, method: str, base: str) -> str:
    """Write the line to type for an operation."""
    operation = document["paths"][path][method]
    schemas = document["components"]["schemas"]
    for parameter in operation.get("parameters", []):
        if parameter["in"] == "path":
            shown = str(example_of(parameter["schema"], schemas))
            path = path.replace(f"{{{parameter['name']}}}", shown)
    words = ["curl", shlex.quote(base + path)]
    if method != "get":
        words[1:1] = ["-X", method.upper()]
    lines = [" ".join(words)]
    if operation["security"]:
        # In double quotes: the shell is to put the key in.
        lines.append('-H "Authorization: Bearer $ULAK_KEY"')
    for kind, media in operation.get("requestBody", {}).get("content", {}).items():
        lines.append(f"-H 'Content-Type: {kind}'")
        lines.append(f"-d {shlex.quote(json.dumps(media['example']))}")
    return " \\\n     ".join(lines)


def _parameters(operation: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(p['name'])}</code></td><td>{p['in']}</td>"
        f"<td>{escape('; '.join(_constraints(p)))}</td>"
        f"<td>{prose(p.get('description', ''))}</td></tr>"
        for p in operation.get("parameters", [])
    )
    head = "<tr><th>Parameter</th><th>In</th><th>Takes</th><th></th></tr>"
    return f"<table>{head}{rows}</table>" if rows else ""


def _constraints(parameter: Mapping[str, Any]) -> Iterator[str]:
    schema = parameter["schema"]
    if "enum" in schema:
        yield " ".join(map(str, schema["enum"]))
    else:
        yield schema.get("format") or schema.get("type", "anything")
    bounds = [str(schema[name]) for name in ("minimum", "maximum") if name in schema]
    if bounds:
        yield " to ".join(bounds)
    if schema.get("default") is not None:
        yield f"else {schema['default']}"


def _responses(operation: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{status}</td><td>{prose(response['description'])}</td>"
        f"<td>{' '.join(f'<code>{escape(kind)}</code>' for kind in response.get('content', {}))}"
        "</td></tr>"
        for status, response in operation["responses"].items()
    )
    shown = next(
        (
            media["example"]
            for status, response in operation["responses"].items()
            for media in response.get("content", {}).values()
            if status < "300" and "example" in media
        ),
        None,
    )
    example = "" if shown is None else f"<pre>{escape(json.dumps(shown, indent=2))}</pre>"
    return f"<table><tr><th>Answer</th><th></th><th></th></tr>{rows}</table>{example}"


def _anchor(tag: str) -> str:
    return escape(tag.replace(" ", "-"))


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
