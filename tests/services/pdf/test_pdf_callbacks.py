"""Callbacks: a receiver on loopback is told of the end of jobs, whatever dies in between."""

import asyncio
import hashlib
import hmac
import json
import logging
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.services.pdf.plant import eventually, plant
from tests.services.pdf.receiver import HANGS, Receiver, Told, receiving
from tests.services.pdf.site import CONFIG, DATABASES, Site, database
from ulak.engine.ports import WorkerSettings
from ulak.errors import BadInput, StoreError
from ulak.kit.ids import from_text, new_secret_id
from ulak.services.pdf import callbacks, cleanup, configuration, submission
from ulak.services.pdf.callbacks import GIVEN_UP, QUEUE, SENT, TRIES
from ulak.services.pdf.document import UrlBlocked
from ulak.services.pdf.fetching import AllowedFetcher, FetchFailed, FetchLimits
from ulak.services.pdf.flow import payload_of
from ulak.services.pdf.model import PdfErrorCode, PdfJobStatus
from ulak.services.pdf.settings import PdfRenderConfig, load
from ulak.services.pdf.totals import SCHEMA
from ulak.store.protocol import JobFilter
from ulak.tables import Tables

SECRET = "s" * 16 + "0123456789abcdef"
LONG = timedelta(seconds=30)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


def config_for(*receivers: Receiver, internal: frozenset[str] | None = None) -> PdfRenderConfig:
    """Settings that let these be called."""
    security = replace(
        CONFIG.security,
        callback_allowlist=tuple(each.pattern for each in receivers),
        internal_hosts=frozenset({"127.0.0.1"}) if internal is None else internal,
    )
    return replace(CONFIG, security=security, callback_secret=SECRET)


@contextmanager
def sited(url: str, folder: Path, config: PdfRenderConfig) -> Iterator[Site]:
    with Site(url, folder, config=config) as site:
        site.heartbeat()
        yield site


@pytest.fixture(params=DATABASES)
def site(
    request: pytest.FixtureRequest, tmp_path: Path, receiver: Receiver
) -> Iterator[Site]:  # fmt: skip
    with database(request, tmp_path) as url, sited(url, tmp_path, config_for(receiver)) as made:
        yield made


@pytest.fixture
def small(tmp_path: Path, receiver: Receiver) -> Iterator[Site]:
    """A site on SQLite, for what has nothing to do with the store."""
    url = f"sqlite:///{tmp_path / 'jobs.db'}?synchronous=NORMAL"
    with sited(url, tmp_path, config_for(receiver)) as made:
        yield made


def work(site: Site) -> None:
    """Do everything that can be done now."""
    worker = site.engine.worker(WorkerSettings(queues=frozenset({QUEUE})))
    asyncio.run(worker.run(until_idle=True))


def new(site: Site, url: str, name: str = "Ada", **options: Any) -> str:
    return site.new(name, options={"callback_url": url}, **options)


def waiting(site: Site) -> list[str]:
    """The URLs that wait for the end of a job."""
    found = site.engine.jobs(JobFilter(flow=submission.WANTED, state=submission.WAITING), limit=100)
    said = [site.engine.inspect.payload(job.id, reveal=True) for job in found]
    return sorted(each["url"] for each in said)


def states(site: Site) -> list[str]:
    found = site.engine.jobs(JobFilter(flow=callbacks.FLOW), limit=100)
    return sorted(job.state for job in found)


def is_signed(told: Told, secret: str = SECRET) -> bool:
    """Check it as the documentation tells receivers to."""
    signed = told.headers["x-ulak-timestamp"].encode() + b"." + told.body
    expected = "sha256=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
    return hmac.compare_digest(expected, told.headers["x-ulak-signature"])


# --- what is told ---------------------------------------------------------------


@pytest.mark.shows("P-50")
def test_a_success_is_told_signed_and_once(site: Site, receiver: Receiver) -> None:
    job_id = new(site, receiver.url("/done?order=7"))
    work(site)
    assert receiver.told == []
    site.finish(job_id)
    work(site)
    work(site)
    [told] = receiver.told
    assert (told.method, told.path) == ("POST", "/done?order=7")
    assert told.headers["content-type"] == "application/json"
    assert json.loads(told.body) == site.status(job_id)
    assert json.loads(told.body)["download_url"] == f"/pdf/jobs/{job_id}/download"
    assert is_signed(told)
    assert not is_signed(told, "another secret")
    assert not is_signed(told._replace(body=told.body + b" "))
    assert int(told.headers["x-ulak-timestamp"]) == site.clock.now() // 1_000_000
    assert states(site) == [SENT]


@pytest.mark.shows("P-50")
def test_a_failure_is_told_when_it_is_final_and_not_before(site: Site, receiver: Receiver) -> None:
    job_id = new(site, receiver.url())
    for _ in range(2):
        assert site.fail(job_id, PdfErrorCode.NAVIGATION_TIMEOUT).status == "queued"
        work(site)
        assert receiver.told == []
    assert site.fail(job_id, PdfErrorCode.NAVIGATION_TIMEOUT).status == "failed"
    work(site)
    [told] = receiver.told
    said = json.loads(told.body)
    assert (said["status"], said["error_code"]) == ("failed", "NAVIGATION_TIMEOUT")
    assert said["download_url"] is None
    assert is_signed(told)


@pytest.mark.shows("P-50", "P-51")
def test_a_job_that_ends_without_having_run_is_told(site: Site, receiver: Receiver) -> None:
    cancelled, forgotten = new(site, receiver.url(), "a"), new(site, receiver.url(), "b")
    assert site.ask("DELETE", f"/pdf/jobs/{cancelled}").status_code == 200
    work(site)
    site.clock.advance(site.config.artifact_ttl)
    assert site.jobs.cleanup_expired() == 1
    work(site)
    said = [json.loads(told.body) for told in receiver.told]
    assert [(each["job_id"], each["status"]) for each in said] == [
        (cancelled, "expired"), (forgotten, "expired")
    ]  # fmt: skip


@pytest.mark.shows("P-50", "P-12")
def test_a_repeat_may_have_another_url_told_and_is_the_same_job(
    site: Site, receiver: Receiver
) -> None:
    job_id = new(site, receiver.url("/a"))
    for path in ("/b", "/a", "/b"):
        assert new(site, receiver.url(path)) == job_id
    site.finish(job_id)
    work(site)
    assert sorted(told.path for told in receiver.told) == ["/a", "/b"]
    # Who asks after the end is told at once.
    assert new(site, receiver.url("/c")) == job_id
    work(site)
    assert [told.path for told in receiver.told][2:] == ["/c"]
    assert all(json.loads(told.body)["status"] == "succeeded" for told in receiver.told)


def test_who_asks_for_no_callback_is_not_told(small: Site, receiver: Receiver) -> None:
    small.finish(small.new())
    work(small)
    assert receiver.told == []
    assert states(small) == []


def test_where_the_application_is_mounted_is_part_of_what_is_told(
    small: Site, receiver: Receiver
) -> None:
    made = small.jobs.create_job(
        "letter", payload_of({}, template_version="1"), callback_url=receiver.url(), root="/api"
    )
    small.finish(made.job_id)
    work(small)
    [told] = receiver.told
    assert json.loads(told.body)["download_url"].startswith("/api/pdf/jobs/")


def test_callbacks_work_on_a_store_in_memory(tmp_path: Path, receiver: Receiver) -> None:
    with sited("memory://", tmp_path, config_for(receiver)) as site:
        job_id = new(site, receiver.url())
        new(site, receiver.url("/b"))
        site.finish(job_id)
        work(site)
        assert sorted(told.path for told in receiver.told) == ["/b", "/done"]


# --- receivers that do not answer well ------------------------------------------


@pytest.mark.shows("P-50")
def test_a_receiver_that_fails_three_times_is_told_the_same_a_fourth_time(
    tmp_path: Path,
) -> None:
    with receiving(500, 404, 302) as poor, sited(
        f"sqlite:///{tmp_path / 'other.db'}", tmp_path, config_for(poor)
    ) as site:  # fmt: skip
        site.finish(new(site, poor.url()))
        for tries in range(1, TRIES + 1):
            work(site)
            assert len(poor.told) == tries
            assert states(site) == [SENT if tries == TRIES else "due"]
            work(site)  # not due yet
            assert len(poor.told) == tries
            site.clock.advance(LONG)
        # Not even the redirect led elsewhere.
        assert {told.path for told in poor.told} == {"/done"}
        assert len({told.body for told in poor.told}) == 1
        assert all(map(is_signed, poor.told))
        assert len({told.headers["x-ulak-timestamp"] for told in poor.told}) == TRIES


@pytest.mark.shows("P-50")
def test_a_receiver_that_never_takes_it_is_given_up_logged_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with receiving(*[503] * 9) as poor, sited(
        f"sqlite:///{tmp_path / 'jobs.db'}", tmp_path, config_for(poor)
    ) as site:  # fmt: skip
        job_id = new(site, poor.url())
        site.finish(job_id)
        with caplog.at_level(logging.WARNING, "ulak.pdf"):
            for _ in range(TRIES + 2):
                work(site)
                site.clock.advance(LONG)
        assert len(poor.told) == TRIES
        assert states(site) == [GIVEN_UP]
        said = [r for r in caplog.records if r.message == "a callback is given up"]
        assert [r.__dict__["job_id"] for r in said] == [job_id]
        assert poor.url() not in caplog.text
        site.heartbeat()
        assert site.value("ptf_admin_pdf_callbacks", state=GIVEN_UP) == 1
        assert site.value("ptf_admin_pdf_callbacks", state=SENT) == 0
        [job] = site.engine.jobs(JobFilter(flow=callbacks.FLOW), limit=9)
        # Its job is as it was: nobody's receiver decides about a document.
        assert site.status(job_id)["status"] == "succeeded"
        assert poor.url() not in str(site.engine.inspect.payload(job.id))


@pytest.mark.shows("P-50")
def test_tries_are_one_to_thirty_seconds_apart() -> None:
    for job in range(50):
        delays = [
            (callbacks.RETRY.delay_us(n, job.to_bytes(16, "big")) or 0) / 1e6
            for n in range(1, TRIES)
        ]
        assert all(1 <= delay <= 30 for delay in delays)
        assert delays == sorted(delays)
        assert callbacks.RETRY.delay_us(TRIES, b"x" * 16) is None


@pytest.mark.shows("P-50")
def test_a_receiver_that_hangs_is_left_and_keeps_nobody_waiting(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with receiving(HANGS) as hanging:
        config = config_for(hanging, receiver)
        impatient = AllowedFetcher(
            config.security.callback_allowlist, internal_hosts=config.security.internal_hosts,
            limits=FetchLimits(total_s=5.0),  # Enough for the other one on a machine that is busy.
        )  # fmt: skip
        monkeypatch.setattr(configuration, "callback_fetcher_of", lambda _: impatient)
        with sited(f"sqlite:///{tmp_path / 'jobs.db'}", tmp_path, config) as site:
            site.finish(new(site, hanging.url(), "a"))
            site.finish(new(site, receiver.url(), "b"))
            work(site)
            assert (len(hanging.told), len(receiver.told)) == (1, 1)
            assert states(site) == ["due", SENT]
            site.clock.advance(LONG)
            work(site)
            assert states(site) == [SENT, SENT]


# --- where callbacks may go -----------------------------------------------------


@pytest.mark.shows("P-50", "P-27")
@pytest.mark.parametrize(
    "url",
    [
        "https://elsewhere.example.org/", "http://127.0.0.1:1/done", "file:///etc/passwd",
        "javascript:1", "not a url", "", "http://user@127.0.0.1/",
    ],
)  # fmt: skip
def test_a_url_that_is_not_in_the_list_is_refused(url: str, small: Site) -> None:
    answer = small.create(options={"callback_url": url})
    assert (answer.status_code, answer.json()["error_code"]) == (422, "VALIDATION_ERROR")
    assert [each["field"] for each in answer.json()["details"]["fields"]] == [
        "options.callback_url"
    ]
    assert small.count() == 0


def test_without_a_list_every_url_is_refused(tmp_path: Path, receiver: Receiver) -> None:
    with sited(f"sqlite:///{tmp_path / 'jobs.db'}", tmp_path, CONFIG) as site:
        assert site.create(options={"callback_url": receiver.url()}).status_code == 422


@pytest.mark.shows("P-50", "P-29")
def test_an_address_that_is_not_public_is_not_told_unless_its_host_is_internal(
    tmp_path: Path, receiver: Receiver
) -> None:
    config = config_for(receiver, internal=frozenset())
    with sited(f"sqlite:///{tmp_path / 'jobs.db'}", tmp_path, config) as site:
        site.finish(new(site, receiver.url()))
        work(site)
        assert states(site) == [GIVEN_UP]  # and not tried again: nothing would change
        assert receiver.told == []


@pytest.mark.shows("P-30")
def test_a_post_goes_to_the_address_that_was_checked(receiver: Receiver) -> None:
    asked: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["203.0.113.9"]

    port = receiver.url().rpartition(":")[2].partition("/")[0]
    fetcher = AllowedFetcher(
        [r"http://shop\.test:\d+/.*"], internal_hosts=["shop.test"], resolve=resolve
    )
    status = asyncio.run(fetcher.post(f"http://shop.test:{port}/x", b"{}", headers={"X-A": "1"}))
    assert (status, asked) == (204, ["shop.test"])
    [told] = receiver.told
    assert (told.headers["host"], told.headers["x-a"]) == (f"shop.test:{port}", "1")
    with pytest.raises(UrlBlocked):
        asyncio.run(fetcher.post("http://other.test/", b"", headers={}))


def test_a_post_that_nobody_answers_has_failed() -> None:
    with receiving() as gone:
        url, pattern = gone.url(), gone.pattern
    fetcher = AllowedFetcher([pattern], internal_hosts=["127.0.0.1"])
    with pytest.raises(FetchFailed):
        asyncio.run(fetcher.post(url, b"", headers={}))


def test_callbacks_are_not_let_through_unsigned() -> None:
    said = {"PDF_CALLBACK_ALLOWLIST": '["https://shop\\\\.example\\\\.org/.*"]'}
    with pytest.raises(BadInput, match="PDF_CALLBACK_SECRET"):
        load(said)
    with pytest.raises(BadInput, match="32 characters"):
        load({**said, "PDF_CALLBACK_SECRET": "short"})
    config = load({**said, "PDF_CALLBACK_SECRET": SECRET})
    assert config.security.callback_allowlist == ("https://shop\\.example\\.org/.*",)
    assert SECRET not in repr(config)


# --- nothing is lost, nothing is told for nothing -------------------------------


@pytest.mark.shows("P-50", "P-39")
def test_a_job_whose_callback_cannot_be_kept_is_not_created(
    site: Site, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise StoreError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(submission, "want", refuse)
        answer = site.create(options={"callback_url": receiver.url()})
        assert (answer.status_code, site.count()) == (503, 0)
    new(site, receiver.url())
    assert site.count() == 1


@pytest.mark.shows("P-50", "E-72")
def test_the_commit_that_ends_a_job_wakes_who_waits_for_it(
    site: Site, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callbacks, "catch_up", lambda _: None)  # nothing is looked for
    job_id = new(site, receiver.url("/a"), who="key:acme")
    new(site, receiver.url("/b"), who="key:acme-2")
    assert site.engine.jobs(JobFilter(flow=callbacks.ENDED)) == []
    assert len(waiting(site)) == 2
    site.finish(job_id)
    [told] = site.engine.jobs(JobFilter(flow=callbacks.ENDED))
    assert site.engine.inspect.payload(told.id) == {"job_id": job_id}
    assert (told.state, told.tenant) == ("due", "acme")
    work(site)
    assert sorted(told.path for told in receiver.told) == ["/a", "/b"]
    assert waiting(site) == []
    tenants = {job.tenant for job in site.engine.jobs(JobFilter(queue=QUEUE)) if job.flow != "pdf"}
    assert tenants <= {"acme", ""}
    assert site.engine.inspect.verify() == []


@pytest.mark.shows("P-50")
def test_a_callback_that_cannot_be_passed_on_is_found_again(
    site: Site, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.finish(new(site, receiver.url()))

    def refuse(*_: object, **__: object) -> None:
        raise StoreError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(site.engine, "signal", refuse)
        work(site)
    assert states(site) == []
    assert waiting(site) == [receiver.url()]
    site.clock.advance(LONG)
    work(site)
    assert len(receiver.told) == 1


@pytest.mark.shows("P-50")
def test_a_callback_that_several_find_at_once_is_told_once(site: Site, receiver: Receiver) -> None:
    ids = [new(site, receiver.url(f"/{n}"), str(n)) for n in range(5)]
    for job_id in ids:
        site.finish(job_id)
    start = threading.Barrier(4)

    def find() -> None:
        start.wait()
        for job_id in ids:
            submission.wake(site.engine, job_id)
        callbacks.catch_up(site.jobs)

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(find) for _ in range(4)]:
            done.result()
    work(site)
    assert sorted(told.path for told in receiver.told) == [f"/{n}" for n in range(5)]
    assert site.engine.inspect.verify() == []


@pytest.mark.shows("P-50")
def test_who_asks_again_after_being_told_is_told_again(site: Site, receiver: Receiver) -> None:
    job_id = new(site, receiver.url())
    site.finish(job_id)
    for times in (1, 2):
        work(site)
        assert len(receiver.told) == times
        assert new(site, receiver.url()) == job_id


# --- beside the release before --------------------------------------------------


OLD_ROW = "INSERT INTO {schema}.pdf_callbacks (job_id, url, root) VALUES (?, ?, ?)"


def write_old_row(site: Site, job_id: str, url: str, root: str = "") -> None:
    """Store a callback as the release before did, in a table of its own."""
    tables = Tables(site.engine, SCHEMA)
    is_sqlite = tables.database.name == "sqlite"
    with tables.writing() as connection:
        stored = from_text(job_id) if is_sqlite else job_id
        tables.execute(connection, OLD_ROW, stored, url, root)


@pytest.mark.shows("P-50", "E-90")
def test_callbacks_of_the_release_before_are_told(
    site: Site, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "A_BATCH", 2)
    ended, unfinished = site.new("a", who="key:acme"), site.new("b", who="key:globex")
    site.finish(ended)
    for n in range(5):
        write_old_row(site, ended, receiver.url(f"/{n}"))
    write_old_row(site, unfinished, receiver.url("/b"), "/api")
    write_old_row(site, new_secret_id(), receiver.url("/lost"))
    work(site)
    work(site)
    assert sorted(told.path for told in receiver.told) == [f"/{n}" for n in range(5)]
    assert waiting(site) == [receiver.url("/b")]
    site.finish(unfinished)
    work(site)
    last = receiver.told[-1]
    assert last.path == "/b"
    assert json.loads(last.body)["download_url"].startswith("/api/pdf/jobs/")
    assert Tables(site.engine, SCHEMA).read("SELECT url FROM {schema}.pdf_callbacks") == []
    assert site.engine.inspect.verify() == []


@pytest.mark.shows("P-50", "E-90")
def test_an_end_that_a_process_of_the_release_before_has_written_is_told(
    site: Site, receiver: Receiver
) -> None:
    job_id = new(site, receiver.url())
    flow = site.engine.inspect.flows[-1]
    assert flow.name == "pdf"
    on_end, flow.on_end = flow.on_end, None  # which that release knows nothing of
    site.finish(job_id)
    flow.on_end = on_end
    assert site.engine.jobs(JobFilter(flow=callbacks.ENDED)) == []
    work(site)
    assert [told.path for told in receiver.told] == ["/done"]


@pytest.mark.shows("P-50", "E-90")
def test_who_waits_since_the_release_before_is_told(site: Site, receiver: Receiver) -> None:
    job_id = site.new("a", who="key:acme")
    flow = next(flow for flow in site.engine.inspect.flows if flow.name == submission.WANTED)
    wanted = submission.Wanted(job_id, receiver.url())
    site.engine.submit(
        flow, wanted, tenant="acme", actor=submission.WANTED, dedup_key=f"{job_id}/0"
    )
    site.finish(job_id)
    work(site)
    assert [told.path for told in receiver.told] == ["/done"]
    assert waiting(site) == []


@pytest.mark.shows("P-50")
def test_nobody_waits_for_a_job_that_is_gone(site: Site, receiver: Receiver) -> None:
    gone = submission.Wanted(new_secret_id(), receiver.url())
    submission.want(site.engine, gone, tenant="acme")
    assert waiting(site) == [receiver.url()]
    cleanup.clean_up(site.jobs)
    assert waiting(site) == []
    work(site)
    assert receiver.told == []


def test_old_callbacks_and_those_of_lost_jobs_are_removed(site: Site, receiver: Receiver) -> None:
    site.finish(new(site, receiver.url(), "told"))
    work(site)
    lost = new(site, receiver.url(), "lost")
    site.jobs.update_status(lost, "expired")
    config = site.config
    site.clock.advance(config.artifact_ttl)
    cleanup.clean_up(site.jobs)
    site.clock.advance(config.grace + timedelta(seconds=1))
    cleanup.clean_up(site.jobs)
    assert site.count() == 0
    assert states(site) == []
    assert waiting(site) == []
    work(site)
    assert [json.loads(told.body)["status"] for told in receiver.told] == ["succeeded"]


def test_what_callbacks_leave_behind_is_removed_however_much_it_is(
    site: Site, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleanup, "A_BATCH", 2)
    for n in range(5):
        site.finish(new(site, receiver.url(f"/{n}"), str(n)))
    work(site)
    assert states(site) == [SENT] * 5
    site.clock.advance(site.config.artifact_ttl + site.config.grace + timedelta(seconds=1))
    cleanup.clean_up(site.jobs)
    for flow in (callbacks.FLOW, submission.WANTED):
        assert site.engine.jobs(JobFilter(flow=flow)) == []
    # These tell that the five have expired just now.
    assert [job.state for job in site.engine.jobs(JobFilter(flow=callbacks.ENDED))] == ["due"] * 5


@pytest.mark.shows("P-50")
def test_a_callback_that_has_ended_meanwhile_is_no_failure(
    site: Site, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = new(site, receiver.url("/"))
    seen = site.engine.jobs(JobFilter(flow=submission.WANTED))
    site.finish(job_id)
    work(site)
    for module in (submission, callbacks):
        monkeypatch.setattr(module, "walk", lambda *_: iter(seen))
    submission.wake(site.engine, job_id)
    callbacks.catch_up(site.jobs)
    assert len(receiver.told) == 1


@pytest.mark.shows("P-50", "P-20")
def test_of_creates_at_once_one_makes_the_job_and_every_url_is_told(
    site: Site, receiver: Receiver
) -> None:
    start = threading.Barrier(6)
    payload = payload_of({"name": "Ada"}, template_version="1")

    def create(n: int) -> str:
        start.wait()
        made = site.jobs.create_job("letter", payload, callback_url=receiver.url(f"/{n}"))
        return made.job_id

    with ThreadPoolExecutor(6) as pool:
        [job_id] = set(pool.map(create, range(6)))
    site.finish(job_id)
    work(site)
    assert sorted(told.path for told in receiver.told) == [f"/{n}" for n in range(6)]


# --- processes that are killed --------------------------------------------------


@pytest.mark.shows("P-50")
def test_workers_killed_between_the_end_and_the_callback_lose_nothing(
    tmp_path: Path, sqlite_url: str
) -> None:
    with receiving(HANGS) as receiver, plant(
        sqlite_url, tmp_path, PDF_CALLBACK_ALLOWLIST=json.dumps([receiver.pattern]),
        PDF_CALLBACK_SECRET=SECRET, PDF_INTERNAL_HOSTS="127.0.0.1",
    ) as made:  # fmt: skip
        version = made.templates.version("plain")
        payload = payload_of({"n": 1}, template_version=version)
        job = made.jobs.create_job("plain", payload, callback_url=receiver.url())
        renders = made.worker()
        made.until(job, PdfJobStatus.SUCCEEDED)
        renders.send_signal(signal.SIGKILL)
        renders.wait()
        # Rendered, and nobody has told: the first that may is killed while it does.
        assert receiver.told == []
        sends = made.start("worker", "--queue", QUEUE, "--lease", "2")
        eventually(lambda: receiver.told)
        sends.send_signal(signal.SIGKILL)
        sends.wait()
        made.start("worker", "--queue", QUEUE, "--lease", "2")
        eventually(lambda: len(receiver.told) == 2)
        first, second = receiver.told
        assert first.body == second.body
        assert json.loads(second.body)["status"] == "succeeded"
        assert is_signed(second)
