"""What earlier stages, gates, waits and effects left for a run, decoded when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ulak.clock import to_datetime
from ulak.core.bounds import must_fit
from ulak.core.flow import Flow, Gate, Stage
from ulak.core.job import Payload, Result
from ulak.core.run import Decision, PastAct
from ulak.engine.runner import PayloadUnreadable, returns
from ulak.errors import BadInput
from ulak.store import codec


class Results:
    """The stored results of one job. A stage sees its latest round; an effect only this one."""

    __slots__ = ("_stored",)

    def __init__(self, stored: Iterable[Result]) -> None:
        self._stored = {(r.stage, r.name, r.round): r.data for r in stored}

    def find(self, stage: str, kind: Any) -> tuple[bool, Any]:
        """Return whether a stage or a wait left something, and what, as its declared type."""
        data = self._latest(stage)
        if data is None:
            return False, None
        wanted = returns(kind.function) if isinstance(kind, Stage) else kind.data or Any
        try:
            return True, codec.decode(data, wanted)
        except BadInput as error:
            raise PayloadUnreadable(f'the result of "{stage}": {error}') from error

    def find_decision(self, gate: Gate[Any]) -> Decision[Any] | None:
        """Return what was decided at a gate, or None."""
        data = self._latest(gate.state)
        return None if data is None else read_decision(data, gate)

    def find_act(self, kind: str, code: str) -> PastAct | None:
        """Return the last release or retry of a job that was held or failed with a code."""
        rounds = [r for stage, name, r in self._stored if (stage, name) == (kind, code)]
        if not rounds:
            return None
        said = codec.decode(self._stored[kind, code, max(rounds)])
        return PastAct(max(rounds), said["seq"], to_datetime(said["at"]), said["actor"])

    def recorded(
        self, stage: str, name: str, round_: int, function: Callable[..., Any]
    ) -> tuple[bool, Any]:
        """Return whether an effect's result is recorded in this round, and which it is."""
        data = self._stored.get((stage, name, round_))
        if data is None:
            return False, None
        return True, codec.decode(data, returns(function))

    def _latest(self, stage: str) -> bytes | None:
        rounds = [r for s, name, r in self._stored if s == stage and name == ""]
        return self._stored[(stage, "", max(rounds))] if rounds else None


def write_decision(choice: str, actor: str, note: str, at: int, data: object) -> bytes:
    """Return a decision as the gate's result; `BadInput` if it is too large."""
    said = {"choice": choice, "actor": actor, "note": note, "at": at, "data": data}
    return must_fit(codec.encode(said), "this decision")


def read_decision(data: bytes, gate: Gate[Any]) -> Decision[Any]:
    """Read a decision back, its data as the gate declares."""
    said = codec.decode(data)
    carried = said["data"]
    if gate.data is not None and carried is not None:
        carried = codec.convert(carried, gate.data)
    return Decision(said["choice"], said["actor"], said["note"], to_datetime(said["at"]), carried)


def read_payload(flow: Flow[Any], payload: Payload) -> Any:
    """Decode a payload, through the flow's `upgrade` when it was stored in an older shape.

    `PayloadUnreadable`: it does not fit the declared type.
    """
    kind = Any if flow.payload is None else flow.payload
    try:
        if payload.schema == flow.schema or flow.upgrade is None:
            return codec.decode(payload.data, kind)
        return codec.convert(flow.upgrade(payload.schema, codec.decode(payload.data)), kind)
    except (BadInput, LookupError, TypeError, ValueError) as error:
        raise PayloadUnreadable(
            f"the payload (schema {payload.schema}) cannot be read: {error}"
        ) from error
