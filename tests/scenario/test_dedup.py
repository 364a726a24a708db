"""The same submission is the same job, for as long as the flow says."""

import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from ulak import (
    Backoff,
    Dedup,
    Flow,
    Job,
    KeyTaken,
    Lifecycle,
    TransitionNotAllowed,
    Until,
)
from ulak.engine.engine import Engine
from ulak.testing import Harness


@dataclass
class Order:
    number: int
    note: str = ""


def order(dedup: Dedup | None, **options: Any) -> Flow[Any]:
    flow: Flow[Any] = Flow(
        "order",
        Lifecycle("new", {"new": ["done"]}),
        payload=Order,
        dedup=dedup,
        retry=0,
        permanent=[ValueError],
        **options,
    )

    @flow.stage("new")
    def work(run: Any) -> None:
        if run.payload.note == "fails":
            raise RuntimeError("no")
        if run.payload.note == "fails for good":
            raise ValueError("never")

    return flow


BY_NUMBER = Dedup(key=lambda payload: str(payload.number))


@pytest.mark.shows("E-30")
def test_a_duplicate_gets_the_first_job_back(jobs_url: str) -> None:
    with Harness(order(BY_NUMBER), url=jobs_url) as harness:
        flow = harness.engine.inspect.flows[0]
        first = harness.submit(flow, Order(1))
        again = harness.submit(flow, Order(1, note="sent twice"))
        other = harness.submit(flow, Order(2))
        assert (first.created, again.created, other.created) == (True, False, True)
        assert again.id == first.id != other.id
        assert len(harness.engine.jobs()) == 2


@pytest.mark.shows("E-30")
def test_the_key_belongs_to_one_flow_and_one_tenant(jobs_url: str) -> None:
    with Harness(order(BY_NUMBER), url=jobs_url) as harness:
        flow = harness.engine.inspect.flows[0]
        jobs = [harness.submit(flow, Order(1), tenant=tenant) for tenant in ("", "a", "b")]
        assert [job.created for job in jobs] == [True] * 3
        assert len({job.id for job in jobs}) == 3


@pytest.mark.shows("E-30")
def test_many_who_submit_at_once_make_one_job(jobs_url: str) -> None:
    with Harness(order(BY_NUMBER), url=jobs_url) as harness:
        flow = harness.engine.inspect.flows[0]
        start = threading.Barrier(12)
        answers: list[Job] = []

        def submit() -> None:
            start.wait()
            answers.append(harness.submit(flow, Order(1)))

        threads = [threading.Thread(target=submit) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({job.id for job in answers}) == 1
        assert [job.created for job in answers].count(True) == 1
        assert harness.verify() == []


@pytest.mark.shows("E-30")
@pytest.mark.parametrize(
    ("until", "note", "freed"),
    [
        (Until.FINISHED, "", True),
        (Until.FINISHED, "fails", True),
        (Until.FAILED_FOR_GOOD, "", False),
        (Until.FAILED_FOR_GOOD, "fails", False),
        (Until.FAILED_FOR_GOOD, "fails for good", True),
        (["failed", "expired", "cancelled"], "", False),
        (["failed", "expired", "cancelled"], "fails", True),
    ],
)
def test_the_change_that_ends_a_job_frees_its_key_when_the_flow_says_so(
    jobs_url: str, until: Any, note: str, freed: bool
) -> None:
    dedup = Dedup(key=lambda payload: str(payload.number), until=until)
    with Harness(order(dedup), url=jobs_url) as harness:
        flow = harness.engine.inspect.flows[0]
        assert harness.run(flow, Order(1, note)).is_final
        assert harness.submit(flow, Order(1)).created is freed
        assert harness.verify() == []


@pytest.mark.shows("E-30")
def test_a_key_is_taken_over_once_it_has_expired(jobs_url: str) -> None:
    dedup = Dedup(
        key=lambda payload: str(payload.number), until=Until.FORGOTTEN, keep=timedelta(hours=1)
    )
    with Harness(order(dedup), url=jobs_url) as harness:
        flow = harness.engine.inspect.flows[0]
        first = harness.run(flow, Order(1))
        harness.advance(minutes=59)
        assert harness.submit(flow, Order(1)).id == first.id
        harness.advance(minutes=1)
        second = harness.submit(flow, Order(1))
        assert second.created
        assert harness.submit(flow, Order(1)).id == second.id
        assert harness.verify() == []


@pytest.mark.shows("E-30")
def test_a_retry_that_finds_its_key_held_names_the_holder(jobs_url: str) -> None:
    with Harness(order(BY_NUMBER), url=jobs_url) as harness:
        flow = harness.engine.inspect.flows[0]
        failed = harness.run(flow, Order(1, "fails"))
        assert failed.state == "failed"
        holder = harness.submit(flow, Order(1))
        with pytest.raises(KeyTaken) as refusal:
            harness.engine.retry(failed.id, actor="op")
        assert refusal.value.holder == holder.id
        assert harness.job(failed.id).state == "failed"
        harness.run_until_idle()
        # The holder has ended and given the key back: now the retry may have it.
        assert harness.engine.retry(failed.id, actor="op").state == "new"
        assert harness.submit(flow, Order(1)).id == failed.id
        assert harness.verify() == []


@pytest.mark.shows("E-31")
def test_equal_payloads_have_one_key_however_they_were_written(jobs_url: str) -> None:
    with Harness(order(Dedup()), url=jobs_url) as harness:
        flow = harness.engine.inspect.flows[0]
        first = harness.submit(flow, {"number": 1, "note": "x"})
        assert harness.submit(flow, {"note": "x", "number": 1}).id == first.id
        assert harness.submit(flow, Order(1, "x")).id == first.id
        assert harness.submit(flow, Order(1, "y")).created


@pytest.mark.shows("E-31")
def test_the_key_is_stored_at_submit_and_never_made_again(jobs_url: str) -> None:
    made: list[int] = []

    def key(payload: Order) -> str:
        made.append(payload.number)
        return f"key-{len(made)}"

    with Harness(order(Dedup(key=key)), url=jobs_url) as harness:
        flow = harness.engine.inspect.flows[0]
        job = harness.run(flow, Order(1, "fails"))
        assert job.state == "failed"
        harness.engine.retry(job.id, actor="op")
        assert made == [1]
        found = harness.engine.store.find_key("", "order", "key-1")
        assert found is not None
        assert found.hex() == job.id.replace("-", "")


@pytest.mark.shows("E-31")
def test_a_long_key_is_kept_by_its_digest(jobs_url: str) -> None:
    with Harness(order(None), url=jobs_url) as harness:
        flow = harness.engine.inspect.flows[0]
        first = harness.submit(flow, Order(1), dedup_key="k" * 100_000)
        assert harness.submit(flow, Order(2), dedup_key="k" * 100_000).id == first.id
        assert harness.submit(flow, Order(2), dedup_key="k" * 99_999).created


@pytest.mark.shows("E-30")
def test_a_key_given_to_a_flow_without_a_rule_is_held_until_the_job_has_ended(
    jobs_url: str,
) -> None:
    with Harness(order(None), url=jobs_url) as harness:
        flow = harness.engine.inspect.flows[0]
        first = harness.submit(flow, Order(1), dedup_key="mine")
        assert harness.submit(flow, Order(2), dedup_key="mine").id == first.id
        harness.run_until_idle()
        assert harness.submit(flow, Order(3), dedup_key="mine").created
        assert harness.verify() == []


FOR_GOOD = Dedup(key=lambda payload: str(payload.number), until=Until.FAILED_FOR_GOOD)
ONE_HOUR = timedelta(hours=1)


@pytest.mark.shows("E-67")
def test_a_key_that_may_still_be_needed_stays_taken_until_the_retries_are_spent(
    jobs_url: str,
) -> None:
    retries = Backoff(delays=[ONE_HOUR, ONE_HOUR])
    with Harness(order(FOR_GOOD, operator_retry=retries), url=jobs_url) as harness:
        flow = harness.engine.inspect.flows[0]
        first = harness.run(flow, Order(1, "fails"))
        for _ in range(2):
            again = harness.submit(flow, Order(1))
            assert (again.id, again.created, again.role) == (first.id, False, "failed")
            harness.engine.retry(first.id, actor="op")
            assert harness.submit(flow, Order(1)).id == first.id
            harness.advance(hours=1)
        with pytest.raises(TransitionNotAllowed) as refusal:
            harness.engine.retry(first.id, actor="op")
        assert refusal.value.code == "retries-spent"
        assert harness.submit(flow, Order(1)).created
        assert harness.verify() == []


@pytest.mark.shows("E-67")
@pytest.mark.parametrize("failed", ["failed", "apart"])
@pytest.mark.parametrize("way", ["cancelled", "expired"])
def test_the_commit_that_cancels_or_expires_a_job_frees_its_key(
    jobs_url: str, way: str, failed: str
) -> None:
    ends = {"cancelled": "failed", "expired": "failed"} if failed == "failed" else {}
    flow: Flow[Any] = Flow(
        "order", Lifecycle("new", {"new": ["done"]}, **ends), payload=Order, dedup=FOR_GOOD
    )
    flow.stage("new")(lambda run: None)
    with Harness(flow, url=jobs_url) as harness:
        job = harness.submit(flow, Order(1), after=2 * ONE_HOUR, expires=ONE_HOUR)
        assert not harness.submit(flow, Order(1)).created
        if way == "cancelled":
            harness.engine.cancel(job.id, actor="op")
        else:
            harness.advance(hours=1)
        assert harness.job(job.id).code == way
        assert harness.submit(flow, Order(1)).created
        assert harness.verify() == []


@pytest.mark.shows("E-67")
def test_without_operator_retry_a_failed_job_keeps_its_key_until_it_is_pruned(
    jobs_url: str,
) -> None:
    with Harness(order(FOR_GOOD), url=jobs_url) as harness:
        flow = harness.engine.inspect.flows[0]
        first = harness.run(flow, Order(1, "fails"))
        harness.advance(days=400)
        assert harness.submit(flow, Order(1)).id == first.id
        assert harness.engine.retention.prune(ended_before=harness.now) == 1
        assert harness.submit(flow, Order(1)).created
        assert harness.verify() == []


@pytest.mark.shows("E-67", "E-90")
def test_a_retry_takes_the_key_that_the_release_before_had_freed(jobs_url: str) -> None:
    # That release freed the key at every bad end, as `Until.FINISHED` does.
    with Harness(order(BY_NUMBER), url=jobs_url) as before:
        failed = before.run(before.engine.inspect.flows[0], Order(1, "fails"))
        store = before.engine.store
        flow = order(FOR_GOOD)
        now = Engine(store, flows=[flow])
        assert now.inspect.verify() == []
        holder = now.submit(flow, Order(1))
        assert holder.created
        with pytest.raises(KeyTaken):
            now.retry(failed.id, actor="op")
        now.cancel(holder.id, actor="op")
        assert now.retry(failed.id, actor="op").state == "new"
        assert now.submit(flow, Order(1)).id == failed.id
        assert now.inspect.verify() == []
