"""What the clock submits, and when."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from ulak.engine.engine import Engine
from ulak.engine.schedules import Schedule, ScheduleTick
from ulak.web.callers import Caller, guarded_router
from ulak.web.paging import USUAL_PAGE, PageSize, paged
from ulak.web.schemas import (
    A_JOB,
    A_MOMENT,
    NO_NOTE,
    ActAsked,
    JobId,
    Moment,
    Page,
    Parameters,
    Whole,
)
from ulak.web.seen import actor_of
from ulak.web.texts import Name, Time


class TickShown(BaseModel):
    """A date that was seen to, and the job that was submitted for it."""

    due_at: Moment
    job_id: JobId

    model_config = ConfigDict(
        json_schema_extra={"example": {"due_at": A_MOMENT, "job_id": A_JOB}}
    )  # fmt: skip


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
    next_at: Moment = Field(description="The first date that nobody has seen to.")
    last: TickShown | None
    paused_at: Moment | None
    paused_by: str | None
    pause_note: str | None
    is_declared: bool = Field(description="Nobody ticks what nobody declares.")

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "name": "nightly", "flow": "report", "version": 1, "tenant": "north",
                "priority": 1, "expires_seconds": None, "payload": {"pages": 3},
                "rule": "0 3 * * *", "zone": "Europe/Istanbul", "catch_up": "last",
                "next_at": A_MOMENT, "last": None, "paused_at": None, "paused_by": None,
                "pause_note": None, "is_declared": True,
            }
        }
    )  # fmt: skip


class TickPage(Page[TickShown, Moment]):
    """Dates of one schedule, the latest first."""


class TicksQuery(Parameters):
    """Which page of them."""

    after: Time | None = Field(None, description="The `next` of the page before.")
    limit: PageSize = USUAL_PAGE


def router(engine: Engine) -> APIRouter:
    """Make the routes of an engine's schedules."""
    routes = guarded_router(tags=["schedules"])

    def shown(schedule: Schedule) -> ScheduleShown:
        last = engine.schedules.ticks(schedule.name, limit=1)
        return _schedule(schedule, last[0] if last else None)

    @routes.get("/schedules")
    def list_schedules() -> Whole[ScheduleShown]:
        """List every schedule, by name, with its next and its last date."""
        return Whole(items=[shown(schedule) for schedule in engine.schedules.all()])

    @routes.get("/schedules/{name}/ticks")
    def list_ticks(name: Name, query: Annotated[TicksQuery, Query()]) -> TickPage:
        """List the dates of a schedule that were seen to, the latest first."""
        page, following = paged(
            lambda n: engine.schedules.ticks(name, before=query.after, limit=n),
            query.limit,
            lambda tick: tick.due_at,
        )
        return TickPage(items=[_tick(tick) for tick in page], next=following)

    @routes.post("/schedules/{name}/pause")
    def pause(name: Name, principal: Caller, body: ActAsked = NO_NOTE) -> ScheduleShown:
        """Let a schedule submit nothing until it is resumed."""
        return shown(engine.schedules.pause(name, actor=actor_of(principal), note=body.note))

    @routes.post("/schedules/{name}/resume")
    def resume(name: Name, principal: Caller, body: ActAsked = NO_NOTE) -> ScheduleShown:
        """End a pause; dates that have passed meanwhile are skipped."""
        return shown(engine.schedules.resume(name, actor=actor_of(principal), note=body.note))

    return routes


def _schedule(schedule: Schedule, last: ScheduleTick | None) -> ScheduleShown:
    expires = schedule.expires
    return ScheduleShown(
        name=schedule.name,
        flow=schedule.flow,
        version=schedule.version,
        tenant=schedule.tenant,
        priority=schedule.priority,
        expires_seconds=None if expires is None else expires.total_seconds(),
        payload=schedule.payload,
        rule=schedule.rule,
        zone=schedule.zone,
        catch_up=schedule.catch_up,
        next_at=schedule.next_at,
        last=None if last is None else _tick(last),
        paused_at=schedule.paused_at,
        paused_by=schedule.paused_by,
        pause_note=schedule.pause_note,
        is_declared=schedule.is_declared,
    )


def _tick(tick: ScheduleTick) -> TickShown:
    return TickShown(due_at=tick.due_at, job_id=tick.job_id)
