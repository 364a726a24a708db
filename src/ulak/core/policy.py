"""What a flow may declare about retries, limits and sameness, as plain values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from enum import Enum
from typing import Any, Final, Literal, NamedTuple
from zlib import crc32

from ulak.clock import Duration, duration_complaint, micros


@dataclass(frozen=True, slots=True)
class Backoff:
    """How often, and how long after each failure, a stage is tried again.

    `Backoff(3)` tries three more times, after about 1, 2 and 4 seconds; `Backoff(delays=[...])`
    names each delay. The jitter is drawn from the job's id, so that a decision can be replayed.

    Args:
        retries: How many more attempts after the first.
        first: The delay before the first retry.
        factor: By how much each delay exceeds the one before it.
        longest: No delay is longer, jitter aside.
        jitter: The share by which a delay may be longer, so that a crowd does not return at once;
            "full" draws every delay from nothing up to its whole length.
        delays: The delays themselves, instead of all of the above; no jitter is added.
    """

    retries: int = 3
    _: KW_ONLY
    first: Duration = timedelta(seconds=1)
    factor: float = 2.0
    longest: Duration = timedelta(minutes=15)
    jitter: float | Literal["full"] = 0.1
    delays: Sequence[Duration] | None = None

    def limit(self) -> int:
        """Return how many retries there are."""
        return self.retries if self.delays is None else len(self.delays)

    def delay_us(self, failures: int, job_id: bytes) -> int | None:
        """Return the wait after this many failures, or None when there are no more retries."""
        if failures > self.limit():
            return None
        if self.delays is not None:
            return micros(self.delays[failures - 1])
        longest = micros(self.longest)
        try:
            base = min(micros(self.first) * self.factor ** (failures - 1), longest)
        except OverflowError:  # 2.0 ** 2000 is an error, not a long time
            base = longest
        draw = crc32(job_id + failures.to_bytes(4, "big")) / 0xFFFFFFFF
        if self.jitter == "full":
            return int(base * draw)
        return int(base * (1 + self.jitter * draw))


def as_backoff(value: int | Backoff) -> Backoff:
    """Read `retry=3` as `Backoff(3)`."""
    return Backoff(value) if isinstance(value, int) else value


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `n` runs of a stage at once, over every worker of the store.

    With `of="state"` at most `n` jobs stand in the busy state of the stage (`during=`). A job
    keeps its slot until it leaves that state: through a retry, a lost worker and a drain too.

    Args:
        key: Makes a text from the payload; then there are `n` for each of these texts.
        of: "run" limits the runs of the stage, "state" the jobs in its busy state.
    """

    n: int
    _: KW_ONLY
    key: Callable[[Any], str] | None = None
    of: Literal["run", "state"] = "run"


LARGEST_BUCKET: Final = 2**62
"""In parts of a token: what every store can count without an overflow."""


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `n` runs of a stage in every `per`, over every worker of the store.

    A bucket holds up to `burst` tokens and fills at that pace; every run takes its `cost` from
    it, a retry and a rescue too, because the outside sees a call each time.

    Args:
        n: How many tokens come in every `per`.
        burst: How many tokens the bucket holds, by default `n`.
        key: Makes a text from the payload; then there is a bucket for each of these texts.
        cost: The tokens of a run, or what makes their number from the payload.
    """

    n: int
    _: KW_ONLY
    per: Duration
    burst: int | None = None
    key: Callable[[Any], str] | None = None
    cost: int | Callable[[Any], int] = 1

    def complaint(self) -> str | None:
        """Return what is wrong with the numbers, if anything is."""
        wrong = duration_complaint(self.per)
        if wrong is not None:
            return f"a Rate with a wrong per=: {wrong}"
        n, per_us, burst = self.terms()
        if n < 1 or burst < 1 or per_us < 1:
            return f"{self._said()}; n, per and burst must be more than nothing"
        if isinstance(self.cost, int) and not 0 < self.cost <= burst:
            return f"{self._said()} with cost={self.cost}; a run costs 1 to burst={burst} tokens"
        if burst * per_us > LARGEST_BUCKET:
            return f"{self._said()}; its bucket is too large to be counted, lower burst= or per="
        return None

    def _said(self) -> str:
        return f"Rate({self.n}, per={self.per}, burst={self.burst})"

    def terms(self) -> RateTerms:
        """Return the rate as a store keeps it."""
        burst = self.n if self.burst is None else self.burst
        return RateTerms(self.n, micros(self.per), burst)


class LimitTerms(NamedTuple):
    """A limit as a store keeps it."""

    n: int
    keyed: bool = False
    busy: str | None = None
    """The state of which there may be so many jobs; None when runs are limited."""
    mark: str = ""
    """What stands before the slot of a job that has not entered that state (`JobRow.slot`)."""


class RateTerms(NamedTuple):
    """A rate as a store keeps it: `n` tokens come in `per_us`, at most `burst` are kept."""

    n: int
    per_us: int
    burst: int


class Until(Enum):
    """How long a dedup key keeps its job the only one."""

    FINISHED = "finished"
    """Until the job ends, well or badly."""
    FAILED_FOR_GOOD = "failed-for-good"
    """Until the job has ended and no operator could retry it: it failed for good, its retries are
    spent, it was cancelled, or it has expired. A job that succeeded keeps its key."""
    FORGOTTEN = "forgotten"
    """Until `keep` has passed or the job is pruned, however it ended."""


@dataclass(frozen=True, slots=True)
class Dedup:
    """The same submission makes the same job.

    Args:
        key: Makes the key from the payload; the default is the payload itself, canonically.
        until: When the key is free again: an `Until`, or the final states that free it.
        keep: The key may be taken over this long after the submit, whatever became of the job.
    """

    key: Callable[[Any], str] | None = None
    _: KW_ONLY
    until: Until | Sequence[str] = Until.FINISHED
    keep: Duration | None = None


class Submitter(Enum):
    """A stand-in for the person who submitted the job."""

    SUBMITTER = "submitter"


SUBMITTER: Final = Submitter.SUBMITTER
