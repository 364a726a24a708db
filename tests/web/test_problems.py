"""Every error is one problem document, with an id that the log has too."""

import sqlite3
from contextlib import closing
from datetime import timedelta

import psycopg
import pytest

import ulak.web
from tests.conformance.stores import make_schema
from ulak import errors

PROBLEM = {"type", "title", "status", "detail", "code", "retryable", "correlation_id"}


@pytest.mark.parametrize(
    ("error", "status", "retryable"),
    [
        (errors.BadInput("no"), 422, False),
        (errors.JobNotFound("7"), 404, False),
        (errors.TransitionNotAllowed("no", code="too-late"), 409, False),
        (errors.StaleJob("no", job_id="7"), 409, False),
        (errors.Overloaded("no", retry_after=timedelta(seconds=1.5)), 429, True),
        (errors.UnknownOutcome("no", job_id="7"), 504, True),
        (errors.NotSupported("no"), 501, False),
        (errors.WriteRefused("no"), 422, False),
        (errors.Misconfigured("no"), 503, True),
        (errors.StoreError("no"), 503, True),
        (errors.FlowError("no"), 500, False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_each_error_of_ulak_has_its_status(engine, ask, monkeypatch, error, status, retryable):
    def fail(*_args, **_options):
        raise error

    monkeypatch.setattr(engine, "jobs", fail)
    answer = ask(ulak.web.app(engine, identity=None), "/jobs")
    document = answer.json()
    assert answer.status_code == document["status"] == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert (document["code"], document["detail"]) == (error.code, str(error))
    assert document["retryable"] is retryable
    assert answer.headers.get("retry-after") == ("2" if status == 429 else None)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request, tmp_path):
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/jobs.db"
        return
    with request.getfixturevalue("databases").lend(make_schema) as lent:
        yield lent


@pytest.mark.shows("E-84")
@pytest.mark.parametrize(
    "damage",
    [
        "ALTER TABLE {}jobs RENAME COLUMN submitter TO sender",
        "ALTER TABLE {}jobs RENAME TO tasks",
    ],
    ids=["column", "table"],
)
def test_a_database_of_another_release_is_no_fault_of_the_caller(url, ask, damage):
    """Broken by a table or column that is not there being taken for bad data of the request."""
    with ulak.connect(url) as engine:

        @engine.job
        def greet(name: str) -> str:
            return f"hello {name}"

        app = ulak.web.app(engine, identity=None)
        body = {"flow": "greet", "payload": {"name": "Ada"}}
        assert ask(app, "/jobs", method="POST", json=body).status_code == 201
        if url.startswith("sqlite"):
            with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as db:
                db.execute(damage.format(""))
        else:
            with psycopg.connect(url, autocommit=True) as db:
                db.execute(damage.format("ulak."))
        for answer in (ask(app, "/jobs", method="POST", json=body), ask(app, "/jobs")):
            document = answer.json()
            assert (answer.status_code, document["code"]) == (503, "store-misconfigured")
            assert "ulak migrate" in document["detail"]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [("GET", "/nothing", 404, "not-found"), ("PUT", "/jobs", 405, "method-not-allowed")],
)
def test_what_is_not_there_is_a_problem_too(engine, ask, method, path, status, code):
    answer = ask(ulak.web.app(engine, identity=None), path, method=method)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json().keys() >= PROBLEM
    assert answer.json()["code"] == code


def test_what_nobody_foresaw_tells_nothing_of_the_inside(engine, ask, monkeypatch):
    def fail(*_args, **_options):
        raise RuntimeError("password=hunter2")

    monkeypatch.setattr(engine, "jobs", fail)
    answer = ask(
        ulak.web.app(engine, identity=None), "/jobs", headers={"X-Correlation-ID": "abc-1"}
    )
    assert answer.status_code == 500
    assert answer.json()["code"] == "internal-error"
    assert "hunter2" not in answer.text
    assert answer.json()["correlation_id"] == answer.headers["x-correlation-id"] == "abc-1"


def test_a_request_keeps_its_id_unless_it_is_strange(engine, ask):
    app = ulak.web.app(engine, identity=None)
    kept = ask(app, "/nothing", headers={"X-Correlation-ID": "req-42"})
    assert kept.json()["correlation_id"] == kept.headers["x-correlation-id"] == "req-42"
    made = ask(app, "/nothing", headers={"X-Correlation-ID": "x" * 65})
    assert made.json()["correlation_id"] == made.headers["x-correlation-id"] != "x" * 65
    assert ask(app, "/health/live").headers["x-correlation-id"]
