"""The job that follows the end of another, written in the same commit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ulak.clock import Instant
from ulak.core.job import JobRow, NewJob
from ulak.core.lifecycle import FINAL, Role

if TYPE_CHECKING:
    from ulak.core.flow import Flow


class EndJob(Protocol):
    """Makes the job that follows an end; `ulak.OnEnd` is one."""

    @property
    def target(self) -> Flow[Any]:
        """The flow of the job that follows."""

    def complaint(self) -> str | None:
        """Return what is wrong with the declaration, if anything is."""

    def make(self, ended: JobRow, now: Instant, *, commit_id: bytes) -> NewJob | None:
        """Make the job that follows this end, or None for none; whatever it raises, the job
        ends."""


def is_end(before: JobRow, after: JobRow) -> bool:
    """Tell whether a change ends a job: it comes into a final state in which it was not.

    A job that has ended and is migrated to another version of its flow does not end again.
    """
    if after.role not in FINAL or (after.state, after.role) == (before.state, before.role):
        return False
    return before.role not in FINAL or before.flow_version == after.flow_version


def complaints(
    flow: Flow[Any], moves: Mapping[str, Sequence[str]], roles: Mapping[str, Role]
) -> Iterator[str]:
    """Find what is wrong with the `on_end` that a flow declares."""
    if flow.on_end is None:
        return
    if not hasattr(flow.on_end, "complaint"):
        yield f"on_end={flow.on_end!r} cannot be used; write on_end=OnEnd(flow, payload=f)"
        return
    wrong = flow.on_end.complaint()
    if wrong is not None:
        yield wrong
    ends = {state for state, role in roles.items() if role in FINAL}
    for state in sorted(ends):
        reached, look = set[str](), {state}
        while look:
            look = {to for s in look for to in moves.get(s, ()) if to in ends} - reached
            reached |= look
        if state in reached:
            yield (
                f'on_end= submits once for each final state, and "{state}" can be entered again '
                "from another one; take that move away"
            )
            return
