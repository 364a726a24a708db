"""What is called before a stage: in its source state, under the lease, without a slot."""

from datetime import timedelta
from typing import Any

import pytest

import ulak
from ulak.engine.engine import Engine
from ulak.errors import NotSupported
from ulak.testing import Harness

LIFE = ulak.Lifecycle(
    "imported",
    {"imported": ["running", "skipped"], "running": ["done"]},
    done=["done", "skipped"],
    held="HOLD",
)


def machine(check: Any, *, limit: ulak.Limit | None = None, **options: Any) -> ulak.Flow[Any]:
    """A flow with one stage, before which `check` is called."""
    flow: ulak.Flow[Any] = ulak.Flow("machine", LIFE, **options)

    @flow.stage("imported", during="running", limit=limit)
    def optimise(run: ulak.Run[Any]) -> Any:
        if run.payload == "long":
            return ulak.RetryLater(timedelta(hours=1))
        if run.payload == "broken" and run.round == 1:
            raise ValueError("broken")
        return None

    optimise.before(check)
    return flow


def moves(engine: Engine, job_id: str) -> list[tuple[str | None, str]]:
    return [(line.from_state, line.to_state) for line in engine.inspect.trail(job_id)]


@pytest.mark.shows("E-66")
def test_none_goes_on_and_the_next_commit_enters_the_busy_state_with_its_slot(
    jobs_url: str,
) -> None:
    seen: list[tuple[str, list[bool]]] = []

    def check(run: ulak.Run[Any]) -> None:
        slots = harness.engine.store.slots("machine/imported")
        state = harness.engine.get(run.job_id).state
        seen.append((state, [slot.job_id is not None for slot in slots]))
        run.emit("checked", {"job": run.job_id})

    flow = machine(check, limit=ulak.Limit(1, of="state"))
    with Harness(flow, url=jobs_url) as harness:
        job = harness.engine.submit(flow, "long")
        harness.run_until_idle()
        assert seen == [("imported", [False])]
        (slot,) = harness.engine.store.slots("machine/imported")
        assert (slot.job_id is not None, slot.of_state) == (True, 1)
        assert moves(harness.engine, job.id)[:2] == [(None, "imported"), ("imported", "running")]
        assert harness.verify() == []
        assert [message.topic for message in harness.sent] == ["checked"]


@pytest.mark.shows("E-66", "E-65")
@pytest.mark.parametrize("of", ["run", "state"])
def test_without_a_free_slot_it_is_parked_where_it_stands_and_asked_again(
    jobs_url: str, of: Any
) -> None:
    asked: list[str] = []
    flow = machine(lambda run: asked.append(run.payload), limit=ulak.Limit(1, of=of))
    with Harness(flow, url=jobs_url) as harness:
        engine = harness.engine
        first = engine.submit(flow, "long", priority=0)
        harness.run_until_idle()
        if of == "run":
            engine.flow_control.set_limit("machine/imported", 0, actor="ada")
        second = engine.submit(flow, "second")
        harness.run_until_idle()
        assert asked == ["long", "second"]
        waiting = engine.get(second.id)
        assert (waiting.state, waiting.parked_on, waiting.leased_by) == (
            "imported", "machine/imported", None,
        )  # fmt: skip
        assert moves(engine, second.id) == [(None, "imported")]
        assert harness.verify() == []
        if of == "run":
            engine.flow_control.set_limit("machine/imported", 1, actor="ada")
            harness.advance(seconds=5)
        else:
            engine.cancel(first.id, actor="ada")
            harness.run_until_idle()
        assert asked == ["long", "second", "second"]
        assert engine.get(second.id).state == "done"
        assert harness.verify() == []


@pytest.mark.shows("E-66")
@pytest.mark.parametrize(
    ("outcome", "end"),
    [
        (ulak.Hold("no-paper", "put some in"), "HOLD"),
        (ulak.Goto("skipped"), "skipped"),
        (ulak.RetryLater(timedelta(hours=1)), "imported"),
        (ulak.Goto("done"), "HOLD"),
        ("what", "HOLD"),
    ],
    ids=["a hold", "a move", "later", "a move of the busy state", "no outcome"],
)
def test_an_outcome_ends_the_run_from_the_source_state(
    jobs_url: str, outcome: Any, end: str
) -> None:
    flow = machine(lambda run: outcome, limit=ulak.Limit(1, of="state"))
    with Harness(flow, url=jobs_url) as harness:
        job = harness.engine.submit(flow, 1)
        harness.run_until_idle()
        assert moves(harness.engine, job.id) == [(None, "imported"), ("imported", end)]
        assert all(slot.job_id is None for slot in harness.engine.store.slots())
        assert harness.verify() == []


@pytest.mark.shows("E-66")
def test_an_exception_is_a_failed_attempt_in_the_source_state(jobs_url: str) -> None:
    def check(run: ulak.Run[Any]) -> None:
        raise ValueError("no licence")

    flow = machine(check, retry=ulak.Backoff(delays=[timedelta(minutes=1)]), retry_via="failed")
    with Harness(flow, url=jobs_url) as harness:
        job = harness.engine.submit(flow, 1)
        harness.run_until_idle()
        assert harness.engine.get(job.id).state == "imported"
        harness.advance(minutes=2)
        assert moves(harness.engine, job.id) == [
            (None, "imported"), ("imported", "failed"), ("failed", "imported"),
            ("imported", "failed"),
        ]  # fmt: skip
        assert harness.verify() == []


@pytest.mark.shows("E-66")
def test_it_sees_the_last_release_and_the_last_retry_by_their_code(jobs_url: str) -> None:
    seen: list[Any] = []

    def check(run: ulak.Run[Any]) -> ulak.Hold | None:
        seen.append((run.released("look"), run.retried("permanent")))
        return ulak.Hold("look", "look first") if run.released("look") is None else None

    flow = machine(check, permanent={ValueError}, retries_permanent=True)
    with Harness(flow, url=jobs_url) as harness:
        engine = harness.engine
        job = engine.submit(flow, "broken")
        harness.run_until_idle()
        engine.release(job.id, actor="ada", note="looked")
        released = engine.inspect.trail(job.id)[-1]
        harness.run_until_idle()
        assert engine.get(job.id).state == "failed"
        harness.advance(minutes=1)
        engine.retry(job.id, actor="bora")
        retried = engine.inspect.trail(job.id)[-1]
        harness.run_until_idle()
        assert engine.get(job.id).state == "done"
        first, second, third = seen
        assert first == (None, None)
        assert second[1] is None
        by_ada, by_bora = third
        assert by_ada == second[0]
        assert (by_ada.round, by_ada.seq, by_ada.at, by_ada.actor) == (
            1, released.seq, released.at, "ada",
        )  # fmt: skip
        assert (by_bora.round, by_bora.seq, by_bora.at, by_bora.actor) == (
            2, retried.seq, retried.at, "bora",
        )  # fmt: skip
        assert harness.verify() == []


@pytest.mark.shows("E-66")
def test_of_several_releases_and_retries_it_sees_the_last(jobs_url: str) -> None:
    seen: list[Any] = []

    def check(run: ulak.Run[Any]) -> ulak.Hold | None:
        acts = run.released("look"), run.retried("permanent")
        seen.append([None if act is None else (act.round, act.actor) for act in acts])
        if len(seen) % 3 == 0:
            raise ValueError("no licence")
        return ulak.Hold("look", "look again")

    flow = machine(check, permanent={ValueError}, retries_permanent=True)
    with Harness(flow, url=jobs_url) as harness:
        engine = harness.engine
        job = engine.submit(flow, 1)
        for actor in ("ada", "bora", "cem", "dua", "eda", "fer"):
            harness.run_until_idle()
            if engine.get(job.id).state == "failed":
                engine.retry(job.id, actor=actor)
            else:
                engine.release(job.id, actor=actor)
        harness.run_until_idle()
        assert seen == [
            [None, None], [(1, "ada"), None], [(1, "bora"), None],
            [(1, "bora"), (2, "cem")], [(2, "dua"), (2, "cem")], [(2, "eda"), (2, "cem")],
            [(2, "eda"), (3, "fer")],
        ]  # fmt: skip
        assert harness.verify() == []


@pytest.mark.shows("E-66")
def test_an_async_stage_has_an_async_before(jobs_url: str) -> None:
    flow: ulak.Flow[Any] = ulak.Flow("machine", LIFE)
    asked: list[str] = []

    @flow.stage("imported", during="running")
    async def optimise(run: ulak.Run[Any]) -> None:
        asked.append("stage")

    @optimise.before
    async def check(run: ulak.Run[Any]) -> None:
        await run.once("look", look)

    async def look(key: str) -> int:
        asked.append("before")
        return 1

    with Harness(flow, url=jobs_url) as harness:
        job = harness.engine.submit(flow, 1)
        harness.run_until_idle()
        assert harness.engine.get(job.id).state == "done"
        assert asked == ["before", "stage"]
        assert harness.verify() == []


@pytest.mark.shows("E-66")
def test_a_job_before_whose_stage_something_is_called_is_not_taken_by_hand() -> None:
    flow = machine(lambda run: None)
    with Harness(flow) as harness:
        job = harness.engine.submit(flow, 1)
        with pytest.raises(NotSupported, match="leave the job to them"):
            harness.engine.worker().take(job.id)
        assert harness.engine.get(job.id).leased_by is None
