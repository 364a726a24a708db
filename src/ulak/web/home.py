"""The index at `/`: what is served here, how to log in, and where everything is."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any, Final, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

import ulak
from ulak.auth.links import LINK_LIFE_TEXT
from ulak.settings import Settings
from ulak.web.answers import answer
from ulak.web.callers import guarded_router
from ulak.web.pages import HTML, address_in, page, prefers_html, prose, respond

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
