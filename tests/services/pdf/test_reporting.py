"""The report of a job: what its attempt took, and what is to be known of its PDF."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.services.pdf.site import A_PDF, DATABASES, Site, opened
from ulak.services.pdf.bodies import PdfReport
from ulak.services.pdf.model import PdfJobStatus

FOUND_OUT = {
    "engine": "HeadlessChrome/156",
    "pages": 3,
    "timings": {"load": 0.12345, "queue": 2.0, "attempt": 0.5, "template": 0.01},
    "blocked": {"allowlist": 2},
    "script_errors": ["TypeError at line 3"],
    "warnings": [{"code": "missing_glyphs", "characters": ["U+1F600"], "count": 4}],
}


@pytest.fixture(params=DATABASES)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    yield from opened(request, tmp_path)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Site]:
    """One on SQLite, for what does not depend on the database."""
    made = Site(f"sqlite:///{tmp_path / 'jobs.db'}?synchronous=NORMAL", tmp_path)
    made.heartbeat()
    yield made
    made.close()


def report(site: Site, job_id: str, **options: Any) -> httpx.Response:
    return site.get(f"/pdf/jobs/{job_id}/report", **options)


@pytest.mark.shows("P-60", "P-62")
def test_the_report_of_a_job_tells_how_its_pdf_came_about(site: Site) -> None:
    job_id = site.new("a")
    site.finish(job_id, **FOUND_OUT)
    told = report(site, job_id)
    assert told.status_code == 200
    assert told.headers["Cache-Control"] == "private, no-store"
    assert told.json() == {
        **FOUND_OUT,
        "job_id": job_id,
        "size": len(A_PDF),
        "sha256": hashlib.sha256(A_PDF).hexdigest(),
        "retry_count": 0,
        "timings": {"queue": 2.0, "template": 0.01, "load": 0.123, "attempt": 0.5},
    }
    PdfReport.model_validate(told.json(), strict=True)


@pytest.mark.shows("P-33")
def test_a_report_is_for_those_who_may_read_the_job(small: Site) -> None:
    job_id = small.new("a", who="key:acme")
    small.finish(job_id, **FOUND_OUT)
    for who in ("key:acme", "anna", "ada"):
        assert report(small, job_id, who=who).status_code == 200
    unknown = report(small, str(uuid.uuid4()))
    for who in ("key:acme-2", "key:globex", "key:shop"):
        foreign = report(small, job_id, who=who)
        assert foreign.status_code == 404
        assert foreign.json()["message"] == unknown.json()["message"]
    assert report(small, job_id, who=None).status_code == 401
    assert report(small, "no-id").status_code == 404


def test_without_a_pdf_a_report_is_answered_as_the_download_is(small: Site) -> None:
    running, failed, expired = small.new("r"), small.new("f"), small.new("e")
    small.jobs.update_status(running, "running")
    small.fail(failed)
    small.finish(expired, **FOUND_OUT)
    small.jobs.expire(expired, PdfJobStatus.SUCCEEDED)
    answers = [report(small, each) for each in (small.new("q"), running, failed, expired)]
    assert [each.status_code for each in answers] == [202, 202, 409, 410]
    for each in answers[:2]:
        assert int(each.headers["Retry-After"]) >= 1
    assert [each.json()["error_code"] for each in answers[2:]] == ["JOB_FAILED", "JOB_EXPIRED"]
    assert answers[2].json()["details"] == {"error_code": "TEMPLATE_ERROR"}
    assert answers[1].json() == small.download(running).json()


def test_a_store_that_is_away_is_told_as_everywhere(small: Site) -> None:
    job_id = small.new("a")
    with small.outage():
        small.later()
        away = report(small, job_id)
    assert (away.status_code, away.json()["error_code"]) == (503, "PDF_RENDER_UNAVAILABLE")


@pytest.mark.parametrize(
    "noted",
    [
        {},
        {"timings": [1], "blocked": 7, "warnings": "x", "engine": 5, "pages": True},
        {"warnings": [{"characters": ["U+0041"]}, "x"], "blocked": {"invented": 1, "scheme": "1"}},
    ],
)
def test_what_was_noted_otherwise_is_left_out_and_harms_nothing(
    small: Site, noted: dict[str, Any]
) -> None:
    job_id = small.new("a")
    small.finish(job_id, **noted)
    told = report(small, job_id)
    assert told.status_code == 200
    PdfReport.model_validate(told.json(), strict=True)
    assert (told.json()["engine"], told.json()["pages"]) == (None, None)
    assert (told.json()["timings"], told.json()["blocked"], told.json()["warnings"]) == ({}, {}, [])


def test_retries_are_those_that_the_job_tells(small: Site) -> None:
    job_id = small.new("a")
    small.fail(job_id, "NAVIGATION_TIMEOUT")
    small.clock.advance(timedelta(seconds=1))
    small.finish(job_id, retry_count=7)
    assert report(small, job_id).json()["retry_count"] == small.status(job_id)["retry_count"] == 1


def test_the_body_of_a_job_is_as_it_was(small: Site) -> None:
    job_id = small.new("a")
    small.finish(job_id, **FOUND_OUT)
    assert set(small.status(job_id)) == {
        "job_id", "status", "created_at", "started_at", "finished_at", "error_code",
        "download_url", "retry_count",
    }  # fmt: skip
