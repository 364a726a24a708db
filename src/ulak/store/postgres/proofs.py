"""Proofs: per tenant a chain of hashes, which a transaction writes last of all."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from ulak.store.batches import FIRST_HASH, Link, linked
from ulak.store.postgres.values import Blobs, Ids, Numbers

if TYPE_CHECKING:
    from ulak.store.postgres.connections import Session

__all__ = ["Link", "chain"]

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
        numbers, ids, seqs, bodies, hashes = zip(*rows, strict=True)
        db.execute(
            ADD_PROOFS,
            (tenant, Numbers(numbers), Ids(ids), Numbers(seqs), Blobs(bodies), Blobs(hashes)),
        )
        db.execute(SET_HEAD, (numbers[-1], hashes[-1], tenant))
