"""What is asked of contracts, and the judge of it. No I/O; every rule of a transition is here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Final

import msgspec

from ulak.idempotency import fingerprint
from ulak.services.contracts.ledger import STATUS_CHANGE, Proof
from ulak.services.contracts.tables import Version

UNKNOWN_SUBJECT_TYPE: Final = "unknown_subject_type"
SUBJECT_NOT_FOUND: Final = "subject_not_found"
STALE_STATUS: Final = "stale_status"
STALE_VERSION: Final = "stale_version"
TERMINAL_STATE: Final = "terminal_state"
INVALID_TRANSITION: Final = "invalid_transition"


@dataclass(frozen=True)
class Transition:
    """A request to move a subject to a status; type and statuses in lower case."""

    tenant_id: str
    type: str
    id: str
    to: str
    _: KW_ONLY
    key: str
    caller: str = ""
    """The client; it acts where no actor is named."""
    from_: str | None = None
    expected_version: int | None = None
    actor_id: str | None = None
    """None for an event of the system."""
    source: str | None = None
    """Where it is reported from; None for the caller."""
    details: Mapping[str, str] = field(default_factory=dict)
    """What else is said of it (`meta`, `attrs`, `ctx`): JSON, as it was written."""
    request_id: str | None = None
    contract_version: str | None = None
    """The version to judge it by; None for the active one."""

    @cached_property
    def request_hash(self) -> str:
        """The fingerprint of the request; another request id is the same request, and so is one
        that says `from` in `ctx`."""
        return self._hash(_without_from(self.details))

    @cached_property
    def former_hash(self) -> str:
        """The fingerprint that 0.1.0 gave the request: its records and proofs have it."""
        return self._hash(self.details)

    def _hash(self, details: Mapping[str, str]) -> str:
        return _hash(
            "/v1/contract/transition", self.actor_id or self.caller, details,
            tenant_id=self.tenant_id, type=self.type, id=self.id, to=self.to, source=self.source,
            expected_version=self.expected_version, contract_version=self.contract_version,
            **{"from": self.from_},
        )  # fmt: skip

    def draft(self, *, status: str, version: int, contract_version: str) -> Proof:
        return Proof(
            0, 0, self.tenant_id, self.actor_id, self.source or self.caller, STATUS_CHANGE,
            self.type, self.id, status, self.to,
            join_object({"version": str(version), **self.details}),
            self.request_id, self.key, self.request_hash, contract_version, "", "",
        )  # fmt: skip


@dataclass(frozen=True)
class Recording:
    """A request to record a proof of something that happened elsewhere."""

    tenant_id: str
    kind: str
    payload: str
    _: KW_ONLY
    key: str | None = None
    caller: str = ""
    type: str | None = None
    id: str | None = None
    from_: str | None = None
    to: str | None = None
    actor_id: str | None = None
    source: str | None = None
    request_id: str | None = None
    contract_version: str | None = None

    def draft(self) -> Proof:
        """Make the proof; another request id is the same recording."""
        digest = _hash(
            "/v1/proof/record", self.actor_id or self.caller, {"payload": self.payload},
            tenant_id=self.tenant_id, kind=self.kind, type=self.type, id=self.id, to=self.to,
            source=self.source, contract_version=self.contract_version, **{"from": self.from_},
        )  # fmt: skip
        return Proof(
            0, 0, self.tenant_id, self.actor_id, self.source or self.caller, self.kind, self.type,
            self.id, self.from_, self.to, self.payload, self.request_id,
            self.key or f"sha256:{digest}", digest, self.contract_version, "", "",
        )  # fmt: skip


def join_object(members: Mapping[str, str]) -> str:
    """Write an object whose members are JSON already."""
    return "{" + ",".join(f"{json.dumps(name)}:{text}" for name, text in members.items()) + "}"


def _without_from(details: Mapping[str, str]) -> Mapping[str, str]:
    """Return details in which `ctx` does not say `from`, and is left out if it says nothing else;
    numbers stay as they were written."""
    try:
        context = msgspec.json.decode(details.get("ctx", "{}"), type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        return details  # from Python: it may be anything
    if context.pop("from", None) is None:
        return details
    others = {name: text for name, text in details.items() if name != "ctx"}
    rest = {name: bytes(text).decode() for name, text in context.items()}
    return {**others, "ctx": join_object(rest)} if rest else others


def _hash(path: str, actor: str, details: Mapping[str, str], **facts: str | int | None) -> str:
    known = {name: json.dumps(value) for name, value in facts.items() if value is not None}
    body = join_object({**known, **details}).encode()
    return fingerprint(
        method="POST", path=path, actor=actor, body=body, media_type="application/json"
    )


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgment of a request."""

    reason: str | None
    changes: bool = False
    """Whether the status changes: it does not where the subject stands there already."""


def birth(version: Version, asked: Transition) -> str | None:
    """Return the status in which a new subject begins; None when it must not: an event that
    overtook the creation of its subject would otherwise create it in whatever status it was
    about."""
    table = version.tables.get(asked.type)
    return table.initial if table is not None and asked.from_ == table.initial else None


def judge(version: Version, asked: Transition, status: str | None, number: int = 0) -> Verdict:
    """Judge a request against the status of its subject (None when there is no subject) and how
    often that has changed. The order of the checks is a promise."""
    table = version.tables.get(asked.type)
    if table is None:
        return Verdict(UNKNOWN_SUBJECT_TYPE)
    if status is None:
        return Verdict(SUBJECT_NOT_FOUND)
    if asked.to == status:
        return Verdict(None)
    if asked.from_ is not None and asked.from_ != status:
        return Verdict(STALE_STATUS)
    if asked.expected_version is not None and asked.expected_version != number:
        return Verdict(STALE_VERSION)
    if status in table.terminal:
        return Verdict(TERMINAL_STATE)
    if not table.allows(status, asked.to):
        return Verdict(INVALID_TRANSITION)
    return Verdict(None, changes=True)
