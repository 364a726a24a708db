"""The credentials of the store in memory."""

from __future__ import annotations

from ulak.clock import Instant
from ulak.store.credentials import changed, details_of, subject_of
from ulak.store.memory_control import MemoryControl
from ulak.store.protocol import CredentialRow


class MemoryCredentials(MemoryControl):
    """Keys, people and links that log in once."""

    def add_credential(self, row: CredentialRow, *, act: str, actor: str, note: str) -> bool:
        with self._transaction() as now:
            if (row.kind, row.id) in self._credentials:
                return False
            self._credentials[row.kind, row.id] = row
            self._note(now, actor, act, subject_of(row), note, details_of(row, None))
            return True

    def change_credential(self, row: CredentialRow, *, act: str, actor: str, note: str) -> bool:
        with self._transaction() as now:
            stored = self._credentials.get((row.kind, row.id))
            new = changed(row, stored)
            if new is None:
                return False
            self._credentials[row.kind, row.id] = new
            self._note(now, actor, act, subject_of(row), note, details_of(new, stored))
            return True

    def note_use(self, kind: str, id: str, at: Instant) -> None:
        with self._transaction():
            row = self._credentials.get((kind, id))
            if row is not None and (row.used_at is None or row.used_at < at):
                self._credentials[kind, id] = row._replace(used_at=at)

    def find_credential(self, kind: str, id: str) -> CredentialRow | None:
        with self._lock:
            return self._credentials.get((kind, id))

    def credentials(self, kind: str) -> list[CredentialRow]:
        with self._lock:
            return [row for _, row in sorted(self._credentials.items()) if row.kind == kind]

    def forget_credentials(self, kind: str, *, before: Instant) -> int:
        with self._transaction():
            over = [
                key
                for key, row in self._credentials.items()
                if row.kind == kind and row.expires_at is not None and row.expires_at < before
            ]
            for key in over:
                del self._credentials[key]
            return len(over)
