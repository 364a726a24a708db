"""What RQ's workers run: a job by its id, in a process that loads the program as `ulak` does."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Final, NoReturn

import redis
import rq
from rq.exceptions import NoSuchJobError
from rq.executions import Execution
from rq.timeouts import JobTimeoutException
from rq.worker_registration import register

from ulak import wiring
from ulak.control.process_metrics import make_process_id
from ulak.core.acts import can_be_taken
from ulak.dispatch.rq.rings import Dispatch
from ulak.engine.engine import Engine
from ulak.engine.ports import WorkerSettings
from ulak.engine.worker import settle_in
from ulak.errors import JobNotFound
from ulak.idempotency import cleanup
from ulak.ids import from_text
from ulak.kit.commands.target import in_force, load
from ulak.kit.processes import logs
from ulak.kit.processes.running import count_and_publish, opened, queues_of
from ulak.service import start

log = logging.getLogger("ulak.dispatch")

GONE: Final = "gone"
"""What a message returns whose job was removed."""
# An idle worker is heard of every 5 s, and forgotten 15 s after the last time.
IDLE_TTL_S: Final = 20
FORGOTTEN_AFTER_S: Final = 15
MONITOR_EVERY_S: Final = 5


def run(job_id: str) -> str:
    """Run one job's stages of this queue, and return the state that it stands in then.

    RQ's workers call it for each message. Nothing is done when the job is not due, is leased by
    somebody else, is paused or has ended. How a run ends is in the trail: a message succeeds also
    when its job has failed, since ulak has retried it by then or given it up.
    """
    host = _HOST.get()
    if host is not None:
        return host.run(job_id)
    message = rq.get_current_job()
    if message is None:
        raise RuntimeError("this is what a message of RQ calls; engine.worker().work_on runs a job")
    with _program([message.origin], message.connection) as (engine, settings):
        row = engine.store.find_job(from_text(job_id))
        if row is None or not can_be_taken(row, engine.store.clock.now()):
            return GONE if row is None else row.state
        with closing(Host(engine, settings)) as host:
            return host.run(job_id)


class Host:
    """A worker of the engine on a loop of its own, which is told which jobs to run."""

    def __init__(self, engine: Engine, settings: WorkerSettings) -> None:
        self._engine = engine
        self._worker = engine.worker(settings)
        self._is_ready: Future[asyncio.AbstractEventLoop] = Future()
        self._asked: asyncio.Queue[tuple[str, Future[None]] | None] = asyncio.Queue()
        self._answer: Future[None] | None = None
        self._is_stuck = False
        """A run did not end within the timeout of its message."""
        self._thread = threading.Thread(target=self._live, name="ulak-host", daemon=True)
        self._thread.start()
        self._loop = self._is_ready.result()

    @property
    def is_over(self) -> bool:
        """Whether it can run nothing more, so that its process is to end."""
        return self._is_stuck or not self._thread.is_alive()

    def run(self, job_id: str) -> str:
        answer: Future[None] = Future()
        self._loop.call_soon_threadsafe(self._asked.put_nowait, (job_id, answer))
        try:
            answer.result()
            return self._engine.get(job_id).state
        except JobNotFound:
            return GONE
        except JobTimeoutException:
            self._is_stuck = True
            raise

    def close(self) -> None:
        """Drain and close what the worker has opened; one that is stuck is left to the end of the
        process."""
        if self._is_stuck:
            self._worker.hurry()
            return
        with suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(self._asked.put_nowait, None)
        self._thread.join()

    def _live(self) -> None:
        error: Exception = RuntimeError("the worker stops")
        try:
            asyncio.run(self._worker.run(only=self._told()))
        except Exception as raised:
            log.critical("the worker has ended", exc_info=True)
            error = raised
        for waiting in (self._is_ready, self._answer):
            if waiting is not None and not waiting.done():
                waiting.set_exception(error)

    async def _told(self) -> AsyncIterator[str]:
        # Asked for the first id once the worker is registered and its resources are open.
        self._is_ready.set_result(asyncio.get_running_loop())
        while (asked := await self._asked.get()) is not None:
            job_id, self._answer = asked
            yield job_id
            self._answer.set_result(None)


_HOST: ContextVar[Host | None] = ContextVar("ulak-rq-host", default=None)


@contextmanager
def _program(
    queues: Sequence[str], connection: redis.Redis
) -> Iterator[tuple[Engine, WorkerSettings]]:
    """Load and open the program of this process, by its settings, for a worker of these queues."""
    found = in_force(None)
    engine = load(found)
    cleanup.attach(engine, wiring.idempotency_settings())
    wiring.attach_control(engine)
    logs.start(found.env, logs.secrets_of(found, engine))
    logging.getLogger("rq").propagate = False  # its loggers have handlers of their own
    settle_in()
    # Its other queues may be those of other programs.
    own = set(queues).intersection(queues_of(engine)) or queues
    dispatch = Dispatch(engine, [*own, *found.queues_by_rq], connection=connection)
    settings = WorkerSettings(queues=frozenset(own))
    for queue, apart in engine.kernel.queues_apart.items():
        if queue in own and apart.lease is not None:
            settings = replace(settings, lease=apart.lease)
    with opened([engine]), dispatch:
        start(engine, None)
        yield engine, settings


class Worker(rq.Worker):
    """An RQ worker whose work-horse stays: the program is loaded once, a browser stays warm.

    `rq worker -w ulak.dispatch.rq.Worker reports`. The horse is forked at the start and runs one
    message after the other; one that overruns the timeout of its message is killed, and replaced
    for the next. It ends when this process does, after the run that it is at.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.worker_ttl = min(self.worker_ttl, IDLE_TTL_S)
        self.job_monitoring_interval = min(self.job_monitoring_interval, MONITOR_EVERY_S)
        self._staying_pid = 0
        self._line: socket.socket | None = None

    def bootstrap(self, *arguments: Any, **options: Any) -> None:
        self._start_horse()
        super().bootstrap(*arguments, **options)

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        super().heartbeat(timeout or FORGOTTEN_AFTER_S, pipeline)
        if not self.is_horse:  # a Redis that has lost its data learns of this worker again
            to = self.connection if pipeline is None else pipeline
            to.hset(self.key, mapping=self.serialize())
            register(self, pipeline)

    def fork_work_horse(self, job: rq.job.Job, queue: rq.Queue) -> None:
        assert self.execution is not None  # noqa: S101 - RQ has just prepared it
        words = f"{job.id} {queue.name} {self.execution.id}\n".encode()
        try:
            self._send(words)
        except OSError:  # it has died since the last message
            self._reap()
            self._start_horse()
            self._send(words)
        self._horse_pid = self._staying_pid

    def wait_for_horse(self) -> tuple[int | None, int | None, Any]:
        if self._line is None or not self._line.recv(1):
            return self._reap()
        return self._staying_pid, os.EX_OK, None

    def teardown(self) -> None:
        if not self.is_horse and self._line is not None:
            self._line.close()  # it drains and ends
            self._reap()
        super().teardown()  # type: ignore[no-untyped-call] # RQ's own

    def _send(self, words: bytes) -> None:
        if self._line is None:
            raise OSError("there is no work-horse")
        self._line.sendall(words)

    def _reap(self) -> tuple[int | None, int | None, Any]:
        pid, self._staying_pid, self._line = self._staying_pid, 0, None
        return os.wait4(pid, 0) if pid else (None, None, None)

    def _start_horse(self) -> None:
        self._line, other = socket.socketpair()
        self._staying_pid = os.fork()
        if self._staying_pid == 0:
            self._line.close()
            self._live(other)
        other.close()
        if not self._line.recv(1):
            self._reap()
            raise SystemExit("ulak: the program of this worker cannot be started; see above")

    def _live(self, line: socket.socket) -> NoReturn:
        """Be the work-horse, until the line ends."""
        os.setpgrp()
        for stop in (signal.SIGINT, signal.SIGTERM):
            signal.signal(stop, signal.SIG_IGN)  # the line says when
        random.seed()
        self._is_horse = True
        status = 1
        try:
            with (
                _program(self.queue_names(), self.connection) as (engine, settings),
                count_and_publish(engine, process=make_process_id()),
                closing(Host(engine, settings)) as host,
            ):
                self._run_messages(line, host)
            status = 0
        except BaseException as error:  # noqa: BLE001 - the end of a process: nothing is above
            sys.stderr.write(f"ulak: the work-horse ends: {error}\n")
        sys.stderr.flush()
        os._exit(status)

    def _run_messages(self, line: socket.socket, host: Host) -> None:
        _HOST.set(host)
        line.sendall(b"r")
        with line.makefile() as messages:
            for words in messages:
                self._perform(*words.split())
                if host.is_over:
                    os._exit(1)
                line.sendall(b"d")

    def _perform(self, job_id: str, name: str, execution_id: str) -> None:
        options: dict[str, Any] = {"connection": self.connection, "serializer": self.serializer}
        with suppress(NoSuchJobError):  # removed since it was handed over
            job = self.job_class.fetch(job_id, **options)
            self.execution = Execution.fetch(execution_id, job_id, connection=self.connection)
            self.perform_job(job, self.queue_class(name, **options))
