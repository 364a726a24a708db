"""What the program declares: flows, their states and moves, and their picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field

from ulak.clock import Duration, seconds
from ulak.core import checks
from ulak.core.flow import Flow, Gate, Stage, Wait
from ulak.core.lifecycle import Role, moves_of
from ulak.core.policy import SUBMITTER
from ulak.core.table import mermaid, slot_name
from ulak.engine.engine import Engine
from ulak.errors import UnknownName
from ulak.store.protocol import CountRow
from ulak.web.callers import Caller, guarded_router
from ulak.web.schemas import Whole
from ulak.web.texts import Name

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

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "name": "loans",
                "versions": [{"version": 1, "is_declared": True, "jobs": 12}],
                "states": [
                    {"state": "in_review", "role": "held", "jobs": 2},
                    {"state": "paid", "role": "done", "jobs": 10},
                ],
            }
        }
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


def router(engine: Engine) -> APIRouter:
    """Make the routes that show an engine's flows."""
    routes = guarded_router(tags=["flows"])

    @routes.get("/flows")
    def list_flows(principal: Caller) -> Whole[FlowShown]:
        """List the flows, by name, with how many jobs stand in each state."""
        # Counts are of every tenant: whoever sees one tenant learns of no other from them.
        counted = principal.tenant is None
        counts = engine.inspect.counts() if counted else []
        names = sorted({flow.name for flow in engine.inspect.flows} | {row.flow for row in counts})
        return Whole(items=[_shown(engine, name, counts, counted=counted) for name in names])

    @routes.get("/flows/{name}")
    def show_flow(name: Name, version: VersionQuery = None) -> FlowDetail:
        """Show a flow: its states and moves, and who or what makes them."""
        return _detail(engine, get_flow(engine, name, version))

    @routes.get("/flows/{name}/diagram", response_class=PlainTextResponse)
    def draw_flow(name: Name, version: VersionQuery = None) -> str:
        """Draw a flow as a Mermaid state diagram."""
        return mermaid(get_flow(engine, name, version))

    return routes


def get_flow(engine: Engine, name: str, version: int | None = None) -> Flow[Any]:
    """Return a flow, by default its newest version.

    Raises:
        UnknownName: this program declares none.
    """
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
    stored = {row.flow_version for row in own if row.jobs}
    roles: dict[str, Role] = {}
    for version in sorted(declared, reverse=True):
        for state, place in declared[version].table.places.items():
            roles.setdefault(state, place.role)
    for row in own:
        if row.jobs:
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
            for version in sorted(declared.keys() | stored)
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
        waits=[_wait(wait) for wait in flow.declared.waits],
        mermaid=mermaid(flow),
    )


def _stage(flow: Flow[Any], stage: Stage[Any, Any]) -> StageShown:
    place = flow.table.places[stage.state]
    limit, rate = stage.limit, stage.rate
    terms: Mapping[str, Any] = flow.table.rates
    name = slot_name(flow, stage)
    return StageShown(
        state=stage.state,
        during=stage.during,
        to=list(place.ways),
        queue=stage.queue or flow.queue,
        pool=stage.pool,
        timeout_seconds=seconds(stage.timeout),
        retries=(stage.retry or flow.retry).limit(),
        limit=None
        if limit is None
        else LimitDeclared(name=name, n=limit.n, keyed=limit.key is not None),
        rate=None
        if rate is None
        else RateDeclared(
            name=name,
            n=rate.n,
            per_seconds=seconds(rate.per),
            burst=terms[name].burst,
            keyed=rate.key is not None,
        ),
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


def _wait(wait: Wait[Any]) -> WaitShown:
    return WaitShown(
        state=wait.state,
        signal=wait.signal,
        to=wait.to,
        deadline_seconds=_seconds(wait.deadline),
        on_expiry=wait.on_expiry,
    )


def _seconds(span: Duration | None) -> float | None:
    return None if span is None else seconds(span)
