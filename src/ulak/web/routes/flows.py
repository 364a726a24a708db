"""What the program declares: flows and schedules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, Field

from ulak.clock import Duration, seconds
from ulak.core import checks
from ulak.core.flow import Flow, Gate, Stage
from ulak.core.lifecycle import Role, moves_of
from ulak.core.policy import SUBMITTER
from ulak.core.table import mermaid, slot_name
from ulak.engine.engine import Engine
from ulak.engine.schedules import Schedule
from ulak.errors import UnknownName
from ulak.store.protocol import CountRow
from ulak.web import schemas
from ulak.web.callers import Caller, actor_of, guarded_router

VersionQuery = Annotated[
    int | None, Query(ge=1, le=2**31 - 1, description="By default the newest that is declared.")
]


class VersionShown(BaseModel):
    """One version of a flow."""

    version: int
    is_declared: bool = Field(description="Whether this program declares it, or jobs still have it")
    jobs: int | None = Field(description="Null to callers that see the jobs of one tenant.")


class StateShown(BaseModel):
    """One state, and how many jobs of every version stand in it."""

    state: str
    role: Role
    jobs: int | None = Field(description="Null to callers that see the jobs of one tenant.")


class FlowShown(BaseModel):
    """A flow in every version that is declared or has jobs."""

    name: str
    versions: list[VersionShown]
    states: list[StateShown] = Field(description="Those of the newest version first.")

    model_config = schemas.example(
        name="loans",
        versions=[{"version": 1, "is_declared": True, "jobs": 12}],
        states=[
            {"state": "in_review", "role": "held", "jobs": 2},
            {"state": "paid", "role": "done", "jobs": 10},
        ],
    )


class LimitDeclared(BaseModel):
    """How many runs of a stage there may be at once, as declared."""

    name: str = Field(description="As /limits has it, with what is in force.")
    n: int
    keyed: bool = Field(description="There are so many for each key.")


class RateDeclared(BaseModel):
    """How many runs of a stage there may be in a span, as declared."""

    name: str = Field(description="As /rates has it, with what is in force.")
    n: int
    per_seconds: float
    burst: int
    keyed: bool


class StageShown(BaseModel):
    """The work that leaves a state."""

    state: str
    during: str | None = Field(description="The state of its own while it runs.")
    to: list[str] = Field(description="Where it may lead.")
    queue: str
    pool: str = Field(description="Where it runs: loop, thread or process.")
    timeout_seconds: float
    retries: int
    limit: LimitDeclared | None
    rate: RateDeclared | None
    has_undo: bool


class GateShown(BaseModel):
    """A question to a person."""

    state: str
    choices: dict[str, str] = Field(description="Each answer, and the state it leads to.")
    roles: list[str] = Field(description="Who may answer; empty means everybody.")
    not_by: list[str] = Field(description="Who may not; `submitter` is whoever submitted the job.")
    refusals: list[str] = Field(description="The answers that undo what was done.")
    deadline_seconds: float | None
    on_expiry: str | None


class WaitShown(BaseModel):
    """A state in which time or a signal decides."""

    state: str
    signal: str | None
    to: str | None
    deadline_seconds: float | None
    on_expiry: str | None


class FlowDetail(BaseModel):
    """One version of a flow, whole."""

    name: str
    version: int
    versions: list[int] = Field(description="Every version that this program declares.")
    queue: str
    fair: bool
    proofs: bool
    initial: str
    states: dict[str, Role]
    moves: dict[str, list[str]]
    stages: list[StageShown]
    gates: list[GateShown]
    waits: list[WaitShown]
    mermaid: str = Field(description="The lifecycle as a Mermaid state diagram.")


def flows_router(engine: Engine) -> APIRouter:
    routes = guarded_router(tags=["flows"])

    @routes.get("/flows")
    def list_flows(principal: Caller) -> schemas.Whole[FlowShown]:
        """List the flows, by name, with how many jobs stand in each state."""
        # Counts are of every tenant: whoever sees one tenant learns of no other from them.
        counted = principal.tenant is None
        counts = engine.inspect.counts() if counted else []
        names = sorted({flow.name for flow in engine.inspect.flows} | {row.flow for row in counts})
        return schemas.Whole(
            items=[_shown(engine, name, counts, counted=counted) for name in names]
        )

    @routes.get("/flows/{name}")
    def show_flow(name: schemas.Name, version: VersionQuery = None) -> FlowDetail:
        """Show a flow: its states and moves, and who or what makes them."""
        return _detail(engine, get_flow(engine, name, version))

    @routes.get("/flows/{name}/diagram", response_class=PlainTextResponse)
    def draw_flow(name: schemas.Name, version: VersionQuery = None) -> str:
        """Draw a flow as a Mermaid state diagram."""
        return mermaid(get_flow(engine, name, version))

    return routes


def get_flow(engine: Engine, name: str, version: int | None = None) -> Flow[Any]:
    """Return a flow, by default its newest version. Raises `UnknownName`: this program declares
    none."""
    found = {flow.version: flow for flow in engine.inspect.flows if flow.name == name}
    if not found:
        known = ", ".join(sorted({flow.name for flow in engine.inspect.flows})) or "none"
        raise UnknownName(f"there is no flow {name!r}; this program declares {known}")
    if version is None:
        version = max(found)
    if version not in found:
        known = ", ".join(map(str, sorted(found)))
        raise UnknownName(f"{name} has no version {version}; this program declares {known}")
    return found[version]


def _shown(engine: Engine, name: str, counts: Iterable[CountRow], *, counted: bool) -> FlowShown:
    declared = {flow.version: flow for flow in engine.inspect.flows if flow.name == name}
    own = [row for row in counts if row.flow == name]
    # A state that lost its last job keeps a row of no jobs.
    stored = [row for row in own if row.jobs]
    roles: dict[str, Role] = {}
    for version in sorted(declared, reverse=True):
        for state, place in declared[version].table.places.items():
            roles.setdefault(state, place.role)
    for row in stored:
        roles.setdefault(row.state, row.role)  # type: ignore[arg-type] # stored from a Role

    def jobs(rows: Iterable[CountRow]) -> int | None:
        return sum(row.jobs for row in rows) if counted else None

    return FlowShown(
        name=name,
        versions=[
            VersionShown(
                version=version,
                is_declared=version in declared,
                jobs=jobs(row for row in own if row.flow_version == version),
            )
            for version in sorted(declared.keys() | {row.flow_version for row in stored})
        ],
        states=[
            StateShown(state=state, role=role, jobs=jobs(r for r in own if r.state == state))
            for state, role in roles.items()
        ],
    )


def _detail(engine: Engine, flow: Flow[Any]) -> FlowDetail:
    return FlowDetail(
        name=flow.name,
        version=flow.version,
        versions=sorted(other.version for other in engine.inspect.flows if other.name == flow.name),
        queue=flow.queue,
        fair=flow.fair,
        proofs=flow.proofs,
        initial=flow.lifecycle.initial,
        states={state: place.role for state, place in flow.table.places.items()},
        moves={state: list(ways) for state, ways in moves_of(flow.lifecycle).items()},
        stages=[_stage(flow, stage) for stage in flow.declared.stages],
        gates=[_gate(flow, gate) for gate in flow.declared.gates],
        waits=[
            WaitShown(
                state=wait.state,
                signal=wait.signal,
                to=wait.to,
                deadline_seconds=_seconds(wait.deadline),
                on_expiry=wait.on_expiry,
            )
            for wait in flow.declared.waits
        ],
        mermaid=mermaid(flow),
    )


def _stage(flow: Flow[Any], stage: Stage[Any, Any]) -> StageShown:
    place = flow.table.places[stage.state]
    name, limit, rate = slot_name(flow, stage), None, None
    if stage.limit is not None:
        limit = LimitDeclared(name=name, n=stage.limit.n, keyed=stage.limit.key is not None)
    if stage.rate is not None:
        rate = RateDeclared(
            name=name,
            n=stage.rate.n,
            per_seconds=seconds(stage.rate.per),
            burst=flow.table.rates[name].burst,
            keyed=stage.rate.key is not None,
        )
    return StageShown(
        state=stage.state,
        during=stage.during,
        to=list(place.ways),
        queue=stage.queue or flow.queue,
        pool=stage.pool,
        timeout_seconds=seconds(stage.timeout),
        retries=(stage.retry or flow.retry).limit(),
        limit=limit,
        rate=rate,
        has_undo=stage.undo_function is not None,
    )


def _gate(flow: Flow[Any], gate: Gate[Any]) -> GateShown:
    return GateShown(
        state=gate.state,
        choices=dict(gate.choices),
        roles=sorted(gate.by),
        not_by=sorted(SUBMITTER.value if who is SUBMITTER else str(who) for who in gate.not_by),
        refusals=sorted(checks.refusals_of(flow, gate)),
        deadline_seconds=_seconds(gate.deadline),
        on_expiry=gate.on_expiry,
    )


def _seconds(span: Duration | None) -> float | None:
    return None if span is None else seconds(span)


class TickShown(BaseModel):
    """A date that was seen to, and the job that was submitted for it."""

    due_at: schemas.Moment
    job_id: schemas.JobId

    model_config = schemas.example(due_at=schemas.A_MOMENT, job_id=schemas.A_JOB)


class ScheduleShown(BaseModel):
    """A schedule as it stood when it was read."""

    name: str
    flow: str
    version: int
    tenant: str
    priority: int
    expires_seconds: float | None
    payload: Any = Field(description="What it submits; secret fields are hidden.")
    rule: str = Field(description="A cron expression, or `@every 300s`.")
    zone: str
    catch_up: str = Field(description="Which missed dates are run: none, last or all.")
    next_at: schemas.Moment = Field(description="The first date that nobody has seen to.")
    last: TickShown | None
    paused_at: schemas.Moment | None
    paused_by: str | None
    pause_note: str | None
    is_declared: bool = Field(description="Nobody ticks what nobody declares.")

    model_config = schemas.example(
        name="nightly", flow="report", version=1, tenant="north", priority=1, expires_seconds=None,
        payload={"pages": 3}, rule="0 3 * * *", zone="Europe/Istanbul", catch_up="last",
        next_at=schemas.A_MOMENT, last=None, paused_at=None, paused_by=None, pause_note=None,
        is_declared=True,
    )  # fmt: skip


class TickPage(schemas.Page[TickShown, schemas.Moment]):
    """Dates of one schedule, the latest first."""


class TicksQuery(schemas.Parameters):
    """Which page of them."""

    after: schemas.Time | None = Field(None, description="The `next` of the page before.")
    limit: schemas.PageSize = schemas.USUAL_PAGE


def schedules_router(engine: Engine) -> APIRouter:
    routes = guarded_router(tags=["schedules"])

    def shown(schedule: Schedule) -> ScheduleShown:
        last = engine.schedules.ticks(schedule.name, limit=1)
        more = {"expires_seconds": _seconds(schedule.expires), "last": last[0] if last else None}
        names = ScheduleShown.model_fields.keys() - more.keys()
        facts = {name: getattr(schedule, name) for name in names} | more
        return ScheduleShown.model_validate(facts, from_attributes=True)

    @routes.get("/schedules")
    def list_schedules() -> schemas.Whole[ScheduleShown]:
        """List every schedule, by name, with its next and its last date."""
        return schemas.Whole(items=[shown(schedule) for schedule in engine.schedules.all()])

    @routes.get("/schedules/{name}/ticks", response_model=TickPage)
    def list_ticks(name: schemas.Name, query: Annotated[TicksQuery, Query()]) -> Any:
        """List the dates of a schedule that were seen to, the latest first."""
        page, following = schemas.paged(
            lambda n: engine.schedules.ticks(name, before=query.after, limit=n),
            query.limit,
            lambda tick: tick.due_at,
        )
        return {"items": page, "next": following}

    @routes.post("/schedules/{name}/pause")
    def pause(
        name: schemas.Name, principal: Caller, body: schemas.ActAsked = schemas.NO_NOTE
    ) -> ScheduleShown:
        """Let a schedule submit nothing until it is resumed."""
        return shown(engine.schedules.pause(name, actor=actor_of(principal), note=body.note))

    @routes.post("/schedules/{name}/resume")
    def resume(
        name: schemas.Name, principal: Caller, body: schemas.ActAsked = schemas.NO_NOTE
    ) -> ScheduleShown:
        """End a pause; dates that have passed meanwhile are skipped."""
        return shown(engine.schedules.resume(name, actor=actor_of(principal), note=body.note))

    return routes
