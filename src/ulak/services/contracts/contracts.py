"""Contracts: subjects that move by versioned tables, once per key, each change with a proof."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from ulak import Engine
from ulak.errors import GuardUnavailable, IdempotencyConflict, StoreError, WriteRefused
from ulak.idempotency import Answer, Answered, Asked, Execution, Guard, Scope
from ulak.services.contracts import requests
from ulak.services.contracts.ledger import (
    SCHEMA,
    STATUS_CHANGE,
    Ledger,
    Proof,
    Report,
    Subject,
    verify,
)
from ulak.services.contracts.outbox.settings import LONGEST_RETRY
from ulak.services.contracts.requests import Recording, Transition, Verdict, birth, judge
from ulak.services.contracts.tables import Versions
from ulak.tables import Tables

# Outboxes of others tell it of changes for days: what it forgets earlier would be done twice.
TRANSITION: Final = Scope("contract.transition", mode="transactional", fed_for=LONGEST_RETRY)
STATUSES: Final = {
    requests.STALE_STATUS: 409,
    requests.STALE_VERSION: 409,
    requests.SUBJECT_NOT_FOUND: 404,
}
"""The HTTP status of a refusal, where it is not 422."""
JSON: Final = (("Content-Type", "application/json"),)

OnChange = Callable[[Any, Proof], object]
"""Called in the transaction of a status change, after it was written, with the driver's
connection and the proof: what it writes with that connection commits with the change or not at
all, and what it raises takes the change back. It is not called for replays, refusals and
requests that change nothing. It must not end the transaction or reach over a network."""


class _Refused(Exception):
    """Takes a transaction back whose request was refused."""

    def __init__(self, done: Answered) -> None:
        self.done = done


@dataclass(frozen=True, slots=True)
class Recorded:
    proof_id: int
    key: str
    is_replay: bool


class Contracts:
    """What the service does, without HTTP; any number of threads and processes share a store.
    Raises `NotSupported`: the store has no transactions to share."""

    def __init__(
        self,
        engine: Engine,
        versions: Versions,
        *,
        guard: Guard | None = None,
        scope: Scope = TRANSITION,
        on_change: OnChange | None = None,
    ) -> None:
        self.versions = versions
        self.guard = Guard(engine.store) if guard is None else guard
        """Where the records of keys are: in the engine's store, so that a change and its record are
        one commit. With records elsewhere the scope has the mode `lease`, and a change that was
        made before its record is known by its proof."""
        self._scope = scope
        self._on_change = on_change
        self._tables = Tables(engine, SCHEMA)

    def transition(self, asked: Transition) -> Answered:
        """Move a subject, once per key: the claim of the key, the change, its proof and the
        answer are one commit. A refusal is an answer too. A repeated request gets the same
        bytes, also after the idempotency record was lost, as long as there is a proof. Raises as
        `Guard.execute` does, and `UnknownVersion` when the request pins a contract version that
        is not known."""
        is_rebuilt = False

        def operation(execution: Execution) -> Answer:
            nonlocal is_rebuilt
            if self._scope.mode == "lease":
                done = self._carry_out_alone(asked)
            else:
                done = self._carry_out(asked, execution.connection)
            is_rebuilt = done.is_replay
            return done.answer

        who = Asked(
            self._scope, asked.key, request_hash=asked.request_hash, tenant=asked.tenant_id,
            actor=asked.actor_id or asked.caller,
        )  # fmt: skip
        with self._failing_closed():
            try:
                answered = self.guard.execute(who, operation)
            except IdempotencyConflict:
                if asked.former_hash == asked.request_hash:
                    raise
                former = replace(who, request_hash=asked.former_hash)
                answered = self.guard.execute(former, operation)
        return Answered(answered.answer, is_replay=answered.is_replay or is_rebuilt)

    def can_transition(self, asked: Transition) -> tuple[Verdict, str]:
        """Judge without doing: the verdict, and the version it is by. Writes nothing. Without an
        `id` it is judged as if the subject stood in `from_`. Raises `UnknownVersion` as
        `transition` does."""
        version = self.versions.get(asked.contract_version)
        status: str | None
        if not asked.id:
            status, number = asked.from_ or "", asked.expected_version or 0
        elif subject := self.find_subject(asked.tenant_id, asked.type, asked.id):
            status, number = subject.status, subject.version
        else:
            status, number = birth(version, asked), 0
        return judge(version, asked, status, number), version.name

    def find_subject(self, tenant_id: str, type: str, id: str) -> Subject | None:
        """Return a subject, None when there is none."""
        with self._reading() as ledger:
            return ledger.find_subject(tenant_id, type, id)

    def record(self, asked: Recording) -> Recorded:
        """Record a proof, once per tenant, kind and key; without a key, once per content. Raises
        `IdempotencyConflict` when the key has a proof of something else, `GuardUnavailable` when
        the store cannot be asked; then nothing was recorded."""
        draft = asked.draft()
        with self._failing_closed(), self._tables.writing() as connection:
            ledger = self._ledger(connection)
            named = (draft.tenant_id, draft.kind, str(draft.idempotency_key))
            before = ledger.find_proof(*named)
            made = None if before else ledger.append(draft)
            # Somebody else may have appended it while we waited for the head of the chain.
            proof = before or made or ledger.find_proof(*named)
        if proof is None or proof.request_hash != draft.request_hash:
            raise _conflict(draft)
        return Recorded(proof.proof_id, str(draft.idempotency_key), is_replay=made is None)

    def proofs(
        self, *, limit: int, before: int | None = None, tenant_id: str | None = None,
        kind: str | None = None, subject_type: str | None = None, subject_id: str | None = None,
    ) -> list[Proof]:  # fmt: skip
        """Return proofs, as `Ledger.list_proofs` does."""
        with self._reading() as ledger:
            return ledger.list_proofs(
                limit=limit, before=before, tenant_id=tenant_id, kind=kind,
                subject_type=subject_type, subject_id=subject_id,
            )  # fmt: skip

    def verify(self) -> Report:
        """Check every tenant's chain, head and subjects; return the first finding of each."""
        return verify(self._reading)

    def _carry_out(self, asked: Transition, connection: Any) -> Answered:
        """Do what is asked, unless there is a proof that it was done.

        Then the record of its key is gone, expired or forgotten, and the proof is told again. Of
        two same requests, the second has waited for the subject, and sees the proof of the first.
        """
        ledger = self._ledger(connection)
        subject = ledger.lock_subject(asked.tenant_id, asked.type, asked.id)
        proof = ledger.find_proof(asked.tenant_id, STATUS_CHANGE, asked.key)
        if proof is None:
            return Answered(self._decide(asked, subject, ledger, connection), is_replay=False)
        if proof.request_hash not in (asked.request_hash, asked.former_hash):
            raise _conflict(proof)
        return Answered(_changed(proof), is_replay=True)

    def _carry_out_alone(self, asked: Transition) -> Answered:
        """Do what is asked in a transaction of its own, which a refusal takes back."""
        try:
            with self._tables.writing() as connection:
                done = self._carry_out(asked, connection)
                if not done.answer.is_success:
                    raise _Refused(done)
        except _Refused as refused:
            return refused.done
        return done

    def _decide(
        self, asked: Transition, subject: Subject | None, ledger: Ledger, connection: Any
    ) -> Answer:
        version = self.versions.get(asked.contract_version)
        if subject is None and (status := birth(version, asked)) is not None:
            subject = ledger.create_subject(asked.tenant_id, asked.type, asked.id, status=status)
        if subject is None:
            reason = judge(version, asked, None).reason
            return _refused(str(reason), asked.from_, asked.to, version.name)
        verdict = judge(version, asked, subject.status, subject.version)
        if verdict.reason is not None:
            return _refused(verdict.reason, subject.status, asked.to, version.name)
        if not verdict.changes:
            return _unchanged(subject, version.name)
        draft = asked.draft(
            status=subject.status, version=subject.version + 1, contract_version=version.name
        )
        proof = ledger.append(draft)
        if proof is None:
            # We hold the subject and found no proof: the key was just used for another one.
            raise _conflict(draft)
        ledger.move_subject(subject, proof, status=asked.to)
        if self._on_change is not None:
            self._on_change(connection, proof)
        return _changed(proof)

    @contextmanager
    def _reading(self) -> Iterator[Ledger]:
        with self._tables.reading() as connection:
            yield self._ledger(connection)

    @contextmanager
    def _failing_closed(self) -> Iterator[None]:
        """Say of a store that cannot be asked that nothing was done."""
        try:
            self._tables.ensure()
            yield
        except WriteRefused:
            raise
        except StoreError as error:
            raise GuardUnavailable(f"the store cannot be asked: {error}") from error

    def _ledger(self, connection: Any) -> Ledger:
        return Ledger(self._tables.database, connection, self._tables.now)


# Answers are bytes, written once, members in the order of the specification.


def _changed(proof: Proof) -> Answer:
    """Return the answer to a change from its proof, now and ever after."""
    document = {
        "ok": True, "from": proof.from_status, "to": proof.to_status,
        "contract_version": proof.contract_version, "proof_id": proof.proof_id,
        "version": proof.version, "changed": True,
    }  # fmt: skip
    return Answer(200, msgspec.json.encode(document), JSON)


def _unchanged(subject: Subject, contract_version: str) -> Answer:
    document = {
        "ok": True, "from": subject.status, "to": subject.status,
        "contract_version": contract_version, "proof_id": subject.proof_id,
        "version": subject.version, "changed": False,
    }  # fmt: skip
    return Answer(200, msgspec.json.encode(document), JSON)


def _refused(reason: str, from_: str | None, to: str, contract_version: str) -> Answer:
    document: dict[str, Any] = {
        "ok": False, "reason": reason, "from": from_, "to": to,
        "contract_version": contract_version, "proof_id": None,
    }  # fmt: skip
    if reason == requests.SUBJECT_NOT_FOUND:
        # It may come to be: the event that creates it was overtaken by this one.
        document["retryable"] = True
    return Answer(STATUSES.get(reason, 422), msgspec.json.encode(document), JSON)


def _conflict(proof: Proof) -> IdempotencyConflict:
    return IdempotencyConflict(
        f"the key {proof.idempotency_key!r} was used for another request, of which there is a "
        "proof; use a new key for a new request"
    )
