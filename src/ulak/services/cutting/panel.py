"""The worker panel: how the optimiser fares, and the breaker that lets it rest when it is broken."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ulak import Engine
    from ulak.tables import Tables


class Breaker:
    """The circuit breaker of the optimiser: one row, the same for every worker of the store.

    Three failures in a row open it for 300 s; then one job is the probe. `run_key` names a run of
    the optimiser, the same on every attempt of a round: `run.key("optimise")`.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def may_start(self, run_key: str) -> timedelta | None:
        """Return None when this run may start, also as the probe, else how long it has to wait.

        The same run may ask any number of times.
        """
        raise NotImplementedError

    def failed(self, run_key: str, code: str, message: str) -> None:
        """Count a failure of the optimiser; telling it twice counts once."""
        raise NotImplementedError

    def succeeded(self, run_key: str) -> None:
        """Count a success, which closes the breaker."""
        raise NotImplementedError

    def let_go(self, job_id: str) -> None:
        """Free the place of the probe, if this job has it: it has ended and told neither."""
        raise NotImplementedError

    def reset(self, actor: str) -> None:
        """Close the breaker, as an administrator."""
        raise NotImplementedError


def panel(engine: Engine, tables: Tables) -> dict[str, Any]:
    """Return the data of the worker panel (C-82), as JSON."""
    raise NotImplementedError
