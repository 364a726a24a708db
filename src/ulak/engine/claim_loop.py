"""Which jobs a worker claims, and when: its places, what wakes it, and the loop of its claims."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from ulak.clock import Instant, micros
from ulak.core.flow import Flow
from ulak.core.job import family_of, lane_before, names_stage, queue_of
from ulak.core.table import kept_entries
from ulak.engine.ports import Resource, WorkerSettings
from ulak.engine.threads import call_on
from ulak.errors import StoreError
from ulak.store.batches import SUSPECT_LAPSES
from ulak.store.protocol import Claimed, ClaimRequest, Store, Want

if TYPE_CHECKING:
    from ulak.engine.worker import Worker

log = logging.getLogger("ulak.worker")

# How often a worker with no free place looks for what is asked of its jobs.
LOOK_EVERY_S = 0.5
# How often a worker looks for jobs that the release before has stored, after a look in vain: a
# claim costs the more, the more lanes it names.
LOOK_BACK_EVERY_S = 0.5
# How often a worker that must not claim yet, after an outage, looks whether it may.
CALM_LOOK_S = 0.05
# After a claim that failed although the lease can be renewed.
AGAIN_S = 0.2
# How often a worker compares its leases with its runs: one read by an index. A guess.
COMPARE_EVERY_S = 5.0


class ClaimLoop:
    """Claims jobs for one worker. Made on the worker's loop."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._executor = worker.executor
        self._store = worker.store
        self._pools = worker.executor.pools
        self._wakeup = worker.wakeup
        self._loop = asyncio.get_running_loop()
        self._pause_s = micros(worker.settings.poll) / 1e6
        self._ageing_us = micros(worker.settings.ageing)
        flows = worker.kernel.flows_by_version().values()
        self._entries = {
            (flow.name, flow.version, state): during
            for flow in flows
            for state, during in flow.table.entries.items()
        }
        self._keeps = kept_entries(flows)
        self._claim: asyncio.Future[Claimed] | None = None
        self._looked_at = 0.0
        self._looks_back = False
        """Whether the last claim has looked for jobs of the release before."""
        self._look_back_at = 0.0
        self._moved_before = 0
        """How many jobs upkeep had moved when the last claim was sent."""
        self._is_unsure = False
        """A claim got no answer: the store may have leased jobs that are not known here."""

    async def run(self, *, until_idle: bool) -> None:
        """Claim until the worker stops, or until nothing is left that could be done now."""
        worker, executor, wakeup = self._worker, self._executor, self._wakeup
        while not executor.stopping:
            if executor.lost:
                wakeup.forget()
                if not await worker.has_registered():
                    await wakeup.sleep(self._pause_s)
                    continue
            if not self._may_claim():
                await asyncio.sleep(CALM_LOOK_S)
                continue
            await worker.tell_what_it_serves()
            rest = self._looked_at + LOOK_EVERY_S - self._loop.time()
            if self._claim is None and rest > 0 and not self._pools.wants():
                wakeup.forget()
                await wakeup.sleep(rest)
                continue
            if self._claim is None:
                self._begin_claim()
            assert self._claim is not None  # noqa: S101 - just begun, or by a ring
            try:
                claimed = await self._claim
            except StoreError as error:
                worker.kernel.telemetry.failed("claim")
                log.warning("claims fail", extra={"error": str(error), "worker": worker.id})
                if worker.lease is not None:
                    worker.lease.trouble()
                self._is_unsure = True
                await wakeup.sleep(min(self._pause_s, AGAIN_S))
                continue
            finally:
                self._claim = None
            if self._is_unsure:
                self._is_unsure = not await self._has_compared_leases()
            taken = len(claimed.claims)
            if executor.saturated and taken:
                continue
            if until_idle:
                if not taken and not self._looks_back:
                    self._look_back_at = 0.0
                elif not taken and await self._is_idle():
                    return
                continue
            await wakeup.sleep(self.until(claimed.next_at), on_ring=self._answer_ring)
        if self._claim is not None:
            # Begun by a ring just before the end: what it has leased is to be given back.
            await asyncio.wait([self._claim])

    async def compare_leases(self) -> None:
        """Find what a claim has leased although its answer never came: it may do so much later."""
        while True:
            await asyncio.sleep(COMPARE_EVERY_S)
            if not self._executor.lost:
                await self._has_compared_leases()

    def until(self, next_at: Instant | None) -> float:
        """Return how many seconds nothing will be due, as far as this worker knows."""
        if next_at is None:
            return self._pause_s
        return min(self._pause_s, max(0.0, (next_at - self._worker.now()) / 1e6))

    def _may_claim(self) -> bool:
        return self._worker.lease is None or self._worker.lease.is_calm()

    def _begin_claim(self) -> None:
        """Send a claim; what it leases begins as soon as it is known. With no place free it takes
        nothing, but learns what is asked of the jobs that run here."""
        self._wakeup.forget()
        self._looked_at = self._loop.time()
        self._executor.finished_since = False
        self._moved_before = self._worker.upkeep.moved
        self._looks_back = self._looked_at >= self._look_back_at
        wants = self._pools.wants(looks_back=self._looks_back)
        took = partial(self._took, wants)
        self._claim = self._worker.aside.run(self._store.claim, self.request(wants), then=took)

    def request(self, wants: tuple[Want, ...]) -> ClaimRequest:
        """Return the claim of this worker for so many jobs."""
        takes_suspects = all(r.row.lapses < SUSPECT_LAPSES for r in self._executor.running.values())
        return ClaimRequest(
            self._worker.id, wants, self._entries, takes_suspects, self._ageing_us, self._keeps
        )

    def _answer_ring(self) -> None:
        """A ring has come while nothing was to be done: do not wait until the loop comes round."""
        is_ending = self._executor.stopping or self._executor.lost
        if self._may_claim() and self._pools.wants() and not is_ending:
            self._begin_claim()

    def _took(self, wants: tuple[Want, ...], claimed: Claimed) -> None:
        self._worker.time.hear(claimed.now)
        took_s = self._loop.time() - self._looked_at
        self._executor.paused = claimed.paused
        if self._looks_back and all(names_stage(claim.row.lane) for claim in claimed.claims):
            self._look_back_at = self._loop.time() + LOOK_BACK_EVERY_S
        self._worker.take_claimed(claimed.claims, claimed.requests)
        self._executor.saturated = self._pools.is_saturated(wants, len(claimed.claims))
        self._worker.kernel.telemetry.claimed(claimed, took_s)

    async def _has_compared_leases(self) -> bool:
        """Give back the jobs that are leased to this worker and do not run here.

        They are of a claim that lost its answer; renewing, the worker would keep them for ever.
        Leases are read by the thread that claims, so that what it has claimed before is known here
        by the time the answer comes. A run that has ended since has moved its job's token.
        """
        worker_id, aside = self._worker.id, self._worker.aside
        try:
            rows = await aside.run(self._store.leased, worker_id)
            unknown = [row for row in rows if row.id not in self._executor.running]
            if unknown:
                await aside.run(self._worker.upkeep.give_back, worker_id, unknown)
        except StoreError as error:
            log.warning("leases could not be read", extra={"error": str(error)})
            return False
        return True

    async def _is_idle(self) -> bool:
        """Whether nothing runs and upkeep and relay find nothing to do either."""
        if self._executor.running:
            await self._executor.wait_for_one()
            return False
        if self._executor.finished_since:
            # What it left may have become due after the claim had looked.
            return False
        try:
            await self._worker.keeper.run(self._worker.upkeep.tick)
            sent = await self._worker.relay.send_once()
        except StoreError as error:
            log.warning("upkeep fails", extra={"error": str(error)})
            await self._wakeup.sleep(self._pause_s)
            return False
        return self._worker.upkeep.moved == self._moved_before and not sent


class Wakeup:
    """Sleeps until something may have become due: rung here, committed elsewhere, or by the time.
    Made on the loop that sleeps."""

    def __init__(self, store: Store, glance_s: float) -> None:
        self._store = store
        self._glance_s = glance_s
        self._loop = asyncio.get_running_loop()
        self._sleeper: asyncio.Future[bool] | None = None
        """Its result tells whether it was woken, or only the time has passed."""
        self._on_ring: Callable[[], None] | None = None
        self._is_awake = False
        self._rung = False

    def ring(self) -> None:
        """Wake the sleeper from any thread; a crowd of rings is one."""
        if not self._rung:
            self._rung = True
            call_on(self._loop, self._rung_here)

    def wake(self) -> None:
        self._is_awake = True
        self._stir(is_woken=True)

    def forget(self) -> None:
        """Forget every ring so far: the caller looks at the store next."""
        self._rung = False
        self._is_awake = False

    async def sleep(self, timeout_s: float, on_ring: Callable[[], None] | None = None) -> None:
        """Sleep until woken; glance at a shared store meanwhile, since its ring may be far away.
        A ring calls `on_ring` at once, before the sleeper has got up."""
        is_shared = self._store.features.shared
        glance = self._glance_s if is_shared else timeout_s
        deadline = self._loop.time() + timeout_s
        while not self._is_awake:
            left = deadline - self._loop.time()
            if left <= 0:
                return
            self._sleeper = self._loop.create_future()
            self._on_ring = on_ring
            alarm = self._loop.call_later(min(glance, left), self._stir)
            try:
                is_woken = await self._sleeper
            finally:
                alarm.cancel()
                self._on_ring = None
            # A ring may have been forgotten since, by what it has brought about.
            if is_woken or (is_shared and self._has_changed_elsewhere()):
                return

    def _rung_here(self) -> None:
        on_ring, self._on_ring = self._on_ring, None
        self.wake()
        if on_ring is not None:
            on_ring()

    def _stir(self, *, is_woken: bool = False) -> None:
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(is_woken)

    def _has_changed_elsewhere(self) -> bool:
        try:
            return self._store.changed_elsewhere()
        except StoreError:
            return True  # the claim that follows will say what is wrong


class Pools:
    """The places of one worker, by where stages run: on the loop, in threads, in processes.

    A queue whose resource has places of its own is a pool of its own, called `loop/QUEUE`; what
    stands before the stroke is where its stages run. At most `most` jobs are wanted for one.
    """

    def __init__(
        self,
        flows: Iterable[Flow[Any]],
        settings: WorkerSettings,
        resources: Iterable[Resource] = (),
        *,
        most: int | None = None,
    ) -> None:
        self._most = most
        few = _places_by_queue(resources)
        places = {"loop": settings.loop, "thread": settings.threads, "process": settings.processes}
        lanes_of: dict[str, list[str]] = {}
        self._free: dict[str, int] = {}
        for flow in flows:
            # Jobs that were stored by the release before stand in lanes that name no stage.
            for lane in sorted(flow.table.lanes | set(map(lane_before, flow.table.lanes))):
                queue, where, _ = lane.split("/", 2)
                if settings.serves(queue):
                    pool = f"{where}/{queue}" if queue in few else where
                    lanes_of.setdefault(pool, []).append(lane)
                    self._free[pool] = min(places[where], few.get(queue, places[where]))
        self.closed: Callable[[], Collection[str]] = frozenset
        """Returns the queues of which nothing may be taken now."""
        self._lanes = {pool: tuple(lanes) for pool, lanes in lanes_of.items()}
        self._named = {pool: tuple(filter(names_stage, lanes)) for pool, lanes in lanes_of.items()}
        self._pool_of = {lane: pool for pool, lanes in lanes_of.items() for lane in lanes}

    @property
    def lanes(self) -> list[str]:
        """Every lane that is served now."""
        closed = self.closed()
        return sorted(lane for lane in self._pool_of if queue_of(lane) not in closed)

    def find(self, lane: str) -> str | None:
        return self._pool_of.get(family_of(lane))

    def wants(self, *, looks_back: bool = True) -> tuple[Want, ...]:
        """Return what can be claimed now; with `looks_back`, also what an older release stored."""
        lanes = self._lanes if looks_back else self._named
        lanes = self._leave_out_closed(lanes)
        return tuple(
            Want(lanes[pool], min(free, self._most or free))
            for pool, free in self._free.items()
            if free > 0 and lanes[pool]
        )

    def is_saturated(self, wants: tuple[Want, ...], taken: int) -> bool:
        """Tell whether jobs may be waiting for a place after a claim has taken so many."""
        # A pool without a free place was not asked for: jobs may be waiting for it.
        open_pools = sum(map(bool, self._leave_out_closed(self._lanes).values()))
        if not wants:
            return open_pools > 0
        return len(wants) < open_pools or taken >= min(want.places for want in wants)

    def _leave_out_closed(self, lanes: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        """Return lanes without those of closed queues."""
        closed = self.closed()
        if not closed:
            return lanes
        return {
            pool: tuple(lane for lane in served if queue_of(lane) not in closed)
            for pool, served in lanes.items()
        }

    def take(self, lane: str) -> str:
        """Take a place for a job of this lane; return its pool."""
        pool = self._pool_of[family_of(lane)]
        self._free[pool] -= 1
        return pool

    def change(self, pool: str, lane: str) -> str | None:
        """Exchange a place for one where the next stage runs; None when none is free there."""
        other = self._pool_of.get(family_of(lane))
        if other is None or other == pool:
            return other
        if self._free[other] <= 0:
            return None
        self._free[other] -= 1
        self._free[pool] += 1
        return other

    def give_back(self, pool: str) -> None:
        """Free a place: the commit of what ran there is acknowledged."""
        self._free[pool] += 1


def _places_by_queue(resources: Iterable[Resource]) -> dict[str, int]:
    few: dict[str, int] = {}
    for resource in resources:
        if resource.queue is not None and resource.places is not None:
            few[resource.queue] = min(resource.places, few.get(resource.queue, resource.places))
    return few
