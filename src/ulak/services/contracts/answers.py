"""What a transition answers: bytes, written once, members in the order of the specification."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ulak.idempotency import Answer
from ulak.services.contracts import rules
from ulak.services.contracts.proofs import Proof

_CONTENT: Final = (("Content-Type", "application/json"),)
_STATUS: Final = {
    rules.STALE_STATUS: 409,
    rules.STALE_VERSION: 409,
    rules.SUBJECT_NOT_FOUND: 404,
}


def changed(proof: Proof) -> Answer:
    """Return a change by the proof that it left, now and ever after."""
    return _accepted(
        proof.from_status, proof.to_status, proof.contract_version, proof.proof_id, proof.version,
        is_changed=True,
    )  # fmt: skip


def unchanged(status: str, contract_version: str, proof_id: int | None, version: int) -> Answer:
    """Return that the subject stands there already, with the proof that brought it there."""
    return _accepted(status, status, contract_version, proof_id, version, is_changed=False)


def refused(reason: str, from_: str | None, to: str, contract_version: str) -> Answer:
    """Return why not."""
    document: dict[str, Any] = {
        "ok": False, "reason": reason, "from": from_, "to": to,
        "contract_version": contract_version, "proof_id": None,
    }  # fmt: skip
    if reason == rules.SUBJECT_NOT_FOUND:
        # It may come to be: the event that creates it was overtaken by this one.
        document["retryable"] = True
    return Answer(_STATUS.get(reason, 422), msgspec.json.encode(document), _CONTENT)


def _accepted(
    from_: str | None,
    to: str | None,
    contract_version: str | None,
    proof_id: int | None,
    version: int,
    *,
    is_changed: bool,
) -> Answer:
    document = {
        "ok": True, "from": from_, "to": to, "contract_version": contract_version,
        "proof_id": proof_id, "version": version, "changed": is_changed,
    }  # fmt: skip
    return Answer(200, msgspec.json.encode(document), _CONTENT)
