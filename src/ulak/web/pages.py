"""Pages for people, the index and the API: no script, nothing from elsewhere, light and dark."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, Final, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, Field

import ulak
from ulak.auth.directory import LINK_LIFE_TEXT
from ulak.settings import Settings
from ulak.web.callers import guarded_router
from ulak.web.schemas import A_JOB, A_MOMENT, PROBLEM_JSON, answer

HTML: Final = "text/html"
_JSON: Final = ("application/json", PROBLEM_JSON)
_WILDCARDS: Final = ("*/*", "text/*", "application/*")

POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"

STYLE: Final = """
:root { color-scheme: light dark; --line: #d8d8d2; --soft: #f5f5f0; --faint: #666; --link: #1d4f9c }
@media (prefers-color-scheme: dark) {
  :root { --line: #3a3a3a; --soft: #1e1e1e; --faint: #9a9a9a; --link: #8ab4f8 } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 58rem; margin: 2rem auto; padding: 0 1rem }
a { color: var(--link) }
h1 { margin-bottom: .2rem } h2 { margin: 2.5rem 0 .5rem }
code, pre { font: .875rem/1.45 ui-monospace, monospace }
pre { background: var(--soft); padding: .75rem 1rem; overflow-x: auto; border-radius: .4rem }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 }
td, th { text-align: left; padding: .25rem 1rem .25rem 0; vertical-align: top;
         border-bottom: 1px solid var(--line) }
th { font-weight: 600; color: var(--faint) }
"""
NARROW: Final = """
body { max-width: 40rem; margin-top: 12vh }
h1 small { font-weight: 400; font-size: 1rem; color: var(--faint) }
h2 { font-size: 1.1rem; margin-top: 2rem }
td:last-child { color: var(--faint); padding-right: 0 } td:first-child { width: 7rem }
pre { white-space: pre-wrap; overflow-wrap: anywhere }
.faint { color: var(--faint) }
"""


def page(title: str, body: str, *, style: str = NARROW, head: str = "") -> str:
    """Return a whole page; of its parts, `title` is plain text, `style` CSS, the others HTML."""
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>{head}
<style>{STYLE}{style}</style>
{body}
</html>
"""


def respond(html: str, status: int = 200, headers: Mapping[str, str] | None = None) -> HTMLResponse:
    """Return a page as a response that lets the browser load and run nothing else."""
    return HTMLResponse(html, status, {"Content-Security-Policy": POLICY, **(headers or {})})


def prose(text: str) -> str:
    """Return a sentence as HTML, its `code` as code."""
    parts = escape(text, quote=False).split("`")
    return "".join(f"<code>{p}</code>" if n % 2 else p for n, p in enumerate(parts))


def address_in(request: Request) -> str:
    """Return where the caller has reached the application, without a slash at the end."""
    # Not `base_url`: below a mount that is the address of the outer application.
    root: str = request.scope.get("root_path", "")
    return f"{request.url.scheme}://{request.url.netloc}{root.rstrip('/')}"


def prefers_html(request: Request) -> bool:
    """Tell whether the caller would rather read a page than JSON. A browser names `text/html`
    first; a program names JSON, or takes anything."""
    weights: dict[str, float] = {}
    for part in ",".join(request.headers.getlist("accept")).split(","):
        kind, *parameters = (word.strip().lower() for word in part.split(";"))
        weights[kind] = _weight(parameters)
    html = weights.get(HTML, 0.0)
    json = max(weights.get(kind, 0.0) for kind in _JSON)
    # A wildcard stands for both, and less exactly than the name that is there.
    return html > json and html >= max(weights.get(kind, 0.0) for kind in _WILDCARDS)


def _weight(parameters: list[str]) -> float:
    """Return the `q` of a media range: 1 where it is not said, 0 where it is no number."""
    q = next((p[2:] for p in parameters if p.startswith("q=")), "1")
    try:
        return float(q)
    except ValueError:
        return 0.0


ABOUT: Final = "Durable jobs for Python, each one a declared state machine."

PLACES: Final[Mapping[str, tuple[str, str, str]]] = {
    "docs": ("API", "/docs", "every route, with a line to type"),
    "jobs": ("Jobs", "/jobs", "the newest jobs, as JSON"),
    "metrics": ("Metrics", "/metrics", "for Prometheus"),
    "health": ("Health", "/health/ready", "whether this process can work; needs no login"),
}
"""For each link of the index its name for people, its path, and what is there."""

# The page names the host that the caller has named, so no cache may hand it to others.
HEADERS: Final = {"Vary": "Accept", "Cache-Control": "no-store"}
_PAGE: Final[dict[int | str, dict[str, Any]]] = {
    200: {"content": {HTML: {"schema": {"type": "string"}}}}
}


class Index(BaseModel):
    """What is served here, and where."""

    name: Literal["ulak"]
    version: str = Field(examples=[ulak.__version__])
    program: str = Field(
        description="The program whose jobs these are; empty where its name is not known.",
        examples=["app:engine"],
    )
    links: dict[str, str] = Field(examples=[{name: path for name, (_, path, _) in PLACES.items()}])


def router(platform: Settings, *, has_links: bool) -> APIRouter:
    """Make the route of the index; with `has_links`, people log in by links."""
    routes = guarded_router(tags=["documents"])

    @routes.head("/", include_in_schema=False, response_model=None)
    @routes.get("/", response_model=Index, responses=_PAGE)
    async def index(request: Request) -> Response:
        """Read what is served here: a page for a browser, JSON for a program."""
        root = request.scope.get("root_path", "")
        if prefers_html(request):
            login = how_to_log_in(request, platform) if has_links else ""
            return respond(_home(platform, root, login), headers=HEADERS)
        links = {name: root + path for name, (_, path, _) in PLACES.items()}
        document = {"name": "ulak", "version": ulak.__version__, "program": platform.program}
        return answer({**document, "links": links}, headers=HEADERS)

    return routes


def how_to_log_in(request: Request, platform: Settings) -> str:
    """Return HTML with the command that prints a link to this very address."""
    command = platform.link_command(address_in(request))
    return f"""<pre>{escape(command)}</pre>
<p class="faint">A link works once, within {LINK_LIFE_TEXT}. A program sends a key instead:
<code>ulak keys create NAME --role service</code></p>"""


def _home(platform: Settings, root: str, login: str) -> str:
    names = [f"<code>{escape(name)}</code>" for name in (platform.app, *platform.services) if name]
    served = f"<p>This server runs {', '.join(names)}.</p>" if names else ""
    if login:
        login = f"""<h2>Log in</h2>
<p>Open the link that the server printed when it started, or print another where it runs:</p>
{login}"""
    rows = "".join(
        f'<tr><td><a href="{escape(root + path)}">{name}</a></td><td>{prose(about)}</td></tr>'
        for name, path, about in PLACES.values()
    )
    return page(
        "ulak",
        f"""<h1>ulak <small>{escape(ulak.__version__)}</small></h1>
<p>{ABOUT}</p>
{served}
{login}
<h2>Look around</h2>
<table>{rows}</table>""",
    )


DOCS_STYLE: Final = """
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


def docs_page(document: Mapping[str, Any], base: str) -> str:
    """Write the page of a document; `base` is where it is served, for lines to type."""
    info = document["info"]
    tags = [tag["name"] for tag in document["tags"]]
    links = "".join(f'<a href="#{_anchor(tag)}">{escape(tag)}</a>' for tag in tags)
    parts = "\n".join(_section(document, tag, base) for tag in document["tags"])
    version = escape(info["version"])
    return page(
        f"ulak {info['version']}: the API",
        f"""<h1>ulak {version}</h1>
<p>{prose(info["description"])}</p>
<p>The same for programs: <a href="openapi.json">openapi.json</a>. Lines to type take an API key
from <code>ULAK_KEY</code>: <code>export ULAK_KEY=ulak_...</code></p>
<nav>{links}</nav>
{parts}""",
        style=DOCS_STYLE,
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
    if bounds := [str(schema[name]) for name in ("minimum", "maximum") if name in schema]:
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
    """Return a value that a schema describes; `schemas` has what references name."""
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
    while "$ref" in schema:
        schema = schemas[schema["$ref"].removeprefix(REF)]
    return schema


def _whole(example: Any, schema: Mapping[str, Any]) -> Any:
    """Put back what FastAPI leaves out of examples: fields that are null."""
    if not isinstance(example, dict):
        return example
    present = {*example, *schema.get("required", [])}
    return {n: example.get(n) for n in schema.get("properties", {}) if n in present}


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
