"""What is refused before a job is made, and what a document looks like before it is one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.services.pdf import site as sites
from tests.services.pdf.site import TEMPLATE, Site
from ulak.services.pdf.page import NAMES
from ulak.services.pdf.routes import accepts
from ulak.services.pdf.templates import Templates

MANIFEST = """
version = "1"
title = "Letter"
options = ["landscape", "ranges", "header", "fail_on_status"]

[variables]
name = "text"
year = "integer?"
"""
SECRET = "Zeynep-4711-private"  # noqa: S105 - a variable that no answer may tell


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A site whose template is a real one."""
    folder = tmp_path / "templates" / TEMPLATE
    folder.mkdir(parents=True)
    (folder / "manifest.toml").write_text(MANIFEST)
    (folder / "template.html").write_text(
        "<!doctype html><p>Dear {{ name }}</p>{% if year %}<i>{{ year }}</i>{% endif %}"
    )
    (folder / "top.html").write_text("top")
    monkeypatch.setattr(sites, "Pages", lambda: Templates([folder.parent]))
    with Site(f"sqlite:///{tmp_path / 'jobs.db'}?synchronous=NORMAL", tmp_path) as made:
        made.heartbeat()
        yield made


def preview(
    site: Site, variables: Any, *, accept: str = "text/html", who: str | None = "key:shop",
    template: str = TEMPLATE, **options: Any,
) -> httpx.Response:  # fmt: skip
    body = {"template_name": template, "variables": variables, "options": options}
    return site.ask("POST", "/pdf/preview", json=body, who=who, headers={"Accept": accept})


def fields_of(answer: httpx.Response) -> set[str]:
    assert answer.status_code == 422, answer.text
    assert answer.json()["error_code"] == "VALIDATION_ERROR"
    return {one["field"] for one in answer.json()["details"]["fields"]}


# --- page options ---------------------------------------------------------------


@pytest.mark.shows("P-54")
def test_options_that_the_template_allows_are_part_of_the_job_and_of_its_key(site: Site) -> None:
    plain = site.new()
    turned = site.new(options={"page": {"landscape": True, "ranges": "1-3, 5"}})
    assert plain != turned
    assert site.jobs.read_job(turned).payload["options"] == {
        "page": {"landscape": True, "ranges": "1-3,5"}
    }
    again = site.create(options={"page": {"ranges": "5,1-3", "landscape": True}})
    assert (again.json()["job_id"], again.headers["Deduplicated"]) == (turned, "true")
    nothing = site.create(options={"page": {"landscape": False}})
    assert nothing.json()["job_id"] == plain


@pytest.mark.shows("P-54")
@pytest.mark.parametrize(
    ("page", "fields"),
    [
        ({"omit_background": True}, {"options.page.omit_background"}),
        ({"landscape": True, "single_page": True}, {"options.page.single_page"}),
        ({"header": "<b>hello</b>"}, {"options.page.header"}),
        ({"header": "../letter/top.html"}, {"options.page.header"}),
        ({"scale": 2}, {"options.page.scale"}),
        ({"landscape": "yes"}, {"options.page.landscape"}),
        ({"ranges": "3-1", "paper": "A99"}, {"options.page.ranges", "options.page.paper"}),
        ({"fail_on_status": [200]}, {"options.page.fail_on_status"}),
    ],
)
def test_any_other_option_is_422_and_names_the_field(
    site: Site, page: dict[str, Any], fields: set[str]
) -> None:
    answer = site.create(options={"page": page})
    assert fields_of(answer) == fields
    assert site.count() == 0
    assert fields_of(preview(site, {"name": "Ada"}, page=page)) == fields


def test_the_openapi_document_tells_every_option(site: Site) -> None:
    document = site.get("/openapi.json").json()
    for path in ("/pdf/jobs", "/pdf/preview"):
        body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        options = body["schema"]["properties"]["options"]["properties"]
        assert set(options["page"]["properties"]) == set(NAMES)


# --- linting --------------------------------------------------------------------


@pytest.mark.shows("P-57")
@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({}, {"name": "is missing"}),
        ({"name": 7}, {"name": "is not of the kind text"}),
        (
            {"name": SECRET, "year": SECRET, "colour": SECRET},
            {"year": "is not of the kind integer", "colour": "is not one of its variables"},
        ),
    ],
)
def test_variables_that_the_template_cannot_take_are_refused_before_a_job_is_made(
    site: Site, variables: dict[str, Any], named: dict[str, str]
) -> None:
    body = {"template_name": TEMPLATE, "variables": variables}
    for path in ("/pdf/jobs", "/pdf/preview"):
        answer = site.ask("POST", path, json=body)
        assert answer.status_code == 400
        problem = answer.json()
        assert problem["error_code"] == "TEMPLATE_ERROR"
        told = {one["name"]: one["message"] for one in problem["details"]["variables"]}
        assert told == named
        assert all(name in problem["message"] for name in named)
        assert SECRET not in answer.text
    assert site.count() == 0


def test_variables_are_judged_without_filling_the_template(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(*_: Any) -> None:
        raise AssertionError("a create fills nothing")

    monkeypatch.setattr("ulak.services.pdf.templates.Program", fill)
    assert site.create("Ada").status_code == 202


# --- the preview ----------------------------------------------------------------


@pytest.mark.shows("P-57")
def test_a_preview_is_the_html_that_would_be_printed_and_may_do_nothing(site: Site) -> None:
    answer = preview(site, {"name": "<script>", "year": 2026}, page={"header": "top.html"})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.text == "<!doctype html><p>Dear &lt;script&gt;</p><i>2026</i>"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "sandbox" in policy.split("; ")
    assert "script-src" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "private, no-store"
    assert "x-pdf-fallback" not in answer.headers
    assert site.count() == 0


@pytest.mark.shows("P-57")
def test_a_preview_has_the_same_allow_list_size_schema_and_callers(site: Site) -> None:
    assert preview(site, {"name": "a"}, template="other").json()["error_code"] == "TEMPLATE_ERROR"
    large = preview(site, {"name": "x" * site.config.max_payload_bytes})
    assert (large.status_code, large.json()["error_code"]) == (413, "PAYLOAD_TOO_LARGE")
    assert fields_of(preview(site, [])) == {"variables"}
    assert fields_of(preview(site, {"name": "a"}, timeout=1)) == {"options.timeout"}
    assert preview(site, {"name": "a"}, who=None).status_code == 401
    assert preview(site, {"name": "a"}, who="key:reads").status_code == 403


def test_a_preview_needs_neither_a_store_nor_a_worker(site: Site) -> None:
    with site.outage():
        site.later()
        assert preview(site, {"name": "Ada"}).status_code == 200


def test_a_picture_is_not_offered_and_the_answer_says_so(site: Site) -> None:
    answer = preview(site, {"name": "Ada"}, accept="image/png")
    assert (answer.status_code, answer.json()["error_code"]) == (406, "NOT_ACCEPTABLE")
    assert "text/html" in answer.json()["message"]


@pytest.mark.parametrize(
    ("said", "is_fine"),
    [
        ("", True), ("*/*", True), ("text/*;q=0.5", True), ("image/png, text/html;q=0.1", True),
        ("image/png", False), ("text/html;q=0, */*", False), ("text/plain", False),
        ("TEXT/HTML", True),
    ],
)  # fmt: skip
def test_what_an_accept_header_takes(said: str, is_fine: bool) -> None:
    assert accepts(said, "text/html") is is_fine
