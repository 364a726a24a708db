"""What a worker does with a store that refuses a change, breaks, or breaks after writing."""

import threading
from typing import Any

import pytest

import ulak
from tests.scenario.doubles import (
    SOON,
    Double,
    Gathering,
    codes,
    engine_on,
    eventually,
    kinds,
    marked,
    settings,
    store_of,
)
from ulak.errors import Contended, StoreError, WriteRefused

MANY = 40
LEASE = 1.5


def crowd(together: Gathering, second: list[str]) -> ulak.Flow[Any]:
    """A flow of two stages whose first ends for everybody at once, so that they share a batch."""

    async def first(run: ulak.Run[Any]) -> str:
        await together.wait()
        return "poison" if run.payload == 7 else "fine"

    async def after(run: ulak.Run[Any]) -> None:
        second.append(run.job_id)

    return ulak.Flow.steps("crowd", first, ("second", after))


@pytest.mark.shows("E-19")
@pytest.mark.parametrize("error", [WriteRefused("not this"), RuntimeError("a bug in the store")])
def test_a_refused_change_holds_its_own_job_and_no_neighbour(
    jobs_url: str, error: Exception
) -> None:
    store, second = Double(store_of(jobs_url)), list[str]()
    sizes: list[int] = []

    def refuse(changes: Any) -> None:
        sizes.append(len(changes))
        if marked(changes, b"poison"):
            raise error

    store.before["commit"] = refuse
    flow = crowd(Gathering(MANY), second)
    with engine_on(store, flow) as engine:
        jobs = engine.submit_many(flow, range(MANY))
        with engine.working(settings()):
            for job in jobs:
                until = "held" if job is jobs[7] else "done"
                engine.wait(job.id, until=until, timeout=SOON)
        held = engine.get(jobs[7].id)
        assert (held.state, held.code) == ("held", "commit-rejected")
        assert held.leased_by is None
        assert kinds(engine, held) == ["submitted", "held"]
        # The refused move never happened: its next stage must not have run.
        assert sorted(second) == sorted(j.id for j in jobs if j is not jobs[7])
        assert sizes[0] > 1, "the culprit came in company"
        assert engine.inspect.verify() == []
        del store.before["commit"]
        engine.release(held.id, actor="operator")


@pytest.mark.shows("E-34", "E-84")
def test_a_change_that_somebody_else_blocks_delays_no_neighbour(jobs_url: str) -> None:
    store, second = Double(store_of(jobs_url)), list[str]()
    sizes: list[int] = []
    is_held = True

    def block(changes: Any) -> None:
        sizes.append(len(changes))
        if is_held and marked(changes, b"poison"):
            raise Contended("somebody has its row")

    store.before["commit"] = block
    flow = crowd(Gathering(MANY), second)
    with engine_on(store, flow) as engine:
        jobs = engine.submit_many(flow, range(MANY))
        with engine.working(settings()) as worker:
            for job in jobs:
                if job is not jobs[7]:
                    engine.wait(job.id, timeout=SOON)
            assert sizes[0] > 1, "the blocked one came in company"
            assert engine.get(jobs[7].id).state == "first"
            # The others are durable; the worker may not have heard of it yet.
            eventually(lambda: worker.running == 1)
            tried = len(sizes)
            eventually(lambda: len(sizes) > tried + 2)
            assert set(sizes[tried:]) == {1}
            # Nothing was lost and nothing is in doubt: there is nothing to look up.
            assert store.calls["find_commits"] == 0
            is_held = False
            engine.wait(jobs[7].id, timeout=SOON)
        assert kinds(engine, jobs[7]) == ["submitted", "moved", "moved"]
        assert sorted(second) == sorted(job.id for job in jobs)
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-34")
def test_a_drain_waits_for_a_blocked_change_and_then_leaves_it() -> None:
    store = Double(store_of("memory://"))
    flow = crowd(Gathering(2), [])

    def block(changes: Any) -> None:
        if marked(changes, b"poison"):
            raise Contended("somebody has its row")

    store.before["commit"] = block
    with engine_on(store, flow) as engine:
        jobs = engine.submit_many(flow, [1, 7])
        with engine.working(settings(drain=0.3)):
            engine.wait(jobs[0].id, timeout=SOON)
        assert engine.get(jobs[1].id).state == "first"
        del store.before["commit"]
        assert engine.get(jobs[0].id).state == "done"
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-19")
def test_a_job_that_can_be_neither_moved_nor_held_harms_nobody() -> None:
    store = Double(store_of("memory://"))
    second: list[str] = []
    flow = crowd(Gathering(3), second)
    bad: list[bytes] = []

    def refuse(changes: Any) -> None:
        bad.extend(c.row.id for c in marked(changes, b"poison"))
        if any(c.row.id in bad for c in changes):
            raise WriteRefused("nothing of this job")

    store.before["commit"] = refuse
    with engine_on(store, flow) as engine:
        jobs = engine.submit_many(flow, [1, 7, 2])
        with engine.working(settings(loop=3)) as worker:
            for job in (jobs[0], jobs[2]):
                engine.wait(job.id, timeout=SOON)
            eventually(lambda: worker.running == 0)
        assert engine.get(jobs[1].id).state == "first"


@pytest.mark.shows("E-19")
def test_data_that_a_database_cannot_take_holds_its_job_only(shared_url: str) -> None:
    together = Gathering(6)

    async def tell(run: ulak.Run[str]) -> None:
        await together.wait()
        # Past the door, where `run.emit` refuses such a topic: commits must survive it too.
        run._host.emit(run.payload.encode().decode("unicode_escape"), 1, None)

    flow: ulak.Flow[str] = ulak.Flow.steps("telling", tell)
    with engine_on(store_of(shared_url), flow) as engine:
        jobs = engine.submit_many(flow, ["a", "b", r"\ud800", "c", r"\udfff", "d"])
        with engine.working(settings()):
            for n, job in enumerate(jobs):
                engine.wait(job.id, until="held" if n in (2, 4) else "done", timeout=SOON)
        assert engine.get(jobs[2].id).code == engine.get(jobs[4].id).code == "commit-rejected"
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-19")
def test_any_text_of_an_error_can_be_stored(jobs_url: str) -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    errors = {
        "nul": ValueError("a\x00b"),
        "surrogate": ValueError("a\ud800b"),
        "long": ValueError("x" * 100_000),
        "unprintable": Unprintable(),
    }

    async def fail(run: ulak.Run[str]) -> None:
        raise errors[run.payload]

    flow: ulak.Flow[str] = ulak.Flow.steps("failing", fail, retry=0)
    with engine_on(store_of(jobs_url), flow) as engine:
        jobs = engine.submit_many(flow, list(errors))
        with engine.working(settings()):
            ends = [engine.wait(job.id, timeout=SOON) for job in jobs]
        assert {end.state for end in ends} == {"failed"}
        said = [engine.inspect.trail(job.id)[-1].message or "" for job in jobs]
        assert said[0] == "ValueError: a\ufffdb"
        assert said[1] == "ValueError: a?b"
        assert len(said[2]) == 4000
        assert said[3] == "Unprintable: (it cannot be printed)"


@pytest.mark.shows("E-19", "E-22")
@pytest.mark.parametrize(
    ("result", "code", "says"),
    [
        (float("nan"), "result-unwritable", "cannot be stored as JSON"),
        (object(), "result-unwritable", "cannot be stored as JSON"),
        ("a\ud800", "result-unwritable", "cannot be stored as JSON"),
        ("x" * (256 * 1024), "result-too-large", "keep it in a file"),
    ],
    ids=["nan", "object", "surrogate", "large"],
)
def test_a_result_that_cannot_be_stored_fails_its_stage_with_a_sentence(
    result: object, code: str, says: str
) -> None:
    engine = ulak.connect("memory://")

    @engine.job(retry=5)
    async def work() -> object:
        return result

    with engine, engine.working(settings()):
        job = engine.submit(work)
        end = engine.wait(job.id, timeout=SOON)
        assert (end.state, end.code) == ("failed", code)
        assert says in (engine.inspect.trail(job.id)[-1].message or "")
        assert kinds(engine, job) == ["submitted", "failed"], "no retry mends it"


@pytest.mark.shows("E-20")
@pytest.mark.parametrize("written", [True, False])
def test_after_a_broken_connection_ids_are_looked_up_and_nothing_is_written_twice(
    jobs_url: str, written: bool
) -> None:
    store, second = Double(store_of(jobs_url)), list[str]()
    left = [3]

    def break_off(*_: object) -> None:
        if left[0] > 0:
            left[0] -= 1
            raise StoreError("the connection is gone")

    (store.after if written else store.before)["commit"] = break_off
    flow = crowd(Gathering(10), second)
    with engine_on(store, flow) as engine:
        jobs = engine.submit_many(flow, [1] * 10)
        with engine.working(settings()):
            for job in jobs:
                assert engine.wait(job.id, timeout=SOON).state == "done"
                assert kinds(engine, job) == ["submitted", "moved", "moved"]
        assert len(second) == 10, "each second stage has run once"
        asked = [verb for verb in store.order if verb in ("commit", "find_commits")]
        breaks = 3 - left[0]
        assert breaks >= 2
        assert asked[: 2 * breaks] == ["commit", "find_commits"] * breaks
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-20")
def test_a_commit_is_not_repeated_before_its_ids_were_looked_up() -> None:
    store = Double(store_of("memory://"))
    fails = {"commit": 1, "find_commits": 2}

    def break_off(verb: str) -> Any:
        def fail(*_: object) -> None:
            if fails[verb] > 0:
                fails[verb] -= 1
                raise StoreError("gone")

        return fail

    store.after["commit"] = break_off("commit")
    store.before["find_commits"] = break_off("find_commits")
    flow = crowd(Gathering(1), [])
    with engine_on(store, flow) as engine, engine.working(settings()):
        job = engine.submit(flow, 1)
        engine.wait(job.id, timeout=SOON)
        asked = [verb for verb in store.order if verb in ("commit", "find_commits")]
        assert asked == ["commit", "find_commits", "find_commits", "find_commits", "commit"]


@pytest.mark.shows("E-22")
def test_a_place_is_free_only_when_its_commit_is_acknowledged() -> None:
    store, started = Double(store_of("memory://")), list[int]()
    go_on = threading.Event()
    committing = threading.Event()

    def wait(_: object) -> None:
        committing.set()
        assert go_on.wait(120)

    store.before["commit"] = wait
    engine = engine_on(store)

    @engine.job
    async def work(n: int) -> None:
        started.append(n)

    with engine, engine.working(settings(loop=3)):
        jobs = [engine.submit(work, n) for n in range(9)]
        assert committing.wait(120)
        # A claim with no free place still comes by; it must take nothing.
        seen = store.calls["claim"]
        eventually(lambda: store.calls["claim"] > seen + 1)
        assert sorted(started) == [0, 1, 2]
        go_on.set()
        for job in jobs:
            engine.wait(job.id, timeout=SOON)
        assert sorted(started) == list(range(9))


@pytest.mark.shows("E-26")
def test_a_worker_that_begins_in_an_outage_leaves_the_others_time_to_renew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ulak.engine.lease.LONGEST_TROUBLED_PAUSE_S", 600.0)
    store, refused = Double(store_of("memory://")), iter(["the database is restarted"])

    def refuse_once(*_: object, **__: object) -> None:
        for why in refused:
            raise StoreError(why)

    store.before["register"] = refuse_once
    with engine_on(store) as engine, engine.working(settings(poll=0.01, lease=3600.0)) as worker:
        eventually(lambda: worker.is_registered)
        passes = store.calls["unpark"]
        eventually(lambda: store.calls["unpark"] > passes + 2)
        assert store.calls["claim"] == 0


@pytest.mark.shows("E-26")
def test_finished_work_commits_after_an_outage_longer_than_the_lease() -> None:
    store = Double(store_of("memory://"))
    away, ran = threading.Event(), list[int]()

    def fail(*_: object, **__: object) -> None:
        if away.is_set():
            raise StoreError("the database is restarted")

    for verb in ("commit", "claim", "renew", "register", "find_commits", "due", "unpark"):
        store.before[verb] = fail
    engine = engine_on(store)
    finish = threading.Event()

    @engine.job
    def work(n: int) -> int:
        ran.append(n)
        assert finish.wait(120)
        return n

    one, other = (
        engine_on(store, *engine.inspect.flows).working(settings(lease=LEASE)) for _ in range(2)
    )
    with engine, one as first, other as second:
        jobs = [engine.submit(work, n) for n in range(3)]
        eventually(lambda: len(ran) == 3 and first.is_registered and second.is_registered)
        away.set()
        finish.set()
        threading.Event().wait(2.2 * LEASE)
        assert first.running + second.running == 3, "the results wait for the store"
        away.clear()
        for job in jobs:
            assert engine.wait(job.id, timeout=SOON).state == "done"
            assert codes(engine, job) == [None, None]
        assert len(ran) == 3
        assert engine.inspect.verify() == []
