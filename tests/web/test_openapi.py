"""The OpenAPI document says all there is to say, and the page says it to people."""

import json
import re
import shlex

import jsonschema_rs
import pytest
from fastapi import APIRouter

import ulak.web
from tests.web.people import Known, as_
from ulak.errors import UlakError
from ulak.web import factory, schemas
from ulak.web.access import ACCESS, KNOWN
from ulak.web.openapi import SCHEMES, operations_of
from ulak.web.schemas import PROBLEM_JSON


@pytest.fixture
def app(engine):
    return ulak.web.app(engine, identity=Known())


@pytest.fixture
def document(app):
    return app.openapi()


@pytest.fixture
def operations(document):
    return list(operations_of(document))


def line_of(method: str, path: str):
    written = {(m, re.sub(r":\w+}", "}", p)): line for (m, p), line in ACCESS.items()}
    return written[method, path]


def test_the_document_is_served_to_whoever_is_known(ask, app, document):
    assert ask(app, "/openapi.json").status_code == 401
    served = ask(app, "/openapi.json", headers=as_("viewer"))
    assert served.json() == json.loads(json.dumps(document))
    assert served.json()["openapi"] == "3.1.0"
    assert served.json()["info"]["version"] == ulak.__version__


def test_below_a_mount_the_document_says_where_it_is(ask, app):
    from fastapi import FastAPI

    outer = FastAPI()
    outer.mount("/ulak", app)
    served = ask(outer, "/ulak/openapi.json", headers=as_("viewer")).json()
    assert served["servers"] == [{"url": "/ulak"}]
    page = ask(outer, "/ulak/docs", headers=as_("viewer")).text
    assert "curl http://ulak/ulak/health/live" in page
    assert "http://ulak/health" not in page


def test_every_operation_has_a_name_that_follows_from_its_path(operations):
    names = [operation["operationId"] for _, _, operation in operations]
    assert len(set(names)) == len(names)
    assert {"post_jobs", "get_jobs_id", "post_jobs_id_approve"} <= set(names)


def test_every_operation_says_what_it_does_and_who_may_call_it(document, operations):
    described = {tag["name"] for tag in document["tags"] if tag.get("description")}
    for path, method, operation in operations:
        assert operation["tags"][0] in described, path
        assert operation["summary"], path
        line = line_of(method, path)
        if line.is_public:
            assert operation["security"] == []
            assert "Needs no credential" in operation["description"]
        else:
            scopes = [] if line.scope == KNOWN else [line.scope]
            assert operation["security"] == [{scheme: scopes} for scheme in SCHEMES]
            assert operation["responses"].keys() >= {"401", "403"}


def test_every_error_is_a_problem_and_nothing_is_left_to_default(operations):
    for path, _, operation in operations:
        assert "default" not in operation["responses"], path
        for status, response in operation["responses"].items():
            assert response["headers"]["X-Correlation-ID"]
            if status >= "400":
                assert list(response["content"]) == [PROBLEM_JSON], (path, status)
        if "requestBody" in operation or operation.get("parameters"):
            assert "422" in operation["responses"], path
        if "{" in path:
            assert "404" in operation["responses"], path


def test_every_body_and_every_answer_has_an_example_that_fits(document, operations):
    seen = 0
    for path, method, operation in operations:
        media = [*operation.get("requestBody", {}).get("content", {}).items()]
        for response in operation["responses"].values():
            media += response.get("content", {}).items()
        for kind, content in media:
            if kind not in ("application/json", PROBLEM_JSON):
                continue
            whole = {**content["schema"], "components": document["components"]}
            jsonschema_rs.validate(whole, content["example"])
            seen += 1
            assert content["example"] is not None, (method, path)
    assert seen > 20


def test_parameters_say_what_they_take(document):
    listed = {p["name"]: p for p in document["paths"]["/jobs"]["get"]["parameters"]}
    limit = listed["limit"]["schema"]
    assert (limit["minimum"], limit["maximum"]) == (1, schemas.LARGEST_PAGE)
    assert "held" in listed["role"]["schema"]["enum"]
    one = document["paths"]["/jobs/{id}"]["get"]["parameters"]
    assert {p["name"]: p["schema"].get("format") for p in one}["id"] == "uuid"
    assert '"null"' not in json.dumps([p["schema"] for p in one])


def test_every_reference_leads_somewhere(document):
    for name in re.findall(r'"#/components/(\w+/[\w.-]+)"', json.dumps(document)):
        kind, _, part = name.partition("/")
        assert part in document["components"][kind]
    assert "HTTPValidationError" not in json.dumps(document)


def test_the_page_needs_nothing_from_elsewhere_and_shows_every_operation(ask, app, operations):
    answer = ask(app, "/docs", headers=as_("viewer"))
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    page = answer.text
    assert not re.search(r"<script|<link|src=|url\(|@import|https?://(?!ulak/)", page)
    assert "prefers-color-scheme: dark" in page
    for path, method, operation in operations:
        assert f'<details id="{operation["operationId"]}">' in page, (method, path)
    assert "Needs <code>jobs:submit</code>" in page


def test_what_the_page_says_to_type_can_be_typed(ask, app):
    from html import unescape

    page = ask(app, "/docs", headers=as_("viewer")).text
    lines = [unescape(text) for text in re.findall(r"<pre>(curl .*?)</pre>", page, re.S)]
    submit = next(line for line in lines if "-X POST http://ulak/jobs " in line)
    words = shlex.split(submit)
    assert "Authorization: Bearer $ULAK_KEY" in words
    assert json.loads(words[words.index("-d") + 1])["flow"]
    assert all(shlex.split(line)[0] == "curl" for line in lines)


def test_whoever_names_the_server_strangely_writes_nothing_into_the_page(ask, app):
    headers = {**as_("viewer"), "Host": "x<script>alert(1)</script>"}
    answer = ask(app, "/docs", headers=headers)
    assert "<script" not in answer.text


def test_a_route_that_nobody_has_thought_about_is_not_served(engine, monkeypatch):
    forgotten = APIRouter()
    forgotten.get("/secrets")(lambda: None)
    monkeypatch.setattr(factory.jobs, "jobs_router", lambda *_: forgotten)
    with pytest.raises(UlakError, match="nobody has said who may call GET /secrets"):
        ulak.web.app(engine, identity=None)
