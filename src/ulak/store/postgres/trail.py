"""Lines of the trail, results and proofs, as claims, commits and intake write them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from ulak.core.change import proof_body
from ulak.core.job import Event, JobRow, Result
from ulak.store.batches import FIRST_HASH, Link, linked
from ulak.store.postgres.outbox import FLOWS
from ulak.store.postgres.values import Blobs, Groups, Ids, Numbers, Sheet, Texts, as_arrays
from ulak.store.protocol.outbox import read_flows
from ulak.store.sql.session import EVENT_COLUMNS, RESULT_COLUMNS

if TYPE_CHECKING:
    from ulak.store.postgres.session import Session, Transaction


_NUMBERS = ("seq", "token", "started_at", "at")
OWN = {"job_id": "uuid", **dict.fromkeys(_NUMBERS, "bigint"), "commit_id": "bytea"}
_TEXTS = ("kind", "from_state", "to_state", "actor", "code", "message", "details", "worker")
SHARED = {
    **dict.fromkeys(_TEXTS, "text"),
    **dict.fromkeys(("round", "attempt", "emitted"), "bigint"),
}
own_of = itemgetter(*(Event._fields.index(name) for name in OWN))
shared_of = itemgetter(*(Event._fields.index(name) for name in SHARED))

EVENTS = Sheet("e", OWN, SHARED | {"month": "bigint"})
APPEND = f"""
    INSERT INTO ulak.events (month, {EVENT_COLUMNS})
    SELECT {EVENTS["month"]}, {EVENTS.columns(Event._fields)} FROM {EVENTS.source}
"""
KEEP = f"""
    INSERT INTO ulak.results (month, {RESULT_COLUMNS})
    SELECT * FROM unnest(
        %s::bigint[], %s::uuid[], %s::bigint[], %s::text[], %s::text[], %s::bytea[]
    )
    ON CONFLICT (job_id, round, stage, name, month) DO UPDATE SET data = excluded.data
"""
JOBS_WITH_PROOFS = "SELECT job_id FROM ulak.proofs WHERE seq = 1 AND job_id = ANY (%s::uuid[])"
LOOK = f"SELECT EXISTS (SELECT FROM ulak.proof_heads), {FLOWS}"

Line = tuple[int, Event]


def append(db: Session, lines: Sequence[Line]) -> None:
    """Write events; a number that the trail has already is refused by its key."""
    if not lines:
        return
    groups = Groups()
    for month, event in lines:
        groups.add((*shared_of(event), month), own_of(event))
    db.execute(APPEND, groups.bind(EVENTS))


def append_own(t: Transaction, written: Sequence[tuple[JobRow, int, Event]]) -> None:
    """Write events that no change brought; prove those of jobs whose first event has a proof."""
    if not written:
        return
    append(t.db, [(month, event) for _, month, event in written])
    ((any_proofs, flows),) = t.db.rows(LOOK)
    t.followed = read_flows(flows)
    for job, _, event in written:
        t.follow(job.flow, [event])
    if not any_proofs:
        return
    ids = Ids([event.job_id for _, _, event in written])
    proven = {row[0] for row in t.db.rows(JOBS_WITH_PROOFS, (ids,))}
    for job, _, event in written:
        if event.job_id in proven:
            t.prove(job.tenant, [event], [proof_body(event)])


def keep(db: Session, results: Sequence[tuple[int, Result]]) -> None:
    """Write results; a later one of the same name takes the place of the earlier."""
    latest = {result[:4]: (month, result) for month, result in results}
    if not latest:
        return
    rows = [(month, *result) for month, result in latest.values()]
    db.execute(KEEP, as_arrays(rows, Numbers, Ids, Numbers, Texts, Texts, Blobs))


# The head of a new chain is made before it is taken, so that two first links wait for each other.
MAKE_HEAD = """
    INSERT INTO ulak.proof_heads (tenant, proof_id, hash) VALUES (%s::text, 0, %s::bytea)
    ON CONFLICT (tenant) DO NOTHING
"""
TAKE_HEAD = "SELECT proof_id, hash FROM ulak.proof_heads WHERE tenant = %s::text FOR UPDATE"
ADD_PROOFS = """
    INSERT INTO ulak.proofs (tenant, proof_id, job_id, seq, body, hash)
    SELECT %s::text, * FROM unnest(%s::bigint[], %s::uuid[], %s::bigint[], %s::bytea[], %s::bytea[])
"""
SET_HEAD = """
    UPDATE ulak.proof_heads SET proof_id = %s::bigint, hash = %s::bytea WHERE tenant = %s::text
"""


def chain(db: Session, links: Iterable[Link]) -> None:
    """Append the links of one transaction to their chains: by tenant, job and number."""
    for tenant, own in groupby(sorted(links), key=itemgetter(0)):
        head = db.row(TAKE_HEAD, (tenant,))
        if head is None:
            db.execute(MAKE_HEAD, (tenant, FIRST_HASH))
            head = db.row(TAKE_HEAD, (tenant,))
        number, link = head or (0, FIRST_HASH)
        rows = list(linked(number, link, own))
        columns = as_arrays(rows, Numbers, Ids, Numbers, Blobs, Blobs)
        db.execute(ADD_PROOFS, (tenant, *columns))
        db.execute(SET_HEAD, (rows[-1][0], rows[-1][-1], tenant))
