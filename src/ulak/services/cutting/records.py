"""What was found of an order and of its batches, in rows: results of stages are void after a retry,
and these say what need not be done again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ulak.kit.clock import Instant
from ulak.kit.files import sha256_of
from ulak.services.cutting.offcuts import Offcuts
from ulak.services.cutting.plans import Plan, make_settings
from ulak.services.cutting.rules import Rules
from ulak.services.cutting.transform import Batch, Prepared, read_batch, rows_json
from ulak.services.cutting.workbook import Written, import_name
from ulak.tables import Tables

_ORDER = """
SELECT settings_json, backing_edge_reset_count, attempt_round, attempt_at_ns,
    (SELECT count(*) FROM {schema}.cutting_batches AS b WHERE b.job_id = o.job_id)
FROM {schema}.cutting_orders AS o WHERE job_id = ?"""
_BATCHES = """
SELECT batch_json, import_file, import_sha256, plan_path, plan_sha256,
    coalesce(solution_json, 'null')
FROM {schema}.cutting_batches WHERE job_id = ? ORDER BY n"""
_ADD_ORDER = """
INSERT INTO {schema}.cutting_orders (
    job_id, rules_hash, settings_json, backing_edge_reset_count, prepared_at
) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING job_id"""
_ADD_BATCH = """
INSERT INTO {schema}.cutting_batches (job_id, n, batch_json, import_file) VALUES (?, ?, ?, ?)"""
_IMPORTED = "UPDATE {schema}.cutting_batches SET import_sha256 = ? WHERE job_id = ? AND n = ?"
_ATTEMPT = """
UPDATE {schema}.cutting_orders SET attempt_round = ?, attempt_at_ns = ?
WHERE job_id = ? AND attempt_round < ?"""
# A run of an earlier round, which has lost its job, changes nothing any more.
_PLANNED = """
UPDATE {schema}.cutting_batches SET plan_path = ?, plan_sha256 = ?, solution_json = ?
WHERE job_id = ? AND n = ?
    AND ? = (SELECT attempt_round FROM {schema}.cutting_orders WHERE job_id = ?)"""
_OLD = "SELECT job_id FROM {schema}.cutting_orders WHERE cleared = 0 AND prepared_at < ?"
_CLEARED = "UPDATE {schema}.cutting_orders SET cleared = 1 WHERE job_id = ?"


@dataclass(frozen=True, slots=True)
class StoredOrder:
    """What PREPARED has found."""

    settings: Mapping[str, Any]
    """Of the optimiser, as the rules had them then."""
    backing_edge_reset_count: int
    attempt_round: int
    """The round in which plans were last asked for; 0 before that."""
    attempt_at_ns: int
    """By the clock of the file system: an older plan is not of this attempt."""
    batch_count: int


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch, its import file, and its plan once that was checked."""

    batch: Batch
    import_file: str
    import_sha256: str | None
    plan_path: Path | None
    plan_sha256: str | None
    solution: Mapping[str, str] | None

    @property
    def n(self) -> int:
        return self.batch.n

    @property
    def mark(self) -> str:
        """What stands behind the id of the job in the names of its files."""
        return Path(self.import_file).stem.partition("_")[2]


class Records:
    """Reads and writes those rows. Each write is a transaction, and may be repeated."""

    def __init__(self, tables: Tables) -> None:
        self._tables, self.offcuts = tables, Offcuts(tables)

    def find_order(self, job_id: str) -> StoredOrder | None:
        """Return what PREPARED found, or None if it was not so far."""
        found = self._tables.read(_ORDER, job_id)
        return StoredOrder(json.loads(found[0][0]), *found[0][1:]) if found else None

    def get_order(self, job_id: str) -> StoredOrder:
        """Return what PREPARED found. Raises `LookupError`: the job has not come so far."""
        if (order := self.find_order(job_id)) is None:
            raise LookupError(f"nothing is stored of job {job_id}; cancel it, and order again")
        return order

    def read_batches(self, job_id: str) -> list[StoredBatch]:
        """Return the batches of an order in their order, none if it was not prepared."""
        return [
            StoredBatch(
                read_batch(batch), file, sha256, plan and Path(plan), digest, json.loads(said)
            )
            for batch, file, sha256, plan, digest, said in self._tables.read(_BATCHES, job_id)
        ]

    def find_plans(self, job_id: str) -> dict[int, Path]:
        """Return the plans that were checked, by batch; none unless each is as it was."""
        batches = self.read_batches(job_id)
        found = {each.n: each.plan_path for each in batches if each.plan_path}
        with suppress(OSError):
            digests = [sha256_of(path) for path in found.values()]
            if digests == [each.plan_sha256 for each in batches]:
                return found
        return {}

    def add(self, job_id: str, found: Prepared, payload: Mapping[str, Any], rules: Rules) -> None:
        """Store what PREPARED found, and promise offcuts if the rules say so; what is there already
        stays."""
        settings, revision = make_settings(payload, rules), payload.get("revision")
        files = {each.n: import_name(job_id, each.mark, revision) for each in found.batches}
        with self._tables.writing() as connection:
            if rules.offcut_store and payload["opti_mode"] == "E":
                settings["offcuts"] = {
                    files[each.n]: self.offcuts.promise(connection, job_id, each)
                    for each in found.batches
                }
            said = rules.version, json.dumps(settings)
            facts = (*said, found.backing_edge_reset_count, self._tables.now)
            if self._tables.execute(connection, _ADD_ORDER, job_id, *facts):
                for each in found.batches:
                    row = (each.n, rows_json(each), files[each.n])
                    self._tables.execute(connection, _ADD_BATCH, job_id, *row)

    def set_imports(
        self, job_id: str, written: Mapping[int, Written], *, round: int, at_ns: int
    ) -> None:
        """Store which import files there are; in a new round also since when plans count."""
        with self._tables.writing() as connection:
            for n, file in written.items():
                self._tables.execute(connection, _IMPORTED, file.sha256, job_id, n)
            self._tables.execute(connection, _ATTEMPT, round, at_ns, job_id, round)

    def set_plans(self, job_id: str, plans: Mapping[int, tuple[str, Plan]], *, round: int) -> None:
        """Store the plans that were checked, by batch."""
        with self._tables.writing() as connection:
            for n, (path, plan) in plans.items():
                solution = None if plan.solution is None else json.dumps(plan.solution)
                row = (path, plan.sha256, solution, job_id, n, round, job_id)
                self._tables.execute(connection, _PLANNED, *row)

    def list_old(self, before: Instant) -> list[str]:
        """Return the jobs that were prepared before then and have their files yet."""
        return [job_id for (job_id,) in self._tables.read(_OLD, before)]

    def set_cleared(self, job_id: str) -> None:
        """Note that the files of a job were removed."""
        self._tables.write(_CLEARED, job_id)
