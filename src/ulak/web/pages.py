"""Pages for people, and the index at `/`: no script, nothing from elsewhere, light and dark."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any, Final, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, Field

import ulak
from ulak.auth.directory import LINK_LIFE_TEXT
from ulak.settings import Settings
from ulak.web.callers import guarded_router
from ulak.web.schemas import PROBLEM_JSON, answer

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
"""The look of a page that is read in a minute."""


def page(title: str, body: str, *, style: str = NARROW, head: str = "") -> str:
    """Return a whole page.

    Args:
        title: What the browser's tab shows; plain text.
        body: The HTML between the tags of the body.
        style: CSS that is added to the common one.
        head: HTML that is added to the head.
    """
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
    """Tell whether the caller would rather read a page than JSON.

    A browser names `text/html` first; a program names JSON, or takes anything.
    """
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
    """Make the route of the index.

    Args:
        platform: The settings of what is served.
        has_links: Whether people log in by links.
    """
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
