"""What callers send and what they get: strict bodies, and one envelope for answers and errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import partial
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import msgspec
from fastapi import Response
from pydantic import AfterValidator, BaseModel, Field, StringConstraints

from ulak.kit.bodies import Body, storable
from ulak.kit.clock import rfc3339, to_datetime
from ulak.services.publishing import statuses
from ulak.services.publishing.articles import Article, Comment
from ulak.services.publishing.users import SHORTEST_PASSWORD


def _web_address(text: str) -> str:
    try:
        parts = urlsplit(text)
        is_good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good or not text.isprintable() or " " in text:
        raise ValueError("write an address that begins with http:// or https://")
    return text


Storable = AfterValidator(partial(storable, keeper="database"))
Title = Annotated[str, StringConstraints(min_length=1, max_length=200), Storable]
Description = Annotated[str, StringConstraints(min_length=1, max_length=500), Storable]
Content = Annotated[str, StringConstraints(min_length=1), Storable]
Reason = Annotated[str, StringConstraints(min_length=1, max_length=2000), Storable]
Word = Annotated[str, StringConstraints(min_length=1, max_length=100), Storable]
Tags = Annotated[list[Word], Field(max_length=50)]
WebAddress = Annotated[str, StringConstraints(max_length=500), AfterValidator(_web_address)]
Email = Annotated[
    str, StringConstraints(max_length=254, pattern=r"^[^@\s]+@[^@\s]+\.[^@\s]+$"), Storable
]
Username = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]{3,50}$")]
Password = Annotated[str, StringConstraints(min_length=SHORTEST_PASSWORD, max_length=100), Storable]
Text = Annotated[str, StringConstraints(max_length=500), Storable]
Typed = Annotated[str, StringConstraints(max_length=1000), Storable]
# It becomes a header.
PushKey = Annotated[str, StringConstraints(pattern=r"^[!-~]{10,255}$")]


_LOGIN: Final = {"email": "ada@example.com", "password": "a-password-of-hers"}
_KEY: Final = "a-key-of-the-push-service"
_ARTICLE: Final = {
    "title": "A first post", "description": "What it is about", "body": "Once upon a time",
    "tag_list": ["tales"],
}  # fmt: skip


def _example(**members: Any) -> dict[str, Any]:
    """Return what Swagger UI proposes of a body; it works as it stands."""
    return {"example": members}


class NewArticle(Body, json_schema_extra=_example(**_ARTICLE)):
    title: Title
    description: Description
    body: Content
    tag_list: Tags = Field([], description="Each once; in alphabetical order afterwards.")


class EditedArticle(Body, json_schema_extra=_example(title="A better title")):
    """What is to be different in a post; what is left out stays."""

    title: Title | None = None
    description: Description | None = None
    body: Content | None = None
    tag_list: Tags | None = None


class NewComment(Body, json_schema_extra=_example(body="Well said")):
    body: Content


class About(Body, json_schema_extra=_example()):
    """Which publication of a post a call is about; without it, the present one."""

    publication_id: Word | None = None


class Rejection(About, json_schema_extra=_example(reason="it is too short")):
    reason: Reason = "rejected by moderation"
    failed_task: Word | None = None


class Preview(About, json_schema_extra=_example(preview_url="https://example.com/preview.png")):
    preview_url: WebAddress


class Failure(About, json_schema_extra=_example(error_message="the preview cannot be made")):
    error_message: Reason
    failed_task: Word | None = None


class Redrive(Body, json_schema_extra=_example(resume=True)):
    resume: bool = False


class EditedUser(Body, json_schema_extra=_example(bio="It counts.")):
    """What is to be different in a user; what is left out stays."""

    email: Email = ""
    username: Username = ""
    password: Password = ""
    bio: Text | None = None
    image_url: Text | None = None


class NewUser(EditedUser, json_schema_extra=_example(username="ada", **_LOGIN)):
    """A user as they register."""

    email: Email
    username: Username
    password: Password


class Credentials(Body, json_schema_extra=_example(**_LOGIN)):
    """Who logs in."""

    email: Typed
    password: Typed


class SubscriptionKey(Body, json_schema_extra=_example(subscription_key=_KEY)):
    """What pushes to the caller are authorised with."""

    subscription_key: PushKey


class Target(Body):
    """To whom the caller subscribes."""

    target_user_id: Typed


class Said(BaseModel):
    """The envelope of every answer that is no error."""

    success: bool = Field(examples=[True])
    message: str
    data: dict[str, Any]


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


_TO_ALL: Final = (
    "id", "slug", "title", "status", "preview_url", "published_at", "created_at", "updated_at",
)  # fmt: skip
_TO_READERS: Final = ("description", "body", "tag_list", "author_id", "revision")
_TO_THE_AUTHOR: Final = ("publication_id", "moderation_reason", "error_message")
_FIELDS: Final = {"tag_list": "tags"}


def show_article(post: Article, reader: str = "") -> dict[str, Any]:
    """Return a post as a reader sees it: of one that is not published, others than its author see
    how it stands and not what it says."""
    is_own, names = reader == post.author_id, [*_TO_ALL]
    if is_own or post.status == statuses.PUBLISHED:
        names += _TO_READERS
    return _show(post, [*names, *_TO_THE_AUTHOR] if is_own else names)


def show_comment(comment: Comment) -> dict[str, Any]:
    """Return a comment as everybody sees it."""
    return _show(comment, [field.name for field in fields(comment)])


def _show(record: Article | Comment, names: Iterable[str]) -> dict[str, Any]:
    """Return fields of a record, by their names in JSON; times as text."""
    document = {name: getattr(record, _FIELDS.get(name, name)) for name in names}
    times = [name for name in document if name.endswith("_at") and document[name] is not None]
    return document | {name: rfc3339(to_datetime(document[name])) for name in times}
