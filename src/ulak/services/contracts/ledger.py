"""The ledger: subjects and the proofs of their changes, in an open transaction, and its check.

Locks are taken in one order, so that no two transactions wait for each other: the subject first,
the head of its tenant's chain last.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from typing import Any, Final, NamedTuple

import msgspec

from ulak.errors import StoreError
from ulak.kit.clock import Instant, rfc3339, to_datetime
from ulak.tables import Database, DeliveryView, Schema

HANDLER: Final = "contracts-remote"
TOPIC: Final = "contract.status_change"

SCHEMA: Final = Schema(
    "contracts",
    folder=files("ulak.services.contracts") / "sql",
    version_table="hos_contract_schema",
    why="a status, its proof and the answer are one transaction",
    # "hos" in letters; a process of the first release that starts beside us takes this one.
    lock=6844275,
    deliveries=DeliveryView("hos_outbox_deliveries", handler=HANDLER, topic=TOPIC),
)

STATUS_CHANGE: Final = "status_change"
"""The kind of proof that a transition leaves; nobody else writes one."""
FIRST_HASH: Final = "0" * 64


class Proof(NamedTuple):
    """One row of `hos_proofs`, in the order of its columns. A draft has no number, time and hashes
    yet: the ledger gives it those."""

    proof_id: int
    occurred_at: Instant
    tenant_id: str
    actor_id: str | None
    source: str
    kind: str
    subject_type: str | None
    subject_id: str | None
    from_status: str | None
    to_status: str | None
    payload: str
    request_id: str | None
    idempotency_key: str | None
    request_hash: str
    """Tells the same key for something else from a repetition."""
    contract_version: str | None
    prev_hash: str
    hash: str

    @property
    def version(self) -> int:
        """Of a status change, the version that the subject got by it."""
        return int(json.loads(self.payload)["version"])


def hash_of(proof: Proof) -> str:
    """Return the hash that a proof must have: of everything in it, the hash before included."""
    covered = json.dumps(proof[:-1], ensure_ascii=True, separators=(",", ":"))
    return sha256(covered.encode()).hexdigest()


def document_of(proof: Proof) -> dict[str, Any]:
    shown = {name.removesuffix("_status"): value for name, value in proof._asdict().items()}
    del shown["request_hash"]
    occurred_at, payload = rfc3339(to_datetime(proof.occurred_at)), proof.payload.encode()
    return shown | {"occurred_at": occurred_at, "payload": msgspec.Raw(payload)}


class Subject(NamedTuple):
    """One row of `hos_contract_subjects`."""

    tenant_id: str
    type: str
    id: str
    status: str
    version: int
    proof_id: int | None
    created_at: Instant
    updated_at: Instant


_FIND_SUBJECT = (
    f"SELECT {', '.join(Subject._fields)} "  # noqa: S608 - columns of our own
    "FROM {schema}.hos_contract_subjects WHERE tenant_id = ? AND type = ? AND id = ?"
)
_LOCK_SUBJECT = _FIND_SUBJECT + "{for_update}"
_CREATE_SUBJECT = """
    INSERT INTO {schema}.hos_contract_subjects
        (tenant_id, type, id, status, version, proof_id, created_at, updated_at)
    VALUES (?, ?, ?, ?, 0, NULL, ?, ?)
    ON CONFLICT (tenant_id, type, id) DO NOTHING
"""
_MOVE_SUBJECT = """
    UPDATE {schema}.hos_contract_subjects
    SET status = ?, version = ?, proof_id = ?, updated_at = ?
    WHERE tenant_id = ? AND type = ? AND id = ? AND version = ?
    RETURNING version
"""

_COLUMNS = ", ".join(Proof._fields)
_PROOFS = f"SELECT {_COLUMNS} FROM {{schema}}.hos_proofs"  # noqa: S608 - columns of our own
_PROOF_OF_KEY = _PROOFS + " WHERE tenant_id = ? AND kind = ? AND idempotency_key = ?"
_NEXT_ID: Final = {
    # Nothing is ever removed, so this never answers a number twice.
    "sqlite": "SELECT coalesce(max(proof_id), 0) + 1 FROM {schema}.hos_proofs",
    "postgresql": "SELECT nextval('{schema}.hos_proof_ids')",
}
_ADD_PROOF = (
    f"INSERT INTO {{schema}}.hos_proofs ({_COLUMNS}) "  # noqa: S608 - columns of our own
    f"VALUES ({', '.join('?' for _ in Proof._fields)}) "
    "ON CONFLICT (tenant_id, kind, idempotency_key) WHERE idempotency_key IS NOT NULL "
    "DO NOTHING RETURNING proof_id"
)

_ADD_HEAD = """
    INSERT INTO {schema}.hos_proof_heads (tenant_id, proof_id, hash) VALUES (?, 0, ?)
    ON CONFLICT (tenant_id) DO NOTHING
"""
_LOCK_HEAD = "SELECT hash FROM {schema}.hos_proof_heads WHERE tenant_id = ?{for_update}"
_MOVE_HEAD = "UPDATE {schema}.hos_proof_heads SET proof_id = ?, hash = ? WHERE tenant_id = ?"

_TENANTS = """
    SELECT tenant_id FROM {schema}.hos_proof_heads
    UNION SELECT DISTINCT tenant_id FROM {schema}.hos_proofs ORDER BY 1
"""
# One statement, so that the head and the links are of the same moment; it has a row where there
# is no link any more.
_CHAIN = f"""
    SELECT head.proof_id, head.hash, {", ".join(f"link.{name}" for name in Proof._fields)}
    FROM (SELECT ? AS tenant_id) asked
    LEFT JOIN {{schema}}.hos_proof_heads head ON head.tenant_id = asked.tenant_id
    LEFT JOIN {{schema}}.hos_proofs link ON link.tenant_id = asked.tenant_id AND link.proof_id > ?
    ORDER BY link.proof_id LIMIT ?
"""  # noqa: S608 - columns of our own
# One statement, so that a subject and its last proof are of the same moment.
_STANDINGS = f"""
    SELECT {", ".join(f"subject.{name}" for name in Subject._fields)},
        {", ".join(f"proof.{name}" for name in Proof._fields)}
    FROM {{schema}}.hos_contract_subjects subject
    LEFT JOIN {{schema}}.hos_proofs proof ON proof.proof_id = (
        SELECT max(proof_id) FROM {{schema}}.hos_proofs last
        WHERE last.tenant_id = subject.tenant_id AND last.subject_type = subject.type
            AND last.subject_id = subject.id AND last.kind = '{STATUS_CHANGE}'
    )
    WHERE (subject.tenant_id, subject.type, subject.id) > (?, ?, ?)
    ORDER BY subject.tenant_id, subject.type, subject.id LIMIT ?
"""  # noqa: S608 - columns of our own
_WITHOUT_SUBJECT = f"""
    SELECT tenant_id, min(proof_id) FROM {{schema}}.hos_proofs proof
    WHERE kind = '{STATUS_CHANGE}' AND NOT EXISTS (
        SELECT 1 FROM {{schema}}.hos_contract_subjects subject
        WHERE subject.tenant_id = proof.tenant_id AND subject.type = proof.subject_type
            AND subject.id = proof.subject_id
    )
    GROUP BY tenant_id
"""  # noqa: S608 - a word of our own


class Ledger:
    """The statements, on one connection."""

    def __init__(self, database: Database, connection: Any, now: Instant) -> None:
        self._database = database
        self._connection = connection
        self._now = now

    def find_subject(self, tenant_id: str, type: str, id: str) -> Subject | None:
        """Return a subject, None when there is none."""
        return self._subject(_FIND_SUBJECT, tenant_id, type, id)

    def lock_subject(self, tenant_id: str, type: str, id: str) -> Subject | None:
        """Return it, and let nobody else change it before this transaction ends."""
        return self._subject(_LOCK_SUBJECT, tenant_id, type, id)

    def create_subject(self, tenant_id: str, type: str, id: str, *, status: str) -> Subject:
        """Create a subject and lock it; or lock the one that somebody else was first to create."""
        self._execute(_CREATE_SUBJECT, tenant_id, type, id, status, self._now, self._now)
        subject = self.lock_subject(tenant_id, type, id)
        if subject is None:  # pragma: no cover - somebody removes rows by hand
            raise LookupError(f"the subject {type} {id} was removed while it was created")
        return subject

    def move_subject(self, subject: Subject, proof: Proof, *, status: str) -> None:
        """Set the status that a proof is of, one version higher; `StoreError` when the subject has
        another version by now."""
        moved = self._execute(
            _MOVE_SUBJECT, status, subject.version + 1, proof.proof_id, self._now,
            subject.tenant_id, subject.type, subject.id, subject.version,
        )  # fmt: skip
        if not moved:
            # The row is locked: a lock was left out, or a row was changed by hand. Better no
            # change than two with the same version.
            raise StoreError(
                f"the subject {subject.type} {subject.id} no longer has version "
                f"{subject.version}: it was changed meanwhile; ask again"
            )

    def find_proof(self, tenant_id: str, kind: str, key: str) -> Proof | None:
        """Return the proof that was written under a key."""
        return next(iter(self._proofs(_PROOF_OF_KEY, tenant_id, kind, key)), None)

    def append(self, draft: Proof) -> Proof | None:
        """Append a proof to its tenant's chain; None when there is one under its key. The head
        stays locked, so that the chain has no fork; numbers rise along it."""
        self._execute(_ADD_HEAD, draft.tenant_id, FIRST_HASH)
        ((prev_hash,),) = self._execute(_LOCK_HEAD, draft.tenant_id)
        ((proof_id,),) = self._execute(_NEXT_ID[self._database.name])
        proof = draft._replace(proof_id=proof_id, occurred_at=self._now, prev_hash=prev_hash)
        proof = proof._replace(hash=hash_of(proof))
        if not self._execute(_ADD_PROOF, *proof):
            return None
        self._execute(_MOVE_HEAD, proof_id, proof.hash, draft.tenant_id)
        return proof

    def list_proofs(
        self, *, limit: int, before: int | None = None, **columns: str | None
    ) -> list[Proof]:
        """Return proofs, the newest first: with a number below `before` and these values; None
        is any."""
        terms: dict[str, int | str | None] = {"proof_id < ?": before}
        terms |= {f"{name} = ?": value for name, value in columns.items()}
        given = {text: value for text, value in terms.items() if value is not None}
        where = f" WHERE {' AND '.join(given)}" if given else ""
        statement = f"{_PROOFS}{where} ORDER BY proof_id DESC LIMIT ?"
        return self._proofs(statement, *given.values(), limit)

    def tenants(self) -> list[str]:
        return [tenant for (tenant,) in self._execute(_TENANTS)]

    def chain(
        self, tenant_id: str, *, after: int, limit: int
    ) -> tuple[tuple[int, str] | None, list[Proof]]:
        """Return the head of a tenant's chain and the links that follow a number."""
        rows = self._execute(_CHAIN, tenant_id, after, limit)
        head = None if rows[0][0] is None else (rows[0][0], rows[0][1])
        return head, [Proof._make(row[2:]) for row in rows if row[2] is not None]

    def standings(
        self, *, after: tuple[str, str, str], limit: int
    ) -> list[tuple[Subject, Proof | None]]:
        """Return subjects that follow (tenant, type, id), each with its last change's proof."""
        n = len(Subject._fields)
        rows = self._execute(_STANDINGS, *after, limit)
        return [(Subject(*row[:n]), None if row[n] is None else Proof(*row[n:])) for row in rows]

    def without_subject(self) -> dict[str, int]:
        """Return for each tenant the first proof of a change without its subject."""
        return dict(self._execute(_WITHOUT_SUBJECT))

    def _subject(self, statement: str, *values: Any) -> Subject | None:
        rows = self._execute(statement, *values)
        return Subject._make(rows[0]) if rows else None

    def _proofs(self, statement: str, *values: Any) -> list[Proof]:
        return [Proof._make(row) for row in self._execute(statement, *values)]

    def _execute(self, statement: str, *values: Any) -> Sequence[tuple[Any, ...]]:
        return self._database.execute(self._connection, statement, *values)


PAGE: Final = 500
Reading = Callable[[], AbstractContextManager[Ledger]]


@dataclass(frozen=True, slots=True)
class Broken:
    """The first broken link of a tenant's chain, or the first subject that contradicts it."""

    tenant_id: str
    proof_id: int | None
    sentence: str


@dataclass(frozen=True, slots=True)
class Report:
    tenants: int
    proofs: int
    broken: tuple[Broken, ...]


def verify(reading: Reading) -> Report:
    """Check every chain, and every subject of the whole ones; each link is computed anew, in
    pages, while others write. Of each tenant only the first finding is returned: what follows
    stands on it."""
    with reading() as ledger:
        tenants = ledger.tenants()
    walks = [_walk(reading, tenant) for tenant in tenants]
    broken = [finding for _, finding in walks if finding is not None]
    broken += _misplaced(reading, {finding.tenant_id for finding in broken})
    broken.sort(key=lambda each: each.tenant_id)
    return Report(len(tenants), sum(number for number, _ in walks), tuple(broken))


def _misplaced(reading: Reading, found: set[str]) -> Iterator[Broken]:
    """Find subjects and changes that do not belong together, one for each tenant."""
    with reading() as ledger:
        gone = ledger.without_subject()
    for tenant, proof_id in gone.items():
        if tenant not in found:
            found.add(tenant)
            yield Broken(tenant, proof_id, "the subject that it changed is gone")
    last = ("", "", "")
    while True:
        with reading() as ledger:
            page = ledger.standings(after=last, limit=PAGE)
        for subject, proof in page:
            if subject.tenant_id not in found and (wrong := _misplaces(subject, proof)):
                found.add(subject.tenant_id)
                yield Broken(subject.tenant_id, proof and proof.proof_id, wrong)
        if len(page) < PAGE:
            return
        last = page[-1][0][:3]


def _walk(reading: Reading, tenant: str) -> tuple[int, Broken | None]:
    last, expected, number = 0, FIRST_HASH, 0
    while True:
        with reading() as ledger:
            head, links = ledger.chain(tenant, after=last, limit=PAGE)
        for link in links:
            number += 1
            if (wrong := _wrong_with(link, last, expected)) is not None:
                return number, Broken(tenant, link.proof_id, wrong)
            last, expected = link.proof_id, link.hash
        if len(links) < PAGE:
            break
    if head == (last, expected):
        return number, None
    if head is None:
        why = "the head of the chain is gone"
    else:
        says = f"ends with proof {head[0]}" if head[0] != last else "has another hash"
        why = f"the chain ends here, and its head says that it {says}"
    return number, Broken(tenant, last or None, why)


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
