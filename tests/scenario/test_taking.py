"""One job by its id: taken by hand, run by a worker that is told which, or ended by a program."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

import ulak
from tests.scenario.doubles import SOON, engine_on, eventually, kinds, settings, store_of
from ulak import Backoff, Dedup, Engine, Flow, Lifecycle, Run
from ulak.errors import JobNotFound, NotSupported, StaleJob, TransitionNotAllowed

FAR = datetime(2100, 1, 1, tzinfo=UTC)
UNKNOWN_ID = "019c0000-0000-7000-8000-000000000000"


class Counted:
    """A resource."""


class Lost(Exception):
    """Worth another attempt."""

    code = "LOST"


def printing(*, retries: int = 2, on_lapse: str | None = None) -> Flow[dict[str, int]]:
    """A flow like that of rendering: every run stands in a state of its own."""
    flow: Flow[dict[str, int]] = Flow(
        "print",
        Lifecycle(
            "queued",
            {
                "queued": ["running", "expired"],
                "running": ["printed", "failed"],
                "failed": ["queued", "expired"],
                "printed": ["expired"],
            },
            done="printed",
            cancelled="expired",
        ),
        payload=dict,
        retry=Backoff(retries, first=timedelta(0)),
        transient=[Lost],
        permanent=[Exception],
        retry_via="failed",
        on_lapse=on_lapse,
        dedup=Dedup(until=["failed", "expired"]),
    )

    @flow.stage("queued", during="running", to="printed")
    async def work(run: Run[dict[str, int]]) -> int:
        return run.payload["n"] + 1

    return flow


@pytest.fixture
def flow() -> Flow[dict[str, int]]:
    return printing()


@pytest.fixture
def engine(jobs_url: str, flow: Flow[dict[str, int]]) -> Iterator[Engine]:
    with engine_on(store_of(jobs_url), flow) as made:
        yield made
        assert made.inspect.verify() == []


def states(engine: Engine, job: ulak.Job) -> list[str]:
    return [event.to_state for event in engine.inspect.trail(job.id)]


class TestTaking:
    """Whoever takes a job has it alone, and ends it as its stage would."""

    @pytest.mark.shows("P-5")
    def test_of_many_who_take_a_job_one_has_it(
        self, engine: Engine, flow: Flow[dict[str, int]]
    ) -> None:
        job = engine.submit(flow, {"n": 1})
        begin, had = threading.Barrier(8), []

        def take() -> None:
            begin.wait()
            if (attempt := engine.worker().take(job.id)) is not None:
                had.append(attempt)

        threads = [threading.Thread(target=take) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (attempt,) = had
        assert attempt.payload == {"n": 1}
        assert engine.get(job.id).state == "running"
        assert attempt.finish({"by": "hand"}).state == "printed"
        assert engine.inspect.result(job.id) == {"by": "hand"}
        assert states(engine, job) == ["queued", "running", "printed"]
        assert engine.worker().take(job.id) is None, "it has ended"

    def test_a_failure_is_retried_through_the_state_between_and_then_given_up(
        self, engine: Engine, flow: Flow[dict[str, int]]
    ) -> None:
        job = engine.submit(flow, {"n": 1})
        for _ in range(3):
            attempt = engine.worker().take(job.id)
            assert attempt is not None
            attempt.fail(Lost())
        again = ["running", "failed", "queued"]
        assert states(engine, job) == ["queued", *again, *again, "running", "failed"]
        assert engine.get(job.id).code == "LOST"

    def test_what_is_given_back_can_be_taken_again(
        self, engine: Engine, flow: Flow[dict[str, int]]
    ) -> None:
        job = engine.submit(flow, {"n": 1})
        first = engine.worker().take(job.id)
        assert first is not None
        first.give_back()
        second = engine.worker().take(job.id)
        assert second is not None
        assert second.token > first.token
        with pytest.raises(StaleJob, match="its lease was lost"):
            first.finish()
        assert second.finish().state == "printed"

    def test_a_worker_leaves_alone_what_somebody_has_taken(
        self, engine: Engine, flow: Flow[dict[str, int]]
    ) -> None:
        job, other = (engine.submit(flow, {"n": n}) for n in (1, 2))
        attempt = engine.worker().take(job.id, name="olga")
        assert attempt is not None
        with engine.working(settings()):
            engine.wait(other.id, timeout=SOON)
            assert engine.get(job.id).leased_by is not None
            assert "olga" in str(engine.get(job.id).leased_by)
            attempt.finish(7)
        assert engine.result(job.id) == 7

    def test_a_job_that_is_not_due_or_not_there_is_not_taken(
        self, engine: Engine, flow: Flow[dict[str, int]]
    ) -> None:
        job = engine.submit(flow, {"n": 1}, after=timedelta(hours=1))
        assert engine.worker().take(job.id) is None
        with pytest.raises(JobNotFound):
            engine.worker().take(UNKNOWN_ID)


def test_a_job_whose_taker_died_counts_the_lapse_as_its_flow_says(jobs_url: str) -> None:
    flow = printing(on_lapse="LOST")
    with engine_on(store_of(jobs_url), flow) as engine:
        job = engine.submit(flow, {"n": 1})
        attempt = engine.worker(ulak.WorkerSettings(lease=timedelta(seconds=1))).take(job.id)
        assert attempt is not None
        attempt._lease.stop()  # as if its process had died: nobody renews any more
        eventually(
            lambda: engine.worker().take(job.id) is None and engine.get(job.id).state == "queued"
        )
        lapsed = ["submitted", "entered", "lapsed", "taken", "failed", "retry"]
        assert kinds(engine, job) == lapsed
        assert states(engine, job)[-2:] == ["failed", "queued"]
        with pytest.raises(StaleJob):
            attempt.finish(1)
        assert engine.inspect.verify() == []


@pytest.mark.shows("P-8")
def test_a_worker_that_is_told_which_job_runs_that_one_and_once(
    engine: Engine, flow: Flow[dict[str, int]]
) -> None:
    job, other = (engine.submit(flow, {"n": n}) for n in (1, 2))
    assert engine.worker(settings()).work_on(job.id).state == "printed"
    assert engine.result(job.id) == 2
    assert engine.worker(settings()).work_on(job.id).state == "printed", (
        "a message that comes twice"
    )
    assert states(engine, job) == ["queued", "running", "printed"]
    assert engine.get(other.id).state == "queued"
    with pytest.raises(JobNotFound):
        engine.worker(settings()).work_on(UNKNOWN_ID)


def test_a_paused_job_is_not_run_by_a_worker_that_is_told_of_it(
    engine: Engine, flow: Flow[dict[str, int]]
) -> None:
    job = engine.submit(flow, {"n": 1})
    for pause in ({"queue": "print"}, {"flow": "print"}):
        engine.flow_control.pause(**pause, actor="olga")
        assert engine.worker(settings()).work_on(job.id).state == "queued"
        engine.flow_control.resume(**pause, actor="olga")
    assert engine.worker(settings()).work_on(job.id).state == "printed"


def test_a_worker_stays_for_all_the_jobs_that_it_is_told_of(
    engine: Engine, flow: Flow[dict[str, int]]
) -> None:
    jobs = [engine.submit(flow, {"n": n}) for n in (1, 2, 3)]
    left_at, opened, lanes = [], [], []

    @engine.resource(Counted)
    @asynccontextmanager
    async def count() -> AsyncIterator[Counted]:
        opened.append(1)
        yield Counted()

    async def told() -> AsyncIterator[str]:
        lanes.extend(row.lanes for row in engine.store.workers())
        for job_id in (jobs[1].id, UNKNOWN_ID, jobs[1].id, jobs[0].id):
            yield job_id
            left_at.append([engine.get(job.id).state for job in jobs])

    asyncio.run(engine.worker(settings()).run(only=told()))
    one, two = ["queued", "printed", "queued"], ["printed", "printed", "queued"]
    assert left_at == [one, one, one, two], "each has been left when the next is asked for"
    assert opened == [1]
    assert lanes == [""], "it claims nothing, so it serves no lane"


async def told_of(*jobs: ulak.Job) -> AsyncIterator[str]:
    for job in jobs:
        yield job.id


def test_a_worker_that_is_told_of_a_job_without_a_slot_runs_the_next_of_its_stage(
    jobs_url: str,
) -> None:
    flow: Flow[str] = Flow("narrow", Lifecycle("new", {"new": ["done"]}), payload=str)

    @flow.stage("new", limit=ulak.Limit(1, key=lambda payload: payload))
    def pass_through(run: Run[str]) -> None: ...

    with engine_on(store_of(jobs_url), flow) as engine:
        held, waits, other = (engine.submit(flow, key) for key in ("a", "a", "b"))
        attempt = engine.worker().take(held.id)
        assert attempt is not None
        asyncio.run(engine.worker(settings()).run(only=told_of(waits)))
        assert engine.get(other.id).state == "done"
        assert engine.get(waits.id).parked_on is not None, "it waits its turn"
        attempt.finish()
        asyncio.run(engine.worker(settings()).run(only=told_of(waits)))
        assert engine.get(waits.id).state == "done"
        assert engine.inspect.verify() == []


def test_a_worker_that_is_told_of_jobs_pays_their_rate(jobs_url: str) -> None:
    flow: Flow[None] = Flow("call", Lifecycle("new", {"new": ["done"]}))

    @flow.stage("new", rate=ulak.Rate(1, per=timedelta(hours=1)))
    def call(run: Run[None]) -> None: ...

    with engine_on(store_of(jobs_url), flow) as engine:
        jobs = [engine.submit(flow, None) for _ in range(2)]
        asyncio.run(engine.worker(settings()).run(only=told_of(*jobs)))
        assert sorted(engine.get(job.id).state for job in jobs) == ["done", "new"]


def test_a_stage_with_a_rate_is_left_to_workers(jobs_url: str) -> None:
    flow: Flow[None] = Flow("call", Lifecycle("new", {"new": ["done"]}))

    @flow.stage("new", rate=ulak.Rate(1, per=timedelta(hours=1)))
    def call(run: Run[None]) -> None: ...

    with engine_on(store_of(jobs_url), flow) as engine:
        job = engine.submit(flow, None)
        with pytest.raises(NotSupported, match="has a rate"):
            engine.worker().take(job.id)


def test_a_limit_holds_for_whoever_takes_too(jobs_url: str) -> None:
    flow: Flow[None] = Flow("narrow", Lifecycle("new", {"new": ["done"]}))

    @flow.stage("new", limit=ulak.Limit(1))
    def pass_through(run: Run[None]) -> None: ...

    with engine_on(store_of(jobs_url), flow) as engine:
        first, second = (engine.submit(flow, None) for _ in range(2))
        attempt = engine.worker().take(first.id)
        assert attempt is not None
        assert engine.worker().take(second.id) is None
        attempt.finish()
        assert kinds(engine, first) == ["submitted", "taken", "moved"]
        follower = engine.worker().take(second.id)
        assert follower is not None
        follower.finish()
        assert engine.inspect.verify() == []


class TestExpiring:
    """A program ends what its own count says is over."""

    @pytest.mark.shows("P-3")
    def test_a_finished_job_expires_if_its_table_has_that_move(
        self, engine: Engine, flow: Flow[dict[str, int]]
    ) -> None:
        job = engine.submit(flow, {"n": 1})
        engine.worker(settings()).work_on(job.id)
        assert engine.find("print", '{"n":1}') == engine.get(job.id)
        gone = engine.expire(job.id, actor="clean-up")
        assert (gone.state, gone.role) == ("expired", "expired")
        assert engine.find("print", '{"n":1}') is None, "its key is free"
        assert engine.submit(flow, {"n": 1}).created
        with pytest.raises(TransitionNotAllowed, match="nothing leads from here"):
            engine.expire(job.id, actor="clean-up")

    def test_an_unfinished_job_expires_unless_a_worker_has_it(
        self, engine: Engine, flow: Flow[dict[str, int]]
    ) -> None:
        job, other = (engine.submit(flow, {"n": n}) for n in (1, 2))
        attempt = engine.worker().take(job.id)
        assert attempt is not None
        with pytest.raises(TransitionNotAllowed, match="a worker runs it now"):
            engine.expire(job.id, actor="clean-up")
        attempt.give_back()
        with pytest.raises(TransitionNotAllowed, match='only a job in "queued"'):
            engine.expire(job.id, actor="clean-up", state="queued")
        assert engine.expire(other.id, actor="clean-up", state="queued").state == "expired"

    @pytest.mark.shows("P-3")
    def test_a_run_that_is_cancelled_passes_through_the_state_between(
        self, engine: Engine, flow: Flow[dict[str, int]]
    ) -> None:
        job, other = (engine.submit(flow, {"n": n}) for n in (1, 2))
        attempt = engine.worker().take(job.id)
        assert attempt is not None
        attempt.give_back()
        assert engine.cancel(job.id, actor="olga").state == "expired"
        assert states(engine, job)[-2:] == ["failed", "expired"]
        assert engine.cancel(other.id, actor="olga").state == "expired"
        assert states(engine, other) == ["queued", "expired"]

    def test_ended_jobs_are_listed_and_pruned_by_flow_and_state(
        self, engine: Engine, flow: Flow[dict[str, int]]
    ) -> None:
        jobs = [engine.submit(flow, {"n": n}) for n in range(3)]
        for job in jobs:
            engine.worker(settings()).work_on(job.id)
        engine.expire(jobs[0].id, actor="clean-up")
        engine.submit(flow, {"n": 9})
        left = sorted(job.id for job in jobs[1:])
        found = engine.retention.ended("print", "printed", before=FAR, limit=1)
        more = engine.retention.ended("print", "printed", before=FAR, after=found[0].id)
        assert [job.id for job in found + more] == left
        assert (
            engine.retention.ended("print", "printed", before=datetime(2020, 1, 1, tzinfo=UTC))
            == []
        )
        assert engine.retention.prune(ended_before=FAR, of=("print", "expired")) == 1
        assert engine.retention.prune(ended_before=FAR, of=("print", "expired")) == 0
        assert len(engine.jobs()) == 3
        assert engine.retention.prune(ended_before=FAR) == 2


@dataclass(frozen=True)
class Press:
    """Something of which a worker has few."""


def test_a_worker_takes_no_more_jobs_than_its_resource_has_places(jobs_url: str) -> None:
    flow: Flow[int] = Flow("press", Lifecycle("new", {"new": ["done"]}))
    go, running, most = threading.Event(), 0, 0

    @flow.stage("new")
    async def press(run: Run[int]) -> None:
        nonlocal running, most
        assert isinstance(run.resource(Press), Press)
        running += 1
        most = max(most, running)
        await asyncio.to_thread(go.wait, 20)
        running -= 1

    with engine_on(store_of(jobs_url), flow) as engine:

        @engine.resource(Press, queue="press", places=2)
        @asynccontextmanager
        async def open_press() -> AsyncIterator[Press]:
            yield Press()

        jobs = engine.submit_many(flow, [1, 2, 3])
        with engine.working(settings()):
            eventually(lambda: running == 2)
            leased = [job for job in jobs if engine.get(job.id).leased_by is not None]
            assert len(leased) == 2, "the third waits in the store, not in memory"
            go.set()
            eventually(lambda: all(engine.get(job.id).is_final for job in jobs))
    assert most == 2


@pytest.mark.shows("E-14", "P-32")
def test_a_worker_whose_resource_is_unready_takes_no_job_of_its_queue_and_is_not_listed(
    jobs_url: str,
) -> None:
    press: Flow[int] = Flow("press", Lifecycle("new", {"new": ["done"]}), queue="press")
    fold: Flow[int] = Flow("fold", Lifecycle("new", {"new": ["done"]}), queue="fold")
    why: list[str] = ["no ink"]

    @press.stage("new")
    async def print_it(run: Run[int]) -> None:
        assert isinstance(run.resource(Press), Press)

    @fold.stage("new")
    async def fold_it(run: Run[int]) -> None: ...

    with engine_on(store_of(jobs_url), press, fold) as engine:

        @engine.resource(Press, queue="press", unready=lambda _: why[0] if why else None)
        @asynccontextmanager
        async def open_press() -> AsyncIterator[Press]:
            yield Press()

        def served() -> set[str]:
            lanes = [lane for w in engine.store.workers() for lane in w.lanes.split()]
            return {lane.split("/")[0] for lane in lanes}

        printed, folded = engine.submit(press, 1), engine.submit(fold, 1)
        with engine.working(settings()):
            eventually(lambda: engine.get(folded.id).is_final)
            assert engine.get(printed.id).leased_by is None
            assert served() == {"fold"}
            (worker,) = engine.store.workers()
            assert "no job of press: no ink" in worker.about
            assert engine.inspect.why(printed.id).code == "queue-not-served"
            before = worker.id
            why.clear()
            eventually(lambda: engine.get(printed.id).is_final)
            eventually(lambda: served() == {"fold", "press"})
            why.append("no paper")
            eventually(lambda: served() == {"fold"})
            (worker,) = engine.store.workers()
            assert worker.id == before, "its lease goes on"


@pytest.mark.shows("P-32")
def test_whoever_is_told_which_job_to_run_is_not_kept_from_it_by_an_unready_resource(
    jobs_url: str,
) -> None:
    flow: Flow[int] = Flow("press", Lifecycle("new", {"new": ["done"]}), queue="press")

    @flow.stage("new")
    async def print_it(run: Run[int]) -> None:
        assert isinstance(run.resource(Press), Press)

    with engine_on(store_of(jobs_url), flow) as engine:

        @engine.resource(Press, queue="press", unready=lambda _: "no ink")
        @asynccontextmanager
        async def open_press() -> AsyncIterator[Press]:
            yield Press()

        job = engine.submit(flow, 1)
        assert engine.worker(settings()).work_on(job.id).is_final


def test_unready_without_a_queue_is_refused() -> None:
    with pytest.raises(ulak.BadInput, match="unready= without a queue"):
        ulak.connect("memory://").resource(Press, unready=lambda _: None)


@pytest.mark.parametrize(("queue", "places"), [(None, 2), ("press", 0)])
def test_places_without_a_queue_or_without_number_are_refused(
    queue: str | None, places: int
) -> None:
    with pytest.raises(ulak.BadInput, match="say a queue, and 1 or more"):
        ulak.connect("memory://").resource(Press, queue=queue, places=places)


def test_full_jitter_draws_from_nothing_to_the_whole_delay() -> None:
    full = Backoff(1, first=timedelta(seconds=8), jitter="full")
    delays = [full.delay_us(1, bytes([n]) * 16) for n in range(200)]
    assert all(delay is not None and 0 <= delay <= 8_000_000 for delay in delays)
    assert min(map(int, map(str, delays))) < 800_000
    assert max(map(int, map(str, delays))) > 7_200_000
    assert full.delay_us(2, bytes(16)) is None
