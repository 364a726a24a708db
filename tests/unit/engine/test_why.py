"""`why` gives one answer for each way in which a job can stand."""

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import ulak
from tests.unit.engine import museum
from tests.unit.engine.museum import KEEPER, Museum
from ulak import Backoff, Engine, Flow, Hold, Job, Lifecycle
from ulak.clock import SECOND
from ulak.core.job import lane_before
from ulak.engine.why import CODES
from ulak.store.protocol import ClaimRequest, Want
from ulak.testing import Harness


@pytest.fixture(scope="module", params=["memory", "postgres"])
def rooms(request: pytest.FixtureRequest) -> Iterator[Museum]:
    if request.param == "memory":
        built = museum.build()
        yield built
        built.harness.close()
        return
    with request.getfixturevalue("databases").lend() as url:
        built = museum.build(url)
        yield built
        built.harness.close()


def one_stage(name: str = "one", version: int = 1, **options: Any) -> Flow[Any]:
    flow: Flow[Any] = Flow(
        name, Lifecycle("queued", {"queued": ["done"]}), version=version, **options
    )

    @flow.stage("queued")
    def work(run: Any) -> None: ...

    return flow


def _work(run: Any) -> None: ...


def serve(harness: Harness, *flows: Flow[Any], seconds: int = 60) -> None:
    """Have a worker stand there that serves these flows and claims nothing."""
    lanes = [lane for flow in flows for lane in sorted(flow.table.lanes)]
    harness.engine.store.register(
        "server", lease_us=seconds * SECOND, lanes=lanes, about="a worker"
    )


def leased_job(harness: Harness, flow: Flow[Any], seconds: int = 60) -> Job:
    """Submit a job, and have a worker claim it that never runs it."""
    job = harness.submit(flow)
    serve(harness, flow, seconds=seconds)
    want = Want(tuple(flow.table.lanes), 1)
    assert harness.engine.store.claim(ClaimRequest("server", (want,))).claims
    return job


@pytest.mark.shows("E-64")
@pytest.mark.parametrize(
    ("name", "code", "facts"),
    [
        ("later", "delayed", {"attempt": 1}),
        ("delayed", "delayed", {"attempt": 2}),
        ("parked", "parked", {"limit": "limited/queued", "places": 1}),
        ("unpaid", "rate-limited", {"rate": "metered/queued/a", "cost": 2, "tokens": 0}),
        ("paused", "paused", {"kind": "key", "name": "b", "by": "op", "until": None}),
        ("held", "held", {"code": "look-at-me", "message": "a person must look"}),
        ("asked", "gate", {"by": ["operator"], "not_by": ["ada"], "choices": ["no", "yes"]}),
        ("paying", "awaits-signal", {"signal": "paid", "until": None}),
        ("resting", "awaits-date", {"signal": None}),
        ("stranger", "queue-not-served", {"served": ["limited", "steps"]}),
        ("undoing", "undoing", {"next": "first", "attempt": 2, "then": "failed"}),
        ("suspect", "suspect", {"lapses": 2}),
        ("leased", "leased", {"worker": KEEPER, "about": "the museum"}),
        ("done", "ended", {"state": "done", "role": "done"}),
        ("failed", "ended", {"code": "permanent", "message": "ValueError: never"}),
        ("cancelled", "ended", {"role": "cancelled", "by": "op"}),
        ("expired", "ended", {"role": "expired", "code": "expired"}),
    ],
)
def test_a_job_says_why_it_stands_where_it_stands(
    rooms: Museum, name: str, code: str, facts: dict[str, Any]
) -> None:
    why = rooms.harness.why(rooms.ids[name])
    assert why.code == code
    assert {key: why.facts[key] for key in facts} == facts


@pytest.mark.shows("E-64")
def test_the_sentence_names_the_date_the_limit_the_people_and_the_worker(rooms: Museum) -> None:
    def sentence(name: str) -> str:
        return rooms.harness.why(rooms.ids[name]).sentence

    assert "delayed until 2029-07-25T00:00:00Z" in sentence("later")
    assert rooms.ids["leased"] in sentence("parked")
    assert "costs 2 of the rate" in sentence("unpaid")
    assert "2 in 86400 s, and 0 are there; the next one can be paid at 20" in sentence("unpaid")
    assert 'the key "b" is paused until somebody resumes it, by op' in sentence("paused")
    assert "too many complaints" in sentence("paused")
    assert 'by "operator", not by "ada" until 2030-08-29' in sentence("asked")
    assert sentence("leased").startswith('keeper has run "running" since 2028-03-12')
    assert '"first", attempt 2, waits until 2028-03-12T01:00:00Z (' in sentence("undoing")


@pytest.mark.shows("E-64")
def test_a_due_job_is_about_to_be_claimed_or_has_no_worker() -> None:
    flow = one_stage()
    with Harness(flow) as harness:
        job = harness.submit(flow)
        assert harness.why(job.id).code == "no-worker"
        serve(harness, flow)
        assert harness.why(job.id).code == "due"
        harness.clock.advance(timedelta(seconds=61))
        assert harness.why(job.id).code == "no-worker"


@pytest.mark.shows("E-60", "E-64")
def test_a_job_of_a_paused_queue_or_flow_says_so_before_anything_else() -> None:
    flow = one_stage()
    with Harness(flow) as harness:
        job, later = harness.submit(flow), harness.submit(flow, after=timedelta(hours=1))
        harness.engine.flow_control.pause(flow="one", actor="ada", until=timedelta(minutes=30))
        why = harness.why(job.id)
        assert (why.code, why.facts["kind"], why.facts["by"]) == ("paused", "flow", "ada")
        assert "no worker is running, too" in why.sentence
        assert harness.why(later.id).code == "delayed", "it would not run before that anyway"
        harness.engine.flow_control.pause(queue="one", actor="bob", note="a leak")
        why = harness.why(later.id)
        assert (why.code, why.facts["kind"]) == ("paused", "queue")
        assert "a leak" in why.sentence
        serve(harness, flow)
        harness.engine.flow_control.resume(queue="one", actor="bob")
        harness.engine.flow_control.resume(flow="one", actor="ada")
        assert harness.why(job.id).code == "due"


@pytest.mark.shows("E-60", "E-64")
def test_a_job_of_a_fair_flow_is_served_by_whoever_serves_its_family() -> None:
    flow = one_stage(fair=True)
    with Harness(flow) as harness:
        job = harness.submit(flow, tenant="acme")
        serve(harness, flow)
        assert harness.why(job.id).code == "due"
        newer = one_stage(version=2, fair=True)
        serve(harness, newer)
        why = harness.why(job.id)
        assert (why.code, why.facts["versions"]) == ("version-not-served", [2])


@pytest.mark.shows("E-64", "E-50")
@pytest.mark.parametrize("fair", [False, True])
def test_a_stage_that_no_worker_of_its_version_has_is_named(fair: bool) -> None:
    flow = one_stage(fair=fair)
    other: Flow[Any] = Flow("one", Lifecycle("sorted", {"sorted": ["done"]}), fair=fair)
    other.stage("sorted")(_work)
    with Harness(flow) as harness:
        job, later = harness.submit(flow), harness.submit(flow, after=timedelta(hours=1))
        serve(harness, other)
        for one in (job, later):
            why = harness.why(one.id)
            assert (why.code, why.facts["missing"]) == ("state-not-served", "queued")
            assert "workers run version 1 of one" in why.sentence
        # Workers of the release before ask for lanes without a stage, and never find it either.
        before = sorted(map(lane_before, flow.table.lanes))
        harness.engine.store.register("server", lease_us=60 * SECOND, lanes=before, about="")
        assert harness.why(job.id).code == "state-not-served"
        serve(harness, flow)
        assert harness.why(job.id).code == "due"


@pytest.mark.shows("E-64", "E-50")
def test_a_version_that_no_worker_runs_is_named() -> None:
    old, new = one_stage(version=1), one_stage(version=3)
    with Harness(old, new) as harness:
        job = harness.submit(old)
        serve(harness, new)
        why = harness.why(job.id)
        assert why.code == "version-not-served"
        assert why.facts["versions"] == [3]
        assert "no worker runs version 1 of one" in why.sentence


@pytest.mark.shows("E-64")
def test_a_lease_of_a_living_worker_that_is_older_than_any_run_is_not_run() -> None:
    flow = one_stage()
    with Harness(flow) as harness:
        job = leased_job(harness, flow, seconds=3600)
        harness.clock.advance(timedelta(minutes=15, seconds=59))
        assert harness.why(job.id).code == "leased"
        assert harness.verify() == []
        harness.clock.advance(timedelta(seconds=2))
        assert harness.why(job.id).code == "not-run"
        assert [finding.kind for finding in harness.verify()] == ["lease-without-run"]


@pytest.mark.shows("E-64")
def test_a_lapsed_lease_and_one_of_nobody_wait_for_rescue() -> None:
    flow = one_stage()
    with Harness(flow) as harness:
        job = leased_job(harness, flow, seconds=10)
        assert harness.why(job.id).code == "leased"
        harness.clock.advance(timedelta(seconds=10))
        assert harness.why(job.id).code == "lease-lapsed"


@pytest.mark.shows("E-64")
def test_a_running_stage_that_was_asked_to_stop_says_who_asked() -> None:
    flow = one_stage()
    with Harness(flow) as harness:
        job = leased_job(harness, flow)
        harness.engine.cancel(job.id, actor="ada")
        why = harness.why(job.id)
        assert why.code == "cancelling"
        assert (why.facts["asked"], why.facts["by"], why.facts["worker"]) == (
            "cancel", "ada", "server"
        )  # fmt: skip


@pytest.mark.shows("E-64")
def test_a_thread_that_is_past_its_time_says_so() -> None:
    engine = ulak.connect("memory://")
    go_on, overran = threading.Event(), threading.Event()

    @engine.job(timeout=timedelta(milliseconds=1))
    def endless() -> None:
        go_on.wait(120)

    engine.open().store.on_move(lambda: overran.set())
    with engine, engine.working():
        job = engine.submit(endless)
        try:
            for _ in range(100):
                if engine.inspect.why(job.id).code == "overran":
                    break
                overran.wait(0.3)
                overran.clear()
            why = engine.inspect.why(job.id)
        finally:
            go_on.set()
    assert why.code == "overran"
    assert why.facts["overran_at"] is not None


@pytest.mark.shows("E-64")
def test_an_undo_that_failed_for_good_is_held_and_says_what_is_owed() -> None:
    flow: Flow[Any] = Flow(
        "saga",
        Lifecycle("a", {"a": ["b"], "b": ["done"]}),
        retry=0,
        undo_retry=Backoff(0),
    )

    @flow.stage("a")
    def a(run: Any) -> None: ...

    @a.undo
    def undo_a(run: Any) -> None:
        raise RuntimeError("cannot")

    @flow.stage("b")
    def b(run: Any) -> None:
        raise RuntimeError("no")

    with Harness(flow) as harness:
        why = harness.why(harness.run(flow).id)
        assert (why.code, why.facts["code"], why.facts["owed"]) == ("held", "undo-failed", ["a"])
        assert "undo of a: RuntimeError: cannot" in why.sentence


@pytest.mark.shows("E-64")
def test_a_wait_whose_date_has_come_is_due_or_has_no_worker() -> None:
    flow: Flow[Any] = Flow("nap", Lifecycle("asleep", {"asleep": ["done"]}))
    flow.wait("asleep", after=timedelta(hours=1), to="done")
    with Harness(flow) as harness:
        job = harness.submit(flow)
        assert harness.why(job.id).code == "awaits-date"
        harness.clock.advance(timedelta(hours=1))
        assert harness.why(job.id).code == "no-worker"
        serve(harness, flow)
        assert harness.why(job.id).code == "due"


@pytest.mark.shows("E-64")
def test_a_program_that_does_not_declare_the_flow_answers_from_the_row_alone() -> None:
    flow: Flow[Any] = Flow(
        "ask", Lifecycle("work", {"work": ["asked"], "asked": ["done"]}), holds_on={ValueError}
    )

    @flow.stage("work")
    def work(run: Any) -> Any:
        return Hold("why-not") if run.payload else None

    flow.gate("asked", choices={"go": "done"})
    with Harness(flow) as harness:
        gate, held = harness.run(flow), harness.run(flow, {"hold": 1})
        abroad = Engine(harness.engine.store)
        assert abroad.inspect.why(gate.id).code == "gate"
        assert abroad.inspect.why(held.id).facts["code"] == "why-not"


def test_a_job_that_verify_would_call_stuck_says_so() -> None:
    built = museum.build()
    store: Any = built.harness.engine.store
    for name, column in (("later", {"lane": "", "not_before": 0}), ("paying", {"awaits": None})):
        row = store._jobs[built.id(name)]
        store._jobs[row.id] = row._replace(**column)
        assert built.harness.why(built.ids[name]).code == "stuck"


def test_a_job_that_is_not_there_has_no_reason() -> None:
    with Harness() as harness, pytest.raises(ulak.JobNotFound):
        harness.why("0192e4a0-5b6c-7d10-8a4e-0f2b6c9d1e33")


@pytest.mark.shows("E-64")
@pytest.mark.parametrize("code", CODES)
def test_every_answer_is_asked_for_above(code: str) -> None:
    assert f'"{code}"' in Path(__file__).read_text(encoding="utf-8")
