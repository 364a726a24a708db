"""What is answered while nobody renders: strict or with HTML, and how it ends by itself."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.services.pdf.site import BROKEN, CONFIG, DATABASES, Site, opened
from ulak.errors import StoreError
from ulak.services.pdf import failsafe
from ulak.services.pdf.failsafe import (
    FailSafePolicy,
    HealthCheck,
    check_worker_health,
    handle_unavailable,
    read_health,
)
from ulak.services.pdf.model import PdfErrorCode, pdf_error

DEGRADE = {"fail_safe": "degrade"}
STRICT = {"fail_safe": "strict"}


@pytest.fixture(params=DATABASES)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    yield from opened(request, tmp_path)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Site]:
    with Site(f"sqlite:///{tmp_path / 'jobs.db'}?synchronous=NORMAL", tmp_path) as made:
        made.heartbeat()
        yield made


def desert(site: Site) -> None:
    """Let so much time pass that no worker was heard of lately."""
    site.clock.advance(site.config.heartbeat_limit + timedelta(microseconds=1))
    site.later()


# --- health ---------------------------------------------------------------------


@pytest.mark.shows("P-37")
def test_a_worker_counts_as_long_as_it_was_heard_of_within_the_limit(site: Site) -> None:
    limit = site.config.heartbeat_limit
    assert read_health(site.engine, heartbeat=limit).workers == 1
    site.clock.advance(limit)
    assert check_worker_health(site.engine) is True
    site.clock.advance(timedelta(microseconds=1))
    assert check_worker_health(site.engine) is False
    found = read_health(site.engine, heartbeat=limit)
    assert (found.is_well, found.store_answers, found.workers) == (False, True, 0)
    assert found.complaint == "no worker that renders was heard of lately"
    site.heartbeat()
    assert not read_health(site.engine, heartbeat=limit).complaint


@pytest.mark.shows("P-37")
def test_workers_of_other_queues_and_lapsed_ones_do_not_count(tmp_path: Path) -> None:
    with Site(f"sqlite:///{tmp_path / 'jobs.db'}?synchronous=NORMAL", tmp_path) as site:
        site.heartbeat(lanes=("default/async/greet@1", "pdfs/async/x@1"), name="another")
        assert read_health(site.engine, heartbeat=timedelta(hours=1)).workers == 0
        site.heartbeat(name="lapses")
        assert read_health(site.engine, heartbeat=timedelta(hours=1)).workers == 1
        site.clock.advance(timedelta(minutes=5))
        assert read_health(site.engine, heartbeat=timedelta(hours=1)).workers == 0


@pytest.mark.shows("P-37")
def test_an_answer_about_health_is_kept_for_two_seconds_and_no_longer(small: Site) -> None:
    now = 100.0
    asked = 0
    workers = small.engine.store.workers

    def count() -> object:
        nonlocal asked
        asked += 1
        return workers()

    small.engine.store.workers = count  # type: ignore[method-assign, assignment]
    health = HealthCheck(
        small.engine, heartbeat=small.config.heartbeat_limit, monotonic=lambda: now
    )
    assert not health.look().complaint
    now += 1.999
    small.clock.advance(timedelta(minutes=1))
    assert not health.look().complaint
    assert asked == 1
    now += 0.001
    assert health.look().complaint
    assert asked == 2


@pytest.mark.shows("P-37")
def test_a_store_that_hangs_is_unwell_after_a_moment_and_keeps_one_thread(
    small: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failsafe, "PATIENCE_S", 0.05)
    goes_on = threading.Event()
    workers = small.engine.store.workers

    def hang() -> object:
        goes_on.wait(60)
        return workers()

    small.engine.store.workers = hang  # type: ignore[method-assign, assignment]
    now = 0.0
    health = HealthCheck(
        small.engine, heartbeat=small.config.heartbeat_limit, monotonic=lambda: now
    )
    for _ in range(3):
        assert not health.look().store_answers
        now += 3
    assert sum(t.name == "ulak-pdf-health" for t in threading.enumerate()) == 1
    goes_on.set()
    monkeypatch.setattr(failsafe, "PATIENCE_S", 60.0)
    now += 3
    assert not health.look().complaint


# --- what is answered -----------------------------------------------------------


@pytest.mark.shows("P-37", "P-39")
def test_strict_refuses_and_leaves_nothing_behind(site: Site) -> None:
    desert(site)
    answer = site.create("nobody")
    assert answer.status_code == 503
    assert answer.json()["error_code"] == "PDF_RENDER_UNAVAILABLE"
    assert site.count() == 0
    site.heartbeat()
    assert site.create("nobody").status_code == 202
    assert site.count() == 1


@pytest.mark.shows("P-38")
def test_degrade_answers_the_escaped_html_and_makes_no_job(site: Site) -> None:
    desert(site)
    answer = site.create("<script>alert(1)</script>", options=DEGRADE)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["X-Pdf-Fallback"] == "html"
    assert answer.text == "<p>Dear &lt;script&gt;alert(1)&lt;/script&gt;</p>"
    assert site.count() == 0


@pytest.mark.shows("P-38")
def test_what_stands_in_can_run_and_reach_nothing(small: Site) -> None:
    desert(small)
    answer = small.create("x", options=DEGRADE)
    policy = dict(
        part.strip().partition(" ")[::2]
        for part in answer.headers["Content-Security-Policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert "script-src" not in policy
    assert policy["sandbox"] == ""  # without a word: no script, no form, no popup
    assert policy["form-action"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
    assert not [source for source in policy.values() if "http" in source or "*" in source]
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Cache-Control"] == "private, no-store"


@pytest.mark.shows("P-36")
@pytest.mark.parametrize(
    ("configured", "asked", "status"),
    [("strict", None, 503), ("strict", DEGRADE, 200), ("degrade", None, 200),
     ("degrade", STRICT, 503), ("degrade", {"timeout": 30}, 200)],
)  # fmt: skip
def test_what_a_request_says_wins_over_what_is_configured(
    configured: str, asked: dict[str, str] | None, status: int, tmp_path: Path
) -> None:
    config = replace(CONFIG, fail_safe_policy=configured)
    url = f"sqlite:///{tmp_path / 'jobs.db'}?synchronous=NORMAL"
    with Site(url, tmp_path, config=config) as site:
        more = {} if asked is None else {"options": asked}
        assert site.create("x", **more).status_code == status


@pytest.mark.shows("P-38")
def test_degrade_goes_through_the_same_allow_list(small: Site) -> None:
    desert(small)
    answer = small.create("x", template="payroll", options=DEGRADE)
    assert (answer.status_code, answer.json()["error_code"]) == (400, "TEMPLATE_ERROR")
    assert small.pages.filled == 0


@pytest.mark.shows("P-38")
def test_html_that_cannot_be_made_is_unavailable(small: Site) -> None:
    desert(small)
    answer = small.create("x", template=BROKEN, options=DEGRADE)
    assert (answer.status_code, answer.json()["error_code"]) == (503, "PDF_RENDER_UNAVAILABLE")
    assert "Retry-After" in answer.headers


@pytest.mark.shows("P-37", "P-38")
def test_a_store_that_is_away_degrades_too_and_comes_back_by_itself(site: Site) -> None:
    job_id = site.new("before")
    with site.outage():
        site.later()
        assert site.create("x").status_code == 503
        assert site.create("x", options=DEGRADE).status_code == 200
        with_key = site.create("x", options=DEGRADE, headers={"Idempotency-Key": "k"})
        assert with_key.headers["X-Pdf-Fallback"] == "html"
        assert site.status(job_id)["error_code"] == "PDF_RENDER_UNAVAILABLE"
    site.later()
    assert site.create("x", headers={"Idempotency-Key": "k"}).status_code == 202
    assert site.status(job_id)["status"] == "queued"


@pytest.mark.shows("P-39")
def test_a_store_that_goes_away_after_health_was_seen_leaves_nothing_behind(site: Site) -> None:
    site.new("warm")
    with site.outage():  # what is known of health is still kept
        answer = site.create("x")
        assert (answer.status_code, answer.json()["error_code"]) == (503, "PDF_RENDER_UNAVAILABLE")
        assert "10.0.0.7" not in answer.text
    assert site.count() == 1


@pytest.mark.shows("P-39")
def test_a_ring_that_fails_is_no_failure(tmp_path: Path) -> None:
    told: list[str] = []

    def ring(job_id: str) -> None:
        told.append(job_id)
        raise OSError("nobody hears")

    with Site(f"sqlite:///{tmp_path / 'jobs.db'}", tmp_path, enqueue=ring) as site:
        site.heartbeat()
        job_id = site.new("quiet")
        assert told == [job_id]
        # A worker that looks by itself finds it all the same.
        assert site.finish(job_id).status == "succeeded"


@pytest.mark.shows("P-39")
def test_a_record_that_cannot_be_written_is_unavailable(tmp_path: Path) -> None:
    with Site(
        f"sqlite:///{tmp_path / 'jobs.db'}", tmp_path, submit_timeout=timedelta(seconds=3)
    ) as site:
        site.heartbeat()

        def refuse(*_: object, **__: object) -> None:
            raise StoreError("the disk is full")

        site.engine.open().store.add = refuse  # type: ignore[method-assign, assignment]
        answer = site.create("x")
        assert (answer.status_code, answer.json()["error_code"]) == (503, "PDF_RENDER_UNAVAILABLE")
        assert "disk" not in answer.text
        del site.engine.store.add
        assert site.count() == 0
        assert site.create("x").status_code == 202


def test_the_store_may_answer_nobody_and_a_repeat_is_still_a_repeat(small: Site) -> None:
    """Without workers a known job is still known: it was accepted when they were there."""
    job_id = small.new("known")
    desert(small)
    again = small.create("known", options=DEGRADE)
    assert (again.status_code, again.json()["job_id"]) == (202, job_id)


# --- by itself ------------------------------------------------------------------


@pytest.mark.shows("P-38")
def test_handle_unavailable_makes_html_only_where_it_is_wanted() -> None:
    def make() -> str:
        raise pdf_error("it cannot be filled", code=PdfErrorCode.TEMPLATE_ERROR)

    for html in ("<p>x</p>", lambda: "<p>x</p>"):
        made = handle_unavailable(FailSafePolicy.DEGRADE, html)
        assert (made.status_code, made.body, made.media_type) == (200, b"<p>x</p>", "text/html")
        assert made.headers["X-Pdf-Fallback"] == "html"
        assert "default-src 'none'" in made.headers["Content-Security-Policy"]
    for refused in (
        handle_unavailable("strict", "<p>x</p>", why="no worker"),
        handle_unavailable(FailSafePolicy.DEGRADE, make, why="no worker"),
    ):
        told = json.loads(bytes(refused.body))
        assert (refused.status_code, told["error_code"]) == (503, "PDF_RENDER_UNAVAILABLE")
        assert refused.headers["Retry-After"] == str(told["retry_after_seconds"])
        assert "no worker" in told["message"]
        assert "<p>" not in told["message"]
