"""Following jobs over HTTP: lists, the end of a job, ending one early, and when to ask again."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.services.pdf.site import CONFIG, DATABASES, Site, opened
from ulak.engine.ports import WorkerSettings
from ulak.services.pdf.document import Document, Rendered, Times
from ulak.services.pdf.failsafe import LATEST_S, MOST_LOOKED_AT, USUAL_S, WINDOW, Pace
from ulak.services.pdf.job_routes import A_SPAN, A_STRETCH, LONGEST_SPAN, Place
from ulak.services.pdf.model import PdfJobStatus
from ulak.services.pdf.worker import PdfRenderWorker

SOON = timedelta(seconds=1)


@pytest.fixture(params=DATABASES)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    yield from opened(request, tmp_path)


@contextmanager
def sited(tmp_path: Path, **options: Any) -> Iterator[Site]:
    url = f"sqlite:///{tmp_path / 'jobs.db'}?synchronous=NORMAL"
    with Site(url, tmp_path, **options) as made:
        made.heartbeat()
        yield made


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Site]:
    """A site on SQLite, for what has nothing to do with the store."""
    with sited(tmp_path) as made:
        yield made


# --- lists ----------------------------------------------------------------------


def listed(site: Site, query: str = "", **options: Any) -> list[str]:
    """The ids of every job of a list, page by page."""
    ids: list[str] = []
    after = ""
    while True:
        answer = site.get(f"/pdf/jobs?{query}{after}", **options)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        ids += [item["job_id"] for item in page["items"]]
        if page["next"] is None:
            return ids
        after = f"&after={page['next']}"


def made(site: Site, *names: str, **options: Any) -> list[str]:
    """Jobs, one a second, so that it is clear which is the latest."""
    ids = []
    for name in names:
        site.clock.advance(SOON)
        ids.append(site.new(name, **options))
    return ids


@pytest.mark.shows("P-51")
def test_a_list_has_the_jobs_of_its_caller_alone_the_latest_first(site: Site) -> None:
    mine = made(site, "a", "b", "c")
    made(site, "d", who="key:other")
    assert listed(site) == mine[::-1]
    assert listed(site, who="key:globex") == []


@pytest.mark.shows("P-51")
def test_a_list_in_pages_is_the_list(site: Site) -> None:
    mine = made(site, *"abcdefg")
    assert listed(site, "limit=3") == listed(site, "limit=1") == mine[::-1]
    first = site.get("/pdf/jobs?limit=3").json()
    made(site, "h")
    # What is new comes before the first page, and moves nothing of those that follow.
    later = site.get(f"/pdf/jobs?limit=3&after={first['next']}").json()
    assert [item["job_id"] for item in later["items"]] == mine[3:0:-1]


@pytest.mark.shows("P-51", "P-21")
def test_a_job_that_was_there_already_is_listed_for_whoever_asked_for_it_again(site: Site) -> None:
    [theirs] = made(site, "shared", who="key:acme")
    [mine] = made(site, "mine", who="key:acme-2")
    assert made(site, "shared", who="key:acme-2") == [theirs]
    assert listed(site, who="key:acme-2") == [theirs, mine]
    assert listed(site, "limit=1", who="key:acme-2") == [theirs, mine]
    assert listed(site, who="key:acme") == [theirs]


@pytest.mark.shows("P-51")
def test_an_admin_lists_the_jobs_of_the_tenant_and_one_without_a_tenant_all(site: Site) -> None:
    ours = made(site, "a", who="key:acme") + made(site, "b", who="key:acme-2")
    others = made(site, "c", who="key:globex")
    assert listed(site, who="anna") == ours[::-1]
    assert listed(site, who="ada") == (ours + others)[::-1]


@pytest.mark.shows("P-51")
def test_a_list_may_be_of_one_status(site: Site) -> None:
    queued, done, broken, over = made(site, "queued", "done", "broken", "over")
    site.finish(done)
    site.fail(broken)
    site.jobs.update_status(over, "expired")
    for status, job_id in (
        ("queued", queued), ("succeeded", done), ("failed", broken), ("expired", over)
    ):  # fmt: skip
        assert listed(site, f"status={status}&limit=1") == [job_id]
    assert listed(site, "status=running") == []
    shared = made(site, "done", who="key:other")
    assert shared == [done]
    assert listed(site, "status=succeeded", who="key:other") == [done]
    assert listed(site, "status=queued", who="key:other") == []


@pytest.mark.shows("P-51")
def test_what_a_list_says_of_a_job_is_what_its_own_route_says(site: Site) -> None:
    [job_id] = made(site, "a")
    site.finish(job_id)
    assert site.get("/pdf/jobs").json()["items"] == [site.status(job_id)]


def test_jobs_of_the_same_moment_are_each_in_one_page(small: Site) -> None:
    ids = {small.new(str(n)) for n in range(5)}
    found = listed(small, "limit=2")
    assert len(found) == len(ids)
    assert set(found) == ids


def test_a_list_of_everybody_goes_on_from_span_to_span(small: Site) -> None:
    ids = []
    for wait in (timedelta(), A_SPAN, A_SPAN * 2, A_SPAN * 2, timedelta(hours=9), LONGEST_SPAN * 3):
        small.clock.advance(wait)
        ids += made(small, f"letter {len(ids)}", f"a second later, {len(ids)}")
    for query in ("", "limit=1", "limit=3"):
        assert listed(small, query, who="ada") == ids[::-1]


def test_a_list_that_is_longer_than_a_stretch_goes_on(small: Site) -> None:
    ids = made(small, *map(str, range(A_STRETCH + 3)))
    assert listed(small, "limit=100") == ids[::-1]


def test_a_list_on_a_store_in_memory_is_the_same(tmp_path: Path) -> None:
    with Site("memory://", tmp_path) as site:
        site.heartbeat()
        first, second = made(site, "a", "b")
        [theirs] = made(site, "c", who="key:other")
        made(site, "c")
        assert listed(site, "limit=1") == [theirs, second, first]
        assert listed(site, "status=running") == []


@pytest.mark.parametrize(
    "query", ["status=done", "limit=0", "limit=101", "after=x", "after=1.2", "colour=red"]
)
def test_a_list_that_is_asked_for_wrongly_is_refused(query: str, small: Site) -> None:
    answer = small.get(f"/pdf/jobs?{query}")
    assert (answer.status_code, answer.json()["error_code"]) == (422, "VALIDATION_ERROR")


def test_a_list_while_the_store_is_down_is_unavailable(small: Site) -> None:
    with small.outage():
        small.later()
        answer = small.get("/pdf/jobs")
    assert (answer.status_code, answer.json()["error_code"]) == (503, "PDF_RENDER_UNAVAILABLE")


def test_a_place_is_read_as_it_is_written() -> None:
    place = Place(1_790_000_000_000_000, "0192e4a0-5b6c-7d10-8a4e-0f2b6c9d1e33")
    assert Place.read(str(place)) == place


# --- ending one early -----------------------------------------------------------


def cancel(site: Site, job_id: str, **options: Any) -> httpx.Response:
    return site.ask("DELETE", f"/pdf/jobs/{job_id}", **options)


@pytest.mark.shows("P-51")
def test_a_queued_job_that_is_cancelled_has_expired(site: Site) -> None:
    job_id = site.new()
    answer = cancel(site, job_id)
    assert (answer.status_code, answer.json()["status"]) == (200, "expired")
    assert answer.json() == site.status(job_id)
    assert site.download(job_id).status_code == 410
    assert "Retry-After" not in answer.headers
    # Its key is free: who asks for the same gets another job.
    assert site.new() != job_id


class Endless:
    """A renderer that prints nothing until it is stopped, and has stopped when it is let go."""

    def __init__(self) -> None:
        self.began, self.let_go = threading.Event(), threading.Event()

    async def render(self, document: Document, times: Times) -> Rendered:
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.to_thread(self.let_go.wait, 30)
        raise AssertionError


@pytest.mark.shows("P-51")
def test_the_attempt_of_a_running_job_is_stopped(site: Site) -> None:
    renderer = Endless()

    @site.engine.resource(PdfRenderWorker, queue="pdf")
    @asynccontextmanager
    async def opened_worker() -> AsyncIterator[PdfRenderWorker]:
        yield PdfRenderWorker(site.config, site.pages, renderer, site.artifacts)

    job_id = site.new()
    with site.engine.working(WorkerSettings(queues=("pdf",))):
        assert renderer.began.wait(120)
        answer = cancel(site, job_id)
        renderer.let_go.set()
        assert (answer.status_code, answer.json()["status"]) == (202, "running")
        assert retry_after(answer) == USUAL_S
        ended = site.get(f"/pdf/jobs/{job_id}?wait=30").json()
    assert (ended["status"], ended["error_code"]) == ("expired", "UNKNOWN")
    job = site.jobs.read_job(job_id)
    assert job.error_detail == "cancelled"
    moves = [(e.from_state, e.to_state) for e in site.engine.inspect.trail(job_id)]
    assert moves[-2:] == [("running", "failed"), ("failed", "expired")]
    assert list(site.artifacts.backend.list("pdfs")) == []


@pytest.mark.shows("P-51")
@pytest.mark.parametrize("end", ["succeeded", "failed", "expired"])
def test_a_job_that_has_ended_is_not_cancelled(end: str, site: Site) -> None:
    job_id = site.new()
    if end == "failed":
        site.fail(job_id)
    else:
        site.finish(job_id)
    if end == "expired":
        site.jobs.update_status(job_id, "expired")
    answer = cancel(site, job_id)
    assert (answer.status_code, answer.json()["error_code"]) == (409, "JOB_ENDED")
    assert answer.json()["details"] == {"status": end}
    assert site.status(job_id)["status"] == end


@pytest.mark.shows("P-51", "P-33")
def test_a_job_is_cancelled_by_an_owner_or_an_admin_alone(site: Site) -> None:
    job_id = site.new(who="key:acme")
    for stranger in ("key:acme-2", "key:globex", "key:shop"):
        answer = cancel(site, job_id, who=stranger)
        assert (answer.status_code, answer.json()["error_code"]) == (404, "JOB_NOT_FOUND")
    assert cancel(site, job_id, who="key:reads").status_code == 403
    assert cancel(site, job_id, who=None).status_code == 401
    assert site.status(job_id, who="key:acme")["status"] == "queued"
    assert cancel(site, job_id, who="anna").status_code == 200


# --- waiting for the end --------------------------------------------------------


@pytest.mark.shows("P-51")
def test_a_read_that_waits_is_answered_when_the_job_has_ended(site: Site) -> None:
    job_id = site.new()

    async def both() -> httpx.Response:
        asking = asyncio.ensure_future(site.asked("GET", f"/pdf/jobs/{job_id}?wait=60"))
        assert await asyncio.to_thread(site.waiting.stands.wait, 30)
        assert not asking.done()
        await asyncio.to_thread(site.finish, job_id)
        return await asking

    answer = site.together(both())
    assert answer.json()["status"] == "succeeded"
    assert answer.json() == site.status(job_id)


@pytest.mark.shows("P-51")
def test_a_read_that_waits_in_vain_is_answered_with_the_job_as_it_stands(small: Site) -> None:
    job_id = small.new()
    answer = small.get(f"/pdf/jobs/{job_id}?wait=0.05")
    assert small.waiting.stands.is_set()
    assert (answer.status_code, answer.json()["status"]) == (200, "queued")
    assert "Retry-After" in answer.headers


def test_a_read_that_waits_is_answered_when_the_server_stops(small: Site) -> None:
    job_id = small.new()

    async def both() -> httpx.Response:
        asking = asyncio.ensure_future(small.asked("GET", f"/pdf/jobs/{job_id}?wait=60"))
        assert await asyncio.to_thread(small.waiting.stands.wait, 30)
        small.app.state.waits.close()
        return await asking

    answer = small.together(both())
    assert (answer.status_code, answer.json()["status"]) == (200, "queued")


@pytest.mark.shows("P-51")
def test_only_so_many_wait_and_the_rest_are_answered_at_once(tmp_path: Path) -> None:
    with sited(tmp_path, most_waiting=1) as site:
        job_id = site.new()

        async def three() -> list[str]:
            first = asyncio.ensure_future(site.asked("GET", f"/pdf/jobs/{job_id}?wait=60"))
            assert await asyncio.to_thread(site.waiting.stands.wait, 30)
            second = await site.asked("GET", f"/pdf/jobs/{job_id}?wait=60")
            assert not first.done()
            await asyncio.to_thread(site.finish, job_id)
            return [second.json()["status"], (await first).json()["status"]]

        assert site.together(three()) == ["queued", "succeeded"]

        # Whoever has left has made room.
        other = site.new("other")
        site.waiting.stands.clear()

        async def again() -> str:
            asking = asyncio.ensure_future(site.asked("GET", f"/pdf/jobs/{other}?wait=60"))
            assert await asyncio.to_thread(site.waiting.stands.wait, 30)
            await asyncio.to_thread(site.finish, other)
            return (await asking).json()["status"]

        assert site.together(again()) == "succeeded"


def test_nobody_waits_for_a_job_that_is_not_theirs(small: Site) -> None:
    job_id = small.new()
    assert small.get(f"/pdf/jobs/{job_id}?wait=60", who="key:other").status_code == 404
    assert not small.waiting.stands.is_set()


@pytest.mark.parametrize("query", ["wait=61", "wait=-1", "wait=long", "waits=1"])
def test_a_wait_that_cannot_be_is_refused(query: str, small: Site) -> None:
    answer = small.get(f"/pdf/jobs/{small.new()}?{query}")
    assert (answer.status_code, answer.json()["error_code"]) == (422, "VALIDATION_ERROR")


# --- when to ask again ----------------------------------------------------------


def render(site: Site, name: str, took: timedelta) -> None:
    """Render a job by hand, taking so long."""
    job_id = site.new(name)
    site.jobs.update_status(job_id, "running")
    site.clock.advance(took)
    key = site.artifacts.store_pdf(job_id, b"%PDF-1.7")
    site.jobs.update_status(job_id, "succeeded", artifact_key=key)
    site.heartbeat()


def retry_after(answer: httpx.Response) -> int:
    return int(answer.headers["Retry-After"])


@pytest.mark.shows("P-51")
def test_when_to_ask_again_is_told_by_the_queue_and_the_latest_renders(site: Site) -> None:
    places = site.config.concurrency
    assert retry_after(site.create("first")) == USUAL_S, "nothing is before it"
    render(site, "a", timedelta(seconds=4))
    render(site, "b", timedelta(seconds=8))
    site.create("second")
    site.later()
    # One is before it and a render takes six seconds.
    expected = 6 * (1 + 1 // places)
    assert retry_after(site.create("second")) == expected
    assert retry_after(site.download(site.new("second"))) == expected
    # What came after it is not waited for.
    for n in range(2 * places):
        site.clock.advance(timedelta(microseconds=1))
        site.new(f"later {n}")
    site.later()
    assert retry_after(site.create("second")) == expected
    last = 6 * (1 + (2 * places + 1) // places)
    assert retry_after(site.create(f"later {2 * places - 1}")) == last
    # Twice the workers, half the rounds.
    site.heartbeat(name="worker-2")
    half = 6 * (1 + (2 * places + 1) // (2 * places))
    assert retry_after(site.create(f"later {2 * places - 1}")) == half
    job_id = site.new("second")
    site.jobs.update_status(job_id, "running")
    assert retry_after(site.download(job_id)) == 6


@pytest.mark.shows("P-51")
def test_renders_of_long_ago_say_nothing_about_now(site: Site) -> None:
    render(site, "a", timedelta(seconds=20))
    job_id = site.new("b")
    site.jobs.update_status(job_id, "running")
    assert retry_after(site.download(job_id)) == 20
    site.clock.advance(WINDOW)
    site.heartbeat()
    site.clock.advance(timedelta(microseconds=1))
    site.later()
    assert retry_after(site.download(job_id)) == USUAL_S


def test_only_the_latest_renders_count(small: Site) -> None:
    render(small, "slow", timedelta(seconds=30))
    for n in range(MOST_LOOKED_AT):
        render(small, str(n), SOON)
    assert small.pacing.look().render_s == 1.0


def test_on_a_store_in_memory_it_is_told_alike(tmp_path: Path) -> None:
    with Site("memory://", tmp_path) as site:
        site.heartbeat()
        render(site, "a", timedelta(seconds=7))
        assert site.pacing.look().render_s == 7.0


def test_what_cannot_be_found_out_is_the_usual(small: Site) -> None:
    with small.outage():
        assert small.pacing.look() == Pace()


def test_when_to_ask_again_is_between_a_second_and_a_minute() -> None:
    crowd = Pace(queued=10_000, places=1, render_s=5.0)
    assert crowd.retry_after_s(PdfJobStatus.QUEUED) == LATEST_S
    assert crowd.retry_after_s(PdfJobStatus.RUNNING) == 5
    assert Pace(queued=0, places=4, render_s=0.01).retry_after_s(PdfJobStatus.QUEUED) == 1


def test_a_repeat_that_is_done_is_not_asked_for_again(small: Site) -> None:
    small.finish(small.new())
    assert "Retry-After" not in small.create().headers


def test_the_pace_is_kept_for_a_moment(tmp_path: Path) -> None:
    with sited(tmp_path, config=replace(CONFIG, concurrency=1)) as site:
        assert retry_after(site.create("a")) == 2
        site.jobs.update_status(site.new("a"), "running")
        site.clock.advance(SOON)
        assert retry_after(site.create("b")) == 2
        site.later()
        assert retry_after(site.create("b")) == 4
