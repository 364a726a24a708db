"""Queues, pauses, limits, rates and weights: what operators set while everything runs."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import timedelta
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Path
from pydantic import AfterValidator, BaseModel, Field, model_validator

from ulak.clock import Instant, to_datetime
from ulak.core.bounds import LONGEST_KEY
from ulak.core.job import flow_of, queue_of
from ulak.core.lifecycle import CLAIMABLE, UNDOING
from ulak.core.policy import Rate
from ulak.engine.engine import Engine
from ulak.engine.flow_control import Pause, StageLimit, StageRate, Weight
from ulak.engine.view import backlog_document
from ulak.store.flow_control import HEAVIEST, QUEUE
from ulak.store.protocol import WorkerRow
from ulak.web.callers import Caller, actor_of, guarded_router
from ulak.web.schemas import (
    A_MOMENT,
    LONGEST_NAME,
    NO_NOTE,
    ActAsked,
    Body,
    Moment,
    Name,
    Note,
    NoteQuery,
    Seconds,
    Time,
    Whole,
    example,
    storable,
)

Kind = Literal["queue", "flow", "key"]


class PauseAsked(Body):
    """How long, and why; without an end, somebody must resume."""

    note: Note = ""
    until: Time | None = Field(None, description="When it ends by itself.")
    for_seconds: Seconds | None = Field(None, description="After how long it ends by itself.")

    model_config = example(note="the printer leaks", for_seconds=900)

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

    model_config = example(
        kind="queue", name="print", until=A_MOMENT, actor="ada", note="the printer leaks",
        at=A_MOMENT, replaces=None,
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

    model_config = example(
        name="print", flows=["labels"], workers=["host-1.4711.ab12"], jobs=12, pause=None
    )


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

    model_config = example(
        flow="labels", queue="print", due=12, delayed=10_000, parked=0, leased=4, held=1,
        at_least=["delayed"], oldest_due=A_MOMENT, oldest_leased=A_MOMENT, ended_per_second=3.5,
        done_per_second=3.4,
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


def queues_router(engine: Engine) -> APIRouter:
    routes = guarded_router(tags=["queues"])

    @routes.get("/queues", response_model=Whole[QueueShown])
    def list_queues() -> Any:
        """List every queue that a flow or a worker knows, by name."""
        return {"items": _queues(engine)}

    @routes.get("/backlog", response_model=Whole[BacklogShown])
    def read_backlog() -> Any:
        """Count the jobs that are due, delayed, parked, leased and held, by flow and queue, up to
        10,000 of a kind; and how many end in a second."""
        return {"items": list(map(backlog_document, engine.inspect.backlog()))}

    @routes.post("/queues/{name}/pause", response_model=PauseShown)
    def pause_queue(name: Name, body: PauseAsked, principal: Caller) -> Pause:
        """Let no job of a queue be begun; what runs ends its stage."""
        return _pause(engine, "queue", name, body, actor_of(principal))

    @routes.post("/queues/{name}/resume", response_model=PauseShown)
    def resume_queue(name: Name, principal: Caller, body: ActAsked = NO_NOTE) -> Pause:
        """End the pause of a queue; answers what has ended."""
        return engine.flow_control.resume(queue=name, actor=actor_of(principal), note=body.note)

    @routes.get("/pauses", response_model=Whole[PauseShown])
    def list_pauses() -> Any:
        """List every pause that is not over, by kind and name."""
        return {"items": engine.flow_control.pauses()}

    @routes.put("/pauses/{kind}/{name:path}", response_model=PauseShown)
    def pause(kind: Kind, name: Name, body: PauseAsked, principal: Caller) -> Pause:
        """Let no job of a queue, a flow or a key be begun; pausing again sets another end."""
        return _pause(engine, kind, name, body, actor_of(principal))

    @routes.delete("/pauses/{kind}/{name:path}", response_model=PauseShown)
    def resume(kind: Kind, name: Name, principal: Caller, note: NoteQuery = "") -> Pause:
        """End a pause; answers what has ended."""
        return engine.flow_control.resume(**{kind: name}, actor=actor_of(principal), note=note)

    @routes.get("/workers")
    def list_workers() -> Whole[WorkerShown]:
        """List every worker, those too whose lease has run out."""
        store = engine.open().store
        now = store.clock.now()
        return Whole(items=[_worker(row, now) for row in store.workers()])

    return routes


def _pause(engine: Engine, kind: Kind, name: str, body: PauseAsked, actor: str) -> Pause:
    span = body.for_seconds
    until = body.until if span is None else timedelta(seconds=span)
    return engine.flow_control.pause(**{kind: name}, actor=actor, note=body.note, until=until)


def _queues(engine: Engine) -> list[dict[str, Any]]:
    store = engine.open().store
    now = store.clock.now()
    pauses = {pause.name: pause for pause in engine.flow_control.pauses() if pause.kind == QUEUE}
    flows: defaultdict[str, set[str]] = defaultdict(set)
    workers: defaultdict[str, set[str]] = defaultdict(set)
    lanes = {lane for flow in engine.inspect.flows for lane in flow.table.lanes}
    for worker in store.workers():
        if worker.expires_at > now:
            lanes.update(worker.lanes.split())
            for lane in worker.lanes.split():
                workers[queue_of(lane)].add(worker.id)
    for lane in lanes:
        flows[queue_of(lane)].add(flow_of(lane))
    jobs = _jobs(engine)
    return [
        {
            "name": name,
            "flows": sorted(flows[name]),
            "workers": sorted(workers[name]),
            "jobs": jobs[name],
            "pause": pauses.get(name),
        }
        for name in sorted(flows.keys() | pauses.keys())
    ]


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


def _worker(row: WorkerRow, now: Instant) -> WorkerShown:
    lanes = row.lanes.split()
    return WorkerShown(
        id=row.id,
        about=row.about,
        is_alive=row.expires_at > now,
        started_at=to_datetime(row.started_at),
        renewed_at=to_datetime(row.renewed_at),
        expires_at=to_datetime(row.expires_at),
        queues=sorted({queue_of(lane) for lane in lanes}),
        flows=sorted({flow_of(lane) for lane in lanes}),
    )


# Every slot of a limit is a row, opened in the transaction that sets it.
MOST_AT_ONCE: Final = 10_000
MOST_TOKENS: Final = 1_000_000_000

# Nobody's tenant is '', which a path would not show; other tenants may have slashes in them.
Tenant = Annotated[str, Path(min_length=1, max_length=LONGEST_NAME), AfterValidator(storable)]
Key = Annotated[str, Field(min_length=1, max_length=LONGEST_KEY), AfterValidator(storable)]


class LimitAsked(Body):
    """How many runs of a stage there may be at once."""

    n: int = Field(ge=0, le=MOST_AT_ONCE, description="With a key, for each key; 0 lets none begin")
    key: Key | None = Field(None, description="Set it for this key alone.")
    note: Note = ""

    model_config = example(n=4, note="two more ovens")


class LimitShown(BaseModel):
    """How many runs of a stage there may be at once: of the stage, or of each key of it."""

    name: str = Field(description="flow/state")
    n: int
    declared: int
    keyed: bool
    actor: str | None = Field(description="Who has set n; null while it is what is declared.")
    at: Moment
    key: str | None = Field(description="The one key that has this limit; null for the stage's.")

    model_config = example(
        name="bread/baking", n=4, declared=2, keyed=False, actor="ada", at=A_MOMENT, key=None
    )


class RateAsked(Body):
    """How many tokens the bucket of a stage gets in a span of time."""

    n: int = Field(ge=1, le=MOST_TOKENS)
    per_seconds: Seconds = 1.0
    burst: int | None = Field(
        None, ge=1, le=MOST_TOKENS, description="How many tokens are kept; by default n."
    )
    note: Note = ""

    model_config = example(n=100, per_seconds=60, burst=10)


class RateTermsShown(BaseModel):
    """A rate in numbers."""

    n: int
    per_seconds: float
    burst: int


class RateShown(RateTermsShown):
    """How many tokens the bucket of a stage, or of each key of it, gets in a span of time."""

    name: str = Field(description="flow/state")
    declared: RateTermsShown
    actor: str | None = Field(description="Who has set it; null while it is what is declared.")
    at: Moment

    model_config = example(
        name="mail/sending", n=100, per_seconds=60.0, burst=10,
        declared={"n": 20, "per_seconds": 60.0, "burst": 20}, actor="ada", at=A_MOMENT,
    )  # fmt: skip


class WeightAsked(Body):
    """How many turns a tenant of fair flows has for each turn of others."""

    weight: int = Field(ge=1, le=HEAVIEST)
    note: Note = ""

    model_config = example(weight=3)


class WeightShown(BaseModel):
    """How many turns a tenant of fair flows has for each turn of others."""

    tenant: str
    weight: int
    actor: str | None = Field(description="Who has set it; null when it is one turn again.")
    at: Moment | None


def limits_router(engine: Engine) -> APIRouter:
    routes, control = guarded_router(tags=["limits"]), engine.flow_control

    @routes.get("/limits", response_model=Whole[LimitShown])
    def list_limits() -> Any:
        """List every limit, by name: what is in force, what is declared, who has set it."""
        return {"items": control.limits()}

    @routes.put("/limits/{flow}/{state}", response_model=LimitShown)
    def set_limit(flow: Name, state: Name, body: LimitAsked, principal: Caller) -> StageLimit:
        """Set a limit, in force at once and after a restart; a lowered one drains."""
        name, actor = f"{flow}/{state}", actor_of(principal)
        return control.set_limit(name, body.n, key=body.key, actor=actor, note=body.note)

    @routes.delete("/limits/{flow}/{state}", response_model=LimitShown)
    def reset_limit(
        flow: Name, state: Name, principal: Caller, key: Key | None = None, note: NoteQuery = ""
    ) -> StageLimit:
        """Go back to what the flow declares; for one key, to what the others have."""
        name, actor = f"{flow}/{state}", actor_of(principal)
        return control.set_limit(name, None, key=key, actor=actor, note=note)

    @routes.get("/rates")
    def list_rates() -> Whole[RateShown]:
        """List every rate, by name: what is in force, what is declared, who has set it."""
        return Whole(items=[_rate(rate) for rate in control.rates()])

    @routes.put("/rates/{flow}/{state}")
    def set_rate(flow: Name, state: Name, body: RateAsked, principal: Caller) -> RateShown:
        """Set a rate, in force at once and after a restart; the bucket keeps its tokens."""
        rate = Rate(body.n, per=timedelta(seconds=body.per_seconds), burst=body.burst)
        name, actor = f"{flow}/{state}", actor_of(principal)
        return _rate(control.set_rate(name, rate, actor=actor, note=body.note))

    @routes.delete("/rates/{flow}/{state}")
    def reset_rate(flow: Name, state: Name, principal: Caller, note: NoteQuery = "") -> RateShown:
        """Go back to what the flow declares."""
        name, actor = f"{flow}/{state}", actor_of(principal)
        return _rate(control.set_rate(name, None, actor=actor, note=note))

    @routes.get("/weights", response_model=Whole[WeightShown])
    def list_weights() -> Any:
        """List the tenants that have more than one turn."""
        return {"items": control.weights()}

    @routes.put("/weights/{tenant:path}", response_model=WeightShown)
    def set_weight(tenant: Tenant, body: WeightAsked, principal: Caller) -> Weight | None:
        """Give a tenant so many turns in fair flows for each turn of others."""
        actor = actor_of(principal)
        return control.set_weight(tenant, body.weight, actor=actor, note=body.note)

    @routes.delete("/weights/{tenant:path}")
    def reset_weight(tenant: Tenant, principal: Caller, note: NoteQuery = "") -> WeightShown:
        """Give a tenant one turn again, as others have."""
        control.set_weight(tenant, None, actor=actor_of(principal), note=note)
        return WeightShown(tenant=tenant, weight=1, actor=None, at=None)

    return routes


def _rate(rate: StageRate) -> RateShown:
    n, per, burst = rate.declared
    return RateShown(
        name=rate.name,
        n=rate.n,
        per_seconds=rate.per.total_seconds(),
        burst=rate.burst,
        declared=RateTermsShown(n=n, per_seconds=per.total_seconds(), burst=burst),
        actor=rate.actor,
        at=rate.at,
    )
