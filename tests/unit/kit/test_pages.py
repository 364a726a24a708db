"""Plain pages: every value is escaped, and who has not logged in is told where to."""

import asyncio
from typing import Annotated

import httpx
import pytest
from fastapi import Depends, Request

import ulak
import ulak.web
from tests.web.people import Known, as_
from ulak.errors import ServiceError
from ulak.kit.pages import (
    Html,
    PageRoute,
    form,
    link,
    local_path,
    read_form,
    respond_page,
    see_other,
    table,
    to_html,
)
from ulak.service import Service, attach
from ulak.settings import Settings
from ulak.web import KNOWN, Routes, RouteTable

MARKUP = "<b>\"'&"
ESCAPED = "&lt;b&gt;&quot;&#x27;&amp;"


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (to_html(MARKUP), ESCAPED),
        (to_html(None), ""),
        (to_html(7), "7"),
        (to_html([Html("<i>"), MARKUP, None]), f"<i>{ESCAPED}"),
        (to_html(Html(MARKUP)), MARKUP),
        (link(MARKUP, MARKUP), f'<a href="{ESCAPED}">{ESCAPED}</a>'),
        (table([MARKUP], [[MARKUP]]), f"<tr><th>{ESCAPED}</th></tr><tr><td>{ESCAPED}</td></tr>"),
        (table(["created_at"], []), "<th>created at</th>"),
        (form("/", MARKUP, {"name": MARKUP}), f'name="name" value="{ESCAPED}"'),
        (form("/", MARKUP, {"name": MARKUP}), f"<button>{ESCAPED}</button>"),
        (form(MARKUP, "Go", hidden={"id": MARKUP}), f'action="{ESCAPED}"'),
        (form("/", "Go", hidden={"id": MARKUP}), f'type="hidden" name="id" value="{ESCAPED}"'),
        (form("/", "Go", enabled=False), "<button disabled>"),
    ],
)
def test_what_is_shown_is_escaped_unless_it_is_html_already(made: str, said: str) -> None:
    assert isinstance(made, Html)
    assert said in made


def make_routes(*_: object) -> Routes:
    route = RouteTable(prefix="/letters", route_class=PageRoute)

    @route("GET", "", KNOWN)
    def read():
        """Read the page."""
        return respond_page(MARKUP, Html("<p>Here</p>"), MARKUP, said=MARKUP, status=409)

    @route("POST", "", KNOWN)
    def write(request: Request, sent: Annotated[dict[str, str], Depends(read_form)]):
        """Send the form."""
        if sent.get("name") == MARKUP:
            raise ServiceError(MARKUP)
        return see_other(local_path(request, f"/letters?name={sent.get('name')}"))

    return Routes([route.router], route.access)


def test_a_page_is_read_and_a_form_sent() -> None:
    service = Service("letters", attach=lambda *_: None, routes=make_routes)
    engine = ulak.connect("memory://")
    attach(service, engine, Settings())
    app = ulak.web.app(engine, identity=Known(), services=[service])

    def ask(method: str, **options: object) -> httpx.Response:
        async def once() -> httpx.Response:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
                return await client.request(method, "/letters/", **options)

        return asyncio.run(once())

    told = ask("GET", headers=as_("viewer"))
    assert told.status_code == 409
    assert told.headers["cache-control"] == "no-store"
    assert "default-src 'none'" in told.headers["content-security-policy"]
    assert f"<h1>{ESCAPED}</h1>" in told.text
    assert f'role="alert">{ESCAPED}</p>' in told.text
    assert f"<p>Here</p>{ESCAPED}" in told.text
    unknown = ask("GET")
    assert (unknown.status_code, '<a href="/">How to log in</a>' in unknown.text) == (401, True)
    sent = {"name": "ada", "none": ""}
    assert ask("POST", headers=as_("viewer"), data=sent).headers["location"] == "/letters?name=ada"
    for referer, back in (
        ("http://x/letters?a=1", "/letters?a=1"), ("http://x//y.org/\\z", "/y.org/%5Cz"), ("", "/"),
        ("http://[", "/"), ("no address", "/"),
    ):  # fmt: skip
        headers = {**as_("viewer"), "referer": referer}
        refused = ask("POST", headers=headers, data={"name": MARKUP})
        assert refused.status_code == 400
        assert f'role="alert">{ESCAPED}</p>' in refused.text
        assert f'<a href="{back}">Back</a>' in refused.text
    engine.close()
