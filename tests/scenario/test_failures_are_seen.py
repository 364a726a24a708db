"""What goes wrong is in the log: once, with its job, and with what a stage itself has logged."""

import asyncio
import contextvars
import io
import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import ulak
from tests.scenario import isolated
from tests.scenario.doubles import Double, engine_on, kinds, settings, store_of
from ulak.engine.engine import Engine
from ulak.errors import WriteRefused
from ulak.kit.processes import logs
from ulak.kit.processes.logs import Hiding
from ulak.store.memory import MemoryStore
from ulak.store.protocol import ClaimRequest, Want

LIFE = ulak.Lifecycle("go", {"go": ["done"]})
PATIENCE = timedelta(seconds=120)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> "Lines":
    caplog.set_level(logging.INFO, "ulak.jobs")
    return Lines(caplog)


class Lines:
    """The lines of jobs in the log."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def of(self, job: Any) -> list[logging.LogRecord]:
        records = [r for r in self._caplog.records if r.name == "ulak.jobs"]
        return [r for r in records if vars(r)["job_id"] == job.id]

    def told(self, job: Any) -> list[tuple[Any, ...]]:
        """Level, state, attempt and code of each line; every one names its flow."""
        assert all(vars(r)["flow"] == job.flow for r in self.of(job))
        return [
            (r.levelname, r.state, r.attempt, r.code)  # type: ignore[attr-defined]
            for r in self.of(job)
        ]


class Broken(Exception):
    code = "broken"


class Odd(Exception):
    code = "odd"


def failing(*answers: Any, name: str = "f", **options: Any) -> ulak.Flow[Any]:
    """A stage that gives one answer after the other; an exception is raised."""
    flow: ulak.Flow[Any] = ulak.Flow(name, LIFE, **options)
    given = list(answers)

    @flow.stage("go")
    async def go(run: ulak.Run[Any]) -> Any:
        answer = given.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return flow


def worked(engine: Engine, flow: ulak.Flow[Any], until: str = "done") -> Any:
    """Submit a job and let a worker have it until it has come there, or to its end."""
    job = engine.submit(flow)
    with engine.working(settings()):
        return engine.wait(job.id, until=until, timeout=PATIENCE)


@pytest.mark.shows("E-81")
def test_each_failed_attempt_is_a_line_and_the_last_has_its_traceback(
    jobs_url: str, lines: Lines
) -> None:
    flow = failing(Broken("1"), Broken("2"), Broken("3"), retry=ulak.Backoff(delays=[0, 0]))
    with engine_on(store_of(jobs_url), flow) as engine:
        job = worked(engine, flow)
    assert lines.told(job) == [
        ("WARNING", "go", 1, "broken"), ("WARNING", "go", 2, "broken"), ("ERROR", "go", 3, "broken")
    ]  # fmt: skip
    *tried, last = lines.of(job)
    assert [r.exc_text for r in tried] == [None, None]
    assert last.exc_text is not None
    assert "Traceback" in last.exc_text
    assert last.exc_text.endswith("Broken: 3")
    assert "^" not in last.exc_text, "Python 3.11 keeps memory of every mark that it has placed"
    assert [r.reason for r in lines.of(job)] == ["Broken: 1", "Broken: 2", "Broken: 3"]  # type: ignore[attr-defined]


@pytest.mark.shows("E-81")
def test_thirty_jobs_that_fail_for_good_are_thirty_lines(jobs_url: str, lines: Lines) -> None:
    flow = failing(*(Broken() for _ in range(30)), permanent={Broken})
    with engine_on(store_of(jobs_url), flow) as engine:
        jobs = [engine.submit(flow) for _ in range(30)]
        with engine.working(settings()):
            for job in jobs:
                engine.wait(job.id, timeout=PATIENCE)
    assert [lines.told(job) for job in jobs] == [[("ERROR", "go", 1, "broken")]] * 30


@pytest.mark.shows("E-81")
def test_a_hold_is_a_line(jobs_url: str, lines: Lines) -> None:
    held = failing(ulak.Hold("look", "at this"), name="held")
    odd = failing(Odd("x"), name="odd", holds_on={Odd})
    wrong = failing(ulak.Goto("nowhere"), name="wrong")
    with engine_on(store_of(jobs_url), held, odd, wrong) as engine:
        jobs = [worked(engine, flow, "held") for flow in (held, odd, wrong)]
    codes = ("look", "odd", "bad-outcome")
    assert [lines.told(job) for job in jobs] == [[("WARNING", "go", 1, code)] for code in codes]


@pytest.mark.shows("E-81")
def test_a_run_that_is_put_off_is_a_line_and_a_good_one_is_none(
    jobs_url: str, lines: Lines
) -> None:
    flow = failing(ulak.RetryLater(0, why="busy"), None)
    with engine_on(store_of(jobs_url), flow) as engine:
        job = worked(engine, flow)
    assert job.state == "done"
    assert lines.told(job) == [("INFO", "go", 1, "retry")]
    assert lines.of(job)[0].reason == "busy"  # type: ignore[attr-defined]


@pytest.mark.shows("E-81")
def test_a_retry_by_way_of_another_state_is_one_line(lines: Lines) -> None:
    life = ulak.Lifecycle("go", {"go": ["running"], "running": ["done"]})
    flow: ulak.Flow[Any] = ulak.Flow(
        "via", life, retry=ulak.Backoff(delays=[0]), retry_via="failed"
    )

    @flow.stage("go", during="running")
    async def go(run: ulak.Run[Any]) -> None:
        raise Broken("again")

    with engine_on(store_of("memory://"), flow) as engine:
        job = worked(engine, flow)
    assert lines.told(job) == [
        ("WARNING", "running", 1, "broken"),
        ("ERROR", "running", 2, "broken"),
    ]
    assert [r.exc_text is None for r in lines.of(job)] == [True, False]


@pytest.mark.shows("E-81")
def test_a_failure_that_is_undone_is_a_line_and_its_dead_letter_another(
    jobs_url: str, lines: Lines
) -> None:
    flow: ulak.Flow[Any] = ulak.Flow("saga", LIFE, retry=0)

    @flow.stage("go")
    async def go(run: ulak.Run[Any]) -> None:
        raise Broken("no")

    @go.undo
    async def back(run: ulak.Run[Any]) -> None: ...

    with engine_on(store_of(jobs_url), flow) as engine:
        job = worked(engine, flow)
        assert kinds(engine, job) == ["submitted", "failed", "undone", "ended"]
    assert lines.told(job) == [("ERROR", "go", 1, "broken"), ("ERROR", "go", 1, "broken")]
    assert [r.exc_text is None for r in lines.of(job)] == [False, True]


@pytest.mark.shows("E-81")
def test_a_refused_change_is_one_line(lines: Lines) -> None:
    store = Double(MemoryStore())
    flow = failing("result")

    def refuse(changes: Any) -> None:
        if any(change.results for change in changes):
            raise WriteRefused("not this")

    store.before["commit"] = refuse
    with engine_on(store, flow) as engine:
        job = worked(engine, flow, "held")
    assert lines.told(job) == [("WARNING", "go", 1, "commit-rejected")]


@pytest.mark.shows("E-81")
@pytest.mark.parametrize("on_lapse", [None, "lost"])
def test_a_lapse_is_a_line(jobs_url: str, lines: Lines, on_lapse: str | None) -> None:
    flow = failing(None, None, on_lapse=on_lapse, retry=ulak.Backoff(delays=[0]))
    store = store_of(jobs_url)
    with engine_on(store, flow) as engine:
        job = engine.submit(flow)
        lanes, taken = tuple(flow.table.lanes), False
        while not taken:  # a machine that stands still may lose the lease before the claim
            store.register("gone", lease_us=1_500_000, lanes=lanes, about="")
            taken = bool(store.claim(ClaimRequest("gone", (Want(lanes, 1),))).claims)
        with engine.working(settings()):
            assert engine.wait(job.id, timeout=PATIENCE).state == "done"
        assert "lapsed" in kinds(engine, job)
    # A lapse that counts as a failed attempt is that attempt's line.
    assert lines.told(job) == [("WARNING", "go", 1, on_lapse or "lapsed")]


@pytest.mark.shows("E-81")
def test_a_log_that_fails_harms_no_commit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(record: logging.LogRecord) -> bool:
        raise RuntimeError("a filter of somebody's")

    flow = failing(Broken("1"), None, retry=ulak.Backoff(delays=[0]))
    monkeypatch.setattr(logging.getLogger("ulak.jobs"), "filters", [fail])
    with engine_on(store_of("memory://"), flow) as engine:
        assert worked(engine, flow).state == "done"
        assert engine.inspect.verify() == []
    assert "failures could not be logged" in caplog.text


# --- what a stage logs ----------------------------------------------------------


@contextmanager
def written(formatter: logging.Formatter) -> Iterator[io.StringIO]:
    """What a process writes, as `ulak worker` sets its log up."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    handler.addFilter(logs.Hidden(Hiding(())))
    root, level = logging.getLogger(), logging.getLogger().level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield stream
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


async def from_loop(run: ulak.Run[Any]) -> None:
    logging.getLogger("app").info("said in a stage")
    await asyncio.to_thread(logging.getLogger("app").info, "said in a stage")
    await asyncio.create_task(from_a_task())
    run.log.warning("said in a stage", extra={"state": "mine"})


async def from_a_task() -> None:
    logging.getLogger("app").info("said in a stage")


def from_thread(run: ulak.Run[Any]) -> None:
    logging.getLogger("app").info("said in a stage")
    run.log.warning("said in a stage", extra={"state": "mine"})


@pytest.mark.shows("E-81")
@pytest.mark.parametrize("env", ["text", "json"])
def test_every_line_of_a_stage_carries_its_run(env: str, tmp_path: Path) -> None:
    one = ulak.Flow.steps("one", ("go", from_loop))
    two = ulak.Flow.steps("two", ("go", from_thread))
    three = isolated.chatty
    store = store_of(f"sqlite:///{tmp_path}/jobs.db")
    with (
        written(logs.JsonLines() if env == "json" else logs.Lines()) as stream,
        engine_on(store, one, two, three) as engine,
    ):
        jobs = [engine.submit(flow, None) for flow in (one, two, three)]
        with engine.working(settings()):
            for job in jobs:
                assert engine.wait(job.id, timeout=PATIENCE).state == "done"
            logging.getLogger("app").info("said outside")
    said = [line for line in stream.getvalue().splitlines() if "said" in line]
    for job, count in zip(jobs, (4, 2, 3), strict=True):
        mine = [line for line in said if job.id in line]
        assert len(mine) == count, said
        for line in mine:
            own = "mine" if "ulak.run" in line else "go"
            if env == "json":
                facts = json.loads(line)
                assert (facts["flow"], facts["state"], facts["attempt"]) == (job.flow, own, 1)
            else:
                assert f"job_id={job.id} flow={job.flow}" in line or "state=mine" in line
                assert f"state={own}" in line
                assert "attempt=1" in line
    (outside,) = [line for line in said if "outside" in line]
    assert "job_id" not in outside
    assert "attempt" not in outside
    assert "ZeroDivisionError" in stream.getvalue(), "a child's traceback is there too"


@pytest.mark.shows("E-81")
def test_the_log_of_a_run_carries_its_run_in_every_program(
    caplog: pytest.LogCaptureFixture,
) -> None:
    flow = ulak.Flow.steps("plain", ("go", from_thread))
    with engine_on(store_of("memory://"), flow) as engine:
        job = worked(engine, flow)
    (line,) = [r for r in caplog.records if r.name == "ulak.run"]
    facts = vars(line)
    assert (facts["job_id"], facts["flow"], facts["attempt"]) == (job.id, "plain", 1)
    assert facts["state"] == "mine", "what the line says itself stays"


@contextmanager
def own_logging(style: str) -> Iterator[io.StringIO]:
    """What a program writes that sets its log up itself, and makes records of its own."""
    stream, usual = io.StringIO(), logging.getLogRecordFactory()
    handler, app = logging.StreamHandler(stream), logging.getLogger("app")
    names = dict.fromkeys(("job_id", "flow", "state", "attempt"), "-")
    if style == "json":
        handler.format = lambda record: json.dumps(vars(record), default=str)  # type: ignore[method-assign]
    else:
        text = " ".join(f"{name}=%({name})s" for name in names)
        handler.setFormatter(logging.Formatter(f"%(message)s host=%(host)s {text}", defaults=names))

    def make(*arguments: Any, **options: Any) -> logging.LogRecord:
        record = logging.LogRecord(*arguments, **options)
        record.host = "here"
        return record

    logging.setLogRecordFactory(make)
    app.addHandler(handler)
    app.setLevel(logging.INFO)
    try:
        yield stream
    finally:
        app.removeHandler(handler)
        app.setLevel(logging.NOTSET)
        logging.setLogRecordFactory(usual)


async def say_in_every_way(run: ulak.Run[Any]) -> None:
    say = partial(logging.getLogger("app.deep").info, "said %s", "in a stage")
    say()
    say(extra={"state": "mine", "job_id": "another"})
    await asyncio.to_thread(say)
    thread = threading.Thread(target=contextvars.copy_context().run, args=(say,))
    thread.start()
    thread.join()


@pytest.mark.shows("E-81")
@pytest.mark.parametrize("style", ["text", "json"])
def test_every_line_of_a_stage_carries_its_run_in_a_program_with_logging_of_its_own(
    style: str,
) -> None:
    """Broken by facts that only handlers of `ulak worker`, or only `run.log`, add."""
    one = ulak.Flow.steps("one", ("go", say_in_every_way))
    two = ulak.Flow.steps("two", ("go", from_thread))
    with own_logging(style) as stream, engine_on(store_of("memory://"), one, two) as engine:
        first, second = worked(engine, one), worked(engine, two)
        logging.getLogger("app").info("said outside")
    lines = stream.getvalue().splitlines()
    expected = [(job.id, job.flow, "go", 1) for job in (first, first, first, second)]
    expected.insert(1, ("another", "one", "mine", 1))
    for line, facts in zip(lines, expected, strict=False):
        if style == "json":
            found = json.loads(line)
            assert tuple(found[n] for n in ("job_id", "flow", "state", "attempt")) == facts
            assert found["host"] == "here"
        else:
            text = "said in a stage host=here job_id={} flow={} state={} attempt={}"
            assert line == text.format(*facts)
    assert len(lines) == len(expected) + 1
    assert "job_id" not in lines[-1] or "job_id=- flow=- state=- attempt=-" in lines[-1]
