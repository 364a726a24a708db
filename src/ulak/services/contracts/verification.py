"""Is every chain of proofs whole? Each link is computed anew, in pages, while others write."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from ulak.services.contracts.ledger import Ledger
from ulak.services.contracts.proofs import FIRST_HASH, Proof, hash_of

PAGE: Final = 500


@dataclass(frozen=True, slots=True)
class Broken:
    """The first link of a tenant's chain that is not what it was."""

    tenant_id: str
    proof_id: int | None
    """Where it was noticed; None when nothing is left to point at."""
    sentence: str


@dataclass(frozen=True, slots=True)
class Report:
    """What was looked at, and what was found."""

    tenants: int
    proofs: int
    broken: tuple[Broken, ...]


def verify(reading: Callable[[], AbstractContextManager[Ledger]]) -> Report:
    """Check every chain; of each only the first broken link is told: what follows stands on it.

    Args:
        reading: Answers the ledger for one short read.
    """
    with reading() as ledger:
        tenants = ledger.tenants()
    seen = 0
    broken: list[Broken] = []
    for tenant in tenants:
        number, finding = _walk(reading, tenant)
        seen += number
        if finding is not None:
            broken.append(finding)
    return Report(len(tenants), seen, tuple(broken))


def _walk(
    reading: Callable[[], AbstractContextManager[Ledger]], tenant: str
) -> tuple[int, Broken | None]:
    last, expected, seen = 0, FIRST_HASH, 0
    while True:
        with reading() as ledger:
            page = ledger.chain(tenant, after=last, limit=PAGE)
        for link in page.links:
            seen += 1
            if (wrong := _wrong_with(link, last, expected)) is not None:
                return seen, Broken(tenant, link.proof_id, wrong)
            last, expected = link.proof_id, link.hash
        if len(page.links) < PAGE:
            break
    if page.head is None:
        return seen, Broken(tenant, last or None, "the head of the chain is gone")
    if page.head != (last, expected):
        return seen, Broken(
            tenant, last or None,
            f"the chain ends here, and its head says that it ends with proof {page.head[0]}",
        )  # fmt: skip
    return seen, None


def _wrong_with(link: Proof, last: int, expected: str) -> str | None:
    if link.prev_hash != expected:
        before = f"proof {last}" if last else "the beginning"
        return f"it does not follow {before}: something between was changed or removed"
    if link.hash != hash_of(link):
        return "its content is not what was hashed"
    return None
