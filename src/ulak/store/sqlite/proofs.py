"""Proofs: per tenant a chain of hashes, which a transaction writes last of all."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter

from ulak.store.batches import FIRST_HASH, Link, linked

__all__ = ["Link", "chain"]

PROOF_HEAD = "SELECT proof_id, hash FROM proof_heads WHERE tenant = ?"
ADD_PROOF = """
    INSERT INTO proofs (tenant, proof_id, job_id, seq, body, hash) VALUES (?, ?, ?, ?, ?, ?)
"""
SET_PROOF_HEAD = """
    INSERT INTO proof_heads (tenant, proof_id, hash) VALUES (?, ?, ?)
    ON CONFLICT (tenant) DO UPDATE SET proof_id = excluded.proof_id, hash = excluded.hash
"""


def chain(db: sqlite3.Connection, links: Iterable[Link]) -> None:
    """Append the links of one transaction to their chains: by tenant, job and number."""
    for tenant, own in groupby(sorted(links), key=itemgetter(0)):
        number, link = db.execute(PROOF_HEAD, (tenant,)).fetchone() or (0, FIRST_HASH)
        rows = [(tenant, *facts) for facts in linked(number, link, own)]
        db.executemany(ADD_PROOF, rows)
        db.execute(SET_PROOF_HEAD, (tenant, rows[-1][1], rows[-1][-1]))
