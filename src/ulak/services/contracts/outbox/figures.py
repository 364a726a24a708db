"""How the outbox stands: figures that are read from the store, so that every process sees the
same, and the limits within which the remote can be relied on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from typing import Final

from ulak import Engine
from ulak.kit.clock import micros, to_datetime
from ulak.services.contracts.ledger import HANDLER, SCHEMA
from ulak.tables import Tables

WINDOW: Final = timedelta(minutes=5)
"""The attempts of how long count for latency and errors: as long as an event may be late."""


@dataclass(frozen=True, slots=True)
class Figures:
    """How the outbox stands now."""

    _: KW_ONLY
    backlog: int = 0
    """Events that are to be sent and were not yet."""
    oldest: timedelta = timedelta()
    """How long the oldest of them has been waiting."""
    dead: int = 0
    rejected: int = 0
    drift: int = 0
    """Events that the remote has judged otherwise, ever."""
    attempted: int = 0
    """Events that were attempted within the window."""
    failed: int = 0
    """Those of them of which an attempt within the window failed."""
    p95: timedelta | None = None
    """How long the remote took for the last attempts; None without any."""
    p99: timedelta | None = None

    @property
    def error_rate(self) -> float:
        """The share of the events that were attempted of which an attempt failed."""
        return self.failed / self.attempted if self.attempted else 0.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Each figure must stay below its limit."""

    _: KW_ONLY
    backlog: int = 100
    oldest: timedelta = timedelta(minutes=5)
    dead: int = 1
    p95: timedelta = timedelta(milliseconds=300)
    p99: timedelta = timedelta(milliseconds=800)
    error_rate: float = 0.001

    def exceeded(self, figures: Figures) -> list[str]:
        """Say which limits are exceeded, a sentence each."""
        return list(self._each(figures))

    def _each(self, figures: Figures) -> Iterator[str]:
        if figures.backlog >= self.backlog:
            yield f"backlog: {figures.backlog} events wait, fewer than {self.backlog} may"
        if figures.oldest >= self.oldest:
            yield (
                f"oldest: an event has been waiting for {figures.oldest.total_seconds():.0f} s, "
                f"less than {self.oldest.total_seconds():.0f} s are allowed"
            )
        if figures.dead >= self.dead:
            yield f"dead: {figures.dead} events are dead, fewer than {self.dead} may be"
        for name, took, most in (
            ("p95", figures.p95, self.p95),
            ("p99", figures.p99, self.p99),
        ):
            if took is not None and took >= most:
                yield f"{name}: the remote takes {_ms(took)} ms, less than {_ms(most)} are allowed"
        if figures.error_rate >= self.error_rate:
            yield (
                f"errors: {figures.failed} of {figures.attempted} events failed, "
                f"less than {self.error_rate:.1%} may"
            )


_DRIFT: Final = "SELECT count(*) FROM {schema}.hos_outbox_attempts WHERE drift IS NOT NULL"
_ATTEMPTED: Final = """
SELECT count(*), count(CASE WHEN failed_at > ? THEN 1 END) FROM {schema}.hos_outbox_attempts
WHERE attempted_at > ?
"""
_RANKED: Final = """
SELECT duration_us FROM {schema}.hos_outbox_attempts WHERE attempted_at > ?
ORDER BY duration_us LIMIT 1 OFFSET ?
"""


def read(engine: Engine) -> Figures:
    """Read how the outbox stands.

    Raises:
        StoreError: the store cannot be asked.
    """
    tables = Tables(engine, SCHEMA)
    now = tables.now
    since = now - micros(WINDOW)
    counts = {each.state: each for each in engine.outbox.counts() if each.handler == HANDLER}
    waiting = counts.get("pending") or counts.get("unhandled")
    with tables.reading() as connection:
        ((drift,),) = tables.execute(connection, _DRIFT)
        ((attempted, failed),) = tables.execute(connection, _ATTEMPTED, since, since)

        def percentile(percent: int) -> timedelta | None:
            """Return the nearest rank: the smallest that so many do not exceed."""
            if not attempted:
                return None
            rank = -(-attempted * percent // 100)
            ((duration,),) = tables.execute(connection, _RANKED, since, rank - 1)
            return timedelta(microseconds=duration)

        p95, p99 = percentile(95), percentile(99)
    return Figures(
        backlog=waiting.deliveries if waiting else 0,
        oldest=to_datetime(now) - waiting.oldest_at if waiting else timedelta(),
        dead=counts["dead"].deliveries if "dead" in counts else 0,
        rejected=counts["refused"].deliveries if "refused" in counts else 0,
        drift=drift,
        attempted=attempted,
        failed=failed,
        p95=p95,
        p99=p99,
    )


def _ms(span: timedelta) -> str:
    return f"{span.total_seconds() * 1000:.0f}"
