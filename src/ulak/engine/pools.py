"""Which lanes a worker serves, and how many places it has free for their stages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ulak.core.flow import Flow
from ulak.core.job import family_of, lane_before, names_stage
from ulak.engine.ports import Resource, WorkerSettings
from ulak.store.protocol import Want


class Pools:
    """The places of one worker, by where stages run: on the loop, in threads, in processes.

    A queue whose resource has places of its own is a pool of its own, called `loop/QUEUE`; what
    stands before the stroke is where its stages run.
    """

    def __init__(
        self,
        flows: Iterable[Flow[Any]],
        settings: WorkerSettings,
        resources: Iterable[Resource] = (),
    ) -> None:
        places = {
            "loop": settings.loop,
            "thread": settings.threads,
            "process": settings.processes,
        }
        few = _places_by_queue(resources)
        self._lanes = _lanes_by_pool(flows, settings, few)
        self._named = {
            pool: tuple(filter(names_stage, lanes)) for pool, lanes in self._lanes.items()
        }
        self._free = {pool: _places(pool, places, few) for pool in self._lanes}
        self._pool_of = {lane: pool for pool, lanes in self._lanes.items() for lane in lanes}

    @property
    def lanes(self) -> list[str]:
        """Every lane that is served, in a stable order."""
        return sorted(self._pool_of)

    def find(self, lane: str) -> str | None:
        """Return the pool of a lane, or None when it is not served here."""
        return self._pool_of.get(family_of(lane))

    def wants(self, *, looks_back: bool = True) -> tuple[Want, ...]:
        """Return what can be claimed now.

        Args:
            looks_back: Whether to ask for jobs that the release before has stored, too.
        """
        lanes = self._lanes if looks_back else self._named
        return tuple(Want(lanes[pool], free) for pool, free in self._free.items() if free > 0)

    def is_saturated(self, wants: tuple[Want, ...], taken: int) -> bool:
        """Tell whether jobs may be waiting for a place after a claim has taken so many."""
        # A pool without a free place was not asked for: jobs may be waiting for it.
        some_pool_is_full = not wants or len(wants) < len(self._lanes)
        return some_pool_is_full or taken >= min(want.places for want in wants)

    def take(self, lane: str) -> str:
        """Take a place for a job of this lane; answer its pool."""
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
    """Return how many jobs of a queue its resources can serve at once: the narrowest decides."""
    few: dict[str, int] = {}
    for resource in resources:
        if resource.queue is not None and resource.places is not None:
            few[resource.queue] = min(resource.places, few.get(resource.queue, resource.places))
    return few


def _lanes_by_pool(
    flows: Iterable[Flow[Any]], settings: WorkerSettings, few: Mapping[str, int]
) -> dict[str, tuple[str, ...]]:
    pools: dict[str, list[str]] = {}
    for flow in flows:
        # Jobs that were stored by the release before stand in lanes that name no stage.
        for lane in sorted(flow.table.lanes | set(map(lane_before, flow.table.lanes))):
            queue, pool, _ = lane.split("/", 2)
            if settings.serves(queue):
                pools.setdefault(f"{pool}/{queue}" if queue in few else pool, []).append(lane)
    return {pool: tuple(lanes) for pool, lanes in pools.items()}


def _places(pool: str, places: Mapping[str, int], few: Mapping[str, int]) -> int:
    where, _, queue = pool.partition("/")
    return min(places[where], few[queue]) if queue else places[where]
