"""How jobs stand: the engine's verbs that change nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ulak.core.flow import Flow
from ulak.core.keys import short_key
from ulak.engine.view import Job
from ulak.errors import ResultNotReady
from ulak.ids import from_text
from ulak.store import codec
from ulak.store.protocol import JobFilter

if TYPE_CHECKING:
    from ulak.engine.kernel import Kernel

EVERY_JOB = JobFilter()


class Reads:
    """How jobs stand. A foreign flow's jobs can be read, but not acted upon."""

    kernel: Kernel

    def get(self, job_id: str) -> Job:
        """Return a job as it stands now.

        Raises:
            JobNotFound: there is none.
        """
        row = self.kernel.get_row(job_id)
        asked = row.requests > 0 and any(
            r.kind == "cancel" for r in self.kernel.store.pending_requests(row.id)
        )
        return Job(row, cancel_requested=asked)

    def find(self, flow: str, key: str, *, tenant: str = "") -> Job | None:
        """Return the job that holds a dedup key now, or None when it is free."""
        found = self.kernel.open().store.find_key(tenant, flow, short_key(key))
        row = None if found is None else self.kernel.store.find_job(found)
        return None if row is None else Job(row)

    def jobs(
        self, where: JobFilter = EVERY_JOB, *, after: str | None = None, limit: int = 100
    ) -> list[Job]:
        """Return jobs, newest first; `after` is the id of the last one of the page before."""
        cursor = None if after is None else from_text(after)
        return [
            Job(r) for r in self.kernel.open().store.list_jobs(where, after=cursor, limit=limit)
        ]

    def result(self, job_id: str) -> Any:
        """Return what the last stage that returned something has returned, as plain data.

        Raises:
            ResultNotReady: no stage has returned anything.
        """
        row = self.kernel.get_row(job_id)
        flow = self.kernel.get_flow(row)
        stages = {s.state for s in flow.declared.stages}
        stored = self.kernel.store.find_results(row.id)
        left = [r for r in stored if r.name == "" and r.stage in stages]
        if not left:
            raise ResultNotReady(f"job {job_id} has left no result; it is in {row.state!r}")
        moved = [e.from_state for e in self.kernel.store.trail(row.id)]
        order = {_stage_of(flow, state): n for n, state in enumerate(moved) if state is not None}
        last = max(left, key=lambda r: (r.round, order.get(r.stage, -1)))
        return codec.decode(last.data)


def _stage_of(flow: Flow[Any], state: str) -> str:
    place = flow.table.places.get(state)
    return state if place is None or place.stage is None else place.stage.state
