"""What services hand to adaptive control: how deep their queues are, and how intake is stopped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ulak.control.controller import PdfJobStore
from ulak.control.loop_metrics import LoopMetrics
from ulak.control.tallies import Family
from ulak.engine.engine import Engine
from ulak.errors import FlowError

if TYPE_CHECKING:
    from ulak.control.loop import ControlLoop


class Depth(NamedTuple):
    """How a queue stands."""

    due: int
    """Jobs that wait for a worker."""
    ended_per_second: float = 0.0


class Telemetry(NamedTuple):
    """What a service has counted since it was installed."""

    finished: int
    failed: int
    """Jobs whose final state is a failure; attempts do not count."""
    histogram: Family
    """How long the work of one job took."""


@dataclass(frozen=True)
class Subsystem:
    """A service as adaptive control knows it."""

    name: str
    _: KW_ONLY
    depth: Callable[[], Depth]
    admission: PdfJobStore
    telemetry: Callable[[], Telemetry] | None = None
    creates: frozenset[tuple[str, str]] = frozenset()
    """The method and route of the requests that make jobs: those answered 5xx count against the
    budget `queue_unavailable_rate`."""


@dataclass
class Registered:
    """What one engine has of adaptive control in this process."""

    subsystems: dict[str, Subsystem] = field(default_factory=dict)
    metrics: LoopMetrics = field(default_factory=LoopMetrics)
    loop: ControlLoop | None = None


def registered(engine: Engine) -> Registered:
    """Return what an engine has registered."""
    found: Registered = engine.kernel.shared.setdefault("adaptive control", Registered())
    return found


def subsystem(
    engine: Engine,
    name: str,
    *,
    depth: Callable[[], Depth],
    admission: PdfJobStore,
    telemetry: Callable[[], Telemetry] | None = None,
    creates: Mapping[str, str] | None = None,
) -> None:
    """Have adaptive control watch a service's queue, and stop its intake when it is too deep.

    A service calls it where it attaches to its engine. Nothing happens until the allow-list of
    adaptive control names the subsystem.

    Args:
        name: Stored and shown: in the allow-list, events and metrics.
        depth: Returns how many jobs wait and how fast they end; `queue_depth` makes it.
        admission: Stops and resumes the intake, in the transaction that it is handed.
        telemetry: Returns what the service has counted, for its budget and its quantile.
        creates: The routes of requests that make jobs, by method.

    `FlowError`: the name is taken, or is the request guard's.
    """
    known = registered(engine).subsystems
    if name in known or name == "guard":
        raise FlowError(f'the subsystem "{name}" is registered already; choose another name')
    routes = frozenset((creates or {}).items())
    known[name] = Subsystem(
        name, depth=depth, admission=admission, telemetry=telemetry, creates=routes
    )


def queue_depth(engine: Engine, flow: str) -> Callable[[], Depth]:
    """Return what counts the due jobs of a flow, and how many end in a second."""

    def count() -> Depth:
        rows = [row for row in engine.inspect.backlog() if row.flow == flow]
        return Depth(sum(r.due for r in rows), sum(r.ended_per_second for r in rows))

    return count
