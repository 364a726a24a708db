"""The arithmetic of flow control that every store shares: names, tokens, turns, lines of audit.

Pure: a store reads rows, asks here, and writes what it is told.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from types import MappingProxyType
from typing import Final, NamedTuple

from ulak.clock import Instant
from ulak.core.admission import StopRow
from ulak.core.job import OF_STATE, OF_UNDO, JobRow, flow_of, queue_of
from ulak.core.lifecycle import BUSY, READY, UNDOING
from ulak.core.policy import LimitTerms, RateTerms
from ulak.store.protocol import BucketRow, LimitRow, PauseRow, RateRow

QUEUE: Final = "queue"
FLOW: Final = "flow"
KEY: Final = "key"
PAUSABLE: Final = (QUEUE, FLOW, KEY)

ON_RATE: Final = "/rate/"
ON_KEY: Final = "/key/"
"""How `parked_on` begins for a bucket and for a paused key; no limit begins with a slash."""

LIMIT_CHANGED: Final = "limit"
RATE_CHANGED: Final = "rate"
PAUSED: Final = "pause"
RESUMED: Final = "resume"
WEIGHED: Final = "weight"
STOPPED: Final = "stop"
ACCEPTED: Final = "accept"

TURN: Final = 1_000_000
"""What a turn costs a tenant of weight 1: large, so that it can be divided by any weight."""
HEAVIEST: Final = 1_000

# A claim unparks no more jobs of one bucket, or of one pause that is over, in a transaction than
# this, a few milliseconds; the next claim goes on.
MOST_UNPARKED: Final = 500

# As many jobs get the slot that they need in one transaction when a limit is turned on over them.
MOST_ADOPTED: Final = 500


def stage_of(name: str) -> str:
    """Return the `flow/state` of a limit, a bucket or one of their keys."""
    return "/".join(name.split("/", 2)[:2])


def is_keyed(name: str) -> bool:
    """Tell whether this names one key of a limit or a rate."""
    return name.count("/") > 1


def keys_in(slot: str | None, rate: str | None) -> list[str]:
    """Return the keys that stop a job with this slot and bucket when they are paused."""
    if slot is not None and slot[0] == OF_UNDO:
        slot = None
    parts = [name.split("/", 2) for name in (slot, rate) if name is not None]
    return list(dict.fromkeys(p[2] for p in parts if len(p) > 2))


def parts_of_limit(name: str) -> tuple[str, str]:
    flow, _, state = name.partition("/")
    return flow, state


def adoption(name: str, terms: LimitTerms) -> dict[str, object]:
    """Return the parameters by which a store finds the jobs that such a limit takes over."""
    flow, source = parts_of_limit(name)
    return {
        "name": name, "flow": flow, "source": source, "busy": terms.busy, "mark": terms.mark,
        "keyed": terms.keyed, "most": MOST_ADOPTED,
    }  # fmt: skip


def slot_in(name: str, terms: LimitTerms, row: JobRow) -> str | None:
    """Return the slot that a job needs where a limit counts a busy state, None elsewhere."""
    flow, source = parts_of_limit(name)
    busy = terms.busy
    marks = {(source, READY): terms.mark, (busy, BUSY): OF_STATE, (busy, UNDOING): OF_UNDO}
    mark = marks.get((row.state, row.role))
    if row.flow != flow or mark is None:
        return None
    if not terms.keyed:
        return mark + name
    keys = {} if row.keys is None else json.loads(row.keys).get(source, {})
    return f"{mark}{name}/{keys.get('slot', '')}"


class Page(NamedTuple):
    """Which names upkeep looks at next, of those that jobs are parked on."""

    after: str
    is_rich: bool
    """Whether the last look found as many jobs to unpark as it may: then few names suffice."""

    def following(self, names: Sequence[str], most: int, *, is_rich: bool) -> Page:
        """Return the page after a look at these names, of which so many were wanted."""
        if is_rich:
            return Page(self.after, True)
        return Page(names[-1] if len(names) == most else "", False)


FIRST_PAGE: Final = Page("", False)


class Level(NamedTuple):
    """How much is in a bucket, in parts of a token, and when that was so."""

    parts: int
    at: Instant


def full(terms: RateTerms, now: Instant) -> Level:
    """Return the level of a bucket from which nobody has taken anything."""
    return Level(terms.burst * terms.per_us, now)


def fill(level: Level, terms: RateTerms, now: Instant) -> Level:
    """Return the level now. A clock that went back brings nothing and takes nothing."""
    if now <= level.at:
        return level
    capacity = terms.burst * terms.per_us
    return Level(min(capacity, level.parts + (now - level.at) * terms.n), now)


def price(cost: int, terms: RateTerms) -> int:
    """Return what a run takes, in parts: one that costs more than there can be takes all."""
    return min(cost, terms.burst) * terms.per_us


def payable_at(level: Level, parts: int, terms: RateTerms) -> Instant:
    """Return when the bucket, left alone, has so many parts."""
    lacking = max(0, parts - level.parts)
    return level.at + -(-lacking // terms.n)


def rescale(level: Level, before: RateTerms, after: RateTerms, now: Instant) -> Level:
    """Return the level of a bucket at a change of its rate: its tokens, if it can hold them."""
    parts = fill(level, before, now).parts * after.per_us // before.per_us
    return Level(min(parts, after.burst * after.per_us), max(now, level.at))


def terms_of(row: RateRow) -> RateTerms:
    return RateTerms(row.n, row.per_us, row.burst)


def declared_terms(row: RateRow) -> RateTerms:
    return RateTerms(row.declared_n, row.declared_per_us, row.declared_burst)


def declared_limit(known: LimitRow | None, name: str, terms: LimitTerms, now: Instant) -> LimitRow:
    """Return a limit that its flow declares so: what an operator has set stays."""
    new = LimitRow(name, terms.n, terms.n, int(terms.keyed), None, now)
    if known is not None and known.actor is not None:
        return new._replace(n=known.n, actor=known.actor, at=known.at)
    if known is not None and known.n == terms.n:
        return new._replace(at=known.at)
    return new


def changed_limit(known: LimitRow, n: int | None, actor: str, now: Instant) -> LimitRow:
    """Return a limit that an operator sets, or with None gives back to what is declared."""
    if n is None:
        return known._replace(n=known.declared, actor=None, at=now)
    return known._replace(n=n, actor=actor, at=now)


def limit_of_key(
    stage: LimitRow, key: str, n: int | None, actor: str, now: Instant
) -> LimitRow:  # fmt: skip
    """Return the limit of one key that an operator sets, or with None that of the stage again."""
    name, who = f"{stage.name}/{key}", None if n is None else actor
    return LimitRow(name, stage.n if n is None else n, stage.n, 1, who, now)


def declared_rate(known: RateRow | None, name: str, terms: RateTerms, now: Instant) -> RateRow:
    """Return a rate that its flow declares so: what an operator has set stays."""
    if known is not None and (known.actor is not None or terms_of(known) == terms):
        return known._replace(
            declared_n=terms.n, declared_per_us=terms.per_us, declared_burst=terms.burst
        )
    return RateRow(name, *terms, *terms, None, now)


def changed_rate(known: RateRow, terms: RateTerms | None, actor: str, now: Instant) -> RateRow:
    """Return a rate that an operator sets, or with None gives back to what is declared."""
    n, per_us, burst = declared_terms(known) if terms is None else terms
    who = None if terms is None else actor
    return known._replace(n=n, per_us=per_us, burst=burst, actor=who, at=now)


def rescaled(bucket: BucketRow, before: RateRow, after: RateRow, now: Instant) -> BucketRow:
    """Return a bucket at a change of its rate; the next claim finds out when it can pay."""
    held = Level(bucket.level, bucket.filled_at)
    level = rescale(held, terms_of(before), terms_of(after), now)
    return BucketRow(bucket.name, *level, None if bucket.ready_at is None else now)


def price_of_turn(weight: int) -> int:
    return TURN // weight


def open_lanes(lanes: Iterable[str], paused: Collection[tuple[str, str]]) -> tuple[str, ...]:
    """Leave out the lanes of queues and flows that are paused, each a (kind, name)."""
    return tuple(
        lane
        for lane in lanes
        if (QUEUE, queue_of(lane)) not in paused and (FLOW, flow_of(lane)) not in paused
    )


def is_over(pause: PauseRow, now: Instant) -> bool:
    return pause.until_at is not None and pause.until_at <= now


def outlasts(pause: PauseRow | None, until: Instant) -> bool:
    """Tell whether a pause lasts at least until then."""
    return pause is not None and (pause.until_at is None or pause.until_at >= until)


def limit_details(before: LimitRow, after: LimitRow) -> str:
    return _json({"n": after.n, "before": before.n, "declared": after.declared})


def rate_details(before: RateRow, after: RateRow) -> str:
    return _json(
        {
            "n": after.n, "per_us": after.per_us, "burst": after.burst,
            "before": list(terms_of(before)), "declared": list(declared_terms(after))
        }
    )  # fmt: skip


def pause_details(until: Instant | None, before: PauseRow | None) -> str:
    """Write until when something is paused, and until when it was before."""
    was = None if before is None else {"until_at": before.until_at, "actor": before.actor}
    return _json({"until_at": until, "before": was})


def stop_subject(flow: str, tenant: str) -> str:
    return f"intake/{flow}/{tenant}"


def stop_details(stop: StopRow | None, before: StopRow | None) -> str:
    """Write for how long callers are sent away, and for how long before; None for not at all."""
    now, was = (None if s is None else s.retry_after_us for s in (stop, before))
    return _json({"retry_after_us": now, "before": was})


def weight_details(weight: int | None, before: int | None) -> str:
    return _json({"weight": weight or 1, "before": before or 1})


def _json(facts: dict[str, object]) -> str:
    return json.dumps(facts, separators=(",", ":"))


Urgency = tuple[int, Instant, bytes]
"""Priority, date and id: the order in which jobs are unparked."""

ParkedJob = tuple[int, Instant, bytes, int]
"""The order of a job that is parked, and its cost."""


@dataclass(slots=True)
class Bucket:
    """How much is in it, and who waits for more."""

    terms: RateTerms
    level: Level
    ready_at: Instant | None
    first: Urgency | None
    """The most urgent of those who are parked on it."""
    cost: int
    has_changed: bool = False

    def can_pay(self, cost: int, order: Urgency) -> bool:
        """Tell whether there are tokens for a run, and nobody more urgent is parked here."""
        if self.level.parts < price(cost, self.terms):
            return False
        return self.first is None or order < self.first

    def pay(self, cost: int) -> None:
        left = self.level.parts - price(cost, self.terms)
        self.level = Level(left, self.level.at)
        self.has_changed = True

    def park(self, cost: int, order: Urgency) -> None:
        if self.first is None or order < self.first:
            self.first, self.cost = order, cost
        self.look_after()

    def look_after(self) -> None:
        """Say when the first of those who are parked can be paid."""
        self.ready_at = None
        self.has_changed = True
        if self.first is not None:
            parts = price(self.cost, self.terms)
            self.ready_at = payable_at(self.level, parts, self.terms)

    def let_go(self, parked: Iterable[ParkedJob]) -> int:
        """Return how many jobs parked here can be paid now; their own claims take the tokens."""
        left, unparked = self.level, 0
        self.ready_at = self.first = None
        self.has_changed = True
        for priority, not_before, job_id, cost in parked:
            parts = price(cost, self.terms)
            if left.parts < parts or unparked >= MOST_UNPARKED:
                self.first, self.cost = (priority, not_before, job_id), cost
                self.ready_at = payable_at(left, parts, self.terms)
                break
            left = Level(left.parts - parts, left.at)
            unparked += 1
        return unparked


class Buckets:
    """The buckets that one claim has to do with, each read once."""

    def __init__(self) -> None:
        self._open: dict[str, Bucket | None] = {}

    def _find(self, name: str) -> Bucket | None:
        return self._open[name]

    def can_pay(self, name: str, cost: int, order: Urgency) -> bool:
        bucket = self._find(name)
        return bucket is not None and bucket.can_pay(cost, order)

    def pay(self, name: str, cost: int) -> None:
        bucket = self._find(name)
        if bucket is not None:
            bucket.pay(cost)

    def park(self, name: str, cost: int, order: Urgency) -> None:
        bucket = self._find(name)
        if bucket is not None:
            bucket.park(cost, order)

    def look_after(self, name: str) -> None:
        bucket = self._find(name)
        if bucket is not None and bucket.ready_at is None:
            bucket.look_after()

    def _changed(self) -> list[tuple[str, int, Instant, Instant | None]]:
        """Return the rows of the buckets that have changed, by name."""
        return [
            (name, *bucket.level, bucket.ready_at)
            for name, bucket in sorted(self._open.items(), key=itemgetter(0))
            if bucket is not None and bucket.has_changed
        ]


def open_bucket(
    terms: RateTerms,
    stored: tuple[int, Instant, Instant | None] | None,
    head: ParkedJob | None,
    now: Instant,
) -> Bucket:
    """Make a bucket of its row - level, date and when it is ready - and of the first who waits."""
    level, ready_at = full(terms, now), None
    if stored is not None:
        level, ready_at = fill(Level(stored[0], stored[1]), terms, now), stored[2]
    if head is None:
        return Bucket(terms, level, ready_at, None, 0)
    return Bucket(terms, level, ready_at, head[:3], head[3])


Pair = tuple[str, str]
Stops = Mapping[Pair, StopRow]
NO_STOPS: Final[Stops] = MappingProxyType({})
