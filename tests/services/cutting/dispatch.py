"""A flow that does nothing but deliver plans, on a real store and a real drop folder."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ulak
from ulak import Flow, Hold, Lifecycle, Run, Stopped, WorkerSettings
from ulak.kit.clock import now
from ulak.services.cutting import SCHEMA
from ulak.services.cutting.codes import HoldCode
from ulak.services.cutting.delivery import Deliveries, Delivery, PlanFile
from ulak.services.cutting.saw import CUT, LEDGER, Manner, Saw
from ulak.tables import Tables

LIFECYCLE = Lifecycle(
    "XML_READY", {"XML_READY": ["DELIVERED"]}, done="DELIVERED", held="HOLD", failed="FAILED",
    release_to="XML_READY", retry_to="XML_READY", cancelled="FAILED",
)  # fmt: skip
POLL_S = 0.05
ENDED = ("DELIVERED", "HOLD", "FAILED")
INSERT = """
INSERT INTO {schema}.cutting_batches (job_id, n, batch_json, import_file) VALUES (?, ?, '{{}}', '')
"""


class Dispatch:
    """One process that delivers.

    Args:
        url: Its store.
        folder: Where plans and the drop folder are.
    """

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.exports, self.drop = folder / "export", folder / "osi"
        for path in (self.exports, self.drop):
            path.mkdir(exist_ok=True)
        self.engine = ulak.connect(url)
        self.tables = Tables(self.engine, SCHEMA)
        self.deliveries = Deliveries(self.engine, self.tables)
        self.flow: Flow[Any] = Flow("cutting", LIFECYCLE, queue="cutting", retry=0)
        self.flow.stage("XML_READY", to="DELIVERED")(self.deliver)
        self.engine.add(self.flow)
        self.tables.ensure()
        self.saw = Saw(self.drop, Manner())

    def close(self) -> None:
        self.engine.close()

    # --- plans and jobs ----------------------------------------------------------------

    def make_plans(self, *names: str) -> list[PlanFile]:
        """Write plans, one for each batch."""
        plans = []
        for n, name in enumerate(names):
            path = self.exports / f"{name}.xml"
            path.write_text(f"<Plan><Part>{name}</Part></Plan>")
            plans.append(PlanFile(n, path, sha256(path.read_bytes()).hexdigest()))
        return plans

    def submit(self, *plans: PlanFile, patience_s: float = 60.0) -> str:
        """Submit a job that delivers these plans."""
        payload = {
            "plans": [[plan.batch, str(plan.path), plan.sha256] for plan in plans],
            "patience_s": patience_s,
        }
        job = self.engine.submit(self.flow, payload)
        with self.tables.writing() as connection:
            for plan in plans:
                self.tables.execute(connection, INSERT, job.id, plan.batch)
        return job.id

    async def deliver(self, run: Run[Any]) -> object:
        """Deliver the plans of a payload; the deadline begins with the run."""
        plans = [PlanFile(n, Path(path), digest) for n, path, digest in run.payload["plans"]]
        deadline = run.now + timedelta(seconds=run.payload["patience_s"])
        try:
            done = await self.deliveries.deliver(
                run, plans, self.drop, deadline=deadline, poll_s=POLL_S
            )
        except HoldCode as error:
            return Hold(error.code, error.message)
        return [each.file_name for each in done]

    @contextmanager
    def working(self) -> Iterator[None]:
        """Run a worker for the length of a block."""
        settings = WorkerSettings(lease=timedelta(seconds=1), drain=timedelta(seconds=5))
        with self.engine.working(settings):
            yield

    @contextmanager
    def sawing(self) -> Iterator[None]:
        """Run the saw for the length of a block."""
        over = threading.Event()
        thread = threading.Thread(target=lambda: self.saw.run(over, poll_s=0.01))
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def wait(self, job: str, *states: str) -> ulak.Job:
        """Wait until a job stands in one of these states, or has ended or is held."""
        wait_until(lambda: self.engine.get(job).state in (states or ENDED))
        return self.engine.get(job)

    def retry(self, job: str) -> None:
        self.engine.retry(job, actor="ada")

    # --- what there is ----------------------------------------------------------------

    def names(self, place: str) -> list[str]:
        """Return the names in one of the three folders."""
        return sorted(path.name for path in (self.drop / place).glob("*"))

    def rows(self, job: str) -> list[tuple[int, int, str]]:
        """Return batch, number and state of the deliveries of a job."""
        return [(row.batch, row.n, row.state) for row in self.find(job)]

    def find(self, job: str) -> list[Delivery]:
        return [row for row in self.deliveries.find(job) if row.temporary]

    def cuts(self) -> list[str]:
        """Return the digests of what the saw has cut, in its order."""
        path = self.drop / LEDGER
        lines = (
            [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        )
        return [line["sha256"] for line in lines if line["what"] == CUT]

    def notes(self, job: str) -> list[str]:
        """Return the kinds of the lines that this service has written into a trail."""
        trail = self.engine.inspect.trail(job)
        return [line.kind for line in trail if line.kind.startswith("cutting.")]

    def move(self, name: str, *, to: str, place: str = "inbox") -> None:
        """Move a file as the saw does."""
        (self.drop / place / name).rename(self.drop / to / name)


def wait_until(holds: Callable[[], object]) -> None:
    """Wait until something holds. Raises `AssertionError`: it did not within a minute."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class FakeRun:
    """A run of a job that no worker has: one that has lost its lease, say."""

    def __init__(
        self, dispatch: Dispatch, job: str, *, round: int = 1, approved_at: datetime | None = None
    ) -> None:
        self._engine = dispatch.engine
        self.job_id, self.round, self._approved_at = job, round, approved_at
        self.noted: list[str] = []
        self.looks: int | None = None
        """After how many looks it is told to stop."""

    @property
    def now(self) -> datetime:
        return now(self._engine)

    def released(self, code: str) -> Any:
        assert code == "E_OSI_STATE_UNKNOWN"
        return self._approved_at and SimpleNamespace(at=self._approved_at)

    def checkpoint(self) -> None:
        if self.looks == 0:
            raise Stopped
        if self.looks is not None:
            self.looks -= 1

    def note(self, kind: str, **details: object) -> None:
        self.noted.append(kind)


def deliver(
    dispatch: Dispatch, run: FakeRun, *plans: PlanFile, patience_s: float = 60.0
) -> list[Delivery]:
    """Deliver plans in this thread."""
    return asyncio.run(delivering(dispatch, run, *plans, patience_s=patience_s))


async def delivering(
    dispatch: Dispatch, run: FakeRun, *plans: PlanFile, patience_s: float = 60.0
) -> list[Delivery]:
    """Deliver plans as a runner of its own."""
    runner: Any = run
    own = Deliveries(dispatch.engine, dispatch.tables)
    deadline = run.now + timedelta(seconds=patience_s)
    return await own.deliver(runner, plans, dispatch.drop, deadline=deadline, poll_s=POLL_S)


def look(dispatch: Dispatch, run: FakeRun, *plans: PlanFile, times: int = 1) -> None:
    """Look so many times what is to be done, do it, and be stopped then."""
    run.looks = times
    with pytest.raises(Stopped):
        deliver(dispatch, run, *plans)
    run.looks = None


def live(url: str, folder: str) -> None:
    """The life of a child that works until nothing is due, unless it is killed."""
    dispatch = Dispatch(url, Path(folder))
    settings = WorkerSettings(lease=timedelta(seconds=1))
    asyncio.run(dispatch.engine.worker(settings).run(until_idle=True))
    dispatch.close()
