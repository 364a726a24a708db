"""A stage answers with something that cannot be used: the job is held, and nobody waits for it."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import ulak
from tests.scenario import isolated
from tests.scenario.doubles import SOON, engine_on, eventually, settings, store_of
from ulak.artifacts.local import LocalStorage
from ulak.artifacts.s3 import S3Settings
from ulak.artifacts.signing import DownloadLinks
from ulak.auth.identity import Identity
from ulak.auth.principal import Principal
from ulak.clock import ManualClock
from ulak.idempotency import Answer, Asked, Execution, Guard, Scope
from ulak.store.memory import MemoryStore
from ulak.testing import Harness
from ulak.web.idempotency import Protection

HOUR = timedelta(hours=1)


class Sly(str):
    """A text that fails when it is looked at."""

    def isprintable(self) -> bool:
        raise RuntimeError("no")


class Evil:
    """What fails when it is shown, in a way that `except Exception` does not catch."""

    def __repr__(self) -> str:
        raise SystemExit(4)


WRONG: dict[str, Callable[[], Any]] = {
    "hold with a number": lambda: ulak.Hold(404, "not found"),  # type: ignore[arg-type]
    "hold without a code": lambda: ulak.Hold(""),
    "hold with None": lambda: ulak.Hold(None),  # type: ignore[arg-type]
    "hold for a reason in bytes": lambda: ulak.Hold("look", b"why"),  # type: ignore[arg-type]
    "hold with a code that cannot be read": lambda: ulak.Hold(Sly("look")),
    "hold with what cannot be shown": lambda: ulak.Hold(Evil()),  # type: ignore[arg-type]
    "goto after a text": lambda: ulak.Goto("b", after="5"),  # type: ignore[arg-type]
    "goto after True": lambda: ulak.Goto("b", after=True),
    "goto after NaN": lambda: ulak.Goto("b", after=float("nan")),
    "goto after ever": lambda: ulak.Goto("b", after=float("inf")),
    "goto in the past": lambda: ulak.Goto("b", after=-1),
    "goto in the past by a timedelta": lambda: ulak.Goto("b", after=-HOUR),
    "goto after a thousand years": lambda: ulak.Goto("b", after=timedelta(days=365_000)),
    "goto after more seconds than there are": lambda: ulak.Goto("b", after=1e300),
    "goto a number": lambda: ulak.Goto(7),  # type: ignore[arg-type]
    "goto None": lambda: ulak.Goto(None),  # type: ignore[arg-type]
    "goto a list": lambda: ulak.Goto(["b"]),  # type: ignore[arg-type]
    "goto nowhere": lambda: ulak.Goto("nowhere"),
    "goto the class": lambda: ulak.Goto,
    "later by a text": lambda: ulak.RetryLater("5"),  # type: ignore[arg-type]
    "later by what cannot be shown": lambda: ulak.RetryLater(Evil()),  # type: ignore[arg-type]
    "later by None": lambda: ulak.RetryLater(None),  # type: ignore[arg-type]
    "later by False": lambda: ulak.RetryLater(False),
    "later in the past": lambda: ulak.RetryLater(-0.5),
    "later for a number": lambda: ulak.RetryLater(5, why=7),  # type: ignore[arg-type]
    "later with a wrong key": lambda: ulak.RetryLater(5, key=7),  # type: ignore[arg-type]
    "later with an empty key": lambda: ulak.RetryLater(5, key=""),
    "later and perhaps": lambda: ulak.RetryLater(5, spend_attempt="no"),  # type: ignore[arg-type]
}  # fmt: skip


def answering(make: Callable[[str], Any], *, is_async: bool = True) -> ulak.Flow[str]:
    """A stage whose first answer is made by `make` of the payload, the second is a good one."""
    flow: ulak.Flow[str] = ulak.Flow(
        "odd", ulak.Lifecycle("a", {"a": ["b", "c"], "b": ["done"]}, done=["done", "c"]), retry=0
    )
    asked: set[str] = set()

    def answer(run: ulak.Run[str]) -> Any:
        if run.job_id in asked:
            return ulak.Goto("c")
        asked.add(run.job_id)
        return make(run.payload)

    async def on_loop(run: ulak.Run[str]) -> Any:
        return answer(run)

    flow.stage("a")(on_loop if is_async else answer)
    flow.stage("b")(on_loop)
    return flow


@pytest.mark.shows("E-78")
@pytest.mark.parametrize("is_async", [True, False], ids=["loop", "thread"])
def test_a_wrong_outcome_is_a_hold_with_a_sentence(jobs_url: str, is_async: bool) -> None:
    flow = answering(lambda name: WRONG[name](), is_async=is_async)
    with Harness(flow, url=jobs_url) as harness:
        jobs = {name: harness.submit(flow, name).id for name in WRONG}
        harness.run_until_idle()
        for name, job_id in jobs.items():
            now = harness.job(job_id)
            assert (now.state, now.code, now.leased_by) == ("held", "bad-outcome", None), name
            sentence = harness.trail(job_id)[-1].message or ""
            assert len(sentence.split()) > 4, (name, sentence)
            assert "Traceback" not in sentence
            harness.engine.release(job_id, actor="ada")
        harness.run_until_idle()
        assert {harness.job(job_id).state for job_id in jobs.values()} == {"c"}
        assert harness.verify() == []


@pytest.mark.shows("E-78")
def test_wrong_outcomes_take_no_places_of_a_worker(jobs_url: str) -> None:
    flow: ulak.Flow[int] = ulak.Flow("odd", ulak.Lifecycle("a", {"a": ["b"], "b": ["done"]}))

    @flow.stage("a")
    async def a(run: ulak.Run[int]) -> Any:
        odd = [ulak.Hold(404, "x"), ulak.Goto("b", after="5"), ulak.RetryLater(None)]  # type: ignore[arg-type]
        return odd[run.payload] if run.payload < len(odd) else None

    @flow.stage("b")
    async def b(run: ulak.Run[int]) -> None: ...

    with engine_on(store_of(jobs_url), flow) as engine:
        jobs = [engine.submit(flow, n) for n in range(4)]
        with engine.working(settings(loop=1)) as worker:
            states = [engine.wait(j.id, until="held", timeout=SOON).state for j in jobs]
            assert states == ["held", "held", "held", "done"]
        assert worker.running == 0
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-78")
def test_a_wrong_outcome_of_a_child_is_a_hold_too(tmp_path: Any) -> None:
    with engine_on(store_of(f"sqlite:///{tmp_path}/jobs.db"), isolated.odd) as engine:
        job = engine.submit(isolated.odd)
        with engine.working(settings()):
            held = engine.wait(job.id, until="held", timeout=SOON)
    assert (held.state, held.code) == ("held", "bad-outcome")


@pytest.mark.shows("E-78")
def test_a_wrong_outcome_of_an_undo_is_a_hold_too(jobs_url: str) -> None:
    flow: ulak.Flow[str] = ulak.Flow("back", ulak.Lifecycle("a", {"a": ["done"]}), retry=0)
    asked: set[str] = set()

    @flow.stage("a")
    async def fail(run: ulak.Run[str]) -> None:
        raise RuntimeError("give up")

    @fail.undo
    async def take_back(run: ulak.Run[str]) -> Any:
        if run.job_id in asked:
            return None
        asked.add(run.job_id)
        return WRONG[run.payload]()

    # An undo goes where the job goes, whatever state it names.
    names = [name for name in WRONG if name != "goto nowhere"]
    with Harness(flow, url=jobs_url) as harness:
        jobs = {name: harness.submit(flow, name).id for name in names}
        harness.run_until_idle()
        for name, job_id in jobs.items():
            now = harness.job(job_id)
            assert (now.role, now.code, now.leased_by) == ("held", "undo-failed", None), name
            assert len((harness.trail(job_id)[-1].message or "").split()) > 4, name
            harness.engine.release(job_id, actor="ada")
        harness.run_until_idle()
        assert {harness.job(job_id).state for job_id in jobs.values()} == {"failed"}
        assert harness.verify() == []


class Unprintable(Exception):
    """Fails when it is printed, in a way that `except Exception` does not catch."""

    def __str__(self) -> str:
        raise SystemExit(3)


class Codeless(Exception):
    """Fails when its code is read."""

    @property
    def code(self) -> str:
        raise KeyboardInterrupt


class Indivisible(ExceptionGroup[Exception]):
    """A group that cannot be split."""

    def derive(self, excs: Any) -> Any:
        raise RuntimeError("no")


RAISED: dict[str, Callable[[], BaseException]] = {
    "exit": lambda: SystemExit(3),
    "interrupt": KeyboardInterrupt,
    "end of a generator": GeneratorExit,
    "unprintable": Unprintable,
    "without a code": Codeless,
    "group": lambda: BaseExceptionGroup("all", [SystemExit(3), KeyError("k")]),
    "group that cannot be split": lambda: Indivisible("some", [KeyError("k")]),
    "wrong outcome": lambda: ulak.RetryLater(Evil()),  # type: ignore[arg-type]
}


@pytest.mark.shows("E-78")
@pytest.mark.parametrize("is_async", [True, False], ids=["loop", "thread"])
def test_whatever_a_stage_raises_its_run_ends(jobs_url: str, is_async: bool) -> None:
    def fail(name: str) -> None:
        raise RAISED[name]()

    flow = answering(fail, is_async=is_async)
    with engine_on(store_of(jobs_url), flow) as engine, engine.working(settings()) as worker:
        jobs = {name: engine.submit(flow, name).id for name in RAISED}
        for name, job_id in jobs.items():
            now = engine.wait(job_id, until="held", timeout=SOON)
            expected = "held" if name == "wrong outcome" else "failed"
            assert (now.state, now.leased_by) == (expected, None), name
            assert engine.inspect.trail(job_id)[-1].message, name
        eventually(lambda: worker.running == 0)
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-78")
@pytest.mark.parametrize("is_async", [True, False], ids=["loop", "thread"])
def test_a_number_is_seconds_and_retry_later_may_be_raised(jobs_url: str, is_async: bool) -> None:
    def busy(_: str) -> Any:
        raise ulak.RetryLater(90, why="the bank is closed")

    flow = answering(busy, is_async=is_async)
    flow.permanent = (Exception,)
    with Harness(flow, url=jobs_url) as harness:
        job = harness.run(flow, "x")
        now = harness.job(job.id)
        assert (now.state, now.attempt, now.code) == ("a", 0, None), "no attempt is spent"
        why = harness.why(job.id)
        assert why.code == "delayed"
        assert "the bank is closed" in why.sentence
        assert why.facts["message"] == "the bank is closed"
        harness.advance(seconds=89)
        assert harness.job(job.id).state == "a"
        harness.advance(seconds=1)
        assert harness.job(job.id).state == "c"


@pytest.mark.shows("E-78")
def test_why_tells_the_reason_of_a_failure_that_is_tried_again(jobs_url: str) -> None:
    def fail(_: str) -> Any:
        raise ConnectionError("no route")

    flow = answering(fail)
    flow.retry = ulak.Backoff(delays=[60])
    with Harness(flow, url=jobs_url) as harness:
        job = harness.run(flow, "x")
        assert "after attempt 1 failed: ConnectionError: no route" in harness.why(job.id).sentence
        fresh = harness.submit(flow, "x", after=3600)
        assert harness.why(fresh.id).facts["message"] is None


NO_DURATION: list[Any] = [
    "5", True, float("nan"), float("inf"), float("-inf"), -1, -HOUR, [5], 1e300, 10**400, b"5",
    timedelta.max,
]  # fmt: skip


@pytest.mark.shows("E-78")
@pytest.mark.parametrize("option", ["after", "expires"])
def test_a_submit_refuses_what_is_no_duration(option: str) -> None:
    flow = answering(str)
    with Harness(flow) as harness:
        for value in NO_DURATION:
            with pytest.raises(ulak.BadInput, match=f"{option}="):
                harness.submit(flow, "x", **{option: value})
        assert harness.engine.jobs() == []


@pytest.mark.shows("E-78")
def test_a_submit_takes_seconds(jobs_url: str) -> None:
    flow = answering(str)
    with Harness(flow, url=jobs_url) as harness:
        job = harness.submit(flow, "x", after=60, expires=3600.5)
        row = harness.engine.store.find_job(bytes.fromhex(job.id.replace("-", "")))
        assert row is not None
        assert row.expires_at is not None
        assert row.not_before - row.created_at == 60_000_000
        assert row.expires_at - row.created_at == 3_600_500_000


@pytest.mark.shows("E-78")
def test_every_call_refuses_what_is_no_duration() -> None:
    with ulak.connect("memory://") as engine:

        @engine.job
        def work() -> None: ...

        job = engine.submit(work)
        calls: list[Callable[[Any], object]] = [
            lambda value: ulak.WorkerSettings(lease=value),
            lambda value: ulak.WorkerSettings(drain=value),
            lambda value: ulak.connect("memory://", submit_timeout=value),
            lambda value: engine.wait(job.id, timeout=value),
            lambda value: asyncio.run(engine.aio.wait(job.id, timeout=value)),
            lambda value: engine.worker(ulak.WorkerSettings(lease=value)).take(job.id),
            lambda value: engine.flow_control.pause(flow="work", actor="ada", until=value),
            lambda value: engine.flow_control.apart("work", lease=value),
            lambda value: engine.schedules.add("s", work, every=60, expires=value),
        ]
        for value in NO_DURATION:
            for call in calls:
                with pytest.raises(ulak.BadInput):
                    call(value)
            with pytest.raises(ulak.FlowError, match="every="):
                engine.schedules.add("s", work, every=value)


@pytest.mark.shows("E-78")
def test_scopes_credentials_and_links_refuse_what_is_no_duration(tmp_path: Path) -> None:
    """Broken by a door that takes a timedelta alone, or believes whatever it is given."""
    store = MemoryStore()
    identity = Identity(store, secret="x" * 32)
    issued = identity.create_key("ci", roles=["service"], actor="ada")
    person = Principal("ada", tenant=None, roles=frozenset({"admin"}))
    links, storage = DownloadLinks(b"k" * 32), LocalStorage(tmp_path)
    scope = Scope("orders.charge")
    doors: dict[str, Callable[[Any], object]] = {
        "ttl=": lambda value: Scope("s", ttl=value),
        "lease=": lambda value: Scope("s", lease=value),
        "lock_wait=": lambda value: Scope("s", lock_wait=value),
        "fed_for=": lambda value: Scope("s", fed_for=value),
        "wait=": lambda value: Protection("/", scope, wait=value),
        "wait= ": lambda value: asyncio.run(Guard(store).aio.begin(None, wait=value)),  # type: ignore[arg-type]
        "life=": lambda value: identity.create_key("ci", roles=["service"], actor="a", life=value),
        "overlap=": lambda value: identity.rotate_key(issued.key.id, actor="a", overlap=value),
        "life= ": lambda value: identity.make_link(person, value),
        "login_life=": lambda value: Identity(store, secret="x" * 32, login_life=value),
        "life=  ": lambda value: links.make_code("pdfs/a/1.pdf", "1", value),
        "expires_in=": lambda value: storage.get_presigned_url("pdfs/a/1.pdf", value),
        "timeout": lambda value: S3Settings("bucket", timeout=value),
        "connect_timeout": lambda value: S3Settings("bucket", connect_timeout=value),
    }
    for name, call in doors.items():
        for value in NO_DURATION:
            with pytest.raises(ulak.BadInput, match=name.strip()):
                call(value)
    (left,) = identity.keys()
    assert left.id == issued.key.id


@pytest.mark.shows("E-78")
def test_scopes_credentials_and_links_take_seconds(tmp_path: Path) -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    identity = Identity(store, secret="x" * 32, login_life=3600)
    key = identity.create_key("ci", roles=["service"], actor="ada", life=90.5).key
    assert key.expires_at == key.created_at + timedelta(seconds=90.5)
    identity.rotate_key(key.id, actor="ada", overlap=60)
    links = DownloadLinks(b"k" * 32, clock)
    code = links.make_code("pdfs/a/1.pdf", "1", 60)
    assert code == links.make_code("pdfs/a/1.pdf", "1", timedelta(seconds=60))
    guard = Guard(store)
    scope = Scope("orders.charge", mode="lease", ttl=60, lease=30.5, lock_wait=0.5, fed_for=30)
    asked = Asked(scope, "k-1", request_hash="h")
    execution = guard.begin(asked)
    assert isinstance(execution, Execution)
    execution.settle(Answer(200, b"1"))
    assert guard.begin(asked) == Answer(200, b"1")
    clock.advance(timedelta(seconds=61))
    begun = guard.begin(asked)
    assert isinstance(begun, Execution)
    begun.abandon()
    assert S3Settings("bucket", timeout=30, connect_timeout=5.5).timeout == 30


@pytest.mark.shows("E-78")
def test_every_declaration_refuses_what_is_no_duration() -> None:
    life = ulak.Lifecycle("a", {"a": ["b"], "b": ["done"]})

    def plain(run: ulak.Run[Any]) -> None: ...

    def made(value: Any, where: str) -> ulak.Flow[Any]:
        options: dict[str, Any] = {
            "expires": {"expires": value},
            "dedup": {"dedup": ulak.Dedup(keep=value)},
            "retry": {"retry": ulak.Backoff(delays=[1, value])},
            "undo retry": {"undo_retry": ulak.Backoff(first=value)},
            "operator retry": {"operator_retry": ulak.Backoff(longest=value)},
        }.get(where, {})
        of_stage: dict[str, Any] = {
            "timeout": {"timeout": value},
            "stage retry": {"retry": ulak.Backoff(longest=value)},
            "rate": {"rate": ulak.Rate(1, per=value)},
        }.get(where, {})
        flow: ulak.Flow[Any] = ulak.Flow("f", life, **options)
        flow.stage("a", **of_stage)(plain)
        if where == "gate":
            flow.gate("b", choices={"yes": "done"}, deadline=value, on_expiry="failed")
        elif where == "wait":
            flow.wait("b", after=value, to="done")
        else:
            flow.stage("b")(plain)
        return flow

    places = ("expires", "dedup", "retry", "undo retry", "operator retry", "timeout",
              "stage retry", "rate", "gate", "wait")  # fmt: skip
    for where in places:
        assert made(90, where).table is not None
        assert made(90.5, where).table is not None
        for value in NO_DURATION:
            with pytest.raises(ulak.FlowError, match=r"^f: "):
                _ = made(value, where).table
