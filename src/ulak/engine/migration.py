"""Moves the jobs of one version of a flow to another, page by page, by an operator's map.

A page is one transaction, and each of its changes is guarded and has its line in the trail. A
migration that is killed in the middle has moved some jobs and left the others as they were; the
same map, given again, finds those.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Final

from ulak.core.acts import must_act
from ulak.core.change import Change, Committed, Stale
from ulak.core.flow import Flow, names
from ulak.core.intake import keys_of
from ulak.core.job import JobRow, Result
from ulak.core.lifecycle import FINAL
from ulak.core.migration import Migration, check, migrated, with_same_states
from ulak.engine.bulk import Refusal, Refusals
from ulak.engine.kernel import Kernel
from ulak.engine.reads import read_payload
from ulak.errors import BadInput, Contended, TransitionNotAllowed, WriteRefused
from ulak.ids import to_text
from ulak.store.protocol import LARGEST_BATCH_BYTES, CountRow, JobFilter

A_PAGE: Final = 200
# Jobs of an old program that still runs may come into a state that was looked at already. One that
# goes on submitting is not waited for.
MOST_PASSES: Final = 3


@dataclass(frozen=True, slots=True)
class StateMap:
    """What an operator asks for."""

    flow: str
    _: KW_ONLY
    from_version: int
    to_version: int | None = None
    """None is the newest that this program declares."""
    states: Mapping[str, str] = field(default_factory=dict)
    same: bool = False
    """Whether states that both versions have in the same role go to themselves."""


@dataclass(frozen=True, slots=True)
class Migrated:
    """How far a migration has come."""

    flow: str
    from_version: int
    to_version: int
    moved: Mapping[tuple[str, str], int]
    """How many jobs went from which state to which."""
    leased: int
    left: Sequence[Refusal]
    """The first of those that could not be moved."""
    left_count: int
    standing: Mapping[str, int]
    """Unfinished jobs of the old version that are still in states of the map."""


def migrate(
    kernel: Kernel, wanted: StateMap, *, actor: str, note: str = "", dry_run: bool = False
) -> Migrated:
    """Move the jobs of a version by a map; a dry run only looks. `BadInput`: the map cannot be
    followed; nothing was changed. `StoreError`: what was moved so far stays moved."""
    must_act(actor, note)
    migration = _plan(kernel, wanted)
    work = _Work(kernel, migration, actor=actor, note=note, dry_run=dry_run)
    for _ in range(1 if dry_run else MOST_PASSES):
        if not work.sweep():
            break
    return work.report()


def _plan(kernel: Kernel, wanted: StateMap) -> Migration:
    declared = {f.version: f for f in kernel.flows_by_version().values() if f.name == wanted.flow}
    if not declared:
        known = names(sorted({flow.name for flow in kernel.flows}))
        raise BadInput(f'there is no flow "{wanted.flow}"; this program declares {known or "none"}')
    version = max(declared) if wanted.to_version is None else wanted.to_version
    if version not in declared:
        has = ", ".join(map(str, sorted(declared)))
        raise BadInput(f"this program declares {wanted.flow} in version {has}, not in {version}")
    migration = Migration(
        declared[version], from_version=wanted.from_version, states=dict(wanted.states),
        source=declared.get(wanted.from_version),
    )  # fmt: skip
    standing = [(count.state, count.role) for count in _counts(kernel, migration)]
    if wanted.same:
        migration = replace(migration, states=with_same_states(migration, standing))
    check(migration, standing)
    return migration


def _counts(kernel: Kernel, migration: Migration) -> list[CountRow]:
    of = (migration.target.name, migration.from_version)
    return [c for c in kernel.store.counts() if (c.flow, c.flow_version) == of and c.jobs > 0]


class _Work:
    def __init__(
        self, kernel: Kernel, migration: Migration, *, actor: str, note: str, dry_run: bool
    ) -> None:
        self._kernel = kernel
        self._store = kernel.store
        self._migration = migration
        self._actor = actor
        self._note = note
        self._dry_run = dry_run
        self._renames = any(old != new for old, new in migration.states.items())
        self._moved: Counter[tuple[str, str]] = Counter()
        self._leased = 0
        self._left = Refusals()

    def sweep(self) -> int:
        """Look at every job of the map once; return how many were moved."""
        before = self._moved.total()
        self._leased, self._left = 0, Refusals()
        for state in self._migration.states:
            where = JobFilter(flow=self._migration.target.name, state=state)
            after: bytes | None = None
            while rows := self._store.list_jobs(where, after=after, limit=A_PAGE):
                self._move([row for row in rows if self._is_concerned(row)])
                after = rows[-1].id
        return self._moved.total() - before

    def report(self) -> Migrated:
        migration = self._migration
        standing: Counter[str] = Counter()
        for count in _counts(self._kernel, migration):
            is_concerned = count.role not in FINAL and migration.concerns(count.state, count.role)
            if is_concerned and count.state in migration.states:
                standing[count.state] += count.jobs
        return Migrated(
            migration.target.name, migration.from_version, migration.target.version,
            dict(self._moved), self._leased, self._left.first, self._left.count,
            dict(standing),
        )  # fmt: skip

    def _is_concerned(self, row: JobRow) -> bool:
        is_old = row.flow_version == self._migration.from_version
        return is_old and self._migration.concerns(row.state, row.role)

    def _move(self, rows: Sequence[JobRow]) -> None:
        """Move a page, in one transaction unless what its stages have left is very large."""
        changes: list[tuple[JobRow, Change]] = []
        size = 0
        for row in rows:
            if row.leased_by is not None:
                self._leased += 1
                continue
            try:
                change = self._change(row)
            except (BadInput, TransitionNotAllowed) as error:
                self._left.add(row, error)
                continue
            changes.append((row, change))
            size += sum(len(result.data) for result in change.results)
            if size >= LARGEST_BATCH_BYTES:
                self._commit(changes)
                changes, size = [], 0
        self._commit(changes)

    def _change(self, row: JobRow) -> Change:
        results: Sequence[Result] = ()
        if row.has_results and self._renames:
            results = self._store.find_results(row.id)
        return migrated(
            self._migration, row, self._store.clock.now(), actor=self._actor, note=self._note,
            commit_id=self._kernel.new_commit_id(), keys=self._keys(row), results=results,
        )  # fmt: skip

    def _keys(self, row: JobRow) -> str | None:
        """Make the keys of limits and rates anew: those that are stored name the old stages."""
        flow: Flow[Any] = self._migration.target
        payload = self._store.find_payload(row.id) if flow.table.keyed else None
        if payload is None or row.role in FINAL:
            return row.keys
        try:
            return keys_of(flow, read_payload(flow, payload))
        except BadInput:
            raise
        except Exception as error:
            # Code of the user: `upgrade` and the keys. What it says may quote the payload.
            raise BadInput(
                f"job {to_text(row.id)}: version {flow.version} makes no key of its payload "
                f"({type(error).__name__})"
            ) from error

    def _commit(self, changes: Sequence[tuple[JobRow, Change]]) -> None:
        if self._dry_run:
            self._moved.update((row.state, change.row.state) for row, change in changes)
            return
        if not changes:
            return
        batch, began = [change for _, change in changes], time.monotonic()
        try:
            receipts = self._store.commit(batch)
        except (Contended, WriteRefused) as error:
            if len(changes) == 1:
                self._left.add(changes[0][0], error)
                return
            half = len(changes) // 2
            self._commit(changes[:half])
            self._commit(changes[half:])
            return
        self._kernel.telemetry.committed(batch, receipts, time.monotonic() - began)
        for (row, change), receipt in zip(changes, receipts, strict=True):
            if isinstance(receipt, Committed):
                self._moved[row.state, change.row.state] += 1
            elif isinstance(receipt, Stale) and receipt.row and receipt.row.leased_by is not None:
                self._leased += 1
            # Else it has moved by itself meanwhile: if it is still of the map, another look finds
            # it where it stands now.
