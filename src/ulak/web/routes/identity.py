"""Logging in, keys, users, and the audit of what operators did."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from functools import partial
from html import escape
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, Field, WithJsonSchema

from ulak.auth import passwords, secrets
from ulak.auth.credentials import NAME, Credential
from ulak.auth.directory import OVERLAP, IssuedKey
from ulak.auth.identity import Identity
from ulak.auth.principal import ROLES
from ulak.engine.engine import Engine
from ulak.errors import Unauthenticated
from ulak.settings import Settings
from ulak.web import schemas
from ulak.web.callers import SESSION, Caller, actor_of, guarded_router, read_client_address
from ulak.web.pages import HTML, how_to_log_in, page, prefers_html, prose, respond
from ulak.web.problems import challenge

# What is answered once must not lie in a cache, and the address of a link in no referrer.
NO_STORE: Final = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}

# Only said here and checked below, where the message says what would work.
Role = Annotated[str, WithJsonSchema({"type": "string", "enum": list(ROLES)})]
Name = Annotated[
    str, WithJsonSchema({"type": "string", "pattern": f"^{NAME}$", "examples": ["ada"]})
]
Password = Annotated[
    str,
    Field(max_length=passwords.LONGEST),
    WithJsonSchema(
        {"type": "string", "minLength": passwords.SHORTEST, "maxLength": passwords.LONGEST}
    ),
]


class LoginRequest(schemas.Body):
    """A person's name and password."""

    name: Annotated[str, Field(max_length=64, examples=["ada"])]
    password: Annotated[
        str, Field(max_length=passwords.LONGEST, examples=["correct horse battery staple"])
    ]


class Grant(schemas.Body):
    """What somebody may do."""

    roles: Annotated[list[Role], Field(examples=[["operator"]])]
    tenant: str | None = Field(
        None, max_length=256, description="The only tenant that is seen; null sees all."
    )
    scopes: list[str] = Field(
        [],
        examples=[["jobs:read"]],
        description="Narrow what the roles allow; none narrow nothing.",
    )
    note: schemas.Note = ""


class NewKey(Grant):
    """A key to be made."""

    name: Annotated[Name, Field(description="Its acts are those of key:NAME.")]
    expires_in_seconds: int | None = Field(
        None, ge=1, le=schemas.LONGEST_SPAN_S, examples=[90 * 24 * 3600]
    )


class NewUser(Grant):
    """A user to be made."""

    name: Name
    password: Password


class Rotation(schemas.Body):
    """How a key is followed by another."""

    overlap_seconds: Annotated[
        int,
        Field(
            ge=0,
            le=schemas.LONGEST_SPAN_S,
            description="How long the old key goes on beside the new.",
        ),
    ] = int(OVERLAP.total_seconds())
    note: schemas.Note = ""


AS_USUAL: Final = Rotation()


class NewPassword(schemas.Body):
    """Another password."""

    password: Password
    note: schemas.Note = ""


class LoginDocument(BaseModel):
    """A token: send it as `Authorization: Bearer TOKEN`."""

    token: str
    token_type: Literal["bearer"] = "bearer"  # noqa: S105 - the kind of token
    expires_at: schemas.Moment


class PrincipalDocument(BaseModel):
    """Who calls, and what they may do."""

    name: str = Field(examples=["ada"])
    tenant: str | None
    roles: list[str] = Field(examples=[["operator"]])
    scopes: list[str] = Field(
        examples=[["jobs:read", "jobs:submit"]], description="Everything that may be done."
    )
    credential: str = Field(examples=["user/ada"])


class CredentialDocument(BaseModel):
    """A key or a user, without any secret."""

    name: str = Field(examples=["ci"])
    principal: str = Field(examples=["key:ci"], description="As trails and the audit name it.")
    tenant: str | None
    roles: list[str]
    scopes: list[str]
    state: Literal["active", "expired", "revoked"]
    created_at: schemas.Moment
    created_by: str
    expires_at: schemas.Moment | None
    revoked_at: schemas.Moment | None
    used_at: schemas.Moment | None


class KeyDocument(CredentialDocument):
    """A key, by its public part."""

    id: str = Field(examples=["ab23cd45"])
    prefix: str = Field(examples=["ulak_ab23cd45"], description="How the key begins.")


class IssuedKeyDocument(KeyDocument):
    """A key that was made just now."""

    key: str = Field(description="The key itself. It is shown this once.")


_REFUSAL: Final = schemas.problem_response(401)
_REFUSALS: Final[dict[int | str, dict[str, Any]]] = {
    401: {**_REFUSAL, "content": {**_REFUSAL["content"], HTML: {"schema": {"type": "string"}}}}
}


def identity_router(engine: Engine, identity: Identity, platform: Settings) -> APIRouter:
    """Make the routes of an identity; `platform` tells its pages how a link is printed."""

    # Not async: the first of these requests may be the first that anybody asks of the store.
    def be_open() -> None:
        engine.open()

    routes = guarded_router(tags=["identity"], dependencies=[Depends(be_open)])
    _add_logins(routes, identity, platform)
    _add_keys(routes, identity)
    _add_users(routes, identity)
    return routes


def _add_logins(routes: APIRouter, identity: Identity, platform: Settings) -> None:
    @routes.post("/auth/login", responses=schemas.problems(401, 429))
    async def login(body: LoginRequest, request: Request, response: Response) -> LoginDocument:
        """Return a token for a name and a password; good for a day. After wrong passwords, the next
        try is looked at when `Retry-After` is over."""
        address = read_client_address(request)
        log_in = partial(identity.login, body.name, body.password, address=address)
        made = await identity.attempts.on_thread(log_in)
        response.headers.update(NO_STORE)
        return LoginDocument(token=made.token, expires_at=made.expires_at)

    @routes.get("/auth/link", response_class=HTMLResponse, responses=_REFUSALS)
    def spend_link(
        request: Request,
        code: Annotated[str, Query(max_length=secrets.LONGEST, description="Of the link.")],
    ) -> HTMLResponse:
        """Log a browser in with a link, once, and show it the documents."""
        home = request.scope.get("root_path", "")
        try:
            made = identity.spend_link(code)
        except Unauthenticated as refusal:
            if not prefers_html(request):
                raise
            return _dead_link(refusal, how_to_log_in(request, platform))
        answer = respond(_go_on(f"{home}/docs"), headers=NO_STORE)
        answer.set_cookie(
            # A span, not a date: the clock of a browser may be wrong.
            SESSION, made.token, max_age=int(made.lasts.total_seconds()), path=home or "/",
            httponly=True, samesite="strict", secure=request.url.scheme == "https",
        )  # fmt: skip
        return answer

    @routes.post("/auth/logout", status_code=204)
    def logout(request: Request, response: Response) -> None:
        """Let a browser forget its login. The token itself is good until it expires."""
        response.delete_cookie(
            SESSION, path=request.scope.get("root_path", "") or "/", httponly=True,
            samesite="strict", secure=request.url.scheme == "https",
        )  # fmt: skip

    @routes.get("/auth/me")
    async def who_am_i(principal: Caller) -> PrincipalDocument:
        """Return who calls."""
        return PrincipalDocument(
            name=principal.name,
            tenant=principal.tenant,
            roles=sorted(principal.roles),
            scopes=[str(s) for s in identity.scopes.values() if principal.may(s)],
            credential=principal.credential,
        )


def _go_on(where: str) -> str:
    """Return a page that leads on. Not a redirect: a browser that comes from another site by a
    redirect does not send the strict cookie along. The code of the link stays here."""
    place = escape(where)
    return page(
        "ulak: logged in",
        f'<h1>You are logged in</h1>\n<p><a href="{place}">Go on</a></p>',
        head=f'<meta http-equiv="refresh" content="0; url={place}">',
    )


def _dead_link(refusal: Unauthenticated, login: str) -> HTMLResponse:
    said = str(refusal)
    sentence = prose(said[:1].upper() + said[1:])
    return respond(
        page("ulak: log in", f"<h1>This link does not work</h1>\n<p>{sentence}:</p>\n{login}"),
        401,
        {**NO_STORE, "WWW-Authenticate": challenge(refusal.reason)},
    )


def _add_keys(routes: APIRouter, identity: Identity) -> None:
    @routes.get("/keys")
    def list_keys() -> schemas.Whole[KeyDocument]:
        """Return every key, revoked and expired ones too."""
        found = identity.keys()
        return schemas.Whole(items=[KeyDocument(**_key(key)) for key in found])

    @routes.post("/keys", status_code=201)
    def create_key(body: NewKey, principal: Caller, response: Response) -> IssuedKeyDocument:
        """Make a key; it is answered this once."""
        life = body.expires_in_seconds
        made = identity.create_key(
            body.name, roles=body.roles, tenant=body.tenant, scopes=body.scopes,
            life=None if life is None else timedelta(seconds=life), note=body.note,
            actor=actor_of(principal), giver=principal,
        )  # fmt: skip
        return _issued(made, response)

    @routes.post("/keys/{id}/rotate", status_code=201)
    def rotate_key(
        id: str, principal: Caller, response: Response, body: Rotation = AS_USUAL
    ) -> IssuedKeyDocument:
        """Make a successor of a key; both are good until the overlap is over."""
        made = identity.rotate_key(
            id, overlap=timedelta(seconds=body.overlap_seconds), note=body.note,
            actor=actor_of(principal), giver=principal,
        )  # fmt: skip
        return _issued(made, response)

    @routes.post("/keys/{id}/revoke")
    def revoke_key(
        id: str, principal: Caller, body: schemas.ActAsked = schemas.NO_NOTE
    ) -> KeyDocument:
        """End a key, in every process within five seconds."""
        revoked = identity.revoke_key(id, actor=actor_of(principal), note=body.note)
        return KeyDocument(**_key(revoked))


def _issued(made: IssuedKey, response: Response) -> IssuedKeyDocument:
    response.headers.update(NO_STORE)
    return IssuedKeyDocument(**_key(made.key), key=made.text)


def _key(key: Credential) -> dict[str, Any]:
    return {**asdict(key), "prefix": f"{secrets.PREFIX}{key.id}"}


def _add_users(routes: APIRouter, identity: Identity) -> None:
    @routes.get("/users", response_model=schemas.Whole[CredentialDocument])
    def list_users() -> Any:
        """Return every user, disabled ones too."""
        return {"items": identity.users()}

    @routes.post("/users", status_code=201, response_model=CredentialDocument)
    def create_user(body: NewUser, principal: Caller) -> Credential:
        """Make a user, who can log in from now on."""
        return identity.create_user(
            body.name, body.password, roles=body.roles, tenant=body.tenant, scopes=body.scopes,
            note=body.note, actor=actor_of(principal), giver=principal,
        )  # fmt: skip

    @routes.post("/users/{name}/password", response_model=CredentialDocument)
    def set_password(name: str, body: NewPassword, principal: Caller) -> Credential:
        """Give a user another password; logins with the old one end within five seconds."""
        return identity.set_password(
            name, body.password, actor=actor_of(principal), note=body.note, giver=principal
        )

    @routes.post("/users/{name}/disable", response_model=CredentialDocument)
    def disable_user(
        name: str, principal: Caller, body: schemas.ActAsked = schemas.NO_NOTE
    ) -> Credential:
        """Let a user in no more; their logins end within five seconds."""
        return identity.disable_user(name, actor=actor_of(principal), note=body.note)


LAST_POSITION: Final = 2**62


class AuditQuery(schemas.Parameters):
    """Which lines of the audit."""

    subject: str | None = Field(None, max_length=512, examples=["credential/key/ab23cd45"])
    after: int | None = Field(
        None, ge=0, le=LAST_POSITION, description="The `next` of the page before."
    )
    limit: schemas.PageSize = schemas.USUAL_PAGE


class AuditDocument(BaseModel):
    """One act of an operator."""

    position: int
    at: schemas.Moment
    actor: str
    act: str = Field(examples=["revoked"])
    subject: str = Field(examples=["credential/key/ab23cd45"])
    note: str | None
    details: Any


class AuditPage(schemas.Page[AuditDocument, int]):
    """Acts, the latest first."""


def audit_router(engine: Engine) -> APIRouter:
    routes = guarded_router(tags=["audit"])

    @routes.get("/audit", response_model=AuditPage)
    def read_audit(query: Annotated[AuditQuery, Query()]) -> Any:
        """Return what operators did, the latest first."""
        page, following = schemas.paged(
            lambda n: engine.inspect.audit(subject=query.subject, before=query.after, limit=n),
            query.limit,
            lambda line: line.position,
        )
        return {"items": page, "next": following}

    return routes
