"""A store with jobs in every role, and everything else that a route can be asked about."""

import shutil
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from ulak import Backoff, Engine, Flow, Hold, Lifecycle, Limit, Message, Rate
from ulak.clock import ManualClock, micros
from ulak.core.lifecycle import ROLES
from ulak.ids import to_text
from ulak.store.protocol import ClaimRequest, Want
from ulak.testing import Harness

A_YEAR = timedelta(days=365)
# Enough that whoever acts at random leaves some of each.
OF_EACH = 8
HOLDER = "a worker that holds its job"


def line() -> Flow[Any]:
    """A stage with a state of its own, a limit, a rate and an undo; a gate; a wait; a stage."""
    moves = {
        "new": ["making"], "making": ["asked"], "asked": ["agreed", "failed"],
        "agreed": ["packed"], "packed": ["done"],
    }  # fmt: skip
    flow: Flow[Any] = Flow(
        "line", Lifecycle("new", moves, undoing="taking_back"), retry=0, secret={"card"},
        undo_retry=Backoff(10, first=A_YEAR, longest=A_YEAR, jitter=0),
    )  # fmt: skip

    @flow.stage(
        "new",
        during="making",
        to="asked",
        limit=Limit(50),
        rate=Rate(1000, per=timedelta(seconds=1)),
    )
    def make(run: Any) -> Any:
        if run.payload["then"] == "held" and run.round == 1:
            return Hold("odd", "look at it")
        if run.payload["then"] == "failed":
            raise ValueError("broken")
        run.emit("made", {"job": run.job_id})
        return None

    @make.undo
    def take_back(run: Any) -> None:
        if run.payload["then"] == "undoing":
            raise OSError("not now")

    flow.gate("asked", choices={"approve": "agreed", "refuse": "failed"}, by={"operator", "admin"})
    flow.wait("agreed", signal="paid", to="packed")

    @flow.stage("packed")
    def pack(run: Any) -> dict[str, int]:
        return {"parcels": 1}

    return flow


class Seeds:
    """Makes the store once; each test works on a copy."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "seeds.db"
        self.jobs: dict[str, list[str]] = defaultdict(list)
        """By role; those at a gate are under `gate`."""
        self.dead_messages: list[str] = []
        with _harness(self.file) as harness:
            self._harness, self._engine = harness, harness.engine
            self._make_dead_messages()
            for _ in range(OF_EACH):
                self._make_each()
            self._hold_leases()
            self.jobs["ready"] = [self._submit("ready") for _ in range(OF_EACH)]
            roles = {job.role for job in harness.engine.jobs(limit=1000)}
            assert roles == set(ROLES)
            self.now = harness.now

    @contextmanager
    def planted(self, folder: Path) -> Iterator["World"]:
        """Return a copy of the store, opened at the moment at which it was made."""
        copy = shutil.copy(self.file, folder / "jobs.db")
        with _harness(copy, clock=ManualClock(self.now)) as harness:
            jobs = {role: list(ids) for role, ids in self.jobs.items()}
            yield World(harness.engine, harness.clock, jobs, list(self.dead_messages))

    def _make_each(self) -> None:
        engine, harness = self._engine, self._harness
        made = {
            role: self._submit(role)
            for role in ("gate", "held", "failed", "waiting", "undoing", "done", "cancelled")
        }
        made["expired"] = self._submit("expired", expires=timedelta(seconds=1))
        harness.run_until_idle()
        for role in ("waiting", "done"):
            engine.decide(made[role], actor="olga")
        engine.signal(made["done"], "paid", actor="olga")
        engine.cancel(made["cancelled"], actor="olga")
        engine.cancel(made["undoing"], actor="olga")
        harness.advance(seconds=1)
        harness.run_until_idle()
        for role, job in made.items():
            assert engine.get(job).role == ("held" if role == "gate" else role), role
            self.jobs[role].append(job)

    def _submit(self, then: str, **options: Any) -> str:
        payload = {"then": then, "card": "4111"}
        return self._engine.submit(
            self._engine.inspect.flows[0], payload, actor="sam", **options
        ).id

    def _hold_leases(self) -> None:
        """Have a worker hold jobs, as one does that works for a long time."""
        for _ in range(OF_EACH):
            self._submit("busy")
        store, lanes = self._engine.store, tuple(self._engine.inspect.flows[0].table.lanes)
        store.register(HOLDER, lease_us=micros(A_YEAR), lanes=lanes, about="a test")
        entries = {("line", 1, "new"): "making"}
        claimed = store.claim(ClaimRequest(HOLDER, (Want(lanes, OF_EACH),), entries)).claims
        assert {claim.row.role for claim in claimed} == {"busy"}
        self.jobs["busy"] = [to_text(claim.row.id) for claim in claimed]

    def _make_dead_messages(self) -> None:
        def refuse(message: Message) -> None:
            raise OSError("the broker is gone")

        self._engine.outbox.publish(refuse)
        jobs = [self._submit("gate") for _ in range(OF_EACH)]
        self._harness.run_until_idle()
        while len(dead := self._engine.outbox.dead(limit=OF_EACH)) < OF_EACH:
            self._harness.advance(hours=12)
        self.dead_messages = [delivery.id for delivery in dead]
        for job in jobs:
            self._engine.cancel(job, actor="olga")
        self._engine.outbox.publish(lambda message: None)


class World:
    """A store of one's own, and the ids of its jobs by how they stand."""

    def __init__(
        self,
        engine: Engine,
        clock: ManualClock,
        jobs: dict[str, list[str]],
        dead_messages: list[str],
    ) -> None:
        self.engine = engine
        self.clock = clock
        self.jobs = jobs
        self.dead_messages = dead_messages

    def take(self, role: str) -> str:
        """Return a job that nobody else is given."""
        return self.jobs[role].pop()

    @property
    def all_jobs(self) -> list[str]:
        """Every job, in a stable order."""
        return sorted(job for jobs in self.jobs.values() for job in jobs)


def _harness(file: Path, clock: ManualClock | None = None) -> Harness:
    harness = Harness(line(), path=file, clock=clock)
    harness.engine.schedules.add(
        "yearly", harness.engine.inspect.flows[0], {"then": "done"}, every=A_YEAR
    )
    return harness
