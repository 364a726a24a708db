"""The clean-up: what is past its time goes, artifact first, and nothing else does."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.services.pdf.desk import A_PDF, INVOICE, Desk, payload
from ulak.artifacts.local import LocalStorage
from ulak.clock import to_datetime
from ulak.errors import ArtifactWriteFailed, JobNotFound
from ulak.ids import from_text
from ulak.services.pdf import cleanup
from ulak.services.pdf.model import PdfJob, PdfJobStatus
from ulak.services.pdf.totals import SCHEMA
from ulak.tables import Tables

QUEUED, RUNNING, SUCCEEDED, FAILED, EXPIRED = PdfJobStatus
DAY = timedelta(days=1)
SECOND = timedelta(seconds=1)
TTL = 86_400

numbers = iter(range(10**9))


def job_in(desk: Desk, status: PdfJobStatus) -> PdfJob:
    """A job of its own in this status."""
    job = desk.create(n=next(numbers))
    if status is SUCCEEDED:
        return desk.succeed(job.job_id)
    if status is FAILED:
        return desk.fail(job.job_id)
    if status in (RUNNING, EXPIRED):
        return desk.jobs.update_status(job.job_id, status)
    return job


@pytest.mark.shows("P-P10", "P-24")
@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    made=st.lists(
        st.tuples(st.sampled_from(PdfJobStatus), st.integers(-4, 4)), min_size=1, max_size=6
    ),
    ttl=st.integers(1, 10**6),
)
def test_what_is_past_its_time_is_gone_and_nothing_younger_has_changed(
    desk: Desk, made: list[tuple[PdfJobStatus, int]], ttl: int
) -> None:
    """Feature: pdf-render-worker, Property 10: Artifact expiry and clean-up."""
    start = desk.clock.now()
    jobs: list[tuple[PdfJob, int]] = []
    for status, age in sorted(made, key=lambda one: -one[1]):
        # The oldest first; each `age` seconds older or younger than the time to live.
        desk.clock.advance(timedelta(microseconds=start + (4 - age) * 10**6 - desk.clock.now()))
        jobs.append((job_in(desk, status), age))
    last = start + 4 * 10**6 + ttl * 10**6
    desk.clock.advance(timedelta(microseconds=last - desk.clock.now()))
    before = {job.job_id: desk.jobs.read_job(job.job_id) for job, _ in jobs}
    expired = desk.jobs.cleanup_expired(ttl)
    due = {j.job_id for j, age in jobs if age >= 0 and j.status in (QUEUED, SUCCEEDED, FAILED)}
    assert expired == len(due)
    for job, _ in jobs:
        after = desk.jobs.read_job(job.job_id)
        if job.job_id in due:
            assert after.status is EXPIRED
            assert after.finished_at == job.finished_at
        else:
            assert after == before[job.job_id]
        if job.artifact_key is not None:
            assert desk.artifacts.exists(job.artifact_key) is (job.job_id not in due)
    for job, _ in jobs:
        # The next example begins with nothing that is still to come.
        if job.status is RUNNING:
            desk.jobs.update_status(job.job_id, FAILED)
    desk.clock.advance(timedelta(seconds=ttl + 10))
    desk.jobs.cleanup_expired(1)


@pytest.mark.shows("P-24")
def test_time_is_counted_from_the_end_of_a_job_and_from_its_creation_before_that(
    desk: Desk,
) -> None:
    finished, waiting = desk.create(n=1), desk.create(n=2)
    desk.clock.advance(DAY - SECOND)
    finished = desk.succeed(finished.job_id)
    desk.clock.advance(SECOND)
    assert desk.jobs.cleanup_expired(TTL) == 1
    assert desk.jobs.read_job(waiting.job_id).status is EXPIRED
    assert desk.jobs.read_job(finished.job_id).status is SUCCEEDED
    desk.clock.advance(DAY - 2 * SECOND)
    assert desk.jobs.cleanup_expired(TTL) == 0
    desk.clock.advance(SECOND)
    assert desk.jobs.cleanup_expired(TTL) == 1
    assert desk.stored() == []


@pytest.mark.shows("P-24")
def test_a_running_job_is_left_alone_however_old_it_is(desk: Desk) -> None:
    job = job_in(desk, RUNNING)
    desk.clock.advance(10 * DAY)
    assert desk.jobs.cleanup_expired(TTL) == 0
    assert desk.jobs.read_job(job.job_id).status is RUNNING
    # Nor one that nobody has leased for the moment.
    assert desk.engine.worker().take(job.job_id) is None
    again = desk.jobs.update_status(job.job_id, RUNNING)
    desk.jobs.close()
    assert desk.engine.get(job.job_id).leased_by is None
    assert desk.jobs.cleanup_expired(TTL) == 0
    assert desk.jobs.read_job(job.job_id).status is again.status is RUNNING


class Stuck(LocalStorage):
    """A storage that refuses to delete, while told so."""

    refuses = True

    def delete(self, ref: str) -> bool:
        if self.refuses:
            raise ArtifactWriteFailed("it does not answer", key=ref)
        return super().delete(ref)


@pytest.mark.shows("P-24")
def test_where_a_delete_fails_the_job_stays_and_is_tried_again(
    open_desk: Callable[..., Desk], tmp_path: Any
) -> None:
    storage = Stuck(tmp_path / "stuck")
    desk = open_desk(storage=storage)
    job = job_in(desk, SUCCEEDED)
    other = job_in(desk, FAILED)
    desk.clock.advance(DAY)
    assert desk.jobs.cleanup_expired(TTL) == 1, "the other one is none the worse for it"
    assert desk.jobs.read_job(other.job_id).status is EXPIRED
    assert desk.jobs.read_job(job.job_id).status is SUCCEEDED
    assert desk.artifacts.exists(job.artifact_key)
    storage.refuses = False
    assert desk.jobs.cleanup_expired(TTL) == 1
    assert desk.jobs.read_job(job.job_id).status is EXPIRED
    assert not desk.artifacts.exists(job.artifact_key)


@pytest.mark.shows("P-24")
def test_the_artifact_is_deleted_before_its_job_expires(
    open_desk: Callable[..., Desk], tmp_path: Any
) -> None:
    seen: list[str] = []

    class Watching(LocalStorage):
        def delete(self, ref: str) -> bool:
            seen.append(desk.engine.get(job.job_id).state)
            return super().delete(ref)

    desk = open_desk(storage=Watching(tmp_path / "watched"))
    job = job_in(desk, SUCCEEDED)
    desk.clock.advance(DAY)
    desk.jobs.cleanup_expired(TTL)
    assert seen == ["succeeded"]


@pytest.mark.shows("P-25")
def test_expired_records_stay_for_their_grace_and_go_with_key_and_owners(desk: Desk) -> None:
    job = desk.jobs.create_job(INVOICE, payload(), actor="ada")
    desk.jobs.create_job(INVOICE, payload(), actor="bob")
    desk.succeed(job.job_id)
    desk.clock.advance(DAY)
    assert cleanup.clean_up(desk.jobs).expired == 1
    desk.clock.advance(DAY - SECOND)
    assert cleanup.clean_up(desk.jobs).pruned == 0
    assert desk.jobs.read_job(job.job_id).status is EXPIRED
    desk.clock.advance(2 * SECOND)
    assert cleanup.clean_up(desk.jobs).pruned == 1
    with pytest.raises(JobNotFound):
        desk.jobs.read_job(job.job_id)
    assert desk.jobs.find_by_key(job.job_key) is None
    assert desk.engine.store.find_owners(from_text(job.job_id)) == []


@pytest.mark.shows("E-90", "P-21")
def test_owners_that_the_release_before_has_kept_own_their_jobs(desk: Desk) -> None:
    live, ended = desk.create(n=1), desk.create(n=2)
    desk.fail(ended.job_id)
    tables = Tables(desk.engine, SCHEMA)
    began = desk.clock.now()
    add = "INSERT INTO {schema}.pdf_owners (job_id, owner, added_at) VALUES (?, ?, ?)"
    nobodys = "0192e4a0-5b6c-4d10-8a4e-0f2b6c9d1e33"
    with tables.writing() as connection:
        for n, job_id in enumerate((ended.job_id, live.job_id, nobodys)):
            tables.execute(connection, add, job_id, "bob", began + n)
    desk.clock.advance(DAY)
    desk.engine.owners.add(ended.job_id, "bob")  # he has asked this release for it once more
    for _ in range(2):
        cleanup.prune(desk.jobs)
        assert desk.jobs.read_job(live.job_id).owners == {"bob"}
        assert desk.jobs.read_job(ended.job_id).owners == {"bob"}
    assert tables.read("SELECT job_id FROM {schema}.pdf_owners") == []
    assert len(desk.engine.jobs()) == 2
    since = [(to_datetime(began + 1), live.job_id), (to_datetime(began), ended.job_id)]
    assert desk.engine.owners.jobs("bob") == since


@pytest.mark.shows("E-90", "P-21")
def test_submitters_of_the_release_before_have_their_jobs_in_their_lists(desk: Desk) -> None:
    made = []
    for n in range(4):
        made.append(desk.jobs.create_job(INVOICE, payload(n=n), actor="ada").job_id)
        desk.clock.advance(timedelta(seconds=1))
    desk.create(n="nobody's")
    tables = Tables(desk.engine, SCHEMA)
    with tables.writing() as connection:
        # As that release has stored them; the last is of this one.
        for job_id in made[:3]:
            stored = from_text(job_id) if tables.database.name == "sqlite" else job_id
            tables.execute(connection, "DELETE FROM {schema}.owners WHERE job_id = ?", stored)
    assert [one.job_id for one in desk.engine.owners.jobs("ada")] == made[3:]
    assert desk.jobs.read_job(made[0]).owners == {"ada"}, "by its submitter"
    desk.jobs.create_job(INVOICE, payload(n=1), actor="ada")  # once more, of this release
    created = [(desk.engine.get(job_id).created_at, job_id) for job_id in reversed(made)]
    for _ in range(2):
        cleanup.prune(desk.jobs)
        assert desk.engine.owners.jobs("ada") == created
        desk.clock.advance(DAY)
    with tables.writing() as connection:
        tables.execute(connection, "DELETE FROM {schema}.owners")
    cleanup.prune(desk.jobs)
    assert desk.engine.owners.jobs("ada") == [], "what was looked at is not looked at again"


@pytest.mark.shows("P-25")
def test_owners_of_jobs_that_are_there_stay(desk: Desk) -> None:
    job = desk.jobs.create_job(INVOICE, payload(), actor="ada")
    desk.jobs.create_job(INVOICE, payload(), actor="bob")
    desk.jobs.update_status(job.job_id, RUNNING)
    desk.clock.advance(10 * DAY)
    cleanup.clean_up(desk.jobs)
    assert desk.jobs.read_job(job.job_id).owners == {"ada", "bob"}


@pytest.mark.shows("P-25", "P-7")
def test_artifacts_that_no_record_names_are_swept(desk: Desk) -> None:
    nobodys = desk.artifacts.store_pdf("019c0000-0000-7000-8000-000000000000", A_PDF)
    done = job_in(desk, SUCCEEDED)
    late = desk.artifacts.store_pdf(done.job_id, A_PDF)  # of an attempt that came too late
    failed = desk.artifacts.store_pdf(job_in(desk, FAILED).job_id, A_PDF)
    waiting = desk.artifacts.store_pdf(desk.create(n=next(numbers)).job_id, A_PDF)
    assert cleanup.sweep(desk.jobs) == 0, "they may be of attempts that are under way"
    desk.clock.advance(3 * desk.config.stage_timeout)
    young = desk.artifacts.store_pdf("019c0000-0000-7000-8000-000000000001", A_PDF)
    assert cleanup.sweep(desk.jobs) == 3
    left = set(desk.stored())
    assert left.isdisjoint({nobodys, late, failed})
    assert {done.artifact_key, waiting, young} <= left


@pytest.mark.shows("P-24")
def test_it_is_scheduled_and_runs_one_at_a_time(
    sqlite_desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, config = sqlite_desk.engine, sqlite_desk.config
    cleanup.attach(engine, config)
    (schedule,) = engine.schedules.all()
    assert (schedule.name, schedule.rule) == (cleanup.NAME, "@every 3600s")
    at_once, most, begun = 0, 0, threading.Semaphore(0)
    lock, go = threading.Lock(), threading.Event()

    def counted(jobs: Any) -> cleanup.Cleaned:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        begun.release()
        assert go.wait(120)
        with lock:
            at_once -= 1
        return cleanup.Cleaned(0, 0, 0)

    monkeypatch.setattr(cleanup, "clean_up", counted)
    ids = [engine.schedules.run(cleanup.NAME, actor="ada").id for _ in range(3)]
    from tests.scenario.doubles import settings as worker_settings

    with engine.working(worker_settings(queues=frozenset({cleanup.NAME}))):
        assert begun.acquire(timeout=120)
        go.set()
        for job_id in ids:
            assert engine.wait(job_id, timeout=timedelta(seconds=30)).state == "done"
    assert most == 1


@pytest.mark.shows("P-24")
def test_what_was_restored_to_another_moment_is_found_on_both_sides(desk: Desk) -> None:
    """Jobs of a later moment than the artifacts, then artifacts of a later moment than the jobs."""
    kept, lost = job_in(desk, SUCCEEDED), job_in(desk, SUCCEEDED)
    job_in(desk, FAILED)
    young = desk.artifacts.store_pdf("never-heard-of", A_PDF)
    assert list(cleanup.find_strays(desk.jobs)) == []
    assert lost.artifact_key is not None
    desk.artifacts.delete_pdf(lost.artifact_key)
    desk.clock.advance(DAY / 2)
    found = {(kind, job_id): why for kind, job_id, why in cleanup.find_strays(desk.jobs)}
    assert found.keys() == {
        ("artifact-missing", lost.job_id), ("artifact-without-job", "never-heard-of"),
    }  # fmt: skip
    assert lost.artifact_key in found["artifact-missing", lost.job_id]
    assert young in found["artifact-without-job", "never-heard-of"]
    assert desk.jobs.read_job(kept.job_id).status is SUCCEEDED
    cleanup.sweep(desk.jobs)
    assert [kind for kind, *_ in cleanup.find_strays(desk.jobs)] == ["artifact-missing"]
