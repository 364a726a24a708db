"""The OpenAPI document: what FastAPI knows of the routes, and what only the whole knows of them.

Who may call, which errors can come, an example of everything, and names that stay: all of it is
added here, in one place, so that a route says only what is its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse

import ulak
from ulak.auth.principal import SCOPES, Scopes
from ulak.idempotency.key import HEADER as KEY
from ulak.idempotency.key import REPLAYED
from ulak.web import pages, schemas, swagger_ui
from ulak.web.access import KNOWN, PUBLIC, Access
from ulak.web.callers import ALIASES, SESSION, guarded_router
from ulak.web.pages import REF, example_of, resolved
from ulak.web.problems import CORRELATION_HEADER
from ulak.web.schemas import answer

Document = dict[str, Any]
Operation = dict[str, Any]

VERSION: Final = "3.1.0"
ABOUT: Final = """Durable jobs, each one a state machine. Lists have `items` and the `next` page's
cursor; times are RFC 3339 in UTC, spans are seconds; every error is a problem document (RFC 9457)
with a stable `code`."""

TAGS: Final = {
    "jobs": "Submit jobs, list them, wait for them, read what became of them.",
    "acts": "What people and programs ask of one job, or of every job that a filter matches.",
    "events": "Watch jobs while they move.",
    "dead letters": "Jobs and messages that gave up.",
    "flows": "What is declared.",
    "operations": "What people turn off, pin and look at while everything runs.",
    "queues": "Queues, pauses and workers.",
    "limits": "Limits, rates and weights.",
    "schedules": "What the clock submits.",
    "identity": "Who is known, and by which credential.",
    "audit": "What operators did, and who did it.",
    "health": "Whether the process lives and can work, and what it measures.",
    "documents": "What is served here, and this document.",
}


def _key_header(name: str) -> Document:
    return {
        "type": "apiKey", "in": "header", "name": name,
        "description": "An API key, as other servers take it.",
    }  # fmt: skip


SCHEMES: Final = {
    "bearer": {
        "type": "http", "scheme": "bearer", "description": "An API key, or a token of a login.",
    },
    **{alias.lower(): _key_header(alias) for alias in ALIASES},
    "session": {
        "type": "apiKey", "in": "cookie", "name": SESSION,
        "description": "The login of a browser; it acts from this site's own pages only.",
    },
}  # fmt: skip


def _header(description: str, kind: str = "string", **more: Any) -> Document:
    return {"description": description, "schema": {"type": kind, **more}}


HEADERS: Final = {
    "Correlation": _header("The id of the request: what was sent as such, if it is plain."),
    KEY: _header("The key as it was sent."),
    REPLAYED: _header(
        "Whether this was answered before, and nothing was done now.", enum=["true", "false"]
    ),
    "Location": _header("Where the job is."),
    "Retry-After": _header("After how many seconds.", "integer"),
    "WWW-Authenticate": _header("How to authenticate."),
}
_OF_KEYS: Final = {name: {"$ref": f"#/components/headers/{name}"} for name in (KEY, REPLAYED)}
_OF_STATUS: Final = {"401": "WWW-Authenticate", "429": "Retry-After"}

# Answered from memory; whatever else there is may find that the store does not answer.
_WITHOUT_STORE: Final = {"/", "/health", "/health/live", "/openapi.json", "/docs"}
_SENTENCE: Final = re.compile(r"(.+?[.;:!?])(?:\s+|$)(.*)", re.S)


def document_of(
    app: FastAPI,
    access: Mapping[tuple[str, str], Access],
    scopes: Scopes = SCOPES,
    *,
    services: Iterable[str] | None = None,
    swagger: bool = False,
) -> Document:
    """Make the document of an application whose every route has a line of access; `scopes` are
    those that keys and people may be narrowed to. With the names of `services` it is about their
    routes alone; for `swagger`, every scheme is one by which Swagger UI can ask."""
    about: Document = {
        "title": "ulak", "description": ABOUT.replace("\n", " "),
        "license_info": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
    }  # fmt: skip
    if services is not None:
        names = ", ".join(services) or "ulak"
        about = {"title": names, "description": f"The routes of {names}, and its probes."}
    made: Document = get_openapi(
        version=ulak.__version__, openapi_version=VERSION, routes=app.routes, **about
    )
    lines = {(line.method, _written(line.path)): line for line in access.values()}
    components = made.setdefault("components", {})
    described = components.setdefault("schemas", {})
    for validation in ("HTTPValidationError", "ValidationError"):
        described.pop(validation, None)
    described["Problem"] = schemas.Problem.model_json_schema(ref_template=f"{REF}{{model}}")
    components["securitySchemes"] = _schemes(access.values(), swagger=swagger)
    for grant in ("NewKey", "NewUser"):
        if grant in described:
            described[grant]["properties"]["scopes"]["items"]["enum"] = [str(s) for s in scopes]
    components["headers"] = HEADERS
    for path, method, operation in operations_of(made):
        _complete(operation, lines[method, path], path, described)
    made["components"]["schemas"] = {name: _tidy(described[name]) for name in sorted(described)}
    used = {tag for _, _, operation in operations_of(made) for tag in operation["tags"]}
    known = [tag for tag in TAGS if tag in used]
    made["tags"] = [{"name": tag, "description": TAGS[tag]} for tag in known]
    made["tags"] += [{"name": tag} for tag in sorted(used - set(known))]
    return made


def operations_of(document: Document) -> Iterator[tuple[str, str, Operation]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method.upper(), operation


def router(*, swagger: bool = False) -> APIRouter:
    """Make the routes of the document and of the page that is made from it, by us or by Swagger UI.
    Raises `NotSupported`: Swagger UI is not installed."""
    routes = guarded_router(tags=["documents"])

    @routes.get("/openapi.json", response_model=dict[str, Any])
    async def openapi(request: Request) -> Response:
        """Read the OpenAPI document."""
        return answer(_served(request))

    if swagger:
        swagger_ui.add_pages(routes)
        return routes

    @routes.get("/docs", response_class=HTMLResponse)
    async def docs(request: Request) -> HTMLResponse:
        """Read it as a page, which needs nothing from anywhere else."""
        return pages.respond(pages.docs_page(_served(request), pages.address_in(request)))

    return routes


def _served(request: Request) -> Document:
    """Return the document, below the path at which the application is mounted."""
    document: Document = request.app.openapi()
    root = request.scope.get("root_path", "")
    return {**document, "servers": [{"url": root}]} if root else document


def _written(path: str) -> str:
    return re.sub(r":\w+}", "}", path)


def _complete(operation: Operation, line: Access, path: str, described: Document) -> None:
    words = re.findall(r"\w+", path) or ["index"]
    operation["operationId"] = "_".join([line.method.lower(), *words])
    operation.setdefault("tags", [words[0]])
    _say(operation, line)
    operation["security"] = _security(line)
    for parameter in operation.get("parameters", []):
        _plain_parameter(parameter)
    for media in operation.get("requestBody", {"content": {}})["content"].values():
        media["schema"].pop("default", None)
        media["example"] = example_of(media["schema"], described)
    own = operation.get("responses", {}).items()
    # Without what FastAPI says of every bad request.
    described_here = {k: v for k, v in own if "HTTPValidationError" not in str(v)}
    responses = {**_errors(operation, line, path), **described_here}
    takes_a_key = any(parameter["name"] == KEY for parameter in operation.get("parameters", []))
    for status, response in responses.items():
        _complete_response(status, response, described)
        if takes_a_key:
            response["headers"] |= _OF_KEYS
    operation["responses"] = {status: responses[status] for status in sorted(responses)}


def _say(operation: Operation, line: Access) -> None:
    """Take the first sentence as the summary, and tell who may call."""
    said = str(operation.get("description") or operation["summary"])
    text = re.sub(r"(?<!\n)\n(?!\n)", " ", said)
    parted = _SENTENCE.match(text)
    first, rest = (text, "") if parted is None else parted.groups()
    rest = rest[:1].upper() + rest[1:]
    operation["summary"] = first.rstrip(".;:")
    needs = {PUBLIC: "Needs no credential.", KNOWN: "Needs a good credential."}.get(line.scope)
    if line.is_optional:
        needs = "A credential may be left out."
    if needs is None:
        assert line.needed is not None  # noqa: S101 - it is neither of those above
        needs = f"Needs `{line.scope}`: to {line.needed.allows}."
    operation["description"] = "\n\n".join(part for part in (rest.strip(), needs) if part)


def _security(line: Access) -> list[dict[str, list[str]]]:
    if line.is_public and not line.is_optional:
        return []
    scopes = [] if line.scope in (KNOWN, PUBLIC) else [str(line.scope)]
    schemes = line.takes or (*SCHEMES, *line.headers)
    found = [{scheme.lower(): scopes} for scheme in schemes]
    return [{}, *found] if line.is_optional else found


def _schemes(lines: Iterable[Access], *, swagger: bool) -> Document:
    """Describe every way in which a credential may come, those of services too."""
    made: Document = dict(SCHEMES)
    used: set[str] = set()
    for line in lines:
        used.update(*_security(line))
        made |= {name.lower(): _key_header(name) for name in line.headers}
        for scheme in line.takes:
            # Of the schemes of HTTP, Swagger UI knows these two and sends nothing for others.
            is_header = swagger and scheme.lower() not in ("bearer", "basic")
            plain = {"type": "http", "scheme": scheme.lower()}
            made.setdefault(scheme.lower(), _whole_header(scheme) if is_header else plain)
    return {name: scheme for name, scheme in made.items() if name in used}


def _whole_header(scheme: str) -> Document:
    return {
        "type": "apiKey", "in": "header", "name": "Authorization",
        "description": f"Write the whole header: `{scheme} CREDENTIAL`.",
    }  # fmt: skip


def _plain_parameter(parameter: Document) -> None:
    """A parameter is there or it is not: in an address nothing is null."""
    schema = parameter["schema"]
    kinds = [kind for kind in schema.pop("anyOf", []) if kind.get("type") != "null"]
    if len(kinds) == 1:
        schema |= kinds[0]
    elif kinds:
        schema["anyOf"] = kinds
    schema.pop("title", None)
    if "description" in schema:
        parameter.setdefault("description", schema.pop("description"))


def _errors(operation: Operation, line: Access, path: str) -> Document:
    has_body = "requestBody" in operation
    found = [
        *([401] if line.is_optional else [] if line.is_public else [401, 403]),
        *([404] if "{" in path else []),
        *([400, 413] if has_body else []),
        *([422] if has_body or operation.get("parameters") else []),
        *([] if path in _WITHOUT_STORE else [503]),
    ]
    return {str(status): schemas.problem_response(status) for status in found}


def _complete_response(status: str, response: Document, described: Document) -> None:
    headers = {CORRELATION_HEADER: {"$ref": "#/components/headers/Correlation"}}
    if (own := _OF_STATUS.get(status)) is not None:
        headers[own] = {"$ref": f"#/components/headers/{own}"}
    response["headers"] = headers | response.get("headers", {})
    for kind, media in response.get("content", {}).items():
        schema = media.setdefault("schema", {})
        if kind == schemas.PROBLEM_JSON:
            media["example"] = _problem(int(status), response["description"], described)
        elif kind == "application/json":
            media.setdefault("example", example_of(schema, described))
        about = resolved(schema, described).get("description", "")
        if response["description"] == "Successful Response" and about:
            response["description"] = about.partition("\n\n")[0].replace("\n", " ")


def _problem(status: int, phrase: str, described: Document) -> Document:
    code = phrase.lower().replace(" ", "-")
    return {
        **described["Problem"]["example"], "type": f"urn:ulak:problem:{code}", "title": phrase,
        "status": status, "detail": "What was asked, why not, and what would work.",
        "code": code, "retryable": status in (429, 503, 504),
    }  # fmt: skip


def _tidy(schema: Any) -> Any:
    """Leave out titles that only repeat a name."""
    if isinstance(schema, list):
        return [_tidy(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: part if name in ("example", "examples", "default", "enum") else _tidy(part)
        for name, part in schema.items()
        if not (name == "title" and isinstance(part, str))
    }
