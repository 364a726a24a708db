"""Who submits a job of a flow with owners, or submits it again, owns it and finds it."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import pytest

from ulak import Dedup, Engine, Flow, JobFilter, Lifecycle
from ulak.errors import BadInput, JobNotFound
from ulak.testing import Harness

NOBODY = "0192e4a0-5b6c-7d10-8a4e-0f2b6c9d1e33"


def print_flow(**options: Any) -> Flow[Any]:
    """A flow with owners, and one job for each number."""
    flow: Flow[Any] = Flow(
        "print", Lifecycle("new", {"new": ["done"]}), dedup=Dedup(), owners=True, **options
    )
    flow.stage("new")(lambda run: None)
    return flow


def submit(engine: Engine, n: int, actor: str) -> Any:
    return engine.submit(engine.inspect.flows[0], n, actor=actor)


def submit_many(engine: Engine, n: int, actor: str) -> Any:
    return engine.submit_many(engine.inspect.flows[0], [n], actor=actor)[0]


def submit_async(engine: Engine, n: int, actor: str) -> Any:
    return asyncio.run(engine.aio.submit(engine.inspect.flows[0], n, actor=actor))


@pytest.mark.shows("E-75")
@pytest.mark.parametrize("door", [submit, submit_many, submit_async])
def test_a_job_is_found_by_each_of_its_owners(
    jobs_url: str, door: Callable[[Engine, int, str], Any]
) -> None:
    with Harness(print_flow(unguessable_ids=True), url=jobs_url) as harness:
        engine = harness.engine
        first, other = door(engine, 1, "ada"), door(engine, 2, "bob")
        again = door(engine, 1, "bob")
        assert (again.id, again.created) == (first.id, False)
        assert engine.owners.all(first.id) == ["ada", "bob"]
        assert asyncio.run(engine.aio.owners.all(other.id)) == ["bob"]
        assert [job.id for job in engine.jobs(JobFilter(owner="ada"))] == [first.id]
        assert {job.id for job in engine.jobs(JobFilter(owner="bob"))} == {first.id, other.id}
        assert engine.jobs(JobFilter(owner="eve")) == []
        with pytest.raises(JobNotFound):
            engine.owners.all(NOBODY)
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-75")
def test_a_job_that_nobody_in_particular_submits_has_no_owner(jobs_url: str) -> None:
    with Harness(print_flow(), url=jobs_url) as harness:
        job = harness.submit(harness.engine.inspect.flows[0], 1)
        assert harness.engine.owners.all(job.id) == []


@pytest.mark.shows("E-75")
def test_owners_are_forgotten_with_their_job(jobs_url: str) -> None:
    with Harness(print_flow(), url=jobs_url) as harness:
        engine = harness.engine
        submit(engine, 1, "ada")
        submit(engine, 1, "bob")
        harness.run_until_idle()
        harness.advance(hours=1)
        now = engine.store.clock.now()
        assert engine.store.prune(before=now, limit=9) == 1
        assert engine.jobs(JobFilter(owner="ada")) == engine.jobs(JobFilter(owner="bob")) == []
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-75", "E-33")
def test_an_owner_is_added_in_the_callers_transaction(shared_url: str) -> None:
    flow = print_flow()
    with Harness(flow, url=shared_url) as harness:
        engine = harness.engine

        def repeat(actor: str, *, and_fail: bool = False) -> Any:
            with engine.transaction() as connection:
                job = engine.submit(flow, 1, actor=actor, connection=connection)
                if and_fail:
                    raise TimeoutError(job.id)
            return job

        first = repeat("ada")
        assert engine.owners.all(first.id) == ["ada"]
        with pytest.raises(TimeoutError, match=first.id):
            repeat("bob", and_fail=True)
        assert engine.owners.all(first.id) == ["ada"]
        assert repeat("bob").created is False
        assert engine.owners.all(first.id) == ["ada", "bob"]
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-75")
def test_an_owner_is_added_to_a_job_that_exists_and_lists_it_by_time(jobs_url: str) -> None:
    plain: Flow[Any] = Flow("plain", Lifecycle("new", {"new": ["done"]}))
    plain.stage("new")(lambda run: None)
    with Harness(print_flow(unguessable_ids=True), plain, url=jobs_url) as harness:
        engine = harness.engine
        jobs = [submit(engine, n, "ada").id for n in range(3)]
        harness.run_until_idle()
        for job in (jobs[1], jobs[2], jobs[0], jobs[1]):
            harness.advance(seconds=1)
            engine.owners.add(job, "bob")
        assert engine.owners.all(jobs[0]) == ["ada", "bob"]
        found = engine.owners.jobs("bob")
        assert [owned.job_id for owned in found] == [jobs[0], jobs[2], jobs[1]]
        assert asyncio.run(engine.aio.owners.jobs("bob", before=found[0], limit=1)) == found[1:2]
        asyncio.run(engine.aio.owners.add(jobs[2], "eve"))
        assert [owned.job_id for owned in engine.owners.jobs("eve")] == [jobs[2]]
        engine.owners.add(jobs[1], "eve", since=engine.get(jobs[1]).created_at)
        assert [owned.job_id for owned in engine.owners.jobs("eve")] == [jobs[2], jobs[1]]
        with pytest.raises(BadInput, match="has no time zone"):
            engine.owners.add(jobs[0], "eve", since=datetime(2026, 1, 1))  # noqa: DTZ001 - on purpose
        with pytest.raises(JobNotFound):
            engine.owners.add(NOBODY, "bob")
        with pytest.raises(BadInput, match="owner= is ''; it must be a text that is not empty"):
            engine.owners.add(jobs[0], "")
        with pytest.raises(BadInput, match="plain keeps no owners; declare it with Flow"):
            engine.owners.add(harness.submit(plain).id, "bob")
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-75", "E-87")
def test_an_owner_is_added_to_a_job_in_the_callers_transaction(shared_url: str) -> None:
    with Harness(print_flow(), url=shared_url) as harness:
        engine = harness.engine
        job = submit(engine, 1, "ada").id
        for is_kept in (False, True):
            with suppress(TimeoutError), engine.transaction() as connection:
                engine.owners.add(job, "bob", connection=connection)
                if not is_kept:
                    raise TimeoutError
            assert engine.owners.all(job) == (["ada", "bob"] if is_kept else ["ada"])


@pytest.mark.shows("E-74")
def test_a_backlog_says_what_waits_what_is_held_and_how_fast_jobs_end(jobs_url: str) -> None:
    flow: Flow[Any] = Flow("mail", Lifecycle("new", {"new": ["asked"], "asked": ["done"]}))
    flow.stage("new", queue="post")(lambda run: None)
    flow.gate("asked", choices={"yes": "done"})
    with Harness(flow, print_flow(queue="post"), url=jobs_url) as harness:
        engine = harness.engine
        assert engine.inspect.backlog() == []
        held = [harness.submit(flow).id for _ in range(3)]
        harness.run_until_idle()
        engine.decide(held[0], "yes", actor="ada")
        harness.submit(flow, after=timedelta(hours=1))
        due = harness.submit(flow)
        mail, post = engine.inspect.backlog()
        assert (mail.flow, mail.queue, mail.held) == ("mail", "mail", 2)
        assert mail.done_per_second == mail.ended_per_second == 1 / 60
        assert (post.flow, post.queue, post.due, post.delayed) == ("mail", "post", 1, 1)
        assert (post.oldest_due, post.at_least) == (due.created_at, frozenset())
        assert asyncio.run(engine.aio.inspect.backlog()) == [mail, post]
