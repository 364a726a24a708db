"""Why a job stands where it stands: one answer, the true one.

Read from the store alone, so that a process which runs no worker and declares other flows
answers the same. A flow that is declared here adds who may decide at its gates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ulak.clock import Instant, rfc3339, to_datetime
from ulak.core import event as kinds
from ulak.core.flow import Gate, names
from ulak.core.job import Event, JobRow
from ulak.core.lifecycle import CLAIMABLE, FINAL, HELD, UNDOING
from ulak.core.policy import SUBMITTER
from ulak.errors import JobNotFound
from ulak.ids import from_text, to_text
from ulak.store.protocol import WorkerRow

if TYPE_CHECKING:
    from ulak.engine.engine import Engine

ENDED: Final = "ended"
LEASED: Final = "leased"
CANCELLING: Final = "cancelling"
OVERRAN: Final = "overran"
LEASE_LAPSED: Final = "lease-lapsed"
PARKED: Final = "parked"
DELAYED: Final = "delayed"
NO_WORKER: Final = "no-worker"
QUEUE_NOT_SERVED: Final = "queue-not-served"
VERSION_NOT_SERVED: Final = "version-not-served"
UNDOING_NEXT: Final = "undoing"
SUSPECT: Final = "suspect"
DUE: Final = "due"
GATE: Final = "gate"
HELD_BY_CODE: Final = "held"
AWAITS_SIGNAL: Final = "awaits-signal"
AWAITS_DATE: Final = "awaits-date"
STUCK: Final = "stuck"

CODES: Final = (
    ENDED, LEASED, CANCELLING, OVERRAN, LEASE_LAPSED, PARKED, DELAYED, NO_WORKER,
    QUEUE_NOT_SERVED, VERSION_NOT_SERVED, UNDOING_NEXT, SUSPECT, DUE, GATE, HELD_BY_CODE,
    AWAITS_SIGNAL, AWAITS_DATE, STUCK,
)  # fmt: skip
"""Every answer there is. Shown on every surface, so they are for ever."""

SUSPECT_LAPSES = 2
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


def why(engine: Engine, job_id: str) -> Why:
    """Answer why a job stands where it stands.

    Raises:
        JobNotFound: there is none.
    """
    row = engine.open().store.find_job(from_text(job_id))
    if row is None:
        raise JobNotFound(job_id)
    return _Look(engine, row).answer()


class _Look:
    """One look at one job, with the store's time and the workers that live."""

    def __init__(self, engine: Engine, row: JobRow) -> None:
        self._store = engine.store
        self._row = row
        self._now = engine.store.clock.now()
        self._workers = {w.id: w for w in engine.store.workers()}
        flow = engine.flows_by_version().get((row.flow, row.flow_version))
        self._place = None if flow is None else flow.table.places.get(row.state)

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
        if row.role == HELD:
            return self._held()
        return self._waiting()

    # --- one answer each --------------------------------------------------------

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
        return self._why(
            ENDED, f'it ended in "{row.state}"{reason} at {_text(row.changed_at)}{said}', facts
        )

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
            return self._why(
                LEASE_LAPSED,
                f"{worker} took it at {_text(since)} and has not been heard of since its lease "
                f"lapsed at {_text(gone)}; the next worker that claims will rescue it",
                facts,
            )
        asked = next((r for r in self._store.pending_requests(row.id) if r.kind in _ASKED), None)
        if asked is not None:
            facts |= {"asked": asked.kind, "by": asked.actor, "asked_at": _date(asked.at)}
            what = _ASKED[asked.kind].format(who=asked.actor, when=_text(asked.at))
            return self._why(CANCELLING, f"{runs}; {what}, and the stage has yet to stop", facts)
        last = self._last_event()
        if last is not None and last.kind == kinds.OVERRAN and last.token == row.token:
            facts["overran_at"] = _date(last.at)
            return self._why(
                OVERRAN,
                f"{runs}, past its time since {_text(last.at)}; a thread cannot be stopped, "
                "so nobody else may run it meanwhile",
                facts,
            )
        return self._why(LEASED, runs, facts)

    def _parked(self, limit: str) -> Why:
        slots = [slot for slot in self._store.slots() if slot.limit == limit]
        holders = [to_text(slot.job_id) for slot in slots if slot.job_id is not None]
        places = sum(not slot.closed for slot in slots)
        facts = {"limit": limit, "places": places, "held_by": holders}
        held = f"held by {', '.join(holders)}" if holders else "free: upkeep will pass one on"
        return self._why(
            PARKED, f'it is parked on the limit "{limit}": {places} of them may run, {held}', facts
        )

    def _claimable(self) -> Why:
        row = self._row
        facts: dict[str, Any] = {
            "queue": row.lane.split("/", 1)[0], "not_before": _date(row.not_before),
            "attempt": row.attempt + 1, "lapses": row.lapses,
        }  # fmt: skip
        unserved = self._unserved(facts)
        owed = row.started.split() if row.role == UNDOING else []
        if row.not_before > self._now and not owed:
            after = f" after attempt {row.attempt} failed" if row.attempt else ""
            also = "" if unserved is None else f"; {unserved.sentence}, too"
            return self._why(
                DELAYED, f"it is delayed until {_text(row.not_before)}{after}{also}", facts
            )
        if unserved is not None:
            return unserved
        if owed:
            facts |= {"next": owed[-1], "owed": owed[::-1], "then": row.undo_to, "code": row.code}
            when = (
                "is due" if row.not_before <= self._now else f"waits until {_text(row.not_before)}"
            )
            return self._why(
                UNDOING_NEXT,
                f'it is being undone ({row.code}): the undo of "{owed[-1]}", attempt '
                f'{row.attempt + 1}, {when}; {len(owed)} to go, then "{row.undo_to}"',
                facts,
            )
        if row.lapses >= SUSPECT_LAPSES:
            return self._why(
                SUSPECT,
                f"{row.lapses} workers vanished while they ran it, so it is suspect: a worker "
                "takes it only while it runs no other suspect",
                facts,
            )
        return self._why(
            DUE, f"it has been due since {_text(row.not_before)} and will be claimed next", facts
        )

    def _unserved(self, facts: dict[str, Any]) -> Why | None:
        """Answer why no worker that lives would claim it, or None when one would."""
        row, live = self._row, self._live()
        lanes = {lane for worker in live for lane in worker.lanes.split()}
        if not row.lane:
            return self._why(STUCK, f'nothing leads out of "{row.state}"; run verify', facts)
        if row.lane in lanes:
            return None
        facts["workers"] = len(live)
        if not live:
            return self._why(NO_WORKER, "no worker is running", facts)
        queue, pool, flow = row.lane.split("/", 2)
        served = {lane.split("/", 2)[0] for lane in lanes}
        versions = sorted(
            int(lane.rsplit("@", 1)[1])
            for lane in lanes
            if lane.startswith(f"{queue}/{pool}/{row.flow}@")
        )
        if versions:
            facts["versions"] = versions
            numbers = ", ".join(map(str, versions))
            return self._why(
                VERSION_NOT_SERVED,
                f"no worker runs version {row.flow_version} of {row.flow}; "
                f"those that live run version {numbers}",
                facts,
            )
        if queue in served:
            return self._why(
                VERSION_NOT_SERVED,
                f'workers serve the queue "{queue}", and none of them runs {flow} there',
                facts | {"versions": []},
            )
        return self._why(
            QUEUE_NOT_SERVED,
            f'no worker serves the queue "{queue}"; those that live serve {_list(served)}',
            facts | {"served": sorted(served)},
        )

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
            return self._why(
                GATE, f'a decision is asked in "{row.state}" since {_text(row.changed_at)}', facts
            )
        return self._why(
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
        return self._why(
            GATE,
            f'a decision is asked in "{row.state}"{whom}{nobody}{until}: {_list(gate.choices)}',
            facts,
        )

    def _waiting(self) -> Why:
        row = self._row
        facts = {
            "signal": row.awaits, "until": _date(row.wake_at), "since": _date(row.changed_at)
        }  # fmt: skip
        if row.wake_at is not None and row.wake_at <= self._now:
            if not self._live():
                return self._why(
                    NO_WORKER,
                    f"its date came at {_text(row.wake_at)} and no worker is running to act on it",
                    facts,
                )
            return self._why(
                DUE, f"its date came at {_text(row.wake_at)}; upkeep will move it next", facts
            )
        if row.awaits is not None:
            until = "" if row.wake_at is None else f" until {_text(row.wake_at)}"
            return self._why(AWAITS_SIGNAL, f'it waits for the signal "{row.awaits}"{until}', facts)
        if row.wake_at is None:
            return self._why(
                STUCK, f'"{row.state}" waits for nothing: no date, no signal; run verify', facts
            )
        return self._why(AWAITS_DATE, f"it waits until {_text(row.wake_at)}", facts)

    # --- what the answers are made of -------------------------------------------

    def _why(self, code: str, sentence: str, facts: Mapping[str, Any]) -> Why:
        return Why(code, sentence, dict(facts))

    def _live(self) -> list[WorkerRow]:
        return [w for w in self._workers.values() if w.expires_at > self._now]

    def _message(self) -> str | None:
        """Answer what was said when the job came to stand as it does; undos may lie between."""
        row = self._row
        if row.code is None:
            return None
        recent = self._store.trail(row.id, after=max(0, row.seq - LOOK_BACK), limit=LOOK_BACK)
        return next((e.message for e in reversed(recent) if e.code == row.code and e.message), None)

    def _last_event(self) -> Event | None:
        row = self._row
        return next(iter(self._store.trail(row.id, after=row.seq - 1, limit=1)), None)


def _date(instant: Instant | None) -> Any:
    return None if instant is None else to_datetime(instant)


def _text(instant: Instant) -> str:
    return rfc3339(to_datetime(instant), "seconds")


def _list(items: Any) -> str:
    return names(sorted(items))
