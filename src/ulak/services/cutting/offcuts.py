"""The store of offcuts: rests of plans of mode E, which later orders cut before new plates.

An order is promised what is there of its materials when it is prepared, and nobody else is until it
has ended. When it is DONE, what it has cut is used, the rest of the promise is free again, and its
own rests join. Width and height are those on the plate that an offcut was cut from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple

from ulak.errors import NotFound
from ulak.services.cutting.optimise.reading import OFFCUT
from ulak.services.cutting.optimise.verify import StoredSheet
from ulak.services.cutting.transform import Batch
from ulak.tables import Tables

MOST: Final = 20
"""Offcuts that an order is promised for each batch; a guess, for the sake of its search."""
_THERE: Final = """
SELECT id, material, thickness_mm, width_mm, height_mm, cut_from, promised_to
FROM {schema}.cutting_offcuts WHERE used_at IS NULL ORDER BY id"""
_PROMISE: Final = """
UPDATE {schema}.cutting_offcuts SET promised_to = ? WHERE id IN (
    SELECT id FROM {schema}.cutting_offcuts
    WHERE used_at IS NULL AND promised_to IS NULL AND material = ? AND thickness_mm = ?
    ORDER BY id LIMIT ?{for_update}{skip_locked}
) RETURNING id, width_mm, height_mm"""
_LET_GO: Final = """
UPDATE {schema}.cutting_offcuts SET promised_to = NULL WHERE promised_to = ? AND used_at IS NULL"""
_ALL_USED: Final = """
UPDATE {schema}.cutting_offcuts SET used_at = ? WHERE promised_to = ? AND used_at IS NULL"""
_USED: Final = _ALL_USED + " AND id = ?"
_KEEP: Final = """
INSERT INTO {schema}.cutting_offcuts (
    material, thickness_mm, width_mm, height_mm, cut_from, n, kept_at
) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"""
_REMOVE: Final = """
UPDATE {schema}.cutting_offcuts SET used_at = ?
WHERE id = ? AND promised_to IS NULL AND used_at IS NULL RETURNING id"""


class Offcut(NamedTuple):
    """An offcut that is there; sizes are in mm."""

    id: int
    material: str
    thickness_mm: str
    width_mm: str
    height_mm: str
    cut_from: str
    promised_to: str | None
    """The order that may cut it; None: the next one of its material."""


class Offcuts:
    """Reads and writes the rows of the store."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def list_there(self) -> list[Offcut]:
        """Return what is there, the oldest first."""
        return [Offcut(*row) for row in self._tables.read(_THERE)]

    def promise(self, connection: Any, job_id: str, batch: Batch) -> list[list[str]]:
        """Promise a job the offcuts that its batch may use; return their names and sizes."""
        kind = batch.material_code, batch.thickness
        found = self._tables.execute(connection, _PROMISE, job_id, *kind, MOST)
        return [[f"{OFFCUT}{id}", width, height] for id, width, height in sorted(found)]

    def let_go(self, job_id: str) -> None:
        """Free what a job was promised and has not used."""
        self._tables.write(_LET_GO, job_id)

    def settle(self, job_id: str, plans: Mapping[Batch, Sequence[StoredSheet] | None]) -> None:
        """Note what a job has used, free what it has not, and keep its own rests. Where a plan is
        not known any more, all that was promised counts as used. May be repeated: then nothing
        changes."""
        now, n = self._tables.now, 0
        with self._tables.writing() as connection:
            if None in plans.values():
                self._tables.execute(connection, _ALL_USED, now, job_id)
            for batch, sheets in plans.items():
                for sheet in sheets or ():
                    if sheet.name.startswith(OFFCUT):
                        number = int(sheet.name.removeprefix(OFFCUT))
                        self._tables.execute(connection, _USED, now, job_id, number)
                    for size in sheet.list_offcuts():
                        n += 1
                        sides = (str(Decimal(side) / 100) for side in size)
                        row = batch.material_code, batch.thickness, *sides, job_id, n, now
                        self._tables.execute(connection, _KEEP, *row)
            self._tables.execute(connection, _LET_GO, job_id)

    def remove(self, id: int) -> None:
        """Take an offcut out of the store, which somebody has used or thrown away. Raises
        `NotFound`: it is not there, or promised to an order."""
        if not self._tables.write(_REMOVE, self._tables.now, id):
            raise NotFound(f"there is no offcut {id} that is free; see 'ulak cutting offcuts'")
