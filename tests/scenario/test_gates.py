"""A person is asked, answers in time or not, and two may answer at once."""

import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from ulak import SUBMITTER, BadInput, Flow, Job, Lifecycle, StaleJob, TransitionNotAllowed
from ulak.testing import Harness


@dataclass
class Verdict:
    score: int


def hiring() -> Flow[Any]:
    moves = {
        "applied": ["in_review"], "in_review": ["approved", "refused"],
        "approved": ["hired"],
    }  # fmt: skip
    flow: Flow[Any] = Flow("hiring", Lifecycle("applied", moves, done=["hired", "refused"]))

    @flow.stage("applied")
    def screen(run: Any) -> None: ...

    review = flow.gate(
        "in_review", choices={"approve": "approved", "refuse": "refused"}, data=Verdict,
        by={"operator"}, not_by=SUBMITTER, deadline=timedelta(days=3), on_expiry="refused",
    )  # fmt: skip

    @flow.stage("approved")
    def hire(run: Any) -> Any:
        decision = run.decision(review)
        return [decision.actor, decision.choice, decision.note, decision.data.score]

    return flow


def asked(harness: Harness) -> str:
    job = harness.run(harness.engine.inspect.flows[0], {"name": "Grace"}, actor="ada")
    assert job.state == "in_review"
    return job.id


@pytest.mark.shows("E-11")
def test_a_decision_is_recorded_and_read_by_the_stage_after_it(jobs_url: str) -> None:
    with Harness(hiring(), url=jobs_url) as harness:
        job_id = asked(harness)
        harness.engine.decide(
            job_id, "approve", actor="op-7", note="well done", data=Verdict(9), roles={"operator"}
        )
        harness.run_until_idle()
        assert harness.result(job_id) == ["op-7", "approve", "well done", 9]
        decided = [e for e in harness.trail(job_id) if e.kind == "decided"]
        assert [(e.actor, e.code, e.message) for e in decided] == [("op-7", "approve", "well done")]
        assert harness.verify() == []


@pytest.mark.shows("E-11")
@pytest.mark.parametrize(
    ("choice", "actor", "roles", "code", "words"),
    [
        ("approve", "ada", {"operator"}, "not-permitted", "ada may not decide here"),
        ("approve", "eve", {"viewer"}, "not-permitted", 'only "operator" may decide here'),
        ("promote", "op", {"operator"}, "transition-not-allowed", '"promote" is not a choice'),
    ],
)
def test_who_may_not_decide_is_told_why_and_nothing_is_written(
    jobs_url: str, choice: str, actor: str, roles: set[str], code: str, words: str
) -> None:
    with Harness(hiring(), url=jobs_url) as harness:
        job_id = asked(harness)
        before = harness.trail(job_id)
        with pytest.raises(TransitionNotAllowed, match=words) as refusal:
            harness.engine.decide(job_id, choice, actor=actor, roles=roles)
        assert refusal.value.code == code
        assert harness.trail(job_id) == before


@pytest.mark.shows("E-11")
def test_a_decision_must_carry_what_the_gate_declares() -> None:
    with Harness(hiring()) as harness:
        job_id = asked(harness)
        with pytest.raises(BadInput):
            harness.engine.decide(job_id, "approve", actor="op", data={"score": "high"})
        assert harness.job(job_id).state == "in_review"


@pytest.mark.shows("E-11")
def test_a_question_that_nobody_answers_ends_at_its_deadline(jobs_url: str) -> None:
    with Harness(hiring(), url=jobs_url) as harness:
        job_id = asked(harness)
        harness.advance(days=2, hours=23)
        assert harness.job(job_id).state == "in_review"
        harness.advance(hours=1)
        assert harness.job(job_id).state == "refused"
        with pytest.raises(TransitionNotAllowed, match="no decision is asked here"):
            harness.engine.decide(job_id, "approve", actor="op")


@pytest.mark.shows("E-11")
def test_of_two_people_deciding_at_once_one_wins_and_the_other_is_told_who(
    jobs_url: str,
) -> None:
    people = [f"op-{n}" for n in range(8)]
    with Harness(hiring(), url=jobs_url) as harness:
        job_id = asked(harness)
        start = threading.Barrier(len(people))
        won: list[Job] = []
        lost: dict[str, Exception] = {}

        def decide(actor: str) -> None:
            start.wait()
            try:
                won.append(harness.engine.decide(job_id, "approve", actor=actor, data=Verdict(1)))
            except (StaleJob, TransitionNotAllowed) as error:
                lost[actor] = error

        threads = [threading.Thread(target=decide, args=(actor,)) for actor in people]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert len(won) == 1
        (decided,) = [e for e in harness.trail(job_id) if e.kind == "decided"]
        assert set(lost) == set(people) - {decided.actor}
        for error in lost.values():
            # Who had read the job before is told by the guard, who came later by the lifecycle.
            if isinstance(error, StaleJob):
                assert error.decided_by == decided.actor
        assert harness.verify() == []


@pytest.mark.shows("E-11")
def test_whoever_was_slower_is_told_the_name_of_the_faster(jobs_url: str) -> None:
    with Harness(hiring(), url=jobs_url) as harness:
        job_id = asked(harness)
        engine = harness.engine
        read = engine.kernel.get_row(job_id)
        engine.decide(job_id, "approve", actor="fast", data=Verdict(1))
        real, engine.kernel.get_row = engine.kernel.get_row, lambda *_: read  # type: ignore[method-assign]
        with pytest.raises(StaleJob, match="fast was faster") as refusal:
            engine.decide(job_id, "refuse", actor="slow")
        engine.kernel.get_row = real  # type: ignore[method-assign]
        assert refusal.value.decided_by == "fast"
        assert harness.job(job_id).state == "approved"
