"""The records of a job as every store keeps them.

`JobRow` and `Event` are named tuples, not frozen dataclasses: a store binds them as parameters
and makes them from its rows without touching each field. Measured on CPython 3.11: a dataclass
with the fields of `JobRow` takes 8 us to make from a row, this 0.5, and a no-op job makes three
of them in the 70 us that it has.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any, NamedTuple

from ulak.clock import Instant
from ulak.core.lifecycle import Role


class JobRow(NamedTuple):
    """One job, as the table `jobs` holds it. Columns that never change come first.

    A store writes `row[FIRST_MUTABLE:SIDE]` when it commits a change; what follows are side
    columns, moved by requests only and guarded by nothing. Of the first columns `flow_version`
    and `keys` change when an operator migrates the job to another version of its flow.
    """

    id: bytes
    """A UUIDv7 of `created_at`, or no UUIDv7 at all: lists by time rely on it."""
    tenant: str
    flow: str
    flow_version: int
    created_at: Instant
    submitter: str
    dedup_key: str | None
    priority: int
    """0 is the most urgent of 0..3."""
    expires_at: Instant | None
    """When the job itself runs out of time, whatever state it is in."""
    scheduled_for: Instant | None
    keys: str | None
    """As JSON, the keys and costs that its payload gave for stages with a keyed limit or rate."""

    state: str
    role: Role
    version: int
    """Moves with every committed change; the guard of operators."""
    seq: int
    round: int
    attempt: int
    """Failed attempts at this stage, or at this undo."""
    lapses: int
    """Leases lost at this stage because a worker vanished."""
    changed_at: Instant
    code: str | None
    permanent: int
    """1 when it failed for a reason that no retry mends."""
    resume: str | None
    """The state it was held or failed from: where `SAME` goes."""
    started: str
    """Stages with an undo that have started and are not undone, in order, separated by spaces."""
    undo_to: str | None
    """The state to enter after the last undo; set exactly while undos are owed."""
    has_results: int
    """1 once a result was stored, so that a claim knows whether to look for one."""
    lane: str
    """Which workers may take it (`lane_of`); '' when nobody may."""
    not_before: Instant
    slot: str | None
    """The limit of which this stage needs a slot, with a mark in front where no claim takes it:
    `OF_STATE`, `OF_UNDO` or `BY_ENTRY`."""
    rate: str | None
    cost: int
    """How many tokens a run takes from it; 0 without a rate."""
    parked_on: str | None
    """What it waits for outside the claim index: a limit, `/rate/...` or `/key/...`."""
    awaits: str | None
    deadline_at: Instant | None
    wake_at: Instant | None
    """When upkeep must look at it: the earlier of its deadline and its expiry."""
    leased_by: str | None
    leased_at: Instant | None
    """When the present or the last lease was taken; kept after a lapse."""
    token: int
    """Rises with every claim, rescue and give-back; the guard of workers."""
    stood: int
    """1 once it was leased in this state: then its stage has started."""
    lapsed: int
    """1 when the last lease lapsed and no run has answered for it yet."""

    requests: int


FIRST_MUTABLE = JobRow._fields.index("state")
SIDE = JobRow._fields.index("requests")


class Event(NamedTuple):
    """One committed line of a job's trail. Order is by `seq`, never by time."""

    job_id: bytes
    seq: int
    kind: str
    from_state: str | None
    to_state: str
    actor: str
    code: str | None
    message: str | None
    details: str | None
    round: int
    attempt: int
    worker: str | None
    token: int
    started_at: Instant | None
    at: Instant
    emitted: int
    """How many outbox messages were written with this event."""
    commit_id: bytes


class Payload(NamedTuple):
    """What a job was submitted with, encoded."""

    data: bytes
    schema: int
    trace: str | None = None
    """The W3C traceparent of the submit, if it was traced."""


class Result(NamedTuple):
    """What a stage, a `once`, a decision or a signal left for later stages."""

    job_id: bytes
    round: int
    stage: str
    name: str
    """'' for the stage's own result."""
    data: bytes


class Message(NamedTuple):
    """One line of the outbox: `(job_id, seq, n)` is its identity, `key` its order."""

    job_id: bytes
    seq: int
    n: int
    key: str
    topic: str
    data: bytes
    at: Instant


class Request(NamedTuple):
    """What somebody asks of a job that a worker has leased: a cancel, an expiry, a signal."""

    job_id: bytes
    kind: str
    name: str
    actor: str
    note: str | None
    data: bytes | None
    at: Instant


class NewJob(NamedTuple):
    """A job about to be stored: its row, its first event, its payload, its key."""

    row: JobRow
    event: Event
    payload: Payload
    key_expires_at: Instant | None
    """When the dedup key may be taken over even though nobody freed it."""
    proof: bytes | None = None
    is_admitted: bool = False
    """No stop keeps it out: its call was accepted already, or it is no submit."""
    owner: str = ""
    """Who owns it, and the job that is answered in its place, too; '' in a flow without owners."""


def column(path: str, about: str) -> Any:
    """Return the property that shows a column of a row; `path` leads to it."""
    return property(attrgetter(path), doc=about)


OF_STATE = "="
"""Marks the slot of a job in a busy state: it is the state's, and held until the state is left."""
OF_UNDO = "-"
"""Marks the same slot while undos run in that state; a pause of its key does not stop them."""
BY_ENTRY = "~"
"""Marks the slot of a job that is leased before it has one: the commit that enters its busy state
takes it."""
_MARKS = (OF_STATE, OF_UNDO, BY_ENTRY)


def wanted_slot(slot: str | None) -> str | None:
    """Return the limit of which a claim must take a slot for a job, from `JobRow.slot`."""
    return None if slot is None or slot[0] in _MARKS else slot


def held_slot(slot: str | None, *, leased: bool) -> str | None:
    """Return the limit of which a job holds a slot, from `JobRow.slot` and whether it is leased."""
    if slot is None or slot[0] == BY_ENTRY:
        return None
    if slot[0] in (OF_STATE, OF_UNDO):
        return slot[1:]
    return slot if leased else None


def is_of_state(slot: str | None) -> bool:
    """Tell whether `JobRow.slot` is that of a busy state, held until the state is left."""
    return slot is not None and slot[0] == OF_STATE


def limit_name(slot: str) -> str:
    """Return the name of a limit, or of one key of it, from `JobRow.slot`."""
    return slot[1:] if slot[0] in _MARKS else slot


EVERY_TENANT = "/*"
"""How a family of lanes ends: a lane of a fair flow for each of its tenants."""


def lane_of(
    queue: str, pool: str, flow: str, version: int, stage: str, *, fair: bool = False
) -> str:
    """Name the line a job stands in: a worker serves whole lanes, a claim reads one range each. It
    names the stage, so that a version of the flow without that stage does not find the job. The
    jobs of a fair flow stand in a lane for each tenant; what is named then is their family."""
    return f"{queue}/{pool}/{flow}@{version}#{stage}{EVERY_TENANT if fair else ''}"


def lane_before(lane: str) -> str:
    """Return the lane that a job of this one had in the release before, which named no stage.
    Stages of a flow that share queue and pool have one. Workers serve it too, and tenants' turns
    are counted by it."""
    # A tenant may have any name, one with the same sign too.
    queue, pool, flow, *tenant = lane.split("/", 3)
    return "/".join((queue, pool, flow.partition("#")[0], *tenant))


def names_stage(lane: str) -> bool:
    """Tell whether a lane is of this release: those of the release before name no stage."""
    return "#" in lane.split("/", 3)[2]


def lane_for(lane: str, tenant: str) -> str:
    """Return the lane of a tenant's jobs: that of its own in a family, else the lane itself."""
    return lane[:-1] + tenant if lane.endswith(EVERY_TENANT) else lane


def family_of(lane: str) -> str:
    """Return the lane that a worker asks for to get the jobs of this one."""
    parts = lane.split("/", 3)
    return lane if len(parts) < 4 else "/".join(parts[:3]) + EVERY_TENANT


def queue_of(lane: str) -> str:
    return lane.partition("/")[0]


def flow_of(lane: str) -> str:
    return lane.split("/", 3)[2].rpartition("@")[0]


def stage_of_lane(lane: str) -> str:
    """Name the stage of a lane; '' when the lane is of the release before."""
    return lane.split("/", 3)[2].partition("#")[2]
