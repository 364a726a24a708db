"""Delivery of plans to the saw through its drop folder: at most once each, followed to its answer.

A plan is written into `inbox/` under a temporary name, its row of intent is stored, and then the
file is renamed. Of any number of runners, also of those that have lost their lease, exactly one
stores the row and exactly one renames. A file is taken back by a rename too, so that either the saw
has it or we do. What cannot be told is held for a person, and nothing is sent again meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

from ulak import Engine, Run, Stopped
from ulak.kit import FaultSteps
from ulak.kit.clock import Instant, to_instant
from ulak.kit.files import TEMPORARY, is_there, open_file, rename_once, write_atomically
from ulak.kit.threads import Aside, poll
from ulak.services.cutting.codes import CuttingError, HoldCode
from ulak.tables import Tables

INBOX, PROCESSED, FAILED = FOLDERS = ("inbox", "processed", "failed")
INTENT, ACKED, WITHDRAWN, UNKNOWN = "intent", "acked", "withdrawn", "unknown"
NOTES: Final = {
    INTENT: "cutting.delivery-intent", ACKED: "cutting.ack", WITHDRAWN: "cutting.withdrawn"
}  # fmt: skip
ASIDE: Final = ".withdrawn"
"""How a file ends that was taken back; the saw takes `.xml` alone."""
step: Final = FaultSteps("cutting.delivery")
THREADS: Final = 16  # a guess; where the share hangs, all of them may
_CHUNK: Final = 1 << 20

_COLUMNS: Final = "batch_n, n, round, file_name, temporary, sha256, state, intent_at, ended_at"
_FIND: Final = f"""
SELECT {_COLUMNS} FROM {{schema}}.cutting_deliveries
WHERE job_id = ? ORDER BY batch_n, n"""  # noqa: S608 - names of ours
_INSERT: Final = f"""
INSERT INTO {{schema}}.cutting_deliveries (job_id, {_COLUMNS})
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING n"""  # noqa: S608 - as above
_END: Final = """
UPDATE {schema}.cutting_deliveries SET state = ?, ended_at = ?
WHERE job_id = ? AND batch_n = ? AND n = ? AND state = ? RETURNING n"""
_BATCHES: Final = "SELECT n FROM {schema}.cutting_batches WHERE job_id = ? ORDER BY n"


@dataclass(frozen=True, slots=True)
class PlanFile:
    """The plan of one batch, as it was checked."""

    batch: int
    path: Path
    sha256: str


@dataclass(frozen=True, slots=True)
class Delivery:
    """One file that was meant for the saw, the nth of its batch, as its row says."""

    batch: int
    n: int
    round: int
    file_name: str
    temporary: str
    """Its name before it is placed; '' of a row that only keeps a delivery from coming."""
    sha256: str
    state: str
    """`intent`, `acked`, `failed`, `withdrawn`, or `unknown` while a person must look."""
    intent_at: Instant
    ended_at: Instant | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """The details of its lines in the trail."""
        return {"batch": self.batch, "file_name": self.file_name, "sha256": self.sha256}


@dataclass(slots=True)
class _Attempt:
    """What one run knows of the deliveries of its job; one thread at a time has it."""

    job_id: str
    round: int
    plans: Sequence[PlanFile]
    folder: Path
    approved_at: Instant
    """When a person has last let such a job go on although nobody knew what was cut."""
    followed: dict[int, Delivery] = field(default_factory=dict)
    rows: dict[tuple[int, int], Delivery] = field(default_factory=dict)
    noted: set[tuple[str, str]] = field(default_factory=set)

    def keep(self, row: Delivery) -> Delivery:
        self.rows[row.batch, row.n] = row
        return row


class Deliveries:
    """The deliveries of all jobs."""

    def __init__(self, engine: Engine, tables: Tables) -> None:
        self._engine, self._tables = engine, tables
        self._threads = Aside("cutting-share", THREADS, at_once=False)

    def find(self, job_id: str, batch: int | None = None) -> list[Delivery]:
        """Return the rows of a job, or of a batch of it, in their order."""
        rows = (Delivery(*row) for row in self._tables.read(_FIND, job_id))
        return [row for row in rows if batch in (None, row.batch)]

    async def deliver(
        self, run: Run[Any], plans: Sequence[PlanFile], folder: Path, *,
        deadline: datetime, poll_s: float,
    ) -> list[Delivery]:  # fmt: skip
        """Deliver each plan that has not been acknowledged, wait until the saw has acknowledged all
        of them, and return the acknowledged deliveries; resume what an earlier attempt began.

        A drop folder that cannot be reached is tried again until the deadline, which is by the
        store's clock. Writes the notes of the trail itself. Raises `HoldCode` E_OSI_STATE_UNKNOWN;
        `CuttingError` E_OSI_ACK_FAILED, E_OSI_ACK_TIMEOUT, or E_UNKNOWN for a plan that has changed
        since it was checked.
        """
        approval = run.released("E_OSI_STATE_UNKNOWN")
        approved_at = -1 if approval is None else to_instant(approval.at)
        attempt = _Attempt(run.job_id, run.round, plans, folder, approved_at)
        try:
            return await poll(
                self._threads, partial(self._advance, attempt), longest_pause_s=poll_s,
                checkpoint=run.checkpoint, is_over=lambda: run.now >= deadline,
            )  # fmt: skip
        except TimeoutError as error:
            acked = {row.batch for row in attempt.rows.values() if row.state == ACKED}
            names = ", ".join(plan.path.name for plan in plans if plan.batch not in acked)
            why = f"the saw has not answered {names} in time; {folder}: {error}"
            raise CuttingError("E_OSI_ACK_TIMEOUT", why.removesuffix(f"; {folder}: ")) from error
        finally:
            for row in attempt.rows.values():
                for state in dict.fromkeys((INTENT, row.state)):
                    kind = NOTES.get(state)
                    if kind and row.temporary and (kind, row.file_name) not in attempt.noted:
                        run.note(kind, **row.facts)

    def withdraw(self, job_id: str, folder: Path) -> list[Delivery]:
        """Take what was not yet cut of an ended job out of the inbox, and keep runners that lag
        behind from putting anything there. Return the deliveries as they stand then; safe to
        repeat. Raises `OSError`: the drop folder cannot be reached."""
        round, now = self._engine.get(job_id).round, self._tables.now
        for (batch,) in self._tables.read(_BATCHES, job_id):
            while not (rows := self.find(job_id, batch)) or rows[-1].temporary:
                n = len(rows) + 1
                name = f"{job_id}/{batch}/{n}"
                self._insert(job_id, Delivery(batch, n, round, name, "", "", WITHDRAWN, now, now))
        for row in self.find(job_id):
            if row.state in (INTENT, UNKNOWN):
                self._settle(job_id, folder, row)
        return [row for row in self.find(job_id) if row.temporary]

    def _advance(self, attempt: _Attempt) -> list[Delivery] | None:
        """Bring every delivery as far as it goes now; return them when all are acknowledged."""
        for plan in attempt.plans:
            row = attempt.followed.get(plan.batch) or self._begin(attempt, plan)
            if row.state == INTENT:
                row = self._look(attempt, row)
            attempt.followed[plan.batch] = attempt.keep(row)
        rows = [*attempt.followed.values()]
        if names := [row.file_name for row in rows if row.state == UNKNOWN]:
            why = f"nobody knows whether {', '.join(names)} was cut; approve to send it again"
            raise HoldCode("E_OSI_STATE_UNKNOWN", why, {"files": names})
        if names := [row.file_name for row in rows if row.state == FAILED]:
            raise CuttingError("E_OSI_ACK_FAILED", f"the saw has refused {', '.join(names)}")
        return rows if all(row.state == ACKED for row in rows) else None

    def _begin(self, attempt: _Attempt, plan: PlanFile) -> Delivery:
        """Return the delivery to follow: that of this round, or a new one, once it is certain that
        none of those before was cut or will be."""
        rows = [attempt.keep(row) for row in self.find(attempt.job_id, plan.batch)]
        if rows and not attempt.noted:
            lines = self._engine.inspect.trail(attempt.job_id)
            own = [line for line in lines if line.kind in NOTES.values()]
            attempt.noted = {(line.kind, line.details["file_name"]) for line in own}
        if rows and (last := rows[-1]).round >= attempt.round:
            if last.round > attempt.round or not last.temporary:
                raise Stopped  # this run has lost its job, and another has gone on with it
            if last.state in (INTENT, FAILED):
                return last
        for n, row in enumerate(rows):
            if row.state in (INTENT, FAILED, UNKNOWN):
                row = self._settle(attempt.job_id, attempt.folder, row)
            if row.state == UNKNOWN and attempt.approved_at > (row.ended_at or 0):
                row = self._end(attempt.job_id, row, WITHDRAWN)
            rows[n] = attempt.keep(row)
        for state in (ACKED, UNKNOWN):
            if found := [row for row in rows if row.state == state]:
                return found[0]
        return self._intend(attempt, plan, len(rows) + 1)

    def _intend(self, attempt: _Attempt, plan: PlanFile, n: int) -> Delivery:
        """Store the intent to deliver a plan, once the file lies beside its place."""
        inbox, number, digest = attempt.folder / INBOX, n, plan.sha256
        for place in FOLDERS:
            # Not the drop folder itself: one that is not there is a share that is not mounted.
            (attempt.folder / place).mkdir(exist_ok=True)
        while _find_places(attempt.folder, name := f"{plan.path.stem}_d{number}.xml"):
            number += 1  # what another life of this database has left never counts
        temporary, now = f"{name}.{token_hex(4)}{TEMPORARY}", self._tables.now
        row = Delivery(plan.batch, n, attempt.round, name, temporary, digest, INTENT, now)
        with step("write"), open_file(plan.path) as file:
            written = write_atomically(inbox / temporary, iter(partial(file.read, _CHUNK), b""))
        if written != digest:
            (inbox / temporary).unlink(missing_ok=True)
            raise CuttingError("E_UNKNOWN", f"{plan.path} has changed since it was checked")
        with step("intent"):
            if self._insert(attempt.job_id, row):
                return attempt.keep(row)
        (inbox / temporary).unlink(missing_ok=True)
        if len(self.find(attempt.job_id, plan.batch)) < n:
            raise CuttingError("E_UNKNOWN", f"another delivery has the name {name}")
        return self._begin(attempt, plan)  # another runner was quicker

    def _look(self, attempt: _Attempt, row: Delivery) -> Delivery:
        """Put a file in its place if it is not there yet, and see what the saw says of it."""
        inbox = attempt.folder / INBOX
        with step("place"):
            rename_once(inbox / row.temporary, inbox / row.file_name)
        found = _find_places(attempt.folder, row.file_name)
        if FAILED in found:
            return self._end(attempt.job_id, row, UNKNOWN if PROCESSED in found else FAILED)
        # A copy is no answer, and what is nowhere may lie on the table of the saw.
        return self._end(attempt.job_id, row, ACKED) if found == {PROCESSED} else row

    def _settle(self, job_id: str, folder: Path, row: Delivery) -> Delivery:
        """See to it that a delivery which was not cut never is; return what it came to."""
        # First the temporary file: of its rename into its place and this one, one succeeds.
        paths = [folder / INBOX / name for name in (row.temporary, row.file_name)]
        asides = [path.with_name(path.name + ASIDE) for path in paths]
        with step("take"):
            is_taken = any(map(rename_once, paths, asides)) or any(map(is_there, asides))
        found = _find_places(folder, row.file_name)
        state = UNKNOWN
        if found == {PROCESSED} and not is_taken:
            state = ACKED
        elif found == {FAILED} or (not found and row.state == FAILED):
            state = FAILED
        elif not found and is_taken:
            state = WITHDRAWN
        row = self._end(job_id, row, state)
        if row.state != UNKNOWN:  # till then it is evidence
            for path in asides:
                path.unlink(missing_ok=True)
        return row

    def _end(self, job_id: str, row: Delivery, state: str) -> Delivery:
        """Store what a delivery came to; return it as it stands: another may have been quicker."""
        if row.state == state:
            return row
        now = self._tables.now
        with step("end"):
            key = (job_id, row.batch, row.n, row.state)
            if self._tables.write(_END, state, now, *key):
                return replace(row, state=state, ended_at=now)
        return self.find(job_id, row.batch)[row.n - 1]

    def _insert(self, job_id: str, row: Delivery) -> bool:
        return bool(self._tables.write(_INSERT, job_id, *astuple(row)))


def _find_places(folder: Path, name: str) -> set[str]:
    """Return in which folders a file is. Raises `OSError`: the drop folder cannot be reached."""
    # The inbox first: what goes from there to another folder meanwhile is found in that one.
    found = {place for place in FOLDERS if is_there(folder / place / name)}
    if not found and not is_there(folder / INBOX):
        raise FileNotFoundError(f"{folder / INBOX} is not there")
    return found
