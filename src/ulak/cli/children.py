"""Which children `ulak up` keeps, and what each of them serves."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ulak.cli.supervisor import Child
from ulak.cli.worker import queues_of
from ulak.clock import Duration, seconds
from ulak.engine.engine import Engine
from ulak.errors import NotSupported
from ulak.settings import Settings


def queues_beside(engine: Engine) -> list[str]:
    """Every queue that the program does not want apart."""
    return [queue for queue in queues_of(engine) if queue not in engine.kernel.queues_apart]


def children_of(
    engine: Engine, found: Settings, *, workers: int, lease: Duration, options: Sequence[str]
) -> list[Child]:
    """Return the children of a program: those of its queues apart, and `workers` for the rest.

    Args:
        engine: The program's.
        found: What is in force: children run the same program and services.
        workers: How many serve the queues that are not apart; 0 leaves those to others.
        lease: How long one lasts, unless its queue has one of its own.
        options: How workers behave, as `ulak worker` takes it.

    Raises:
        NotSupported: no child would see the jobs of the store.
    """
    served: dict[str, tuple[list[str], Duration]] = {}
    for queue, apart in sorted(engine.kernel.queues_apart.items()):
        own = lease if apart.lease is None else apart.lease
        served |= {f"{queue}-{n}": ([queue], own) for n in range(1, apart.workers + 1)}
    if beside := queues_beside(engine):
        served |= {f"worker-{n}": (beside, lease) for n in range(1, workers + 1)}
    features = engine.store.features
    if served and not features.shared:
        raise NotSupported(
            f"ulak up cannot serve queues by children on the {features.name} store, whose jobs no "
            "other process sees; connect to sqlite:///app.db, or run engine.working() in the "
            "program"
        )
    program = [found.app] if found.app else []
    if found.service:
        program += ["--service", found.service]
    return [
        Child(
            name,
            _command(name, queues, [*program, *options, "--lease", f"{seconds(own):g}"]),
            own,
        )
        for name, (queues, own) in served.items()
    ]


def _command(name: str, queues: Sequence[str], arguments: Sequence[str]) -> tuple[str, ...]:
    chosen = [word for queue in queues for word in ("--queue", queue)]
    return (sys.executable, "-m", "ulak", "worker", *arguments, *chosen, "--child", name)
