"""Rings RQ for jobs that are due, sweeps for those whose ring was lost, and tells the store which
RQ workers there are."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Final, Self

import redis
import rq
from rq.utils import as_text
from rq.worker_registration import get_keys

from ulak.clock import SECOND
from ulak.core.acts import can_be_taken
from ulak.core.backlog import DUE
from ulak.core.change import Change, Committed, Receipt
from ulak.core.job import JobRow, flow_of, queue_of
from ulak.engine.engine import Engine
from ulak.errors import BadInput, StoreError
from ulak.ids import from_text, to_text
from ulak.kit.processes.running import must_be_queues, must_be_shared
from ulak.settings import read_variables
from ulak.store import without_password
from ulak.store.flow_control import FLOW, QUEUE
from ulak.store.protocol import Added, ClaimRequest

log = logging.getLogger("ulak.dispatch")

USUAL_URL: Final = "redis://localhost:6379/0"
"""RQ's own default."""
RUN: Final = "ulak.dispatch.rq.run"
"""What a message calls."""
SWEEP_EVERY_S: Final = 1.0
# As long as a forked work-horse may take to load a program and lease its job; a guess. A message
# that comes twice costs that once more.
GRACE_S: Final = 15.0
UNDER_WAY_US: Final = SECOND
"""So long the ring of a commit may be on its way."""
HURRY_S: Final = 0.05
"""So soon may a sweep follow another when a slot is free again."""
TELL_EVERY_S: Final = 1.9
PRESENT_US: Final = 15 * SECOND
"""So long the store believes in an RQ worker of which it has heard nothing more."""
# Beyond the timeouts of the stages: to load a program, open its resources and commit. A guess.
MARGIN_S: Final = 60
RESULT_S: Final = 60
"""So long rq-dashboard shows a message whose job was run; the trail shows it for good."""
FAILURE_S: Final = 3600
CALM_S: Final = 30.0
MOST_DUE: Final = 1000
"""So many due jobs of a lane a sweep looks at."""
MOST_RINGS: Final = 10_000
"""So many rings wait here while RQ's Redis does not answer; the sweep finds the others."""
PATIENCE_S: Final = 5.0
_LIVE: Final = (b"queued", b"started")


def connect(url: str | None = None) -> redis.Redis:
    """Return a client of RQ's Redis, by default of `RQ_REDIS_URL`; nothing is opened. `BadInput`:
    the URL cannot be read."""
    url = url or read_variables({"RQ_REDIS_URL": str}).get("RQ_REDIS_URL", USUAL_URL)
    try:
        return redis.Redis.from_url(
            url, socket_timeout=PATIENCE_S, socket_connect_timeout=PATIENCE_S
        )
    except ValueError as error:
        shown = without_password(url)
        why = f": {error}" if shown == url else ""
        raise BadInput(f"RQ_REDIS_URL {shown!r} cannot be read{why}; write {USUAL_URL}") from None


class Dispatch:
    """Takes jobs of some queues to RQ, as messages on RQ's queues of the same names.

    While entered, every job that becomes due by a commit of this process is rung for after the
    commit, and a sweep about once a second, by one of the processes, rings for each due job that
    has no message: one whose ring was lost, whose date has come or whose worker has died. No verb
    of the engine waits for RQ's Redis, and none fails because of it.

    Raises:
        NotSupported: no other process sees the jobs of the store.
        BadInput: no stage is in a queue.
    """

    def __init__(self, engine: Engine, queues: Iterable[str], *, connection: redis.Redis) -> None:
        self._kernel, self._client = engine.kernel, connection
        self.queues: Final = tuple(dict.fromkeys(queues))
        must_be_shared(engine, "RQ")
        must_be_queues(engine, self.queues)
        self._kernel.queues_elsewhere.update(self.queues)
        self._at = {queue: rq.Queue(queue, connection=connection) for queue in self.queues}
        self._arrived = threading.Condition()
        self._rings: list[tuple[str, str]] = []
        self._is_closing = self._is_down = self._is_hurried = False
        self._limited: Final = {flow.name for flow in self._kernel.flows if flow.table.limits}
        self._calm_at = 0.0
        self._rung: dict[str, dict[str, tuple[int, float]]] = {}
        """By queue, and by job that is due and has no message: its version, and when to ring."""

    def __enter__(self) -> Self:
        self._is_closing = False
        self._stop_listening = self._kernel.telemetry.add(self)
        self._thread = threading.Thread(target=self._serve, name="ulak-rq", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop_listening()
        with self._arrived:
            self._is_closing = True
            self._arrived.notify()
        self._thread.join(2 * PATIENCE_S)

    def ring(self, job_id: str) -> None:
        """Ring for a job soon; twice is harmless, and one that is not due is left alone.
        `BadInput`: it is no id."""
        from_text(job_id)
        self._offer([(job_id, "")])

    def accepted(self, added: Sequence[Added], seconds: float | None) -> None:
        if seconds is not None:  # else its transaction is not committed: the sweep finds it
            self._offer_due([one.row for one in added if one.created])

    def committed(
        self, changes: Sequence[Change], receipts: Sequence[Receipt], seconds: float | None
    ) -> None:
        pairs = zip(changes, receipts, strict=True)
        rows = [change.row for change, said in pairs if isinstance(said, Committed)]
        self._offer_due(rows)
        if any(row.leased_by is None and row.flow in self._limited for row in rows):
            # What waited for the slot has its turn now.
            with self._arrived:
                self._is_hurried = True
                self._arrived.notify()

    def _ignore(self, *facts: Any, **named: Any) -> None:
        """No job becomes due by these."""

    refused = claimed = published = ticked = failed = _ignore

    def _offer_due(self, rows: Sequence[JobRow]) -> None:
        ours = [row for row in rows if row.leased_by is None and queue_of(row.lane) in self._at]
        if ours:
            now = self._kernel.store.clock.now()
            self._offer([(to_text(row.id), row.lane) for row in ours if can_be_taken(row, now)])

    def _offer(self, rings: list[tuple[str, str]]) -> None:
        with self._arrived:
            self._rings = (self._rings + rings)[-MOST_RINGS:]
            self._arrived.notify()

    def _serve(self) -> None:
        sweep_at = 0.0
        while True:
            with self._arrived:
                if not (self._rings or self._is_closing or self._is_hurried):
                    self._arrived.wait(SWEEP_EVERY_S)
                rings, self._rings = self._rings, []
                is_hurried, self._is_hurried = self._is_hurried, False
                if self._is_closing and not (rings or is_hurried):
                    return
            try:
                for job_id, lane in rings:
                    self._send(job_id, lane or self._find_lane(job_id))
                is_time = time.monotonic() >= sweep_at
                if is_time:
                    sweep_at = time.monotonic() + SWEEP_EVERY_S
                    self._tell_workers()
                for queue in self.queues if is_time or is_hurried else ():
                    if self._is_mine(f"sweep:{queue}:{is_time:d}", 0.9 if is_time else HURRY_S):
                        self._sweep(queue)
                self._is_down = False
            except (redis.RedisError, StoreError) as error:
                self._calm_at = time.monotonic() + CALM_S
                if not self._is_down:
                    log.warning("RQ is not rung; jobs wait", extra={"error": str(error)})
                self._is_down = True
            except Exception:  # a worker loop: what is due is found again
                log.exception("the sweep for RQ failed")

    def _find_lane(self, job_id: str) -> str:
        row = self._kernel.store.find_job(from_text(job_id))
        is_due = row is not None and can_be_taken(row, self._kernel.store.clock.now())
        return row.lane if row and is_due else ""

    def _send(self, job_id: str, lane: str) -> None:
        at = self._at.get(queue_of(lane))
        if at is not None:
            # The message has the id of its job, so that RQ and its dashboard know it by that.
            at.enqueue_call(
                RUN, args=(job_id,), job_id=job_id, timeout=self._find_timeout(lane),
                result_ttl=RESULT_S, failure_ttl=FAILURE_S,
            )  # fmt: skip

    def _find_timeout(self, lane: str) -> int:
        """Return in seconds how long a message may take: all stages of its flow in this queue."""
        stages = {
            (flow.version, place.state): place.timeout_us
            for flow in self._kernel.flows
            for place in flow.table.places.values()
            if flow.name == flow_of(lane) and queue_of(place.lane) == queue_of(lane)
        }
        return MARGIN_S + -(-sum(stages.values()) // SECOND)

    def _sweep(self, queue: str) -> None:
        store, at = self._kernel.store, self._at[queue]
        standing = store.count_standing()
        paused = {(pause.kind, pause.name) for pause in store.pauses()}
        lanes = {
            lane
            for lane in standing.oldest_due
            if queue_of(lane) == queue and not paused & {(QUEUE, queue), (FLOW, flow_of(lane))}
        }
        due = sum(each.jobs for each in standing.counts if each.lane in lanes and each.kind == DUE)
        before, rung = self._rung.get(queue, {}), dict[str, tuple[int, float]]()
        self._rung[queue] = rung
        if due <= at.count:
            return  # as many messages as jobs: those of other jobs are soon used up
        waiting, now = set(at.get_job_ids()), time.monotonic()
        for lane in sorted(lanes):
            for row in store.find_claimable(lane, MOST_DUE):
                job_id = to_text(row.id)
                if job_id in waiting or standing.at - row.changed_at < UNDER_WAY_US:
                    continue
                version, ring_at = before.get(job_id, (-1, 0.0))
                if version != row.version:
                    # One that RQ has handed to a worker is about to be leased, unless it has died.
                    status = self._client.hget(f"rq:job:{job_id}", "status")
                    ring_at = now + (GRACE_S if status in _LIVE and not row.lapsed else 0)
                if now >= ring_at:
                    self._send(job_id, lane)
                    ring_at = now + GRACE_S
                rung[job_id] = row.version, ring_at

    def _tell_workers(self) -> None:
        """Register the RQ workers with the store, so that `why`, lists of workers and readiness
        know them; and give back the jobs of workers that have vanished."""
        if not self._is_mine("workers", TELL_EVERY_S):
            return
        store, queues = self._kernel.store, dict[str, list[str]]()
        for queue, at in self._at.items():
            for key in get_keys(at):
                queues.setdefault(key, []).append(queue)
        known = {row.id for row in store.workers() if row.id.startswith("rq:worker:")}
        alive: list[str] = []
        for key, own in sorted(queues.items()):
            told = self._client.hgetall(key)
            if b"pid" not in told or b"death" in told:
                continue
            alive.append(key)
            if key not in known or not store.renew(key, lease_us=PRESENT_US).alive:
                about = " process ".join(as_text(told[word]) for word in (b"hostname", b"pid"))
                store.register(key, lease_us=PRESENT_US, lanes=self._find_lanes(own), about=about)
        for key in known.difference(alive):
            store.unregister(key)
        # After an outage workers that are alive have the time to renew their leases first.
        if alive and time.monotonic() >= self._calm_at:
            store.claim(ClaimRequest(alive[0], ()))

    def _find_lanes(self, queues: Sequence[str]) -> list[str]:
        lanes = {lane for flow in self._kernel.flows for lane in flow.table.lanes}
        return sorted(lane for lane in lanes if queue_of(lane) in queues)

    def _is_mine(self, duty: str, seconds: float) -> bool:
        """Tell whether this process does something now, of all that would."""
        return bool(self._client.set(f"rq:ulak:{duty}", 1, nx=True, px=int(seconds * 1000)))
