"""The metrics of PDF rendering agree with what happened, whichever process did it."""

import os
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

import ulak
from tests.services.pdf.desk import Printer
from tests.services.pdf.plant import eventually
from tests.services.pdf.site import A_PDF, CONFIG, DATABASES, Site, database, opened, value_in
from ulak import WorkerSettings
from ulak.engine.attempt import Attempt
from ulak.services.pdf import cleanup
from ulak.services.pdf import totals as totals_module
from ulak.services.pdf.model import PdfErrorCode, PdfJobStatus, pdf_error
from ulak.services.pdf.totals import SCHEMA, Totals
from ulak.services.pdf.worker import PdfRenderWorker
from ulak.tables import Tables

CODES = (
    PdfErrorCode.BROWSER_LAUNCH_FAILED, PdfErrorCode.NAVIGATION_TIMEOUT,
    PdfErrorCode.TEMPLATE_ERROR, PdfErrorCode.UNSUPPORTED_PLATFORM, PdfErrorCode.UNKNOWN,
)  # fmt: skip


@pytest.fixture(params=DATABASES)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    yield from opened(request, tmp_path)


@pytest.fixture(params=DATABASES)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Site, Site]]:
    """Two processes on one store."""
    with (
        database(request, tmp_path) as url,
        Site(url, tmp_path) as first,
        Site(url, tmp_path, clock=first.clock) as second,
    ):
        first.heartbeat()
        yield first, second


def jobs_in(text: str) -> dict[str, float]:
    return {
        status: value_in(text, "ptf_admin_pdf_jobs_total", status=status)
        for status in map(str, PdfJobStatus)
    }


def failures_in(text: str) -> dict[str, float]:
    return {
        str(code): value_in(text, "ptf_admin_pdf_failures_total", error_code=str(code))
        for code in CODES
    }


def must_agree(site: Site, *, created: int) -> None:
    """P-41: the counters agree with each other and with how jobs stand."""
    text = site.metrics()
    jobs, failures = jobs_in(text), failures_in(text)
    retries = value_in(text, "ptf_admin_pdf_retries_total")
    assert jobs["queued"] - retries == created
    assert sum(failures.values()) == jobs["failed"]
    standing = Counter[str]()
    for row in site.engine.inspect.counts():
        if row.flow == "pdf":
            standing[row.state] += row.jobs
    # What came into a status and did not leave it stands there.
    assert standing["running"] == jobs["running"] - jobs["succeeded"] - jobs["failed"]
    assert standing["expired"] == jobs["expired"]


def vanish(attempt: Attempt | None) -> None:
    """Have whoever took a job be heard of no more, as a process that was killed."""
    if attempt is not None:
        attempt._lease.stop()


# --- single ---------------------------------------------------------------------


@pytest.mark.shows("P-41")
def test_each_transition_is_counted_once(site: Site) -> None:
    site.finish(site.new("a"))
    site.fail(site.new("b"), PdfErrorCode.TEMPLATE_ERROR)
    site.fail(site.new("c"), PdfErrorCode.NAVIGATION_TIMEOUT)
    site.new("d")
    text = site.metrics()
    assert jobs_in(text) == {"queued": 5, "running": 3, "succeeded": 1, "failed": 2, "expired": 0}
    assert value_in(text, "ptf_admin_pdf_retries_total") == 1
    assert failures_in(text) == {
        **dict.fromkeys(map(str, CODES), 0.0), "TEMPLATE_ERROR": 1, "NAVIGATION_TIMEOUT": 1
    }  # fmt: skip
    assert jobs_in(site.metrics()) == jobs_in(text)
    must_agree(site, created=4)


@pytest.mark.shows("P-41")
def test_repeats_and_refusals_count_nothing(site: Site) -> None:
    site.new("a")
    site.create("a")
    site.create("a", headers={"Idempotency-Key": "k"})
    site.create("a", template="payroll")
    site.create("a", foo=1)
    site.create("a", who=None)
    site.jobs.set_backpressure(True, 1)
    site.create("new")
    assert jobs_in(site.metrics())["queued"] == 1
    must_agree(site, created=1)


@pytest.mark.shows("P-41")
def test_a_worker_that_vanished_counts_as_a_failure_and_a_retry(pair: tuple[Site, Site]) -> None:
    """The process that ran the job never says anything again; another one finds out."""
    dying, other = pair
    job_id = dying.new("a")
    vanish(dying.engine.worker(ulak.WorkerSettings(lease=timedelta(seconds=30))).take(job_id))
    other.clock.advance(timedelta(minutes=10))
    while other.jobs.read_job(job_id).status is not PdfJobStatus.SUCCEEDED:
        attempt = other.engine.worker().take(job_id)  # finds the lapsed lease, then the retry
        if attempt is not None:
            attempt.finish({"artifact_key": other.artifacts.store_pdf(job_id, A_PDF)})
    text = other.metrics()
    assert jobs_in(text) == {"queued": 2, "running": 2, "succeeded": 1, "failed": 1, "expired": 0}
    assert failures_in(text)["NAVIGATION_TIMEOUT"] == 1
    must_agree(other, created=1)
    assert jobs_in(dying.metrics()) == jobs_in(text)


@pytest.mark.shows("P-41")
def test_two_processes_that_count_at_once_count_everything_once(
    pair: tuple[Site, Site],
) -> None:
    for number in range(30):
        site = pair[number % 2]
        site.finish(site.new(f"letter {number}"))
    start = threading.Barrier(8)
    found: list[dict[str, float]] = []

    def count(site: Site) -> None:
        start.wait()
        site.follow()
        figures = Totals(site.engine).read()
        found.append({label: n for (name, label), n in figures.totals.items() if name == "jobs"})

    threads = [threading.Thread(target=count, args=(pair[n % 2],)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [{"queued": 30.0, "running": 30.0, "succeeded": 30.0}] * 8


@pytest.mark.shows("P-41")
def test_a_crash_while_counting_counts_nothing_twice(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.finish(site.new("a"))
    site.follow()
    site.fail(site.new("b"))

    with monkeypatch.context() as patched:
        # After it is written how far they reach, while the sums are written.
        patched.setattr(totals_module, "_ADD", "this is no SQL")
        with pytest.raises(Exception):  # noqa: B017, PT011 - each database has its own
            site.follow()
    must_agree(site, created=2)


@pytest.mark.shows("P-41")
def test_what_is_counted_stays_when_its_job_is_removed(site: Site) -> None:
    job_id = site.new("a")
    site.finish(job_id)
    site.jobs.update_status(job_id, "expired")
    # Nobody has scraped yet: what removes them counts them first.
    site.clock.advance(timedelta(days=30))
    assert cleanup.prune(site.jobs) == 1
    assert site.count() == 0
    before = jobs_in(site.metrics())
    assert before == {"queued": 1, "running": 1, "succeeded": 1, "failed": 0, "expired": 1}
    left = Tables(site.engine, SCHEMA).read("SELECT seq FROM {schema}.pdf_counted")
    assert left == [], "how far it was counted is forgotten with it"
    site.heartbeat()
    site.new("b")
    assert jobs_in(site.metrics())["queued"] == before["queued"] + 1


@pytest.mark.shows("P-41", "E-71")
def test_a_follower_counts_what_happens(tmp_path: Path) -> None:
    with Site(f"sqlite:///{tmp_path / 'jobs.db'}", tmp_path) as site:
        totals_module.attach(site.engine)
        with site.engine.working(ulak.WorkerSettings(queues=frozenset({"none"}))):
            site.heartbeat()
            site.finish(site.new("a"))
            site.fail(site.new("b"), PdfErrorCode.NAVIGATION_TIMEOUT)
            eventually(lambda: not site.engine.outbox.counts())
        figures = Totals(site.engine).read().totals
        assert figures["jobs", "queued"] == 3
        assert figures["jobs", "running"] == 2
        assert figures["jobs", "succeeded"] == figures["jobs", "failed"] == 1
        must_agree(site, created=2)


@pytest.mark.shows("P-41", "E-90")
def test_events_of_which_the_follower_gets_nothing_are_counted_with_the_next(site: Site) -> None:
    """A worker of the release before writes events that are delivered to nobody."""
    job_id = site.new("a")
    site.fail(job_id, PdfErrorCode.NAVIGATION_TIMEOUT)
    site.finish(job_id)
    with site.engine.transaction() as connection:
        Totals(site.engine).count([site.engine.get(job_id)], connection)
    figures = Totals(site.engine).read().totals
    assert (figures["jobs", "queued"], figures["jobs", "running"]) == (2, 2)
    must_agree(site, created=1)
    # Those that are queued again have not come to their end.
    assert site.value("ptf_admin_pdf_render_total_seconds_count") == 1
    assert site.value("pdf_render_duration_seconds_count") == 2


@pytest.mark.shows("P-41")
def test_a_store_in_memory_counts_the_same(tmp_path: Path) -> None:
    with Site("memory://", tmp_path) as site:
        site.heartbeat()
        site.finish(site.new("a"), timings={"total": 2.0})
        site.fail(site.new("b"), PdfErrorCode.NAVIGATION_TIMEOUT)
        must_agree(site, created=2)
        must_agree(site, created=2)
        assert site.value("pdf_render_duration_seconds_count") == 2


# --- histograms and gauges ------------------------------------------------------


def test_a_report_fills_the_histograms(site: Site) -> None:
    job_id = site.new("a")
    site.jobs.update_status(job_id, "running")
    site.clock.advance(timedelta(seconds=7))
    key = site.artifacts.store_pdf(job_id, A_PDF)
    site.jobs.update_status(
        job_id, "succeeded", artifact_key=key, size=60_000,
        timings={"launch": 0.25, "load": 0.5, "print": 0.25, "total": 1.5, "store": 0.1},
        blocked={"scheme": 1, "address": 3, "invented": 9},
    )  # fmt: skip
    text = site.metrics()
    assert value_in(text, "pdf_render_duration_seconds_sum") == 1.5
    assert value_in(text, "ptf_admin_pdf_render_executor_seconds_sum") == 1.0
    assert value_in(text, "ptf_admin_pdf_render_total_seconds_sum") == 7
    assert value_in(text, "ptf_admin_pdf_artifact_bytes_bucket", le="50000.0") == 0
    assert value_in(text, "ptf_admin_pdf_artifact_bytes_bucket", le="100000.0") == 1
    blocked = {
        reason: value_in(text, "ptf_admin_pdf_url_blocked_total", reason=reason)
        for reason in ("scheme", "allowlist", "address", "redirect")
    }
    assert blocked == {"scheme": 1, "allowlist": 0, "address": 3, "redirect": 0}
    assert "invented" not in text


@pytest.mark.parametrize("by", ["worker", "hand"])
@pytest.mark.shows("P-41")
def test_what_a_failed_attempt_was_refused_is_counted(site: Site, by: str) -> None:
    slow = pdf_error("too slow", code=PdfErrorCode.NAVIGATION_TIMEOUT)
    broken = pdf_error("it broke", code=PdfErrorCode.TEMPLATE_ERROR)
    slow.blocked, broken.blocked = {"scheme": 1}, {"scheme": 1, "address": 3}
    worker = PdfRenderWorker(
        site.config, site.pages, Printer(slow, broken), site.artifacts, engine=site.engine
    )
    job_id = site.new("a")
    if by == "hand":
        for _ in range(2):
            worker.process_job(job_id)
    else:

        @site.engine.resource(PdfRenderWorker, queue="pdf")
        @asynccontextmanager
        async def opened_worker() -> AsyncIterator[PdfRenderWorker]:
            yield worker

        with site.engine.working(WorkerSettings(queues=("pdf",))):
            eventually(lambda: site.jobs.read_job(job_id).status is PdfJobStatus.FAILED)
    text = site.metrics()
    assert value_in(text, "ptf_admin_pdf_url_blocked_total", reason="scheme") == 2
    assert value_in(text, "ptf_admin_pdf_url_blocked_total", reason="address") == 3
    assert site.status(job_id)["error_code"] == "TEMPLATE_ERROR"
    must_agree(site, created=1)


def test_a_failed_attempt_counts_into_the_time_of_attempts(site: Site) -> None:
    job_id = site.new("a")
    site.jobs.update_status(job_id, "running")
    site.clock.advance(timedelta(seconds=40))
    site.jobs.update_status(job_id, "failed", error_code=PdfErrorCode.TEMPLATE_ERROR)
    assert site.value("pdf_render_duration_seconds_sum") == 40
    assert site.value("ptf_admin_pdf_artifact_bytes_count") == 0


@pytest.mark.parametrize(
    "report",
    [{"timings": [1]}, {"timings": {"total": "long"}}, {"size": -1}, {"blocked": {"scheme": None}},
     {"timings": {"total": True}}, {"engine": 7}],
)  # fmt: skip
@pytest.mark.shows("P-41")
def test_a_report_that_says_nonsense_harms_neither_the_job_nor_the_scrape(
    report: dict[str, object], tmp_path: Path
) -> None:
    with Site("memory://", tmp_path) as site:
        site.heartbeat()
        job_id = site.new("a")
        site.jobs.update_status(job_id, "running")
        key = site.artifacts.store_pdf(job_id, A_PDF)
        site.jobs.update_status(job_id, "succeeded", artifact_key=key, **report)
        must_agree(site, created=1)
        assert site.status(job_id)["status"] == "succeeded"


def test_the_gauges_tell_how_it_stands_now(site: Site) -> None:
    waiting, running = site.new("a"), site.new("b")
    site.jobs.update_status(running, "running")
    site.clock.advance(timedelta(seconds=3))
    text = site.metrics()
    assert value_in(text, "ptf_admin_pdf_queue_depth") == 1
    assert value_in(text, "ptf_admin_pdf_oldest_running_seconds") == 3
    assert value_in(text, "ptf_admin_pdf_workers") == 1
    site.finish(waiting)
    site.clock.advance(site.config.heartbeat_limit)
    text = site.metrics()
    assert value_in(text, "ptf_admin_pdf_queue_depth") == 0
    assert value_in(text, "ptf_admin_pdf_workers") == 0


def test_a_delayed_retry_counts_into_the_depth_when_it_is_due(tmp_path: Path) -> None:
    hour = timedelta(hours=1)
    config = replace(CONFIG, retry_base=hour, retry_max=hour)
    with Site(f"sqlite:///{tmp_path / 'jobs.db'}", tmp_path, config=config) as site:
        site.heartbeat()
        # With full jitter the wait is anything up to an hour: one of many is not due at once.
        for number in range(20):
            site.fail(site.new(f"a{number}"), PdfErrorCode.NAVIGATION_TIMEOUT)
        assert site.value("ptf_admin_pdf_queue_depth") < 20
        site.clock.advance(hour)
        assert site.value("ptf_admin_pdf_queue_depth") == 20


# --- unavailable ----------------------------------------------------------------


def test_what_was_answered_503_is_shown_while_the_store_is_away(site: Site) -> None:
    job_id = site.new("a")
    assert site.value("ptf_admin_pdf_unavailable_total") == 0
    with site.outage():
        site.later()
        site.create("b")
        site.status(job_id)
        site.create("b", options={"fail_safe": "degrade"})
        assert site.value("ptf_admin_pdf_unavailable_total") == 2
        assert "ptf_admin_pdf_queue_depth" not in site.metrics()
    site.later()
    site.create("b")
    assert site.value("ptf_admin_pdf_unavailable_total") == 2


def test_the_text_is_good_prometheus_and_no_label_tells_whose_it_is(site: Site) -> None:
    job_id = site.new("Zeynep", who="key:acme")
    site.finish(job_id, engine="HeadlessChrome/1", blocked={"address": 1})
    families = {f.name: f for f in text_string_to_metric_families(site.metrics())}
    others = ("ulak_", "adaptive_")
    ours = [f for n, f in families.items() if "pdf" in n and not n.startswith(others)]
    assert len(ours) == 13
    labels = {(n, v) for f in ours for s in f.samples for n, v in s.labels.items() if n != "le"}
    assert {name for name, _ in labels} == {"status", "error_code", "reason", "state"}
    assert not [v for _, v in labels if v in (job_id, "acme", "letter", "Zeynep")]


# --- the property ---------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from(["create", "finish", "vanish", "expire", "retry", "scrape", *CODES]),
    ),
    max_size=14,
)


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=STEPS)
@pytest.mark.shows("P-P7", "P-41")
def test_property_7_counters_agree_with_what_happened(
    pair: tuple[Site, Site], steps: list[tuple[int, str]]
) -> None:
    """Feature: pdf-render-worker, Property 7: counters agree with the transitions that happened.

    Two processes act on the same jobs in turn; a run that vanishes is a worker that crashed, and
    whichever process is scraped shows the same.
    """
    names = [os.urandom(6).hex() for _ in range(4)]
    before = jobs_in(pair[0].metrics())
    created_before = before["queued"] - pair[0].value("ptf_admin_pdf_retries_total")
    known: dict[int, str] = {}
    created: set[str] = set()
    for turn, (which, act) in enumerate(steps):
        site = pair[turn % 2]
        site.heartbeat(name="worker-7")
        if act == "create":
            known[which] = site.new(names[which])
            created.add(known[which])
        elif act == "scrape":
            site.metrics()
        elif which in known:
            _act(site, known[which], act)
    for site in pair:
        must_agree(site, created=int(created_before) + len(created))
    assert jobs_in(pair[0].metrics()) == jobs_in(pair[1].metrics())


def _act(site: Site, job_id: str, act: str) -> None:
    status = site.jobs.read_job(job_id).status
    if act == "expire":
        if status not in (PdfJobStatus.RUNNING, PdfJobStatus.EXPIRED):
            site.jobs.update_status(job_id, "expired")
    elif act == "retry":
        if status is PdfJobStatus.FAILED:
            site.jobs.update_status(job_id, "queued")
    elif status in (PdfJobStatus.QUEUED, PdfJobStatus.RUNNING):
        # Of a running job the former worker is gone for long.
        site.clock.advance(timedelta(minutes=10))
        attempt = site.engine.worker(ulak.WorkerSettings(lease=timedelta(minutes=1))).take(job_id)
        if attempt is None:
            return  # the loss of its former worker was an attempt
        if act == "vanish":
            vanish(attempt)
        elif act == "finish":
            attempt.finish({"artifact_key": site.artifacts.store_pdf(job_id, A_PDF)})
        else:
            attempt.fail(pdf_error("it failed", code=PdfErrorCode(act)))
