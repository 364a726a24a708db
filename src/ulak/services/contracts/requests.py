"""What is asked of contracts, said in one way however it was written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property

from ulak.idempotency import fingerprint
from ulak.services.contracts.ledger import STATUS_CHANGE, Draft

_JSON = "application/json"


@dataclass(frozen=True)
class Transition:
    """A request to move a subject to a status; type and statuses in lower case."""

    tenant_id: str
    type: str
    id: str
    to: str
    _: KW_ONLY
    key: str
    """The same each time this very request is repeated."""
    caller: str = ""
    """Who asks; who acts, where no actor is named."""
    from_: str | None = None
    """The status that the caller believes it has."""
    expected_version: int | None = None
    actor_id: str | None = None
    """Who acts; None for an event of the system."""
    source: str | None = None
    """Where it is reported from; None for the caller."""
    details: Mapping[str, str] = field(default_factory=dict)
    """What else is said of it (`meta`, `attrs`, `ctx`): JSON, as it was written."""
    request_id: str | None = None
    contract_version: str | None = None
    """The version to judge it by; None for the active one."""

    @cached_property
    def request_hash(self) -> str:
        """The fingerprint of what is asked: another request id is the same request."""
        return _hash(
            "/v1/contract/transition", self.actor_id or self.caller, self.details,
            tenant_id=self.tenant_id, type=self.type, id=self.id, to=self.to, source=self.source,
            expected_version=self.expected_version, contract_version=self.contract_version,
            **{"from": self.from_},
        )  # fmt: skip

    def draft(self, *, status: str, version: int, contract_version: str) -> Draft:
        """Make the proof of the change from a status, to a version, by a contract version."""
        return Draft(
            self.tenant_id, self.actor_id, self.source or self.caller, STATUS_CHANGE, self.type,
            self.id, status, self.to, written({"version": str(version), **self.details}),
            self.request_id, self.key, self.request_hash, contract_version,
        )  # fmt: skip


@dataclass(frozen=True)
class Recording:
    """A request to record a proof of something that happened elsewhere."""

    tenant_id: str
    kind: str
    payload: str
    """JSON, as it was written."""
    _: KW_ONLY
    key: str | None = None
    """None for one that is made of the content."""
    caller: str = ""
    type: str | None = None
    id: str | None = None
    from_: str | None = None
    to: str | None = None
    actor_id: str | None = None
    source: str | None = None
    request_id: str | None = None
    contract_version: str | None = None

    @cached_property
    def request_hash(self) -> str:
        """The digest of what is recorded; another request id is the same recording."""
        return _hash(
            "/v1/proof/record", self.actor_id or self.caller, {"payload": self.payload},
            tenant_id=self.tenant_id, kind=self.kind, type=self.type, id=self.id, to=self.to,
            source=self.source, contract_version=self.contract_version, **{"from": self.from_},
        )  # fmt: skip

    def draft(self) -> Draft:
        """Make the proof."""
        return Draft(
            self.tenant_id, self.actor_id, self.source or self.caller, self.kind, self.type,
            self.id, self.from_, self.to, self.payload, self.request_id,
            self.key or f"sha256:{self.request_hash}", self.request_hash, self.contract_version,
        )  # fmt: skip


def written(members: Mapping[str, str]) -> str:
    """Write an object whose members are JSON already."""
    return "{" + ",".join(f"{json.dumps(name)}:{text}" for name, text in members.items()) + "}"


def _hash(path: str, actor: str, details: Mapping[str, str], **facts: str | int | None) -> str:
    said = {name: json.dumps(value) for name, value in facts.items() if value is not None}
    body = written({**said, **details}).encode()
    return fingerprint(method="POST", path=path, actor=actor, body=body, media_type=_JSON)
