"""Old jobs go, unfinished and needed ones stay."""

from datetime import timedelta
from typing import Any

import pytest

from ulak import Dedup, Flow, JobNotFound, Lifecycle, Until
from ulak.testing import Harness


def order(**options: Any) -> Flow[Any]:
    moves = {"new": ["asked"], "asked": ["done"]}
    flow: Flow[Any] = Flow("order", Lifecycle("new", moves), proofs=True, **options)

    @flow.stage("new")
    def begin(run: Any) -> Any:
        run.emit("begun", run.payload)
        return {"seen": run.once("look", lambda key: key)}

    flow.gate("asked", choices={"go": "done"})
    return flow


def finish(harness: Harness, payload: Any, **options: Any) -> str:
    job = harness.run(harness.engine.inspect.flows[0], payload, **options)
    harness.engine.decide(job.id, "go", actor="op")
    return job.id


@pytest.mark.shows("E-52")
def test_unfinished_jobs_are_never_touched_however_old(jobs_url: str) -> None:
    with Harness(order(), url=jobs_url) as harness:
        waiting = harness.run(harness.engine.inspect.flows[0], {"n": 1})
        ended = finish(harness, {"n": 2})
        harness.advance(days=400)
        assert harness.engine.store.prune(before=harness.clock.now(), limit=100) == 1
        with pytest.raises(JobNotFound):
            harness.job(ended)
        assert harness.job(waiting.id).state == "asked"
        assert harness.verify() == []


@pytest.mark.shows("E-52")
def test_what_ended_since_then_stays_and_the_rest_goes_in_batches(jobs_url: str) -> None:
    with Harness(order(), url=jobs_url) as harness:
        store = harness.engine.store
        old = [finish(harness, {"n": n}) for n in range(5)]
        harness.advance(days=30)
        before = harness.clock.now()
        young = finish(harness, {"n": 9})
        batches = [store.prune(before=before, limit=2) for _ in range(4)]
        assert batches == [2, 2, 1, 0]
        left = {job.id for job in harness.engine.jobs()}
        assert left == {young}
        assert not left & set(old)
        assert harness.verify() == []


@pytest.mark.shows("E-52")
def test_everything_of_a_pruned_job_goes_except_its_proofs(jobs_url: str) -> None:
    with Harness(order(), url=jobs_url) as harness:
        store = harness.engine.store
        job_id = bytes.fromhex(finish(harness, {"n": 1}).replace("-", ""))
        proofs = store.scan_proofs("")
        harness.advance(days=1)
        store.prune(before=harness.clock.now(), limit=10)
        assert store.trail(job_id) == []
        assert store.find_payload(job_id) is None
        assert store.find_results(job_id) == []
        assert store.scan_messages(job_id) == []
        assert store.scan_orphans() == []
        assert store.scan_proofs("") == proofs != []
        assert harness.engine.inspect.counts() == []


@pytest.mark.shows("E-52", "E-30")
def test_a_job_stays_while_a_duplicate_must_still_be_answered_with_it(
    jobs_url: str,
) -> None:
    dedup = Dedup(until=Until.FORGOTTEN, keep=timedelta(days=10))
    with Harness(order(dedup=dedup), url=jobs_url) as harness:
        flow, store = harness.engine.inspect.flows[0], harness.engine.store
        first = finish(harness, {"n": 1})
        harness.advance(days=9)
        assert store.prune(before=harness.clock.now(), limit=10) == 0
        again = harness.submit(flow, {"n": 1})
        assert (again.id, again.created) == (first, False)
        harness.advance(days=2)
        assert store.prune(before=harness.clock.now(), limit=10) == 1
        assert harness.submit(flow, {"n": 1}).created


@pytest.mark.shows("E-52")
def test_a_job_stays_until_its_messages_are_sent(jobs_url: str) -> None:
    with Harness(order(), url=jobs_url) as harness:
        store = harness.engine.store
        harness.engine.kernel.handlers.clear()
        job_id = finish(harness, {"n": 1})
        harness.advance(days=1)
        assert store.prune(before=harness.clock.now(), limit=10) == 0
        harness.engine.outbox.publish(harness.sent.append)
        harness.run_until_idle()
        assert [message.topic for message in harness.sent] == ["begun"]
        assert store.prune(before=harness.clock.now(), limit=10) == 1
        with pytest.raises(JobNotFound):
            harness.job(job_id)
