"""What operators set, as `ulak.store.operators` decides it: written if nobody came between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ulak.clock import Instant
from ulak.core.job import OF_STATE, OF_UNDO
from ulak.core.lifecycle import BUSY, READY, UNDOING
from ulak.core.policy import LimitTerms
from ulak.errors import Contended
from ulak.store import flow_control as control
from ulak.store.operators import BUCKETS, CREDENTIALS, OperatorVerbs, Table
from ulak.store.protocol import AuditRow, BucketRow, CredentialRow, LimitRow, SlotRow, TickRow
from ulak.store.redis.base import MOST_READ, MOST_TRIES, RedisBase
from ulak.store.redis.values import NUL, job_id, pack, raw, read_map, unpack

T = TypeVar("T")


def _key(table: Table) -> str:
    return f"ulak:{table.name}"


def _row(table: Table, field: str, stored: bytes) -> Any:
    return table.row(*field.split(NUL, table.names - 1), *unpack(stored))


class Draft:
    """What one act writes: rows that it has read stay as they were until then, or nothing is."""

    def __init__(self, store: RedisBase, now: Instant) -> None:
        self._store = store
        self.now = now
        self._checks: dict[tuple[str, str], bytes | None] = {}
        self._seen: dict[tuple[str, str], bytes] = {}
        """Rows of whole tables: of these only what is written must stay."""
        self._writes: list[tuple[str, str, object]] = []
        self._acts: list[tuple[object, ...]] = []

    def find(self, table: Table, *name: str) -> Any:
        field = NUL.join(name)
        stored = self.watch(_key(table), field)
        return None if stored is None else _row(table, field, stored)

    def find_all(self, table: Table) -> list[Any]:
        found = read_map(self._store.do("HGETALL", _key(table)))
        self._seen |= {(_key(table), field): stored for field, stored in found.items()}
        return [_row(table, *each) for each in sorted(found.items())]

    def watch(self, key: str, field: str) -> bytes | None:
        """Have a field of a hash stay as it is until this is written."""
        found: bytes | None = self._store.do("HGET", key, field)
        self._checks[key, field] = found
        return found

    def put(self, table: Table, row: Any) -> None:
        self._write(table, row[: table.names], raw(pack(row[table.names :])))

    def drop(self, table: Table, *name: str) -> None:
        self._write(table, name, None)

    def _write(self, table: Table, name: tuple[str, ...], row: object) -> None:
        self._keep(table, name)
        self._writes.append((_key(table), NUL.join(name), row))

    def _keep(self, table: Table, name: tuple[str, ...]) -> None:
        at = (_key(table), NUL.join(name))
        self._checks.setdefault(at, self._seen.get(at))

    def act(self, verb: str, *args: object) -> None:
        """Do something else with it, by its name in `control.lua`."""
        self._acts.append((verb, *args))

    def note(self, actor: str, act: str, subject: str, note: str | None, details: str) -> None:
        self.act("note", actor, act, subject, note or None, details)

    def open_slots(self, limit: str, places: int) -> None:
        self.act("open_slots", limit, places)

    def open_all(self, limit: LimitRow) -> None:
        self.act("open_all", limit.name, bool(limit.keyed))

    def put_bucket(self, bucket: BucketRow) -> None:
        self._keep(BUCKETS, bucket[:1])
        self.act("put_bucket", *bucket)

    def let_in(self) -> None:
        self.act("let_in")

    def write(self, kind: str) -> bool:
        """Write it; False when somebody came between."""
        checks = [
            (*at, None if value is None else raw(value)) for at, value in self._checks.items()
        ]
        return bool(self._store.call("swap", checks, self._writes, self._acts, kind=kind))


class RedisControl(RedisBase, OperatorVerbs):
    """What operators set."""

    def _decide(self, kind: str, work: Callable[[Draft], T]) -> T:
        """Do what `work` decides, from what it reads, at one moment."""
        for _ in range(MOST_TRIES):
            draft = Draft(self, self.clock.now())
            answer = work(draft)
            if draft.write(kind):
                return answer
        raise Contended(f"{self._server.address}: others change the same; try again")

    def _rows(self, table: Table) -> list[Any]:
        found = read_map(self.do("HGETALL", _key(table)))
        return [_row(table, *each) for each in sorted(found.items())]

    def _adopt(self, name: str, terms: LimitTerms) -> None:
        flow, source = control.parts_of_limit(name)
        marks = {
            f"{source}/{READY}": terms.mark,
            f"{terms.busy}/{BUSY}": OF_STATE,
            f"{terms.busy}/{UNDOING}": OF_UNDO,
        }
        limit = {
            "name": name, "flow": flow, "source": source, "busy": terms.busy, "marks": marks,
            "keyed": terms.keyed,
        }  # fmt: skip
        self.call("adopt", limit, kind="declare")

    def find_credential(self, kind: str, id: str) -> CredentialRow | None:
        field = NUL.join((kind, id))
        stored = self.do("HGET", _key(CREDENTIALS), field)
        return None if stored is None else _row(CREDENTIALS, field, stored)

    def slots(self, limit: str | None = None) -> list[SlotRow]:
        rows = []
        for name, flat in self.call("slots", limit):
            found = {int(n): row.decode().split("|", 2) for n, row in read_map(flat).items()}
            for n, (closed, of_state, held_by) in sorted(found.items()):
                holder = job_id(held_by[:36]) if held_by else None
                rows.append(SlotRow(name.decode(), n, holder, int(closed), int(of_state)))
        return rows

    def audit_trail(
        self, *, subject: str | None = None, before: int | None = None, limit: int = 100
    ) -> list[AuditRow]:
        found: list[AuditRow] = []
        last: int = self.do("LLEN", "ulak:audit")
        end = last if before is None else min(last, before - 1)
        while end > 0 and len(found) < limit:
            start = max(0, end - MOST_READ)
            page = self.do("LRANGE", "ulak:audit", start, end - 1)
            lines = [AuditRow(start + n, *unpack(row)) for n, row in enumerate(page, 1)]
            found += [line for line in reversed(lines) if subject in (None, line.subject)]
            end = start
        return found[:limit]

    def ticks(
        self, schedule: str, *, before: Instant | None = None, limit: int = 100
    ) -> list[TickRow]:
        upto = "+inf" if before is None else f"({before}"
        key, most = f"ulak:ticks:{schedule}", ("LIMIT", 0, limit)
        found = self.do("ZREVRANGEBYSCORE", key, upto, "-inf", *most)
        parts = (each.decode().split(":", 1) for each in found)
        return [TickRow(schedule, int(at), job_id(owner)) for at, owner in parts]
