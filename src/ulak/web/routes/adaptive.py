"""Adaptive control: its status, its configuration, its events, and the restore of enforcement."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from ulak.control.operations import Operations, list_entries
from ulak.control.simulation import simulate_samples
from ulak.control.state import Revision
from ulak.errors import NotSupported
from ulak.web.callers import Caller, actor_of, guarded_router
from ulak.web.schemas import Body, example, problems

PREFIX: Final = "/admin/ops/adaptive"
Reason = Annotated[str, Field(min_length=1, max_length=500, description="Why, for the audit.")]
PageLimit = Annotated[int, Query(ge=1, le=500)]


class ConfigAsked(Body):
    """Fields of the configuration that are to change."""

    revision: int = Field(description="The revision that was read.")
    changes: dict[str, Any]
    reason: Reason

    model_config = example(
        revision=3, changes={"queue_depth_enter_threshold": 80}, reason="more workers"
    )


class EntryAsked(Body):
    """Targets that adaptive control may touch; `*` is any."""

    tenant_id: str = Field(min_length=1)
    endpoint_class: str = Field(min_length=1, description="`high`, `medium` or `low`.")
    subsystem_id: str = Field(min_length=1)


class AllowlistAsked(Body):
    """The whole list."""

    entries: list[EntryAsked]
    reason: Reason

    model_config = example(
        entries=[{"tenant_id": "*", "endpoint_class": "*", "subsystem_id": "guard"}],
        reason="let it put the guard into shadow",
    )


class RestoreAsked(Body):
    """A confirmation that the guard may enforce again."""

    reason: Reason
    force: bool = Field(False, description="Also where the p95 has not recovered.")

    model_config = example(reason="the slow disk was replaced", force=False)


class SamplesAsked(Body):
    """What was measured, one object for each tick."""

    samples: list[dict[str, Any]] = Field(max_length=10_000)

    model_config = example(samples=[{"queue_depth": 60, "p95_seconds": 0.4}])


class ConfigShown(BaseModel):
    """A configuration and its revision."""

    revision: int
    config: dict[str, Any]
    actor: str
    reason: str
    at_ms: int

    model_config = example(
        revision=3, config={"dwell_time_seconds": 600}, actor="ada", reason="more workers",
        at_ms=1767225600000,
    )  # fmt: skip


class ListShown(BaseModel):
    """The allow-list."""

    revision: int
    entries: list[EntryAsked]


class LinesShown(BaseModel):
    """Lines, newest first."""

    items: list[dict[str, Any]]
    next: int | None = Field(description="`before=` of the next page; null on the last one.")


def adaptive_router(found: Operations | None) -> APIRouter:
    """Make the routes of the loop of one engine."""
    routes = guarded_router(tags=["operations"])

    def operations() -> Operations:
        if found is None:
            raise NotSupported(
                "this store has no tables in which adaptive control could keep its state; connect "
                "to SQLite or PostgreSQL"
            )
        return found

    @routes.get(f"{PREFIX}/status", response_model=dict[str, Any])
    def read_status() -> Any:
        """Return the state, the modes, the timers, thresholds with present values, the last
        tick."""
        return operations().describe()

    @routes.get(f"{PREFIX}/config", response_model=ConfigShown)
    def read_config() -> Any:
        """Return the newest configuration."""
        return _show(operations().read_config())

    @routes.patch(f"{PREFIX}/config", response_model=ConfigShown, responses=problems(409))
    def change_config(body: ConfigAsked, principal: Caller) -> Any:
        """Change fields; the next tick takes them into force."""
        actor = actor_of(principal)
        made = operations().change_config(
            body.revision, body.changes, actor=actor, reason=body.reason
        )
        return _show(made)

    @routes.get(f"{PREFIX}/allowlist", response_model=ListShown)
    def read_allowlist() -> Any:
        """Return the targets that may be touched; none means that nothing ever is."""
        return _show_list(operations().read_config())

    @routes.put(f"{PREFIX}/allowlist", response_model=ListShown, responses=problems(409))
    def replace_allowlist(body: AllowlistAsked, principal: Caller) -> Any:
        """Replace the list; the next tick takes it into force."""
        entries = [entry.model_dump() for entry in body.entries]
        actor = actor_of(principal)
        made = operations().replace_allowlist(entries, actor=actor, reason=body.reason)
        return _show_list(made)

    @routes.post(f"{PREFIX}/guard/restore", response_model=dict[str, Any], responses=problems(409))
    def restore(body: RestoreAsked, principal: Caller) -> Any:
        """Confirm that the guard enforces again; return the decision event."""
        actor = actor_of(principal)
        return operations().restore(actor=actor, reason=body.reason, force=body.force)

    @routes.get(f"{PREFIX}/events", response_model=LinesShown)
    def list_events(
        subsystem: str | None = None, before: int | None = None, limit: PageLimit = 100
    ) -> Any:
        """Return decision events, newest first."""
        state = operations().state
        return _show_page(
            state.find_events(before=before, subsystem_id=subsystem, limit=limit), limit
        )

    @routes.get(f"{PREFIX}/audit", response_model=LinesShown)
    def list_audit(
        kind: str | None = None, before: int | None = None, limit: PageLimit = 100
    ) -> Any:
        """Return lines of the audit, newest first; every tick leaves one for a day."""
        state = operations().state
        return _show_page(state.find_audit(before=before, kind=kind, limit=limit), limit)

    @routes.post(f"{PREFIX}/simulate", response_model=dict[str, Any])
    def simulate(body: SamplesAsked) -> Any:
        """Return what would be decided of samples; nothing is changed."""
        return simulate_samples(operations().read_config().config, body.samples)

    return routes


def _show(found: Revision) -> dict[str, Any]:
    return {**found._asdict(), "config": found.config.document()}


def _show_list(found: Revision) -> dict[str, Any]:
    return {"revision": found.revision, "entries": list_entries(found.config.targets)}


def _show_page(found: list[tuple[int, dict[str, Any]]], limit: int) -> dict[str, Any]:
    items = [{"id": number, **data} for number, data in found]
    return {"items": items, "next": found[-1][0] if len(found) == limit else None}
