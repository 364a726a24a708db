"""Limits, rates and weights: what operators set while everything runs."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Final

from fastapi import APIRouter, Path
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from ulak.core.bounds import LONGEST_KEY
from ulak.core.policy import Rate
from ulak.engine.engine import Engine
from ulak.engine.flow_control import StageLimit, StageRate, Weight
from ulak.store.flow_control import HEAVIEST
from ulak.web.callers import Caller, guarded_router
from ulak.web.schemas import A_MOMENT, Body, Moment, Whole
from ulak.web.seen import actor_of
from ulak.web.texts import LONGEST_NAME, Name, Note, NoteQuery, Seconds, storable

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

    model_config = ConfigDict(json_schema_extra={"example": {"n": 4, "note": "two more ovens"}})


class LimitShown(BaseModel):
    """How many runs of a stage there may be at once: of the stage, or of each key of it."""

    name: str = Field(description="flow/state")
    n: int
    declared: int
    keyed: bool
    actor: str | None = Field(description="Who has set n; null while it is what is declared.")
    at: Moment
    key: str | None = Field(description="The one key that has this limit; null for the stage's.")

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "name": "bread/baking", "n": 4, "declared": 2, "keyed": False, "actor": "ada",
                "at": A_MOMENT, "key": None,
            }
        }
    )  # fmt: skip


class RateAsked(Body):
    """How many tokens the bucket of a stage gets in a span of time."""

    n: int = Field(ge=1, le=MOST_TOKENS)
    per_seconds: Seconds = 1.0
    burst: int | None = Field(
        None, ge=1, le=MOST_TOKENS, description="How many tokens are kept; by default n."
    )
    note: Note = ""

    model_config = ConfigDict(
        json_schema_extra={"example": {"n": 100, "per_seconds": 60, "burst": 10}}
    )


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

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "name": "mail/sending", "n": 100, "per_seconds": 60.0, "burst": 10,
                "declared": {"n": 20, "per_seconds": 60.0, "burst": 20}, "actor": "ada",
                "at": A_MOMENT,
            }
        }
    )  # fmt: skip


class WeightAsked(Body):
    """How many turns a tenant of fair flows has for each turn of others."""

    weight: int = Field(ge=1, le=HEAVIEST)
    note: Note = ""

    model_config = ConfigDict(json_schema_extra={"example": {"weight": 3}})


class WeightShown(BaseModel):
    """How many turns a tenant of fair flows has for each turn of others."""

    tenant: str
    weight: int
    actor: str | None = Field(description="Who has set it; null when it is one turn again.")
    at: Moment | None


def router(engine: Engine) -> APIRouter:
    """Make the routes of an engine's limits, rates and weights."""
    routes = guarded_router(tags=["limits"])

    @routes.get("/limits")
    def list_limits() -> Whole[LimitShown]:
        """List every limit, by name: what is in force, what is declared, who has set it."""
        return Whole(items=[_limit(limit) for limit in engine.flow_control.limits()])

    @routes.put("/limits/{flow}/{state}")
    def set_limit(flow: Name, state: Name, body: LimitAsked, principal: Caller) -> LimitShown:
        """Set a limit, in force at once and after a restart; a lowered one drains."""
        name, actor, control = f"{flow}/{state}", actor_of(principal), engine.flow_control
        return _limit(control.set_limit(name, body.n, key=body.key, actor=actor, note=body.note))

    @routes.delete("/limits/{flow}/{state}")
    def reset_limit(
        flow: Name, state: Name, principal: Caller, key: Key | None = None, note: NoteQuery = ""
    ) -> LimitShown:
        """Go back to what the flow declares; for one key, to what the others have."""
        name, actor = f"{flow}/{state}", actor_of(principal)
        return _limit(engine.flow_control.set_limit(name, None, key=key, actor=actor, note=note))

    @routes.get("/rates")
    def list_rates() -> Whole[RateShown]:
        """List every rate, by name: what is in force, what is declared, who has set it."""
        return Whole(items=[_rate(rate) for rate in engine.flow_control.rates()])

    @routes.put("/rates/{flow}/{state}")
    def set_rate(flow: Name, state: Name, body: RateAsked, principal: Caller) -> RateShown:
        """Set a rate, in force at once and after a restart; the bucket keeps its tokens."""
        rate = Rate(body.n, per=timedelta(seconds=body.per_seconds), burst=body.burst)
        name, actor = f"{flow}/{state}", actor_of(principal)
        return _rate(engine.flow_control.set_rate(name, rate, actor=actor, note=body.note))

    @routes.delete("/rates/{flow}/{state}")
    def reset_rate(flow: Name, state: Name, principal: Caller, note: NoteQuery = "") -> RateShown:
        """Go back to what the flow declares."""
        name, actor = f"{flow}/{state}", actor_of(principal)
        return _rate(engine.flow_control.set_rate(name, None, actor=actor, note=note))

    @routes.get("/weights")
    def list_weights() -> Whole[WeightShown]:
        """List the tenants that have more than one turn."""
        return Whole(items=[_weight(weight) for weight in engine.flow_control.weights()])

    @routes.put("/weights/{tenant:path}")
    def set_weight(tenant: Tenant, body: WeightAsked, principal: Caller) -> WeightShown:
        """Give a tenant so many turns in fair flows for each turn of others."""
        actor = actor_of(principal)
        made = engine.flow_control.set_weight(tenant, body.weight, actor=actor, note=body.note)
        assert made is not None  # noqa: S101 - a weight was given
        return _weight(made)

    @routes.delete("/weights/{tenant:path}")
    def reset_weight(tenant: Tenant, principal: Caller, note: NoteQuery = "") -> WeightShown:
        """Give a tenant one turn again, as others have."""
        engine.flow_control.set_weight(tenant, None, actor=actor_of(principal), note=note)
        return WeightShown(tenant=tenant, weight=1, actor=None, at=None)

    return routes


def _limit(limit: StageLimit) -> LimitShown:
    return LimitShown.model_validate(limit, from_attributes=True)


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


def _weight(weight: Weight) -> WeightShown:
    return WeightShown.model_validate(weight, from_attributes=True)
