"""Queues of other makes whose workers run jobs. The store stays the truth: they carry ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ulak.engine.engine import Engine
from ulak.errors import NotSupported
from ulak.settings import Settings

if TYPE_CHECKING:
    from ulak.dispatch.rq import Dispatch


def find_dispatch(engine: Engine, settings: Settings) -> Dispatch | None:
    """Return what takes jobs to RQ, if the settings name queues for it; nothing is opened. Raises
    `NotSupported`: the extra is not installed; else as `Dispatch` does."""
    if not settings.queues_by_rq:
        return None
    try:
        from ulak.dispatch.rq import Dispatch, connect
    except ModuleNotFoundError as error:
        raise NotSupported(
            f"ULAK_RQ_QUEUES needs {error.name}, which is not installed; pip install 'ulak[rq]'"
        ) from None
    return Dispatch(engine, settings.queues_by_rq, connection=connect())
