"""Waiting for a job: one way for threads, for event loops and for HTTP.

A wait looks at the job, sleeps until the store rings, and looks again. A ring says that some job
has moved, not which, and may be lost; so a look every now and then is the net below it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from ulak.clock import Duration, read_micros, seconds
from ulak.core.flow import names
from ulak.engine.view import Job
from ulak.engine.why import why
from ulak.errors import BadInput, StoreError, WriteRefused

if TYPE_CHECKING:
    from ulak.engine.kernel import Kernel
    from ulak.engine.reads import Reads

log = logging.getLogger("ulak.engine")

POLL_S = 0.2
# Other processes must first learn of a wait, before they ring for it.
SECOND_LOOK_S = 0.01
# Between two looks, so that many waits in a busy process leave it most of the time.
REST_PER_LOOK: Final = 3.0


class Waiting:
    """One wait for one job: `look` until there is an answer, `rest_s` and `pause_s` in between.

    Args:
        reads: The engine.
        job_id: The job.
        until: Wait for this state, or for the end.
        timeout: For how long.
        ring: Called from any thread when it is time to look again.
    """

    def __init__(
        self,
        reads: Reads,
        job_id: str,
        *,
        until: str | None,
        timeout: Duration | None,
        ring: Callable[[], None],
    ) -> None:
        self._reads = reads
        self._job_id = job_id
        self._until = until
        self._ring = ring
        self._timeout = timeout
        self._deadline = None
        if timeout is not None:
            self._deadline = time.monotonic() + read_micros(timeout, "timeout=") / 1e6
        self._looks = 0
        self._store_error: StoreError | None = None
        self._stop: Callable[[], None] = lambda: None
        self.rest_s = 0.0
        """For how long not to look again, whatever rings."""

    def __enter__(self) -> Self:
        self._stop = self._reads.kernel.open().store.on_move(self._ring)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._stop()

    @property
    def pause_s(self) -> float:
        """For how long to sleep at most before the next look."""
        pause = SECOND_LOOK_S if self._looks == 1 else POLL_S
        if self._deadline is not None:
            pause = min(pause, self._deadline - time.monotonic())
        return max(0.0, pause)

    def look(self) -> Job[Any] | None:
        """Return the job if it has come so far, else None. Blocks while the store is read.

        A store that does not answer is tried again at the next look.

        Raises:
            BadInput: its flow has no such state.
            JobNotFound: there is no such job.
            TimeoutError: the time is over.
        """
        began = time.monotonic()
        job = self._read()
        self._looks += 1
        if job is not None:
            must_be_a_state(self._reads.kernel, job, self._until)
            if job.is_final or job.state == self._until:
                return job
        ended = time.monotonic()
        if self._deadline is not None and ended >= self._deadline:
            raise TimeoutError(self._complain(job))
        self.rest_s = min(REST_PER_LOOK * (ended - began), self.pause_s)
        return None

    def _read(self) -> Job[Any] | None:
        try:
            job = self._reads.get(self._job_id)
        except WriteRefused:
            raise
        except StoreError as error:
            if self._store_error is None:
                log.warning("a wait goes on without the store", extra={"error": str(error)})
            self._store_error = error
            return None
        self._store_error = None
        return job

    def _complain(self, job: Job[Any] | None) -> str:
        waited = f"after {seconds(self._timeout or 0):g} s"
        if job is None:
            return f"job {self._job_id}: the store does not answer {waited}: {self._store_error}"
        said = f'job {self._job_id} is still in "{job.state}" {waited}'
        try:
            return f"{said}: {why(self._reads.kernel, self._job_id).sentence}"
        except StoreError:
            return said


def must_wait_for(timeout: Duration | None, options: Mapping[str, object]) -> None:
    """Refuse a call that could not be waited for, before anything is submitted.

    Raises:
        BadInput: the timeout is none, or the job would be stored only after the call.
    """
    if timeout is not None:
        read_micros(timeout, "timeout=")
    if options.get("connection") is not None:
        raise BadInput(
            "engine.call waits for a job, which is not stored before your transaction has ended; "
            "use engine.submit(..., connection=...), and engine.wait after the commit"
        )


def must_be_a_state(kernel: Kernel, job: Job[Any], until: str | None) -> None:
    """Refuse to wait for a state that the job's flow does not have: it would be in vain.

    Raises:
        BadInput: naming those that there are.
    """
    flow = None if until is None else kernel.find_flow(job.flow, job.version)
    if flow is not None and until not in flow.table.places:
        raise BadInput(
            f"{job.flow} has no state {until!r}; it has {names(list(flow.table.places))}"
        )
