"""The clean-up: a scheduled job that removes records which have expired."""

from __future__ import annotations

from typing import Final

from ulak.core.flow import Flow
from ulak.core.run import Run
from ulak.engine.engine import Engine
from ulak.idempotency.guard import Guard
from ulak.idempotency.settings import IdempotencySettings

NAME: Final = "idempotency-cleanup"


def attach(engine: Engine, settings: IdempotencySettings) -> None:
    """Have the workers of an engine remove expired records at the dates of the settings.

    `ulak up`, `ulak worker` and every other command do so for the program that they load; a
    program that runs workers itself calls it before it opens the engine. Twice is nothing.
    """
    if NAME in engine.kernel.schedules:
        return
    guard = Guard(engine.store)

    def remove_expired(run: Run[None]) -> int:
        return guard.clean_up(settings.cleanup_batch)

    engine.schedules.add(
        NAME, engine.add(Flow.steps(NAME, remove_expired)), None, cron=settings.cleanup_cron
    )
