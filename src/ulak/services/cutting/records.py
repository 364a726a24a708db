"""What PREPARED found of an order, and what came of each of its batches: rows that outlive a retry.

The results of stages are void after a retry; these say which steps need not be done again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ulak.kit.clock import Instant
from ulak.kit.files import sha256_of
from ulak.services.cutting.plans import Plan
from ulak.services.cutting.transform import Batch, Prepared, read_batch, rows_json
from ulak.services.cutting.workbook import Written, import_name
from ulak.tables import Tables

_ORDER: Final = (
    "SELECT o.settings_json, o.backing_edge_reset_count, o.attempt_round, o.attempt_at_ns, "
    "(SELECT count(*) FROM {schema}.cutting_batches AS b WHERE b.job_id = o.job_id) "
    "FROM {schema}.cutting_orders AS o WHERE o.job_id = ?"
)
_BATCHES: Final = (
    "SELECT n, mark, part_type, color, thickness, material_code, rows_json, import_file, "
    "import_sha256, plan_path, plan_sha256, solution_json "
    "FROM {schema}.cutting_batches WHERE job_id = ? ORDER BY n"
)
_ADD_ORDER: Final = (
    "INSERT INTO {schema}.cutting_orders (job_id, rules_hash, settings_json, "
    "backing_edge_reset_count, prepared_at) VALUES (?, ?, ?, ?, ?) "
    "ON CONFLICT DO NOTHING RETURNING job_id"
)
_ADD_BATCH: Final = (
    "INSERT INTO {schema}.cutting_batches (job_id, n, mark, part_type, color, thickness, "
    "material_code, rows_json, import_file) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_IMPORTED: Final = (
    "UPDATE {schema}.cutting_batches SET import_sha256 = ?, import_mtime_ns = ? "
    "WHERE job_id = ? AND n = ?"
)
_ATTEMPT: Final = (
    "UPDATE {schema}.cutting_orders SET attempt_round = ?, attempt_at_ns = ? "
    "WHERE job_id = ? AND attempt_round < ?"
)
# A run of an earlier round, which has lost its job, changes nothing any more.
_PLANNED: Final = (
    "UPDATE {schema}.cutting_batches SET plan_file = ?, plan_path = ?, plan_sha256 = ?, "
    "solution_json = ? WHERE job_id = ? AND n = ? AND ? = "
    "(SELECT attempt_round FROM {schema}.cutting_orders WHERE job_id = ?)"
)
_OLD: Final = (
    "SELECT job_id FROM {schema}.cutting_orders WHERE cleared = 0 AND prepared_at < ? "
    "ORDER BY prepared_at"
)
_CLEARED: Final = "UPDATE {schema}.cutting_orders SET cleared = 1 WHERE job_id = ?"


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
    mark: str
    """What of the import file's name stands behind the id of the job: that of its plan has it."""
    import_file: str
    import_sha256: str | None
    plan_path: Path | None
    plan_sha256: str | None
    solution: Mapping[str, str] | None

    @property
    def n(self) -> int:
        return self.batch.n

    def has_plan(self) -> bool:
        """Tell whether the plan that was checked is still there, as it was."""
        try:
            return self.plan_path is not None and sha256_of(self.plan_path) == self.plan_sha256
        except OSError:
            return False


class Records:
    """Reads and writes those rows. Each write is a transaction, and may be repeated."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def find_order(self, job_id: str) -> StoredOrder | None:
        """Return what PREPARED found, or None if it was not so far."""
        found = self._tables.read(_ORDER, job_id)
        return StoredOrder(json.loads(found[0][0]), *found[0][1:]) if found else None

    def read_batches(self, job_id: str) -> list[StoredBatch]:
        """Return the batches of an order in their order, none if it was not prepared."""
        return [_read(job_id, row) for row in self._tables.read(_BATCHES, job_id)]

    def add(
        self, job_id: str, found: Prepared, *, revision: int | None, rules_hash: str,
        settings: Mapping[str, Any], now: Instant,
    ) -> None:  # fmt: skip
        """Store what PREPARED found; what is there already stays."""
        facts = (rules_hash, json.dumps(settings), found.backing_edge_reset_count, now)
        with self._tables.writing() as connection:
            if not self._tables.execute(connection, _ADD_ORDER, job_id, *facts):
                return
            for each in found.batches:
                name = import_name(job_id, each.mark, revision)
                key = (each.n, each.mark, each.part_type, each.color, each.thickness)
                rest = (each.material_code, rows_json(each), name)
                self._tables.execute(connection, _ADD_BATCH, job_id, *key, *rest)

    def set_imports(
        self, job_id: str, written: Mapping[int, Written], *, round: int, at_ns: int
    ) -> None:
        """Store which import files there are, by batch; in a new round also since when plans
        count."""
        with self._tables.writing() as connection:
            for n, file in written.items():
                facts = (file.sha256, file.mtime_ns)
                self._tables.execute(connection, _IMPORTED, *facts, job_id, n)
            self._tables.execute(connection, _ATTEMPT, round, at_ns, job_id, round)

    def set_plans(self, job_id: str, plans: Mapping[int, tuple[Path, Plan]], *, round: int) -> None:
        """Store the plans that were checked, by batch."""
        with self._tables.writing() as connection:
            for n, (path, plan) in plans.items():
                solution = None if plan.solution is None else json.dumps(plan.solution)
                facts = (path.name, str(path), plan.sha256, solution)
                self._tables.execute(connection, _PLANNED, *facts, job_id, n, round, job_id)

    def list_old(self, before: Instant) -> list[str]:
        """Return the jobs that were prepared before then and have their files yet."""
        return [job_id for (job_id,) in self._tables.read(_OLD, before)]

    def set_cleared(self, job_id: str) -> None:
        """Note that the files of a job were removed."""
        with self._tables.writing() as connection:
            self._tables.execute(connection, _CLEARED, job_id)


def _read(job_id: str, row: Sequence[Any]) -> StoredBatch:
    import_file, sha256, path, plan_sha256, solution = row[7:]
    return StoredBatch(
        read_batch(*row[:7]),
        import_file.removeprefix(f"{job_id}_").removesuffix(".xlsx"),
        import_file, sha256, None if path is None else Path(path), plan_sha256,
        None if solution is None else json.loads(solution),
    )  # fmt: skip
