"""Who wants to be told of the end of which job: kept until the telling is a job of its own.

A row is written with the job, in one transaction, and taken back with the job that tells, in
another: whichever process dies in between, somebody finds the row.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from uuid import UUID

from ulak import Engine
from ulak.errors import JobNotFound
from ulak.kit.ids import from_text
from ulak.services.pdf.flow import flow_of
from ulak.services.pdf.model import PdfJobStatus
from ulak.services.pdf.schema import SCHEMA
from ulak.tables import Tables

ENDS: Final = tuple(map(str, (PdfJobStatus.SUCCEEDED, PdfJobStatus.FAILED, PdfJobStatus.EXPIRED)))
"""Where a job has ended. A held one has not: a person may let it go on."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One URL that is to be told of the end of one job."""

    job_id: str
    url: str = field(repr=False)
    root: str = ""
    """Where the application was mounted that was asked, for the links of its document."""


class CallbackTable(Protocol):
    """Where they are kept."""

    def add(self, wanted: Wanted, *, connection: Any = None) -> None:
        """Remember one; the same again is nothing.

        Args:
            wanted: Of a job that is there, or that is written in the same transaction.
            connection: An open transaction to write it in, so that it is stored with the job or
                not at all.
        """

    def due(self, limit: int) -> list[Wanted]:
        """Return those of ended jobs."""

    def pass_on(self, wanted: Wanted, submit: Callable[[Any], object]) -> bool:
        """Forget one and submit what tells it, both or neither; False when somebody else did."""

    def forget_lost(self) -> None:
        """Forget those whose job is gone."""


def callbacks_of(engine: Engine) -> CallbackTable:
    """Return where those of an engine are: in its database, or in this process."""
    if engine.store.features.open_transactions:
        return SqlCallbacks(Tables(engine, SCHEMA))
    kept = flow_of(engine).kept
    table: MemoryCallbacks = kept.setdefault(MemoryCallbacks, MemoryCallbacks(engine))
    return table


class SqlCallbacks:
    """The same from every process: a table in the engine's database."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._is_uuid = tables.database.name == "postgresql"

    def add(self, wanted: Wanted, *, connection: Any = None) -> None:
        """Remember one; the same again is nothing."""
        if connection is not None:
            self._add(connection, wanted)
            return
        with self._tables.writing() as opened:
            self._add(opened, wanted)

    def due(self, limit: int) -> list[Wanted]:
        """Return those of ended jobs."""
        text = "CAST(c.job_id AS text)" if self._is_uuid else "hex(c.job_id)"
        rows = self._tables.read(_DUE.replace("<text>", text), *ENDS, limit)
        return [Wanted(str(UUID(job_id)), url, root) for job_id, url, root in rows]

    def pass_on(self, wanted: Wanted, submit: Callable[[Any], object]) -> bool:
        """Forget one and submit what tells it, both or neither; False when somebody else did."""
        with self._tables.writing() as connection:
            if not self._tables.execute(connection, _TAKE, self._id(wanted), wanted.url):
                return False
            submit(connection)
        return True

    def forget_lost(self) -> None:
        """Forget those whose job is gone."""
        with self._tables.writing() as connection:
            self._tables.execute(connection, _FORGET)

    def _add(self, connection: Any, wanted: Wanted) -> None:
        self._tables.execute(connection, _ADD, self._id(wanted), wanted.url, wanted.root)

    def _id(self, wanted: Wanted) -> str | bytes:
        return wanted.job_id if self._is_uuid else from_text(wanted.job_id)


class MemoryCallbacks:
    """The same, for as long as the process lasts."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._wanted: dict[tuple[str, str], Wanted] = {}

    def add(self, wanted: Wanted, *, connection: Any = None) -> None:
        """Remember one; the same again is nothing."""
        with self._lock:
            self._wanted.setdefault((wanted.job_id, wanted.url), wanted)

    def due(self, limit: int) -> list[Wanted]:
        """Return those of ended jobs."""
        with self._lock:
            wanted = list(self._wanted.values())
        return [one for one in wanted if self._state(one) in ENDS][:limit]

    def pass_on(self, wanted: Wanted, submit: Callable[[Any], object]) -> bool:
        """Forget one and submit what tells it; False when somebody else did."""
        with self._lock:
            if self._wanted.pop((wanted.job_id, wanted.url), None) is None:
                return False
        submit(None)
        return True

    def forget_lost(self) -> None:
        """Forget those whose job is gone."""
        with self._lock:
            kept = {key: one for key, one in self._wanted.items() if self._state(one)}
            self._wanted = kept

    def _state(self, wanted: Wanted) -> str | None:
        try:
            return self._engine.get(wanted.job_id).state
        except JobNotFound:
            return None


_ADD: Final = (
    "INSERT INTO {schema}.pdf_callbacks (job_id, url, root) VALUES (?, ?, ?) "
    "ON CONFLICT (job_id, url) DO NOTHING"
)
_DUE: Final = (
    "SELECT <text>, c.url, c.root FROM {schema}.pdf_callbacks AS c "
    "JOIN {schema}.jobs AS j ON j.id = c.job_id WHERE j.state IN (?, ?, ?) LIMIT ?"
)
_TAKE: Final = "DELETE FROM {schema}.pdf_callbacks WHERE job_id = ? AND url = ? RETURNING url"
_FORGET: Final = (
    "DELETE FROM {schema}.pdf_callbacks "
    "WHERE NOT EXISTS (SELECT 1 FROM {schema}.jobs WHERE id = pdf_callbacks.job_id)"
)
