"""A flow that takes no new jobs now says so at every door, and nothing is stored."""

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

import ulak
from ulak import BadInput, Dedup, Engine, Flow, FlowError, Lifecycle, Overloaded
from ulak.core.admission import Intake
from ulak.errors import UnknownName
from ulak.store.protocol import LARGEST_BATCH
from ulak.testing import Harness

SECOND = timedelta(seconds=1)
CODE = "backpressure-active"


def mail(name: str = "mail", **options: Any) -> Flow[Any]:
    """A flow of one stage, with one job for each number."""
    dedup = Dedup(key=lambda payload: str(payload["n"]))
    flow: Flow[Any] = Flow(
        name, Lifecycle("new", {"new": ["sent"]}, done="sent"), dedup=dedup, **options
    )

    @flow.stage("new", to="sent")
    def send(run: Any) -> None: ...

    return flow


def only_small(intake: Intake) -> float | None:
    return 5 if intake.payload["n"] > 9 else None


@pytest.fixture
def stopped(jobs_url: str) -> Iterator[tuple[Engine, Flow[Any]]]:
    """A program with a flow that was stopped after its first job."""
    flow = mail()
    with Harness(flow, mail("other"), url=jobs_url) as harness:
        harness.submit(flow, {"n": 1})
        harness.engine.flow_control.stop_accepting(
            "mail", retry_after=7, actor="ada", note="the printer burns"
        )
        yield harness.engine, flow


def submit(engine: Engine, flow: Flow[Any], n: int) -> Any:
    return engine.submit(flow, {"n": n})


def submit_many(engine: Engine, flow: Flow[Any], n: int) -> Any:
    return engine.submit_many(flow, [{"n": n}])[0]


def submit_async(engine: Engine, flow: Flow[Any], n: int) -> Any:
    return asyncio.run(engine.aio.submit(flow, {"n": n}))


def submit_many_async(engine: Engine, flow: Flow[Any], n: int) -> Any:
    return asyncio.run(engine.aio.submit_many(flow, [{"n": n}]))[0]


def all_at_once(engine: Engine, flow: Flow[Any], payloads: list[Any]) -> Any:
    return engine.submit_many(flow, payloads)


def all_at_once_async(engine: Engine, flow: Flow[Any], payloads: list[Any]) -> Any:
    return asyncio.run(engine.aio.submit_many(flow, payloads))


DOORS = (submit, submit_many, submit_async, submit_many_async)
each_door = pytest.mark.parametrize("door", DOORS)
Door = Callable[[Engine, Flow[Any], int], Any]


# --- stops ----------------------------------------------------------------------------


@each_door
@pytest.mark.shows("E-73")
def test_a_stopped_flow_refuses_new_jobs_at_every_door(
    stopped: tuple[Engine, Flow[Any]], door: Door
) -> None:
    engine, flow = stopped
    with pytest.raises(Overloaded, match="mail takes no new jobs now; try again in 7 s") as caught:
        door(engine, flow, 2)
    assert (caught.value.code, caught.value.retry_after) == (CODE, 7 * SECOND)
    assert len(engine.jobs()) == 1


@each_door
@pytest.mark.shows("E-73")
def test_a_repeat_of_a_known_job_still_gets_that_job(
    stopped: tuple[Engine, Flow[Any]], door: Door
) -> None:
    engine, flow = stopped
    known = door(engine, flow, 1)
    assert (known.created, known.id) == (False, engine.jobs()[0].id)


@pytest.mark.shows("E-73")
def test_others_that_share_a_commit_with_a_refused_job_are_stored(
    stopped: tuple[Engine, Flow[Any]],
) -> None:
    engine, flow = stopped
    other = next(f for f in engine.inspect.flows if f.name == "other")

    async def crowd() -> list[Any]:
        offers = [engine.aio.submit(flow if n % 2 else other, {"n": n + 10}) for n in range(20)]
        return await asyncio.gather(*offers, return_exceptions=True)

    answers = asyncio.run(crowd())
    assert all(isinstance(answer, Overloaded) for answer in answers[1::2])
    assert {answer.flow for answer in answers[::2]} == {"other"}
    assert len(engine.jobs()) == 11


@pytest.mark.shows("E-73")
def test_a_stop_is_listed_and_ended(stopped: tuple[Engine, Flow[Any]]) -> None:
    engine, flow = stopped
    (stop,) = engine.flow_control.stops()
    assert (stop.flow, stop.tenant, stop.retry_after) == ("mail", "*", 7 * SECOND)
    assert (stop.actor, stop.note) == ("ada", "the printer burns")
    assert engine.flow_control.accept("mail", actor="bob", note="it is out") == stop
    assert engine.flow_control.stops() == []
    assert submit(engine, flow, 2).created
    with pytest.raises(UnknownName, match='"mail" is not stopped for "\\*"; what is stopped'):
        engine.flow_control.accept("mail", actor="bob")
    acts = [(line.act, line.actor) for line in engine.inspect.audit(subject="intake/mail/*")]
    assert acts == [("accept", "bob"), ("stop", "ada")]


@pytest.mark.shows("E-73")
def test_a_stop_of_one_tenant_stops_no_other(jobs_url: str) -> None:
    flow = mail()
    with Harness(flow, url=jobs_url) as harness:
        control = harness.engine.flow_control
        control.stop_accepting("mail", tenant="acme", actor="ada")
        with pytest.raises(Overloaded, match="mail takes no new jobs of this tenant now"):
            harness.submit(flow, {"n": 1}, tenant="acme")
        assert harness.submit(flow, {"n": 1}, tenant="beta").created
        control.accept("mail", tenant="acme", actor="ada")
        assert harness.submit(flow, {"n": 1}, tenant="acme").created


@pytest.mark.shows("E-73")
def test_a_stop_is_for_other_processes_and_outlives_its_own(shared_url: str) -> None:
    flow = mail()
    with Harness(flow, url=shared_url) as first:
        first.engine.flow_control.stop_accepting("mail", actor="ada")
    with Harness(mail(), url=shared_url) as second:
        flow = second.engine.inspect.flows[0]
        with pytest.raises(Overloaded):
            second.submit(flow, {"n": 1})
        second.engine.flow_control.accept("mail", actor="ada")
        assert second.submit(flow, {"n": 1}).created


@pytest.mark.shows("E-73")
def test_spawned_and_scheduled_jobs_are_not_refused(jobs_url: str) -> None:
    flow = mail(admission=lambda intake: 60, max_waiting=1)
    parent: Flow[Any] = Flow("parent", Lifecycle("new", {"new": ["done"]}))

    @parent.stage("new")
    def spawn(run: Any) -> None:
        run.spawn(flow, [{"n": 1}, {"n": 2}])

    with Harness(flow, parent, url=jobs_url) as harness:
        engine = harness.engine
        engine.schedules.add("hourly", flow, {"n": 3}, cron="0 * * * *")
        engine.schedules.add("by-hand", flow, {"n": 4}, cron="0 0 1 1 *")
        engine.flow_control.stop_accepting("mail", actor="ada")
        harness.submit(parent, None)
        harness.advance(hours=1)
        engine.schedules.run("by-hand", actor="ada")
        numbers = {
            engine.inspect.payload(job.id)["n"] for job in engine.jobs() if job.flow == "mail"
        }
        assert numbers == {1, 2, 3, 4}


@pytest.mark.shows("E-73")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"flow": "male"}, 'no flow "male"; there are "mail"'),
        ({"retry_after": -1}, "retry_after= cannot be used: -1 is negative"),
        ({"retry_after": "soon"}, "retry_after= cannot be used: 'soon' is not a duration"),
        ({"actor": ""}, "say who acts"),
        ({"tenant": "a\x00"}, "the tenant is"),
    ],
)
def test_a_stop_that_makes_no_sense_changes_nothing(options: dict[str, Any], words: str) -> None:
    with Harness(mail()) as harness:
        with pytest.raises(BadInput, match=words):
            harness.engine.flow_control.stop_accepting(**{"flow": "mail", "actor": "ada"} | options)
        assert harness.engine.flow_control.stops() == []


# --- a rule of one's own --------------------------------------------------------------


@each_door
@pytest.mark.shows("E-73")
def test_a_flow_judges_new_jobs_at_every_door(jobs_url: str, door: Door) -> None:
    flow = mail(admission=only_small)
    with Harness(flow, url=jobs_url) as harness:
        assert door(harness.engine, flow, 9).created
        with pytest.raises(Overloaded, match="mail takes no such job now; try again in 5 s") as no:
            door(harness.engine, flow, 10)
        assert (no.value.code, no.value.retry_after) == (CODE, 5 * SECOND)
        assert len(harness.engine.jobs()) == 1


@each_door
@pytest.mark.shows("E-73")
def test_a_known_job_is_not_judged_again(jobs_url: str, door: Door) -> None:
    judged: list[int] = []

    def once(intake: Intake) -> float | None:
        judged.append(intake.payload["n"])
        return 5 if len(judged) > 1 else None

    flow = mail(admission=once)
    with Harness(flow, url=jobs_url) as harness:
        first = harness.submit(flow, {"n": 1})
        again = door(harness.engine, flow, 1)
        assert (again.created, again.id) == (False, first.id)
        assert judged == [1]


@pytest.mark.shows("E-73")
def test_a_rule_sees_what_is_submitted_and_how_many_wait(jobs_url: str) -> None:
    seen: list[Intake] = []
    flow = mail(admission=seen.append)
    with Harness(flow, url=jobs_url) as harness:
        for n in range(2):
            harness.submit(flow, {"n": n}, tenant="acme", actor="ada", priority=2)
        harness.engine.submit_many(flow, [{"n": 2}, {"n": 3}, {"n": 3}], tenant="acme")
        harness.submit(flow, {"n": 4})
        assert seen[0] == Intake("mail", "acme", "ada", 2, {"n": 0}, 0)
        assert [intake.waiting for intake in seen] == [0, 1, 2, 3, 0]
        harness.run_until_idle()
        harness.submit(flow, {"n": 5}, tenant="acme")
        assert seen[-1].waiting == 0


@pytest.mark.shows("E-73")
@pytest.mark.parametrize("door", [all_at_once, all_at_once_async])
def test_many_jobs_are_refused_as_a_whole(jobs_url: str, door: Any) -> None:
    flow = mail(admission=only_small)
    with Harness(flow, url=jobs_url) as harness:
        payloads = [{"n": n} for n in (1, 2, 10, 3)]
        with pytest.raises(Overloaded):
            door(harness.engine, flow, payloads)
        assert harness.engine.jobs() == []


@pytest.mark.shows("E-73")
def test_a_stop_in_the_middle_of_a_large_call_refuses_nothing_of_it(
    jobs_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = mail()
    with Harness(flow, url=jobs_url) as harness:
        engine = harness.engine.open()
        add = engine.store.add

        def add_and_stop(jobs: Any) -> Any:
            added = add(jobs)
            if not engine.flow_control.stops():
                engine.flow_control.stop_accepting("mail", actor="ada")
            return added

        monkeypatch.setattr(engine.store, "add", add_and_stop)
        number = LARGEST_BATCH + 3
        made = engine.submit_many(flow, [{"n": n} for n in range(number)])
        assert len({job.id for job in made}) == number
        for first in (number, 0):  # the first part of the second call is known, and stores nothing
            payloads = [{"n": n} for n in (*range(first, number), *range(number, 2 * number))]
            with pytest.raises(Overloaded):
                engine.submit_many(flow, payloads)
            assert engine.inspect.counts()[0].jobs == number


@pytest.mark.shows("E-73")
@pytest.mark.parametrize("wrong", [True, "soon", -1, float("nan")])
def test_a_rule_that_returns_no_duration_is_told_so(wrong: Any) -> None:
    flow = mail(admission=lambda intake: wrong)
    with Harness(flow) as harness:
        with pytest.raises(BadInput, match="mail: what its admission returned cannot be used"):
            harness.submit(flow, {"n": 1})
        assert harness.engine.jobs() == []


@pytest.mark.shows("E-73")
def test_a_rule_that_fails_is_a_sentence_without_the_payload() -> None:
    flow = mail(admission=lambda intake: {}[intake.payload["n"]])
    with Harness(flow) as harness:
        with pytest.raises(BadInput, match=r"mail: its admission cannot judge this job \(KeyError"):
            harness.submit(flow, {"n": 1234})
        assert harness.engine.jobs() == []


@pytest.mark.shows("E-73", "E-69")
def test_a_rule_may_raise_an_error_of_its_own() -> None:
    class QuotaExceeded(ulak.UlakError):
        code = "quota-exceeded"

    def judge(intake: Intake) -> None:
        raise QuotaExceeded("no more of these today")

    flow = mail(admission=judge)
    with Harness(flow) as harness, pytest.raises(QuotaExceeded):
        harness.submit(flow, {"n": 1})


# --- how many wait ----------------------------------------------------------------------


@each_door
@pytest.mark.shows("E-73")
def test_no_more_jobs_of_a_tenant_wait_than_the_flow_says(jobs_url: str, door: Door) -> None:
    flow = mail(max_waiting=2)
    with Harness(flow, url=jobs_url) as harness:
        first = harness.submit(flow, {"n": 1})
        harness.submit(flow, {"n": 2}, after=timedelta(hours=1))
        with pytest.raises(Overloaded, match="mail: 2 jobs of this tenant are waiting, and 2 may"):
            door(harness.engine, flow, 3)
        assert door(harness.engine, flow, 1).id == first.id
        assert harness.submit(flow, {"n": 3}, tenant="beta").created
        harness.run_until_idle()
        assert door(harness.engine, flow, 3).created


@pytest.mark.shows("E-73")
def test_jobs_of_another_version_of_the_flow_wait_too(jobs_url: str) -> None:
    before, flow = mail(version=1), mail(version=2, max_waiting=2)
    with Harness(before, flow, url=jobs_url) as harness:
        harness.submit(before, {"n": 1})
        harness.submit(flow, {"n": 2})
        with pytest.raises(Overloaded, match="2 jobs of this tenant are waiting"):
            harness.submit(flow, {"n": 3})
        assert harness.submit(before, {"n": 4}).created, "that version has no bound"


@pytest.mark.shows("E-73")
def test_many_jobs_count_with_each_other(jobs_url: str) -> None:
    flow = mail(max_waiting=3)
    with Harness(flow, url=jobs_url) as harness:
        with pytest.raises(Overloaded):
            harness.engine.submit_many(flow, [{"n": n} for n in range(4)])
        assert harness.engine.jobs() == []
        assert len(harness.engine.submit_many(flow, [{"n": n} for n in range(3)])) == 3
        known = harness.engine.submit_many(flow, [{"n": n} for n in range(3)])
        assert not any(job.created for job in known)


@pytest.mark.shows("E-73", "E-7")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_waiting": 0}, "max_waiting=0 would refuse every job"),
        ({"max_waiting": True}, "max_waiting=True would refuse"),
        ({"admission": 5}, "admission=5 cannot be called"),
    ],
)
def test_a_bound_or_a_rule_that_cannot_work_is_refused_when_it_is_declared(
    options: dict[str, Any], words: str
) -> None:
    with pytest.raises(FlowError, match=f"mail: {words}"):
        Harness(mail(**options)).engine.open()


@pytest.mark.shows("E-73", "E-7")
def test_a_bound_needs_a_stage_that_jobs_wait_for() -> None:
    flow: Flow[Any] = Flow("ask", Lifecycle("judged", {"judged": ["done"]}), max_waiting=5)
    flow.gate("judged", choices={"yes": "done"})
    with pytest.raises(FlowError, match=r'ask: max_waiting= counts .* the stage of "judged", and'):
        Harness(flow).engine.open()


async def _later(intake: Intake) -> None: ...


@pytest.mark.shows("E-73", "E-7")
def test_a_rule_is_a_plain_function() -> None:
    with pytest.raises(FlowError, match="give a plain function of the intake"):
        Harness(mail(admission=_later)).engine.open()
