"""Bodies of requests: every member by each of its names, and the parts that are kept as written.

Routes read them after the caller is known: what nobody may ask is not read, and a missing
idempotency key is told before anything else is judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import msgspec
from fastapi import Depends, HTTPException, Request
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    WithJsonSchema,
)

from ulak.auth import Principal
from ulak.errors import BadInput
from ulak.idempotency import HEADER, read_key
from ulak.kit import read_json
from ulak.kit.bodies import Body, storable
from ulak.services.contracts.ledger import STATUS_CHANGE
from ulak.services.contracts.requests import Recording, Transition
from ulak.services.contracts.tables import LONGEST_NAME
from ulak.web import problems

KEY: Final = "idempotency_key"

Model = TypeVar("Model", bound=BaseModel)


async def _raw(request: Request) -> RawBody:
    marks = request.scope.setdefault(problems.EXTRA, {})
    return RawBody(await request.body(), request.headers.getlist(HEADER), marks)


class RawBody:
    """A body; it is read on demand, in the thread of the route.

    `keys` are the lines of the header of idempotency keys, `marks` the headers that a problem of
    this request will have.
    """

    def __init__(self, body: bytes, keys: Sequence[str], marks: dict[str, str]) -> None:
        self._body = body
        self._keys = keys
        self._marks = marks

    def key(self, *, required: bool = True) -> str | None:
        """Return the idempotency key, of the header or of the body; the answer names it, also
        when the rest cannot be used. Raises `BadKey` as `read_key` does."""
        key = read_key(self._keys, self._found.members.get(KEY), required=required)
        if key is not None:
            self._marks[HEADER] = key
        return key

    def read(self, model: type[Model]) -> Model:
        """Return the body as a model; 400 names what is wrong with it."""
        if self._found.wrong:
            raise HTTPException(400, self._found.wrong)
        try:
            return model.model_validate(self._found.members)
        except ValidationError as error:
            wrong = (
                f"{'.'.join(map(str, each['loc'])) or 'body'}: {each['msg']}"
                for each in error.errors(include_url=False, include_context=False)
            )
            raise HTTPException(400, "; ".join(wrong)) from None

    def written(self, *names: str) -> dict[str, str]:
        """Return members as they were written, number by number; what is null is left out."""
        return {
            name: bytes(self._found.written[name]).decode()
            for name in names
            if self._found.members.get(name) is not None
        }

    @cached_property
    def _found(self) -> _Found:
        members: dict[str, Any] = {}
        try:
            found = read_json(self._body)
            if not isinstance(found, dict):
                raise ValueError("it is no object")
            members = found
            return _Found(members, msgspec.json.decode(self._body, type=dict[str, msgspec.Raw]))
        except (ValueError, RecursionError, msgspec.DecodeError) as error:
            # A key may be there all the same: half a character elsewhere is found only then.
            return _Found(members, {}, f"the body is no JSON object that can be read: {error}")


class _Found(NamedTuple):
    members: Mapping[str, Any]
    written: Mapping[str, msgspec.Raw]
    wrong: str = ""


Sent = Annotated[RawBody, Depends(_raw)]

LONGEST_ID: Final = 200
LONGEST_TEXT: Final = 500
LARGEST_NUMBER: Final = 2**63 - 1
# A proof is kept for ever, so it is no place for documents.
LARGEST_PAYLOAD: Final = 256 * 1024

T = TypeVar("T")


class TenantMismatch(BadInput):
    code = "tenant_mismatch"


class ReservedKind(BadInput):
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
    tenant_id: Id | None = Field(
        None, description="Whose subject it is; a caller of one tenant need not say."
    )
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


class Context(Body):
    """What the caller says beside; `from` may stand for that of the request."""

    model_config = ConfigDict(extra="allow")

    from_: Name | None = Field(None, alias="from")


class TransitionBody(_AboutASubject):
    """A change of a subject's status."""

    expected_version: int | None = Field(None, ge=0, le=LARGEST_NUMBER)
    ctx: Context | None = Field(None, description="`ctx.from` may stand for `from`.")
    meta: JsonValue = Field(None, description="Kept in the proof.")
    attrs: JsonValue = Field(None, description="Kept in the proof.")


class RecordBody(_AboutASubject):
    """A proof of something that happened elsewhere."""

    kind: Annotated[str, Field(min_length=1, max_length=LONGEST_NAME), AfterValidator(_not_blank)]
    payload: JsonValue = None


def transition_in(sent: RawBody, caller: Principal, *, is_question: bool = False) -> Transition:
    """Read the body of a transition, or of the question whether it would be made: that needs no
    key, and no subject. Raises `BadKey`, 400 for what is missing or cannot be used, and
    `TenantMismatch`."""
    key = "" if is_question else sent.key()
    body = sent.read(TransitionBody)
    id = body.id if is_question else _given("subject_ref.id", body.id)
    return Transition(
        _tenant(body, caller, required=id is not None),
        _given("subject_ref.type", body.type),
        id or "",
        _given("to", body.target),
        key=key or "",
        caller=caller.name,
        from_=_one("from", body.from_, "ctx.from", None if body.ctx is None else body.ctx.from_),
        expected_version=body.expected_version,
        details=_kept(sent.written("meta", "attrs", "ctx")),
        **_unchanged(body),
    )


def recording_in(sent: RawBody, caller: Principal) -> Recording:
    """Read the body of a proof that is to be recorded; raises as `transition_in`, and
    `ReservedKind` for a kind that only transitions leave."""
    key = sent.key(required=False)
    body = sent.read(RecordBody)
    if body.kind.lower() == STATUS_CHANGE:
        raise ReservedKind(
            f'proofs of the kind "{STATUS_CHANGE}" are left by POST /v1/contract/transition; '
            "record what happened elsewhere under a name of its own"
        )
    return Recording(
        _tenant(body, caller, required=True),
        body.kind,
        _kept(sent.written("payload")).get("payload", "null"),
        key=key,
        caller=caller.name,
        type=body.type,
        id=body.id,
        from_=body.from_,
        to=body.target,
        **_unchanged(body),
    )


def _unchanged(body: _AboutASubject) -> dict[str, Any]:
    return body.model_dump(include={"actor_id", "source", "request_id", "contract_version"})


def _tenant(body: _AboutASubject, caller: Principal, *, required: bool) -> str:
    tenant = caller.tenant if body.tenant_id is None else body.tenant_id
    of_subject = None if body.subject_ref is None else body.subject_ref.tenant_id
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
