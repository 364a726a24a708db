"""What is no part of a job: who else owns it.

It lies in the engine's database, so that every process sees it and a restart changes nothing;
where the store is the memory of this process, so is it.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Collection
from datetime import datetime
from typing import Protocol

from ulak import Engine
from ulak.kit.clock import Clock, Instant, to_instant
from ulak.services.pdf.flow import flow_of
from ulak.services.pdf.schema import SCHEMA
from ulak.tables import Tables


class PdfTables(Protocol):
    """Where owners are kept."""

    def add_owner(self, job_id: str, owner: str) -> None:
        """Let one more principal read a job; twice is nothing."""

    def owners(self, job_id: str) -> frozenset[str]:
        """Return who was added; the job's creator is not among them."""

    def owned_by(
        self, owner: str, *, before: tuple[Instant, str], limit: int
    ) -> list[tuple[Instant, str]]:
        """Return when somebody was added to which jobs, before a moment and an id; the latest
        first."""

    def owned_before(self, moment: datetime, *, limit: int) -> list[str]:
        """Return jobs that have had added owners since before a moment, the oldest first."""

    def forget_owners(self, job_ids: Collection[str]) -> None:
        """Forget the owners of jobs that are gone."""


def tables_of(engine: Engine) -> PdfTables:
    """Return where the owners of an engine's jobs are kept; nothing is opened.

    Raises:
        NotSupported: its store is durable and has no tables of one's own.
    """
    features = engine.store.features
    if features.durable or features.open_transactions:
        return SqlTables(Tables(engine, SCHEMA))
    kept = flow_of(engine).kept
    tables: MemoryTables = kept.setdefault(MemoryTables, MemoryTables(engine.store.clock))
    return tables


class SqlTables:
    """The same from every process: a table in the engine's database."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def add_owner(self, job_id: str, owner: str) -> None:
        with self._tables.writing() as connection:
            self._tables.execute(connection, _ADD_OWNER, job_id, owner, self._tables.now)

    def owners(self, job_id: str) -> frozenset[str]:
        return frozenset(row[0] for row in self._tables.read(_OWNERS, job_id))

    def owned_by(
        self, owner: str, *, before: tuple[Instant, str], limit: int
    ) -> list[tuple[Instant, str]]:
        return [(at, job_id) for at, job_id in self._tables.read(_OWNED_BY, owner, *before, limit)]

    def owned_before(self, moment: datetime, *, limit: int) -> list[str]:
        return [row[0] for row in self._tables.read(_OWNED_BEFORE, to_instant(moment), limit)]

    def forget_owners(self, job_ids: Collection[str]) -> None:
        with self._tables.writing() as connection:
            for job_id in sorted(job_ids):
                self._tables.execute(connection, _FORGET_OWNERS, job_id)


class MemoryTables:
    """The same, for as long as the process lasts."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._owners: defaultdict[str, dict[str, int]] = defaultdict(dict)

    def add_owner(self, job_id: str, owner: str) -> None:
        with self._lock:
            self._owners[job_id].setdefault(owner, self._clock.now())

    def owners(self, job_id: str) -> frozenset[str]:
        with self._lock:
            return frozenset(self._owners.get(job_id, ()))

    def owned_by(
        self, owner: str, *, before: tuple[Instant, str], limit: int
    ) -> list[tuple[Instant, str]]:
        with self._lock:
            found = [(who[owner], job_id) for job_id, who in self._owners.items() if owner in who]
        return sorted((pair for pair in found if pair < before), reverse=True)[:limit]

    def owned_before(self, moment: datetime, *, limit: int) -> list[str]:
        instant = to_instant(moment)
        with self._lock:
            since = {job_id: min(added.values()) for job_id, added in self._owners.items()}
        due = [(at, job_id) for job_id, at in since.items() if at < instant]
        return [job_id for _, job_id in sorted(due)[:limit]]

    def forget_owners(self, job_ids: Collection[str]) -> None:
        with self._lock:
            for job_id in job_ids:
                self._owners.pop(job_id, None)


_ADD_OWNER = (
    "INSERT INTO {schema}.pdf_owners (job_id, owner, added_at) VALUES (?, ?, ?) "
    "ON CONFLICT (job_id, owner) DO NOTHING"
)
_OWNERS = "SELECT owner FROM {schema}.pdf_owners WHERE job_id = ?"
_OWNED_BEFORE = (
    "SELECT job_id FROM {schema}.pdf_owners GROUP BY job_id HAVING min(added_at) < ? "
    "ORDER BY min(added_at), job_id LIMIT ?"
)
_OWNED_BY = (
    "SELECT added_at, job_id FROM {schema}.pdf_owners "
    "WHERE owner = ? AND (added_at, job_id) < (?, ?) ORDER BY added_at DESC, job_id DESC LIMIT ?"
)
_FORGET_OWNERS = "DELETE FROM {schema}.pdf_owners WHERE job_id = ?"
