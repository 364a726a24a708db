"""Queues, what is paused, and the workers that serve."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import timedelta
from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, model_validator

from ulak.clock import to_datetime
from ulak.core.job import flow_of, queue_of
from ulak.core.lifecycle import CLAIMABLE, UNDOING
from ulak.engine.engine import Engine
from ulak.engine.flow_control import Pause
from ulak.engine.view import backlog_document
from ulak.store.flow_control import QUEUE
from ulak.store.protocol import WorkerRow
from ulak.web.callers import Caller, guarded_router
from ulak.web.schemas import A_MOMENT, NO_NOTE, ActAsked, Body, Moment, Whole
from ulak.web.seen import actor_of
from ulak.web.texts import Name, Note, NoteQuery, Seconds, Time

Kind = Literal["queue", "flow", "key"]


class PauseAsked(Body):
    """How long, and why; without an end, somebody must resume."""

    note: Note = ""
    until: Time | None = Field(None, description="When it ends by itself.")
    for_seconds: Seconds | None = Field(None, description="After how long it ends by itself.")

    model_config = ConfigDict(
        json_schema_extra={"example": {"note": "the printer leaks", "for_seconds": 900}}
    )

    @model_validator(mode="after")
    def _one_end(self) -> PauseAsked:
        if self.until is not None and self.for_seconds is not None:
            raise ValueError("say until or for_seconds, not both")
        return self


class PauseShown(BaseModel):
    """No job of this queue, flow or key is begun until the end of the pause."""

    kind: Kind
    name: str
    until: Moment | None = Field(description="When it ends by itself; null: when resumed.")
    actor: str = Field(description="Who has paused it.")
    note: str | None
    at: Moment
    replaces: PauseShown | None = Field(
        None, description="The pause that was in force when this one began."
    )

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "kind": "queue", "name": "print", "until": A_MOMENT, "actor": "ada",
                "note": "the printer leaks", "at": A_MOMENT, "replaces": None,
            }
        }
    )  # fmt: skip


class QueueShown(BaseModel):
    """One queue."""

    name: str
    flows: list[str] = Field(description="Flows with a stage in it, as far as anybody serves them.")
    workers: list[str] = Field(description="Workers that live and serve it.")
    jobs: int = Field(
        description="Jobs of the declared flows that wait for one of its workers or run on it."
    )
    pause: PauseShown | None

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "name": "print", "flows": ["labels"], "workers": ["host-1.4711.ab12"],
                "jobs": 12, "pause": None,
            }
        }
    )  # fmt: skip


class BacklogShown(BaseModel):
    """How the jobs of a flow stand in a queue."""

    flow: str
    queue: str
    due: int
    delayed: int
    parked: int
    leased: int
    held: int
    at_least: list[str] = Field(
        description="The kinds of which there are more than was counted; the others are exact."
    )
    oldest_due: Moment | None = Field(
        description="Since when the first of those that are due has been due."
    )
    oldest_leased: Moment | None = Field(
        description="Since when the first of those that are leased has been leased."
    )
    ended_per_second: float
    done_per_second: float = Field(description="Of those that ended, the ones that ended well.")

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "flow": "labels", "queue": "print", "due": 12, "delayed": 10_000, "parked": 0,
                "leased": 4, "held": 1, "at_least": ["delayed"], "oldest_due": A_MOMENT,
                "oldest_leased": A_MOMENT, "ended_per_second": 3.5, "done_per_second": 3.4,
            }
        }
    )  # fmt: skip


class WorkerShown(BaseModel):
    """One worker's lease: every job that it runs lives by it."""

    id: str
    about: str = Field(description="Host and process.")
    is_alive: bool = Field(description="Whether its lease has not run out.")
    started_at: Moment
    renewed_at: Moment
    expires_at: Moment
    queues: list[str]
    flows: list[str]


def router(engine: Engine) -> APIRouter:
    """Make the routes of an engine's queues, pauses and workers."""
    routes = guarded_router(tags=["queues"])

    @routes.get("/queues")
    def list_queues() -> Whole[QueueShown]:
        """List every queue that a flow or a worker knows, by name."""
        return Whole(items=_queues(engine))

    @routes.get("/backlog")
    def read_backlog() -> Whole[BacklogShown]:
        """Count the jobs that are due, delayed, parked, leased and held, by flow and queue, up to
        10,000 of a kind; and how many end in a second."""
        found = map(backlog_document, engine.inspect.backlog())
        return Whole(items=[BacklogShown.model_validate(row) for row in found])

    @routes.post("/queues/{name}/pause")
    def pause_queue(name: Name, body: PauseAsked, principal: Caller) -> PauseShown:
        """Let no job of a queue be begun; what runs ends its stage."""
        return _paused(engine, QUEUE, name, body, actor_of(principal))

    @routes.post("/queues/{name}/resume")
    def resume_queue(name: Name, principal: Caller, body: ActAsked = NO_NOTE) -> PauseShown:
        """End the pause of a queue; answers what has ended."""
        return _resumed(engine, QUEUE, name, body.note, actor_of(principal))

    @routes.get("/pauses")
    def list_pauses() -> Whole[PauseShown]:
        """List every pause that is not over, by kind and name."""
        return Whole(items=[_pause(pause) for pause in engine.flow_control.pauses()])

    @routes.put("/pauses/{kind}/{name:path}")
    def pause(kind: Kind, name: Name, body: PauseAsked, principal: Caller) -> PauseShown:
        """Let no job of a queue, a flow or a key be begun; pausing again sets another end."""
        return _paused(engine, kind, name, body, actor_of(principal))

    @routes.delete("/pauses/{kind}/{name:path}")
    def resume(kind: Kind, name: Name, principal: Caller, note: NoteQuery = "") -> PauseShown:
        """End a pause; answers what has ended."""
        return _resumed(engine, kind, name, note, actor_of(principal))

    @routes.get("/workers")
    def list_workers() -> Whole[WorkerShown]:
        """List every worker, those too whose lease has run out."""
        store = engine.open().store
        now = store.clock.now()
        return Whole(items=[_worker(row, is_alive=row.expires_at > now) for row in store.workers()])

    return routes


def _paused(engine: Engine, kind: str, name: str, asked: PauseAsked, actor: str) -> PauseShown:
    span = asked.for_seconds
    until = asked.until if span is None else timedelta(seconds=span)
    return _pause(
        engine.flow_control.pause(**{kind: name}, actor=actor, note=asked.note, until=until)
    )


def _resumed(engine: Engine, kind: str, name: str, note: str, actor: str) -> PauseShown:
    return _pause(engine.flow_control.resume(**{kind: name}, actor=actor, note=note))


def _pause(pause: Pause) -> PauseShown:
    return PauseShown.model_validate(pause, from_attributes=True)


# --- queues ---------------------------------------------------------------------


def _queues(engine: Engine) -> list[QueueShown]:
    """Put together what flows declare, what workers serve and what is paused."""
    store = engine.open().store
    now = store.clock.now()
    pauses = {pause.name: pause for pause in engine.flow_control.pauses() if pause.kind == QUEUE}
    flows: defaultdict[str, set[str]] = defaultdict(set)
    workers: defaultdict[str, set[str]] = defaultdict(set)
    for flow in engine.inspect.flows:
        _note_lanes(flows, flow.table.lanes)
    for worker in store.workers():
        if worker.expires_at > now:
            _note_lanes(flows, worker.lanes.split())
            for lane in worker.lanes.split():
                workers[queue_of(lane)].add(worker.id)
    jobs = _jobs(engine)
    return [
        QueueShown(
            name=name,
            flows=sorted(flows[name]),
            workers=sorted(workers[name]),
            jobs=jobs[name],
            pause=_pause(pauses[name]) if name in pauses else None,
        )
        for name in sorted(flows.keys() | pauses.keys())
    ]


def _note_lanes(flows: defaultdict[str, set[str]], lanes: Iterable[str]) -> None:
    for lane in lanes:
        flows[queue_of(lane)].add(flow_of(lane))


def _jobs(engine: Engine) -> Counter[str]:
    """Count the jobs of each queue from the counts of states, without looking at a job."""
    flows = engine.kernel.flows_by_version()
    jobs: Counter[str] = Counter()
    for row in engine.inspect.counts():
        flow = flows.get((row.flow, row.flow_version))
        if flow is None or row.role not in CLAIMABLE:
            continue
        place = flow.table.places.get(row.state)
        if row.role == UNDOING:
            jobs[flow.queue] += row.jobs  # undos are taken there, whichever stage is undone
        elif place is not None and place.lane:
            jobs[queue_of(place.lane)] += row.jobs
    return jobs


def _worker(row: WorkerRow, *, is_alive: bool) -> WorkerShown:
    lanes = row.lanes.split()
    return WorkerShown(
        id=row.id,
        about=row.about,
        is_alive=is_alive,
        started_at=to_datetime(row.started_at),
        renewed_at=to_datetime(row.renewed_at),
        expires_at=to_datetime(row.expires_at),
        queues=sorted({queue_of(lane) for lane in lanes}),
        flows=sorted({flow_of(lane) for lane in lanes}),
    )
