"""Reading: jobs and what belongs to them, lists, counts, scans."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import count, islice, repeat
from operator import itemgetter
from typing import Any
from urllib.parse import unquote

from ulak.clock import Instant
from ulak.core.admission import Waiting
from ulak.core.backlog import (
    DELAYED,
    DUE,
    LEASED,
    MOST_ENDS,
    PARKED,
    RATE_OVER_US,
    Standing,
    bounded_counts,
    last_ends,
)
from ulak.core.bounds import short_key
from ulak.core.change import Change
from ulak.core.intake import PRIORITIES
from ulak.core.job import Event, JobRow, Payload, Request, Result
from ulak.ids import find_range, first_id, is_time_ordered, to_text
from ulak.store.batches import FIRST_HASH, linked
from ulak.store.operators import Table
from ulak.store.protocol import (
    CountRow,
    DedupRow,
    JobFilter,
    Progress,
    ProofRow,
    WorkerRow,
)
from ulak.store.protocol.filters import UNREMARKABLE, find_terms, matcher
from ulak.store.redis.base import MOST_READ
from ulak.store.redis.outbox import RedisOutbox
from ulak.store.redis.scripts import MOST_CHANGED
from ulak.store.redis.values import (
    NUL,
    job_id,
    raw,
    read_event,
    read_map,
    read_payload,
    read_requests,
    read_results,
    read_row,
    unpack,
    write_change,
)

UNORDERED = "ulak:unordered"
LAST = "~"
"""Stands after every id, and after every name that begins with one."""
WORKERS = Table("workers", WorkerRow)
# So many names of an index are read at once.
MOST_NAMED = 50_000


class RedisReads(RedisOutbox):
    """What only reads."""

    def find_job(self, job_id: bytes) -> JobRow | None:
        found = self.call("find", to_text(job_id))
        return None if found is None else read_row(found)

    def find_payload(self, job_id: bytes) -> Payload | None:
        found = self._part(job_id, "payload", "HMGET", "data", "schema", "trace")
        return read_payload(*found) if found and found[0] is not None else None

    def find_results(self, job_id: bytes) -> list[Result]:
        return read_results(job_id, self._part(job_id, "results", "HGETALL"))

    def find_key(self, tenant: str, flow: str, key: str) -> bytes | None:
        found = self.call("find_key", tenant, flow, key)
        return None if found is None else job_id(found.decode())

    def find_owners(self, job_id: bytes) -> list[str]:
        return [owner.decode() for owner in self._part(job_id, "owners", "ZRANGE", "0", "-1")]

    def find_owned(
        self, owner: str, *, before: tuple[Instant, bytes] | None = None, limit: int = 100
    ) -> list[tuple[Instant, bytes]]:
        upto = "+inf" if before is None else before[0]
        found: list[tuple[Instant, bytes]] = []
        start = 0
        while len(found) < limit:
            words = (f"ulak:owned:{owner}", upto, "-inf", "WITHSCORES", "LIMIT", start, MOST_READ)
            page = read_map(self.do("ZREVRANGEBYSCORE", *words))
            pairs = [(int(at), job_id(name[:36])) for name, at in page.items()]
            found += [pair for pair in pairs if before is None or pair < before]
            if not page:
                break
            start += len(page)
        return found[:limit]

    def find_commits(self, changes: Sequence[Change]) -> list[bool]:
        found = self.call("find_commits", [write_change(change) for change in changes])
        return [bool(one) for one in found]

    def find_progress(self, job_id: bytes) -> Progress | None:
        found = self._part(job_id, "job", "HGET", "progress")
        return Progress(job_id, *json.loads(found)) if found else None

    def trail(self, job_id: bytes, *, after: int = 0, limit: int = 1000) -> list[Event]:
        if limit <= 0:
            return []
        lines = self._part(job_id, "trail", "LRANGE", str(after), str(after + limit - 1))
        return [read_event(job_id, line) for line in lines]

    def pending_requests(self, job_id: bytes) -> list[Request]:
        return read_requests(self._part(job_id, "requests", "HVALS"))

    def _part(self, owner: bytes, kind: str, command: str, *args: str) -> Any:
        return self.call("part", to_text(owner), kind, command, *args)

    # Lists -----------------------------------------------------------------------

    def list_jobs(
        self, where: JobFilter, *, after: bytes | None = None, limit: int = 100
    ) -> list[JobRow]:
        return list(islice(self._matching(where, after, limit), limit))

    def count_jobs(self, where: JobFilter, *, after: bytes | None = None) -> int:
        return sum(1 for _ in self._matching(where, after, MOST_READ))

    def _matching(self, where: JobFilter, after: bytes | None, first: int) -> Iterator[JobRow]:
        """Read jobs until nobody asks for more: `first` at first, then the more, the more do not
        match."""
        names = self._named(where)
        sizes = (min(first << n, MOST_READ) for n in count())
        rows = (
            self._downward(where, after, sizes)
            if names is None
            else self._loaded(names, after, sizes)
        )
        return filter(matcher(where), rows)

    def _named(self, where: JobFilter) -> list[str] | None:
        """Return the names of jobs that an index has for a filter, if one has few enough."""
        found: list[bytes] | None = None
        if where.owner is not None:
            found = self.do("ZRANGE", f"ulak:owned:{where.owner}", 0, -1)
        elif where.dedup_key is not None:
            found = self.call("keyed", short_key(where.dedup_key))
        elif where.role is not None and where.role not in UNREMARKABLE:
            found = self.call("with_role", where.role, where.flow or "", MOST_NAMED)
        return None if found is None else [name.decode() for name in found]

    def _loaded(
        self, names: list[str], after: bytes | None, sizes: Iterator[int]
    ) -> Iterator[JobRow]:
        last = LAST if after is None else to_text(after)
        below = iter(sorted((name for name in names if name[:36] < last), reverse=True))
        while page := list(islice(below, next(sizes))):
            rows = self.call("load_all", page)
            yield from (read_row(row) for row in rows if row is not None)

    def _downward(
        self, where: JobFilter, after: bytes | None, sizes: Iterator[int]
    ) -> Iterator[JobRow]:
        """Read jobs from the newest on, or those of a range of ids or of times."""
        if where.id_prefix is not None:
            first, last = find_range(where.id_prefix)
            return self._between(to_text(first), to_text(last) + LAST, after, sizes)
        span = {t.operator: t.value for t in find_terms(where) if t.column == "created_at"}
        if not span:
            return self._between("", LAST, after, sizes)
        since, before = span.get(">="), span.get("<")
        bounds = ("-inf" if since is None else since, "+inf" if before is None else f"({before}")
        # Ids that tell no time have an index by it.
        names = [name.decode() for name in self.do("ZRANGEBYSCORE", UNORDERED, *bounds)]
        ordered = self._between(
            "" if since is None else to_text(first_id(since)),
            LAST if before is None else to_text(first_id(before)), after, sizes,
        )  # fmt: skip
        return merge(
            (row for row in ordered if is_time_ordered(row.id)),
            self._loaded(names, after, repeat(MOST_READ)),
            key=itemgetter(0), reverse=True,
        )  # fmt: skip

    def _between(
        self, first: str, end: str, after: bytes | None, sizes: Iterator[int]
    ) -> Iterator[JobRow]:
        below = end if after is None else min(end, to_text(after))
        while page := self._page(f"[{first}", f"({below}", next(sizes), is_down=True):
            yield from page
            below = to_text(page[-1].id)

    def _page(self, least: str, upto: str, limit: int, *, is_down: bool) -> list[JobRow]:
        return [read_row(row) for row in self.call("page", least, upto, limit, is_down) if row]

    def scan_jobs(self, *, after: bytes = b"", limit: int = 1000) -> list[JobRow]:
        least = f"({to_text(after)}{LAST}" if after else "-"
        return self._page(least, "+", limit, is_down=False)

    def ended(
        self, flow: str, state: str, *, before: Instant, limit: int, after: bytes = b""
    ) -> list[JobRow]:
        names: list[bytes] = []
        offset, is_over = 0, False
        while not is_over:
            found, is_over = self.call("ended", flow, state, before, offset)
            names += found
            offset += MOST_CHANGED
        above = to_text(after).encode() if after else b""
        first = sorted(name for name in names if name[:36] > above)[:limit]
        rows = self.call("load_all", [name.decode() for name in first])
        return [read_row(row) for row in rows if row is not None]

    def due(self, limit: int, *, after: tuple[Instant, bytes] = (0, b"")) -> list[JobRow]:
        at, last = after
        above = to_text(last) if last else ""
        return [read_row(row) for row in self.call("due", limit, at, above)]

    def find_claimable(self, lane: str, limit: int) -> list[JobRow]:
        names: list[bytes] = []
        for priority in PRIORITIES:
            left = limit - len(names)
            if left > 0:
                line = f"ulak:lane:{lane}:{priority}"
                upto = self.clock.now()
                names += self.do("ZRANGEBYSCORE", line, "-inf", upto, "LIMIT", 0, left)
        rows: list[JobRow] = []
        for start in range(0, len(names), MOST_READ):
            page = [name.decode() for name in names[start : start + MOST_READ]]
            rows += [read_row(row) for row in self.call("load_all", page) if row]
        # A page is read after its names: some may have been taken meanwhile.
        return [row for row in rows if row.leased_by is None and row.lane == lane]

    def overdue_leased(self, limit: int) -> list[JobRow]:
        return [read_row(row) for row in self.call("overdue_leased", limit)]

    def asked(self, limit: int, *, after: bytes = b"") -> list[tuple[JobRow, list[Request]]]:
        found = self.call("asked", limit, to_text(after) if after else "")
        return [(read_row(row), read_requests(requests)) for row, requests in found]

    def leased(self, worker: str) -> list[JobRow]:
        return [read_row(row) for row in self.call("leased", worker) if row]

    def workers(self) -> list[WorkerRow]:
        return self._rows(WORKERS)

    # Counts ----------------------------------------------------------------------

    def counts(self) -> list[CountRow]:
        return _read_counts(read_map(self.do("HGETALL", "ulak:counts")))

    def count_waiting(self, waiting: Waiting) -> int:
        if not waiting.lanes:
            return 0
        fields = [NUL.join((lane, waiting.tenant)) for lane in waiting.lanes]
        found = self.do("HMGET", "ulak:waiting", *fields)
        return min(sum(int(number or 0) for number in found), waiting.limit)

    def count_standing(self) -> Standing:
        now, answer = self.call_at("standing", MOST_ENDS, _seconds_ago(self.clock.now()))
        lanes, leased, parked, counts, ends = answer
        jobs: Counter[tuple[str, str]] = Counter()
        due: dict[str, Instant] = {}
        since: dict[str, Instant] = {}
        for lane, is_due, delayed, first in lanes:
            name = lane.decode()
            jobs[name, DUE] += is_due
            jobs[name, DELAYED] += delayed
            if int(first) <= now:
                due[name] = min(int(first), due.get(name, now))
        for lane, at in leased:
            name = lane.decode()
            jobs[name, LEASED] += 1
            since[name] = min(int(at or now), since.get(name, now))
        for name, number in read_map(parked).items():
            jobs[name, PARKED] += int(number)
        totals: Counter[tuple[str, str]] = Counter()
        for row in _read_counts(read_map(counts)):
            totals[row.flow, row.role] += row.jobs
        over = [(int(at), flow.decode(), role.decode()) for flow, role, at in ends]
        return Standing(now, bounded_counts(jobs), due, since, last_ends(over, now), totals)

    # Scans -----------------------------------------------------------------------

    def scan_keys(self) -> Iterator[DedupRow]:
        """Of keys that come or go meanwhile there may be some."""
        seen: set[bytes] = set()
        cursor = b""
        while cursor != b"0":
            cursor, flat = self.do("ZSCAN", "ulak:keys", cursor or 0, "COUNT", MOST_READ)
            found = dict(zip(flat[::2], flat[1::2], strict=True))
            fresh = [name for name in found if name not in seen]
            seen.update(fresh)
            owners = self.do("MGET", *fresh) if fresh else []
            for name, owner in zip(fresh, owners, strict=True):
                if owner is not None:
                    yield _read_key(name.decode(), owner.decode(), found[name])

    def scan_proofs(self, tenant: str, *, after: int = 0, limit: int = 1000) -> list[ProofRow]:
        self._chain(tenant)
        lines, hashes = f"ulak:proofs:{tenant}", f"ulak:hashes:{tenant}"
        upto = after + limit - 1
        found = self.do("LRANGE", lines, after, upto)
        links = self.do("LRANGE", hashes, after, upto)
        rows = []
        for n, (line, link) in enumerate(zip(found, links, strict=False), after + 1):
            owner, seq, body = unpack(line)
            rows.append(ProofRow(tenant, n, job_id(owner), seq, body.encode(), link))
        return rows

    def proof_heads(self) -> dict[str, tuple[int, bytes]]:
        tenants = self.do("SMEMBERS", "ulak:proofs")
        return {tenant.decode(): self._chain(tenant.decode()) for tenant in sorted(tenants)}

    def _chain(self, tenant: str) -> tuple[int, bytes]:
        """Write the hashes that are missing in a chain; return its last number and hash."""
        while True:
            number, link, lines = self.call("unchained", tenant, MOST_READ)
            if not lines:
                return number, link
            bodies = [unpack(line)[2].encode() for line in lines]
            proofs = linked(number, link or FIRST_HASH, [("", b"", 0, body) for body in bodies])
            links = [proof[-1] for proof in proofs]
            self.call("chain", tenant, number, [raw(link) for link in links])

    def scan_orphans(self) -> list[str]:
        found = self.call("orphans")
        last: bytes | None = b"0"
        while last is not None:
            last, lost = self.call("lost_messages", raw(last), MOST_READ)
            found += lost
        pairs = {(kind.decode(), owner.decode()) for kind, owner in found}
        return sorted(f"{kind} of job {owner}: there is no such job" for kind, owner in pairs)


def _read_key(name: str, owner: str, until_at: bytes) -> DedupRow:
    flow, _, *parts = name.split(":")
    *tenant, key = map(unquote, parts)
    until = None if until_at == b"inf" else int(until_at)
    return DedupRow("".join(tenant), flow, key, job_id(owner), until)


def _seconds_ago(now: Instant) -> str:
    return f"{(now - RATE_OVER_US) / 1e6:.6f}"


def _read_counts(found: Any) -> list[CountRow]:
    rows = []
    for name, number in found.items():
        flow, version, state, role = name.split(NUL)
        rows.append(CountRow(flow, int(version), state, role, int(number)))
    return sorted(row for row in rows if row.jobs)
