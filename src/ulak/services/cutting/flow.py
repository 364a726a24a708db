"""The flow of an order: ten states, what is done on the way from each to the next, and the chores
after the end of one and every minute."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise, product
from pathlib import Path
from typing import Any, Final

import ulak
from ulak import Backoff, Dedup, Engine, Flow, Hold, Lifecycle, Limit, OnEnd, RetryLater, Run, Until
from ulak.errors import BadInput, JobNotFound, KeyTaken, StaleJob, StoreError, TransitionNotAllowed
from ulak.kit.breakers import CircuitBreaker
from ulak.kit.clock import to_instant
from ulak.kit.files import TEMPORARY, read_clock, sweep
from ulak.kit.threads import until_stopped
from ulak.services.cutting import FLOW
from ulak.services.cutting.codes import ConfigUnavailable, CuttingError, HoldCode, PermanentError
from ulak.services.cutting.delivery import ASIDE, INBOX, NOTES, WITHDRAWN, Deliveries, PlanFile
from ulak.services.cutting.optimise.document import read_sheets
from ulak.services.cutting.optimise.model import CHECKPOINT
from ulak.services.cutting.optimise.verify import BadPlan, StoredSheet
from ulak.services.cutting.order import LARGEST_ORDER, Customers, parse_order, payload_hash
from ulak.services.cutting.plans import (
    collect_plans,
    find_plans,
    read_plan,
    run_mode,
    verify_plan,
)
from ulak.services.cutting.records import Records
from ulak.services.cutting.rules import DEFAULT_RULES, Config, Rules
from ulak.services.cutting.transform import Batch, import_note
from ulak.services.cutting.transform import prepare as make_batches
from ulak.services.cutting.workbook import Written, check_template, write_import

PATH: Final = (
    "NEW", "PREPARED", "OPTI_IMPORTED", "OPTI_RUNNING", "OPTI_DONE", "XML_READY", "DELIVERED",
    "DONE",
)  # fmt: skip
LIFECYCLE: Final = Lifecycle(
    "NEW", dict(pairwise(PATH)), done="DONE", held="HOLD", failed="FAILED", cancelled="FAILED",
    expired="FAILED", release_to="NEW", retry_to="NEW",
)  # fmt: skip
QUEUE: Final = "cutting"
AFTERMATH: Final = "cutting-aftermath"
UPKEEP: Final = "cutting-upkeep"
TRIGGER: Final = "E_OPERATOR_TRIGGER_REQUIRED"
SHARED_SLOT: Final = "all"
EVERY: Final = timedelta(minutes=1)
WATCHES_S: Final = 55.0
WATCH_EVERY_S: Final = 2.0
# Stages that wait keep their own deadlines; rules allow 100,000 minutes.
LONGEST: Final = timedelta(days=100)
PAUSE: Final = timedelta(seconds=5)  # for a configuration or a database that is away
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
    """Give the modes the slots of the rules; jobs share those that there were when they came."""
    name = f"{FLOW}/OPTI_IMPORTED"
    there = {limit.key: limit.n for limit in engine.flow_control.limits() if limit.name == name}
    for mode, n in rules.optimiser_slots.items():
        if there.get(mode) != n:
            engine.flow_control.set_limit(name, n, key=mode, actor=UPKEEP)


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages of the flow; and the chores, which clean up after jobs that failed or were
    cancelled, sweep, and watch for plans."""

    engine: Engine
    config: Config
    records: Records
    deliveries: Deliveries
    breaker: CircuitBreaker
    customers: Customers

    def declare(self) -> Flow[Any]:
        """Give the engine the flow of orders, which is returned, and the chores."""
        once_more, alone = Backoff(1_000_000, longest=EVERY), Dedup(lambda _: UPKEEP)
        aftermath = Flow.steps(AFTERMATH, ("due", self.clean_up), queue=QUEUE, retry=once_more)
        upkeep = Flow.steps(UPKEEP, ("due", self.keep_up), queue=QUEUE, retry=0, dedup=alone)
        after = OnEnd(aftermath, payload=lambda job, code: code and {"job": job.id, "code": code})
        flow: Flow[Any] = Flow(
            FLOW, LIFECYCLE, queue=QUEUE, retry=0, operator_retry=_ByRules(config=self.config),
            dedup=Dedup(self.make_key, until=Until.FAILED_FOR_GOOD), permanent={PermanentError},
            max_payload=LARGEST_ORDER, on_end=after,
        )  # fmt: skip
        one = Limit(1, key=self.choose_slot, of="state")
        flow.stage("NEW")(self.prepare)
        flow.stage("PREPARED")(self.write_imports)
        optimise = flow.stage("OPTI_IMPORTED", during="OPTI_RUNNING", limit=one, timeout=LONGEST)(
            self.optimise
        )
        optimise.before(self.may_optimise)
        flow.stage("OPTI_DONE")(lambda run: self.check(run, run.result(optimise)))
        flow.stage("XML_READY", timeout=LONGEST)(self.deliver)
        flow.stage("DELIVERED")(self.settle)  # the saw has acknowledged every plan
        for each in (aftermath, upkeep, flow):
            self.engine.add(each)
        self.engine.schedules.add(UPKEEP, upkeep, {}, every=EVERY)
        return flow

    def make_key(self, payload: Any) -> str:
        """Return the hash of an order. Raises `BadInput`: it was not read by `parse_order`."""
        if parse_order(payload, rules=self.config.rules()) != payload:
            raise BadInput("this order was not checked; send it to POST /cutting/jobs")
        return payload_hash(payload)

    def choose_slot(self, payload: Mapping[str, Any]) -> str:
        """Name the slots that a job shares in OPTI_RUNNING: those of all, or of its mode."""
        mode = str(payload["opti_mode"])
        return mode if mode in self.config.rules().optimiser_slots else SHARED_SLOT

    def prepare(self, run: Run[Any]) -> Hold | None:
        """Find the batches of an order, once: rules that change later change nothing of it."""
        with patience():
            if self.records.find_order(run.job_id) is None:
                rules, paths = self.config.rules(), self.config.paths()
                try:
                    found = make_batches(
                        run.payload, rules,
                        customer_known=lambda phone: self.customers.find(phone) is not None,
                        check_template=lambda: check_template(paths.template_path),
                    )  # fmt: skip
                except HoldCode as error:
                    return _hold(run, error)
                self.records.add(run.job_id, found, run.payload, rules)
            order = self.records.get_order(run.job_id)
        if (resets := order.backing_edge_reset_count) and order.attempt_round == 0:
            run.note("cutting.backing-edge-reset", count=resets)
        run.note("cutting.prepared", batch_count=order.batch_count, backing_edge_reset_count=resets)
        return None

    def write_imports(self, run: Run[Any]) -> Hold | None:
        """Write the import file of each batch, unless it is there."""
        with patience():
            order, paths = self.records.get_order(run.job_id), self.config.paths()
            batches = self.records.read_batches(run.job_id)
            is_new = order.attempt_round != run.round
            # Of the two folders either may have the slower clock.
            at_ns = read_clock(paths.export_folder) if is_new else 0
            written: dict[int, Written] = {}
            for each in batches:
                target = paths.import_folder / each.import_file
                if not is_new and run.payload["opti_mode"] == "C" and target.exists():
                    continue  # the operator may have it open
                try:
                    written[each.n] = file = write_import(
                        paths.template_path, [row.cells for row in each.batch.rows], target,
                        note=import_note(each.batch), recorded=each.import_sha256 or "",
                    )  # fmt: skip
                except HoldCode as error:
                    return _hold(run, error)
                # A later attempt asks for new plans, of whatever age the import files are.
                at_ns = at_ns if order.attempt_round else min(at_ns, file.mtime_ns)
            self.records.set_imports(run.job_id, written, round=run.round, at_ns=at_ns)
        run.note("cutting.imported", import_files=[each.import_file for each in batches])
        return None

    async def may_optimise(self, run: Run[Any]) -> Hold | RetryLater | None:
        """Have the operator asked in mode C, and the others wait while the breaker is open."""
        with patience():
            if await asyncio.to_thread(self.records.find_plans, run.job_id):
                return None
            if run.payload["opti_mode"] != "C":
                wait = await asyncio.to_thread(self.breaker.may_start, run.key("optimise"))
                why = "the optimiser has failed three times in a row"
                return None if wait is None else RetryLater(wait, why=why)
        approved, void = run.released(TRIGGER), run.retried("E_OPTI_XML_TIMEOUT")
        if approved is not None and (void is None or void.seq < approved.seq):
            return None
        return _hold(run, HoldCode(TRIGGER, "run the optimiser on the import files, then approve"))

    async def optimise(self, run: Run[Any]) -> dict[str, str]:
        """Have every batch planned, unless an earlier round has checked its plans; return paths."""
        with patience():
            plans = await asyncio.to_thread(self.records.find_plans, run.job_id)
            plans = plans or await until_stopped(self._optimise(run), run.checkpoint)
        run.note("cutting.optimised", xml_files=[plans[n].name for n in sorted(plans)])
        return {str(n): str(path) for n, path in plans.items()}

    async def _optimise(self, run: Run[Any]) -> dict[int, Path]:
        mode, rules, paths = run.payload["opti_mode"], self.config.rules(), self.config.paths()
        order = await asyncio.to_thread(self.records.get_order, run.job_id)
        batches = await asyncio.to_thread(self.records.read_batches, run.job_id)
        deadline = await self._find_deadline(run, rules.timeouts.opti_xml_minutes)
        of_job: Any = (paths.export_folder, run.job_id, batches)
        since_ns = order.attempt_at_ns
        if mode != "C":
            # What a program of this attempt has left that died with its runner may be half a plan.
            left = await asyncio.to_thread(find_plans, *of_job, not_before_ns=since_ns)
            for path in left.values():
                path.unlink(missing_ok=True)
        counting = self.breaker.counting(run.key("optimise"), CuttingError)
        async with nullcontext() if mode == "C" else counting:
            files = [paths.import_folder / each.import_file for each in batches]
            await run_mode(mode, files, paths=paths, settings=order.settings, run=run)
            return await collect_plans(
                *of_job, not_before_ns=since_ns, stable_s=rules.stable_seconds,
                patience_s=(deadline - run.now).total_seconds(), poll_s=rules.poll_seconds,
            )  # fmt: skip

    def check(self, run: Run[Any], paths: Mapping[str, str]) -> None:
        """Read the plan of every batch, and store what it says with its SHA-256. Plans of mode E
        are checked against the order, by code that shares nothing with the search."""
        with patience():
            stable_s = self.config.rules().stable_seconds
            order, plans = self.records.get_order(run.job_id), {}
            folder = self.config.paths().import_folder
            files = {each.n: each.import_file for each in self.records.read_batches(run.job_id)}
            for n, path in paths.items():
                run.checkpoint()
                plans[int(n)] = path, asyncio.run(read_plan(Path(path), stable_s=stable_s))
                # An order that an earlier release has prepared has a plan of that release.
                if run.payload["opti_mode"] == "E" and "seconds" in order.settings:
                    verify_plan(Path(path), folder / files[int(n)], order.settings)
            self.records.set_plans(run.job_id, plans, round=run.round)

    async def deliver(self, run: Run[Any]) -> Hold | None:
        """Deliver every plan to the saw, and wait for its answers."""
        with patience():
            rules, paths = self.config.rules(), self.config.paths()
            batches = await asyncio.to_thread(self.records.read_batches, run.job_id)
            plans = [
                PlanFile(each.n, each.plan_path, each.plan_sha256)
                for each in batches
                if each.plan_path and each.plan_sha256
            ]
            deadline = await self._find_deadline(run, rules.timeouts.osi_ack_minutes)
            try:
                await self.deliveries.deliver(
                    run, plans, paths.drop_folder, deadline=deadline, poll_s=rules.poll_seconds
                )
            except HoldCode as error:
                return _hold(run, error)
        return None

    def settle(self, run: Run[Any]) -> None:
        """Note which offcuts were used, and keep the rests of the plans, if the order has a share
        in the store."""
        with patience():
            order = self.records.get_order(run.job_id)
            plans: dict[Batch, Sequence[StoredSheet] | None] = {}
            if "offcuts" not in order.settings:
                return
            for each in self.records.read_batches(run.job_id):
                try:
                    plans[each.batch] = read_sheets((each.plan_path or Path()).read_bytes())
                except (OSError, BadPlan) as error:  # it is cut: the order is done all the same
                    plans[each.batch] = None
                    run.note("cutting.offcuts-lost", mark=each.mark, reason=str(error))
            self.records.offcuts.settle(run.job_id, plans)

    async def _find_deadline(self, run: Run[Any], minutes: float) -> datetime:
        """Return when a job's state has lasted for so long: a restart changes nothing of it."""
        job = await self.engine.aio.get(run.job_id)
        return job.changed_at + timedelta(minutes=minutes)

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
                rows = self.deliveries.withdraw(job_id, self.config.paths().drop_folder)
                taken = [row.facts for row in rows if row.state == WITHDRAWN]
                run.once("notes", lambda _: self._note(job_id, taken))

    def _note(self, job_id: str, taken: Sequence[Mapping[str, Any]]) -> None:
        for facts in taken:
            self.engine.note(job_id, NOTES[WITHDRAWN], actor=AFTERMATH, **facts)

    def _remove_files(self, job_id: str) -> None:
        """Remove the import files, the plans and the checkpoints of a job that has ended; free the
        offcuts that it was promised."""
        self.records.offcuts.let_go(job_id)
        paths = self.config.paths()
        for each in self.records.read_batches(job_id):
            file = paths.import_folder / each.import_file
            best = paths.export_folder / f"{file.stem}{CHECKPOINT}"
            for path in filter(None, (file, best, each.plan_path)):
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
                asyncio.run(until_stopped(self._continue_held(rules), run.checkpoint))
                if time.monotonic() > ends_at:
                    break
                rules = self.config.rules()

    def _sweep(self, run: Run[Any], rules: Rules) -> None:
        paths, before = self.config.paths(), run.now - timedelta(days=rules.keep_files_days)
        inbox = paths.drop_folder / INBOX
        for folder in (paths.import_folder, paths.export_folder, paths.temp_folder, inbox):
            with suppress(OSError):  # of a folder that is away the next jobs tell
                sweep(folder, TEMPORARY, ASIDE, older_than=LEFT_BEHIND)
        for job_id in self.records.list_old(to_instant(before)):
            run.checkpoint()
            try:
                job = self.engine.get(job_id)
                is_old = job.is_final and job.changed_at < before
            except JobNotFound:  # it was pruned, so it has ended
                is_old = True
            if is_old:
                with suppress(OSError):
                    self._remove_files(job_id)
        for of in product((AFTERMATH, UPKEEP), ("done", "failed")):
            self.engine.retention.prune(ended_before=run.now - KEPT, of=of)

    async def _continue_held(self, rules: Rules) -> None:
        """Look once at the plans of each job that waits for its operator, then wait a while."""
        which = ulak.JobFilter(flow=FLOW, role="held", code=TRIGGER)
        held = self.engine.jobs(which, limit=1000)
        await asyncio.gather(*(self._continue(job.id, rules) for job in held))
        await asyncio.sleep(WATCH_EVERY_S)

    async def _continue(self, job_id: str, rules: Rules) -> None:
        """Let a held job go on if there is a valid plan of every batch."""
        order = self.records.get_order(job_id)
        with suppress(CuttingError, TransitionNotAllowed, StaleJob):
            plans = await collect_plans(
                self.config.paths().export_folder, job_id, self.records.read_batches(job_id),
                not_before_ns=order.attempt_at_ns, patience_s=0,
                stable_s=rules.stable_seconds, poll_s=rules.poll_seconds,
            )  # fmt: skip
            for path in plans.values():
                await read_plan(path, stable_s=rules.stable_seconds)
            await asyncio.to_thread(self.engine.release, job_id, actor="export-folder")


@dataclass(frozen=True, slots=True, kw_only=True)
class _ByRules(Backoff):
    """How often operators may retry, and after how long, by the rules as they are then."""

    config: Config

    def limit(self) -> int:
        return self._read().retry_count_max

    def delay_us(self, failures: int, job_id: bytes) -> int | None:
        rules = self._read()
        minutes = rules.retry_backoff_minutes[:failures][-1]
        return None if failures > rules.retry_count_max else int(minutes * 60_000_000)

    def _read(self) -> Rules:
        try:
            return self.config.rules()
        except ConfigUnavailable:  # a job must be able to end all the same
            return Rules.model_validate(DEFAULT_RULES)


def _hold(run: Run[Any], error: HoldCode) -> Hold:
    """Return the hold of a job, with a note that has the details: the audit shows that one."""
    run.note("cutting.held", errorCode=error.code, reason=error.message, **error.details)
    return Hold(error.code, error.message)
