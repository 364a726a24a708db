"""Which labels there may be: only what the program declares. Everything else is `other`.

A label that a caller or a stored row could choose would let anybody fill the memory of whoever
scrapes.
"""

from __future__ import annotations

from ulak.core.job import queue_of
from ulak.engine.engine import Engine

OTHER = "other"

Place = tuple[str, str]
"""A flow and one of its states."""
NOWHERE: Place = (OTHER, OTHER)


class Labels:
    """The label values of one engine. A flow that is added later is known from then on."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._flows: set[str] = set()
        self._places: dict[Place, Place] = {}
        self._queues: set[str] = set()
        self._seen = 0

    def flow(self, name: str) -> str:
        """Return the label of a flow."""
        if name not in self._flows:
            self._look()
        return name if name in self._flows else OTHER

    def place(self, flow: str, state: str) -> Place:
        """Return the labels of a flow and a state of it."""
        found = self._places.get((flow, state))
        if found is None:
            self._look()
            found = self._places.get((flow, state), NOWHERE)
        return found

    def queues(self) -> list[str]:
        """Return every queue that a stage or an undo is in."""
        self._look()
        return sorted(self._queues)

    def limits(self) -> list[str]:
        """Return every limit that a flow declares, and that is not one for each key."""
        return sorted(
            name
            for flow in self._engine.inspect.flows
            for name, terms in flow.table.limits.items()
            if not terms.keyed
        )

    def schedule(self, name: str) -> str:
        """Return the label of a schedule."""
        return name if name in self._engine.kernel.schedules else OTHER

    def _look(self) -> None:
        """See whether flows were added; most often none was."""
        flows = self._engine.inspect.flows
        if len(flows) == self._seen:
            return
        for flow in flows:
            self._flows.add(flow.name)
            self._places.update({(flow.name, s): (flow.name, s) for s in flow.table.places})
            self._queues.update(map(queue_of, flow.table.lanes))
        self._seen = len(flows)
