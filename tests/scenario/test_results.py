"""What a job has returned: typed, or raised; and the call that submits, waits and returns."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

import ulak
from tests.scenario.doubles import SOON, engine_on, settings, store_of
from ulak.engine.engine import Engine

Call = Callable[..., Any]


@dataclass(frozen=True)
class Receipt:
    number: int
    lines: tuple[str, ...]


class NoSuchOrder(Exception):
    code = "no-such-order"


def call(engine: Engine, *given: Any, timeout: Any = SOON, **options: Any) -> Any:
    return engine.call(*given, timeout=timeout, **options)


def call_on_a_loop(engine: Engine, *given: Any, timeout: Any = SOON, **options: Any) -> Any:
    return asyncio.run(engine.aio.call(*given, timeout=timeout, **options))


CALLS = [call, call_on_a_loop]


@pytest.fixture
def engine(jobs_url: str) -> Engine:
    """An engine with functions that return a value, a value later, nothing, and an error."""
    made = engine_on(store_of(jobs_url))

    @made.job
    def charge(number: int) -> Receipt:
        return Receipt(number, ("a", "b"))

    @made.job
    async def fetch(number: int) -> Receipt | None:
        return Receipt(number, ()) if number else None

    @made.job
    def forget(number: int) -> None: ...

    @made.job(retry=0)
    def refuse(number: int) -> int:
        raise NoSuchOrder(f"there is no order {number}")

    made.of = {f.flow.name: f for f in (charge, fetch, forget, refuse)}  # type: ignore[attr-defined]
    return made


def functions(engine: Engine) -> dict[str, Any]:
    found: dict[str, Any] = engine.of  # type: ignore[attr-defined]
    return found


@pytest.mark.shows("E-79")
def test_a_result_is_of_the_type_that_was_declared(jobs_url: str) -> None:
    flow: ulak.Flow[Any] = ulak.Flow(
        "orders", ulak.Lifecycle("new", {"new": ["paid"], "paid": ["done"]})
    )

    @flow.stage("new")
    def pay(run: ulak.Run[Any]) -> Receipt | ulak.Hold:
        return Receipt(run.payload, ("paid",))

    @flow.stage("paid")
    def ship(run: ulak.Run[Any]) -> None: ...

    with engine_on(store_of(jobs_url), flow) as engine, engine.working(settings()):
        job = engine.submit(flow, 42)
        engine.wait(job.id, timeout=SOON)
        wanted = Receipt(42, ("paid",))
        assert engine.result(job) == engine.result(job.id) == wanted
        assert asyncio.run(engine.aio.result(job)) == wanted
        plain = {"number": 42, "lines": ["paid"]}
        assert engine.inspect.result(job.id) == plain
        assert asyncio.run(engine.aio.inspect.result(job.id)) == plain


@pytest.mark.shows("E-79")
@pytest.mark.parametrize("call", CALLS)
def test_a_call_submits_waits_and_returns(engine: Engine, call: Call) -> None:
    of = functions(engine)
    with engine, engine.working(settings()):
        assert call(engine, of["charge"].bind(42)) == Receipt(42, ("a", "b"))
        assert call(engine, of["fetch"].bind(number=42), tenant="acme") == Receipt(42, ())
        assert call(engine, of["fetch"].bind(0)) is None
        assert call(engine, of["forget"].bind(1)) is None
        assert call(engine, of["charge"].flow, {"args": [1], "kwargs": {}}).number == 1
        assert {job.tenant for job in engine.jobs()} == {"", "acme"}
        assert len(engine.jobs()) == 5


@pytest.mark.shows("E-79")
@pytest.mark.parametrize("call", CALLS)
def test_a_job_that_failed_raises_its_code_and_message(engine: Engine, call: Call) -> None:
    refuse = functions(engine)["refuse"]
    with engine, engine.working(settings()):
        with pytest.raises(ulak.JobFailed) as failure:
            call(engine, refuse.bind(42))
        (job,) = engine.jobs()
        error = failure.value
        assert (error.code, error.message) == ("no-such-order", "NoSuchOrder: there is no order 42")
        assert (error.job_id, error.state) == (job.id, "failed")
        assert str(error) == f'job {job.id} has ended in "failed" (no-such-order): {error.message}'
        with pytest.raises(ulak.JobFailed, match="no-such-order"):
            engine.result(job)
        assert engine.inspect.result(job.id) is None


@pytest.mark.shows("E-79")
def test_a_job_that_was_cancelled_or_has_expired_raises_that(engine: Engine) -> None:
    charge = functions(engine)["charge"]
    with engine:
        cancelled, expired = engine.submit(charge, 1), engine.submit(charge, 2)
        engine.cancel(cancelled.id, actor="ada", note="bought twice")
        engine.expire(expired.id, actor="ada")
        for job, code in ((cancelled, "cancelled"), (expired, "expired")):
            with pytest.raises(ulak.JobFailed) as failure:
                engine.result(job)
            assert (failure.value.state, failure.value.code) == (code, code)
        with pytest.raises(ulak.JobFailed, match="bought twice") as failure:
            engine.result(cancelled)
        assert failure.value.message == "bought twice"


@pytest.mark.shows("E-79")
def test_a_job_that_has_not_ended_has_no_result_yet(engine: Engine) -> None:
    with engine:
        job = engine.submit(functions(engine)["charge"], 1)
        for read in (
            lambda: engine.result(job),
            lambda: asyncio.run(engine.aio.result(job.id)),
        ):
            with pytest.raises(ulak.TransitionNotAllowed, match="has not ended") as refusal:
                read()
            assert (refusal.value.code, refusal.value.state) == ("not-finished", "queued")
        assert engine.inspect.result(job.id) is None


def test_a_result_of_another_type_than_declared_is_refused_and_can_be_read(jobs_url: str) -> None:
    engine = engine_on(store_of(jobs_url))

    @engine.job
    def count(number: int) -> int:
        return "many"  # type: ignore[return-value]

    with engine, engine.working(settings()):
        job = engine.submit(count, 1)
        engine.wait(job.id, timeout=SOON)
        with pytest.raises(
            ulak.BadInput, match=r'the result of "queued": .* engine\.inspect\.result'
        ):
            engine.result(job)
        assert engine.inspect.result(job.id) == "many"


@pytest.mark.shows("E-79")
@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_takes_too_long_names_the_job_which_goes_on(engine: Engine, call: Call) -> None:
    charge = functions(engine)["charge"]
    with engine:
        with pytest.raises(TimeoutError) as late:
            call(engine, charge.bind(1), timeout=0)
        (job,) = engine.jobs()
        assert str(late.value).startswith(f'job {job.id} is still in "queued" after 0 s: ')
        with engine.working(settings()):
            engine.wait(job.id, timeout=SOON)
        assert engine.result(job) == Receipt(1, ("a", "b"))


def test_a_call_that_could_not_be_waited_for_submits_nothing(engine: Engine) -> None:
    charge = functions(engine)["charge"]
    with engine:
        with pytest.raises(ulak.BadInput, match="timeout="):
            engine.call(charge.bind(1), timeout=timedelta(seconds=-1))
        with pytest.raises(ulak.BadInput, match="timeout="):
            asyncio.run(engine.aio.call(charge.bind(1), timeout=-1))
        with pytest.raises(ulak.BadInput, match=r"engine\.submit\(\.\.\., connection="):
            engine.call(charge.bind(1), connection=object())

        async def call_plainly() -> None:
            engine.call(charge.bind(1))

        with pytest.raises(ulak.BadInput, match=r"engine\.aio\.submit"):
            asyncio.run(call_plainly())
        assert engine.jobs() == []


def test_the_result_of_a_later_round_is_the_one(jobs_url: str) -> None:
    engine, tries = engine_on(store_of(jobs_url)), [1, 2]
    flow: ulak.Flow[Any] = ulak.Flow(
        "twice", ulak.Lifecycle("a", {"a": ["b"], "b": ["done"]}, retry_to="a"), retry=0
    )

    @flow.stage("a")
    def first(run: ulak.Run[Any]) -> int:
        return tries.pop(0)

    @flow.stage("b")
    def second(run: ulak.Run[Any]) -> None:
        if tries:
            raise ValueError("once more")

    engine.add(flow)
    with engine, engine.working(settings()):
        job = engine.submit(flow, 1)
        engine.wait(job.id, timeout=SOON)
        with pytest.raises(ulak.JobFailed, match="once more"):
            engine.result(job)
        engine.retry(job.id, actor="ada")
        engine.wait(job.id, timeout=SOON)
        assert engine.result(job) == 2
