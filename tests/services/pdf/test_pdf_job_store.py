"""The job store: seven pairs and no others, one job for one key, whatever the history."""

import threading
from collections.abc import Callable
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.services.pdf.desk import A_PDF, INVOICE, Desk, created, payload
from ulak.errors import ArtifactUnreadable, BadInput, JobNotFound, Overloaded
from ulak.services.pdf import jobs as jobs_module
from ulak.services.pdf.flow import compute_job_key
from ulak.services.pdf.jobs import InvalidTransition, PdfJobStore
from ulak.services.pdf.model import (
    MAX_RETRIES,
    TRANSIENT_ERRORS,
    PdfErrorCode,
    PdfJob,
    PdfJobStatus,
    should_retry,
)
from ulak.services.pdf.totals import SCHEMA
from ulak.tables import Tables

QUEUED, RUNNING, SUCCEEDED, FAILED, EXPIRED = PdfJobStatus
SEVEN = {
    (QUEUED, RUNNING),
    (RUNNING, SUCCEEDED),
    (RUNNING, FAILED),
    (FAILED, QUEUED),
    (QUEUED, EXPIRED),
    (SUCCEEDED, EXPIRED),
    (FAILED, EXPIRED),
}
JOB_CODES = [
    code
    for code in PdfErrorCode
    if code not in (PdfErrorCode.PDF_RENDER_UNAVAILABLE, PdfErrorCode.BACKPRESSURE_ACTIVE)
]
MINUTE = timedelta(minutes=1)

# A store is opened once for all examples: each has jobs of its own.
many = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
numbers = iter(range(10**9))


def fresh(desk: Desk) -> PdfJob:
    return desk.create(n=next(numbers))


def statuses(desk: Desk, job_id: str) -> list[str]:
    return [event.to_state for event in desk.engine.inspect.trail(job_id)]


class TestTransitions:
    """What may follow what."""

    @pytest.mark.shows("P-P1", "P-3")
    @many
    @given(
        asked=st.lists(
            st.tuples(st.sampled_from(PdfJobStatus), st.sampled_from(JOB_CODES)), max_size=12
        )
    )
    def test_only_the_seven_pairs_succeed(
        self, desk: Desk, asked: list[tuple[PdfJobStatus, PdfErrorCode]]
    ) -> None:
        """Feature: pdf-render-worker, Property 1: Job status transitions."""
        job, retried = fresh(desk), 0
        for wanted, code in asked:
            fields = {"artifact_key": f"pdfs/{job.job_id}/1.pdf"} if wanted is SUCCEEDED else {}
            if wanted is FAILED:
                fields = {"error_code": code}
            if (job.status, wanted) not in SEVEN:
                with pytest.raises(InvalidTransition):
                    desk.jobs.update_status(job.job_id, wanted, **fields)
                after = desk.jobs.read_job(job.job_id)
                assert without_heartbeat(after) == without_heartbeat(job), "untouched"
                continue
            was, job = job, desk.jobs.update_status(job.job_id, wanted, **fields)
            expected = wanted
            if wanted is FAILED and code in TRANSIENT_ERRORS and retried < MAX_RETRIES:
                # It is retried in the same commit, through `failed`.
                expected, retried = QUEUED, retried + 1
                assert statuses(desk, job.job_id)[-2:] == ["failed", "queued"]
            elif (was.status, wanted) == (FAILED, QUEUED):
                retried = 0  # somebody asked for it: a new round of attempts
            assert job.status is expected
            assert job.retry_count == was.retry_count + (expected is QUEUED)
        if job.status is RUNNING:
            desk.jobs.update_status(job.job_id, FAILED)

    @pytest.mark.shows("P-4")
    def test_each_transition_sets_its_times(self, desk: Desk) -> None:
        created = desk.create()
        assert (created.status, created.started_at, created.finished_at) == (QUEUED, None, None)
        desk.clock.advance(MINUTE)
        running = desk.jobs.update_status(created.job_id, RUNNING)
        assert running.started_at == created.created_at + MINUTE
        assert running.finished_at is None
        desk.clock.advance(timedelta(seconds=5))
        key = desk.artifacts.store_pdf(created.job_id, b"%PDF")
        done = desk.jobs.update_status(created.job_id, SUCCEEDED, artifact_key=key)
        assert done.artifact_key == key
        assert done.started_at == running.started_at
        assert done.finished_at == created.created_at + MINUTE + timedelta(seconds=5)
        assert done.created_at == created.created_at
        assert done.error_code is None

    @pytest.mark.shows("P-4", "P-6")
    def test_a_retry_clears_what_the_failed_attempt_had_set(self, desk: Desk) -> None:
        job = desk.create()
        desk.clock.advance(MINUTE)
        again = desk.fail(job.job_id, PdfErrorCode.NAVIGATION_TIMEOUT)
        assert (again.status, again.retry_count) == (QUEUED, 1)
        assert (again.started_at, again.finished_at, again.error_code) == (None, None, None)
        assert statuses(desk, job.job_id) == ["queued", "running", "failed", "queued"]
        failed, retried = desk.engine.inspect.trail(job.job_id)[-2:]
        assert failed.at == retried.at, "one commit"

    @pytest.mark.shows("P-4")
    def test_a_failure_keeps_its_code_and_its_detail(self, desk: Desk) -> None:
        job = desk.create()
        desk.jobs.update_status(job.job_id, RUNNING)
        failed = desk.jobs.update_status(
            job.job_id, FAILED, error_code="UNKNOWN", error_detail="artifact_write_failed"
        )
        assert failed.error_code is PdfErrorCode.UNKNOWN
        assert failed.error_detail == "artifact_write_failed"
        assert failed.finished_at is not None
        expired = desk.jobs.update_status(job.job_id, EXPIRED)
        assert expired.error_code is PdfErrorCode.UNKNOWN, "why it failed stays true"

    @pytest.mark.shows("P-5")
    def test_of_two_who_claim_a_job_one_has_it(self, open_desk: Callable[..., Desk]) -> None:
        first = open_desk()
        second = open_desk(clock=first.clock)
        job = first.create()
        begin, had, refused = threading.Barrier(2), [], []

        def claim(desk: Desk) -> None:
            begin.wait()
            try:
                had.append((desk, desk.jobs.update_status(job.job_id, RUNNING)))
            except InvalidTransition as error:
                refused.append(error)

        threads = [threading.Thread(target=claim, args=[desk]) for desk in (first, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ((winner, _),) = had
        assert len(refused) == 1
        assert statuses(first, job.job_id) == ["queued", "running"]
        loser = second if winner is first else first
        with pytest.raises(InvalidTransition, match="another worker"):
            loser.jobs.update_status(job.job_id, SUCCEEDED, artifact_key="pdfs/a/1.pdf")
        winner.jobs.update_status(job.job_id, FAILED)

    @pytest.mark.shows("P-7")
    def test_a_late_writer_is_refused_once_its_lease_has_lapsed(
        self, open_desk: Callable[..., Desk]
    ) -> None:
        late = open_desk()
        other = open_desk(clock=late.clock)
        job = late.create()
        mine = late.jobs.update_status(job.job_id, RUNNING)
        late.clock.advance(late.config.lease + MINUTE)
        # Whoever looks next finds the lease lapsed: that attempt has failed, and is retried.
        assert other.engine.worker().take(job.job_id) is None
        reaped = other.jobs.read_job(job.job_id)
        assert (reaped.status, reaped.retry_count) == (QUEUED, 1)
        codes = [e.code for e in other.engine.inspect.trail(job.job_id) if e.to_state == "failed"]
        assert codes == ["NAVIGATION_TIMEOUT"]
        theirs = other.jobs.update_status(job.job_id, RUNNING)
        assert theirs.attempt_id > mine.attempt_id
        with pytest.raises(InvalidTransition):
            late.jobs.update_status(job.job_id, SUCCEEDED, artifact_key="pdfs/late/1.pdf")
        done = other.jobs.update_status(job.job_id, SUCCEEDED, artifact_key="pdfs/other/1.pdf")
        assert done.artifact_key == "pdfs/other/1.pdf"

    def test_success_needs_an_artifact(self, sqlite_desk: Desk) -> None:
        job = sqlite_desk.create()
        sqlite_desk.jobs.update_status(job.job_id, RUNNING)
        with pytest.raises(BadInput, match="artifact_key"):
            sqlite_desk.jobs.update_status(job.job_id, SUCCEEDED)
        assert sqlite_desk.jobs.read_job(job.job_id).status is RUNNING
        sqlite_desk.jobs.update_status(job.job_id, FAILED)

    def test_a_running_job_tells_when_its_worker_was_heard_of(self, sqlite_desk: Desk) -> None:
        job = sqlite_desk.create()
        assert job.heartbeat_at is None
        running = sqlite_desk.jobs.update_status(job.job_id, RUNNING)
        assert running.heartbeat_at is not None
        sqlite_desk.jobs.update_status(job.job_id, FAILED)

    @pytest.mark.shows("P-51")
    def test_a_queued_job_that_is_cancelled_expires(self, desk: Desk) -> None:
        job = desk.create()
        assert desk.jobs.cancel(job.job_id, actor="ada").status is EXPIRED
        with pytest.raises(InvalidTransition):
            desk.jobs.cancel(job.job_id, actor="ada")
        assert not created(desk.jobs, INVOICE, payload()).is_repeat


def without_heartbeat(job: PdfJob) -> dict[str, Any]:
    """Everything but what a lease does by itself."""
    return {name: getattr(job, name) for name in job.__slots__ if name != "heartbeat_at"}


class TestRetries:
    """Which failures are worth another attempt."""

    @pytest.mark.shows("P-P3", "P-15")
    @many
    @given(codes=st.lists(st.sampled_from(JOB_CODES), min_size=1, max_size=5))
    def test_a_retry_follows_exactly_a_transient_code_while_retries_are_left(
        self, desk: Desk, codes: list[PdfErrorCode]
    ) -> None:
        """Feature: pdf-render-worker, Property 3: Retry decision."""
        job = fresh(desk)
        for retries, code in enumerate(codes):
            expected = code in ("BROWSER_LAUNCH_FAILED", "NAVIGATION_TIMEOUT") and retries < 2
            assert should_retry(code, retries) is expected
            job = desk.fail(job.job_id, code)
            assert (job.status is QUEUED) is expected
            if not expected:
                assert (job.status, job.error_code, job.retry_count) == (FAILED, code, retries)
                return
            assert job.retry_count == retries + 1

    @pytest.mark.shows("P-15")
    def test_retries_are_delayed_and_nobody_waits_for_them(
        self, open_desk: Callable[..., Desk]
    ) -> None:
        from dataclasses import replace

        usual = open_desk()
        config = replace(
            usual.config, retry_base=timedelta(seconds=1000), retry_max=timedelta(seconds=3000)
        )
        desk = open_desk(config=config)
        delays = []
        for n in range(8):
            job = desk.create(n=n)
            desk.fail(job.job_id, PdfErrorCode.NAVIGATION_TIMEOUT)
            row = desk.engine.get(job.job_id)
            delays.append((row.not_before - row.changed_at).total_seconds())
        assert all(0 <= delay <= 1000 for delay in delays), "full jitter, of 1000 s at first"
        assert len(set(delays)) > 1
        with pytest.raises(InvalidTransition, match="not due"):
            desk.jobs.update_status(job.job_id, RUNNING)
        desk.clock.advance(timedelta(seconds=1000))
        assert desk.jobs.update_status(job.job_id, RUNNING).status is RUNNING
        desk.jobs.update_status(job.job_id, FAILED)


class TestKeys:
    """One key, one job."""

    @pytest.mark.shows("P-P4", "P-19")
    @many
    @given(
        history=st.lists(
            st.sampled_from(["run", "succeed", "fail", "expire", "lose", "retry"]), max_size=10
        )
    )
    def test_a_repeat_answers_the_job_that_is_alive_and_else_a_new_one(
        self, desk: Desk, history: list[str]
    ) -> None:
        """Feature: pdf-render-worker, Property 4: Idempotent job creation."""
        given_payload = payload(n=next(numbers))
        ids = {""}
        job, has_artifact = desk.jobs.create_job(INVOICE, given_payload), False
        for step in [*history, "end"]:
            ids.add(job.job_id)
            if step in ("run", "succeed", "fail") and job.status is QUEUED:
                desk.jobs.update_status(job.job_id, RUNNING)
            if step == "succeed" and desk.jobs.read_job(job.job_id).status is RUNNING:
                key = desk.artifacts.store_pdf(job.job_id, b"%PDF")
                desk.jobs.update_status(job.job_id, SUCCEEDED, artifact_key=key)
                has_artifact = True
            if step == "fail" and desk.jobs.read_job(job.job_id).status is RUNNING:
                desk.jobs.update_status(job.job_id, FAILED)
            if step == "lose" and has_artifact:
                assert desk.artifacts.delete_pdf(desk.jobs.read_job(job.job_id).artifact_key)
                has_artifact = False
            now = desk.jobs.read_job(job.job_id).status
            if step == "expire" and now not in (RUNNING, EXPIRED):
                now = desk.jobs.update_status(job.job_id, EXPIRED).status
            lives = now in (QUEUED, RUNNING) or (now is SUCCEEDED and has_artifact)
            known = desk.jobs.find_repeat(desk.jobs.new_job(INVOICE, given_payload))
            assert (known is not None) is lives
            made = created(desk.jobs, INVOICE, given_payload)
            assert made.is_repeat is lives
            assert (made.job.job_id == job.job_id) is lives
            if not lives:
                assert made.job.job_id not in ids
                assert made.job.status is QUEUED
                assert desk.jobs.read_job(job.job_id).status in (FAILED, EXPIRED)
                has_artifact = False
            assert desk.jobs.find_by_key(made.job.job_key) == made.job
            job = made.job
        if job.status is RUNNING:
            desk.jobs.update_status(job.job_id, FAILED)

    @pytest.mark.shows("P-17", "P-18")
    def test_a_repeat_queues_nothing_while_the_job_lives(self, desk: Desk) -> None:
        job = desk.create()
        assert desk.jobs.create_job(INVOICE, payload()).job_id == job.job_id
        desk.jobs.update_status(job.job_id, RUNNING)
        assert desk.jobs.create_job(INVOICE, payload()).job_id == job.job_id
        key = desk.artifacts.store_pdf(job.job_id, b"%PDF")
        desk.jobs.update_status(job.job_id, SUCCEEDED, artifact_key=key)
        again = created(desk.jobs, INVOICE, payload())
        assert (again.job.job_id, again.is_repeat) == (job.job_id, True)
        assert len(desk.engine.jobs()) == 1

    @pytest.mark.shows("P-18")
    def test_where_the_artifact_is_gone_the_old_job_expires_and_a_new_one_is_made(
        self, desk: Desk
    ) -> None:
        job = desk.succeed(desk.create().job_id)
        desk.artifacts.delete_pdf(job.artifact_key)
        made = created(desk.jobs, INVOICE, payload())
        assert not made.is_repeat
        assert made.job.job_id != job.job_id
        assert desk.jobs.read_job(job.job_id).status is EXPIRED

    @pytest.mark.shows("P-18")
    @pytest.mark.parametrize("damage", ["cut", "changed", "another"])
    def test_where_the_artifact_is_damaged_it_is_made_anew(
        self, sqlite_desk: Desk, tmp_path: Path, damage: str
    ) -> None:
        desk = sqlite_desk
        job_id = desk.create().job_id
        desk.jobs.update_status(job_id, RUNNING)
        key, digest = desk.artifacts.store_pdf(job_id, A_PDF), sha256(A_PDF).hexdigest()
        desk.jobs.update_status(job_id, SUCCEEDED, artifact_key=key, sha256=digest)
        assert created(desk.jobs, INVOICE, payload()).is_repeat
        file = tmp_path / "artifacts" / key
        stored = file.read_bytes()
        if damage == "cut":
            file.write_bytes(stored[:-9])
        elif damage == "changed":
            file.write_bytes(stored.replace(b"1.4", b"1.5"))
        else:  # whole by its own seal
            desk.storage.put_bytes(key, A_PDF[::-1], "application/pdf")
        made = created(desk.jobs, INVOICE, payload())
        assert (made.is_repeat, desk.jobs.read_job(job_id).status) == (False, EXPIRED)
        assert desk.succeed(made.job.job_id).status is SUCCEEDED
        assert created(desk.jobs, INVOICE, payload()).is_repeat

    def test_where_the_storage_does_not_answer_no_artifact_counts_as_damaged(
        self, sqlite_desk: Desk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job = sqlite_desk.succeed(sqlite_desk.create().job_id)

        def down(key: str) -> Any:
            raise ArtifactUnreadable("the storage does not answer")

        monkeypatch.setattr(sqlite_desk.storage, "get_bytes", down)
        monkeypatch.setattr(sqlite_desk.storage, "exists", down)
        with pytest.raises(ArtifactUnreadable):
            sqlite_desk.jobs.create_job(INVOICE, payload())
        assert sqlite_desk.jobs.read_job(job.job_id).status is SUCCEEDED

    @pytest.mark.shows("P-20")
    def test_simultaneous_creates_make_one_job(self, open_desk: Callable[..., Desk]) -> None:
        first = open_desk()
        desks = [first, open_desk(clock=first.clock)]
        begin, made = threading.Barrier(8), []

        def create(desk: Desk) -> None:
            begin.wait()
            made.append(created(desk.jobs, INVOICE, payload(n=1)))

        threads = [threading.Thread(target=create, args=[desks[n % 2]]) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({one.job.job_id for one in made}) == 1
        assert sorted(one.is_repeat for one in made) == [False] + [True] * 7
        assert len(first.engine.jobs()) == 1

    @pytest.mark.shows("P-20", "P-18")
    def test_simultaneous_creates_over_a_lost_artifact_make_one_job(self, desk: Desk) -> None:
        lost = desk.succeed(desk.create(n=1).job_id)
        desk.artifacts.delete_pdf(lost.artifact_key)
        begin, made = threading.Barrier(6), []

        def create() -> None:
            begin.wait()
            made.append(created(desk.jobs, INVOICE, payload(n=1)))

        threads = [threading.Thread(target=create) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (job_id,) = {one.job.job_id for one in made}
        assert job_id != lost.job_id
        assert [one.is_repeat for one in made].count(False) == 1

    @pytest.mark.shows("P-21")
    def test_a_second_principal_of_the_tenant_becomes_an_owner(self, desk: Desk) -> None:
        first = desk.jobs.create_job(INVOICE, payload(), tenant="acme", actor="ada")
        assert first.owners == {"ada"}
        again = created(desk.jobs, INVOICE, payload(), tenant="acme", actor="bob")
        assert again.is_repeat
        assert again.job.owners == {"ada", "bob"}
        assert "bob" in desk.jobs.read_job(first.job_id).owners
        assert "eve" not in desk.jobs.read_job(first.job_id).owners

    @pytest.mark.shows("P-21")
    def test_no_other_tenant_can_observe_a_job(self, desk: Desk) -> None:
        ours = desk.jobs.create_job(INVOICE, payload(), tenant="acme", actor="ada")
        theirs = created(desk.jobs, INVOICE, payload(), tenant="rival", actor="ada")
        assert not theirs.is_repeat
        assert theirs.job.job_id != ours.job_id
        assert desk.jobs.find_by_key(ours.job_key, tenant="third") is None
        said = []
        for unknown in (ours.job_id, "019c0000-0000-7000-8000-000000000000", "no id at all"):
            with pytest.raises(JobNotFound) as refused:
                desk.jobs.read_job(unknown, tenant="rival")
            said.append(str(refused.value).replace(unknown, "*"))
        assert len(set(said)) == 1

    @pytest.mark.shows("P-19")
    def test_a_retry_by_hand_is_refused_while_a_newer_job_has_the_key(self, desk: Desk) -> None:
        old = desk.fail(desk.create().job_id)
        new = desk.create()
        assert new.job_id != old.job_id
        with pytest.raises(InvalidTransition, match="key"):
            desk.jobs.update_status(old.job_id, QUEUED)
        assert desk.jobs.read_job(old.job_id) == old

    def test_ids_tell_nothing_about_each_other(self, sqlite_desk: Desk) -> None:
        ids = [sqlite_desk.create(n=n).job_id for n in range(20)]
        assert ids != sorted(ids)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False,
                                                                      allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
payloads = st.dictionaries(st.text(max_size=8), json_values, max_size=5)


def shuffled(value: Any) -> Any:
    """The same, with the keys of every object the other way round."""
    if isinstance(value, dict):
        return {key: shuffled(inner) for key, inner in reversed(value.items())}
    return [shuffled(inner) for inner in value] if isinstance(value, list) else value


def exact(value: Any) -> Any:
    """A value that compares as it would be printed."""
    if isinstance(value, dict):
        return ("object", tuple(sorted((key, exact(inner)) for key, inner in value.items())))
    if isinstance(value, list):
        return ("list", tuple(exact(inner) for inner in value))
    return (type(value).__name__, repr(value))


class TestTheKey:
    """What makes two requests the same."""

    @pytest.mark.shows("P-P2", "P-12")
    @settings(max_examples=200, deadline=None)
    @given(first=payloads, second=payloads, name=st.sampled_from(["invoice", "report"]))
    def test_it_is_a_pure_function_of_name_and_payload(
        self, first: dict[str, Any], second: dict[str, Any], name: str
    ) -> None:
        """Feature: pdf-render-worker, Property 2: Deterministic job key."""
        key = compute_job_key(name, first)
        assert len(key) == 64
        assert key == compute_job_key(name, first) == compute_job_key(name, shuffled(first))
        assert (key == compute_job_key(name, second)) is (exact(first) == exact(second))
        assert key != compute_job_key(name + "2", first)

    @pytest.mark.shows("P-12")
    def test_values_of_other_types_are_other_values(self) -> None:
        values = [1, 1.0, "1", True, "true", None, "null", [1], {"1": 1}, 0.0, -0.0, "", [], {}]
        assert len({compute_job_key("a", {"v": value}) for value in values}) == len(values)

    @pytest.mark.shows("P-12")
    def test_it_is_the_digest_of_canonical_json(self) -> None:
        from hashlib import sha256

        text = '{"payload":{"b":[1,true],"ş":"ğ<"},"template_name":"invoice"}'
        key = compute_job_key("invoice", {"ş": "ğ<", "b": [1, True]})
        assert key == sha256(text.encode()).hexdigest()

    @pytest.mark.shows("P-12")
    @pytest.mark.parametrize(
        "value",
        [
            float("nan"), float("inf"), -float("inf"), {1: "a"}, {"a": {None: 1}}, "\ud800",
            {"\udfff": 1}, b"bytes", {1, 2}, [[float("nan")]],
        ],
    )  # fmt: skip
    def test_what_is_no_json_is_refused(self, sqlite_desk: Desk, value: Any) -> None:
        with pytest.raises(BadInput):
            sqlite_desk.jobs.create_job(INVOICE, payload(v=value))
        assert sqlite_desk.engine.jobs() == []

    @pytest.mark.shows("P-12")
    def test_too_many_levels_are_refused(self) -> None:
        deep: Any = 1
        for _ in range(5000):
            deep = [deep]
        with pytest.raises(BadInput, match="levels"):
            compute_job_key("a", {"v": deep})

    @pytest.mark.shows("P-12", "P-13")
    def test_delivery_options_are_no_part_of_it(self, sqlite_desk: Desk) -> None:
        first = sqlite_desk.jobs.create_job(INVOICE, payload(), timeout_s=20, correlation_id="a")
        again = created(sqlite_desk.jobs, INVOICE, payload(), timeout_s=30, correlation_id="b")
        assert again.is_repeat
        assert again.job == first
        with pytest.raises(BadInput, match="timeout"):
            sqlite_desk.jobs.create_job(INVOICE, payload(n=2), timeout_s=5)


class TestReading:
    """What was created can be read."""

    @pytest.mark.shows("P-P8")
    @many
    @given(
        variables=payloads,
        tenant=st.text("abc", max_size=3),
        actor=st.text("xyz", max_size=3),
        timeout=st.none() | st.integers(6, 300),
        wait=st.integers(0, 10**6),
    )
    def test_what_is_created_is_read_back(
        self,
        desk: Desk,
        variables: dict[str, Any],
        tenant: str,
        actor: str,
        timeout: int | None,
        wait: int,
    ) -> None:
        """Feature: pdf-render-worker, Property 8: Job creation round trip."""
        desk.clock.advance(timedelta(microseconds=wait))
        now = desk.clock.now()
        given_payload = payload(n=next(numbers), variables=storable(variables))
        made = desk.jobs.create_job(
            INVOICE, given_payload, tenant=tenant, actor=actor, timeout_s=timeout
        )
        desk.clock.advance(MINUTE)
        read = desk.jobs.read_job(made.job_id, tenant=tenant)
        assert read == made
        assert (read.status, read.template_name, read.tenant_id) == (QUEUED, INVOICE, tenant)
        assert round(read.created_at.timestamp() * 10**6) == now
        assert exact(read.payload) == exact(given_payload)
        assert read.job_key == compute_job_key(INVOICE, given_payload)
        assert read.owners == ({actor} if actor else set())

    @pytest.mark.shows("P-34")
    def test_the_payload_is_hidden_on_every_other_surface(self, sqlite_desk: Desk) -> None:
        job = sqlite_desk.create(name="Grace Hopper")
        shown = str(sqlite_desk.engine.inspect.payload(job.job_id)) + repr(job)
        assert "Hopper" not in shown
        assert job.job_key not in str(sqlite_desk.engine.inspect.payload(job.job_id))
        assert sqlite_desk.jobs.read_job(job.job_id).payload["variables"] == {
            "name": "Grace Hopper"
        }

    def test_jobs_of_other_flows_are_not_found(self, sqlite_desk: Desk) -> None:
        from ulak import Flow

        def nothing(run: object) -> None: ...

        other = sqlite_desk.engine.add(Flow.steps("other", nothing))
        job = sqlite_desk.engine.submit(other, None)
        with pytest.raises(JobNotFound):
            sqlite_desk.jobs.read_job(job.id)


def storable(value: Any) -> Any:
    """Integers as an engine keeps them: whole numbers of 64 bits."""
    if isinstance(value, dict):
        return {key: storable(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [storable(inner) for inner in value]
    big = isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 2**63
    return value % 2**63 if big else value


OLD_ROW = (
    "INSERT INTO {schema}.pdf_backpressure "
    "(id, active, retry_after_seconds, since, correlation_id) VALUES (1, ?, ?, ?, ?)"
)


class TestBackpressure:
    """The flag of load control."""

    @pytest.mark.shows("P-40")
    def test_it_is_seen_by_every_process_and_outlives_a_restart(
        self, open_desk: Callable[..., Desk]
    ) -> None:
        first, second = open_desk(), open_desk()
        assert not second.jobs.backpressure().active
        first.jobs.set_backpressure(True, 17, correlation_id="c-1")
        said = second.jobs.backpressure()
        assert (said.active, said.retry_after_seconds) == (True, 17)
        assert said.correlation_id == "c-1"
        assert said.since is not None
        first.close()
        assert open_desk().jobs.backpressure().active
        second.jobs.set_backpressure(False)
        assert not open_desk().jobs.backpressure().active

    @pytest.mark.shows("P-40")
    def test_a_repeat_of_a_known_job_can_be_told_from_a_new_one(self, desk: Desk) -> None:
        job = desk.jobs.create_job(INVOICE, payload(n=1), actor="ada")
        known = desk.jobs.find_repeat(desk.jobs.new_job(INVOICE, payload(n=1)), actor="bob")
        assert known is not None
        assert (known.job_id, known.owners) == (job.job_id, {"ada", "bob"})
        assert desk.jobs.find_repeat(desk.jobs.new_job(INVOICE, payload(n=2)), actor="bob") is None
        assert len(desk.engine.jobs()) == 1

    @pytest.mark.shows("P-40", "E-73")
    def test_it_is_a_stop_of_the_flow_which_refuses_at_every_door(self, desk: Desk) -> None:
        known = desk.create(n=1)
        desk.jobs.set_backpressure(True, 17, correlation_id="c-1")
        with pytest.raises(Overloaded) as refused:
            desk.create(n=2)
        assert refused.value.retry_after == timedelta(seconds=17)
        assert desk.create(n=1).job_id == known.job_id
        [stop] = desk.engine.flow_control.stops()
        assert (stop.flow, stop.tenant, stop.note) == ("pdf", "*", "c-1")
        desk.jobs.set_backpressure(False)
        desk.jobs.set_backpressure(False)
        assert desk.create(n=2).status is QUEUED

    @pytest.mark.shows("P-40", "E-73")
    def test_one_tenant_can_be_stopped_as_every_flow_can(self, desk: Desk) -> None:
        desk.engine.flow_control.stop_accepting("pdf", tenant="acme", retry_after=9, actor="ada")
        assert not desk.jobs.backpressure().active
        for tenant, active in (("acme", True), ("globex", False)):
            refusal = desk.jobs.find_refusal(tenant)
            assert isinstance(refusal, Overloaded) is active
        with pytest.raises(Overloaded):
            desk.jobs.create_job(INVOICE, payload(), tenant="acme")
        assert desk.jobs.create_job(INVOICE, payload(), tenant="globex").status is QUEUED

    @pytest.mark.shows("P-40", "E-90")
    @pytest.mark.parametrize("active", [1, 0])
    def test_what_the_release_before_has_set_goes_on_to_hold(
        self, open_desk: Callable[..., Desk], active: int
    ) -> None:
        """That one had a table of its own for it."""
        first = open_desk()
        tables = Tables(first.engine, SCHEMA)
        with tables.writing() as connection:
            tables.execute(connection, OLD_ROW, active, 17, 1_790_000_000_000_000, "c-1")
        for _ in range(2):
            desk = open_desk()
            if active:
                with pytest.raises(Overloaded):
                    desk.create(n=1)
            else:
                assert desk.create(n=1).status is QUEUED
            said = desk.jobs.backpressure()
            assert said.active is bool(active)
            told = (said.retry_after_seconds, said.correlation_id)
            assert told == ((17, "c-1") if active else (1, ""))
        first.jobs.set_backpressure(False)
        assert not open_desk().jobs.backpressure().active
        assert open_desk().create(n=2).status is QUEUED

    def test_callers_are_told_to_wait_at_least_a_second(self, sqlite_desk: Desk) -> None:
        with pytest.raises(BadInput):
            sqlite_desk.jobs.set_backpressure(True, 0)

    def test_in_memory_two_stores_of_an_engine_see_the_same(self, tmp_path: Path) -> None:
        desk = Desk("memory://", tmp_path)
        beside = PdfJobStore(desk.engine, desk.artifacts, desk.config)
        desk.jobs.set_backpressure(True, 3)
        assert beside.backpressure().retry_after_seconds == 3
        with pytest.raises(Overloaded):
            beside.create_job(INVOICE, payload(), actor="ada")
        beside.set_backpressure(False)
        job = desk.jobs.create_job(INVOICE, payload(), actor="ada")
        beside.create_job(INVOICE, payload(), actor="bob")
        assert desk.jobs.read_job(job.job_id).owners == {"ada", "bob"}
        other = Desk("memory://", tmp_path)
        assert not other.jobs.backpressure().active


class TestTheQueue:
    """What tells workers of a job."""

    @pytest.mark.shows("P-39", "P-8")
    def test_a_queue_that_cannot_be_told_loses_no_job(
        self, sqlite_desk: Desk, caplog: pytest.LogCaptureFixture
    ) -> None:
        def broken(job_id: str) -> None:
            raise ConnectionError("no queue")

        store = PdfJobStore(
            sqlite_desk.engine, sqlite_desk.artifacts, sqlite_desk.config, enqueue=broken
        )
        made = store.create_job(INVOICE, payload())
        assert made.status is QUEUED
        assert [record.name for record in caplog.records] == [jobs_module.log.name]
        assert sqlite_desk.jobs.update_status(made.job_id, RUNNING).status is RUNNING
        sqlite_desk.jobs.update_status(made.job_id, FAILED)

    def test_a_queue_of_another_make_is_told_of_new_jobs_alone(self, sqlite_desk: Desk) -> None:
        told: list[str] = []
        store = PdfJobStore(
            sqlite_desk.engine, sqlite_desk.artifacts, sqlite_desk.config, enqueue=told.append
        )
        job = store.create_job(INVOICE, payload())
        store.create_job(INVOICE, payload())
        assert told == [job.job_id]

    @pytest.mark.shows("P-8")
    def test_a_sweep_tells_again_of_what_a_queue_may_have_lost(self, desk: Desk) -> None:
        told: list[str] = []
        store = PdfJobStore(desk.engine, desk.artifacts, desk.config, enqueue=told.append)
        lost = store.create_job(INVOICE, payload(n=1))
        running = store.create_job(INVOICE, payload(n=2))
        desk.jobs.update_status(running.job_id, RUNNING)
        desk.clock.advance(desk.config.sweep)
        young = store.create_job(INVOICE, payload(n=3))
        told.clear()
        assert store.sweep_queue() == 1
        assert told == [lost.job_id]
        # Whoever is told twice finds the second time nothing to do.
        assert desk.succeed(lost.job_id).status is SUCCEEDED
        assert desk.engine.worker().take(lost.job_id) is None
        assert desk.jobs.read_job(young.job_id).status is QUEUED
