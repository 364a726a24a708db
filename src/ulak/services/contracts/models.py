"""What callers send, by every name that it may have, and what they are answered."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar

from fastapi import HTTPException
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    WithJsonSchema,
)

from ulak.errors import BadInput
from ulak.kit.bodies import Body
from ulak.services.contracts.bodies import KEY, RawBody
from ulak.services.contracts.proofs import STATUS_CHANGE
from ulak.services.contracts.requests import Recording, Transition
from ulak.services.contracts.tables import LONGEST_NAME
from ulak.web.schemas import Moment
from ulak.web.texts import storable

LONGEST_ID: Final = 200
LONGEST_TEXT: Final = 500
LARGEST_NUMBER: Final = 2**63 - 1
# A proof is kept for ever, so it is no place for documents.
LARGEST_PAYLOAD: Final = 256 * 1024

T = TypeVar("T")


class TenantMismatch(BadInput):
    """The tenant of the request and that of its subject differ."""

    code = "tenant_mismatch"


class ReservedKind(BadInput):
    """Proofs of this kind are written by transitions alone."""

    code = "reserved_kind"


def _as_text(value: Any) -> Any:
    """Take a whole number for its digits: ids are texts, and many callers have numbers."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return str(value) if is_whole else value


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("it is blank")
    return storable(text)


_NUMBER_OR_TEXT: Final = WithJsonSchema(
    {"anyOf": [{"type": "string", "minLength": 1}, {"type": "integer"}]}
)
Id = Annotated[
    str, BeforeValidator(_as_text), Field(max_length=LONGEST_ID), AfterValidator(_not_blank),
    _NUMBER_OR_TEXT,
]  # fmt: skip
"""An id of somebody else's: a text, or a whole number, which is kept as its digits."""
Name = Annotated[
    str, Field(min_length=1, max_length=LONGEST_NAME), AfterValidator(_not_blank),
    AfterValidator(str.lower),
]  # fmt: skip
"""A type or a status, however it is capitalised."""
Text = Annotated[str, Field(max_length=LONGEST_TEXT), AfterValidator(storable)]


class SubjectRef(Body):
    """Which subject."""

    type: Name | None = None
    id: Id | None = None
    tenant_id: Id | None = Field(None, description="As that of the request, where it is given.")


class _AboutASubject(Body):
    idempotency_key: JsonValue = Field(
        None, description="Here, or in the header Idempotency-Key.", examples=["order-17"]
    )
    tenant_id: Id | None = Field(None, description="Whose subject it is.")
    subject_ref: SubjectRef | None = None
    subject_type: Name | None = Field(None, description="Instead of `subject_ref.type`.")
    subject_id: Id | None = Field(None, description="Instead of `subject_ref.id`.")
    from_: Name | None = Field(None, alias="from", description="The status it is believed to have.")
    to: Name | None = None
    to_status: Name | None = Field(None, description="Instead of `to`.")
    actor_id: Id | None = Field(None, description="Who acts; nobody for events of the system.")
    source: Text | None = Field(None, description="Where it is reported from; else the caller.")
    request_id: Id | None = Field(None, description="May differ each time.")
    contract_version: Text | None = None
    attempt: JsonValue = Field(None, description="May differ each time; not kept.")
    sent_at: JsonValue = Field(None, description="May differ each time; not kept.")

    @property
    def type(self) -> str | None:
        in_ref = None if self.subject_ref is None else self.subject_ref.type
        return _one("subject_ref.type", in_ref, "subject_type", self.subject_type)

    @property
    def id(self) -> str | None:
        in_ref = None if self.subject_ref is None else self.subject_ref.id
        return _one("subject_ref.id", in_ref, "subject_id", self.subject_id)

    @property
    def target(self) -> str | None:
        return _one("to", self.to, "to_status", self.to_status)

    @property
    def tenant_of_subject(self) -> str | None:
        return None if self.subject_ref is None else self.subject_ref.tenant_id


class TransitionBody(_AboutASubject):
    """A change of a subject's status."""

    expected_version: int | None = Field(None, ge=0, le=LARGEST_NUMBER)
    ctx: dict[str, JsonValue] | None = Field(None, description="`ctx.from` may stand for `from`.")
    meta: JsonValue = Field(None, description="Kept in the proof.")
    attrs: JsonValue = Field(None, description="Kept in the proof.")


class RecordBody(_AboutASubject):
    """A proof of something that happened elsewhere."""

    kind: Annotated[str, Field(min_length=1, max_length=LONGEST_NAME), AfterValidator(_not_blank)]
    payload: JsonValue = None


class _Believed(Body):
    """What a context says of the status."""

    model_config = ConfigDict(extra="allow")

    from_: Name | None = Field(None, alias="from")


def transition_in(sent: RawBody, *, caller: str, is_question: bool = False) -> Transition:
    """Read the body of a transition, or of the question whether it would be made: that needs no
    key, and no subject.

    Raises:
        BadKey: the idempotency key is missing, or is none.
        HTTPException: 400, something is missing or cannot be used.
        TenantMismatch: it names two tenants.
    """
    key = "" if is_question else sent.key()
    body = sent.read(TransitionBody)
    details = _kept(sent.written("meta", "attrs", "ctx"))
    believed = None
    if body.ctx is not None:
        believed = RawBody(details["ctx"].encode(), (), {}).read(_Believed).from_
    id = body.id if is_question else _given("subject_ref.id", body.id)
    return Transition(
        _tenant(body, required=id is not None),
        _given("subject_ref.type", body.type),
        id or "",
        _given("to", body.target),
        key=key or "",
        caller=caller,
        from_=_one("from", body.from_, "ctx.from", believed),
        expected_version=body.expected_version,
        actor_id=body.actor_id,
        source=body.source,
        details=details,
        request_id=body.request_id,
        contract_version=body.contract_version,
    )


def recording_in(sent: RawBody, *, caller: str) -> Recording:
    """Read the body of a proof that is to be recorded.

    Raises:
        BadKey: the idempotency key is none.
        HTTPException: 400, something is missing or cannot be used.
        TenantMismatch: it names two tenants.
        ReservedKind: it is of a kind that only transitions leave.
    """
    key = sent.key(required=False)
    body = sent.read(RecordBody)
    if body.kind.lower() == STATUS_CHANGE:
        raise ReservedKind(
            f'proofs of the kind "{STATUS_CHANGE}" are left by POST /v1/contract/transition; '
            "record what happened elsewhere under a name of its own"
        )
    return Recording(
        _tenant(body, required=True),
        body.kind,
        _kept(sent.written("payload")).get("payload", "null"),
        key=key,
        caller=caller,
        type=body.type,
        id=body.id,
        from_=body.from_,
        to=body.target,
        actor_id=body.actor_id,
        source=body.source,
        request_id=body.request_id,
        contract_version=body.contract_version,
    )


def _tenant(body: _AboutASubject, *, required: bool) -> str:
    tenant, of_subject = body.tenant_id, body.tenant_of_subject
    if required:
        tenant = _given("tenant_id", tenant)
    if of_subject is not None and of_subject != tenant:
        raise TenantMismatch(
            f"the request is of the tenant {tenant!r} and its subject of {of_subject!r}; "
            "they must be the same"
        )
    return tenant or ""


def _one(name: str, value: T | None, alias: str, other: T | None) -> T | None:
    """Return what is given under either of two names."""
    if value is not None and other is not None and value != other:
        raise HTTPException(400, f"{name} and {alias} mean the same and differ; send one")
    return other if value is None else value


def _given(name: str, value: T | None) -> T:
    if value is None:
        raise HTTPException(400, f"{name}: it is missing")
    return value


def _kept(details: dict[str, str]) -> dict[str, str]:
    size = sum(map(len, details.values()))
    if size > LARGEST_PAYLOAD:
        raise HTTPException(
            400,
            f"{', '.join(details)}: a proof keeps {LARGEST_PAYLOAD:,} characters, not {size:,}; "
            "keep the rest elsewhere and its digest here",
        )
    return details


# --- what is answered, as the OpenAPI document describes it --------------------------


class Transitioned(BaseModel):
    """A subject that stands where it should."""

    ok: bool = Field(examples=[True])
    from_: str = Field(alias="from", examples=["pending"])
    to: str = Field(examples=["cancelled"])
    contract_version: str = Field(examples=["2025-12-28"])
    proof_id: int | None = Field(examples=[123])
    version: int = Field(description="How often its status has changed.", examples=[1])
    changed: bool = Field(
        description="False when it stood there before this request.", examples=[True]
    )


class RefusedTransition(BaseModel):
    """Why a subject was not moved."""

    ok: bool = Field(examples=[False])
    reason: str = Field(examples=["terminal_state"])
    from_: str | None = Field(alias="from", examples=["cancelled"])
    to: str = Field(examples=["paid"])
    contract_version: str = Field(examples=["2025-12-28"])
    proof_id: None = None


class Allowed(BaseModel):
    """Whether a transition would be made."""

    allowed: bool = Field(examples=[False])
    reason: str | None = Field(examples=["invalid_transition"])
    contract_version: str = Field(examples=["2025-12-28"])


class TypeTable(BaseModel):
    """One type of subject."""

    initial: str = Field(examples=["pending"])
    moves: dict[str, list[str]] = Field(examples=[{"pending": ["paid", "cancelled"]}])
    terminal: list[str] = Field(examples=[["cancelled"]])


class Contract(BaseModel):
    """Every contract version and its tables."""

    active: str = Field(examples=["2025-12-28"])
    versions: dict[str, dict[str, TypeTable]] = Field(
        examples=[
            {
                "2025-12-28": {
                    "order": {
                        "initial": "pending",
                        "moves": {"pending": ["paid", "cancelled"], "paid": ["cancelled"]},
                        "terminal": ["cancelled"],
                    }
                }
            }
        ]
    )


class SubjectView(BaseModel):
    """Where a subject stands."""

    tenant_id: str
    type: str
    id: str
    status: str
    version: int
    last_proof_id: int | None = Field(description="The proof of its last change.")
    created_at: Moment
    updated_at: Moment


class RecordedProof(BaseModel):
    """A proof that stands."""

    proof_id: int


class ProofView(BaseModel):
    """A proof, with the hash of the one before it."""

    proof_id: int
    occurred_at: Moment
    tenant_id: str
    actor_id: str | None
    source: str
    kind: str
    subject_type: str | None
    subject_id: str | None
    from_: str | None = Field(alias="from")
    to: str | None
    payload: Any
    request_id: str | None
    idempotency_key: str | None
    contract_version: str | None
    prev_hash: str
    hash: str


class ProofPage(BaseModel):
    """Proofs, the newest first."""

    items: list[ProofView]
    next: str | None = Field(description="The `cursor` of the next page; null on the last one.")


class Well(BaseModel):
    """All is well."""

    ok: bool = Field(examples=[True])


A_TRANSITION: Final[dict[str, Any]] = {
    KEY: "pazar:proof:status_change:17",
    "tenant_id": 7,
    "subject_ref": {"type": "order", "id": "4711"},
    "from": "pending",
    "to": "paid",
    "actor_id": "user-12",
}
A_QUESTION: Final[dict[str, Any]] = {"subject_type": "order", "from": "pending", "to": "paid"}
A_PROOF: Final[dict[str, Any]] = {
    KEY: "pazar:refund:17",
    "tenant_id": 7,
    "kind": "refund",
    "subject_ref": {"type": "order", "id": "4711"},
    "payload": {"amount": "12.50"},
}
