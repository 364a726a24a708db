"""The declared machine of a flow: its states, its moves, and what the engine may do in each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Final, Literal

Role = Literal[
    "ready", "busy", "waiting", "held", "undoing", "failed", "done", "expired", "cancelled"
]

READY: Final = "ready"
BUSY: Final = "busy"
WAITING: Final = "waiting"
HELD: Final = "held"
UNDOING: Final = "undoing"
FAILED: Final = "failed"
DONE: Final = "done"
EXPIRED: Final = "expired"
CANCELLED: Final = "cancelled"

ROLES: Final = (READY, BUSY, WAITING, HELD, UNDOING, FAILED, DONE, EXPIRED, CANCELLED)
CLAIMABLE: Final = frozenset({READY, BUSY, UNDOING})
FINAL: Final = frozenset({FAILED, DONE, EXPIRED, CANCELLED})


@dataclass(frozen=True, slots=True)
class Same:
    """Back to where the job stood when it was held or failed."""

    def __repr__(self) -> str:
        return "SAME"


SAME: Final = Same()

Target = str | Same


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """The table of one flow: the user's words, and every move between them.

    `moves` says what the flow itself does. Besides, every unfinished state may move to `held`,
    `failed`, `cancelled` and `expired`, a held job to `release_to`, a failed one to `retry_to`;
    those need no line in the table.

    Args:
        initial: Where a new job stands.
        moves: For each state, the states that may follow it.
        done: The final state, or states, of a job that succeeded.
        held: Where a fault that a person must look at stops a job.
        failed: Where a job that gave up ends.
        expired: Where a job ends whose time has run out. It may be the failed state: such a job has
            failed for good, with the code `expired`.
        cancelled: Where a cancelled job ends. It may be the expired or the failed state: then its
            code is `cancelled`, and in the failed state it has failed for good.
        undoing: A state of its own for a job whose undos run; without it the job keeps its state.
        undone: Where a job that gave up ends instead of `failed` once its undos have run.
        release_to: Where an operator's release sends a held job.
        retry_to: Where an operator's retry sends a failed job; the default is `SAME`, or the
            initial state in a flow with undos.
    """

    initial: str
    moves: Mapping[str, Iterable[str]]
    _: KW_ONLY
    done: str | Iterable[str] = "done"
    held: str = "held"
    failed: str = "failed"
    expired: str = "expired"
    cancelled: str = "cancelled"
    undoing: str | None = None
    undone: str | None = None
    release_to: Target = SAME
    retry_to: Target | None = None

    def done_states(self) -> tuple[str, ...]:
        """Return the states that mean success, in the order they were declared."""
        return (self.done,) if isinstance(self.done, str) else tuple(self.done)


def moves_of(life: Lifecycle) -> dict[str, tuple[str, ...]]:
    """Return the declared moves; a single state may be written without its list."""
    return {
        state: (ways,) if isinstance(ways, str) else tuple(ways)
        for state, ways in life.moves.items()
    }


def ends_of(life: Lifecycle) -> frozenset[str]:
    """Return the states to which every unfinished one may move without a line in the table."""
    named = (life.held, life.failed, life.expired, life.cancelled, life.undoing, life.undone)
    return frozenset(s for s in named if s is not None)


def named_roles(life: Lifecycle) -> dict[str, Role]:
    """Return the states that have their role by name."""
    roles: dict[str, Role] = dict.fromkeys(life.done_states(), DONE)
    # A flow may have one state for cancelled and expired jobs, or its failed state for either.
    roles |= {life.cancelled: CANCELLED, life.expired: EXPIRED, life.failed: FAILED}
    roles[life.held] = HELD
    if life.undone is not None:
        roles[life.undone] = FAILED
    return roles


def states_of(life: Lifecycle) -> list[str]:
    """Return every state, in the order in which the table first names it."""
    named = [life.initial]
    for state, ways in moves_of(life).items():
        named += [state, *ways]
    return list(dict.fromkeys([*named, *life.done_states(), *sorted(ends_of(life))]))
