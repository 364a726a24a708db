"""The routes for authors and readers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Depends, Path, Query, Response

from ulak import Engine
from ulak.auth import Principal
from ulak.errors import Unauthenticated
from ulak.idempotency import HEADER, Execution, Guard, Scope
from ulak.kit.bodies import describe_body, strict_body
from ulak.services.publishing import bodies, statuses
from ulak.services.publishing.articles import Posts
from ulak.services.publishing.bodies import make_table, said, show_article, show_comment
from ulak.tables import Tables
from ulak.web import (
    KNOWN,
    PUBLIC,
    Access,
    Caller,
    IdempotentRoute,
    SlashRoute,
    idempotent_route,
)

if TYPE_CHECKING:
    from ulak.services.publishing.users import Logins

ARTICLES: Final = "/api/articles"
ARTICLE: Final = f"{ARTICLES}/{{slug}}"
COMMENTS: Final = f"{ARTICLE}/comments"
COMMENT: Final = f"{COMMENTS}/{{id}}"
ME: Final = "me"
"""As the author in a list: the caller."""
PUBLICATION: Final = Scope("publishing.publish")
LONGEST_WORD: Final = 300
MOST_SKIPPED: Final = 2**31 - 1

Slug = Annotated[str, Path(max_length=LONGEST_WORD), bodies.Storable]
Filter = Annotated[str | None, Query(max_length=LONGEST_WORD), bodies.Storable]
Skip = Annotated[int, Query(ge=0, le=MOST_SKIPPED, description="How many to leave out.")]
Limit = Annotated[int, Query(ge=1, le=100, description="How many at most.")]
NewArticle = Annotated[bodies.NewArticle, strict_body(bodies.NewArticle)]
EditedArticle = Annotated[bodies.EditedArticle, strict_body(bodies.EditedArticle)]
NewComment = Annotated[bodies.NewComment, strict_body(bodies.NewComment)]

AN_ARTICLE: Final = {
    "title": "A first post", "description": "What it is about", "body": "Once upon a time",
    "tag_list": ["tales"],
}  # fmt: skip
AN_EDIT: Final = {"title": "A better title"}
A_COMMENT: Final = {"body": "Well said"}
A_KEY: Final = {
    "name": HEADER, "in": "header", "required": False, "schema": {"type": "string"},
    "description": "The same each time this request is repeated: the repetitions are answered as "
    "the first was, with the same publication_id.",
}  # fmt: skip


class _Route(SlashRoute, IdempotentRoute):
    """With and without the final slash, and with an idempotency key where one is taken."""


def make_public(engine: Engine, posts: Posts, logins: Logins) -> tuple[APIRouter, list[Access]]:
    """Make the routes of posts and comments, each with its line of access."""
    route = make_table(_Route, logins, "Bearer")

    def who(principal: Caller) -> tuple[str, str]:
        posts.tables.ensure()  # not in the transaction of the key, which has begun later on
        return "", principal.name

    once = Depends(
        idempotent_route(Guard(engine.store), PUBLICATION, identify=who, policy="optional")
    )

    # What asks the store is not async: the store is synchronous, so FastAPI runs it in threads.
    @route("POST", ARTICLES, KNOWN, status=201, **describe_body(bodies.NewArticle, AN_ARTICLE))
    def create(principal: Caller, sent: NewArticle) -> Response:
        """Write a post. It is a draft; nobody is told of it before it is published."""
        post = posts.create(
            principal.name, title=sent.title, description=sent.description, body=sent.body,
            tags=sent.tag_list,
        )  # fmt: skip
        document = show_article(post, principal.name)
        return said("the post is a draft", {"article": document, "slug": post.slug}, 201)

    @route("GET", ARTICLES, PUBLIC)
    def list_articles(
        principal: Caller,
        skip: Skip = 0,
        limit: Limit = 20,
        tag: Filter = None,
        author: Filter = None,
        status: statuses.Status | None = None,
    ) -> Response:
        """List published posts, the newest first. With `author=me` they are the caller's own, in
        whatever status; `count` is how many there are on all pages."""
        if author == ME:
            author = _must_be_known(principal)
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

    @route("PUT", ARTICLE, KNOWN, **describe_body(bodies.EditedArticle, AN_EDIT))
    def edit(slug: Slug, principal: Caller, sent: EditedArticle) -> Response:
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

    @route("POST", f"{ARTICLE}/publish", KNOWN, status=202, parameters=[A_KEY])
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

    @route("POST", COMMENTS, KNOWN, status=201, **describe_body(bodies.NewComment, A_COMMENT))
    def comment(slug: Slug, principal: Caller, sent: NewComment) -> Response:
        """Write a comment below a published post."""
        made = posts.comment(slug, principal.name, sent.body)
        return said("the comment was written", {"comment": show_comment(made)}, 201)

    @route("GET", COMMENTS, PUBLIC)
    def list_comments(slug: Slug, skip: Skip = 0, limit: Limit = 100) -> Response:
        """List the comments below a published post, the oldest first."""
        found = [show_comment(each) for each in posts.comments(slug, skip=skip, limit=limit)]
        return said(f"{len(found)} comments", {"comments": found, "count": len(found)})

    @route("DELETE", COMMENT, KNOWN)
    def uncomment(slug: Slug, id: Slug, principal: Caller) -> Response:
        """Delete a comment of one's own."""
        posts.uncomment(slug, id, principal.name)
        return said("the comment was deleted", {"id": id})

    return route.router, route.access


def make_ready(tables: Tables) -> tuple[APIRouter, list[Access]]:
    """Make the probe that tells whether the database of these tables answers."""
    route = make_table(SlashRoute, None, "Bearer")

    @route("GET", "/ready", PUBLIC)
    def ready() -> Response:
        """Tell whether the database answers: 503 when it does not."""
        tables.read("SELECT 1")
        return said("the database answers", {"status": "ready"})

    return route.router, route.access


def _must_be_known(principal: Principal) -> str:
    if not principal.name:
        raise Unauthenticated(
            "author=me lists your own posts: send Authorization: Bearer TOKEN", reason="missing"
        )
    return principal.name
