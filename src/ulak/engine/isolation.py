"""Stages in a process of their own, spawned for one run; its death harms no other."""

from __future__ import annotations

import importlib
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from typing import TYPE_CHECKING, Any, NoReturn

from ulak.clock import Instant
from ulak.core.flow import Flow, Gate, Stage
from ulak.core.job import JobRow, Payload, Result
from ulak.core.outcome import Finished, GivenBack, Left, Outcome, Raised
from ulak.core.run import PastAct, Run, effect_key, set_logged_run
from ulak.engine.function import JobFunction
from ulak.engine.reads import Results, read_payload
from ulak.engine.stage_outcomes import Abandoned, read_error, read_return, write_effect
from ulak.errors import BadInput, NotSupported
from ulak.store import codec

if TYPE_CHECKING:
    from ulak.engine.active_run import ActiveRun

PROCESS_DIED = "process-died"
# How soon a child hears that it should stop.
LOOK_EVERY_S = 0.2


def run_in_child(run: ActiveRun, function: Callable[[Run[Any]], Any]) -> Outcome:
    """Run a stage in a spawned child and return its outcome; called on a thread of the worker.

    The child asks for everything that touches the store through a pipe. Its death is a failed
    attempt of this job.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    stop = context.Event()
    where = (function.__module__, function.__qualname__)
    level = logging.getLogger().getEffectiveLevel()
    child = context.Process(
        target=_child,
        args=(theirs, stop, level, where, run.row, run.payload_bytes, run.results),
        daemon=True,
    )
    child.start()
    theirs.close()
    run.interrupt = child.kill
    try:
        if run.asked is not None or run.overran:
            child.kill()
        return _serve(run, ours, stop)
    except Abandoned:
        child.kill()
        return GivenBack()
    except BadInput as error:
        child.kill()
        return read_error(run.flow, error)
    except (EOFError, OSError):
        child.join()
        if run.stopping and not run.overran:
            return GivenBack()
        return Raised(PROCESS_DIED, f"the stage's process ended with code {child.exitcode}")
    finally:
        run.interrupt = None
        ours.close()
        child.join(5)
        if child.is_alive():
            child.kill()
            child.join()


def _serve(run: ActiveRun, pipe: Connection, stop: Event) -> Outcome:
    """Do what the child asks until it sends its outcome; pass on that it should stop."""
    answered: dict[str, Callable[..., Any]]
    answered = {"record": run.record, "spawn": partial(_spawn, run), "now": run.now}
    told: dict[str, Callable[..., None]]
    told = {"emit": run.emit, "note": run.note, "progress": run.progress, "log": _log}
    while True:
        while not pipe.poll(LOOK_EVERY_S):
            if run.stopping and not stop.is_set():
                stop.set()
        call, arguments = pipe.recv()
        if call == "outcome":
            outcome: Outcome
            outcome, saw_stop = arguments
            run.saw_stop = run.saw_stop or saw_stop
            if isinstance(outcome, Finished) and (run.messages or run.spawns):
                # They were sent ahead of the outcome.
                left = Left(outcome.left.result, run.messages, run.spawns)
                outcome = replace(outcome, left=left)
            return outcome
        if call in answered:
            pipe.send(answered[call](*arguments))
        else:
            told[call](*arguments)


def _spawn(
    run: ActiveRun, name: str, version: int, payloads: list[object], options: Any
) -> list[str]:
    return run.spawn(run.worker.kernel.flows_by_version()[name, version], payloads, options)


def _log(facts: dict[str, Any]) -> None:
    record = logging.makeLogRecord(facts)
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)


class _Pipe:
    """The child's end of the pipe: its threads may log while its stage asks for something."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()

    def tell(self, call: str, *arguments: Any) -> None:
        with self._lock:
            self._pipe.send((call, arguments))

    def ask(self, call: str, *arguments: Any) -> Any:
        self.tell(call, *arguments)
        return self._pipe.recv()


class _ChildHost:
    """What a stage in a child may ask for; the other end of the pipe does it."""

    def __init__(
        self,
        pipe: _Pipe,
        stage: Stage[Any, Any],
        row: JobRow,
        payload: Payload,
        results: tuple[Result, ...],
    ) -> None:
        self._pipe = pipe
        self._row = row
        self._stage = stage.state
        self._payload = read_payload(stage.flow, payload)
        self._stored = results

    def payload(self) -> Any:
        return self._payload

    def now(self) -> Instant:
        now: Instant = self._pipe.ask("now")
        return now

    def find_result(self, stage: str, kind: Any) -> tuple[bool, Any]:
        return Results(self._stored).find(stage, kind)

    def find_decision(self, gate: Gate[Any]) -> Any:
        return Results(self._stored).find_decision(gate)

    def find_act(self, kind: str, code: str) -> PastAct | None:
        return Results(self._stored).find_act(kind, code)

    def once(self, name: str, function: Callable[[str], Any]) -> Any:
        if not name or "/" in name:
            raise BadInput(f"once({name!r}): a name is not empty and holds no slash")
        round_ = self._row.round
        found, value = Results(self._stored).recorded(self._stage, name, round_, function)
        if not found:
            value = function(effect_key(self._row, name))
            data = write_effect(name, value)
            self._pipe.ask("record", name, data)
            self._stored += (Result(self._row.id, round_, self._stage, name, data),)
        return value

    def emit(self, topic: str, data: object, key: str | None) -> None:
        self._pipe.tell("emit", topic, codec.decode(codec.encode(data)), key)

    def note(self, kind: str, message: str, details: dict[str, object]) -> None:
        self._pipe.tell("note", kind, message, codec.decode(codec.encode(details)))

    def spawn(self, flow: Flow[Any], payloads: Iterable[object], options: Any) -> list[str]:
        plain = [codec.decode(codec.encode(p)) for p in payloads]
        ids: list[str] = self._pipe.ask("spawn", flow.name, flow.version, plain, options)
        return ids

    def progress(self, fraction: float, note: str | None) -> None:
        self._pipe.tell("progress", fraction, note)

    def connection(self) -> NoReturn:
        raise BadInput('run.connection is not for stages with isolate="process"')

    def resource(self, kind: type[Any]) -> NoReturn:
        raise NotSupported(
            f"run.resource({kind.__name__}) lives in the worker; a stage with "
            'isolate="process" must open its own'
        )


class _ToTheWorker(logging.Handler):
    """Hands the lines of a child to its worker, which writes them like its own."""

    def __init__(self, pipe: _Pipe) -> None:
        super().__init__()
        self._pipe = pipe
        self._process = os.getpid()

    def emit(self, record: logging.LogRecord) -> None:
        if os.getpid() != self._process:
            return  # a child of the child, which has no pipe of its own
        plain = {
            name: value if isinstance(value, str | int | float | None) else str(value)
            for name, value in vars(record).items()
        }
        plain |= {"msg": record.getMessage(), "args": None, "exc_info": None}
        if record.exc_info and not record.exc_text:
            plain["exc_text"] = logging.Formatter().formatException(record.exc_info)
        # When its stage has ended nobody listens any more.
        with suppress(OSError):
            self._pipe.tell("log", plain)


def _child(
    connection: Connection,
    stop: Event,
    level: int,
    where: tuple[str, str],
    row: JobRow,
    payload: Payload,
    results: tuple[Result, ...],
) -> None:
    """The child's whole life: find the stage, run it, send what became of it."""
    _live_and_die_with_the_worker()
    pipe = _Pipe(connection)
    root = logging.getLogger()
    root.addHandler(_ToTheWorker(pipe))
    root.setLevel(level)
    set_logged_run(row)
    saw_stop = False

    def is_stopping() -> bool:
        nonlocal saw_stop
        saw_stop = saw_stop or stop.is_set()
        return saw_stop

    outcome: Outcome
    try:
        stage = _find(where)
    except Exception as error:  # noqa: BLE001 - the runner: a stage that is not there is an outcome
        name = f"{where[0]}.{where[1]}"
        outcome = Raised(PROCESS_DIED, f"the child cannot find {name}: {error}", permanent=True)
    else:
        try:
            host = _ChildHost(pipe, stage, row, payload, results)
            outcome = read_return(stage.function(Run(row, host, is_stopping)), (), ())
        except BaseException as error:  # noqa: BLE001 - the runner: whatever a stage raises is its outcome
            outcome = read_error(stage.flow, error)
    pipe.tell("outcome", outcome, saw_stop)
    connection.close()


def _find(where: tuple[str, str]) -> Stage[Any, Any]:
    """Find the stage in the module that declares it: the decorated name, or a job function."""
    found: Any = importlib.import_module(where[0])
    for part in where[1].split("."):
        found = getattr(found, part)
    if isinstance(found, JobFunction):
        found = found.flow.declared.stages[0]
    if not isinstance(found, Stage):
        raise TypeError("it is not a stage; declare it at the top of a module with a decorator")
    return found


def _live_and_die_with_the_worker() -> None:
    """Leave signals to the worker, and do not outlive it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # A handler, not SIG_IGN: programs that the stage starts would inherit that.
        signal.signal(number, lambda *_: None)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_die_with, args=(parent,), daemon=True).start()


def _die_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
