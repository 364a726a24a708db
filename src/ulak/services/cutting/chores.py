"""What is done beside the orders: after the end of one, and every minute."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
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
    OnEnd,
    RetryLater,
    Run,
    StaleJob,
    StoreError,
    TransitionNotAllowed,
)
from ulak.kit.clock import to_instant
from ulak.kit.files import TEMPORARY, sweep
from ulak.services.cutting import FLOW
from ulak.services.cutting.codes import ConfigUnavailable, CuttingError
from ulak.services.cutting.delivery import ASIDE, INBOX, Deliveries, Delivery
from ulak.services.cutting.order import payload_hash
from ulak.services.cutting.panel import Breaker
from ulak.services.cutting.plans import collect_plans, read_plan
from ulak.services.cutting.records import Records
from ulak.services.cutting.rules import Config, Rules

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


@dataclass(frozen=True, slots=True)
class Chores:
    """Cleans up after jobs that failed or were cancelled, sweeps, and watches for plans."""

    engine: Engine
    config: Config
    records: Records
    deliveries: Deliveries
    breaker: Breaker

    def declare_chores(self) -> OnEnd:
        """Give the engine the chores; return what follows the end of a job."""
        once_more = Backoff(1_000_000, longest=EVERY)
        aftermath = Flow.steps(AFTERMATH, ("due", self.clean_up), queue=QUEUE, retry=once_more)
        upkeep = Flow.steps(
            UPKEEP, ("due", self.keep_up), queue=QUEUE, retry=0, dedup=Dedup(lambda _: UPKEEP)
        )
        self.engine.add(aftermath)
        self.engine.add(upkeep)
        self.engine.schedules.add(UPKEEP, upkeep, {}, every=EVERY)
        return OnEnd(aftermath, payload=lambda job, code: code and {"job": job.id, "code": code})

    def clean_up(self, run: Run[Any]) -> None:
        """Withdraw the files of a job that was cancelled; try one again that failed, if the rules
        say so. What waits in the inbox is withdrawn when the same order may come again."""
        job_id = run.payload["job"]
        self.breaker.let_go(job_id)
        with suppress(JobNotFound):
            if run.payload["code"] in ("cancelled", "expired"):
                self._remove_files(job_id)
            elif self.config.rules().auto_retry:
                with suppress(TransitionNotAllowed, KeyTaken):
                    self.engine.retry(job_id, actor="auto-retry")
            key = payload_hash(self.engine.inspect.payload(job_id))
            holder = self.engine.find(FLOW, key, tenant=run.tenant)
            if holder is None or holder.id != job_id:
                taken = self.deliveries.withdraw(job_id, self.config.paths().drop_folder)
                run.once("notes", lambda _: self._note(job_id, taken))

    def _note(self, job_id: str, taken: Sequence[Delivery]) -> None:
        for row in taken:
            if row.state == "withdrawn" and row.temporary:
                facts = {"batch": row.batch, "file_name": row.file_name, "sha256": row.sha256}
                self.engine.note(job_id, "cutting.withdrawn", actor=AFTERMATH, **facts)

    def _remove_files(self, job_id: str) -> None:
        """Remove the import files and the plans of a job that has ended."""
        folder = self.config.paths().import_folder
        for each in self.records.read_batches(job_id):
            for path in filter(None, (folder / each.import_file, each.plan_path)):
                path.unlink(missing_ok=True)
        self.records.set_cleared(job_id)

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
            with suppress(OSError):  # of a folder that is away the next jobs tell
                sweep(folder, TEMPORARY, older_than=LEFT_BEHIND)
                sweep(folder, ASIDE, older_than=LEFT_BEHIND)
        before = run.now - timedelta(days=rules.keep_files_days)
        for job_id in self.records.list_old(to_instant(before)):
            run.checkpoint()
            with suppress(OSError):
                try:
                    job = self.engine.get(job_id)
                except JobNotFound:  # it was pruned, so it has ended
                    self._remove_files(job_id)
                else:
                    if job.is_final and job.changed_at < before:
                        self._remove_files(job_id)
        for of in ((chore, state) for chore in (AFTERMATH, UPKEEP) for state in ("done", "failed")):
            self.engine.retention.prune(ended_before=run.now - KEPT, of=of)

    async def _continue_held(self, rules: Rules) -> None:
        which = JobFilter(flow=FLOW, role="held", code=TRIGGER)
        held = self.engine.jobs(which, limit=1000)
        await asyncio.gather(*(self._continue(job, rules) for job in held))

    async def _continue(self, job: Job, rules: Rules) -> None:
        """Let a held job go on if there is a valid plan of every batch."""
        order = self.records.get_order(job.id)
        with suppress(CuttingError, TransitionNotAllowed, StaleJob):
            plans = await collect_plans(
                self.config.paths().export_folder, job.id, self.records.read_batches(job.id),
                not_before_ns=order.attempt_at_ns, patience_s=0,
                stable_s=rules.stable_seconds, poll_s=rules.poll_seconds,
            )  # fmt: skip
            for path in plans.values():
                await read_plan(path, stable_s=rules.stable_seconds)
            await asyncio.to_thread(self.engine.release, job.id, actor="export-folder")
