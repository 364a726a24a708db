"""How long jobs are kept that have ended."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from ulak.clock import to_instant
from ulak.core.bounds import must_be_short
from ulak.engine.view import Job
from ulak.ids import from_text

if TYPE_CHECKING:
    from ulak.engine.kernel import Kernel


class Retention:
    """`engine.retention`: finds jobs that ended long ago, and removes them."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def ended(
        self, flow: str, state: str, *, before: datetime, after: str | None = None, limit: int = 100
    ) -> list[Job]:
        """Return finished jobs that came into this state of a flow before then, by id; `after` is
        the id of the last one of the page before. Reads no younger ones."""
        cursor = b"" if after is None else from_text(after)
        rows = self._kernel.open().store.ended(
            flow, state, before=to_instant(before), limit=limit, after=cursor
        )
        return [Job(row) for row in rows]

    def prune(
        self,
        *,
        ended_before: datetime,
        of: tuple[str, str] | None = None,
        limit: int = 500,
        actor: str = "",
        note: str = "",
    ) -> int:
        """Remove jobs that ended before then, with their trails; return how many, `limit` at most.

        Proofs stay, and so does a job that is still needed: one whose dedup key is kept until a
        date, or with messages that are not sent.

        Args:
            ended_before: Younger ones stay.
            of: Only those of a (flow, state).
            limit: How many at once; call again until fewer are answered.
            actor: Who removes them, for the audit; nobody writes no line.
            note: Why, for people.
        """
        before, note = to_instant(ended_before), must_be_short(note)
        store = self._kernel.open().store
        return store.prune(before=before, limit=limit, actor=actor, note=note, of=of)
