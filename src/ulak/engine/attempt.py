"""One job taken by its id: by hand, or by a worker that is told which job to run."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any

from ulak.clock import Duration, read_micros
from ulak.core.acts import can_be_taken, must_know, taken
from ulak.core.change import Committed
from ulak.core.decide import RunFacts, decide, lapse_answer
from ulak.core.flow import Flow
from ulak.core.lifecycle import UNDOING
from ulak.core.outcome import GivenBack, Outcome
from ulak.engine.lease import Lease, Listener
from ulak.engine.reads import read_payload
from ulak.engine.stage_outcomes import read_error, read_return
from ulak.engine.telemetry import commit_one, log_lapse
from ulak.engine.view import Job
from ulak.errors import JobNotFound, NotSupported, StaleJob
from ulak.ids import to_text
from ulak.store.protocol import Claim, ClaimRequest

if TYPE_CHECKING:
    from ulak.engine.kernel import Kernel


def take(kernel: Kernel, job_id: str, *, worker: str, lease: Duration) -> Attempt | None:
    """Lease one job to the caller; `Worker.take` says what it promises."""
    lease_us = read_micros(lease, "lease=")
    row = kernel.get_row(job_id)
    flow = kernel.get_flow(row)
    must_know(flow, row)
    if flow.table.places[row.state].enters is not None and row.role != UNDOING:
        raise NotSupported(
            f'{flow.name}: something is called before the stage for "{row.state}", and only '
            "workers call it; leave the job to them"
        )
    host, process = socket.gethostname(), os.getpid()
    taker = f"{worker}-{host}-{process}-{os.urandom(6).hex()}"
    about = f"{host} process {process}, by hand"
    kernel.store.register(taker, lease_us=lease_us, lanes=(), about=about)
    claim = None
    try:
        claim = claim_one(kernel, flow, row.id, taker)
    finally:
        if claim is None:
            kernel.store.unregister(taker)
    if claim is None:
        return None
    kernel.ring()
    attempt = Attempt(kernel, flow, claim, lease_s=lease_us / 1e6)
    if (lost := lapse_answer(flow, claim.row)) is not None:
        # Its last worker has died, and that was an attempt: this one ends with it.
        attempt.end(lost)
        return None
    if claim.row.lapsed:
        log_lapse(claim.row)
    return attempt


class Attempt:
    """A job that somebody has taken, to be ended once: by `finish`, `fail` or `give_back`."""

    def __init__(self, kernel: Kernel, flow: Flow[Any], claim: Claim, *, lease_s: float) -> None:
        self._kernel = kernel
        self._flow = flow
        self._claim = claim
        self._worker = str(claim.row.leased_by)
        self._lease = Lease(
            kernel.store, self._worker, lease_s, _Nobody(), telemetry=kernel.telemetry,
            must_tick=False,
        )  # fmt: skip
        self._lease.start()

    @property
    def job(self) -> Job:
        """The job as it was taken."""
        return Job(self._claim.row)

    @property
    def payload(self) -> Any:
        """What the job was submitted with."""
        return read_payload(self._flow, self._claim.payload)

    @property
    def token(self) -> int:
        """Which taking of the job this is; it rises with each."""
        return self._claim.row.token

    def finish(self, result: object = None) -> Job:
        """Move the job on as its stage would: by a result, a `Goto`, a `Hold` or a `RetryLater`.

        Raises:
            StaleJob: the lease was lost, so somebody else has the job; nothing was written.
            TransitionNotAllowed: the stage may not go there; the attempt goes on.
        """
        return self.end(read_return(result, (), ()))

    def fail(self, error: BaseException) -> Job:
        """Fail as if the stage had raised: the job is retried or given up, as its flow declares.

        Raises:
            StaleJob: as for `finish`.
        """
        return self.end(read_error(self._flow, error))

    def give_back(self) -> Job:
        """Let somebody else have the job; no attempt is spent.

        Raises:
            StaleJob: as for `finish`.
        """
        return self.end(GivenBack())

    def end(self, outcome: Outcome) -> Job:
        """Commit what the attempt came to, and end its lease."""
        row, store = self._claim.row, self._kernel.store
        facts = RunFacts(self._worker, row.leased_at or 0, None, None)
        commit_id = self._kernel.new_commit_id()
        change = decide(
            self._flow, row, outcome, store.clock.now(), facts=facts, commit_id=commit_id
        )
        receipt = commit_one(store, change, self._kernel.telemetry)
        self._lease.stop()
        store.unregister(self._worker)
        self._kernel.ring()
        if not isinstance(receipt, Committed):
            job_id = to_text(row.id)
            raise StaleJob(f"job {job_id}: its lease was lost; read it again", job_id=job_id)
        return Job(change.row)


class _Nobody(Listener):
    """Leaves what a lease learns: the end of the attempt is refused if the lease was lost."""


def claim_one(kernel: Kernel, flow: Flow[Any], job_id: bytes, worker: str) -> Claim | None:
    """Lease one job to a registered worker; None when it cannot be had now.

    Raises:
        JobNotFound: there is none.
        NotSupported: its stage has a rate, which only an ordinary claim can pay.
    """
    store = kernel.store
    # Nobody else may be claiming: whoever has vanished would keep the job for ever.
    store.claim(ClaimRequest(worker, ()))
    row = store.find_job(job_id)
    if row is None:
        raise JobNotFound(to_text(job_id))
    now = store.clock.now()
    if not can_be_taken(row, now):
        return None
    if row.rate is not None:
        raise NotSupported(
            f'{flow.name}: the stage for "{row.state}" has a rate, and only workers pay it; '
            "leave the job to them"
        )
    change = taken(flow, row, now, worker=worker, commit_id=kernel.new_commit_id())
    if not isinstance(commit_one(store, change, kernel.telemetry), Committed):
        return None
    payload = store.find_payload(job_id)
    if payload is None:
        raise JobNotFound(to_text(job_id))
    results = store.find_results(job_id) if row.has_results else []
    return Claim(change.row, payload, tuple(results))
