"""Delivery of plans to the saw through its drop folder: at most once each, and followed to its
answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from ulak import Engine, Run
from ulak.kit.clock import Instant
from ulak.tables import Tables

__all__ = ["Deliveries", "Delivery", "PlanFile"]


@dataclass(frozen=True, slots=True)
class PlanFile:
    """The plan of one batch, as it was checked."""

    batch: int
    path: Path
    sha256: str


@dataclass(frozen=True, slots=True)
class Delivery:
    """One file that was meant for the saw, as its row says."""

    batch: int
    n: int
    """Rises with each delivery of this batch, from 1."""
    round: int
    file_name: str
    temporary: str
    sha256: str
    state: str
    """`intent`, `acked`, `failed`, `withdrawn`, or `unknown` while a person must look."""
    intent_at: Instant
    ended_at: Instant | None


class Deliveries:
    """The deliveries of all jobs."""

    def __init__(self, engine: Engine, tables: Tables) -> None:
        self._engine = engine
        self._tables = tables

    def find(self, job_id: str) -> list[Delivery]:
        """Return the deliveries of a job, by batch and in their order."""
        raise NotImplementedError

    async def deliver(
        self, run: Run[Any], plans: Sequence[PlanFile], folder: Path, *,
        deadline: datetime, poll_s: float,
    ) -> list[Delivery]:  # fmt: skip
        """Deliver each plan that has not been acknowledged and wait until the saw has acknowledged
        all of them; return the acknowledged deliveries, by batch.

        Resumes what an earlier attempt began. A drop folder that cannot be reached is tried again
        until the deadline, which is by the store's clock. Writes the notes of the trail itself.

        Raises:
            CuttingError: E_OSI_ACK_FAILED, E_OSI_ACK_TIMEOUT; E_UNKNOWN: a plan file is gone or
                has changed since it was checked.
            HoldCode: E_OSI_STATE_UNKNOWN.
            Stopped: the run must end; nothing is lost by it.
        """
        raise NotImplementedError

    def withdraw(self, job_id: str, folder: Path) -> list[Delivery]:
        """Take what was not yet cut of an ended job out of the inbox, and keep runners that lag
        behind from putting anything there. Return the deliveries as they stand then; safe to
        repeat. Raises `OSError`: the drop folder cannot be reached."""
        raise NotImplementedError

    def sweep(self, folder: Path, older_than: timedelta) -> int:
        """Remove what dead runners have left in the inbox; return how many files that were."""
        raise NotImplementedError
