"""Why a job stands where it stands: one answer, the true one.

Read from the store alone, so that a process which runs no worker and declares other flows
answers the same. A flow that is declared here adds who may decide at its gates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ulak.clock import SECOND, Instant, rfc3339, to_datetime
from ulak.core import event as kinds
from ulak.core.flow import Flow, Gate, names
from ulak.core.job import (
    EVERY_TENANT,
    Event,
    JobRow,
    family_of,
    lane_before,
    queue_of,
    stage_of_lane,
)
from ulak.core.lifecycle import CLAIMABLE, FINAL, HELD, UNDOING
from ulak.core.policy import SUBMITTER
from ulak.core.table import find_missing
from ulak.ids import to_text
from ulak.store.batches import SUSPECT_LAPSES
from ulak.store.flow_control import (
    FLOW,
    KEY,
    ON_KEY,
    ON_RATE,
    QUEUE,
    Level,
    fill,
    full,
    stage_of,
    terms_of,
)
from ulak.store.protocol import PauseRow, WorkerRow

if TYPE_CHECKING:
    from ulak.engine.kernel import Kernel

ENDED: Final = "ended"
LEASED: Final = "leased"
CANCELLING: Final = "cancelling"
OVERRAN: Final = "overran"
LEASE_LAPSED: Final = "lease-lapsed"
NOT_RUN: Final = "not-run"
PARKED: Final = "parked"
RATE_LIMITED: Final = "rate-limited"
PAUSED: Final = "paused"
DELAYED: Final = "delayed"
NO_WORKER: Final = "no-worker"
QUEUE_NOT_SERVED: Final = "queue-not-served"
VERSION_NOT_SERVED: Final = "version-not-served"
STATE_NOT_SERVED: Final = "state-not-served"
UNDOING_NEXT: Final = "undoing"
SUSPECT: Final = "suspect"
DUE: Final = "due"
GATE: Final = "gate"
HELD_BY_CODE: Final = "held"
AWAITS_SIGNAL: Final = "awaits-signal"
AWAITS_DATE: Final = "awaits-date"
STUCK: Final = "stuck"

CODES: Final = (
    ENDED, LEASED, CANCELLING, OVERRAN, LEASE_LAPSED, NOT_RUN, PARKED, RATE_LIMITED, PAUSED,
    DELAYED, NO_WORKER, QUEUE_NOT_SERVED, VERSION_NOT_SERVED, STATE_NOT_SERVED, UNDOING_NEXT,
    SUSPECT, DUE, GATE, HELD_BY_CODE, AWAITS_SIGNAL, AWAITS_DATE, STUCK,
)  # fmt: skip
"""Every answer there is. Shown on every surface, so they are for ever."""

# How long after its timeout a run may take to be stopped and committed. A guess.
NOTICE_US = 60 * SECOND
LOOK_BACK = 100
_ASKED: Final = {
    "cancel": "{who} asked at {when} to cancel it",
    "expire": "its time ran out at {when}",
}


@dataclass(frozen=True, slots=True)
class Why:
    """The one reason, as a stable code, as a sentence, and as the facts that it was read from."""

    code: str
    sentence: str
    facts: Mapping[str, Any] = field(default_factory=dict)


def why(kernel: Kernel, job_id: str, *, tenant: str | None = None) -> Why:
    """Return why a job stands where it stands; `JobNotFound` if there is none. With a tenant no job
    of another one is named."""
    return _Look(kernel, kernel.get_row(job_id), tenant).answer()


class _Look:
    """One look at one job, with the store's time and the workers that live."""

    def __init__(self, kernel: Kernel, row: JobRow, tenant: str | None) -> None:
        self._store = kernel.store
        self._tenant = tenant
        self._row = row
        self._now = kernel.store.clock.now()
        self._workers = {w.id: w for w in kernel.store.workers()}
        flow = kernel.flows_by_version().get((row.flow, row.flow_version))
        self._flow = flow
        self._place = None if flow is None else flow.table.places.get(row.state)
        self._missing = None if flow is None else find_missing(flow.table, row)

    def answer(self) -> Why:
        row = self._row
        if row.role in FINAL:
            return self._ended()
        if row.leased_by is not None:
            return self._leased(row.leased_by)
        if row.parked_on is not None:
            return self._parked(row.parked_on)
        if row.role in CLAIMABLE:
            return self._claimable()
        if self._missing is not None:
            return Why(
                STATE_NOT_SERVED,
                f"it is left to other programs: version {row.flow_version} of {row.flow} lacks "
                f'"{self._missing}" here',
                {"state": row.state, "missing": self._missing, "since": _date(row.changed_at)},
            )
        if row.role == HELD:
            return self._held()
        return self._waiting()

    def _ended(self) -> Why:
        row = self._row
        last = self._last_event()
        reason = f" ({row.code})" if row.code else ""
        message = self._message()
        said = f": {message}" if message else ""
        facts = {
            "state": row.state, "role": row.role, "code": row.code, "at": _date(row.changed_at),
            "by": None if last is None else last.actor, "message": message,
        }  # fmt: skip
        text = f'it ended in "{row.state}"{reason} at {_text(row.changed_at)}{said}'
        return Why(ENDED, text, facts)

    def _leased(self, worker: str) -> Why:
        row, lease = self._row, self._workers.get(worker)
        since = row.leased_at if row.leased_at is not None else row.changed_at
        facts = {
            "worker": worker, "since": _date(since), "attempt": row.attempt + 1,
            "lapses": row.lapses, "about": None if lease is None else lease.about,
        }  # fmt: skip
        runs = f'{worker} has run "{row.state}" since {_text(since)}'
        if lease is None or lease.expires_at <= self._now:
            gone = since if lease is None else lease.expires_at
            text = f"{worker} took it at {_text(since)} and has not been heard of since its lease "
            text += f"lapsed at {_text(gone)}; the next worker that claims will rescue it"
            return Why(LEASE_LAPSED, text, facts)
        asked = next((r for r in self._store.pending_requests(row.id) if r.kind in _ASKED), None)
        if asked is not None:
            facts |= {"asked": asked.kind, "by": asked.actor, "asked_at": _date(asked.at)}
            what = _ASKED[asked.kind].format(who=asked.actor, when=_text(asked.at))
            return Why(CANCELLING, f"{runs}; {what}, and the stage has yet to stop", facts)
        last = self._last_event()
        if last is not None and last.kind == kinds.OVERRAN and last.token == row.token:
            facts["overran_at"] = _date(last.at)
            text = f"{runs}, past its time since {_text(last.at)}; it does not stop, "
            text += "so nobody else may run it meanwhile"
            return Why(OVERRAN, text, facts)
        late_s = overdue_s(row, self._flow, self._now)
        # A job that was taken by hand has no timeout, and its taker no lanes.
        if late_s > 0 and lease.lanes and not has_overrun(row, self._recent()):
            return Why(
                NOT_RUN,
                f"{worker} has leased it since {_text(since)} and does not seem to run it: a run "
                f'of "{row.state}" would have ended or been noted as late {late_s:.0f} s ago; '
                "a worker gives back by itself what it does not run, and so does its end",
                facts,
            )
        return Why(LEASED, runs, facts)

    def _parked(self, name: str) -> Why:
        if name.startswith(ON_RATE):
            return self._rate_limited(name.removeprefix(ON_RATE))
        if name.startswith(ON_KEY):
            return self._key_paused(name.removeprefix(ON_KEY))
        slots = self._store.slots(name)
        taken = [slot.job_id for slot in slots if slot.job_id is not None]
        holders = [to_text(job_id) for job_id in taken if self._may_name(job_id)]
        places = sum(not slot.closed for slot in slots)
        facts = {"limit": name, "places": places, "held_by": holders}
        others = [] if len(holders) == len(taken) else [f"{len(taken) - len(holders)} of others"]
        held = (
            f"held by {', '.join(holders + others)}" if taken else "free: upkeep will pass one on"
        )
        may = "stand in its state" if any(slot.of_state for slot in slots) else "run"
        text = f'it is parked on the limit "{name}": {places} of them may {may}, {held}'
        return Why(PARKED, text, facts)

    def _may_name(self, job_id: bytes) -> bool:
        if self._tenant is None:
            return True
        row = self._store.find_job(job_id)
        return row is not None and row.tenant == self._tenant

    def _rate_limited(self, name: str) -> Why:
        row, stage = self._row, stage_of(name)
        facts: dict[str, Any] = {"rate": name, "cost": row.cost}
        rate = next((r for r in self._store.rates() if r.name == stage), None)
        if rate is None:
            return Why(STUCK, f'it is parked on the rate "{name}", which is gone', facts)
        terms = terms_of(rate)
        level = full(terms, self._now)
        ready_at = None
        for bucket in self._store.buckets(name):
            level = fill(Level(bucket.level, bucket.filled_at), terms, self._now)
            ready_at = bucket.ready_at
        tokens = level.parts // terms.per_us
        span = to_seconds(terms.per_us)
        facts |= {
            "tokens": tokens, "n": terms.n, "per_s": span, "burst": terms.burst,
            "ready_at": _date(ready_at), "set_by": rate.actor,
        }  # fmt: skip
        when = "" if ready_at is None else f"; the next one can be paid at {_text(ready_at)}"
        text = f'a run costs {row.cost} of the rate "{name}", {terms.n} in {span:g} s, and '
        text += f"{tokens} are there{when}"
        return Why(RATE_LIMITED, text, facts)

    def _key_paused(self, key: str) -> Why:
        pause = next((p for p in self._store.pauses() if (p.kind, p.name) == (KEY, key)), None)
        if pause is None:
            facts = {"kind": KEY, "name": key}
            text = f'the pause of the key "{key}" is over; the next claim lets it go'
            return Why(PAUSED, text, facts)
        return self._paused(pause)

    def _paused(self, pause: PauseRow, also: str = "") -> Why:
        until = "until somebody resumes it"
        if pause.until_at is not None:
            until = f"until {_text(pause.until_at)}"
        said = f": {pause.note}" if pause.note else ""
        facts = {
            "kind": pause.kind, "name": pause.name, "until": _date(pause.until_at),
            "by": pause.actor, "since": _date(pause.at), "note": pause.note,
        }  # fmt: skip
        text = f'the {pause.kind} "{pause.name}" is paused {until}, by {pause.actor} since '
        text += f"{_text(pause.at)}{said}{also}"
        return Why(PAUSED, text, facts)

    def _pause_of_lane(self) -> PauseRow | None:
        lane = self._row.lane
        if not lane:
            return None
        stops = {(QUEUE, queue_of(lane)), (FLOW, self._row.flow)}
        found = [p for p in self._store.pauses() if (p.kind, p.name) in stops]
        return max(found, key=_end_of_pause, default=None)

    def _claimable(self) -> Why:
        row = self._row
        facts: dict[str, Any] = {
            "queue": row.lane.split("/", 1)[0], "not_before": _date(row.not_before),
            "attempt": row.attempt + 1, "lapses": row.lapses,
        }  # fmt: skip
        unserved = self._unserved(facts)
        owed = row.started.split() if row.role == UNDOING else []
        pause = self._pause_of_lane()
        if pause is not None and _end_of_pause(pause) > max(row.not_before, self._now):
            # What is paused for longer than it is delayed is stopped by its pause.
            return self._paused(pause, "" if unserved is None else f"; {unserved.sentence}, too")
        is_known = unserved is None or unserved.code != STATE_NOT_SERVED
        if row.not_before > self._now and not owed and is_known:
            facts["message"] = reason = self._reason_to_retry()
            after = f" after attempt {row.attempt} failed" if row.attempt else ""
            after += f": {reason}" if reason else ""
            also = "" if unserved is None else f"; {unserved.sentence}, too"
            return Why(DELAYED, f"it is delayed until {_text(row.not_before)}{after}{also}", facts)
        if unserved is not None:
            return unserved
        if owed:
            facts |= {"next": owed[-1], "owed": owed[::-1], "then": row.undo_to, "code": row.code}
            when = "is due"
            if row.not_before > self._now:
                facts["message"] = reason = self._reason_to_retry()
                when = f"waits until {_text(row.not_before)}" + (f" ({reason})" if reason else "")
            text = f'it is being undone ({row.code}): the undo of "{owed[-1]}", attempt '
            text += f'{row.attempt + 1}, {when}; {len(owed)} to go, then "{row.undo_to}"'
            return Why(UNDOING_NEXT, text, facts)
        if row.lapses >= SUSPECT_LAPSES:
            text = f"{row.lapses} workers vanished while they ran it, so it is suspect: a worker "
            text += "takes it only while it runs no other suspect"
            return Why(SUSPECT, text, facts)
        text = f"it has been due since {_text(row.not_before)} and will be claimed next"
        return Why(DUE, text, facts)

    def _unserved(self, facts: dict[str, Any]) -> Why | None:
        """Return why no worker that lives would claim it, or None when one would."""
        row, live = self._row, self._live()
        lanes = {lane for worker in live for lane in worker.lanes.split()}
        if not row.lane:
            return Why(STUCK, f'nothing leads out of "{row.state}"; run verify', facts)
        if family_of(row.lane) in lanes:
            return self._given_back_as_unknown(facts)
        facts["workers"] = len(live)
        if not live:
            return Why(NO_WORKER, "no worker is running", facts)
        queue, pool, flow, *_ = row.lane.split("/", 3)
        served = {lane.split("/", 2)[0] for lane in lanes}
        versions = sorted(
            {
                int(lane_before(lane).removesuffix(EVERY_TENANT).rsplit("@", 1)[1])
                for lane in lanes
                if lane.startswith(f"{queue}/{pool}/{row.flow}@")
            }
        )
        if row.flow_version in versions:
            stage = stage_of_lane(row.lane)
            text = f"workers run version {row.flow_version} of {row.flow}, and none of those that "
            text += f'live has its stage "{stage}"; start a program that has it'
            return Why(STATE_NOT_SERVED, text, facts | {"missing": stage})
        if versions:
            facts["versions"] = versions
            numbers = ", ".join(map(str, versions))
            text = f"no worker runs version {row.flow_version} of {row.flow}; "
            text += f"those that live run version {numbers}"
            return Why(VERSION_NOT_SERVED, text, facts)
        if queue in served:
            text = f'workers serve the queue "{queue}", and none of them runs {flow} there'
            return Why(VERSION_NOT_SERVED, text, facts | {"versions": []})
        text = f'no worker serves the queue "{queue}"; those that live serve {_list(served)}'
        return Why(QUEUE_NOT_SERVED, text, facts | {"served": sorted(served)})

    def _given_back_as_unknown(self, facts: dict[str, Any]) -> Why | None:
        """Return why for a job of the release before: its lane does not name its stage."""
        last = None if stage_of_lane(self._row.lane) else self._last_event()
        if last is None or last.code != kinds.STATE_UNKNOWN:
            return None
        text = f"{last.worker} gave it back at {_text(last.at)}: {last.message}"
        return Why(STATE_NOT_SERVED, text, facts | {"missing": self._row.state})

    def _held(self) -> Why:
        row = self._row
        gate = None if self._place is None else self._place.gate
        if gate is not None:
            return self._gate(gate)
        message = self._message()
        said = f": {message}" if message else ""
        facts = {
            "code": row.code, "since": _date(row.changed_at), "from": row.resume,
            "message": message,
            "owed": row.started.split()[::-1] if row.undo_to is not None else [],
        }  # fmt: skip
        if row.code is None:
            # A gate of a flow that is not declared here: the row says no more than this.
            text = f'a decision is asked in "{row.state}" since {_text(row.changed_at)}'
            return Why(GATE, text, facts)
        return Why(
            HELD_BY_CODE,
            f"it is held with {row.code} since {_text(row.changed_at)}{said}; release it to go on",
            facts,
        )

    def _gate(self, gate: Gate[Any]) -> Why:
        row = self._row
        barred = sorted(
            row.submitter or "whoever submitted it" if who is SUBMITTER else str(who)
            for who in gate.not_by
        )
        whom = f" by {_list(gate.by)}" if gate.by else ""
        nobody = f", not by {names(barred)}" if barred else ""
        until = f" until {_text(row.deadline_at)}" if row.deadline_at is not None else ""
        facts = {
            "choices": sorted(gate.choices), "by": sorted(gate.by), "not_by": barred,
            "until": _date(row.deadline_at), "since": _date(row.changed_at),
            "on_expiry": gate.on_expiry,
        }  # fmt: skip
        text = f'a decision is asked in "{row.state}"{whom}{nobody}{until}: {_list(gate.choices)}'
        return Why(GATE, text, facts)

    def _waiting(self) -> Why:
        row = self._row
        facts = {"signal": row.awaits, "until": _date(row.wake_at), "since": _date(row.changed_at)}
        if row.wake_at is not None and row.wake_at <= self._now:
            if not self._live():
                return Why(
                    NO_WORKER,
                    f"its date came at {_text(row.wake_at)} and no worker is running to act on it",
                    facts,
                )
            text = f"its date came at {_text(row.wake_at)}; upkeep will move it next"
            return Why(DUE, text, facts)
        if row.awaits is not None:
            until = "" if row.wake_at is None else f" until {_text(row.wake_at)}"
            return Why(AWAITS_SIGNAL, f'it waits for the signal "{row.awaits}"{until}', facts)
        if row.wake_at is None:
            text = f'"{row.state}" waits for nothing: no date, no signal; run verify'
            return Why(STUCK, text, facts)
        return Why(AWAITS_DATE, f"it waits until {_text(row.wake_at)}", facts)

    def _live(self) -> list[WorkerRow]:
        return [w for w in self._workers.values() if w.expires_at > self._now]

    def _message(self) -> str | None:
        """Return what was said when the job came to stand as it does; undos may lie between."""
        row = self._row
        if row.code is None:
            return None
        said = (e.message for e in reversed(self._recent()) if e.code == row.code and e.message)
        return next(said, None)

    def _recent(self) -> list[Event]:
        after = max(0, self._row.seq - LOOK_BACK)
        return self._store.trail(self._row.id, after=after, limit=LOOK_BACK)

    def _reason_to_retry(self) -> str | None:
        """Return what the last run said when it failed or put itself off."""
        row = self._row
        recent = self._store.trail(row.id, after=max(0, row.seq - 2), limit=2)
        if not recent or recent[-1].kind != kinds.RETRY:
            return None
        # A retry by way of another state is two lines of one commit, and the first says why.
        last = [e for e in recent if e.commit_id == recent[-1].commit_id]
        return next((e.message for e in last if e.message), None)

    def _last_event(self) -> Event | None:
        row = self._row
        return next(iter(self._store.trail(row.id, after=row.seq - 1, limit=1)), None)


def overdue_s(row: JobRow, flow: Flow[Any] | None, now: Instant) -> float:
    """Return for how long the run of a leased job must have ended; 0 while it may still run. A run
    past its timeout ends or leaves an `overran` line (`has_overrun`)."""
    place = None if flow is None else flow.table.places.get(row.state)
    if flow is not None and row.role == UNDOING and row.started:
        place = flow.table.places.get(row.started.split()[-1])
    if place is None or not place.timeout_us:
        return 0.0
    since = max(row.leased_at or 0, row.changed_at)
    return max(0.0, to_seconds(now - since - place.timeout_us - NOTICE_US))


def has_overrun(row: JobRow, events: Iterable[Event]) -> bool:
    """Return whether the run of a leased job is known to be past its time."""
    return any(e.kind == kinds.OVERRAN and e.token == row.token for e in events)


def _end_of_pause(pause: PauseRow) -> float:
    return float("inf") if pause.until_at is None else pause.until_at


def to_seconds(microseconds: int) -> float:
    """Return a span as people say it."""
    return microseconds / SECOND


def _date(instant: Instant | None) -> Any:
    return None if instant is None else to_datetime(instant)


def _text(instant: Instant) -> str:
    return rfc3339(to_datetime(instant), "seconds")


def _list(items: Any) -> str:
    return names(sorted(items))
