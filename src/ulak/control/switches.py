"""Kill switches: what a person turns off at once, for every process."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from threading import Lock
from typing import Any, Final

from ulak.control.signals import EVERY, GUARD, PDF
from ulak.errors import BadInput, NotFound
from ulak.tables import Tables

GLOBAL: Final = "global"
DEGRADE: Final = "degrade_mode"
TENANT: Final = "tenant:"
NAMES: Final = (GLOBAL, DEGRADE, GUARD, PDF)
"""The switches that there always are; `tenant:{id}` is one for each tenant."""
AUDIT_KIND: Final = "kill-switch"

_TENANT_ID: Final = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,200}")


@dataclass(frozen=True, slots=True)
class Switch:
    """One switch as it stands."""

    name: str
    enabled: bool = False
    updated_at: int | None = None
    """Milliseconds; None: it was never set."""
    updated_by: str = ""
    reason: str = ""

    def document(self) -> dict[str, Any]:
        return asdict(self)


class KillSwitchManager:
    """The switches of one store, or without `tables` those of one process.

    Whoever asks is answered from what was last read, so that a request never waits for a database:
    `refresh` reads again, and a change by this manager is seen by it at once. When the store does
    not answer, the last known state stays.

    Args:
        tables: Of `ulak.control.state.SCHEMA`.
        defaults: Switches that are on until they are set in the store.
    """

    def __init__(
        self, tables: Tables | None = None, *, defaults: Mapping[str, bool] | None = None
    ) -> None:
        for name in defaults or {}:
            check_name(name)
        self._tables = tables
        self._lock = Lock()
        self._defaults = {
            name: Switch(name, enabled, None, "environment", "set by the environment")
            for name, enabled in (defaults or {}).items()
        }
        self._rows: Mapping[str, Switch] = dict(self._defaults)
        self._active: frozenset[str] = self._find_active()

    def is_active(self, name: str) -> bool:
        """Tell whether a switch is on."""
        return name in self._active

    @property
    def active(self) -> frozenset[str]:
        """The names of the switches that are on."""
        return self._active

    def covers(self, subsystem_id: str, tenant_id: str = EVERY) -> str | None:
        """Return the switch that suspends adaptive control for a subsystem, or for the targets of
        one tenant there; None: none does."""
        active = self._active
        if not active:
            return None
        return next((name for name in _covering(subsystem_id, tenant_id) if name in active), None)

    def released_at(self, subsystem_id: str, tenant_id: str = EVERY) -> int:
        """Return when a switch that covers a subsystem was last turned off, in milliseconds; 0:
        never, as far as is stored."""
        rows = map(self._rows.get, _covering(subsystem_id, tenant_id))
        return max((row.updated_at or 0 for row in rows if row and not row.enabled), default=0)

    def changed_at(self, subsystem_id: str, tenant_id: str = EVERY) -> int:
        """Return when a switch that covers a subsystem was last turned on or off; 0: never."""
        rows = map(self._rows.get, _covering(subsystem_id, tenant_id))
        return max((row.updated_at or 0 for row in rows if row), default=0)

    def find(self, name: str) -> Switch:
        """Return one switch. Raises `NotFound`: no switch can have this name."""
        check_name(name)
        return self._rows.get(name) or Switch(name)

    def all(self) -> list[Switch]:
        """Return every switch, those that were never set too; tenants' last, by name."""
        rows = self._rows
        others = sorted(rows.keys() - set(NAMES))
        return [rows.get(name) or Switch(name) for name in (*NAMES, *others)]

    def set(
        self, name: str, enabled: bool, *, actor: str, reason: str, now_ms: int
    ) -> tuple[Switch, Switch]:
        """Turn a switch on or off, for every process, with a line of the audit; return how it
        stands now and how it stood. Setting it as it stands changes nothing but the audit.

        Raises `NotFound`: no switch can have this name; `BadInput`: there is no reason;
        `StoreError`: nothing was written.
        """
        check_name(name)
        if not reason.strip():
            raise BadInput("say why: a switch is never set without a reason")
        made = Switch(name, enabled, now_ms, actor, reason)
        if self._tables is None:
            with self._lock:
                old = self.find(name)
                new = old if old.enabled == enabled else made
                self._take({**self._rows, name: new})
            return new, old
        tables = self._tables
        with tables.writing() as connection:
            # Rows of switches that were never set cannot be locked, and two might set one at once.
            tables.take_turns(connection)
            rows = self._read(tables, connection)
            old = rows.get(name) or Switch(name)
            new = old if old.enabled == enabled else made
            if new is made:
                tables.execute(connection, _WRITE, name, int(enabled), now_ms, actor, reason)
            data = {"old": old.enabled, "new": enabled, "reason": reason}
            write_audit(tables, connection, AUDIT_KIND, name, actor, now_ms, data)
        with self._lock:
            self._take({**rows, name: new})
        return new, old

    def refresh(self, connection: Any = None) -> None:
        """Read the switches again, on a connection of `Tables.reading` or on one of its own. Raises
        `StoreError`: the last known state stays."""
        tables = self._tables
        if tables is None:
            return
        if connection is None:
            with tables.reading() as connection:
                rows = self._read(tables, connection)
        else:
            rows = self._read(tables, connection)
        with self._lock:
            self._take(rows)

    def _read(self, tables: Tables, connection: Any) -> dict[str, Switch]:
        found = tables.execute(connection, _READ)
        rows = {row[0]: Switch(row[0], bool(row[1]), *row[2:]) for row in found}
        return {**self._defaults, **rows}

    def _take(self, rows: Mapping[str, Switch]) -> None:
        self._rows = rows
        self._active = self._find_active()

    def _find_active(self) -> frozenset[str]:
        return frozenset(name for name, row in self._rows.items() if row.enabled)


def check_name(name: str) -> None:
    """Raise `NotFound` unless a switch can have this name."""
    tenant = name.removeprefix(TENANT)
    if name in NAMES or (tenant != name and _TENANT_ID.fullmatch(tenant)):
        return
    raise NotFound(
        f"there is no kill switch {name[:100]!r}; there are {', '.join(NAMES)} and {TENANT}ID"
    )


def _covering(subsystem_id: str, tenant_id: str) -> tuple[str, ...]:
    """Return the switches that suspend adaptive control there, the widest first; `degrade_mode`
    suspends none."""
    own = () if tenant_id == EVERY else (TENANT + tenant_id,)
    return (GLOBAL, subsystem_id, *own)


def write_audit(
    tables: Tables, connection: Any, kind: str, subject: str, actor: str, at_ms: int,
    data: Mapping[str, Any],
) -> None:  # fmt: skip
    """Write a line of what was set, in the transaction that sets it."""
    tables.execute(connection, _AUDIT, kind, subject, actor, at_ms, json.dumps(data))


_READ: Final = "SELECT name, enabled, updated_ms, updated_by, reason FROM {schema}.control_switches"
_WRITE: Final = """
    INSERT INTO {schema}.control_switches (name, enabled, updated_ms, updated_by, reason)
    VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (name) DO UPDATE SET
        enabled = excluded.enabled, updated_ms = excluded.updated_ms,
        updated_by = excluded.updated_by, reason = excluded.reason
"""
_AUDIT: Final = """
    INSERT INTO {schema}.control_audit (kind, subject, actor, at_ms, data) VALUES (?, ?, ?, ?, ?)
"""
