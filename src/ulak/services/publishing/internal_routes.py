"""The routes for workers and operators: before each stands one check, of a service key."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Request, Response

from ulak import Engine
from ulak.auth import Keys
from ulak.errors import Forbidden, ServiceError, Unauthenticated
from ulak.kit.bodies import describe_body, strict_body
from ulak.services.publishing import bodies, scopes
from ulak.services.publishing.bodies import make_table, optional_body, said, show_article
from ulak.services.publishing.public_routes import Limit, Skip
from ulak.services.publishing.saga import Saga, Step
from ulak.web import Access, Caller, SlashRoute

if TYPE_CHECKING:
    from ulak.services.publishing.dead_letters import DeadLetters

POST: Final = "/internal/articles/{id}"
LETTERS: Final = "/internal/dlq"
LETTER: Final = f"{LETTERS}/{{id}}"

Id = Annotated[str, Path(max_length=100), bodies.Storable]
Filter = Annotated[str | None, Query(max_length=100), bodies.Storable]
Approval = Annotated[bodies.About, optional_body(bodies.About)]
Rejection = Annotated[bodies.Rejection, optional_body(bodies.Rejection)]
Redrive = Annotated[bodies.Redrive, optional_body(bodies.Redrive)]
Preview = Annotated[bodies.Preview, strict_body(bodies.Preview)]
Failure = Annotated[bodies.Failure, strict_body(bodies.Failure)]

# What Swagger UI proposes works as it stands.
_ABOUT: Final = describe_body(bodies.About, {})
_REJECTION: Final = describe_body(bodies.Rejection, {"reason": "it is too short"})
_PREVIEW: Final = describe_body(bodies.Preview, {"preview_url": "https://example.com/preview.png"})
_FAILURE: Final = describe_body(bodies.Failure, {"error_message": "the preview cannot be made"})
_REDRIVE: Final = describe_body(bodies.Redrive, {"resume": True})


class InvalidApiKey(ServiceError):
    """Nobody is told what is wrong with the key that was sent."""

    code, status = "invalid_api_key", 401
    headers = MappingProxyType({"WWW-Authenticate": 'Token realm="ulak"'})


class InsufficientScope(ServiceError):
    code, status = "insufficient_scope", 403


class _Route(SlashRoute):
    """Answers whoever is not let in by the codes of the specification."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what serves a request once the route has matched."""
        serve = super().get_route_handler()

        async def serve_or_refuse(request: Request) -> Response:
            try:
                return await serve(request)
            except Unauthenticated:
                raise InvalidApiKey("send a valid service key: Authorization: Token KEY") from None
            except Forbidden as error:
                raise InsufficientScope(str(error)) from None

        return serve_or_refuse


def verify_api_key(engine: Engine) -> Keys:
    """Return the check that stands before every internal route: it knows the API keys of the engine
    of the posts, and no login, token or user."""
    return Keys(engine)


def make_internal(
    engine: Engine, saga: Saga, dead_letters: DeadLetters
) -> tuple[APIRouter, list[Access]]:
    """Make the internal routes, each with its line of access."""
    route = make_table(_Route, verify_api_key(engine), "Token")

    @route("GET", POST, scopes.READ)
    def read(id: Id) -> Response:
        """Read everything about a post."""
        post = saga.find(id)
        document = show_article(post, post.author_id)
        return said("the post", {"article": {**document, "verdict": post.verdict}})

    @route("POST", f"{POST}/approve", scopes.APPROVE, **_ABOUT)
    def approve(id: Id, principal: Caller, sent: Approval) -> Response:
        """Approve a post that is pending; its preview is made next."""
        return _told("approved", saga.approve(id, sent.publication_id, principal.name))

    @route("POST", f"{POST}/reject", scopes.REJECT, **_REJECTION)
    def reject(id: Id, principal: Caller, sent: Rejection) -> Response:
        """Reject a post that is pending and was not approved."""
        step = saga.reject(
            id, sent.publication_id, sent.reason, principal.name, failed_task=sent.failed_task
        )
        return _told("rejected", step)

    @route("PUT", f"{POST}/preview", scopes.PREVIEW, **_PREVIEW)
    def store_preview(id: Id, principal: Caller, sent: Preview) -> Response:
        """Store where the preview of a pending post is; the post is published next."""
        step = saga.store_preview(id, sent.publication_id, sent.preview_url, principal.name)
        return _told("given a preview", step)

    @route("POST", f"{POST}/publish", scopes.PUBLISH, **_ABOUT)
    def publish(id: Id, principal: Caller, sent: Approval) -> Response:
        """Publish a pending post that has its preview; its subscribers are told next."""
        return _told("published", saga.publish(id, sent.publication_id, principal.name))

    @route("POST", f"{POST}/error", scopes.ERROR, **_FAILURE)
    def fail(id: Id, principal: Caller, sent: Failure) -> Response:
        """Say that the publication of a pending post has failed for good."""
        step = saga.fail(
            id, sent.publication_id, sent.error_message, principal.name,
            failed_task=sent.failed_task,
        )  # fmt: skip
        return _told("marked as failed", step)

    @route("GET", LETTERS, scopes.DLQ)
    def list_dead_letters(state: Filter = None, skip: Skip = 0, limit: Limit = 50) -> Response:
        """List dead letters, the newest first."""
        found = dead_letters.list(state=state, skip=skip, limit=limit)
        return said(f"{len(found)} dead letters", {"dead_letters": found, "count": len(found)})

    @route("GET", LETTER, scopes.DLQ)
    def read_dead_letter(id: Id) -> Response:
        """Read a dead letter."""
        return said("the dead letter", {"dead_letter": dead_letters.get(id)})

    @route("POST", f"{LETTER}/redrive", scopes.DLQ, **_REDRIVE)
    def redrive(id: Id, principal: Caller, sent: Redrive) -> Response:
        """Put a task back that has failed for good. With `resume` its post goes on as well, if it
        is in ERROR by the same publication."""
        letter = dead_letters.redrive(id, resume=sent.resume, actor=principal.name)
        return said("the task was put back", {"dead_letter": letter})

    @route("DELETE", LETTER, scopes.DLQ)
    def discard(id: Id, principal: Caller) -> Response:
        """Go on without a task that has failed for good."""
        letter = dead_letters.discard(id, actor=principal.name)
        return said("the dead letter was discarded", {"dead_letter": letter})

    return route.router, route.access


def _told(done: str, step: Step) -> Response:
    post = step.article
    document = {
        "article_id": post.id, "status": post.status, "changed": step.changed,
        "publication_id": post.publication_id, "preview_url": post.preview_url,
    }  # fmt: skip
    return said(f"the post {'was' if step.changed else 'is already'} {done}", document)
