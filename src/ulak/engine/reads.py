"""How jobs stand: the engine's verbs that change nothing."""

from __future__ import annotations

from abc import abstractmethod
from datetime import datetime
from typing import Any, Self

from ulak.clock import to_instant
from ulak.core.flow import Flow
from ulak.core.job import JobRow
from ulak.core.keys import short_key
from ulak.engine.view import Job, TrailEvent, event_view
from ulak.errors import JobNotFound, ResultNotReady, TransitionNotAllowed
from ulak.ids import from_text, to_text
from ulak.store import codec
from ulak.store.protocol import CountRow, JobFilter, Store

EVERY_JOB = JobFilter()
HIDDEN = "***"


class Reads:
    """Answers from the store. A foreign flow's jobs can be read, but not acted upon."""

    store: Store
    _flows: dict[tuple[str, int], Flow[Any]]

    @abstractmethod
    def open(self) -> Self:
        """Open the store; every verb does this by itself."""

    def get(self, job_id: str) -> Job:
        """Return a job as it stands now.

        Raises:
            JobNotFound: there is none.
        """
        row = self._row(job_id)
        asked = row.requests > 0 and any(
            r.kind == "cancel" for r in self.store.pending_requests(row.id)
        )
        return Job(row, cancel_requested=asked)

    def find(self, flow: str, key: str, *, tenant: str = "") -> Job | None:
        """Return the job that holds a dedup key now, or None when it is free."""
        found = self.open().store.find_key(tenant, flow, short_key(key))
        row = None if found is None else self.store.find_job(found)
        return None if row is None else Job(row)

    def jobs(
        self, where: JobFilter = EVERY_JOB, *, after: str | None = None, limit: int = 100
    ) -> list[Job]:
        """Return jobs, newest first; `after` is the id of the last one of the page before."""
        cursor = None if after is None else from_text(after)
        return [Job(r) for r in self.open().store.list_jobs(where, after=cursor, limit=limit)]

    def trail(self, job_id: str, *, after: int = 0, limit: int = 1000) -> list[TrailEvent]:
        """Return what happened to a job, in order."""
        row = self._row(job_id)
        return [event_view(e) for e in self.store.trail(row.id, after=after, limit=limit)]

    def payload(self, job_id: str, *, reveal: bool = False) -> Any:
        """Return a job's payload as plain data; secret fields are hidden unless revealed.

        Of a flow that this program does not declare nobody knows which fields are secret: all
        of them are hidden.
        """
        row = self._row(job_id)
        stored = self.store.find_payload(row.id)
        if stored is None:
            raise JobNotFound(job_id)
        plain = codec.decode(stored.data)
        return plain if reveal else self._hide(row.flow, row.flow_version, plain)

    def _hide(self, flow_name: str, version: int, plain: Any) -> Any:
        """Hide the secret fields of a payload, or all of it when nobody knows which they are."""
        flow = self._flows.get((flow_name, version))
        if not isinstance(plain, dict):
            return HIDDEN if flow is None else plain
        return {k: HIDDEN if flow is None or k in flow.secret else v for k, v in plain.items()}

    def result(self, job_id: str) -> Any:
        """Return what the last stage that returned something has returned, as plain data.

        Raises:
            ResultNotReady: no stage has returned anything.
        """
        row = self._row(job_id)
        flow = self._flow_of(row)
        stages = {s.state for s in flow.declared.stages}
        left = [r for r in self.store.find_results(row.id) if r.name == "" and r.stage in stages]
        if not left:
            raise ResultNotReady(f"job {job_id} has left no result; it is in {row.state!r}")
        moved = [e.from_state for e in self.store.trail(row.id)]
        order = {_stage_of(flow, state): n for n, state in enumerate(moved) if state is not None}
        last = max(left, key=lambda r: (r.round, order.get(r.stage, -1)))
        return codec.decode(last.data)

    def ended(
        self, flow: str, state: str, *, before: datetime, after: str | None = None, limit: int = 100
    ) -> list[Job]:
        """Return finished jobs that came into this state of a flow before then, by id; `after` is
        the id of the last one of the page before. Reads no younger ones."""
        cursor = b"" if after is None else from_text(after)
        rows = self.open().store.ended(
            flow, state, before=to_instant(before), limit=limit, after=cursor
        )
        return [Job(row) for row in rows]

    def counts(self) -> list[CountRow]:
        """Return how many jobs stand in each state, exactly and cheaply."""
        return self.open().store.counts()

    def _row(self, job_id: str) -> JobRow:
        row = self.open().store.find_job(from_text(job_id))
        if row is None:
            raise JobNotFound(job_id)
        return row

    def _flow_of(self, row: JobRow) -> Flow[Any]:
        flow = self._flows.get((row.flow, row.flow_version))
        if flow is None:
            raise TransitionNotAllowed(
                f"job {to_text(row.id)} follows {row.flow} version {row.flow_version}, "
                "which this program does not declare",
                code="flow-unknown",
            )
        return flow


def _stage_of(flow: Flow[Any], state: str) -> str:
    place = flow.table.places.get(state)
    return state if place is None or place.stage is None else place.stage.state
