"""Faults of the server: it stands still, its host vanishes, others lock, a standby takes over."""

from __future__ import annotations

from bench.soak.faults.frame import Fault, Ground


def stop_server(ground: Ground) -> None:
    """Every process of PostgreSQL is stopped for 20 s; its kernel goes on acknowledging.

    A run whose stage waits for the store meanwhile may spend an attempt on its timeout. Nothing
    is lost, nothing counts twice.
    """
    with ground.server.frozen():
        ground.last(20.0)


FAULTS = (Fault("stopped", ("postgres",), stop_server),)
