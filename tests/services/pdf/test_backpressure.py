"""Stopped intake, as adaptive control stops it: new jobs are refused, others go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.services.pdf.site import Site, value_in
from ulak.services.pdf.submission import Submitting


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("stopped")
    url = f"sqlite:///{folder / 'jobs.db'}?synchronous=NORMAL"
    with Site(url, folder) as made:
        made.heartbeat()
        yield made


number = iter(range(10**9))


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 600), st.lists(st.text("abc", max_size=3), min_size=1, max_size=3),
    st.sampled_from([{}, {"options": {"fail_safe": "degrade"}}]),
    st.booleans(),
)  # fmt: skip
@pytest.mark.shows("A-P16", "A-52")
def test_new_jobs_are_refused_and_existing_ones_go_on(
    shared: Site, wait_s: int, names: list[str], more: dict[str, Any], with_key: bool
) -> None:
    """Feature: slo-adaptive-control, Property 16: backpressure."""
    site, turn = shared, next(number)
    known, running = f"known {turn}", f"running {turn}"
    running_id = site.new(running)
    site.jobs.update_status(running_id, "running")
    known_id = site.new(known)
    stored = site.count()
    intake = Submitting(site.engine)
    intake.set_backpressure(True, wait_s)
    try:
        for name in names:
            key = {"Idempotency-Key": f"{turn}-{name}"} if with_key else {}
            answer = site.create(f"new {turn} {name}", headers=key, **more)
            assert answer.status_code == 429
            assert answer.json()["error_code"] == "BACKPRESSURE_ACTIVE"
            assert answer.headers["Retry-After"] == str(wait_s)
        assert site.count() == stored
        # The one that waits and the one that runs end as ever, and are answered.
        assert site.create(known).json()["job_id"] == known_id
        assert site.status(known_id)["status"] == "queued"
        assert site.finish(known_id).status == "succeeded"
        assert site.download(known_id).status_code == 200
        stored_as = site.artifacts.store_pdf(running_id, b"%PDF-1.7\n%%EOF\n")
        site.jobs.update_status(running_id, "succeeded", artifact_key=stored_as)
        assert site.status(running_id)["status"] == "succeeded"
    finally:
        intake.set_backpressure(False, 1)
    site.finish(site.new(f"new {turn} {names[0]}"))  # nothing is held against it


@pytest.mark.shows("A-54", "A-59")
def test_what_was_refused_is_counted(sqlite_url: str, tmp_path: Path) -> None:
    with Site(sqlite_url, tmp_path) as site:
        site.heartbeat()
        assert value_in(site.metrics(), "adaptive_pdf_jobs_rejected_total") == 0
        site.new("a")
        site.jobs.set_backpressure(True, 3)
        for name in "bcd":
            assert site.create(name).status_code == 429
        site.create("a")
        assert value_in(site.metrics(), "adaptive_pdf_jobs_rejected_total") == 3
