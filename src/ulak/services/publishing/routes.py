"""The routes of posts, of users, and the internal ones for workers and operators."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.responses import JSONResponse

from ulak import Engine
from ulak.auth import Keys
from ulak.errors import Forbidden, ServiceError, Unauthenticated
from ulak.idempotency import HEADER, Execution, Guard, Scope
from ulak.kit.bodies import MaybeSent, Sent
from ulak.services.publishing import bodies, keys, statuses
from ulak.services.publishing.articles import Posts
from ulak.services.publishing.bodies import Said, said, show_article, show_comment
from ulak.services.publishing.saga import Saga, Step
from ulak.services.publishing.users import Logins, Users
from ulak.tables import Tables
from ulak.web import (
    KNOWN,
    PUBLIC,
    Access,
    Caller,
    IdempotentRoute,
    RouteTable,
    SlashRoute,
    StoreProbe,
    idempotent_route,
    read_client_address,
)

if TYPE_CHECKING:
    from ulak.services.publishing.dead_letters import DeadLetters

Made = tuple[APIRouter, list[Access]]
"""Routes, and for each the line that says who may call it."""

ARTICLES: Final = "/api/articles"
ARTICLE: Final = f"{ARTICLES}/{{slug}}"
COMMENTS: Final = f"{ARTICLE}/comments"
USERS: Final = "/api/users"
MINE: Final = ("/api/user", f"{USERS}/me")
SUBSCRIBE: Final = f"{USERS}/subscribe"
POST: Final = "/internal/articles/{id}"
LETTERS: Final = "/internal/dlq"
LETTER: Final = f"{LETTERS}/{{id}}"
ME: Final = "me"
"""As the author in a list: the caller."""
PUBLICATION: Final = Scope("publishing.publish")
LONGEST_WORD: Final = 300
MOST_SKIPPED: Final = 2**31 - 1

Slug = Annotated[str, Path(max_length=LONGEST_WORD), bodies.Storable]
Id = Annotated[str, Path(max_length=100), bodies.Storable]
Filter = Annotated[str | None, Query(max_length=LONGEST_WORD), bodies.Storable]
State = Annotated[str | None, Query(max_length=100), bodies.Storable]
Skip = Annotated[int, Query(ge=0, le=MOST_SKIPPED, description="How many to leave out.")]
Limit = Annotated[int, Query(ge=1, le=100, description="How many at most.")]
_KEY: Final = {
    "name": HEADER, "in": "header", "required": False, "schema": {"type": "string"},
    "description": "The same each time this request is repeated: the repetitions are answered as "
    "the first was, with the same publication_id.",
}  # fmt: skip
_PUBLISH: Final = {"parameters": [_KEY]}
_NO_CONTENT: Final[Any] = {"status_code": 204, "response_model": None}


class _PublicRoute(SlashRoute, IdempotentRoute):
    """With and without the final slash, and with an idempotency key where one is taken."""


def make_public(engine: Engine, posts: Posts, logins: Logins) -> Made:
    """Make the routes of posts and comments, for authors and readers."""
    callers = {"authenticate": logins, "schemes": ("Bearer",)}
    route = RouteTable(callers, route_class=_PublicRoute, response_model=Said)

    def who(principal: Caller) -> tuple[str, str]:
        posts.tables.ensure()  # not in the transaction of the key, which has begun later on
        return "", principal.name

    once = Depends(
        idempotent_route(Guard(engine.store), PUBLICATION, identify=who, policy="optional")
    )

    # What asks the store is not async: the store is synchronous, so FastAPI runs it in threads.
    @route("POST", ARTICLES, KNOWN, status_code=201)
    def create(principal: Caller, sent: Sent[bodies.NewArticle]) -> Response:
        """Write a post. It is a draft; nobody is told of it before it is published."""
        texts = sent.model_dump(exclude={"tag_list"})
        post = posts.create(principal.name, tags=sent.tag_list, **texts)
        document = show_article(post, principal.name)
        return said("the post is a draft", {"article": document, "slug": post.slug}, 201)

    @route("GET", ARTICLES, PUBLIC)
    def list_articles(
        principal: Caller, skip: Skip = 0, limit: Limit = 20, tag: Filter = None,
        author: Filter = None, status: statuses.Status | None = None,
    ) -> Response:  # fmt: skip
        """List published posts, the newest first. With `author=me` they are the caller's own, in
        whatever status; `count` is how many there are on all pages."""
        if author == ME and not principal.name:
            why = "author=me lists your own posts: send Authorization: Bearer TOKEN"
            raise Unauthenticated(why, reason="missing")
        if author == ME:
            author = principal.name
        elif status in (None, statuses.PUBLISHED):
            status = "PUBLISHED"
        else:  # nobody lists what others have not published
            return said("0 posts", {"articles": [], "count": 0})
        found, count = posts.list(status=status, author_id=author, tag=tag, skip=skip, limit=limit)
        shown = [show_article(post, principal.name) for post in found]
        return said(f"{len(shown)} posts", {"articles": shown, "count": count})

    @route("GET", ARTICLE, PUBLIC)
    def read(slug: Slug, principal: Caller) -> Response:
        """Read a post. Of one that is not published, others than its author get the status and
        the times, and not the text."""
        return said("the post", {"article": show_article(posts.get(slug), principal.name)})

    @route("PUT", ARTICLE, KNOWN)
    def edit(slug: Slug, principal: Caller, sent: Sent[bodies.EditedArticle]) -> Response:
        """Edit a post of one's own; what is left out stays. One that was rejected or has failed
        is a draft again."""
        texts = sent.model_dump(exclude={"tag_list"}, exclude_none=True)
        post = posts.edit(slug, principal.name, tags=sent.tag_list, **texts)
        return said("the post was edited", {"article": show_article(post, principal.name)})

    @route("DELETE", ARTICLE, KNOWN)
    def delete(slug: Slug, principal: Caller) -> Response:
        """Delete a post of one's own, with its comments."""
        posts.delete(slug, principal.name)
        return said("the post was deleted", {"slug": slug})

    @route("POST", f"{ARTICLE}/publish", KNOWN, status_code=202, openapi_extra=_PUBLISH)
    def publish(slug: Slug, principal: Caller, protected: Execution | None = once) -> Response:
        """Ask for the publication of a draft of one's own. It is moderated, gets a preview and is
        then published; read the post to see how far it is."""
        connection = None if protected is None else protected.connection
        post = posts.publish(slug, principal.name, connection=connection)
        document: dict[str, Any] = {
            "article": show_article(post, principal.name), "status": post.status,
            "publication_id": post.publication_id,
        }  # fmt: skip
        return said("the publication was accepted", document, 202)

    @route("POST", f"{ARTICLE}/draft", KNOWN)
    def draft(slug: Slug, principal: Caller) -> Response:
        """Take a post of one's own back to draft, before it is published."""
        post = posts.draft(slug, principal.name)
        document = {"article": show_article(post, principal.name), "status": post.status}
        return said("the post is a draft", document)

    @route("POST", COMMENTS, KNOWN, status_code=201)
    def comment(slug: Slug, principal: Caller, sent: Sent[bodies.NewComment]) -> Response:
        """Write a comment below a published post."""
        made = posts.comment(slug, principal.name, sent.body)
        return said("the comment was written", {"comment": show_comment(made)}, 201)

    @route("GET", COMMENTS, PUBLIC)
    def list_comments(slug: Slug, skip: Skip = 0, limit: Limit = 100) -> Response:
        """List the comments below a published post, the oldest first."""
        found = [show_comment(each) for each in posts.comments(slug, skip=skip, limit=limit)]
        return said(f"{len(found)} comments", {"comments": found, "count": len(found)})

    @route("DELETE", f"{COMMENTS}/{{id}}", KNOWN)
    def uncomment(slug: Slug, id: Slug, principal: Caller) -> Response:
        """Delete a comment of one's own."""
        posts.uncomment(slug, id, principal.name)
        return said("the comment was deleted", {"id": id})

    return route.router, route.access


def make_ready(tables: Tables, queue: Engine | None = None) -> Made:
    """Make the probe that tells whether the database of these tables answers. With a queue that is
    in another store it also says how that one is; posts are published while it is away."""
    route = RouteTable({}, route_class=SlashRoute, response_model=Said)
    probe = None if queue is None else StoreProbe(queue)

    @route("GET", "/ready", PUBLIC)
    async def ready() -> Response:
        """Tell whether the database answers: 503 when it does not."""
        await to_thread(tables.read, "SELECT 1")
        data = {"status": "ready"}
        if probe is not None:
            lacking = await probe.complaint()
            data["queue"] = "ready" if lacking is None else f"tasks wait in the posts: {lacking}"
        return said("the database answers", data)

    return route.router, route.access


def make_users(users: Users, logins: Logins) -> Made:
    """Make the routes of users: registration, login, their own data, and their subscriptions."""
    callers = {"authenticate": logins, "schemes": ("Bearer",)}
    route = RouteTable(callers, route_class=SlashRoute, response_model=Said)
    # A token that has expired is no hindrance to a new login.
    public = RouteTable({}, response_model=Said)
    public.router = route.router

    @public("POST", USERS, PUBLIC, status_code=201)
    def register(sent: Sent[bodies.NewUser]) -> Response:
        """Register a user."""
        user = users.register(sent.model_dump(exclude_unset=True))
        return said("registered", {"user": user}, 201)

    @public("POST", f"{USERS}/login", PUBLIC)
    async def login(sent: Sent[bodies.Credentials], request: Request) -> Response:
        """Log in, and get a token for the other routes."""
        address = read_client_address(request)
        log_in = partial(users.login, sent.email, sent.password, address=address)
        user = await users.attempts.on_thread(log_in)
        token = {"access_token": logins.make(user.id, user.email), "token_type": "bearer"}
        data = {"user": asdict(user), **token}
        # Clients of OAuth look for the token at the top.
        return JSONResponse({"success": True, "message": "logged in", "data": data, **token})

    def read(principal: Caller) -> Response:
        """Read your own data."""
        return said("this is you", {"user": users.get(principal.name)})

    def edit(principal: Caller, sent: Sent[bodies.EditedUser]) -> Response:
        """Change your own data."""
        changes = sent.model_dump(exclude_unset=True)
        return said("your data was changed", {"user": users.update(principal.name, changes)})

    for path in MINE:
        route("GET", path, KNOWN)(read)
        route("PUT", path, KNOWN)(edit)

    @route("PUT", f"{MINE[1]}/subscription-key", KNOWN)
    def set_key(principal: Caller, sent: Sent[bodies.SubscriptionKey]) -> Response:
        """Set the key by which the push service knows you. It is not shown again."""
        user = users.set_key(principal.name, sent.subscription_key)
        return said("the key was set", {"user": user})

    @route("POST", SUBSCRIBE, KNOWN, **_NO_CONTENT)
    def subscribe(principal: Caller, sent: Sent[bodies.Target]) -> None:
        """Subscribe to the posts of another user."""
        users.subscribe(principal.name, sent.target_user_id)

    @route("DELETE", f"{SUBSCRIBE}/{{target_user_id}}", KNOWN, **_NO_CONTENT)
    def unsubscribe(principal: Caller, target_user_id: Id) -> None:
        """End a subscription."""
        users.unsubscribe(principal.name, target_user_id)

    return route.router, [*public.access, *route.access]


def verify_api_key(engine: Engine) -> Keys:
    """Return the check that stands before every internal route: it knows the API keys of the engine
    of the posts, and no login, token or user."""
    return Keys(engine)


class InvalidApiKey(ServiceError):
    """Nobody is told what is wrong with the key that was sent."""

    code, status = "invalid_api_key", 401
    headers = MappingProxyType({"WWW-Authenticate": 'Token realm="ulak"'})


class InsufficientScope(ServiceError):
    code, status = "insufficient_scope", 403


class _InternalRoute(SlashRoute):
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


def make_internal(engine: Engine, saga: Saga, dead_letters: DeadLetters) -> Made:
    """Make the internal routes, for workers and operators."""
    callers = {"authenticate": verify_api_key(engine), "schemes": ("Token",)}
    route = RouteTable(callers, route_class=_InternalRoute, response_model=Said)

    @route("GET", POST, keys.READ)
    def read(id: Id) -> Response:
        """Read everything about a post."""
        post = saga.find(id)
        document = show_article(post, post.author_id)
        return said("the post", {"article": {**document, "verdict": post.verdict}})

    @route("POST", f"{POST}/approve", keys.APPROVE)
    def approve(id: Id, principal: Caller, sent: MaybeSent[bodies.About]) -> Response:
        """Approve a post that is pending; its preview is made next."""
        return _told("approved", saga.approve(id, sent.publication_id, principal.name))

    @route("POST", f"{POST}/reject", keys.REJECT)
    def reject(id: Id, principal: Caller, sent: MaybeSent[bodies.Rejection]) -> Response:
        """Reject a post that is pending and was not approved."""
        about = id, sent.publication_id, sent.reason, principal.name
        return _told("rejected", saga.reject(*about, failed_task=sent.failed_task))

    @route("PUT", f"{POST}/preview", keys.PREVIEW)
    def store_preview(id: Id, principal: Caller, sent: Sent[bodies.Preview]) -> Response:
        """Store where the preview of a pending post is; the post is published next."""
        step = saga.store_preview(id, sent.publication_id, sent.preview_url, principal.name)
        return _told("given a preview", step)

    @route("POST", f"{POST}/publish", keys.PUBLISH)
    def publish(id: Id, principal: Caller, sent: MaybeSent[bodies.About]) -> Response:
        """Publish a pending post that has its preview; its subscribers are told next."""
        return _told("published", saga.publish(id, sent.publication_id, principal.name))

    @route("POST", f"{POST}/error", keys.ERROR)
    def fail(id: Id, principal: Caller, sent: Sent[bodies.Failure]) -> Response:
        """Say that the publication of a pending post has failed for good."""
        about = id, sent.publication_id, sent.error_message, principal.name
        return _told("marked as failed", saga.fail(*about, failed_task=sent.failed_task))

    @route("GET", LETTERS, keys.DLQ)
    def list_dead_letters(state: State = None, skip: Skip = 0, limit: Limit = 50) -> Response:
        """List dead letters, the newest first."""
        found = dead_letters.list(state=state, skip=skip, limit=limit)
        return said(f"{len(found)} dead letters", {"dead_letters": found, "count": len(found)})

    @route("GET", LETTER, keys.DLQ)
    def read_dead_letter(id: Id) -> Response:
        """Read a dead letter."""
        return said("the dead letter", {"dead_letter": dead_letters.get(id)})

    @route("POST", f"{LETTER}/redrive", keys.DLQ)
    def redrive(id: Id, principal: Caller, sent: MaybeSent[bodies.Redrive]) -> Response:
        """Put a task back that has failed for good. With `resume` its post goes on as well, if it
        is in ERROR by the same publication."""
        letter = dead_letters.redrive(id, resume=sent.resume, actor=principal.name)
        return said("the task was put back", {"dead_letter": letter})

    @route("DELETE", LETTER, keys.DLQ)
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
