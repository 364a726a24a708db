"""An engine for tests: its clock is turned by hand, and its worker runs when it is told to.

>>> import ulak
>>> from ulak.testing import Harness
>>> def greet(run):
...     return f"hello {run.payload['name']}"
>>> greeting = ulak.Flow.steps("greeting", greet)
>>> with Harness(greeting) as harness:
...     job = harness.submit(greeting, {"name": "Ada"}, after=timedelta(days=1))
...     harness.run_until_idle()
...     print(harness.job(job.id).state, harness.why(job.id).code)
...     harness.advance(days=1)
...     print(harness.job(job.id).state, harness.result(job.id))
greet delayed
done hello Ada
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ulak.clock import Instant, ManualClock, micros, to_datetime
from ulak.core.delivery import PENDING
from ulak.core.flow import Flow
from ulak.core.job import JobRow
from ulak.core.lifecycle import CLAIMABLE, FINAL, UNDOING
from ulak.engine.engine import Engine
from ulak.engine.ports import WorkerSettings
from ulak.engine.verify import Finding
from ulak.engine.view import Job, Message, TrailEvent
from ulak.engine.why import Why
from ulak.errors import BadInput
from ulak.store.protocol import DeliveryFilter, Store
from ulak.wiring import store_of

USUAL = WorkerSettings()
# More moments than this within one `advance` is a flow that wakes itself for ever.
MOST_MOMENTS = 10_000


class Harness:
    """An engine, a `ManualClock`, and the real worker, run on demand. Nothing sleeps.

    Everything that a verb of the harness lacks is done with `harness.engine`. Messages that
    are sent are collected in `harness.sent`, unless the engine is given a publisher.

    Args:
        flows: What the engine serves.
        path: A file for the SQLite store.
        url: A store as `ulak.connect` takes it, for tests on PostgreSQL. Without file and URL
            everything is in memory.
        clock: The clock to turn, when two harnesses are to share one.
        settings: How the worker behaves.
    """

    def __init__(
        self,
        *flows: Flow[Any],
        path: str | Path | None = None,
        url: str | None = None,
        clock: ManualClock | None = None,
        settings: WorkerSettings = USUAL,
    ) -> None:
        self.clock = clock or ManualClock()
        self.engine = Engine(_store(path, url, self.clock), flows=flows)
        self.settings = settings
        self.sent: list[Message] = []
        """What was published, in order."""
        self.engine.outbox.publish(self.sent.append)

    @classmethod
    def of(cls, engine: Engine, **options: Any) -> Self:
        """Make a harness with the flows, schedules, resources and handlers of a program's engine.

        The program's own store is not touched. `options` are those of `Harness`.
        """
        made = cls(*engine.inspect.flows, **options)
        made.engine.kernel.schedules.update(engine.kernel.schedules)
        made.engine.kernel.resources.update(engine.kernel.resources)
        made.engine.kernel.handlers.update(engine.kernel.handlers)
        return made

    # --- time -------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """The present moment, as the store sees it."""
        return to_datetime(self.clock.now())

    def run_until_idle(self) -> None:
        """Run a worker until nothing is left that could be done at this moment."""
        failures: list[BaseException] = []

        def work() -> None:
            try:
                asyncio.run(self.engine.worker(self.settings).run(until_idle=True))
            except BaseException as error:  # noqa: BLE001 - the caller's thread raises it again
                failures.append(error)

        # On a thread of its own, so that a test which is itself a coroutine may call this.
        thread = threading.Thread(target=work, name="ulak-harness")
        thread.start()
        thread.join()
        if failures:
            raise failures[0]

    def advance(self, **span: float) -> None:
        """Let time pass: `advance(days=3)`, with the keywords of `timedelta`.

        Everything happens at its own moment: a job that is retried after one, two and four
        seconds is run three times by `advance(minutes=1)`, as a real worker would have.
        """
        end = self.clock.now() + micros(timedelta(**span))
        for _ in range(MOST_MOMENTS):
            self.run_until_idle()
            moments = [at for at in self._moments() if self.clock.now() < at <= end]
            if not moments:
                break
            self._turn(min(moments))
        else:
            raise RuntimeError(
                f"advance({span}): {MOST_MOMENTS} moments have come and there are more; "
                "some flow wakes itself for ever"
            )
        self._turn(end)
        self.run_until_idle()

    def _turn(self, to: Instant) -> None:
        self.clock.advance(timedelta(microseconds=to - self.clock.now()))

    def _moments(self) -> Iterator[Instant]:
        """Every instant at which something is going to happen by itself."""
        store = self.engine.open().store
        for row in self._rows():
            if row.wake_at is not None and row.role != UNDOING:
                yield row.wake_at
            if row.role in CLAIMABLE and row.leased_by is None:
                yield row.not_before
        for delivery in store.deliveries(DeliveryFilter(states=(PENDING,)), limit=MOST_MOMENTS):
            if delivery.handler in self.engine.kernel.handlers:
                yield delivery.not_before
        for worker in store.workers():
            yield worker.expires_at
        for schedule in store.schedules():
            if schedule.paused_at is None and schedule.name in self.engine.kernel.schedules:
                yield schedule.next_at

    def _rows(self) -> Iterator[JobRow]:
        after = b""
        while page := self.engine.store.scan_jobs(after=after):
            yield from page
            after = page[-1].id

    # --- the verbs that tests use most ------------------------------------------

    def submit(self, flow: Any, *arguments: Any, **options: Any) -> Job:
        """Submit a job; arguments as for `Engine.submit`. It does not run before it is let."""
        return self.engine.submit(flow, *arguments, **options)

    def run(self, flow: Any, *arguments: Any, **options: Any) -> Job:
        """Submit a job, run until idle, and answer the job as it stands then."""
        job = self.submit(flow, *arguments, **options)
        self.run_until_idle()
        return self.job(job.id)

    def job(self, job_id: str) -> Job:
        """Return a job as it stands."""
        return self.engine.get(job_id)

    def trail(self, job_id: str) -> list[TrailEvent]:
        """Return what happened to a job, in order."""
        return self.engine.inspect.trail(job_id)

    def states(self, job_id: str) -> list[str]:
        """Return the states that a job has stood in, in order, each stay once."""
        stays: list[str] = []
        for event in self.trail(job_id):
            if not stays or stays[-1] != event.to_state:
                stays.append(event.to_state)
        return stays

    def result(self, job_id: str) -> Any:
        """Return what a job's last stage has returned."""
        return self.engine.result(job_id)

    def why(self, job_id: str) -> Why:
        """Return why a job stands where it stands."""
        return self.engine.inspect.why(job_id)

    def verify(self) -> list[Finding]:
        """Return what is wrong with what is stored; nothing, one hopes."""
        return self.engine.inspect.verify()

    def unfinished(self) -> list[Job]:
        """Return every job that has not ended."""
        return [self.job(row.id.hex()) for row in self._rows() if row.role not in FINAL]

    # --- life -------------------------------------------------------------------

    def close(self) -> None:
        """Close the store; what is in memory is gone."""
        self.engine.close()

    def __enter__(self) -> Self:
        self.engine.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()


def _store(path: str | Path | None, url: str | None, clock: ManualClock) -> Store:
    if path is not None and url is not None:
        raise BadInput("a harness has a path or a url, not both")
    if path is not None:
        from ulak.store.sqlite import SqliteStore

        return SqliteStore(Path(path), clock=clock)
    return store_of(url or "memory://", clock=clock)
