"""Manual overrides: a person pins the mode of one subsystem, perhaps for a time."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from ulak.control.signals import (
    ACCEPTING,
    BACKPRESSURE,
    ENFORCE,
    GUARD,
    OPERATOR,
    SHADOW,
    ControlDecisionEvent,
    Reason,
)
from ulak.control.switches import KillSwitchManager, write_audit
from ulak.errors import BadInput, NotFound, ServiceError
from ulak.tables import Tables

AUDIT_KIND: Final = "override"
Effect = Callable[[str, Any], None]
"""Brings a mode into force in the transaction of a connection; what it raises takes all back."""


class KillSwitchActive(ServiceError):
    """A kill switch holds the subsystem; turn it off first."""

    code, status = "killswitch-active", 409


@dataclass(frozen=True, slots=True)
class Pinnable:
    """A subsystem whose mode a person may pin; it starts in the first mode, or in `starts`."""

    modes: tuple[str, str]
    effect: Effect = lambda mode, connection: None
    starts: str = ""

    @property
    def first(self) -> str:
        return self.starts or self.modes[0]


GUARD_MODES: Final = Pinnable((ENFORCE, SHADOW))
INTAKE_MODES: Final = (ACCEPTING, BACKPRESSURE)


@dataclass(frozen=True, slots=True)
class Override:
    """The mode that a person has pinned."""

    subsystem_id: str
    mode: str
    actor: str
    reason: str
    expires_at: int | None
    """Milliseconds; None: when it is released."""
    set_at: int

    def is_over(self, now_ms: int) -> bool:
        return self.expires_at is not None and self.expires_at <= now_ms

    def document(self) -> dict[str, Any]:
        return asdict(self)


class Overrides:
    """The overrides of one store. Each change is one transaction with its line of the audit and,
    where another mode comes into force, with its decision event."""

    def __init__(
        self, tables: Tables, switches: KillSwitchManager, *,
        subsystems: Mapping[str, Pinnable] | None = None,
    ) -> None:  # fmt: skip
        self._tables = tables
        self._switches = switches
        self.subsystems: dict[str, Pinnable] = {GUARD: GUARD_MODES, **(subsystems or {})}
        """Those that may be pinned; a service's is added when it registers."""
        self._known: Mapping[str, Override] = {}

    def find(self, subsystem_id: str, now_ms: int) -> Override | None:
        """Return the override in force, as it was last read; None: there is none. Raises
        `NotFound`: there is no such subsystem."""
        self._check(subsystem_id)
        found = self._known.get(subsystem_id)
        return None if found is None or found.is_over(now_ms) else found

    def modes(self, now_ms: int) -> dict[str, str]:
        """Return the pinned modes by subsystem, as they were last read."""
        known = self._known.values()
        return {each.subsystem_id: each.mode for each in known if not each.is_over(now_ms)}

    def set(
        self, subsystem_id: str, mode: str, *, actor: str, reason: str, now_ms: int,
        expires_in_ms: int | None = None,
    ) -> tuple[Override, Override | None]:  # fmt: skip
        """Pin the mode of a subsystem; return the override and the one that it replaces. The mode
        is in force with the commit.

        Raises `NotFound`: there is no such subsystem; `BadInput`: it has no such mode, or there is
        no reason; `KillSwitchActive`; `StoreError`: nothing was written.
        """
        pinnable = self._check(subsystem_id)
        if mode not in pinnable.modes:
            raise BadInput(
                f"mode: {subsystem_id} has no {mode[:50]!r}; write one of {_or(pinnable)}"
            )
        _need(reason)
        expires_at = None if expires_in_ms is None else now_ms + expires_in_ms
        made = Override(subsystem_id, mode, actor, reason, expires_at, now_ms)
        tables = self._tables
        with tables.writing() as connection:
            # First, so that of two writers the second sees what the first has written.
            tables.take_turns(connection)
            self._switches.refresh(connection)
            if (switch := self._switches.covers(subsystem_id)) is not None:
                raise KillSwitchActive(
                    f"the kill switch {switch} holds {subsystem_id}; turn it off first",
                    error_code="KILLSWITCH_ACTIVE", switch=switch,
                )  # fmt: skip
            rows = self._read(connection)
            old = rows.get(subsystem_id)
            is_same = old is not None and (old.mode, old.expires_at) == (mode, expires_at)
            new = old if is_same and old is not None else made
            tables.execute(
                connection, _WRITE, subsystem_id, mode, new.actor, new.reason, expires_at,
                new.set_at,
            )  # fmt: skip
            before = self._mode(connection, rows, subsystem_id, now_ms)
            self._change(connection, subsystem_id, before, mode, actor, reason, now_ms, old, new)
        self._known = {**rows, subsystem_id: new}
        return new, None if old is None or old.is_over(now_ms) else old

    def release(
        self, subsystem_id: str, *, actor: str, reason: str, now_ms: int
    ) -> Override | None:
        """End the override of a subsystem and return it; None: there was none. The mode that the
        loop has left is in force again. Raises as `set` does."""
        self._check(subsystem_id)
        _need(reason)
        with self._tables.writing() as connection:
            self._tables.take_turns(connection)
            rows = self._read(connection)
            old = rows.pop(subsystem_id, None)
            self._end(connection, subsystem_id, old, actor, reason, now_ms)
        self._known = rows
        return None if old is None or old.is_over(now_ms) else old

    def release_expired(self, now_ms: int) -> list[Override]:
        """End the overrides whose time is over, each with its event, and return them: a tick calls
        it, so that the end of an override is on record as its beginning is."""
        if not any(each.is_over(now_ms) for each in self._known.values()):
            return []
        ended = []
        with self._tables.writing() as connection:
            self._tables.take_turns(connection)
            rows = self._read(connection)
            for old in [each for each in rows.values() if each.is_over(now_ms)]:
                del rows[old.subsystem_id]
                self._end(connection, old.subsystem_id, old, old.actor, "it has expired", now_ms)
                ended.append(old)
        self._known = rows
        return ended

    def refresh(self, connection: Any = None) -> None:
        """Read the overrides again. Raises `StoreError`: the last known ones stay."""
        if connection is None:
            with self._tables.reading() as connection:
                self._known = self._read(connection)
        else:
            self._known = self._read(connection)

    def _check(self, subsystem_id: str) -> Pinnable:
        found = self.subsystems.get(subsystem_id)
        if found is None:
            known = ", ".join(sorted(self.subsystems))
            raise NotFound(f"there is no subsystem {subsystem_id[:100]!r}; there are {known}")
        return found

    def _end(
        self, connection: Any, subsystem_id: str, old: Override | None, actor: str, reason: str,
        now_ms: int,
    ) -> None:  # fmt: skip
        self._tables.execute(connection, _DELETE, subsystem_id)
        after = self._mode(connection, {}, subsystem_id, now_ms)
        before = after if old is None else old.mode
        self._change(connection, subsystem_id, before, after, actor, reason, now_ms, old, None)

    def _change(
        self, connection: Any, subsystem_id: str, before: str, after: str, actor: str, reason: str,
        now_ms: int, old: Override | None, new: Override | None,
    ) -> None:  # fmt: skip
        data = {
            "old": None if old is None else old.document(),
            "new": None if new is None else new.document(),
            "reason": reason,
        }
        write_audit(self._tables, connection, AUDIT_KIND, subsystem_id, actor, now_ms, data)
        if before == after:
            return
        event = ControlDecisionEvent(
            event_id=str(uuid.uuid4()), correlation_id=str(uuid.uuid4()),
            reason=Reason.MANUAL_OVERRIDE, previous_mode=before, new_mode=after,
            subsystem_id=subsystem_id, transition_timestamp_ms=now_ms, trigger_metric=None,
            trigger_value=None, threshold=None, burn_rate=None, actor=OPERATOR,
        )  # fmt: skip
        self._tables.execute(
            connection, _EVENT, event.event_id, subsystem_id, event.reason, event.actor, now_ms,
            json.dumps(event.document()),
        )  # fmt: skip
        self.subsystems[subsystem_id].effect(after, connection)

    def _mode(
        self, connection: Any, rows: Mapping[str, Override], subsystem_id: str, now_ms: int
    ) -> str:
        """Return the mode in force: what is pinned, else what the loop has set."""
        pinned = rows.get(subsystem_id)
        if pinned is not None:
            # Expired and not ended by a tick yet, it has still left its effect.
            return pinned.mode
        found = self._tables.execute(connection, _MODE, subsystem_id)
        return str(found[0][0]) if found else self.subsystems[subsystem_id].first

    def _read(self, connection: Any) -> dict[str, Override]:
        return {row[0]: Override(*row) for row in self._tables.execute(connection, _READ)}


def _or(pinnable: Pinnable) -> str:
    return " or ".join(pinnable.modes)


def _need(reason: str) -> None:
    if not reason.strip():
        raise BadInput("say why: an override is never changed without a reason")


_READ: Final = """
    SELECT subsystem_id, mode, actor, reason, expires_ms, set_ms FROM {schema}.control_overrides
"""
_WRITE: Final = """
    INSERT INTO {schema}.control_overrides (subsystem_id, mode, actor, reason, expires_ms, set_ms)
    VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (subsystem_id) DO UPDATE SET
        mode = excluded.mode, actor = excluded.actor, reason = excluded.reason,
        expires_ms = excluded.expires_ms, set_ms = excluded.set_ms
"""
_DELETE: Final = "DELETE FROM {schema}.control_overrides WHERE subsystem_id = ?"
_MODE: Final = "SELECT mode FROM {schema}.control_modes WHERE subsystem_id = ?"
_EVENT: Final = """
    INSERT INTO {schema}.control_events (event_id, subsystem_id, reason, actor, at_ms, data)
    VALUES (?, ?, ?, ?, ?, ?)
"""
