"""What a person decided at a gate."""

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
