"""The flow of an order: ten states, and what is done on the way from each to the next."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

from ulak import (
    Backoff,
    BadInput,
    Dedup,
    Flow,
    Hold,
    Lifecycle,
    Limit,
    RetryLater,
    Run,
    Until,
)
from ulak.kit.files import read_clock
from ulak.services.cutting import FLOW
from ulak.services.cutting.chores import LOOK_S, QUEUE, TRIGGER, Chores, patience
from ulak.services.cutting.codes import ConfigUnavailable, CuttingError, HoldCode, PermanentError
from ulak.services.cutting.delivery import PlanFile
from ulak.services.cutting.modes import make_settings, run_mode
from ulak.services.cutting.order import LARGEST_ORDER, Customers, parse_order, payload_hash
from ulak.services.cutting.plans import Plan, collect_plans, find_plans, read_plan
from ulak.services.cutting.rules import DEFAULT_RULES, Config, Rules
from ulak.services.cutting.transform import import_note
from ulak.services.cutting.transform import prepare as make_batches
from ulak.services.cutting.workbook import Written, check_template, write_import

LIFECYCLE: Final = Lifecycle(
    "NEW",
    {
        "NEW": "PREPARED", "PREPARED": "OPTI_IMPORTED", "OPTI_IMPORTED": "OPTI_RUNNING",
        "OPTI_RUNNING": "OPTI_DONE", "OPTI_DONE": "XML_READY", "XML_READY": "DELIVERED",
        "DELIVERED": "DONE",
    },
    done="DONE", held="HOLD", failed="FAILED", cancelled="FAILED", expired="FAILED",
    release_to="NEW", retry_to="NEW",
)  # fmt: skip
SHARED_SLOT: Final = "all"
# Stages that wait keep their own deadlines; rules allow 100,000 minutes.
LONGEST: Final = timedelta(days=100)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stages(Chores):
    """The stages of the flow, and the chores beside it."""

    customers: Customers

    def declare(self) -> Flow[Any]:
        """Give the engine the flow of orders, which is returned, and the chores."""
        flow: Flow[Any] = Flow(
            FLOW, LIFECYCLE, queue=QUEUE, retry=0, operator_retry=_ByRules(config=self.config),
            dedup=Dedup(self.make_key, until=Until.FAILED_FOR_GOOD), permanent={PermanentError},
            max_payload=LARGEST_ORDER, on_end=self.declare_chores(),
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
        flow.stage("DELIVERED")(lambda run: None)  # the saw has acknowledged every plan
        self.engine.add(flow)
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
                self.records.add(
                    run.job_id, found, revision=run.payload.get("revision"), now=run.now,
                    rules_hash=rules.version, settings=make_settings(run.payload, rules),
                )  # fmt: skip
            order = self.records.get_order(run.job_id)
        if (resets := order.backing_edge_reset_count) and order.attempt_round == 0:
            run.note("cutting.backing-edge-reset", count=resets)
        facts = {"batch_count": order.batch_count, "backing_edge_reset_count": resets}
        run.note("cutting.prepared", **facts)
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
        why = "run the optimiser on the import files, then approve"
        return _hold(run, HoldCode(TRIGGER, why))

    async def optimise(self, run: Run[Any]) -> dict[str, str]:
        """Have every batch planned; return the path of each plan. Plans that were checked in an
        earlier round are not made again."""
        with patience():
            plans = await asyncio.to_thread(self.records.find_plans, run.job_id)
            plans = plans or await _until_stopped(run, self._optimise(run))
        run.note("cutting.optimised", xml_files=[plans[n].name for n in sorted(plans)])
        return {str(n): str(path) for n, path in plans.items()}

    async def _optimise(self, run: Run[Any]) -> dict[int, Path]:
        mode, key = run.payload["opti_mode"], run.key("optimise")
        rules, paths = self.config.rules(), self.config.paths()
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
        try:
            files = [paths.import_folder / each.import_file for each in batches]
            await run_mode(mode, files, paths=paths, settings=order.settings, run=run)
            found = await collect_plans(
                *of_job, not_before_ns=since_ns, stable_s=rules.stable_seconds,
                patience_s=(deadline - run.now).total_seconds(), poll_s=rules.poll_seconds,
            )  # fmt: skip
        except CuttingError as error:
            if mode != "C":
                await asyncio.to_thread(self.breaker.failed, key, error.code, error.message)
            raise
        if mode != "C":
            await asyncio.to_thread(self.breaker.succeeded, key)
        return found

    def check(self, run: Run[Any], paths: Mapping[str, str]) -> None:
        """Read the plan of every batch, and store what it says with its SHA-256."""
        with patience():
            stable_s, plans = self.config.rules().stable_seconds, dict[int, tuple[str, Plan]]()
            for n, path in paths.items():
                run.checkpoint()
                plans[int(n)] = path, asyncio.run(read_plan(Path(path), stable_s=stable_s))
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

    async def _find_deadline(self, run: Run[Any], minutes: float) -> datetime:
        """Return when the state in which a job stands has lasted for so long: a restart changes
        nothing of it."""
        job = await self.engine.aio.get(run.job_id)
        return job.changed_at + timedelta(minutes=minutes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ByRules(Backoff):
    """How often operators may retry, and after how long, by the rules as they are then."""

    config: Config

    def limit(self) -> int:
        return self._read()[0]

    def delay_us(self, failures: int, job_id: bytes) -> int | None:
        most, minutes = self._read()
        if failures > most:
            return None
        return int(minutes[min(failures, len(minutes)) - 1] * 60_000_000)

    def _read(self) -> tuple[int, tuple[float, ...]]:
        try:
            rules = self.config.rules()
        except ConfigUnavailable:  # a job must be able to end all the same
            rules = Rules.model_validate(DEFAULT_RULES)
        return rules.retry_count_max, rules.retry_backoff_minutes


def _hold(run: Run[Any], error: HoldCode) -> Hold:
    """Return the hold of a job, with a note that has the details: the audit shows that one."""
    facts = {"errorCode": error.code, "reason": error.message, **error.details}
    run.note("cutting.held", **facts)
    return Hold(error.code, error.message)


async def _until_stopped(run: Run[Any], work: Coroutine[Any, Any, T]) -> T:
    """Return what the work returns; end it, and raise `Stopped`, when the run should stop."""
    task = asyncio.create_task(work)
    try:
        while not (await asyncio.wait({task}, timeout=LOOK_S))[0]:
            run.checkpoint()
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
