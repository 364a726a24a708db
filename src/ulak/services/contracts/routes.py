"""The routes of contracts."""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Annotated, Any, Final

from fastapi import HTTPException, Path, Query, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from ulak import Engine
from ulak.auth import Principal
from ulak.errors import Forbidden, NotFound, StoreError
from ulak.idempotency import HEADER, REPLAYED
from ulak.kit.bodies import describe_body, storable
from ulak.kit.clock import rfc3339, to_datetime
from ulak.services.contracts import CONTRACT_READ, CONTRACT_TRANSITION, KEY_HEADERS, bodies
from ulak.services.contracts.bodies import Sent
from ulak.services.contracts.ledger import document_of
from ulak.services.contracts.outbox.modes import Decider
from ulak.services.contracts.tables import LONGEST_NAME, written
from ulak.web import PUBLIC, Caller, KeyedRoute, Routes, RouteTable
from ulak.web.routes.health import StoreProbe
from ulak.web.schemas import Moment, answer, problems

LARGEST_PAGE: Final = 200
_CURSOR: Final = re.compile(r"proof:(\d{1,18})")

Word = Annotated[str, AfterValidator(storable), AfterValidator(str.lower)]
IdText = Annotated[str, AfterValidator(storable)]


class SubjectQuery(BaseModel):
    """Whose subject."""

    model_config = ConfigDict(extra="forbid")

    tenant_id: IdText | None = Field(
        None, description="Whose subject it is; a caller of one tenant need not say."
    )


class ProofsQuery(BaseModel):
    """Which proofs, and which page of them."""

    model_config = ConfigDict(extra="forbid")

    tenant_id: IdText | None = Field(None, description="Only of this tenant.")
    subject_type: Word | None = Field(None, description="Only about this type of subject.")
    subject_id: IdText | None = Field(None, description="Only about this subject.")
    kind: IdText | None = Field(None, description="Only of this kind.")
    cursor: str | None = Field(None, description="The `next` of the page before.")
    limit: int = Field(50, ge=1, le=LARGEST_PAGE, description="How many at most.")


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
    durable: bool | None = Field(
        None, description="False while records of idempotency keys may be lost; else left out."
    )


def routes_of(engine: Engine, contracts: Decider) -> Routes:
    """Make the routes, and the lines that say who may call each."""
    routes = RouteTable({"headers": KEY_HEADERS})
    probe = StoreProbe(engine, contracts.guard)

    # Whatever asks the store is not async: the store is synchronous, so FastAPI runs it in
    # threads.
    @routes(
        "POST", "/v1/contract/transition", CONTRACT_TRANSITION, "jobs",
        response_model=Transitioned, route_class_override=KeyedRoute,
        responses={422: {"model": RefusedTransition}, **problems(409)},
        openapi_extra=describe_body(bodies.TransitionBody, bodies.A_TRANSITION),
    )  # fmt: skip
    def transition(sent: Sent, principal: Caller) -> Response:
        """Move a subject to a status, once per key; the change and its proof are one commit.

        A refusal is `ok: false` with its `reason`: 422, 409 where the caller's status or version
        is stale, and 404 for a subject that nobody has heard of, which may be tried again.
        """
        asked = bodies.transition_in(sent, principal)
        _must_be_of(principal, asked.tenant_id)
        answered = contracts.transition(asked)
        done, headers = answered.answer, _key_headers(asked.key, is_replay=answered.is_replay)
        return Response(done.body, done.status, headers=dict(done.headers) | headers)

    @routes(
        "POST", "/v1/contract/can-transition", CONTRACT_READ, "jobs", response_model=Allowed,
        openapi_extra=describe_body(bodies.TransitionBody, bodies.A_QUESTION),
    )  # fmt: skip
    def can_transition(sent: Sent, principal: Caller) -> Response:
        """Tell whether a transition would be made. Writes nothing and needs no key. Without a
        subject's id it is judged as if the subject stood in `from`."""
        asked = bodies.transition_in(sent, principal, is_question=True)
        if asked.id:
            _must_be_of(principal, asked.tenant_id)
        elif asked.from_ is None:
            raise HTTPException(400, "say the subject's id, or the status it would move from")
        verdict, version = contracts.can_transition(asked)
        reason = verdict.reason
        return answer({"allowed": reason is None, "reason": reason, "contract_version": version})

    @routes("GET", "/v1/contract", CONTRACT_READ, "jobs", response_model=Contract)
    def list_versions() -> Response:
        """List contract versions and their tables."""
        versions = contracts.versions
        known = {name: written(version) for name, version in versions.known.items()}
        return answer({"active": versions.active.name, "versions": known})

    @routes(
        "GET", "/v1/contract/subjects/{type}/{id:path}", CONTRACT_READ, "job",
        response_model=SubjectView,
    )  # fmt: skip
    def read_subject(
        type: Annotated[Word, Path(max_length=LONGEST_NAME)],
        id: Annotated[IdText, Path(max_length=bodies.LONGEST_ID)],
        query: Annotated[SubjectQuery, Query()],
        principal: Caller,
    ) -> Response:
        """Read where a subject stands. A foreign tenant's is not found."""
        tenant = principal.tenant if query.tenant_id is None else query.tenant_id
        if tenant is None:
            raise HTTPException(400, "tenant_id: it is missing; this caller sees every tenant")
        found = contracts.find_subject(tenant, type, id) if principal.sees(tenant) else None
        if found is None:
            raise NotFound(f"there is no {type} {id}")
        document: dict[str, Any] = dict(zip(SubjectView.model_fields, found, strict=True))
        for name in ("created_at", "updated_at"):
            document[name] = rfc3339(to_datetime(document[name]))
        return answer(document)

    @routes(
        "POST", "/v1/proof/record", CONTRACT_TRANSITION, "jobs", response_model=RecordedProof,
        route_class_override=KeyedRoute,
        openapi_extra=describe_body(bodies.RecordBody, bodies.A_PROOF),
    )  # fmt: skip
    def record_proof(sent: Sent, principal: Caller) -> Response:
        """Record a proof of something that happened elsewhere, once per key; without a key, once
        per content."""
        asked = bodies.recording_in(sent, principal)
        _must_be_of(principal, asked.tenant_id)
        done = contracts.record(asked)
        headers = _key_headers(done.key, is_replay=done.is_replay)
        return answer({"proof_id": done.proof_id}, headers=headers)

    @routes("GET", "/v1/proof", CONTRACT_READ, "jobs", response_model=ProofPage)
    def list_proofs(query: Annotated[ProofsQuery, Query()], principal: Caller) -> Response:
        """List proofs, the newest first. A caller of one tenant sees the proofs of that tenant."""
        before = None if query.cursor is None else _number_in(query.cursor)
        tenant = principal.tenant if query.tenant_id is None else query.tenant_id
        if tenant is not None and not principal.sees(tenant):
            return answer({"items": [], "next": None})
        # One more than asked tells whether there is another page.
        found = contracts.proofs(
            limit=query.limit + 1, before=before, tenant_id=tenant, kind=query.kind,
            subject_type=query.subject_type, subject_id=query.subject_id,
        )  # fmt: skip
        page = found[: query.limit]
        following = None
        if len(found) > len(page):
            text = f"proof:{page[-1].proof_id}".encode()
            following = urlsafe_b64encode(text).decode().rstrip("=")
        return answer({"items": [document_of(proof) for proof in page], "next": following})

    @routes("GET", "/v1/health", PUBLIC, response_model=Well, response_model_exclude_none=True)
    async def health() -> dict[str, bool]:
        """Tell that the process lives; nothing else is asked."""
        return {"ok": True}

    @routes("GET", "/v1/ready", PUBLIC, response_model=Well, response_model_exclude_none=True)
    async def ready() -> dict[str, bool]:
        """Tell whether the stores answer: 503 when one does not."""
        if (lacking := await probe.complaint()) is not None:
            raise StoreError(lacking)
        return {"ok": True, **probe.warning}

    return Routes([routes.router], routes.access)


def _must_be_of(principal: Principal, tenant: str) -> None:
    if not principal.sees(tenant):
        raise Forbidden(f"{principal.name} acts for its own tenant only, not for {tenant!r}")


def _key_headers(key: str, *, is_replay: bool) -> dict[str, str]:
    return {HEADER: key, REPLAYED: "true" if is_replay else "false"}


def _number_in(cursor: str) -> int:
    try:
        text = urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4)).decode()
        found = _CURSOR.fullmatch(text)
    except ValueError:
        found = None
    if found is None:
        raise HTTPException(400, "cursor: this is no `next` of a page")
    return int(found[1])
