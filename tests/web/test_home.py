"""`GET /`: a page for a browser, an index for a program, and nothing secret in either."""

import re
from html import unescape

import pytest
from fastapi import FastAPI

import ulak
import ulak.web
from tests.web.people import Known
from ulak.auth.identity import Identity
from ulak.settings import COMMAND_LINE, Settings

BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
SECRET = "of a test, and long enough for one"  # noqa: S105 - signs nothing that anybody keeps
PATHS = {
    "docs": "/docs", "jobs": "/jobs", "metrics": "/metrics", "health": "/health/ready",
}  # fmt: skip


@pytest.fixture
def shown(engine):
    """An application as `ulak up shop:engine` makes it."""
    platform = Settings(secret=SECRET).override(COMMAND_LINE, app="shop:engine", service="pdf")
    identity = Identity(engine.store, secret=SECRET)
    return ulak.web.app(engine, identity=identity, platform=platform)


def links(page: str) -> list[str]:
    return re.findall(r'href="([^"]+)"', page)


def test_a_program_gets_an_index_of_links(ask, shown):
    answer = ask(shown, "/")
    assert answer.status_code == 200
    assert answer.json() == {
        "name": "ulak", "version": ulak.__version__, "program": "shop:engine with pdf",
        "links": PATHS,
    }  # fmt: skip
    assert answer.headers["vary"] == "Accept"
    assert ask(shown, "/", method="HEAD").status_code == 200


def test_a_browser_gets_a_page_that_says_what_this_is_and_where_to_log_in(ask, shown):
    answer = ask(shown, "/", headers=BROWSER)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["vary"] == "Accept"
    page = answer.text
    assert f"ulak <small>{ulak.__version__}</small>" in page
    assert "This server runs <code>shop:engine</code>, <code>pdf</code>." in page
    assert "<pre>ulak link --address http://ulak -a shop:engine</pre>" in page
    assert "A link works once, within 10 minutes" in page
    assert links(page) == list(PATHS.values())
    assert SECRET not in page


def test_at_the_usual_address_the_command_needs_none(ask, shown):
    page = ask(shown, "http://127.0.0.1:8000/", headers=BROWSER).text
    assert "<pre>ulak link -a shop:engine</pre>" in page


def test_the_page_needs_nothing_from_elsewhere_and_is_light_and_dark(ask, shown):
    answer = ask(shown, "/", headers=BROWSER)
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "no-store" in answer.headers["cache-control"]
    assert not re.search(r"<script|<link|src=|url\(|@import|https?://(?!ulak)", answer.text)
    assert "prefers-color-scheme: dark" in answer.text


def test_every_link_of_the_index_leads_somewhere_below_a_mount_too(ask, shown):
    outer = FastAPI()
    outer.mount("/ulak", shown)
    index = ask(outer, "/ulak/").json()["links"]
    page = ask(outer, "/ulak/", headers=BROWSER).text
    assert list(index.values()) == links(page) == [f"/ulak{path}" for path in PATHS.values()]
    assert "ulak link --address http://ulak/ulak -a shop:engine" in page
    for path in index.values():
        assert ask(outer, path).status_code in (200, 401)


@pytest.mark.parametrize("identity", [None, Known()], ids=["nobody is asked", "callers of its own"])
def test_where_links_log_nobody_in_none_is_offered(ask, engine, identity):
    page = ask(ulak.web.app(engine, identity=identity), "/", headers=BROWSER).text
    assert links(page) == list(PATHS.values())
    assert "Log in" not in page
    assert "ulak link" not in page
    assert "This server runs" not in page


@pytest.mark.parametrize(
    ("accept", "is_page"),
    [
        ("text/html", True),
        ("TEXT/HTML", True),
        ("text/html, */*", True),
        ("text/html;q=0.9, application/json;q=0.5", True),
        ("text/html, application/json", False),
        ("text/html;q=0.5, */*", False),
        ("text/html;q=0", False),
        ("text/html;q=much", False),
        ("application/json", False),
        ("*/*", False),
        ("", False),
        ("application/problem+json, text/html;q=0.2", False),
    ],
)
def test_who_gets_the_page_follows_from_what_is_accepted(ask, shown, accept, is_page):
    answer = ask(shown, "/", headers={"Accept": accept})
    assert answer.headers["content-type"].startswith("text/html") is is_page


def test_a_strange_name_of_the_server_writes_nothing_into_the_page(ask, shown):
    answer = ask(shown, "/", headers={**BROWSER, "Host": "x'<script>alert(1)</script>"})
    assert "<script" not in answer.text
    command = unescape(re.search(r"<pre>(.*?)</pre>", answer.text, re.S)[1])
    assert command.startswith("ulak link")


def test_the_document_describes_both(shown):
    content = shown.openapi()["paths"]["/"]["get"]["responses"]["200"]["content"]
    assert set(content) == {"application/json", "text/html"}
    assert content["application/json"]["example"]["links"] == PATHS
