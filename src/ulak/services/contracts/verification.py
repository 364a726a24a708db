"""Is every chain of proofs whole, and does every subject stand where its last proof left it? Each
link is computed anew, in pages, while others write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from ulak.services.contracts.ledger import FIRST_HASH, Ledger, Proof, Subject, hash_of

PAGE: Final = 500
Reading = Callable[[], AbstractContextManager[Ledger]]
"""Returns the ledger for one short read."""


@dataclass(frozen=True, slots=True)
class Broken:
    """The first link of a tenant's chain that is not what it was, or the first subject that does
    not stand where the chain says."""

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


def verify(reading: Reading) -> Report:
    """Check every chain, and every subject of those that are whole; of each tenant only the first
    finding is returned: what follows stands on it."""
    with reading() as ledger:
        tenants = ledger.tenants()
    seen = 0
    broken: list[Broken] = []
    for tenant in tenants:
        number, finding = _walk(reading, tenant)
        seen += number
        if finding is not None:
            broken.append(finding)
    broken += _misplaced(reading, {finding.tenant_id for finding in broken})
    return Report(len(tenants), seen, tuple(sorted(broken, key=lambda each: each.tenant_id)))


def _misplaced(reading: Reading, seen: set[str]) -> Iterator[Broken]:
    """Find subjects and changes that do not belong together, one for each tenant."""
    with reading() as ledger:
        gone = ledger.without_subject()
    for tenant, proof_id in gone.items():
        if tenant not in seen:
            seen.add(tenant)
            yield Broken(tenant, proof_id, "the subject that it changed is gone")
    last = ("", "", "")
    while True:
        with reading() as ledger:
            page = ledger.standings(after=last, limit=PAGE)
        for subject, proof in page:
            if subject.tenant_id not in seen and (wrong := _misplaces(subject, proof)):
                seen.add(subject.tenant_id)
                yield Broken(subject.tenant_id, proof and proof.proof_id, wrong)
        if len(page) < PAGE:
            return
        last = page[-1][0][:3]


def _walk(reading: Reading, tenant: str) -> tuple[int, Broken | None]:
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
        says = f"ends with proof {page.head[0]}" if page.head[0] != last else "has another hash"
        why = f"the chain ends here, and its head says that it {says}"
        return seen, Broken(tenant, last or None, why)
    return seen, None


def _misplaces(subject: Subject, proof: Proof | None) -> str | None:
    name = f"the subject {subject.type} {subject.id}"
    stands = f'{name} stands in "{subject.status}" at version {subject.version}'
    if proof is None:
        is_new = subject.version == 0 and subject.proof_id is None
        return None if is_new else f"{stands}, and no proof says how it came there"
    if (subject.status, subject.version) != (proof.to_status, proof.version):
        return f'{stands}, and this proof left it in "{proof.to_status}" at version {proof.version}'
    if subject.proof_id != proof.proof_id:
        return f"{name} names proof {subject.proof_id} as its last, and this one is"
    return None


def _wrong_with(link: Proof, last: int, expected: str) -> str | None:
    if link.prev_hash != expected:
        before = f"proof {last}" if last else "the beginning"
        return f"it does not follow {before}: something between was changed or removed"
    if link.hash != hash_of(link):
        return "its content is not what was hashed"
    return None
