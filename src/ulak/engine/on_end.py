"""`OnEnd`: what a flow declares to have a job submitted when one of its jobs ends."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

from ulak.clock import Instant
from ulak.core.flow import Flow
from ulak.core.intake import Submission
from ulak.core.job import JobRow, NewJob
from ulak.engine.function import Call, JobFunction
from ulak.engine.new_jobs import fit, make_job
from ulak.engine.view import Job
from ulak.errors import BadInput


@dataclass(frozen=True, slots=True)
class OnEnd:
    """Submit a job in the commit that ends another: `Flow(on_end=OnEnd(notify, payload=f))`.

    However the job ends, by its stage, an operator, a date or its last undo, one is submitted for
    each round and each final state. It has the tenant of the job that ended, and is not refused
    by an admission. If `payload` raises, the job ends all the same, with the event
    `on-end-failed`.

    Args:
        flow: The flow or the job function to submit.
        payload: A pure function of the ended job and its code (None when it ended well). It
            returns the payload, or `function.bind(...)`, or None to submit nothing.
    """

    flow: Flow[Any] | JobFunction[..., Any]
    _: KW_ONLY
    payload: Callable[[Job, str | None], Any]

    @property
    def target(self) -> Flow[Any]:
        """The flow of the job that follows."""
        return self.flow.flow if isinstance(self.flow, JobFunction) else self.flow

    def complaint(self) -> str | None:
        """Return what is wrong with the declaration, if anything is."""
        if not isinstance(self.flow, Flow | JobFunction):
            return f"on_end= submits {self.flow!r}, which is no flow; give a flow or a job function"
        if not callable(self.payload) or inspect.iscoroutinefunction(self.payload):
            return (
                f"on_end= makes its payload with {self.payload!r}; give a plain function of the "
                "job and its code"
            )
        return None

    def make(self, ended: JobRow, now: Instant, *, commit_id: bytes) -> NewJob | None:
        """Make the job that follows this end, or None for none."""
        made = self.payload(Job(ended), ended.code)
        if made is None:
            return None
        if isinstance(self.flow, JobFunction) and not isinstance(made, Call):
            made = self.flow.bind(made)
        if isinstance(made, Call):
            if made.flow is not self.target:
                raise BadInput(f"{made.flow!r} was bound, and {self.target!r} is submitted")
            made = made.payload
        submission = Submission(tenant=ended.tenant)
        return make_job(self.target, fit(self.target, made), submission, now, commit_id=commit_id)
