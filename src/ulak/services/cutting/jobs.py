"""Jobs as the API shows them, read from the views `cutting_jobs` and `audit_events` as people with
SQL read them, and what people ask of them; and all of cutting in one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal

from ulak import BadInput, Engine, Flow, KeyTaken, StaleJob, StoreError, TransitionNotAllowed
from ulak.errors import NotFound
from ulak.kit import canonical_json
from ulak.kit.breakers import CircuitBreaker
from ulak.kit.files import open_file, restoring
from ulak.services.cutting import FLOW, SCHEMA
from ulak.services.cutting.codes import ConfigUnavailable, JobNotFound, Refused
from ulak.services.cutting.delivery import Deliveries
from ulak.services.cutting.flow import Stages, set_slots
from ulak.services.cutting.optimise.model import Unsolvable
from ulak.services.cutting.optimise.report import make_report, read_batch
from ulak.services.cutting.order import Customers
from ulak.services.cutting.records import Records, StoredBatch
from ulak.services.cutting.rules import Config
from ulak.services.cutting.transform import make_receipt, propose_merges
from ulak.tables import Tables

Document = dict[str, Any]
Documents = list[Document]

CANCEL_S: Final = 5.0  # within so long a running step stops
COLUMNS: Final = (
    "id", "order_id", "payload_json", "payload_hash", "state", "error_code", "error_message",
    "retry_count", "opti_mode", "next_run_at", "manual_trigger_approved", "created_at",
    "updated_at",
)  # fmt: skip
EVENT_COLUMNS: Final = (
    "id", "job_id", "event_type", "message", "details_json", "actor", "created_at",
)  # fmt: skip
_JOBS: Final = f"SELECT {', '.join(COLUMNS)} FROM {{schema}}.cutting_jobs"  # noqa: S608 - constants
_WHERE: Final = " WHERE (? = '' OR state = ?) AND (? = '' OR order_id = ?)"
_GET: Final = f"{_JOBS} WHERE key = ?"
_LIST: Final = f"{_JOBS}{_WHERE} ORDER BY key DESC LIMIT ? OFFSET ?"
_COUNT: Final = "SELECT count(*) FROM {schema}.cutting_jobs" + _WHERE  # noqa: S608 - constants
_AUDIT: Final = (
    "SELECT a.id, a.job_id, a.event_type, m.{language}, a.details_json, a.actor, a.created_at "
    "FROM {{schema}}.audit_events AS a "
    "JOIN {{schema}}.cutting_messages AS m ON m.event_type = a.event_type "
    "WHERE a.key = ? ORDER BY a.id"
)
_CHANGED: Final = (
    "INSERT INTO {schema}.cutting_changes (at, actor, name, values_json) VALUES (?, ?, ?, ?)"
)
_NOT_IN: Final = {"FAILED": "E_JOB_NOT_FAILED", "HOLD": "E_JOB_NOT_IN_HOLD"}


class Jobs:
    """The jobs of one store. Times are texts with milliseconds, and so are JSON columns."""

    def __init__(
        self, engine: Engine, flow: Flow[Any], tables: Tables, config: Config, records: Records
    ) -> None:
        self._engine, self._flow, self._tables = engine, flow, tables
        self._config, self._records = config, records

    def submit(self, payload: Document, *, actor: str, tenant: str = "") -> tuple[Document, bool]:
        """Accept an order that `parse_order` has read; return its job, and whether it is new: the
        same order is the same job until that has failed for good."""
        job = self._engine.submit(
            self._flow, payload, actor=actor, tenant=tenant, repeat_note="cutting.dedup"
        )
        return self.get(job.id), job.created

    def list(
        self, *, state: str = "", order_id: str = "", limit: int = 100, offset: int = 0
    ) -> tuple[Documents, int]:
        """Return jobs, the newest first, and how many there are in all."""
        which = (state, state, order_id, order_id)
        rows = self._tables.read(_LIST, *which, limit, offset)
        total = sum(n for name, n in self.counts().items() if state in ("", name))
        if order_id:  # of an order nobody has counted them
            total = self._tables.read(_COUNT, *which)[0][0]
        return [dict(zip(COLUMNS, row, strict=True)) for row in rows], total

    def counts(self) -> dict[str, int]:
        """Return how many jobs stand in each state."""
        counts = dict[str, int]()
        for row in self._engine.inspect.counts():
            if row.flow == FLOW:
                counts[row.state] = counts.get(row.state, 0) + row.jobs
        return counts

    def get(self, id: str) -> Document:
        """Return a job. Raises `JobNotFound`: there is none, or this is no id."""
        with suppress(BadInput):
            for row in self._tables.read(_GET, self._tables.make_key(id)):
                return dict(zip(COLUMNS, row, strict=True))
        raise JobNotFound(f"there is no job {id[:100]}")

    def audit(self, id: str) -> Documents:
        """Return what has happened to a job, in its order. Raises `JobNotFound`."""
        self.get(id)
        language = "en"
        with suppress(ConfigUnavailable):
            language = self._config.rules().language
        rows = self._tables.read(_AUDIT.format(language=language), self._tables.make_key(id))
        return [dict(zip(EVENT_COLUMNS, row, strict=True)) for row in rows]

    def retry(self, id: str, *, actor: str) -> int:
        """Run a failed job again, after the minutes of the rules; return how often it was retried.
        Raises `JobNotFound`, and `Refused`: it has not failed, was retried too often, or has a code
        that is permanent."""
        try:
            return self._engine.retry(self._find(id, "FAILED"), actor=actor).round - 1
        except StaleJob:  # a line was written, or somebody was faster
            return self.retry(id, actor=actor)
        except KeyTaken as error:
            why = f"the same order is job {error.holder} by now"
            raise Refused("E_RETRY_LIMIT_REACHED", why) from None
        except TransitionNotAllowed as error:
            self._find(id, "FAILED")
            is_spent = error.code == "retries-spent"
            code = "E_RETRY_LIMIT_REACHED" if is_spent else self.get(id)["error_code"]
            raise Refused(code, str(error)) from None

    def approve(self, id: str, *, actor: str) -> Document:
        """Let a held job go on. Raises `JobNotFound`, and `Refused`: it is not in HOLD."""
        try:
            self._engine.release(self._find(id, "HOLD"), actor=actor)
        except StaleJob:
            return self.approve(id, actor=actor)
        except TransitionNotAllowed as error:
            raise Refused(_NOT_IN["HOLD"], str(error)) from None
        return self.get(id)

    def cancel(self, id: str, *, actor: str) -> Document:
        """End a job, and return it as it stands within five seconds: a step that runs is stopped.
        Raises `JobNotFound`, and `Refused`: it has ended."""
        self.get(id)
        try:
            self._engine.cancel(id, actor=actor)
        except TransitionNotAllowed as error:
            raise Refused("E_JOB_FINISHED", str(error)) from None
        with suppress(TimeoutError):
            self._engine.wait(id, timeout=CANCEL_S)
        return self.get(id)

    def xml(self, id: str, batch: int | None = None) -> bytes | Sequence[int]:
        """Return the plan of a batch, or of the only one; without `batch` the numbers of several.
        Raises `JobNotFound`, `Refused`, and `NotFound`: there is no such batch, or its file
        was removed."""
        batches = self._read_planned(id)
        if batch is None and len(batches) > 1:
            return [each.n for each in batches]
        if (batch or 0) >= len(batches):
            raise NotFound(f"job {id} has no batch {batch}; it has 0 to {len(batches) - 1}")
        path = batches[batch or 0].plan_path
        try:
            with open_file(path or self._config.folder) as file:
                return file.read()
        except OSError as error:
            raise NotFound(f"the plan of batch {batch or 0} cannot be read: {error}") from None

    def draw(self, id: str) -> str:
        """Return a page with the plans of a job of mode E, drawn, and labels to print. Raises
        `JobNotFound`, `Refused`, and `NotFound`: its plans cannot be drawn, and why."""
        batches, settings = self._read_planned(id), self._records.get_order(id).settings
        folder = self._config.paths().import_folder
        try:
            drawn = [
                read_batch(each.mark, each.plan_path, folder / each.import_file, settings)
                for each in batches
                if each.plan_path
            ]
        except (OSError, ValueError, Unsolvable) as error:
            raise NotFound(f"the plans of job {id} cannot be drawn: {error}") from None
        return make_report(drawn, f"Order {self.get(id)['order_id']}")

    def merges(self, id: str) -> Documents:
        """Return which rows of an order an operator might have cut as one; nothing is merged.
        Raises `JobNotFound`."""
        self.get(id)
        batches = self._records.read_batches(id)
        return [found for each in batches for found in propose_merges(each.batch)]

    def receipt(self, id: str) -> Document:
        """Return what an order costs. Raises `JobNotFound`, `Refused`."""
        batches = self._read_planned(id)
        solutions = [each.solution for each in batches]
        return make_receipt((each.batch for each in batches), solutions, self._config.rules())

    def configure(self, name: Literal["rules", "paths"], values: Any, *, actor: str) -> Document:
        """Put other rules or paths in force, with a line of who did it; return them. Raises
        `InvalidInput`, naming each key that is wrong, and `StoreError`: nothing was changed."""
        put = self._config.put_rules if name == "rules" else self._config.put_paths
        file = self._config.folder / f"{name}.json"
        with restoring(file, StoreError), self._tables.writing() as connection:
            made = put(values).document()
            facts = (self._tables.now, actor, name, canonical_json(made))
            self._tables.execute(connection, _CHANGED, *facts)
        set_slots(self._engine, self._config.rules())
        return made

    def _find(self, id: str, state: str) -> str:
        """Return the id of a job in this state; raise `JobNotFound` or `Refused` for another."""
        job = self.get(id)
        if job["state"] != state:
            raise Refused(_NOT_IN[state], f"job {id} is in {job['state']}, not in {state}")
        return id

    def _read_planned(self, id: str) -> Sequence[StoredBatch]:
        """Return the batches of a job whose plans were checked."""
        job, batches = self.get(id), self._records.read_batches(id)
        if not batches or any(each.plan_sha256 is None for each in batches):
            why = f"job {id} is in {job['state']}: its plans are not ready yet"
            raise Refused("E_XML_NOT_READY", why)
        return batches


def make_panel(engine: Engine, breaker: CircuitBreaker) -> Document:
    """Return the data of the worker panel (C-82), as JSON."""
    lines = [line for line in engine.inspect.backlog() if line.flow == FLOW]
    waiting = sum(line.due + line.delayed + line.parked for line in lines)
    running = sum(line.leased for line in lines)
    return {"queue_length": waiting, "running": running, **breaker.describe()}


class Cutting:
    """Everything of cutting in one process. The files of rules and paths are made in the folder
    where they are absent, the store is not opened; raises as `attach`."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.engine, self.tables, self.config = engine, Tables(engine, SCHEMA), Config(folder)
        self.config.start()
        self.customers, records = Customers(self.tables), Records(self.tables)
        self.breaker = CircuitBreaker(self.tables, "cutting_breakers", "optimiser")
        self.deliveries = Deliveries(engine, self.tables)
        stages = Stages(engine, self.config, records, self.deliveries, self.breaker, self.customers)
        self.offcuts = records.offcuts
        self.jobs = Jobs(engine, stages.declare(), self.tables, self.config, records)

    def start(self, address: str | None = None) -> Mapping[str, str]:
        """Make the tables, with the views for people who look with SQL; bring the slots of the
        optimiser to what the rules say. Return what `ulak up` says of it."""
        self.tables.ensure()
        set_slots(self.engine, self.config.rules())
        return {} if address is None else {"orders": f"{address}/cutting/"}
