"""Leases: what renews one, the row of its worker, and what becomes of those that are lost."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from ulak.clock import Instant
from ulak.core import event as kinds
from ulak.core.job import OF_STATE, Event, JobRow, Payload, Request, Result, wanted_slot
from ulak.core.lifecycle import BUSY, READY
from ulak.store.batches import own_event
from ulak.store.protocol import Claim, ClaimRequest, Renewal
from ulak.store.sql.session import JOB_COLUMNS, RESULT_COLUMNS, as_job, as_request, as_result
from ulak.store.sqlite import control
from ulak.store.sqlite.commits import ANY_REQUESTS
from ulak.store.sqlite.intake import Rest
from ulak.store.sqlite.rows import PACKED_IDS, pack
from ulak.store.sqlite.session import Transaction

LEASE = f"""
    UPDATE OR FAIL jobs SET leased_by = ?2, leased_at = ?3, token = token + 1, stood = 1
    WHERE id IN {PACKED_IDS}
"""
# One job, each value bound: a lone job is most of what an idle worker claims.
LEASE_ONE = f"""
    UPDATE jobs SET leased_by = ?, leased_at = ?, token = token + 1, stood = 1
    WHERE id = ? RETURNING {JOB_COLUMNS}
"""
ENTER = f"""
    UPDATE OR FAIL jobs SET state = ?2, role = '{BUSY}', version = version + 1, seq = seq + 1,
                    changed_at = ?3
    WHERE id IN {PACKED_IDS}
"""
# A payload that is longer than this is read on its own: as digits of JSON it would be in memory
# three times over.
LONGEST_PACKED = 4096
LEASED = f"""
    SELECT json_group_array(json_array(
        hex(id), {", ".join(JobRow._fields[1:])}, schema, trace,
        CASE WHEN length(data) <= {LONGEST_PACKED} THEN hex(data) END
    ))
    FROM jobs JOIN payloads ON payloads.job_id = jobs.id WHERE jobs.id IN {PACKED_IDS}
"""
PAYLOAD = "SELECT data, schema, trace FROM payloads WHERE job_id = ?"
RESULTS = f"""
    SELECT {RESULT_COLUMNS} FROM results WHERE job_id IN {PACKED_IDS}
    ORDER BY job_id, round, stage, name
"""
# By the time of day only where one of the two does not know how long the machine has been running.
LAPSED = """
    FROM workers
    WHERE CASE WHEN boot IS NULL OR ?2 = '' THEN expires_at <= ?1
               ELSE boot <> ?2 OR ends_us <= ?3 END
"""
LAPSED_WORKERS = f"SELECT id {LAPSED} ORDER BY id"
LEASED_BY = f"SELECT {JOB_COLUMNS} FROM jobs WHERE leased_by = ? ORDER BY id"
IS_HOLDING = "SELECT 1 FROM jobs WHERE leased_by = ? LIMIT 1"
LAPSE = """
    UPDATE jobs SET leased_by = NULL, token = ?, lapses = ?, lapsed = 1, not_before = ?,
                    version = ?, seq = ?
    WHERE id = ?
"""
FORGET_WORKER = "DELETE FROM workers WHERE id = ?"
REGISTER = """
    INSERT INTO workers (id, started_at, renewed_at, expires_at, lanes, about, boot, ends_us)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET started_at = excluded.started_at,
        renewed_at = excluded.renewed_at, expires_at = excluded.expires_at,
        lanes = excluded.lanes, about = excluded.about, boot = excluded.boot,
        ends_us = excluded.ends_us
"""
RENEW = """
    UPDATE workers SET renewed_at = ?, expires_at = ?, boot = ?, ends_us = ? WHERE id = ?
"""
END_LEASE = "UPDATE workers SET expires_at = ?, ends_us = ? WHERE id = ?"
REQUESTS_OF_WORKER = f"""
    SELECT {", ".join(f"requests.{name}" for name in Request._fields)}
    FROM requests CROSS JOIN jobs ON jobs.id = requests.job_id
    WHERE jobs.leased_by = ? ORDER BY requests.job_id, requests.at, kind, name
"""
_SLOT = JobRow._fields.index("slot")
_decode_rows = msgspec.json.Decoder(list[list[Any]]).decode


def lease(t: Transaction, chosen: Sequence[bytes], request: ClaimRequest) -> list[Claim]:
    found = (
        _lease_one(t, chosen[0], request) if len(chosen) == 1 else _lease_many(t, chosen, request)
    )
    _load_results(t, found)
    if request.entries:
        _enter(t, found, request)
    return [found[job_id] for job_id in chosen]


def _lease_one(t: Transaction, job_id: bytes, request: ClaimRequest) -> dict[bytes, Claim]:
    [row] = t.db.execute(LEASE_ONE, (request.worker, t.now, bytearray(job_id))).fetchall()
    return {job_id: Claim(as_job(row), _read_payload(t, job_id), ())}


def _lease_many(
    t: Transaction, chosen: Sequence[bytes], request: ClaimRequest
) -> dict[bytes, Claim]:
    ids = pack(chosen)
    t.db.execute(LEASE, (ids, request.worker, t.now))
    found: dict[bytes, Claim] = {}
    for facts in _decode_rows(t.db.execute(LEASED, (ids,)).fetchone()[0]):
        digits, trace, schema = facts.pop(), facts.pop(), facts.pop()
        job_id = facts[0] = bytes.fromhex(facts[0])
        if digits is None:
            payload = _read_payload(t, job_id)
        else:
            payload = Payload(bytes.fromhex(digits), schema, trace)
        found[job_id] = Claim(as_job(facts), payload, ())
    return found


def _read_payload(t: Transaction, job_id: bytes) -> Payload:
    return Payload(*t.db.execute(PAYLOAD, (bytearray(job_id),)).fetchone())


def _load_results(t: Transaction, claims: dict[bytes, Claim]) -> None:
    job_ids = [job_id for job_id, claim in claims.items() if claim.row.has_results]
    if not job_ids:
        return
    found: dict[bytes, list[Result]] = {}
    for row in t.db.execute(RESULTS, (pack(job_ids),)).fetchall():
        found.setdefault(row[0], []).append(as_result(row))
    for job_id, results in found.items():
        claims[job_id] = claims[job_id]._replace(results=tuple(results))


def _enter(t: Transaction, claims: dict[bytes, Claim], request: ClaimRequest) -> None:
    entered: dict[str, list[bytes]] = {}
    kept: list[bytes] = []
    written: list[tuple[JobRow, Event]] = []
    for job_id, claim in claims.items():
        row = claim.row
        entry = (row.flow, row.flow_version, row.state)
        busy = request.entries.get(entry)
        # A job that undoes may stand in a state of the same name; its undo enters nothing.
        if busy is None or row.role != READY:
            continue
        entered.setdefault(busy, []).append(job_id)
        t.count((row.flow, row.flow_version, row.state, row.role), -1)
        t.count((row.flow, row.flow_version, busy, BUSY), 1)
        moved = row._replace(
            state=busy, role=BUSY, version=row.version + 1, seq=row.seq + 1, changed_at=t.now
        )
        event = own_event(moved, kinds.ENTERED, row.state, request.worker, request.worker, t.now)
        written.append((row, event))
        slot = wanted_slot(row.slot)
        if slot is not None and entry in request.keeps:
            kept.append(job_id)
            moved = moved._replace(slot=OF_STATE + slot)
        claims[job_id] = claim._replace(row=moved)
    if kept:
        control.keep_slots(t, kept)
    for busy, ids in entered.items():
        t.db.execute(ENTER, (pack(ids), busy, t.now))
    t.append_own(written)


def give_back_lapsed(t: Transaction) -> int:
    """Take every lapsed lease away, whoever held it; answer how many jobs were unparked."""
    workers = t.db.execute(LAPSED_WORKERS, (t.now, *t.uptime())).fetchall()
    if not workers:
        return 0
    lost = [row for worker in workers for row in t.db.execute(LEASED_BY, worker).fetchall()]
    written: list[tuple[JobRow, Event]] = []
    for row in map(as_job, sorted(lost)):
        # The token moves, so that the vanished worker cannot write over its successor.
        seq = row.seq + 1
        t.db.execute(LAPSE, (row.token + 1, row.lapses + 1, t.now, row.version + 1, seq, row.id))
        line = row._replace(seq=seq)
        event = own_event(line, kinds.LAPSED, row.state, kinds.ENGINE, row.leased_by, t.now)
        written.append((row, event))
        t.made_due = True
    t.append_own(written)
    t.db.executemany(FORGET_WORKER, workers)
    rest = Rest(t)
    for row in lost:
        slot = wanted_slot(row[_SLOT])
        if slot is not None:
            rest.free_slot(slot, row[0])
    return rest.write()


def register(
    t: Transaction, worker: str, *, lease_us: int, lanes: Sequence[str], about: str
) -> Instant:
    facts = (worker, t.now, t.now, t.now + lease_us, " ".join(lanes), about)
    t.db.execute(REGISTER, (*facts, *_lease_end(t, lease_us)))
    return t.now


def renew(t: Transaction, worker: str, *, lease_us: int) -> Renewal:
    facts = (t.now, t.now + lease_us, *_lease_end(t, lease_us), worker)
    if t.db.execute(RENEW, facts).rowcount == 0:
        return Renewal(False, t.now, [])
    return Renewal(True, t.now, requests_of(t, worker))


def _lease_end(t: Transaction, lease_us: int) -> tuple[str | None, int | None]:
    """Return when a lease of this length ends, by the uptime of the machine if it tells that."""
    boot, us = t.uptime()
    return (boot, us + lease_us) if boot else (None, None)


def unregister(t: Transaction, worker: str) -> None:
    """End a worker's lease; what it still holds is left, lapsed, to the next claimer."""
    if t.db.execute(IS_HOLDING, (worker,)).fetchone() is None:
        t.db.execute(FORGET_WORKER, (worker,))
    else:
        t.db.execute(END_LEASE, (t.now, t.uptime().us, worker))
        t.made_due = True


def leased(db: sqlite3.Connection, worker: str) -> list[JobRow]:
    return list(map(as_job, db.execute(LEASED_BY, (worker,)).fetchall()))


def requests_of(t: Transaction, worker: str) -> list[Request]:
    if not t.db.execute(ANY_REQUESTS).fetchone()[0]:
        return []
    return list(map(as_request, t.db.execute(REQUESTS_OF_WORKER, (worker,)).fetchall()))
