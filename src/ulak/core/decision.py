"""What a person decided at a gate, and when a person let a job go on."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class Decision(Generic[D]):
    """One recorded answer."""

    choice: str
    actor: str
    note: str
    at: datetime
    data: D


@dataclass(frozen=True, slots=True)
class PastAct:
    """An operator's release or retry of a job."""

    round: int
    """The round in which the job went on."""
    seq: int
    """The number of its line in the trail."""
    at: datetime
    actor: str
