"""What is wrong with one job: its trail replayed against its lifecycle and its row.

Pure: it takes records and answers damages. Who reads them, and how often, is in `verify`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from ulak.clock import Instant, micros
from ulak.core import event as kinds
from ulak.core.change import frees_key
from ulak.core.delivery import EVENT
from ulak.core.flow import Flow
from ulak.core.job import Event, JobRow
from ulak.core.lifecycle import CLAIMABLE, FAILED, FINAL, HELD, ROLES, UNDOING, WAITING
from ulak.core.policy import Until
from ulak.store.protocol import OutboxRow

EVENT_MISSING: Final = "event-missing"
EVENT_DOUBLED: Final = "event-doubled"
EVENT_OUT_OF_ORDER: Final = "event-out-of-order"
EVENT_UNKNOWN: Final = "event-unknown"
COMMIT_DOUBLED: Final = "commit-doubled"
MOVE_ILLEGAL: Final = "move-illegal"
ROW_DIFFERS: Final = "row-differs"
TOKEN_WENT_BACK: Final = "token-went-back"  # noqa: S105 - a kind of damage, not a secret
MESSAGE_LOST: Final = "message-lost"
MESSAGE_UNKNOWN: Final = "message-unknown"
STATE_UNKNOWN: Final = "state-unknown"
ROLE_WRONG: Final = "role-wrong"
LANE_WRONG: Final = "lane-wrong"
STUCK: Final = "stuck"
WAKE_MISSING: Final = "wake-missing"

KINDS: Final = (
    EVENT_MISSING, EVENT_DOUBLED, EVENT_OUT_OF_ORDER, EVENT_UNKNOWN, COMMIT_DOUBLED, MOVE_ILLEGAL,
    ROW_DIFFERS, TOKEN_WENT_BACK, MESSAGE_LOST, MESSAGE_UNKNOWN, STATE_UNKNOWN, ROLE_WRONG,
    LANE_WRONG, STUCK, WAKE_MISSING,
)  # fmt: skip


class Damage(NamedTuple):
    """One thing that is wrong, with a stable kind and a sentence for people."""

    kind: str
    sentence: str


def trail_damage(row: JobRow, events: Sequence[Event], flow: Flow[Any] | None) -> Iterator[Damage]:
    """Replay a trail: every number once, every move legal, one after the other, to the row."""
    if not events:
        yield Damage(EVENT_MISSING, f"its row says {row.seq} events, and there is none")
        return
    yield from _numbers(row, events)
    yield from _commits(events)
    yield from _order(events)
    if flow is not None:
        yield from _moves(events, flow)
    yield from _end(row, events)


def message_damage(events: Sequence[Event], messages: Sequence[OutboxRow]) -> Iterator[Damage]:
    """Compare what the events say they sent with what stands in the outbox."""
    found: dict[int, int] = {}
    for seq, _ in {(s.message.seq, s.message.n) for s in messages if s.message.n != EVENT}:
        found[seq] = found.get(seq, 0) + 1
    for event in events:
        there = found.pop(event.seq, 0)
        if there != event.emitted:
            kind = MESSAGE_LOST if there < event.emitted else MESSAGE_UNKNOWN
            text = f"event {event.seq} sent {event.emitted} messages, the outbox has {there}"
            yield Damage(kind, text)
    for seq, there in found.items():
        text = f"the outbox has {there} messages of event {seq}, which is not there"
        yield Damage(MESSAGE_UNKNOWN, text)


def row_damage(row: JobRow, flow: Flow[Any] | None) -> Iterator[Damage]:
    """Look at the row alone: its role fits its state, and there is a way on (E-2)."""
    yield from _role(row, flow)
    if row.lane and row.role not in CLAIMABLE:
        yield Damage(LANE_WRONG, f'"{row.state}" is {row.role}, yet it stands in lane {row.lane}')
    if row.role in FINAL:
        if row.leased_by is not None or row.parked_on is not None:
            taken = row.leased_by or row.parked_on
            yield Damage(ROLE_WRONG, f'it has ended in "{row.state}" and {taken} still has it')
        return
    way_on = _way_on(row)
    if way_on is not None:
        yield Damage(STUCK, way_on)
    yield from _wake(row)


def should_hold_key(row: JobRow, flow: Flow[Any] | None, now: Instant) -> bool | None:
    """Tell whether a job must hold its dedup key, must not, or (None) may or may not."""
    if row.dedup_key is None:
        return False
    if flow is None:
        # Without the flow nobody knows for how long the key was meant to be kept.
        return None
    if row.role in FINAL and frees_key(flow, row):
        return False
    if row.role == FAILED and flow.dedup is not None and flow.dedup.until is Until.FAILED_FOR_GOOD:
        # The release before freed the key at every bad end; a retry takes it again.
        return None
    keep = None if flow.dedup is None else flow.dedup.keep
    if keep is not None and row.created_at + micros(keep) <= now:
        return None
    return True


def _numbers(row: JobRow, events: Sequence[Event]) -> Iterator[Damage]:
    expected = 1
    for event in events:
        if event.seq > expected:
            gap = str(expected) if event.seq == expected + 1 else f"{expected} to {event.seq - 1}"
            yield Damage(EVENT_MISSING, f"event {gap} is missing before {event.seq}")
        elif event.seq < expected:
            yield Damage(EVENT_DOUBLED, f"event {event.seq} is in the trail twice")
        expected = event.seq + 1
    last = events[-1].seq
    if last < row.seq:
        yield Damage(EVENT_MISSING, f"the trail ends with event {last}, its row says {row.seq}")
    elif last > row.seq:
        yield Damage(ROW_DIFFERS, f"the trail goes on to event {last}, its row says {row.seq}")


def _commits(events: Sequence[Event]) -> Iterator[Damage]:
    """A commit writes its events side by side, and no two of them say the same."""
    ended: set[bytes] = set()
    for before, event in pairwise(events):
        is_same = before.seq != event.seq and before._replace(seq=event.seq) == event
        if is_same and not kinds.is_of_service(event.kind):
            text = f"events {before.seq} and {event.seq} are one event, written twice"
            yield Damage(EVENT_DOUBLED, text)
        if before.commit_id != event.commit_id:
            ended.add(before.commit_id)
            if event.commit_id and event.commit_id in ended:
                text = f"event {event.seq} belongs to a commit that had ended before it"
                yield Damage(COMMIT_DOUBLED, text)


def _order(events: Sequence[Event]) -> Iterator[Damage]:
    first = events[0]
    if first.seq == 1 and (first.kind != kinds.SUBMITTED or first.from_state is not None):
        yield Damage(EVENT_OUT_OF_ORDER, f"the trail begins with {first.kind}, not with submitted")
    for event in events:
        if not kinds.is_known(event.kind):
            yield Damage(EVENT_UNKNOWN, f"event {event.seq} is of the unknown kind {event.kind!r}")
        if event.seq > 1 and event.kind == kinds.SUBMITTED:
            yield Damage(EVENT_OUT_OF_ORDER, f"event {event.seq} submits the job a second time")
    for before, event in pairwise(events):
        if event.from_state != before.to_state:
            text = f'event {event.seq} leaves "{event.from_state}", '
            text += f'event {before.seq} had led to "{before.to_state}"'
            yield Damage(EVENT_OUT_OF_ORDER, text)
        if event.round != before.round + (event.kind == kinds.RETRIED):
            text = f"event {event.seq} ({event.kind}) is of round {event.round}, "
            text += f"event {before.seq} of round {before.round}"
            yield Damage(EVENT_OUT_OF_ORDER, text)
        if event.token < before.token:
            text = f"event {event.seq} has token {event.token}, event {before.seq} {before.token}"
            yield Damage(TOKEN_WENT_BACK, text)


def _moves(events: Sequence[Event], flow: Flow[Any]) -> Iterator[Damage]:
    """Hold the moves against the table, from where the job came under this version."""
    table = flow.table
    migrations = [n for n, event in enumerate(events) if event.kind == kinds.MIGRATED]
    if migrations:
        # By which states it came there is the affair of another table.
        first = events[migrations[-1]]._replace(from_state=None)
        events = [first, *events[migrations[-1] + 1 :]]
    if events[0].seq == 1 and events[0].to_state != flow.lifecycle.initial:
        text = f'it was submitted into "{events[0].to_state}"; '
        text += f'{flow.name} begins in "{flow.lifecycle.initial}"'
        yield Damage(MOVE_ILLEGAL, text)
    for event in events:
        origin, to = event.from_state, event.to_state
        if to not in table.places:
            yield Damage(STATE_UNKNOWN, f'event {event.seq} leads to "{to}", which {flow!r} lacks')
        elif origin is not None and origin != to and (origin, to) not in table.legal:
            text = f'event {event.seq} ({event.kind}) moves it from "{origin}" to "{to}", '
            text += "which the table does not allow"
            yield Damage(MOVE_ILLEGAL, text)


def _end(row: JobRow, events: Sequence[Event]) -> Iterator[Damage]:
    last = events[-1]
    if last.to_state != row.state:
        text = f'the trail ends in "{last.to_state}", its row says "{row.state}"'
        yield Damage(ROW_DIFFERS, text)
    if last.round != row.round:
        yield Damage(ROW_DIFFERS, f"the trail ends in round {last.round}, its row says {row.round}")
    commits = 1 + sum(a.commit_id != b.commit_id or not b.commit_id for a, b in pairwise(events))
    if row.version < commits:
        text = f"the trail has {commits} commits, its row is of version {row.version}"
        yield Damage(ROW_DIFFERS, text)
    leases = [event.token for event in events if event.worker is not None]
    highest = max((event.token for event in events), default=0)
    # A lease that has ended has moved the token once more, so that its worker cannot write.
    least = max(highest, max(leases) + 1) if leases and row.leased_by is None else highest
    if row.token < least:
        text = f"its row has token {row.token}; by its trail it is {least} at least"
        yield Damage(TOKEN_WENT_BACK, text)


def _role(row: JobRow, flow: Flow[Any] | None) -> Iterator[Damage]:
    if row.role not in ROLES:
        yield Damage(ROLE_WRONG, f"{row.role!r} is no role")
    if flow is None:
        return
    place = flow.table.places.get(row.state)
    if place is None:
        yield Damage(STATE_UNKNOWN, f'it is in "{row.state}", which {flow!r} lacks')
    elif row.role == UNDOING:
        if place.is_final:
            yield Damage(ROLE_WRONG, f'it is being undone in "{row.state}", where jobs have ended')
    elif row.role != place.role:
        yield Damage(ROLE_WRONG, f'"{row.state}" is {place.role}, its row says {row.role}')


def _way_on(row: JobRow) -> str | None:
    """Return why nothing will ever happen to an unfinished job, or None when something will."""
    if row.leased_by is not None:
        return None
    if row.role in CLAIMABLE and not row.lane:
        return f'"{row.state}" is {row.role} and no lane leads to a worker'
    if row.role == UNDOING and (not row.started or row.undo_to is None):
        return "it is being undone, and no undo or no end is written in its row"
    if row.role == WAITING and row.awaits is None and row.wake_at is None:
        return f'"{row.state}" waits for no date and no signal'
    return None


def _wake(row: JobRow) -> Iterator[Damage]:
    """Upkeep looks at `wake_at` alone: it must not come after any date that counts."""
    if row.role == UNDOING or (row.role == HELD and row.undo_to is not None):
        return
    dates = [date for date in (row.deadline_at, row.expires_at) if date is not None]
    if dates and (row.wake_at is None or row.wake_at > min(dates)):
        yield Damage(WAKE_MISSING, "its deadline or its expiry will pass unseen: no date wakes it")
