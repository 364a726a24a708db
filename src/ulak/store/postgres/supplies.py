"""What the runs of a claim need besides a lease: slots and tokens."""

from __future__ import annotations

from collections.abc import Sequence

from ulak.core.job import wanted_slot
from ulak.store.flow_control import ON_KEY, ON_RATE, keys_in
from ulak.store.in_turn import Candidate
from ulak.store.postgres import slots
from ulak.store.postgres.connections import Transaction
from ulak.store.postgres.tokens import Buckets

# A claim that finds a crowd before one slot parks no more of it than this in one transaction; the
# next claim goes on.
MOST_PARKED = 500


class Supplies:
    """What the runs of a claim need: slots and tokens, held for those who will run.

    Limits and buckets are taken hold of in their order, before anything is taken from them. Of the
    slots no more are locked than are wanted, since whoever else looks for one skips them.
    """

    def __init__(self, t: Transaction, buckets: Buckets, paused_keys: set[str]) -> None:
        self._t = t
        self._buckets = buckets
        self._paused_keys = paused_keys
        self._free: dict[str, int] = {}
        """How many more may run under a limit, as far as it was looked at."""
        self._held: dict[str, int] = {}
        """How many slots of a limit are locked here, given or not."""
        self._slots: dict[str, list[int]] = {}
        """Those that are not given yet."""
        self.taken: list[tuple[str, int, bytes]] = []
        """Limit, number and job of every slot that was given."""
        self.parked: list[tuple[bytes, str]] = []
        """Those who lacked something, and what."""

    def bring(self, found: Sequence[Candidate], places: int) -> None:
        """Fetch what the first of these need that fill the places."""
        self._buckets.hold(c.rate for c in found if c.rate is not None)
        wants = {slot for c in found if (slot := wanted_slot(c.slot)) is not None}
        limits = wants - self._free.keys()
        if limits:
            self._free |= slots.free_of(self._t.db, limits)
            wanted = dict.fromkeys(sorted(limits), 0)
            for candidate in found:
                if places <= 0:
                    break
                limit = wanted_slot(candidate.slot)
                if limit in wanted and not self._paused_key(candidate):
                    if wanted[limit] == self._free[limit]:
                        continue
                    wanted[limit] += 1
                places -= 1
            self._slots |= slots.find_free(self._t.db, wanted)
            self._held |= {limit: len(self._slots[limit]) for limit in limits}

    def supply(self, candidate: Candidate) -> bool:
        """Give a run its slot and its tokens, or neither, and remember what it lacks."""
        slot, rate = wanted_slot(candidate.slot), candidate.rate
        lack = self._lack(candidate)
        if lack is not None:
            self.parked.append((candidate.id, lack))
            return False
        if rate is not None:
            self._buckets.pay(rate, candidate.cost)
        if slot is not None:
            self.taken.append((slot, self._slots[slot].pop(0), candidate.id))
        return True

    def _lack(self, candidate: Candidate) -> str | None:
        slot, rate = wanted_slot(candidate.slot), candidate.rate
        key = self._paused_key(candidate)
        if key is not None:
            return ON_KEY + key
        if slot is not None and not self._has_slot(slot):
            return slot
        if rate is not None:
            order = (candidate.priority, candidate.not_before, candidate.id)
            if not self._buckets.can_pay(rate, candidate.cost, order):
                self._buckets.park(rate, candidate.cost, order)
                return ON_RATE + rate
        return None

    def _has_slot(self, limit: str) -> bool:
        """Tell whether there is a slot to give; one that was not thought to be wanted is locked."""
        if not self._slots[limit] and self._held[limit] < self._free[limit]:
            given = {n for name, n, _ in self.taken if name == limit}
            more = slots.find_free(self._t.db, {limit: self._held[limit] + 1})[limit]
            self._slots[limit] = [n for n in more if n not in given]
            # Those who were faster have taken the rest: it is looked for once.
            self._held[limit] = len(more) if self._slots[limit] else self._free[limit]
        return bool(self._slots[limit])

    def _paused_key(self, candidate: Candidate) -> str | None:
        if not self._paused_keys:
            return None
        keys = keys_in(candidate.slot, candidate.rate)
        return next((key for key in keys if key in self._paused_keys), None)

    def parked_many(self) -> bool:
        """Tell whether so many lacked something that the next claim should go on."""
        return len(self.parked) >= MOST_PARKED
