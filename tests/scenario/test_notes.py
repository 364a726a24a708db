"""Lines of a service's own in the trail: with the run that wrote them, or from outside."""

import threading
from datetime import timedelta
from typing import Any

import pytest

import ulak
from tests.scenario import isolated
from ulak.core.outcome import Finished, GivenBack, Noted, Overran
from ulak.engine.engine import Engine
from ulak.ids import from_text
from ulak.testing import Harness
from ulak.wiring import store_of

PATIENCE = timedelta(seconds=120)


def noting(**options: Any) -> ulak.Flow[Any]:
    """A stage that notes what its payload says, and ends as it says."""
    flow: ulak.Flow[Any] = ulak.Flow(
        "orders", ulak.Lifecycle("new", {"new": ["done"]}), retry=0, **options
    )

    @flow.stage("new")
    def price(run: ulak.Run[Any]) -> Any:
        run.note("orders.priced", "by the list", total=run.payload.get("total"), currency="TRY")
        run.note("orders.seen")
        run.note("orders.seen")
        run.emit("priced", {})
        if run.payload.get("end") == "hold":
            return ulak.Hold("too-dear", "a person must look")
        if run.payload.get("end") == "raise":
            raise ValueError("no price")
        return run.payload.get("total")

    return flow


def lines(harness: Harness, job_id: str) -> list[tuple[str, str | None]]:
    return [(e.kind, e.message) for e in harness.trail(job_id)]


@pytest.mark.shows("E-88")
@pytest.mark.parametrize("proofs", [False, True])
def test_a_note_of_a_run_is_written_with_its_move(jobs_url: str, proofs: bool) -> None:
    flow = noting(proofs=proofs)
    with Harness(flow, url=jobs_url) as harness:
        job = harness.run(flow, {"total": 90})
        assert (job.state, harness.result(job.id)) == ("done", 90)
        assert lines(harness, job.id) == [
            ("submitted", None),
            ("orders.priced", "by the list"),
            ("orders.seen", None),
            ("orders.seen", None),
            ("moved", None),
        ]
        priced = harness.trail(job.id)[1]
        assert priced.details == {"total": 90, "currency": "TRY"}
        assert (priced.from_state, priced.to_state, priced.attempt) == ("new", "new", 1)
        assert priced.worker is not None
        assert len({e.commit_id for e in harness.engine.store.trail(from_text(job.id))}) == 2
        assert harness.verify() == []


@pytest.mark.shows("E-88")
@pytest.mark.parametrize(
    ("end", "state", "last"), [("hold", "held", "held"), ("raise", "failed", "failed")]
)
def test_a_note_is_written_with_whatever_ends_the_run(
    jobs_url: str, end: str, state: str, last: str
) -> None:
    flow = noting()
    with Harness(flow, url=jobs_url) as harness:
        job = harness.run(flow, {"end": end})
        kinds = [kind for kind, _ in lines(harness, job.id)]
        assert (job.state, kinds[1], kinds[-1]) == (state, "orders.priced", last)
        assert harness.verify() == []


@pytest.mark.shows("E-88")
def test_a_stage_in_a_process_of_its_own_may_note_too() -> None:
    with Harness(isolated.noting) as harness:
        job = harness.run(isolated.noting, {})
        assert lines(harness, job.id)[1] == ("isolated.noted", "from a child")
        assert harness.trail(job.id)[1].details == {"n": 1}


@pytest.mark.shows("E-88")
def test_an_undo_may_note_too(jobs_url: str) -> None:
    flow = noting()
    flow.declared.stages[0].undo(lambda run: run.note("orders.withdrawn", why=run.code))
    with Harness(flow, url=jobs_url) as harness:
        job = harness.run(flow, {"end": "raise"})
        assert job.state == "failed"
        kinds = [kind for kind, _ in lines(harness, job.id)]
        assert kinds[-4:] == ["failed", "orders.withdrawn", "undone", "ended"]
        assert harness.trail(job.id)[-3].details == {"why": "raised"}
        assert harness.verify() == []


@pytest.mark.shows("E-88")
def test_a_program_notes_on_a_job_in_any_state(jobs_url: str) -> None:
    flow = noting()
    with Harness(flow, url=jobs_url) as harness:
        jobs = [harness.submit(flow, {"end": end}) for end in ("", "hold", "raise")]
        for job in jobs:
            before = harness.job(job.id)
            after = harness.engine.note(job.id, "desk.called", "they ask", actor="ann", by="phone")
            assert (after.state, after.role) == (before.state, before.role)
        harness.run_until_idle()
        for job, role in zip(jobs, ("done", "held", "failed"), strict=True):
            harness.engine.note(job.id, "desk.called-again", actor="ann")
            assert harness.job(job.id).role == role
            first, *_, last = [e for e in harness.trail(job.id) if e.kind.startswith("desk.")]
            assert (first.actor, first.message, first.details) == (
                "ann", "they ask", {"by": "phone"},
            )  # fmt: skip
            assert (last.kind, last.message, last.details) == ("desk.called-again", None, None)
        harness.engine.release(jobs[1].id, actor="op")
        harness.engine.retry(jobs[2].id, actor="op")
        assert harness.verify() == []


@pytest.mark.shows("E-88")
def test_a_note_on_a_job_that_runs_is_kept_and_follows_the_run(jobs_url: str) -> None:
    flow: ulak.Flow[Any] = ulak.Flow("slow", ulak.Lifecycle("new", {"new": ["done"]}))
    runs, may_go = threading.Event(), threading.Event()

    @flow.stage("new")
    def work(run: ulak.Run[Any]) -> None:
        runs.set()
        may_go.wait(120)

    engine = Engine(store_of(jobs_url), flows=[flow])
    with engine, engine.working():
        job = engine.submit(flow, {})
        assert runs.wait(120)
        for n in range(2):
            engine.note(job.id, "desk.called", f"call {n}", actor="ann", n=n)
        may_go.set()
        engine.wait(job.id, timeout=PATIENCE)
        told = threading.Event()
        for _ in range(600):
            notes = [e for e in engine.inspect.trail(job.id) if e.kind == "desk.called"]
            if len(notes) == 2:
                break
            told.wait(0.2)
        assert {(e.message, e.actor, e.details["n"]) for e in notes} == {
            ("call 0", "ann", 0),
            ("call 1", "ann", 1),
        }
        assert engine.store.pending_requests(from_text(job.id)) == [], "none is written again"
        assert engine.get(job.id).state == "done"
        assert engine.inspect.verify() == []


BAD_KINDS = ["priced", "Orders.Priced", "orders.", ".priced", "two words.x", "", "a." + 99 * "b"]


@pytest.mark.shows("E-88")
@pytest.mark.parametrize("kind", BAD_KINDS)
def test_another_kind_is_refused_with_a_sentence_and_changes_nothing(kind: str) -> None:
    flow = noting()
    with Harness(flow) as harness:
        job = harness.submit(flow, {})
        with pytest.raises(ulak.BadInput, match="lower-case words with a dot"):
            harness.engine.note(job.id, kind, actor="ann")
        with pytest.raises(ulak.BadInput, match="lower-case words with a dot"):
            harness.submit(flow, {}, repeat_note=kind)
        assert lines(harness, job.id) == [("submitted", None)]
        assert len(harness.engine.jobs()) == 1


@pytest.mark.shows("E-88")
def test_details_and_notes_that_cannot_be_kept_are_refused() -> None:
    flow = noting()
    with Harness(flow) as harness:
        job = harness.submit(flow, {})
        for bad in ({"what": object()}, {"what": float("nan")}, {"what": "x" * 300_000}):
            with pytest.raises(ulak.BadInput):
                harness.engine.note(job.id, "desk.called", actor="ann", **bad)
        with pytest.raises(ulak.BadInput, match="4,000"):
            harness.engine.note(job.id, "desk.called", "x" * 5000, actor="ann")
        with pytest.raises(ulak.BadInput, match="actor="):
            harness.engine.note(job.id, "desk.called", actor="")
        with pytest.raises(ulak.JobNotFound):
            harness.engine.note("0" * 32, "desk.called", actor="ann")
        assert lines(harness, job.id) == [("submitted", None)]


@pytest.mark.shows("E-88")
def test_a_repeated_submit_leaves_a_note_if_it_says_so(jobs_url: str) -> None:
    flow = noting(dedup=ulak.Dedup())
    with Harness(flow, url=jobs_url) as harness:
        first = harness.submit(flow, {}, actor="ann", repeat_note="orders.repeated")
        assert lines(harness, first.id) == [("submitted", None)]
        assert not harness.submit(flow, {}, actor="ben").created
        again = harness.submit(flow, {}, actor="cem", repeat_note="orders.repeated")
        assert (again.id, again.created) == (first.id, False)
        assert lines(harness, first.id)[1:] == [("orders.repeated", "submitted again")]
        assert harness.trail(first.id)[-1].actor == "cem"
        assert harness.verify() == []


@pytest.mark.shows("E-88")
@pytest.mark.parametrize("outcome", [GivenBack(), Noted("x", b"1"), Overran()])
def test_what_does_not_end_a_run_writes_no_note(outcome: Any) -> None:
    from tests.unit.core.machine import START, Machine, two_steps
    from ulak.core.decide import RunFacts, decide
    from ulak.core.outcome import Note

    job = Machine(two_steps()).claim()
    facts = RunFacts("w1", START, None, None, (Note("a.b", "said"),))
    change = decide(job.flow, job.row, outcome, job.now, facts=facts, commit_id=b"c" * 16)
    assert [e for e in change.events if e.kind == "a.b"] == []
    ended = decide(job.flow, job.row, Finished(), job.now, facts=facts, commit_id=b"c" * 16)
    assert [e.kind for e in ended.events] == ["a.b", "moved"]
