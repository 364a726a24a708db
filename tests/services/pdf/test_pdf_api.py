"""The API of PDF rendering: every row of its table, on a real application and a real store."""

import asyncio
import hashlib
import json
import os
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.services.pdf.desk import Printer
from tests.services.pdf.site import (
    A_PDF,
    CONFIG,
    DATABASES,
    TEMPLATE,
    Site,
    credential_of,
    opened,
)
from ulak import RetryLater
from ulak.clock import micros
from ulak.services.pdf.jobs import InvalidTransition
from ulak.services.pdf.model import PdfErrorCode, PdfJobStatus, WrongVariables
from ulak.services.pdf.responses import Reader
from ulak.services.pdf.totals import SCHEMA, Totals
from ulak.services.pdf.worker import PdfRenderWorker
from ulak.tables import Tables

SECRET = "Zeynep-4711-private"  # noqa: S105 - a variable that no answer and no log may tell


@pytest.fixture(params=DATABASES)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    yield from opened(request, tmp_path)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Site]:
    """A site on SQLite, for what has nothing to do with the store."""
    with Site(f"sqlite:///{tmp_path / 'jobs.db'}?synchronous=NORMAL", tmp_path) as made:
        made.heartbeat()
        yield made


# --- the table ------------------------------------------------------------------


class Row(NamedTuple):
    """One row of the table of section 8, and what must be there beside its status."""

    call: str
    case: str
    ask: Callable[[Site], httpx.Response]
    status: int
    error_code: str | None = None
    headers: tuple[str, ...] = ()


def known(site: Site) -> str:
    return site.new("known")


def finished(site: Site) -> str:
    job_id = site.new("done")
    site.finish(job_id)
    return job_id


def failed(site: Site) -> str:
    job_id = site.new("failed")
    site.fail(job_id)
    return job_id


def expired(site: Site) -> str:
    job_id = finished(site)
    site.jobs.update_status(job_id, "expired")
    return job_id


def repeated(site: Site) -> httpx.Response:
    site.new("twice")
    return site.create("twice")


def pressed(site: Site) -> httpx.Response:
    site.jobs.set_backpressure(True, 7)
    return site.create("new", options={"fail_safe": "degrade"})


def deserted(site: Site, **options: Any) -> httpx.Response:
    site.clock.advance(site.config.heartbeat_limit + timedelta(seconds=1))
    site.later()
    return site.create("nobody works", **options)


def cut_off(site: Site, ask: Callable[[Site], httpx.Response]) -> httpx.Response:
    with site.outage():
        site.later()
        return ask(site)


def lost(site: Site) -> httpx.Response:
    job_id = finished(site)
    site.artifacts.delete_pdf(site.jobs.read_job(job_id).artifact_key or "")
    return site.download(job_id)


def damaged(site: Site) -> httpx.Response:
    job_id = finished(site)
    key = site.jobs.read_job(job_id).artifact_key or ""
    # Whole by its own checksum, as large, and not what was rendered.
    site.artifacts.backend.put_bytes(key, A_PDF[::-1], "application/pdf")
    return site.download(job_id)


CREATE, READ, DOWNLOAD = "POST /pdf/jobs", "GET /pdf/jobs/{id}", "GET /pdf/jobs/{id}/download"
TABLE = (
    Row(CREATE, "created", lambda s: s.create(), 202, None, ("Location",)),
    Row(CREATE, "idempotent hit", repeated, 202, None, ("Location", "Deduplicated")),
    Row(CREATE, "no credentials", lambda s: s.create(who=None), 401, "UNAUTHORIZED"),
    Row(CREATE, "bad credentials", lambda s: s.create(who="nobody"), 401, "UNAUTHORIZED"),
    Row(
        CREATE, "malformed credentials",
        lambda s: s.create(who=None, headers={"Authorization": "Basic eA=="}), 401, "UNAUTHORIZED",
    ),
    Row(CREATE, "not allowed", lambda s: s.create(who="key:reads"), 403, "FORBIDDEN"),
    Row(CREATE, "backpressure", pressed, 429, "BACKPRESSURE_ACTIVE", ("Retry-After",)),
    Row(CREATE, "too large", lambda s: s.create("x" * 262_144), 413, "PAYLOAD_TOO_LARGE"),
    Row(CREATE, "schema", lambda s: s.create(colour="red"), 422, "VALIDATION_ERROR"),
    Row(
        CREATE, "option", lambda s: s.create(options={"timeout": 301}), 422, "VALIDATION_ERROR"
    ),
    Row(CREATE, "template", lambda s: s.create(template="payroll"), 400, "TEMPLATE_ERROR"),
    Row(CREATE, "template gone", lambda s: s.create(template="absent"), 400, "TEMPLATE_ERROR"),
    Row(
        CREATE, "workers down, strict", deserted, 503, "PDF_RENDER_UNAVAILABLE", ("Retry-After",)
    ),
    Row(
        CREATE, "workers down, degrade",
        lambda s: deserted(s, options={"fail_safe": "degrade"}), 200, None, ("X-Pdf-Fallback",),
    ),
    Row(
        CREATE, "store down, strict", lambda s: cut_off(s, lambda s: s.create("x")), 503,
        "PDF_RENDER_UNAVAILABLE", ("Retry-After",),
    ),
    Row(
        CREATE, "store down, degrade",
        lambda s: cut_off(s, lambda s: s.create("x", options={"fail_safe": "degrade"})), 200,
        None, ("X-Pdf-Fallback",),
    ),
    Row(READ, "found", lambda s: s.get(f"/pdf/jobs/{known(s)}"), 200),
    Row(READ, "unknown", lambda s: s.get(f"/pdf/jobs/{uuid.uuid4()}"), 404, "JOB_NOT_FOUND"),
    Row(READ, "malformed", lambda s: s.get("/pdf/jobs/no-id-at-all"), 404, "JOB_NOT_FOUND"),
    Row(
        READ, "foreign", lambda s: s.get(f"/pdf/jobs/{known(s)}", who="key:other"), 404,
        "JOB_NOT_FOUND",
    ),
    Row(
        READ, "store down",
        lambda s: (lambda job: cut_off(s, lambda s: s.get(f"/pdf/jobs/{job}")))(known(s)), 503,
        "PDF_RENDER_UNAVAILABLE", ("Retry-After",),
    ),
    Row(DOWNLOAD, "succeeded", lambda s: s.download(finished(s)), 200, None, ("ETag",)),
    Row(DOWNLOAD, "queued", lambda s: s.download(known(s)), 202, None, ("Retry-After",)),
    Row(DOWNLOAD, "failed", lambda s: s.download(failed(s)), 409, "JOB_FAILED"),
    Row(DOWNLOAD, "expired", lambda s: s.download(expired(s)), 410, "JOB_EXPIRED"),
    Row(DOWNLOAD, "lost", lost, 500, "ARTIFACT_MISSING"),
    Row(DOWNLOAD, "unreadable", damaged, 500, "ARTIFACT_READ_FAILED"),
    Row(
        DOWNLOAD, "unknown", lambda s: s.download(str(uuid.uuid4())), 404, "JOB_NOT_FOUND",
    ),
    Row(
        DOWNLOAD, "foreign", lambda s: s.download(finished(s), who="key:other"), 404,
        "JOB_NOT_FOUND",
    ),
    Row(DOWNLOAD, "no credentials", lambda s: s.download("x", who=None), 401, "UNAUTHORIZED"),
    Row(
        DOWNLOAD, "store down",
        lambda s: (lambda job: cut_off(s, lambda s: s.download(job)))(known(s)), 503,
        "PDF_RENDER_UNAVAILABLE", ("Retry-After",),
    ),
)  # fmt: skip


@pytest.mark.shows("P-33", "P-36", "P-39")
@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.call}: {row.case}")
def test_a_row_of_the_table_is_answered_as_it_says(row: Row, site: Site) -> None:
    answer = row.ask(site)
    assert answer.status_code == row.status, answer.text
    for header in row.headers:
        assert header in answer.headers
    if "Retry-After" in answer.headers:
        assert int(answer.headers["Retry-After"]) >= 1
    if row.error_code is None:
        return
    said = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert said["error_code"] == row.error_code
    assert said["message"] == said["detail"]
    assert said["message"]
    assert said["correlation_id"] == answer.headers["X-Correlation-ID"]
    if "Retry-After" in answer.headers:
        assert said["retry_after_seconds"] == int(answer.headers["Retry-After"])


def test_every_row_of_the_table_of_the_specification_has_a_test() -> None:
    """A case that is added there, and not here, is found; the kill switch is another issue's."""
    spec = Path(__file__).parents[3] / "docs" / "spec" / "pdf.md"
    section = spec.read_text(encoding="utf-8").partition("## 8.")[2].partition("- P-36")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ") and "---" not in line]
    codes = {code for row in rows for code in _codes_in(row)} - {"KILL_SWITCHED"}
    assert codes == {row.error_code for row in TABLE} - {None}
    statuses = {int(word) for row in rows for word in row.split("|")[3].split() if word.isdigit()}
    assert statuses == {row.status for row in TABLE}


def _codes_in(row: str) -> Iterator[str]:
    for word in row.split("`"):
        if (word.isupper() and "_" in word) or word in ("UNAUTHORIZED", "FORBIDDEN"):
            yield word


# --- creating -------------------------------------------------------------------


@pytest.mark.shows("P-4", "P-36")
def test_a_created_job_is_told_by_id_status_and_time(site: Site) -> None:
    answer = site.create()
    said = answer.json()
    assert set(said) == {"job_id", "status", "created_at"}
    assert said["status"] == "queued"
    assert answer.headers["Location"] == f"/pdf/jobs/{said['job_id']}"
    assert "Deduplicated" not in answer.headers
    assert uuid.UUID(said["job_id"]).version == 4
    assert site.status(said["job_id"]) == {
        **said, "started_at": None, "finished_at": None, "error_code": None,
        "download_url": None, "retry_count": 0,
    }  # fmt: skip


def test_a_failure_is_told_with_its_detail_where_it_has_one(site: Site) -> None:
    plain, detailed = site.new("plain"), site.new("detailed")
    site.fail(plain)
    site.jobs.update_status(detailed, "running")
    site.jobs.update_status(
        detailed, "failed", error_code=PdfErrorCode.TEMPLATE_ERROR, error_detail="page_range"
    )
    assert "error_detail" not in site.status(plain)
    assert site.status(detailed)["error_detail"] == "page_range"
    refused = site.download(detailed).json()
    assert refused["details"] == {"error_code": "TEMPLATE_ERROR", "error_detail": "page_range"}
    assert "page_range" in refused["message"]
    assert site.download(plain).json()["details"] == {"error_code": "TEMPLATE_ERROR"}
    site.jobs.update_status(detailed, "expired")
    assert site.status(detailed)["error_detail"] == "page_range"


def test_the_detail_of_a_failure_survives_however_much_is_said_before_it(small: Site) -> None:
    job_id = small.new()
    wrong = WrongVariables(TEMPLATE, [("n" * 100, "is missing" * 50)] * 20)
    worker = PdfRenderWorker(
        small.config, small.pages, Printer(wrong), small.artifacts, engine=small.engine
    )
    worker.process_job(job_id)
    assert small.status(job_id)["error_detail"] == "variables"


@pytest.mark.shows("P-17", "P-21")
def test_a_repeat_gets_the_job_as_it_stands_and_becomes_its_owner(site: Site) -> None:
    first = site.create("same", who="key:acme")
    job_id = first.json()["job_id"]
    assert site.get(f"/pdf/jobs/{job_id}", who="key:acme-2").status_code == 404
    site.jobs.update_status(job_id, "running")
    again = site.create("same", who="key:acme-2", options={"timeout": 30, "fail_safe": "degrade"})
    assert again.status_code == 202
    assert again.headers["Deduplicated"] == "true"
    assert again.json() == {**first.json(), "status": "running"}
    assert site.get(f"/pdf/jobs/{job_id}", who="key:acme-2").status_code == 200
    assert site.count() == 1


@pytest.mark.shows("E-90", "P-21")
def test_an_owner_whom_the_release_before_has_noted_reads_the_job(site: Site) -> None:
    job_id = site.new("same", who="key:acme")
    tables = Tables(site.engine, SCHEMA)
    add = "INSERT INTO {schema}.pdf_owners (job_id, owner, added_at) VALUES (?, ?, ?)"
    with tables.writing() as connection:
        tables.execute(connection, add, job_id, "key:acme-2", tables.now)
        tables.execute(connection, add, job_id, "key:globex", tables.now)
    for _ in range(2):
        assert site.get(f"/pdf/jobs/{job_id}", who="key:acme-2").status_code == 200
    assert site.engine.owners.all(job_id) == ["key:acme", "key:acme-2"]
    for who in ("key:globex", "key:shop"):
        assert site.get(f"/pdf/jobs/{job_id}", who=who).status_code == 404, "of another tenant"


@pytest.mark.shows("P-21", "P-33")
def test_no_other_tenant_observes_that_a_job_exists(site: Site) -> None:
    job_id = site.new("same", who="key:acme")
    other = site.create("same", who="key:globex")
    assert other.json()["job_id"] != job_id
    assert "Deduplicated" not in other.headers
    for who in ("key:globex", "key:shop", "key:acme-2"):
        for path in ("", "/download"):
            assert site.get(f"/pdf/jobs/{job_id}{path}", who=who).status_code == 404
    for admin in ("ada", "anna"):
        assert site.get(f"/pdf/jobs/{job_id}", who=admin).status_code == 200
    assert site.get(f"/pdf/jobs/{other.json()['job_id']}", who="anna").status_code == 404


@pytest.mark.shows("P-33")
def test_a_foreign_a_malformed_and_an_unknown_id_are_answered_alike(site: Site) -> None:
    foreign = site.new(who="key:acme")
    answers = [
        site.get(f"/pdf/jobs/{job_id}{path}")
        for job_id in (foreign, str(uuid.uuid4()), "none", "%00", "0" * 300)
        for path in ("", "/download")
    ]
    told = [{k: v for k, v in a.json().items() if k != "correlation_id"} for a in answers]
    assert all(each == told[0] for each in told)
    assert {a.status_code for a in answers} == {404}


@pytest.mark.shows("P-40", "P-17")
def test_backpressure_refuses_new_jobs_and_answers_known_ones(site: Site) -> None:
    known_id = site.new("known")
    site.jobs.set_backpressure(True, 9)
    refused = site.create("new", options={"fail_safe": "degrade"})
    assert refused.status_code == 429
    assert refused.headers["Retry-After"] == "9"
    assert site.create("known").json()["job_id"] == known_id
    assert site.status(known_id)["status"] == "queued"
    site.finish(known_id)
    assert site.download(known_id).status_code == 200
    assert site.count() == 1
    assert site.pages.filled == 0
    site.jobs.set_backpressure(False)
    assert site.create("new").status_code == 202


@pytest.mark.shows("P-40")
def test_backpressure_is_seen_by_other_processes_and_survives_a_restart(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}?synchronous=NORMAL"
    with Site(url, tmp_path) as first:
        first.jobs.set_backpressure(True, 3)
    with Site(url, tmp_path) as second:
        second.heartbeat()
        assert second.create().status_code == 429


@pytest.mark.shows("P-40")
def test_backpressure_goes_before_the_lack_of_workers(site: Site) -> None:
    site.jobs.set_backpressure(True, 3)
    assert deserted(site, options={"fail_safe": "degrade"}).status_code == 429


def test_a_stored_answer_to_an_idempotency_key_wins(site: Site) -> None:
    key = {"Idempotency-Key": "letter-1"}
    first = site.create("key", headers=key)
    assert first.headers["Idempotent-Replayed"] == "false"
    site.finish(first.json()["job_id"])
    again = site.create("key", headers=key)
    assert again.content == first.content
    assert again.headers["Idempotent-Replayed"] == "true"
    assert "Deduplicated" not in again.headers
    other = site.create("another", headers=key)
    assert other.status_code == 422
    assert other.json()["error_code"] == "IDEMPOTENCY_KEY_REUSED"


def test_a_refusal_does_not_use_an_idempotency_key_up(site: Site) -> None:
    key = {"Idempotency-Key": "letter-2"}
    site.jobs.set_backpressure(True, 3)
    assert site.create("key", headers=key).status_code == 429
    site.jobs.set_backpressure(False)
    deserted_answer = deserted(site, options={"fail_safe": "degrade"})
    assert deserted_answer.status_code == 200
    site.heartbeat()
    assert site.create("key", headers=key).status_code == 202


# --- the order of checks --------------------------------------------------------


def too_large(**more: Any) -> dict[str, Any]:
    return {"template_name": "payroll", "variables": {"name": "x" * 300_000}, **more}


@pytest.mark.shows("P-34")
def test_checks_are_made_in_the_order_of_the_specification(site: Site) -> None:
    """Each request is wrong in every way that is checked later; what is told is what is first."""
    site.jobs.set_backpressure(True, 3)

    def code(answer: httpx.Response) -> str:
        said: str = answer.json()["error_code"]
        return said

    def ask(body: Any, who: str | None = "key:shop") -> httpx.Response:
        return site.ask("POST", "/pdf/jobs", who=who, json=body)

    assert code(ask(too_large(foo=1), who=None)) == "UNAUTHORIZED"
    assert code(ask(too_large(foo=1), who="key:reads")) == "FORBIDDEN"
    assert code(ask(too_large(foo=1))) == "PAYLOAD_TOO_LARGE"
    assert code(ask({"template_name": "payroll", "variables": {}, "foo": 1})) == "VALIDATION_ERROR"
    assert code(ask({"template_name": "payroll", "variables": {}})) == "TEMPLATE_ERROR"
    assert code(ask({"template_name": TEMPLATE, "variables": {}})) == "BACKPRESSURE_ACTIVE"
    site.jobs.set_backpressure(False)
    assert code(deserted(site)) == "PDF_RENDER_UNAVAILABLE"
    assert site.count() == 0


# --- what may be sent -----------------------------------------------------------

BAD_BODIES = {
    "a boolean for a number": ({"options": {"timeout": True}}, "options.timeout"),
    "a text for a number": ({"options": {"timeout": "60"}}, "options.timeout"),
    "a fraction": ({"options": {"timeout": 60.0}}, "options.timeout"),
    "at the graceful offset": ({"options": {"timeout": 5}}, "options.timeout"),
    "negative": ({"options": {"timeout": -1}}, "options.timeout"),
    "above the maximum": ({"options": {"timeout": 301}}, "options.timeout"),
    "no policy": ({"options": {"fail_safe": "maybe"}}, "options.fail_safe"),
    "an unknown option": ({"options": {"scale": 2}}, "options.scale"),
    "options that are none": ({"options": []}, "options"),
    "a name that is none": ({"template_name": 7}, "template_name"),
    "no name": ({"template_name": None}, "template_name"),
    "a list of variables": ({"variables": [1]}, "variables"),
    "no variables": ({"variables": None}, "variables"),
    "a variable that is no name": ({"variables": {"a b": 1}}, "variables"),
    "half a character": ({"variables": {"name": "\ud800"}}, "variables.name"),
    "a NUL": ({"variables": {"a": ["x", "\x00"]}}, "variables.a[1]"),
    "a number beyond 64 bits": ({"variables": {"n": 2**64}}, "variables.n"),
    "nested too deeply": ({"variables": {"a": json.loads("[" * 60 + "]" * 60)}}, "variables"),
}


@pytest.mark.shows("P-12", "P-13", "P-36")
@pytest.mark.parametrize(("wrong", "field"), BAD_BODIES.values(), ids=BAD_BODIES)
def test_a_request_is_read_strictly(wrong: dict[str, Any], field: str, small: Site) -> None:
    body = {"template_name": TEMPLATE, "variables": {"name": SECRET}, **wrong}
    answer = small.ask("POST", "/pdf/jobs", json=body)
    assert answer.status_code == 422, answer.text
    assert [each["field"] for each in answer.json()["details"]["fields"]] == [field]
    assert SECRET not in answer.text
    assert small.count() == 0


RAW_BODIES = {
    "NaN": b'{"template_name": "letter", "variables": {"x": NaN}}',
    "Infinity": b'{"template_name": "letter", "variables": {"x": -Infinity}}',
    "a number beyond doubles": b'{"template_name": "letter", "variables": {"x": 1e999}}',
    "a repeated member": b'{"template_name": "letter", "variables": {}, "variables": {}}',
    "a repeated variable": b'{"template_name": "letter", "variables": {"a": 1, "a": 2}}',
    "no UTF-8": b'{"template_name": "letter", "variables": {"x": "\xff"}}',
    "no JSON": b"{template_name: letter}",
    "nothing": b"",
    "a list": b"[]",
    "a thousand brackets": b"[" * 100_000,
    "a very long number": b'{"template_name": "letter", "variables": {"x": ' + b"9" * 9999 + b"}}",
}


@pytest.mark.shows("P-12", "P-36")
@pytest.mark.parametrize("body", RAW_BODIES.values(), ids=RAW_BODIES)
def test_what_is_no_json_is_refused_with_a_place(body: bytes, small: Site) -> None:
    answer = small.ask("POST", "/pdf/jobs", content=body)
    assert answer.status_code == 422, answer.text
    assert answer.json()["error_code"] == "VALIDATION_ERROR"
    assert answer.json()["details"]["fields"][0]["field"]
    assert small.count() == 0


@pytest.mark.parametrize("timeout", [6, 60, 300])
@pytest.mark.shows("P-13")
def test_a_timeout_within_its_bounds_is_taken(timeout: int, small: Site) -> None:
    assert small.create(options={"timeout": timeout}).status_code == 202


@pytest.mark.shows("P-34")
def test_neither_answers_nor_logs_tell_variables(
    small: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    said = [
        small.create(SECRET), small.create(SECRET, foo=1), small.create(SECRET, template="x"),
        small.create({"deep": [SECRET, 2**70]}),
        deserted(small, variables={"name": SECRET, "n": 1}),
    ]  # fmt: skip
    assert {each.status_code for each in said} == {202, 400, 422, 503}
    assert not [each.text for each in said if SECRET in each.text]
    logged = [str(vars(record)) for record in caplog.records if record.name.startswith("ulak")]
    assert not [line for line in logged if SECRET in line]


# --- sizes, over a real socket --------------------------------------------------


def body_of(size: int) -> bytes:
    """A good request of so many bytes."""
    empty = json.dumps({"template_name": TEMPLATE, "variables": {"name": ""}}).encode()
    name = "x" * (size - len(empty))
    return json.dumps({"template_name": TEMPLATE, "variables": {"name": name}}).encode()


@pytest.mark.shows("P-34")
@pytest.mark.parametrize("is_chunked", [False, True], ids=["whole", "chunked"])
def test_the_body_limit_is_exact_over_what_arrives(is_chunked: bool, small: Site) -> None:
    largest = small.config.max_payload_bytes
    assert largest == 262_144
    headers = {"Authorization": f"Bearer {credential_of('key:shop')}"}
    with small.served() as address, httpx.Client(base_url=address, headers=headers) as client:

        def send(size: int) -> int:
            body = body_of(size)
            assert len(body) == size
            parts = iter([body[:1000], body[1000:]]) if is_chunked else body
            return client.post("/pdf/jobs", content=parts).status_code

        assert send(largest) == 202
        assert send(largest + 1) == 413
        assert send(largest - 1) == 202


@pytest.mark.shows("P-34")
def test_an_endless_body_is_refused_while_it_is_being_sent(small: Site) -> None:
    with small.served() as address:
        parts = urlsplit(address)
        with socket.create_connection((parts.hostname, parts.port), timeout=20) as line:
            line.sendall(
                b"POST /pdf/jobs HTTP/1.1\r\nHost: ulak\r\nTransfer-Encoding: chunked\r\n"
                b"Authorization: Bearer " + credential_of("key:shop").encode() + b"\r\n\r\n"
            )
            # Never ended: whoever waits for the end would never answer.
            line.sendall(b"50000\r\n" + b"x" * 0x50000 + b"\r\n")
            assert line.recv(100).startswith(b"HTTP/1.1 413")


@pytest.mark.shows("P-34")
def test_a_stranger_is_told_so_before_the_body_is_judged(small: Site) -> None:
    with small.served() as address, httpx.Client(base_url=address) as client:
        assert client.post("/pdf/jobs", content=b"x" * 1_000_000).status_code == 401


# --- downloading ----------------------------------------------------------------


@pytest.mark.shows("P-35", "P-58")
def test_a_pdf_is_downloaded_with_its_digest_and_private(site: Site) -> None:
    answer = site.download(job_id := finished(site))
    assert answer.content == A_PDF
    assert answer.headers["content-type"] == "application/pdf"
    assert answer.headers["ETag"] == f'"{hashlib.sha256(A_PDF).hexdigest()}"'
    assert answer.headers["Content-Length"] == str(len(A_PDF))
    assert answer.headers["Content-Disposition"] == f'attachment; filename="{job_id}.pdf"'
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Cache-Control"] == "private, no-store"
    assert site.status(job_id)["download_url"] == f"/pdf/jobs/{job_id}/download"


SIZE = len(A_PDF)
RANGES = {
    "bytes=0-0": (0, 1),
    "bytes=0-99": (0, 100),
    "BYTES=5-": (5, SIZE),
    "bytes=-10": (SIZE - 10, SIZE),
    f"bytes=-{SIZE * 2}": (0, SIZE),
    f"bytes={SIZE - 1}-{SIZE + 5}": (SIZE - 1, SIZE),
}
UNSATISFIABLE = (f"bytes={SIZE}-", f"bytes={SIZE + 10}-{SIZE + 20}", "bytes=-0")
IGNORED = ("bytes=5-4", "bytes=-", "bytes=", "lines=0-1", "bytes=0-1,3-4", "0-1", "bytes=x-1")


@pytest.mark.parametrize(("asked", "part"), RANGES.items())
def test_a_range_is_answered_with_that_part(asked: str, part: tuple[int, int], small: Site) -> None:
    job_id = finished(small)
    for method in ("GET", "HEAD"):
        answer = small.ask(method, f"/pdf/jobs/{job_id}/download", headers={"Range": asked})
        assert answer.status_code == 206
        start, end = part
        assert answer.headers["Content-Range"] == f"bytes {start}-{end - 1}/{SIZE}"
        assert answer.headers["Content-Length"] == str(end - start)
        assert answer.content == (A_PDF[start:end] if method == "GET" else b"")


@pytest.mark.parametrize("asked", UNSATISFIABLE)
def test_a_range_behind_the_end_is_refused_with_the_size(asked: str, small: Site) -> None:
    answer = small.download(finished(small), headers={"Range": asked})
    assert answer.status_code == 416
    assert answer.headers["Content-Range"] == f"bytes */{SIZE}"
    assert answer.json()["error_code"] == "RANGE_NOT_SATISFIABLE"


@pytest.mark.parametrize("asked", IGNORED)
def test_several_ranges_and_bad_ones_are_answered_with_the_whole(asked: str, small: Site) -> None:
    answer = small.download(finished(small), headers={"Range": asked})
    assert (answer.status_code, answer.content) == (200, A_PDF)


def test_a_range_of_another_version_is_answered_with_the_whole(small: Site) -> None:
    job_id = finished(small)
    etag = small.download(job_id).headers["ETag"]
    for version, status in ((etag, 206), ('"another"', 200), (f"W/{etag}", 200)):
        told = {"Range": "bytes=0-9", "If-Range": version}
        assert small.download(job_id, headers=told).status_code == status


@pytest.mark.parametrize("tags", ["{}", 'W/{}, "x"', '"x", {}', "*"])
def test_who_has_the_bytes_is_told_that_they_have_not_changed(tags: str, small: Site) -> None:
    job_id = finished(small)
    etag = small.download(job_id).headers["ETag"]
    answer = small.download(job_id, headers={"If-None-Match": tags.format(etag)})
    assert (answer.status_code, answer.content, answer.headers["ETag"]) == (304, b"", etag)
    assert small.download(job_id, headers={"If-None-Match": '"x"'}).status_code == 200


def test_a_head_tells_everything_but_the_bytes(small: Site) -> None:
    job_id = finished(small)
    got = small.download(job_id)
    head = small.ask("HEAD", f"/pdf/jobs/{job_id}/download")
    skipped = {"x-correlation-id"}
    assert head.content == b""
    assert {k: v for k, v in head.headers.items() if k not in skipped} == {
        k: v for k, v in got.headers.items() if k not in skipped
    }
    small.artifacts.delete_pdf(small.jobs.read_job(job_id).artifact_key or "")
    assert small.ask("HEAD", f"/pdf/jobs/{job_id}/download").status_code == 500


def test_ranges_heads_and_not_modified_are_good_http(small: Site) -> None:
    job_id = finished(small)
    headers = {"Authorization": f"Bearer {credential_of('key:shop')}"}
    with small.served() as address, httpx.Client(base_url=address, headers=headers) as client:
        # One connection for all: an answer with a wrong length would break the next.
        path = f"/pdf/jobs/{job_id}/download"
        assert client.head(path).status_code == 200
        part = client.get(path, headers={"Range": "bytes=-7"})
        assert (part.status_code, part.content) == (206, A_PDF[-7:])
        same = client.get(path, headers={"If-None-Match": part.headers["ETag"]})
        assert same.status_code == 304
        assert client.get(path).content == A_PDF


def test_a_damaged_file_is_never_handed_out(small: Site, tmp_path: Path) -> None:
    job_id = finished(small)
    (file,) = [p for p in (tmp_path / "artifacts").rglob("*.pdf") if p.is_file()]
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    answer = small.download(job_id)
    assert (answer.status_code, answer.json()["error_code"]) == (500, "ARTIFACT_READ_FAILED")


def test_storage_that_hangs_holds_up_neither_the_loop_nor_other_requests(tmp_path: Path) -> None:
    with Site(
        f"sqlite:///{tmp_path / 'jobs.db'}", tmp_path, reader=Reader(at_once=2, patience_s=0.2)
    ) as site:
        site.heartbeat()
        job_id = finished(site)
        dead, kept = threading.Event(), site.artifacts.get_pdf

        def hang(key: str) -> bytes:
            dead.wait(60)
            return kept(key)

        site.artifacts.get_pdf = hang  # type: ignore[method-assign]
        headers = {"Authorization": f"Bearer {credential_of('key:shop')}"}

        async def ask_all() -> tuple[list[httpx.Response], list[httpx.Response]]:
            transport = httpx.ASGITransport(site.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(
                transport=transport, base_url="http://ulak", headers=headers
            ) as client:
                # More than there are threads, here and in the framework's own pool.
                asked = [client.get(f"/pdf/jobs/{job_id}/download") for _ in range(60)]
                hanging = asyncio.gather(*asked)
                others = [await client.get(f"/pdf/jobs/{job_id}") for _ in range(3)]
                return await hanging, others

        try:
            hung, others = asyncio.run(ask_all())
            assert {each.status_code for each in others} == {200}
            assert {each.json()["error_code"] for each in hung} == {"ARTIFACT_READ_FAILED"}
        finally:
            dead.set()
        # So many failures have opened the breaker of the route; its half minute passes.
        guard = next(iter(site.engine.kernel.shared.values()))
        now_ms = guard.clock_ms
        guard.clock_ms = lambda: now_ms() + 30_000
        assert site.download(job_id).content == A_PDF


# --- links ----------------------------------------------------------------------


@pytest.mark.shows("P-58")
def test_a_link_downloads_without_a_credential_until_it_is_over(small: Site) -> None:
    job_id = finished(small)
    made = small.ask("POST", f"/pdf/jobs/{job_id}/link")
    assert made.status_code == 201
    url = made.json()["url"]
    answer = small.get(url, who=None)
    assert (answer.status_code, answer.content) == (200, A_PDF)
    assert small.get(url, who=None, headers={"Range": "bytes=0-3"}).content == A_PDF[:4]
    small.clock.advance(timedelta(minutes=5))
    over = small.get(url, who=None)
    assert (over.status_code, over.json()["error_code"]) == (404, "LINK_INVALID")


@pytest.mark.shows("P-58")
def test_a_link_leads_to_its_own_job_alone(small: Site) -> None:
    one, two = finished(small), small.new("other")
    small.finish(two)
    url = small.ask("POST", f"/pdf/jobs/{one}/link").json()["url"]
    code = url.rpartition("/")[2]
    for path in (f"{two}/{code}", f"{uuid.uuid4()}/{code}", f"{one}/x", f"{one}/{code[:-1]}"):
        assert small.get(f"/pdf/links/{path}", who=None).status_code == 404
    assert small.ask("POST", f"/pdf/jobs/{one}/link", who="key:other").status_code == 404
    small.jobs.update_status(one, "expired")
    assert small.get(url, who=None).status_code == 404
    assert small.ask("POST", f"/pdf/jobs/{one}/link").status_code == 410


# --- readiness ------------------------------------------------------------------


@pytest.mark.shows("P-59")
def test_readiness_names_what_is_missing(site: Site) -> None:
    ready = site.get("/pdf/ready", who=None)
    assert ready.status_code == 200
    assert ready.json()["checks"] == {
        "store": "ok", "storage": "ok", "workers": "ok", "browser": "unknown"
    }  # fmt: skip
    assert site.get("/version").json()["engines"] == {"chromium": None}

    site.finish(site.new("a"), engine="HeadlessChrome/156.0")
    site.follow()
    assert site.get("/pdf/ready", who=None).json()["checks"]["browser"] == "ok"
    assert site.get("/version").json()["engines"] == {"chromium": "HeadlessChrome/156.0"}

    site.clock.advance(timedelta(seconds=1))
    site.fail(site.new("b"), PdfErrorCode.BROWSER_LAUNCH_FAILED)
    site.follow()
    broken = site.get("/pdf/ready", who=None)
    assert broken.status_code == 503
    assert "BROWSER_LAUNCH_FAILED" in broken.json()["checks"]["browser"]

    site.clock.advance(timedelta(seconds=1))
    site.finish(site.new("c"), engine="HeadlessChrome/157.0")
    site.follow()
    assert site.get("/pdf/ready", who=None).status_code == 200
    site.clock.advance(site.config.heartbeat_limit + timedelta(seconds=1))
    site.later()
    deserted_answer = site.get("/pdf/ready", who=None)
    assert deserted_answer.status_code == 503
    assert deserted_answer.json()["checks"]["workers"] != "ok"
    assert site.get("/health/live", who=None).status_code == 200
    assert site.get("/health/ready", who=None).status_code == 200


@pytest.mark.shows("P-37", "P-59")
def test_readiness_is_what_workers_have_found_out_before_any_job(site: Site) -> None:
    told = Totals(site.engine)
    told.report({"browser": "HeadlessChrome/156.0"})
    assert site.get("/pdf/ready", who=None).json()["checks"]["browser"] == "ok"
    assert site.get("/version").json()["engines"] == {"chromium": "HeadlessChrome/156.0"}

    site.clock.advance(timedelta(seconds=1))
    site.fail(site.new("a"), PdfErrorCode.BROWSER_LAUNCH_FAILED)
    site.follow()
    assert site.get("/pdf/ready", who=None).status_code == 503
    site.clock.advance(timedelta(seconds=1))
    told.report({"browser": "HeadlessChrome/157.0"})
    assert site.get("/pdf/ready", who=None).status_code == 200, "it was mended, and no job has come"

    # One that cannot render does not serve the queue; beside one that does it is not spoken of.
    told.report({"not-ready": "UNSUPPORTED_PLATFORM: there is no browser in /secret/place"})
    assert site.get("/pdf/ready", who=None).status_code == 200
    site.heartbeat(lanes=())
    broken = site.get("/pdf/ready", who=None)
    assert broken.status_code == 503
    assert "UNSUPPORTED_PLATFORM" in broken.json()["checks"]["workers"]
    assert "/secret/place" not in broken.text
    assert site.create("x").status_code == 503
    site.clock.advance(timedelta(minutes=3))
    site.later()
    assert "UNSUPPORTED" not in site.get("/pdf/ready", who=None).text, "nobody says so any more"


@pytest.mark.shows("P-16", "P-59")
def test_readiness_says_that_pdfs_cannot_be_stored(site: Site) -> None:
    job_id = site.new("a")
    attempt = site.engine.worker().take(job_id)
    attempt.finish(RetryLater(timedelta(seconds=1), why="UNKNOWN: no (artifact_write_failed)"))
    site.follow()
    full = site.get("/pdf/ready", who=None)
    assert full.status_code == 503
    assert full.json()["checks"]["storage"].startswith("artifact_write_failed")
    assert site.status(job_id)["status"] == "running"
    assert site.value("ptf_admin_pdf_failures_total", error_code="UNKNOWN") == 0
    assert site.value("ptf_admin_pdf_retries_total") == 0

    site.clock.advance(timedelta(seconds=1))
    site.finish(site.new("b"))
    site.follow()
    assert site.get("/pdf/ready", who=None).status_code == 200


@pytest.mark.shows("P-56", "P-59")
def test_readiness_tells_of_each_engine_by_itself(site: Site) -> None:
    site.finish(site.new("a"), engine="WeasyPrint/70.0")
    site.follow()
    ready = site.get("/pdf/ready", who=None).json()["checks"]
    assert (ready["browser"], ready["weasyprint"]) == ("unknown", "ok")
    assert site.get("/version").json()["engines"] == {
        "chromium": None, "weasyprint": "WeasyPrint/70.0"
    }  # fmt: skip

    site.clock.advance(timedelta(seconds=1))
    site.fail(site.new("b"), PdfErrorCode.UNSUPPORTED_PLATFORM)
    site.clock.advance(timedelta(seconds=1))
    site.finish(site.new("c"), engine="WeasyPrint/70.1")
    site.follow()
    broken = site.get("/pdf/ready", who=None)
    assert broken.status_code == 503, "the one that prints does not stand in for the other"
    assert broken.json()["checks"]["weasyprint"] == "ok"

    site.clock.advance(timedelta(seconds=1))
    site.finish(site.new("d"), engine="HeadlessChrome/156.0")
    lacking = site.new("e")
    site.jobs.update_status(lacking, "running")
    site.jobs.update_status(
        lacking, "failed", error_code=PdfErrorCode.UNSUPPORTED_PLATFORM, error_detail="weasyprint"
    )
    site.follow()
    checks = site.get("/pdf/ready", who=None).json()["checks"]
    assert checks["browser"] == "ok"
    assert "UNSUPPORTED_PLATFORM" in checks["weasyprint"]


@pytest.mark.shows("P-59")
def test_readiness_tells_a_store_and_a_storage_that_are_away(small: Site, tmp_path: Path) -> None:
    finished(small)
    with small.outage():
        small.later()
        away = small.get("/pdf/ready", who=None)
    assert away.status_code == 503
    assert away.json()["checks"]["store"] != "ok"
    small.later()
    # In the way of the folder: no permission would stop a superuser.
    (tmp_path / "artifacts").rename(tmp_path / "elsewhere")
    (tmp_path / "artifacts").write_bytes(b"")
    away = small.get("/pdf/ready", who=None)
    assert away.status_code == 503
    assert away.json()["checks"]["storage"] != "ok"


# --- properties -----------------------------------------------------------------

ENOUGH = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
NAMES = st.text(
    st.characters(blacklist_characters="\x00", blacklist_categories=["Cs"]), max_size=30
)


@pytest.fixture(params=DATABASES)
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    # One tenant has the jobs of every example, and some are left running.
    yield from opened(request, tmp_path, config=replace(CONFIG, tenant_concurrency=0))


@ENOUGH
@given(st.data())
@pytest.mark.shows("P-P8")
def test_property_8_what_was_created_is_read_back(shared: Site, data: st.DataObject) -> None:
    """Feature: pdf-render-worker, Property 8: what is created can be read back through the API."""
    variables = data.draw(st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), NAMES))
    body = {"template_name": TEMPLATE, "variables": {**variables, "unique": os.urandom(8).hex()}}
    made = shared.ask("POST", "/pdf/jobs", json=body)
    assert made.status_code == 202
    read = shared.status(made.json()["job_id"])
    assert {name: read[name] for name in ("job_id", "status", "created_at")} == made.json()
    again = shared.ask("POST", "/pdf/jobs", json=body)
    assert again.json() == made.json()


ACTS = st.lists(
    st.sampled_from(["run", "succeed", "fail", "expire", "lose"]), min_size=0, max_size=5
)


@ENOUGH
@given(acts=ACTS)
@pytest.mark.shows("P-P4")
def test_property_4_a_repeated_key_gets_the_living_job(shared: Site, acts: list[str]) -> None:
    """Feature: pdf-render-worker, Property 4: a repeat gets the same job while it lives."""
    name = os.urandom(8).hex()
    first = shared.new(name)
    is_lost = False
    for act in acts:
        is_lost |= _do(shared, first, act)
    status = PdfJobStatus(shared.status(first)["status"])
    again = shared.create(name)
    lives = status in (PdfJobStatus.QUEUED, PdfJobStatus.RUNNING) or (
        status is PdfJobStatus.SUCCEEDED and not is_lost
    )
    assert (again.json()["job_id"] == first) == lives
    assert (again.headers.get("Deduplicated") == "true") == lives
    if not lives:
        assert shared.create(name).json()["job_id"] == again.json()["job_id"]


def _do(site: Site, job_id: str, act: str) -> bool:
    """Do something to a job, if it can be done now; answer whether its artifact was lost."""
    job = site.jobs.read_job(job_id)
    if act == "run" and job.status is PdfJobStatus.QUEUED:
        site.jobs.update_status(job_id, "running")
    elif act == "succeed" and job.status is PdfJobStatus.RUNNING:
        key = site.artifacts.store_pdf(job_id, A_PDF)
        site.jobs.update_status(job_id, "succeeded", artifact_key=key)
    elif act == "fail" and job.status is PdfJobStatus.RUNNING:
        site.jobs.update_status(job_id, "failed", error_code=PdfErrorCode.UNKNOWN)
    elif act == "expire" and job.status not in (PdfJobStatus.RUNNING, PdfJobStatus.EXPIRED):
        site.jobs.update_status(job_id, "expired")
    elif act == "lose" and job.status is PdfJobStatus.SUCCEEDED:
        return site.artifacts.delete_pdf(job.artifact_key or "")
    return False


PAIRS = {
    ("queued", "running"), ("running", "succeeded"), ("running", "failed"), ("failed", "queued"),
    ("queued", "expired"), ("succeeded", "expired"), ("failed", "expired"),
}  # fmt: skip


@ENOUGH
@given(asked=st.lists(st.sampled_from([str(status) for status in PdfJobStatus]), max_size=6))
@pytest.mark.shows("P-P1")
def test_property_1_only_the_seven_pairs_are_ever_seen(shared: Site, asked: list[str]) -> None:
    """Feature: pdf-render-worker, Property 1: only the seven pairs succeed, as the API shows it."""
    job_id = shared.new(os.urandom(8).hex())
    stands = "queued"
    for wanted in asked:
        before = shared.status(job_id)
        assert before["status"] == stands
        try:
            shared.jobs.update_status(
                job_id, wanted, artifact_key=f"pdfs/{job_id}/x.pdf",
                error_code=PdfErrorCode.UNKNOWN,
            )  # fmt: skip
        except InvalidTransition:
            assert (stands, wanted) not in PAIRS
            assert shared.status(job_id) == before
        else:
            assert (stands, wanted) in PAIRS
            stands = wanted
    assert shared.status(job_id)["status"] == stands
    if stands == "running":
        shared.jobs.update_status(job_id, "failed", error_code=PdfErrorCode.UNKNOWN)


PLANS = st.lists(
    st.tuples(st.sampled_from(["queued", "succeeded", "failed"]), st.integers(0, 20)), max_size=4
)


@ENOUGH
@given(plan=PLANS)
@pytest.mark.shows("P-P10")
def test_property_10_clean_up_ends_what_is_due_and_nothing_else(
    shared: Site, plan: list[tuple[str, int]]
) -> None:
    """Feature: pdf-render-worker, Property 10: clean-up ends what is past its time, as the API
    shows it."""
    made = []
    for kind, hours in plan:
        shared.heartbeat()
        job_id = shared.new(os.urandom(8).hex())
        if kind == "succeeded":
            shared.finish(job_id)
        elif kind == "failed":
            shared.fail(job_id)
        made.append((job_id, kind, shared.clock.now()))
        shared.clock.advance(timedelta(hours=hours))
    before = _expired_in(shared)
    due_at = shared.clock.now() - micros(shared.config.artifact_ttl)
    artifacts = {job_id: shared.jobs.read_job(job_id).artifact_key for job_id, _, _ in made}
    assert shared.jobs.cleanup_expired() == _expired_in(shared) - before
    for job_id, kind, ended_at in made:
        is_due, key = ended_at <= due_at, artifacts[job_id]
        assert shared.status(job_id)["status"] == ("expired" if is_due else kind)
        if key is not None:
            assert shared.artifacts.exists(key) == (not is_due)
            assert shared.download(job_id).status_code == (410 if is_due else 200)


def _expired_in(site: Site) -> int:
    counts = site.engine.inspect.counts()
    return sum(row.jobs for row in counts if (row.flow, row.state) == ("pdf", "expired"))


@pytest.mark.shows("P-43")
def test_the_log_names_the_job_and_the_request_that_made_it(
    small: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="ulak.pdf")
    answer = small.create("a", headers={"X-Correlation-ID": "req-17"})
    (line,) = [record for record in caplog.records if record.name == "ulak.pdf"]
    said = vars(line)
    assert said["job_id"] == answer.json()["job_id"]
    assert (said["status"], said["correlation_id"]) == ("queued", "req-17")
    assert small.jobs.read_job(said["job_id"]).correlation_id == "req-17"
