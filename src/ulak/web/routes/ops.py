"""Operations: what people turn off, pin and look at while everything runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query
from pydantic import AfterValidator, BaseModel, Field

from ulak.control.guard_state import GuardState
from ulak.errors import BadInput, NotSupported
from ulak.web.callers import Caller, actor_of, guarded_router
from ulak.web.guard import show_modes
from ulak.web.schemas import LONGEST_NAME, LONGEST_NOTE, Body, Name, Whole, example, storable

Reason = Annotated[
    str,
    Field(min_length=1, max_length=LONGEST_NOTE, description="Why, for the audit."),
    AfterValidator(storable),
]
WhyOrNothing = Annotated[
    str,
    Field(max_length=LONGEST_NOTE, description="Why, for the audit."),
    AfterValidator(storable),
]
Subsystem = Annotated[str, Path(max_length=LONGEST_NAME), AfterValidator(storable)]


class SwitchAsked(Body):
    """On or off, and why."""

    enabled: bool
    reason: Reason

    model_config = example(enabled=True, reason="the printer burns")


class SwitchShown(BaseModel):
    """One kill switch."""

    name: str
    enabled: bool
    updated_at: int | None = Field(description="Milliseconds since 1970; null: never set.")
    updated_by: str
    reason: str


class SwitchChanged(SwitchShown):
    """A switch as it stands now, and how it stood."""

    previous: SwitchShown


class OverrideAsked(Body):
    """Which mode, why, and perhaps for how long."""

    mode: str = Field(max_length=50)
    reason: Reason
    expires_in_seconds: int | None = Field(None, ge=1, le=3650 * 24 * 3600)

    model_config = example(mode="shadow", reason="a release is under way", expires_in_seconds=900)


class ReleaseAsked(Body):
    """Why an override ends; the query may have it instead."""

    reason: WhyOrNothing = ""

    model_config = example(reason="the release is done")


NOTHING_SAID: Final = ReleaseAsked()


class OverrideShown(BaseModel):
    """The mode that a person has pinned."""

    subsystem_id: str
    mode: str
    actor: str
    reason: str
    expires_at: int | None = Field(description="Milliseconds since 1970; null: when released.")
    set_at: int


class OverrideAnswer(BaseModel):
    """The override of a subsystem, null where there is none."""

    subsystem: str
    override: OverrideShown | None
    previous: OverrideShown | None = None


class ModeShown(BaseModel):
    """The mode of the guard for a tenant and a risk class."""

    subsystem: str
    tenant: str = Field(description="`*` is every tenant without a mode of its own.")
    risk_class: str
    configured: str
    controlled: str = Field(description="After overrides and adaptive control.")
    effective: str
    why: str = Field(description="Why it is not the configured one.")


class GuardShown(BaseModel):
    """The request guard."""

    enabled: bool = Field(description="Whether the decision layer is on.")
    config_hash: str
    modes: list[ModeShown]


class BreakerShown(BaseModel):
    """A breaker of this process."""

    dependency: str
    state: str


class StatusShown(BaseModel):
    """What is turned off, pinned or open."""

    guard: GuardShown
    kill_switches: list[SwitchShown]
    overrides: list[OverrideShown]
    breakers: list[BreakerShown]
    adaptive: dict[str, Any] | None = Field(description="A summary of adaptive control.")


def ops_router(
    found: GuardState | None, *, adaptive: Callable[[], dict[str, Any] | None] = lambda: None
) -> APIRouter:
    """Make the routes; `adaptive` returns the summary of adaptive control for the status."""
    routes = guarded_router(tags=["operations"])

    def fresh() -> GuardState:
        if found is None:
            raise NotSupported(
                "this store has no tables in which processes could share kill switches and "
                "overrides; connect to SQLite or PostgreSQL"
            )
        found.refresh()
        return found

    @routes.get("/admin/ops/status", response_model=StatusShown)
    def read_status() -> Any:
        """Read what is turned off, pinned or open, and in which modes the guard works."""
        state = fresh()
        overrides = state.overrides
        pinned = (overrides.find(name, state.now_ms) for name in sorted(overrides.subsystems))
        return {
            "guard": {
                "enabled": state.config.decision_layer_enabled,
                "config_hash": state.config_hash,
                "modes": show_modes(state),
            },
            "kill_switches": [switch.document() for switch in state.switches.all()],
            "overrides": [each.document() for each in pinned if each is not None],
            "breakers": state.show_breakers(),
            "adaptive": adaptive(),
        }

    @routes.get("/admin/ops/kill-switches", response_model=Whole[SwitchShown])
    def list_switches() -> Any:
        """List every kill switch, those that were never set too."""
        return {"items": [switch.document() for switch in fresh().switches.all()]}

    @routes.put("/admin/ops/kill-switches/{name:path}", response_model=SwitchChanged)
    def set_switch(name: Name, body: SwitchAsked, principal: Caller) -> Any:
        """Turn a kill switch on or off, for every process. Setting it as it stands is harmless."""
        state = fresh()
        new, old = state.switches.set(
            name, body.enabled, actor=actor_of(principal), reason=body.reason, now_ms=state.now_ms
        )
        state.refresh()
        return {**new.document(), "previous": old.document()}

    @routes.get("/admin/ops/adaptive/overrides/{subsystem}", response_model=OverrideAnswer)
    def read_override(subsystem: Subsystem) -> Any:
        """Read the override of a subsystem."""
        state = fresh()
        override = state.overrides.find(subsystem, state.now_ms)
        return {"subsystem": subsystem, "override": override and override.document()}

    @routes.put("/admin/ops/adaptive/overrides/{subsystem}", response_model=OverrideAnswer)
    def set_override(subsystem: Subsystem, body: OverrideAsked, principal: Caller) -> Any:
        """Pin the mode of a subsystem, at once; adaptive control then leaves it alone."""
        state, span = fresh(), body.expires_in_seconds
        new, old = state.overrides.set(
            subsystem, body.mode, actor=actor_of(principal), reason=body.reason,
            now_ms=state.now_ms, expires_in_ms=None if span is None else span * 1000,
        )  # fmt: skip
        state.refresh()
        shown = {"override": new.document(), "previous": old and old.document()}
        return {"subsystem": subsystem, **shown}

    @routes.delete("/admin/ops/adaptive/overrides/{subsystem}", response_model=OverrideAnswer)
    def release_override(
        subsystem: Subsystem, principal: Caller, body: ReleaseAsked = NOTHING_SAID,
        reason: Annotated[WhyOrNothing, Query()] = "",
    ) -> Any:  # fmt: skip
        """End an override, at once. The reason is in the body or in the query."""
        why = body.reason or reason
        if not why:
            raise BadInput("reason: say why, in the body or as ?reason=")
        state = fresh()
        old = state.overrides.release(
            subsystem, actor=actor_of(principal), reason=why, now_ms=state.now_ms
        )
        state.refresh()
        return {"subsystem": subsystem, "override": None, "previous": old and old.document()}

    return routes
