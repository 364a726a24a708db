"""From a create to an artifact, with real processes, a real store and a real browser."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path

import pypdfium2
import pytest

from tests.scenario.doubles import settings as worker_settings
from tests.services.pdf.browser.yard import sizes_of
from tests.services.pdf.desk import Desk, Printer
from tests.services.pdf.plant import Plant, eventually, parent_of, plant
from ulak.services.pdf.document import Document, Rendered, Times
from ulak.services.pdf.failsafe import count_workers
from ulak.services.pdf.flow import find_entry, payload_of
from ulak.services.pdf.ground import find_browser
from ulak.services.pdf.model import PdfErrorCode, PdfJobStatus
from ulak.services.pdf.worker import PdfRenderWorker

QUEUED, RUNNING, SUCCEEDED, FAILED, EXPIRED = PdfJobStatus
HEARTBEAT = timedelta(seconds=15)
LONG = timedelta(minutes=10)


@pytest.fixture
def works(pdf_url: str, tmp_path: Path) -> Iterator[Plant]:
    with plant(pdf_url, tmp_path) as made:
        yield made


@pytest.fixture
def sqlite_works(sqlite_url: str, tmp_path: Path) -> Iterator[Plant]:
    # A page that is asked to close has a second for it.
    with plant(sqlite_url, tmp_path, PDF_GRACEFUL_CANCEL_OFFSET="1") as made:
        yield made


def text_of(pdf: bytes) -> str:
    document = pypdfium2.PdfDocument(pdf)
    try:
        return "".join(page.get_textpage().get_text_bounded() for page in document)
    finally:
        document.close()


@pytest.mark.shows("P-1", "P-2")
def test_a_job_is_rendered_by_a_worker_and_the_api_has_no_browser(works: Plant) -> None:
    up = works.start("up", "--port", "0")
    invoice = works.templates.get("invoice").sample()
    job = works.until(works.create("invoice", **invoice), SUCCEEDED, FAILED)
    assert job.status is SUCCEEDED, job.error_detail
    pdf = works.artifacts.get_pdf(job.artifact_key)
    assert str(invoice["number"]) in text_of(pdf)
    report = works.jobs.find_report(job.job_id)
    assert (report["size"], report["pages"]) == (len(pdf), 1)
    assert "Chrome" in report["engine"]
    assert {"template", "store", "total"} <= set(report["timings"])
    # The browser's ancestor is the worker, a child of the process that serves the API.
    first = min(works.browsers(), key=lambda pid: (parent_of(pid) in works.browsers(), pid))
    line = [parent_of(first)]
    while line[-1] not in (up.pid, 1):
        line.append(parent_of(line[-1]))
    assert line[-1] == up.pid
    worker = line[-2]
    assert worker != up.pid
    assert "ulak.services.pdf.browser.pool" in works.modules(worker)
    served = works.modules(up.pid)
    assert {"ulak.services.pdf.routes", "ulak.services.pdf.jobs"} <= served
    assert not [name for name in served if ".browser" in name or name.startswith("playwright")]


@pytest.mark.shows("P-7", "P-14")
def test_a_worker_killed_while_it_renders_is_followed_by_another(works: Plant) -> None:
    first = works.worker(lease_s=2)
    job = works.until(works.create("slow"), RUNNING)
    eventually(works.browsers)
    first.send_signal(signal.SIGKILL)
    first.wait()
    works.worker(lease_s=2)
    done = works.until(job, SUCCEEDED, FAILED)
    assert (done.status, done.retry_count) == (SUCCEEDED, 1)
    trail = [
        (e.to_state, e.code) for e in works.engine.inspect.trail(job.job_id) if e.kind != "lapsed"
    ]
    assert [state for state, _ in trail] == [
        "queued", "running", "failed", "queued", "running", "succeeded",
    ]  # fmt: skip
    assert trail[2][1] == "NAVIGATION_TIMEOUT"
    assert works.stored() == [done.artifact_key]
    works.close()
    eventually(lambda: not works.browsers() and not works.others())
    assert list(works.temporary.glob("ulak-browser-*")) == []


@pytest.mark.shows("P-7", "P-14")
def test_workers_that_are_killed_cost_no_job_and_leave_nothing(
    sqlite_works: Plant, sized: Callable[[int, int], int]
) -> None:
    jobs = [sqlite_works.create("slow", n=n) for n in range(sized(10, 3))]
    kills = dict.fromkeys((job.job_id for job in jobs), 0)
    for _ in range(2):
        sqlite_works.worker(lease_s=2)

    def kill_one() -> bool:
        for job_id, so_often in kills.items():
            last = sqlite_works.engine.inspect.trail(job_id)[-1]
            # Not one that has only taken over what another has lost: it renders nothing yet.
            worker = last.worker or "" if last.kind == "entered" else ""
            running = [p for p in sqlite_works.processes if f"-{p.pid}-" in worker]
            # At most twice each: then the attempt that is left must succeed.
            if not running or so_often == 2:
                continue
            (victim,) = running
            victim.kill()
            victim.communicate()
            sqlite_works.processes.remove(victim)
            kills[job_id] += 1
            sqlite_works.worker(lease_s=2)
            return True
        return False

    for _ in range(2 * len(jobs)):
        eventually(kill_one)
    for job in jobs:
        done = sqlite_works.until(job, SUCCEEDED, FAILED)
        said = [(e.kind, e.code, e.message) for e in sqlite_works.engine.inspect.trail(job.job_id)]
        assert (done.status, done.retry_count) == (SUCCEEDED, 2), said
    keys = [sqlite_works.jobs.read_job(job.job_id).artifact_key for job in jobs]
    assert sqlite_works.stored() == sorted(keys)
    sqlite_works.close()
    eventually(lambda: not sqlite_works.browsers() and not sqlite_works.others())
    assert os.listdir(sqlite_works.temporary) == []


@pytest.mark.shows("P-14")
def test_a_worker_takes_away_what_a_killed_one_left_before_it_has_a_job(
    sqlite_works: Plant,
) -> None:
    first = sqlite_works.worker()
    sqlite_works.until(sqlite_works.create("plain", n=1), SUCCEEDED)
    first.kill()
    first.communicate()
    sqlite_works.processes.remove(first)
    left = set(os.listdir(sqlite_works.temporary))
    assert left
    sqlite_works.worker()
    eventually(lambda: not left & set(os.listdir(sqlite_works.temporary)))


@pytest.mark.shows("P-14", "P-15")
def test_a_page_that_never_ends_is_killed_retried_twice_and_has_failed(
    sqlite_works: Plant,
) -> None:
    sqlite_works.worker()
    endless = sqlite_works.create("endless", timeout_s=2)
    failed = sqlite_works.until(endless, FAILED)
    assert (failed.error_code, failed.retry_count) == (PdfErrorCode.NAVIGATION_TIMEOUT, 2)
    states = [event.to_state for event in sqlite_works.engine.inspect.trail(endless.job_id)]
    assert states.count("running") == 3
    after = sqlite_works.until(sqlite_works.create("plain", n=1), SUCCEEDED, FAILED)
    assert (after.status, after.retry_count) == (SUCCEEDED, 0), "the browser is as good as new"
    assert sqlite_works.stored() == [after.artifact_key]


@pytest.mark.shows("P-15", "P-27")
def test_what_a_page_asks_for_is_refused_and_counted_and_it_still_renders(
    sqlite_works: Plant,
) -> None:
    sqlite_works.worker()
    done = sqlite_works.until(sqlite_works.create("probing"), SUCCEEDED, FAILED)
    assert done.status is SUCCEEDED
    assert "rendered" in text_of(sqlite_works.artifacts.get_pdf(done.artifact_key))
    blocked = sqlite_works.jobs.find_report(done.job_id)["blocked"]
    assert blocked.get("allowlist", 0) >= 2
    failed = sqlite_works.until(sqlite_works.create("plain"), FAILED, SUCCEEDED)
    assert (failed.status, failed.retry_count) == (FAILED, 0)
    assert failed.error_code is PdfErrorCode.TEMPLATE_ERROR, "a variable is missing"


@pytest.mark.shows("P-51", "P-14")
def test_a_running_attempt_that_is_cancelled_has_failed_and_expired(sqlite_works: Plant) -> None:
    sqlite_works.worker()
    job = sqlite_works.until(sqlite_works.create("endless", timeout_s=60), RUNNING)
    sqlite_works.jobs.cancel(job.job_id, actor="ada")
    ended = sqlite_works.until(job, EXPIRED)
    assert (ended.error_code, ended.error_detail) == (PdfErrorCode.UNKNOWN, "cancelled")
    trail = sqlite_works.engine.inspect.trail(job.job_id)
    entered = [entry.status for entry in map(find_entry, trail) if entry is not None]
    assert entered == [QUEUED, RUNNING, FAILED, EXPIRED]
    assert sqlite_works.stored() == []


@pytest.mark.shows("P-59", "P-8")
def test_a_worker_that_is_told_to_stop_loses_nothing(sqlite_works: Plant) -> None:
    first = sqlite_works.worker()
    jobs = [sqlite_works.create("plain", n=n) for n in range(6)]
    sqlite_works.until(jobs[0], SUCCEEDED)
    first.terminate()
    out, _ = first.communicate(timeout=60)
    assert first.returncode == 0, out
    sqlite_works.processes.remove(first)
    assert not sqlite_works.browsers()
    sqlite_works.worker()
    for job in jobs:
        done = sqlite_works.until(job, SUCCEEDED, FAILED)
        assert (done.status, done.retry_count) == (SUCCEEDED, 0)
    assert len(sqlite_works.stored()) == len(jobs)


class Counting(Printer):
    """A renderer that counts how many documents it has at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0

    async def render(self, document: Document, times: Times) -> Rendered:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0)
        self.now -= 1
        return await super().render(document, times)


def test_a_backlog_drains_and_no_more_is_taken_than_there_are_places(desk: Desk) -> None:
    counting = Counting()

    @desk.engine.resource(PdfRenderWorker, queue="pdf", places=2)
    @asynccontextmanager
    async def open_it() -> AsyncIterator[PdfRenderWorker]:
        yield desk.worker(counting)

    ids = [desk.create(n=n).job_id for n in range(200)]
    with desk.engine.working(worker_settings(queues=frozenset({"pdf"}))):
        for job_id in ids:
            desk.engine.wait(job_id, timeout=timedelta(seconds=60))
    assert {desk.jobs.read_job(job_id).status for job_id in ids} == {SUCCEEDED}
    assert len(desk.stored()) == 200
    assert counting.most <= 2


def test_nothing_here_was_started_by_a_name(works: Plant) -> None:
    """What a test leaves running would be somebody else's; the plant ends what it started."""
    worker = works.worker()
    works.until(works.create("plain", n=1), SUCCEEDED)
    assert works.browsers()
    assert works.others(), "the driver has a process of its own"
    works.close()
    assert worker.returncode == 0
    assert not works.browsers()
    assert not works.others()
    assert os.listdir(works.temporary) == []


@pytest.mark.shows("P-54")
def test_a_job_is_printed_by_its_page_options(sqlite_works: Plant) -> None:
    manifest = sqlite_works.folder / "templates" / "plain" / "manifest.toml"
    manifest.write_text(f'options = ["paper", "ranges"]\n{manifest.read_text()}')
    sqlite_works.worker()
    version = sqlite_works.templates.version("plain")
    made = [
        sqlite_works.jobs.create_job(
            "plain", payload_of({"n": 1}, template_version=version, options=options)
        )
        for options in ({}, {"page": {"paper": "A5"}}, {"page": {"ranges": "2"}})
    ]
    plain, small, none = (sqlite_works.until(job, SUCCEEDED, FAILED) for job in made)
    assert [
        sizes_of(sqlite_works.artifacts.get_pdf(job.artifact_key or "")) for job in (plain, small)
    ] == [[(596, 842)], [(420, 596)]]
    assert (none.error_code, none.error_detail) == (PdfErrorCode.TEMPLATE_ERROR, "page_range")
    assert none.retry_count == 0


@pytest.mark.shows("P-53")
def test_the_browser_runs_before_the_first_job(sqlite_works: Plant) -> None:
    sqlite_works.worker()
    eventually(lambda: count_workers(sqlite_works.engine, heartbeat=HEARTBEAT) == 1)
    before = sqlite_works.browsers()
    assert before
    done = sqlite_works.until(sqlite_works.create("plain", n=1), SUCCEEDED, FAILED)
    assert done.status is SUCCEEDED
    assert before & sqlite_works.browsers(), "it is the same browser"


@pytest.mark.shows("P-32", "P-37")
def test_beside_a_worker_without_a_usable_browser_no_job_fails(works: Plant) -> None:
    broken = works.worker(PDF_CHROMIUM="/bin/false", PDF_CONCURRENCY="4")
    jobs = [works.create("plain", n=n) for n in range(12)]
    eventually(lambda: any("takes no job of pdf" in w.about for w in works.engine.store.workers()))
    assert count_workers(works.engine, heartbeat=HEARTBEAT) == 0
    works.worker()
    for job in jobs:
        done = works.until(job, SUCCEEDED, FAILED)
        assert (done.status, done.retry_count) == (SUCCEEDED, 0), done.error_detail
        takers = {event.worker or "" for event in works.engine.inspect.trail(job.job_id)}
        assert not [taker for taker in takers if f"-{broken.pid}-" in taker]
    assert count_workers(works.engine, heartbeat=HEARTBEAT) == 1
    assert broken.poll() is None


@pytest.mark.shows("P-32", "P-15")
def test_a_worker_whose_browser_goes_away_leaves_its_jobs_to_others_and_takes_some_once_mended(
    sqlite_works: Plant,
) -> None:
    real = find_browser(uid=None)
    assert real is not None
    program = sqlite_works.temporary / "program"
    program.symlink_to(real)
    sqlite_works.worker(PDF_CHROMIUM=str(program))
    first = sqlite_works.until(sqlite_works.create("plain", n=1), SUCCEEDED, FAILED)
    assert first.status is SUCCEEDED
    program.unlink()
    for pid in sqlite_works.browsers():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    job = sqlite_works.create("plain", n=2)

    def is_given_back() -> bool:
        return "UNSUPPORTED" in sqlite_works.engine.inspect.why(job.job_id).sentence

    eventually(lambda: is_given_back() or not count_workers(sqlite_works.engine, heartbeat=LONG))
    assert sqlite_works.jobs.get_job(job.job_id).status in (QUEUED, RUNNING)
    program.symlink_to(real)
    done = sqlite_works.until(job, SUCCEEDED, FAILED)
    assert (done.status, done.retry_count) == (SUCCEEDED, 0)
