"""What callers send and what they get: strict bodies, one envelope for answers and errors, and the
table in which each route stands with the line that says who may call it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Final, TypeVar, cast
from urllib.parse import urlsplit

import msgspec
from fastapi import Depends, Request, Response
from fastapi.routing import APIRoute
from pydantic import AfterValidator, BaseModel, Field, StringConstraints

from ulak.kit.bodies import Body, strict_body
from ulak.kit.clock import Instant, rfc3339, to_datetime
from ulak.kit.routes import RouteTable
from ulak.services.publishing import statuses
from ulak.services.publishing.articles import Article, Comment
from ulak.web import Authenticator

Model = TypeVar("Model", bound=BaseModel)


def storable(text: str) -> str:
    """Return a text that both databases can keep. Raises `ValueError`: it has a character for
    which PostgreSQL, or UTF-8, has no place."""
    if "\x00" in text:
        raise ValueError("it holds the character NUL, which no database can keep")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("it holds half of a character, which no database can keep") from None
    return text


def _web_address(text: str) -> str:
    try:
        parts = urlsplit(text)
        is_good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good or not text.isprintable() or " " in text:
        raise ValueError("write an address that begins with http:// or https://")
    return text


Storable = AfterValidator(storable)
Title = Annotated[str, StringConstraints(min_length=1, max_length=200), Storable]
Description = Annotated[str, StringConstraints(min_length=1, max_length=500), Storable]
Content = Annotated[str, StringConstraints(min_length=1), Storable]
Reason = Annotated[str, StringConstraints(min_length=1, max_length=2000), Storable]
Word = Annotated[str, StringConstraints(min_length=1, max_length=100), Storable]
Tags = Annotated[list[Word], Field(max_length=50)]
WebAddress = Annotated[str, StringConstraints(max_length=500), AfterValidator(_web_address)]


class NewArticle(Body):
    title: Title
    description: Description
    body: Content
    tag_list: Tags = Field([], description="Each once; in alphabetical order afterwards.")


class EditedArticle(Body):
    """What is to be different in a post; what is left out stays."""

    title: Title | None = None
    description: Description | None = None
    body: Content | None = None
    tag_list: Tags | None = None


class NewComment(Body):
    body: Content


class About(Body):
    """Which publication of a post a call is about; without it, the present one."""

    publication_id: Word | None = None


class Rejection(About):
    reason: Reason = "rejected by moderation"
    failed_task: Word | None = None


class Preview(About):
    preview_url: WebAddress


class Failure(About):
    error_message: Reason
    failed_task: Word | None = None


class Redrive(Body):
    resume: bool = False


class Said(BaseModel):
    """The envelope of every answer that is no error."""

    success: bool = Field(examples=[True])
    message: str
    data: dict[str, Any]


def make_table(
    route_class: type[APIRoute], authenticate: Authenticator | None, scheme: str
) -> RouteTable:
    """Return a table of routes for one kind of caller."""
    return RouteTable(
        route_class=route_class, response_model=Said, authenticate=authenticate, schemes=(scheme,)
    )


def optional_body(model: type[Model]) -> Any:
    """Return the annotation of a parameter that gets the body as this model, its defaults where
    nothing was sent."""
    read = strict_body(model).dependency

    async def read_optional(request: Request) -> Model:
        return cast(Model, await read(request) if await request.body() else model())

    return Depends(read_optional)


def said(message: str, data: Mapping[str, Any], status: int = 200) -> Response:
    """Return the answer of a success."""
    document = {"success": True, "message": message, "data": data}
    return Response(msgspec.json.encode(document), status, media_type="application/json")


_CODES: Final = {"bad-input": "validation_error", "unauthenticated": "not_authenticated"}


def envelope(problem: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what an error has by the specification of publishing; those about idempotency keys
    keep their own document."""
    code = str(problem["code"])
    if code.startswith("idempotency_"):
        return {}
    wrong = problem.get("errors", ())
    return {
        "success": False,
        "code": _CODES.get(code, code.replace("-", "_")),
        "message": problem["detail"],
        "errors": [{"field": each["parameter"], "message": each["message"]} for each in wrong],
    }


def show_article(post: Article, reader: str = "") -> dict[str, Any]:
    """Return a post as a reader sees it: of one that is not published, others than its author see
    how it stands and not what it says."""
    document: dict[str, Any] = {
        "id": post.id, "slug": post.slug, "title": post.title, "status": post.status,
        "preview_url": post.preview_url, "published_at": _time(post.published_at),
        "created_at": _time(post.created_at), "updated_at": _time(post.updated_at),
    }  # fmt: skip
    if reader == post.author_id or post.status == statuses.PUBLISHED:
        document |= {
            "description": post.description, "body": post.body, "tag_list": post.tags,
            "author_id": post.author_id, "revision": post.revision,
        }  # fmt: skip
    if reader == post.author_id:
        document |= {
            "publication_id": post.publication_id, "moderation_reason": post.moderation_reason,
            "error_message": post.error_message,
        }  # fmt: skip
    return document


def show_comment(comment: Comment) -> dict[str, Any]:
    """Return a comment as everybody sees it."""
    at = {name: _time(getattr(comment, name)) for name in ("created_at", "updated_at")}
    return asdict(comment) | at


def _time(at: Instant | None) -> str | None:
    return None if at is None else rfc3339(to_datetime(at))
