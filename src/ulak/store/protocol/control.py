"""Flow control: what operators may change at any time."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from ulak.clock import Instant
from ulak.core.admission import StopRow
from ulak.core.policy import LimitTerms, RateTerms

NO_RATES: Final[Mapping[str, RateTerms]] = MappingProxyType({})


class SlotRow(NamedTuple):
    """One place of a limited stage, or of one key of it. A closed one is not given again."""

    limit: str
    n: int
    job_id: bytes | None
    closed: int
    of_state: int = 0
    """1 when its job keeps it until it leaves the busy state, leased or not."""


class LimitRow(NamedTuple):
    """How many runs of a stage there may be at once: of the stage, or of each key of it."""

    name: str
    """`flow/state`; the slots of a key are named `flow/state/key`, and so is the row of a key that
    has a limit of its own."""
    n: int
    """How many, now."""
    declared: int
    """How many the flow declares."""
    keyed: int
    actor: str | None
    """Who has set `n`; None while it is what the flow declares."""
    at: Instant
    """Since when it is `n`."""


class RateRow(NamedTuple):
    """How many tokens a bucket gets: that of a stage, or of each key of it."""

    name: str
    """`flow/state`; the bucket of a key is named `flow/state/key`."""
    n: int
    per_us: int
    burst: int
    """In force now: `n` tokens come in `per_us`, at most `burst` are kept."""
    declared_n: int
    declared_per_us: int
    declared_burst: int
    actor: str | None
    """Who has set the rate; None while it is what the flow declares."""
    at: Instant


class BucketRow(NamedTuple):
    """A bucket that is not full, or for which jobs are parked. One that has no row is full."""

    name: str
    level: int
    """In parts of a token: a token has `per_us` of them, and `n` come every microsecond."""
    filled_at: Instant
    """When the level was this."""
    ready_at: Instant | None
    """When the most urgent job parked on it can be paid; None when nobody is parked."""


class PauseRow(NamedTuple):
    """No job of this queue, flow or key is claimed until the end of the pause."""

    kind: str
    """`queue`, `flow` or `key`."""
    name: str
    until_at: Instant | None
    """When it ends by itself; None means never."""
    actor: str
    note: str | None
    at: Instant


class WeightRow(NamedTuple):
    """How many turns a tenant of fair flows has for each turn of others; without a row, one."""

    tenant: str
    weight: int
    actor: str
    at: Instant


class AuditRow(NamedTuple):
    """One act of an operator on limits, rates, pauses, weights, schedules or credentials,
    committed with the act."""

    position: int
    """Rises with every line; there may be gaps."""
    at: Instant
    actor: str
    act: str
    """`limit`, `rate`, `pause`, `resume`, `stop`, `accept` or `weight`; of credentials `created`,
    `revoked` ..."""
    subject: str
    """The limit, the rate or the tenant; a pause as `queue/...`, `flow/...` or `key/...`; a stop
    as `intake/FLOW/TENANT`; a credential as `credential/KIND/ID`."""
    note: str | None
    details: str
    """What it is now and what it was before, as JSON."""


class ControlStore(Protocol):
    """Limits, rates, pauses, weights, and the audit of what operators did."""

    def declare(
        self, limits: Mapping[str, LimitTerms], rates: Mapping[str, RateTerms] = NO_RATES
    ) -> None:
        """Take over what flows declare, except where an operator has set another value.

        A limit has exactly so many open slots; a lowered one closes and drains. A job in a closed
        slot still counts: no slot is given while as many jobs hold one, open or closed, as there
        are open slots. Of a keyed limit this holds for each key. A bucket keeps its tokens when
        its rate changes, as far as it can hold them. What is not named stays as it is.

        Where a limit counts the jobs in a busy state (`LimitTerms.busy`), those that stand there
        get slots, closed ones if there are too many, and those before it need one from now on.
        """

    def change_limit(
        self, name: str, n: int | None, *, actor: str, note: str, key: str | None = None
    ) -> LimitRow | None:
        """Set a limit, or with None go back to the declared one; audited.

        With `key`, set it for one key alone, whose row is named `flow/state/key`; with None that
        key has as many slots as the others again. Returns the limit as it is now, or None when
        there is none of this name, or none with keys.
        """

    def change_rate(
        self, name: str, terms: RateTerms | None, *, actor: str, note: str
    ) -> RateRow | None:
        """Set a rate, or with None go back to the declared one; audited.

        Returns the rate as it is now, or None when there is none of this name.
        """

    def pause(
        self, kind: str, name: str, *, until: Instant | None, actor: str, note: str
    ) -> PauseRow | None:
        """Let no job of a queue, a flow or a key be claimed until then, or until `resume`; audited.

        What runs goes on to the end of its stage. Returns the pause that this one replaces, or
        None when it was not paused.
        """

    def resume(self, kind: str, name: str, *, actor: str, note: str) -> PauseRow | None:
        """End a pause; audited. Returns what has ended, or None when it was not paused.

        A large crowd parked on a key is unparked by this and the claims that follow.
        """

    def weigh(self, tenant: str, weight: int | None, *, actor: str, note: str) -> int | None:
        """Give a tenant so many turns for each turn of others, None for one; audited.

        Returns the weight that it had, None for one.
        """

    def stop_accepting(self, stop: StopRow) -> StopRow | None:
        """Take no new jobs of a flow, and of a tenant or of all, until `accept`; audited.

        Returns the stop that this one replaces, or None.
        """

    def accept(self, flow: str, tenant: str, *, actor: str, note: str) -> StopRow | None:
        """End a stop; audited. Returns what has ended, or None when there was none."""

    def stops(self) -> list[StopRow]:
        """Return every stop, by flow and tenant."""

    def limits(self) -> list[LimitRow]:
        """Return every limit, by name."""

    def rates(self) -> list[RateRow]:
        """Return every rate, by name."""

    def buckets(self, name: str | None = None) -> list[BucketRow]:
        """Return every bucket that has a row, or the one of this name."""

    def pauses(self, *, over: bool = False) -> list[PauseRow]:
        """Return every pause that is not over, by kind and name; with `over`, those too that no
        claim has ended yet."""

    def weights(self) -> list[WeightRow]:
        """Return every weight that was set, by tenant."""

    def slots(self, limit: str | None = None) -> list[SlotRow]:
        """Return every slot, or those of one limit or key, by limit and number."""

    def audit_trail(
        self, *, subject: str | None = None, before: int | None = None, limit: int = 100
    ) -> list[AuditRow]:
        """Return what operators did, the latest first, below the position `before`."""
