"""Whether a flow takes a new job now: by its own rule, its bound, or an operator's stop."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, NamedTuple

from ulak.clock import Duration, Instant, micros, read_micros
from ulak.core.flow import Flow
from ulak.core.job import JobRow, lane_for
from ulak.errors import BadInput, Overloaded, UlakError

EVERY_TENANT: Final = "*"

MOST_COUNTED: Final = 10_000
"""`Intake.waiting` is exact up to this: to count a longer queue at every submit costs too much."""

# A guess at how long it takes until a worker has begun one of the jobs that wait.
FULL_FOR: Final = timedelta(seconds=2)


@dataclass(frozen=True, slots=True)
class Intake:
    """A new job as `Flow(admission=f)` sees it."""

    flow: str
    tenant: str
    submitter: str
    priority: int
    payload: Any
    waiting: int
    """Jobs of this tenant that wait for the flow's first stage, those before it in the same call
    too; counted up to 10,000."""


class StopRow(NamedTuple):
    """A flow takes no new jobs, of one tenant or of every tenant (`*`)."""

    flow: str
    tenant: str
    retry_after_us: int
    actor: str
    note: str | None
    at: Instant


class Waiting(NamedTuple):
    """Where the jobs of a tenant are that no worker has begun, and how many are worth counting."""

    lanes: tuple[str, ...]
    tenant: str
    parked_on: tuple[str, ...]
    """How `parked_on` begins for those of them that are parked."""
    limit: int


class Ask(NamedTuple):
    """What a store reads for a job in a caller's transaction, and what judges it."""

    waiting: Waiting
    judge: Callable[[int], None]
    """Raises `Overloaded` when so many wait; nothing may be written before."""


def complaints(flow: Flow[Any]) -> Iterator[str]:
    most, ask = flow.max_waiting, flow.admission
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
        yield f"max_waiting={most!r} would refuse every job; say how many may wait, 1 or more"
    initial = flow.lifecycle.initial
    if most is not None and initial not in {stage.state for stage in flow.declared.stages}:
        text = f'max_waiting= counts the jobs that wait for the stage of "{initial}", and it has '
        text += "none; declare one, or judge new jobs with admission="
        yield text
    if ask is not None and (not callable(ask) or inspect.iscoroutinefunction(ask)):
        yield f"admission={ask!r} cannot be called at a submit; give a plain function of the intake"


def find_waiting(flow: Flow[Any], tenant: str, others: tuple[Flow[Any], ...] = ()) -> Waiting:
    """Say where jobs wait for the first stage of a flow, in every known version of it."""
    place = flow.table.places[flow.lifecycle.initial]
    lanes = [f.table.places[f.lifecycle.initial].lane for f in (flow, *others)]
    parked = [place.slot, place.rate and f"/rate/{place.rate}"]
    if place.keys_slot or place.keys_rate:
        parked.append("/key")
    return Waiting(
        tuple(dict.fromkeys(lane_for(lane, tenant) for lane in lanes if lane)),
        tenant,
        tuple(name for name in parked if name),
        max(flow.max_waiting or 0, 0 if flow.admission is None else MOST_COUNTED),
    )


def judge(flow: Flow[Any], row: JobRow, read: Callable[[], Any], waiting: int) -> None:
    """Raise `Overloaded` for a new job that its flow does not take now, with so many `waiting`.
    `read` returns its payload. `BadInput`: the flow's own rule cannot be used for this job."""
    if flow.max_waiting is not None and waiting >= flow.max_waiting:
        raise refusal(
            f"{flow.name}: {waiting} jobs of this tenant are waiting, and {flow.max_waiting} may",
            micros(FULL_FOR),
        )
    if flow.admission is None:
        return
    intake = Intake(flow.name, row.tenant, row.submitter, row.priority, read(), waiting)
    try:
        retry_after: Duration | None = flow.admission(intake)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, UlakError):
            raise
        # Not what it says: that may quote the payload.
        raise BadInput(
            f"{flow.name}: its admission cannot judge this job ({type(error).__name__})"
        ) from error
    if retry_after is not None:
        wait_us = read_micros(retry_after, f"{flow.name}: what its admission returned")
        raise refusal(f"{flow.name} takes no such job now", wait_us)


def stopped(stop: StopRow) -> Overloaded:
    """Return the refusal of a job by a stop of its flow."""
    part = "" if stop.tenant == EVERY_TENANT else " of this tenant"
    return refusal(f"{stop.flow} takes no new jobs{part} now", stop.retry_after_us)


def refusal(why: str, retry_after_us: int) -> Overloaded:
    wait = timedelta(microseconds=retry_after_us)
    return Overloaded(
        f"{why}; try again in {wait.total_seconds():g} s",
        retry_after=wait,
        code="backpressure-active",
    )
