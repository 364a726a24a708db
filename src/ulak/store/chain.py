"""Chains of hashes: what a proof covers, the same in every store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256

FIRST_HASH = bytes(32)

Link = tuple[str, bytes, int, bytes]
"""What will be a link of a chain: tenant, job, number of the event, body."""


def linked(
    number: int, link: bytes, links: Iterable[Link]
) -> Iterator[tuple[int, bytes, int, bytes, bytes]]:
    """Go on from a chain's last number and hash: number, job, seq, body and hash of each link."""
    for _, job_id, seq, body in links:
        number, link = number + 1, sha256(link + body).digest()
        yield number, job_id, seq, body, link
