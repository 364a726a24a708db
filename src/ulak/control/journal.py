"""Where the loop keeps modes, events and timers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from ulak.control.decision import Mode
from ulak.control.signals import ControlDecisionEvent


class Journal(Protocol):
    """Where modes, events and timers are kept."""

    def load(self) -> tuple[dict[str, Mode], dict[str, Any]]:
        """Return the modes and the timers that the last tick has left."""

    def changing(self) -> AbstractContextManager[Any]:
        """Open the transaction of one change. Raises `UlakError`: another loop has taken over."""

    def write_change(
        self, connection: Any, mode: Mode, event: ControlDecisionEvent, memory: Mapping[str, Any]
    ) -> None:
        """Write a mode, its event and the timers that follow from it."""

    def write_audit(self, kind: str, subject: str, at_ms: int, data: Mapping[str, Any]) -> None:
        """Write what an operator may want to know later."""


class MemoryJournal:
    """A journal that ends with its process: for the simulator, and where there is no store."""

    def __init__(self) -> None:
        self.modes: dict[str, Mode] = {}
        self.events: list[ControlDecisionEvent] = []
        self.audit: list[tuple[str, str, int, Mapping[str, Any]]] = []
        self.memory: dict[str, Any] = {}

    def load(self) -> tuple[dict[str, Mode], dict[str, Any]]:
        return dict(self.modes), self.memory

    @contextmanager
    def changing(self) -> Iterator[None]:
        modes, events, memory = dict(self.modes), list(self.events), self.memory
        try:
            yield None
        except BaseException:
            self.modes, self.events, self.memory = modes, events, memory
            raise

    def write_change(
        self, connection: Any, mode: Mode, event: ControlDecisionEvent, memory: Mapping[str, Any]
    ) -> None:
        self.modes[event.subsystem_id] = mode
        self.events.append(event)
        self.memory = json.loads(json.dumps(memory))

    def write_audit(self, kind: str, subject: str, at_ms: int, data: Mapping[str, Any]) -> None:
        self.audit.append((kind, subject, at_ms, data))
