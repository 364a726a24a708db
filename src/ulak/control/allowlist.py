"""Which targets adaptive control may touch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ulak.control.signals import EVERY


@dataclass(frozen=True)
class AllowlistEntry:
    """Targets that may be touched; `*` is any."""

    tenant_id: str
    endpoint_class: str
    """The risk class of an endpoint: `high`, `medium` or `low`."""
    subsystem_id: str

    def covers(self, tenant_id: str, endpoint_class: str, subsystem_id: str) -> bool:
        """Tell whether a target is one of these."""
        return (
            self.tenant_id in (EVERY, tenant_id)
            and self.endpoint_class in (EVERY, endpoint_class)
            and self.subsystem_id in (EVERY, subsystem_id)
        )


class AllowlistChange(NamedTuple):
    """One replacement of the list, for the audit."""

    old: tuple[AllowlistEntry, ...]
    new: tuple[AllowlistEntry, ...]
    actor: str
    at_ms: int


class AllowlistManager:
    """The list in force; an empty one means that nothing is ever touched."""

    def __init__(self, entries: list[AllowlistEntry]) -> None:
        self._entries = tuple(entries)
        self._changes: list[AllowlistChange] = []

    @property
    def entries(self) -> tuple[AllowlistEntry, ...]:
        return self._entries

    @property
    def changes(self) -> Sequence[AllowlistChange]:
        """Every replacement since this list was made, oldest first."""
        return tuple(self._changes)

    @property
    def is_empty(self) -> bool:
        return not self._entries

    def is_in_scope(self, tenant_id: str, endpoint_class: str, subsystem_id: str) -> bool:
        """Tell whether a target may be touched."""
        return any(e.covers(tenant_id, endpoint_class, subsystem_id) for e in self._entries)

    def find_targets(self, subsystem_id: str) -> tuple[AllowlistEntry, ...]:
        """Return the entries that name a subsystem."""
        return tuple(e for e in self._entries if e.subsystem_id in (EVERY, subsystem_id))

    def update(self, new_entries: list[AllowlistEntry], actor: str, now_ms: int) -> None:
        """Replace the list and record the replacement."""
        new = tuple(new_entries)
        self._changes.append(AllowlistChange(self._entries, new, actor, now_ms))
        self._entries = new
