"""What is done beside the orders: after the end of one, and every minute."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from ulak import (
    Backoff,
    Dedup,
    Engine,
    Flow,
    Job,
    JobFilter,
    JobNotFound,
    KeyTaken,
    RetryLater,
    Run,
    StaleJob,
    StoreError,
    TransitionNotAllowed,
)
from ulak.kit.clock import to_instant
from ulak.kit.files import TEMPORARY, sweep
from ulak.services.cutting import FLOW
from ulak.services.cutting.codes import (
    TRANSIENT_ERROR_CODES,
    ConfigUnavailable,
    CuttingError,
)
from ulak.services.cutting.delivery import ASIDE, INBOX, Deliveries
from ulak.services.cutting.order import payload_hash
from ulak.services.cutting.panel import Breaker
from ulak.services.cutting.plans import collect_plans, read_plan
from ulak.services.cutting.records import Records
from ulak.services.cutting.rules import Config, Rules

log = logging.getLogger("ulak.cutting")

QUEUE: Final = "cutting"
TRIGGER: Final = "E_OPERATOR_TRIGGER_REQUIRED"
AFTERMATH: Final = "cutting-aftermath"
UPKEEP: Final = "cutting-upkeep"
EVERY: Final = timedelta(minutes=1)
WATCHES_S: Final = 55.0
WATCH_EVERY_S: Final = 2.0
LOOK_S: Final = 0.2
"""How often what waits looks whether it should stop."""
# How long a job waits for a configuration or a database that is away.
PAUSE: Final = timedelta(seconds=5)
KEPT: Final = timedelta(days=1)
LEFT_BEHIND: Final = timedelta(hours=1)


@contextmanager
def patience() -> Iterator[None]:
    """Have a step tried again later when the configuration or the database is away."""
    try:
        yield
    except (ConfigUnavailable, StoreError) as error:
        raise RetryLater(PAUSE, why=str(error)) from error


def set_slots(engine: Engine, rules: Rules) -> None:
    """Give the modes the slots that the rules say; jobs share those that there were when they
    came."""
    name = f"{FLOW}/OPTI_IMPORTED"
    there = {limit.key: limit.n for limit in engine.flow_control.limits() if limit.name == name}
    for mode, n in rules.optimiser_slots.items():
        if there.get(mode) != n:
            engine.flow_control.set_limit(name, n, key=mode, actor=UPKEEP)


def follow_end(job: Job, code: str | None) -> dict[str, str] | None:
    """Return what the aftermath of an end needs to know; None when it ended well."""
    return None if code is None else {"job_id": job.id, "code": code}


@dataclass(frozen=True, slots=True)
class Chores:
    """Cleans up after jobs that failed or were cancelled, sweeps, and watches for plans."""

    engine: Engine
    config: Config
    records: Records
    deliveries: Deliveries
    breaker: Breaker

    def declare(self) -> Flow[Any]:
        """Give the engine the chores; return the flow of what follows an end."""
        once_more = Backoff(1_000_000, longest=EVERY)
        aftermath = Flow.steps(AFTERMATH, ("due", self.clean_up), queue=QUEUE, retry=once_more)
        upkeep = Flow.steps(
            UPKEEP, ("due", self.keep_up), queue=QUEUE, retry=0, dedup=Dedup(lambda _: UPKEEP)
        )
        self.engine.add(aftermath)
        self.engine.add(upkeep)
        self.engine.schedules.add(UPKEEP, upkeep, {}, every=EVERY)
        return aftermath

    def clean_up(self, run: Run[Any]) -> None:
        """Withdraw the files of a job that was cancelled; try one again that failed, if the rules
        say so. What waits in the inbox is withdrawn when the same order may come again."""
        job_id, code = run.payload["job_id"], run.payload["code"]
        self.breaker.let_go(job_id)
        with suppress(JobNotFound):
            if code in ("cancelled", "expired"):
                self._remove_imports(job_id)
            elif self.config.rules().auto_retry and _shown(code) in TRANSIENT_ERROR_CODES:
                with suppress(TransitionNotAllowed, KeyTaken):
                    self.engine.retry(job_id, actor="auto-retry")
            key = payload_hash(self.engine.inspect.payload(job_id))
            holder = self.engine.find(FLOW, key, tenant=run.tenant)
            if holder is None or holder.id != job_id:
                self._withdraw(run, job_id)

    def _remove_imports(self, job_id: str) -> None:
        folder = self.config.paths().import_folder
        for each in self.records.read_batches(job_id):
            (folder / each.import_file).unlink(missing_ok=True)

    def _withdraw(self, run: Run[Any], job_id: str) -> None:
        taken = self.deliveries.withdraw(job_id, self.config.paths().drop_folder)

        def note(_: str) -> None:
            for row in taken:
                if row.state == "withdrawn" and row.temporary:
                    facts = {"batch": row.batch, "file_name": row.file_name, "sha256": row.sha256}
                    self.engine.note(job_id, "cutting.withdrawn", actor=AFTERMATH, **facts)

        run.once("note", note)

    def keep_up(self, run: Run[Any]) -> None:
        """Sweep what nobody needs any more; then go on with held jobs whose plans have come, if
        the rules say so, until the next one of these begins."""
        ends_at = time.monotonic() + WATCHES_S
        with patience():
            rules = self.config.rules()
            set_slots(self.engine, rules)
            self._sweep(run, rules)
            while rules.auto_continue_c:
                asyncio.run(self._continue_held(rules))
                again = time.monotonic() + WATCH_EVERY_S
                if again > ends_at:
                    break
                while time.monotonic() < again:
                    run.checkpoint()
                    time.sleep(LOOK_S)
                rules = self.config.rules()

    def _sweep(self, run: Run[Any], rules: Rules) -> None:
        paths = self.config.paths()
        inbox = paths.drop_folder / INBOX
        for folder in (paths.import_folder, paths.export_folder, paths.temp_folder, inbox):
            with _logged(folder):
                sweep(folder, TEMPORARY, older_than=LEFT_BEHIND)
                sweep(folder, ASIDE, older_than=LEFT_BEHIND)
        ended_before = run.now - timedelta(days=rules.keep_files_days)
        for job_id in self.records.list_old(to_instant(ended_before)):
            run.checkpoint()
            with _logged(paths.import_folder):
                self._clear(job_id, ended_before, paths.import_folder)
        for of in ((chore, state) for chore in (AFTERMATH, UPKEEP) for state in ("done", "failed")):
            self.engine.retention.prune(ended_before=run.now - KEPT, of=of)

    def _clear(self, job_id: str, ended_before: datetime, import_folder: Path) -> None:
        """Remove the import files and plans of a job that ended before then."""
        with suppress(JobNotFound):  # one that was pruned has ended
            job = self.engine.get(job_id)
            if not job.is_final or job.changed_at > ended_before:
                return
        for each in self.records.read_batches(job_id):
            for path in (import_folder / each.import_file, each.plan_path):
                if path is not None:
                    path.unlink(missing_ok=True)
        self.records.set_cleared(job_id)

    async def _continue_held(self, rules: Rules) -> None:
        which = JobFilter(flow=FLOW, role="held", code=TRIGGER)
        held = self.engine.jobs(which, limit=1000)
        await asyncio.gather(*(self._continue(job, rules) for job in held))

    async def _continue(self, job: Job, rules: Rules) -> None:
        """Let a held job go on if there is a valid plan of every batch."""
        order, batches = self.records.find_order(job.id), self.records.read_batches(job.id)
        if order is None:
            return
        with suppress(CuttingError, TransitionNotAllowed, StaleJob):
            plans = await collect_plans(
                self.config.paths().export_folder, job.id, batches,
                not_before_ns=order.attempt_at_ns, patience_s=0,
                stable_s=rules.stable_seconds, poll_s=rules.poll_seconds,
            )  # fmt: skip
            for path in plans.values():
                await read_plan(path, stable_s=rules.stable_seconds)
            await asyncio.to_thread(self.engine.release, job.id, actor="export-folder")


def _shown(code: str) -> str:
    """Return a code of the service for one that the engine stores, as the views do."""
    return code if code.startswith("E_") else "E_UNKNOWN"


@contextmanager
def _logged(folder: Path) -> Iterator[None]:
    """Let the next chore be done when a folder does not answer."""
    try:
        yield
    except OSError as error:
        log.warning("a folder cannot be swept", extra={"folder": str(folder), "error": str(error)})
