"""Posts: what authors write, and the one way in which the row of a post changes.

Every change is one transaction: the row of the post is locked, judged and updated where it still
has the status and the publication that were judged; a move of its status leaves a line in the
history, and the next task of the saga is written with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass, fields, replace
from importlib.resources import files
from itertools import count
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from slugify import slugify

from ulak import Engine
from ulak.kit.clock import Instant
from ulak.kit.ids import new_id
from ulak.services.publishing import statuses
from ulak.services.publishing.events import step
from ulak.tables import Row, Schema, Tables

if TYPE_CHECKING:
    from ulak.services.publishing.queue import Queue

SCHEMA: Final = Schema(
    "posts", folder=files(__package__) / "sql" / "posts", version_table="publishing_posts_schema",
    why="a post, its history and its next task are one commit",
)  # fmt: skip
LONGEST_SLUG: Final = 255


@dataclass(frozen=True, slots=True)
class Article:
    """A post as its row has it; times are microseconds of the store's clock."""

    id: str
    slug: str
    title: str
    description: str
    body: str
    author_id: str
    _: KW_ONLY
    status: str = statuses.DRAFT
    preview_url: str | None = None
    publication_id: str | None = None
    """Of the publication that was asked for last; None in DRAFT."""
    revision: int = 1
    """1, and one more with each edit."""
    verdict: str | None = None
    """What moderation said of this publication."""
    moderation_reason: str | None = None
    error_message: str | None = None
    sweeps: int = 0
    """How often the sweep has started the missing step of this publication."""
    stepped_at: Instant | None = None
    """When the saga took its last step; None unless the post is PENDING_PUBLISH."""
    published_at: Instant | None = None
    created_at: Instant = 0
    updated_at: Instant = 0
    tags: tuple[str, ...] = ()
    """In alphabetical order; empty where a post was read to be moved."""


@dataclass(frozen=True, slots=True)
class Comment:
    """What somebody wrote below a post."""

    id: str
    article_id: str
    author_id: str
    body: str
    created_at: Instant
    updated_at: Instant


@dataclass(frozen=True, slots=True)
class Moved:
    """A line of the history of a post."""

    at: Instant
    from_status: str
    to_status: str
    publication_id: str
    cause: str
    actor: str


# Statements are composed of these constants and of the names of fields; every value is a `?`.
# ruff: noqa: S608
_ARTICLES: Final = "{schema}.publishing_articles"
_TAGS: Final = "{schema}.publishing_tags"
_COMMENTS: Final = "{schema}.publishing_comments"
_HISTORY: Final = "{schema}.publishing_history"
_FIELDS: Final = tuple(field.name for field in fields(Article) if field.name != "tags")
_COLUMNS: Final = ", ".join(_FIELDS)
_COMMENT: Final = ", ".join(field.name for field in fields(Comment))
_MOVE: Final = ", ".join(field.name for field in fields(Moved))
BY_ID: Final = f"SELECT {_COLUMNS} FROM {_ARTICLES} WHERE id = ?"
BY_SLUG: Final = f"SELECT {_COLUMNS} FROM {_ARTICLES} WHERE slug = ?"
_INSERT: Final = (
    f"INSERT INTO {_ARTICLES} ({_COLUMNS}) VALUES ({', '.join('?' * len(_FIELDS))}) "
    "ON CONFLICT (slug) DO NOTHING RETURNING id"
)
_TAKEN: Final = f"SELECT slug FROM {_ARTICLES} WHERE slug >= ? AND slug < ?"
_DELETE: Final = f"DELETE FROM {_ARTICLES} WHERE id = ?"
_HAS_TAG: Final = f"EXISTS (SELECT 1 FROM {_TAGS} WHERE article_id = id AND tag = ?)"
_ADD_TAG: Final = f"INSERT INTO {_TAGS} (article_id, tag) VALUES (?, ?)"
_DROP_TAGS: Final = f"DELETE FROM {_TAGS} WHERE article_id = ?"
_ADD_MOVE: Final = f"INSERT INTO {_HISTORY} (article_id, {_MOVE}) VALUES (?, ?, ?, ?, ?, ?, ?)"
_LIST_MOVES: Final = f"SELECT {_MOVE} FROM {_HISTORY} WHERE article_id = ? ORDER BY seq"
_ADD_COMMENT: Final = f"INSERT INTO {_COMMENTS} ({_COMMENT}) VALUES (?, ?, ?, ?, ?, ?)"
_LIST_COMMENTS: Final = (
    f"SELECT {_COMMENT} FROM {_COMMENTS} WHERE article_id = ? "
    "ORDER BY created_at, id LIMIT ? OFFSET ?"
)
_COMMENT_AUTHOR: Final = f"SELECT author_id FROM {_COMMENTS} WHERE id = ? AND article_id = ?"
_DROP_COMMENT: Final = f"DELETE FROM {_COMMENTS} WHERE id = ?"
_DROP_COMMENTS: Final = f"DELETE FROM {_COMMENTS} WHERE article_id = ?"


class Posts:
    """Posts and their comments, in the database of an engine. Raises `NotSupported`: the store has
    no transactions to share."""

    def __init__(self, engine: Engine, queue: Queue) -> None:
        self.engine, self.queue = engine, queue
        self.tables = Tables(engine, SCHEMA)

    def create(
        self, author_id: str, *, title: str, description: str, body: str, tags: Iterable[str] = ()
    ) -> Article:
        """Write a post, in DRAFT; of two with the same title at once both get a slug."""
        now, texts = self.tables.now, (title, description, body)
        made = Article(new_id(self.engine), "", *texts, author_id, created_at=now, updated_at=now)
        with step("posts.create"), self.tables.writing() as connection:
            return self._tag(connection, self._insert(connection, made), tags)

    def edit(
        self, slug: str, author_id: str, *, tags: Iterable[str] | None = None, **texts: str
    ) -> Article:
        """Change texts (`title`, `description`, `body`) and tags of a post. One that was rejected
        or failed is a draft again. Raises `LockedForPublication`: it is being published."""
        with step("posts.edit"), self.tables.writing() as connection:
            post = self._lock_own(connection, slug, author_id)
            if post.status == statuses.PENDING_PUBLISH:
                why = f"{slug} is being published; take it back to draft to edit it"
                raise statuses.LockedForPublication(why, post.status)
            changes: dict[str, Any] = {**texts, "revision": post.revision + 1}
            title = texts.get("title", post.title)
            if post.published_at is None and make_slug(title) != make_slug(post.title):
                changes["slug"] = self._reserve_slug(connection, post, title)
            if post.status in (statuses.REJECTED, statuses.ERROR):
                edited = self._to_draft(connection, post, statuses.BY_EDIT, **changes)
            else:
                edited = self.update(connection, post, **changes)
            if tags is not None:
                self.tables.execute(connection, _DROP_TAGS, post.id)
                return self._tag(connection, edited, tags)
            return self._with_tags(connection, [edited])[0]

    def delete(self, slug: str, author_id: str) -> None:
        """Delete a post with its comments, however it stands; its history stays."""
        with step("posts.delete"), self.tables.writing() as connection:
            post = self._lock_own(connection, slug, author_id)
            for statement in (_DROP_TAGS, _DROP_COMMENTS, _DELETE):
                self.tables.execute(connection, statement, post.id)

    def publish(self, slug: str, author_id: str, *, connection: Any = None) -> Article:
        """Begin the publication of a draft: a new publication id, and the first task of its saga.
        `connection` is an open transaction to do it in, before which `tables.ensure` was called.
        Raises `InvalidStatus`: it is no draft."""
        own = self.tables.writing() if connection is None else nullcontext(connection)
        with step("posts.publish"), own as opened:
            post = self._lock_own(opened, slug, author_id)
            if post.status != statuses.DRAFT:
                why = f"{slug} is {post.status}; only a draft can be published"
                raise statuses.InvalidStatus(why, post.status)
            to, cause = statuses.PENDING_PUBLISH, statuses.BY_AUTHOR
            begun = {"publication_id": str(uuid4()), **_UNDECIDED}
            pending = self.move(opened, post, to, cause, author_id, **begun)
            self.queue.put(opened, statuses.MODERATE, pending)
            return self._with_tags(opened, [pending])[0]

    def draft(self, slug: str, author_id: str) -> Article:
        """Take a post back to draft: withdraw its publication, or revise what was refused. What is
        still under way for that publication has no effect. Raises `InvalidStatus`: it is a draft
        or published."""
        with step("posts.draft"), self.tables.writing() as connection:
            post = self._lock_own(connection, slug, author_id)
            if (post.status, statuses.DRAFT) not in statuses.MOVES:
                why = f"{slug} is {post.status}, which does not go back to draft"
                raise statuses.InvalidStatus(why, post.status)
            drafted = self._to_draft(connection, post, statuses.RETURNED)
            return self._with_tags(connection, [drafted])[0]

    def get(self, slug: str, by: str = BY_SLUG) -> Article:
        """Return a post by its slug, or by its id (`BY_ID`); `PostNotFound` if there is none."""
        with self.tables.reading() as connection:
            post = _only(self.tables.execute(connection, by, slug), slug)
            return self._with_tags(connection, [post])[0]

    def get_by_id(self, id: str) -> Article:
        """Return a post by its id; `PostNotFound` if there is none."""
        return self.get(id, BY_ID)

    def list(
        self, *, status: str | None = None, author_id: str | None = None, tag: str | None = None,
        skip: int = 0, limit: int = 20,
    ) -> tuple[Sequence[Article], int]:  # fmt: skip
        """Return a page of posts, the newest first, and how many there are on all pages."""
        wanted = {"status = ?": status, "author_id = ?": author_id, _HAS_TAG: tag}
        held = {condition: value for condition, value in wanted.items() if value is not None}
        those = f"FROM {_ARTICLES} WHERE {' AND '.join(held) or 'true'}"
        page = f"SELECT {_COLUMNS} {those} ORDER BY created_at DESC, id DESC LIMIT ? OFFSET ?"
        with self.tables.reading() as connection:
            rows = self.tables.execute(connection, page, *held.values(), limit, skip)
            (found,) = self.tables.execute(connection, f"SELECT count(*) {those}", *held.values())
            return self._with_tags(connection, map(_article_in, rows)), found[0]

    def history(self, id: str) -> Sequence[Moved]:
        """Return how a post came to its status, also of one that was deleted."""
        return [Moved(*row) for row in self.tables.read(_LIST_MOVES, id)]

    def comment(self, slug: str, author_id: str, body: str) -> Comment:
        """Write a comment below a published post."""
        now = self.tables.now
        with step("posts.comment"), self.tables.writing() as connection:
            post = _must_be_published(self.lock(connection, BY_SLUG, slug))
            row = (new_id(self.engine), post.id, author_id, body, now, now)
            self.tables.execute(connection, _ADD_COMMENT, *row)
        return Comment(*row)

    def comments(self, slug: str, *, skip: int = 0, limit: int = 100) -> Sequence[Comment]:
        """Return the comments below a published post, the oldest first."""
        post = _must_be_published(self.get(slug))
        return [Comment(*row) for row in self.tables.read(_LIST_COMMENTS, post.id, limit, skip)]

    def uncomment(self, slug: str, id: str, author_id: str) -> None:
        """Delete a comment of the author's own."""
        with step("posts.uncomment"), self.tables.writing() as connection:
            post = self.lock(connection, BY_SLUG, slug)
            found = self.tables.execute(connection, _COMMENT_AUTHOR, id, post.id)
            if not found:
                raise statuses.PostNotFound(f"there is no comment {id} below {slug}")
            if found[0][0] != author_id:
                raise statuses.NotAuthor(f"the comment {id} is somebody else's")
            self.tables.execute(connection, _DROP_COMMENT, id)

    def lock(self, connection: Any, by: str, value: str) -> Article:
        """Read a post, `BY_ID` or `BY_SLUG`, and let nobody change it until the transaction ends;
        `PostNotFound` if there is none."""
        return _only(self.tables.execute(connection, by + "{for_update}", value), value)

    def move(
        self, connection: Any, post: Article, to: str, cause: str, actor: str, **changes: Any
    ) -> Article:
        """Change the status of a post, and write the line of its history."""
        if cause not in statuses.MOVES.get((post.status, to), ()):
            raise ValueError(f"no post goes from {post.status} to {to} by {cause}")
        moved = self.update(connection, post, status=to, **changes)
        publication = moved.publication_id or post.publication_id
        line = (post.id, moved.updated_at, post.status, to, publication, cause, actor)
        self.tables.execute(connection, _ADD_MOVE, *line)
        return moved

    def update(self, connection: Any, post: Article, **changes: Any) -> Article:
        """Change fields of a post, if it still has the status and the publication that it was read
        with. While it is pending, each change is a step."""
        now, status = self.tables.now, changes.get("status", post.status)
        stepped_at = now if status == statuses.PENDING_PUBLISH else None
        changes |= {"stepped_at": stepped_at, "updated_at": now}
        statement = (
            f"UPDATE {_ARTICLES} SET {', '.join(f'{name} = ?' for name in changes)} "
            "WHERE id = ? AND status = ? AND coalesce(publication_id, '') = ? RETURNING id"
        )
        stood = post.id, post.status, post.publication_id or ""
        if not self.tables.execute(connection, statement, *changes.values(), *stood):
            why = f"the post {post.id} was changed meanwhile; read it again"
            raise statuses.InvalidStatus(why, post.status)
        return replace(post, **changes)

    def _to_draft(self, connection: Any, post: Article, cause: str, **changes: Any) -> Article:
        changes |= {"publication_id": None, **_UNDECIDED}
        return self.move(connection, post, statuses.DRAFT, cause, post.author_id, **changes)

    def _lock_own(self, connection: Any, slug: str, author_id: str) -> Article:
        post = self.lock(connection, BY_SLUG, slug)
        if post.author_id != author_id:
            raise statuses.NotAuthor(f"{slug} is somebody else's post")
        return post

    def _insert(self, connection: Any, post: Article) -> Article:
        """Add a row with the first free slug of its title."""
        taken: frozenset[str] | None = None
        for slug in candidates(post.title):
            if taken is not None and slug in taken:
                continue
            made = replace(post, slug=slug)
            # The key is the law: a transaction that has the slug and has not ended is waited for.
            row = (getattr(made, name) for name in _FIELDS)
            if self.tables.execute(connection, _INSERT, *row):
                return made
            if taken is None:
                # All that begin with `slug-`: in ASCII, `.` comes after `-`.
                rows = self.tables.execute(connection, _TAKEN, f"{slug}-", f"{slug}.")
                taken = frozenset(name for (name,) in rows)
        raise AssertionError("candidates have no end")

    def _reserve_slug(self, connection: Any, post: Article, title: str) -> str:
        """Return a free slug for a new title, by a row that is there and gone in this transaction:
        a conflict of an UPDATE would end the transaction on PostgreSQL."""
        stand_in = self._insert(connection, replace(post, id=str(uuid4()), title=title))
        self.tables.execute(connection, _DELETE, stand_in.id)
        return stand_in.slug

    def _tag(self, connection: Any, post: Article, tags: Iterable[str]) -> Article:
        """Add tags to a post that has none."""
        tagged = replace(post, tags=tuple(sorted(set(tags))))
        for tag in tagged.tags:
            self.tables.execute(connection, _ADD_TAG, post.id, tag)
        return tagged

    def _with_tags(self, connection: Any, posts: Iterable[Article]) -> Sequence[Article]:
        found = {post.id: post for post in posts}
        if not found:
            return []
        marks = ", ".join("?" * len(found))
        tags: dict[str, list[str]] = {}
        named = f"SELECT article_id, tag FROM {_TAGS} WHERE article_id IN ({marks}) ORDER BY tag"
        for id, tag in self.tables.execute(connection, named, *found):
            tags.setdefault(id, []).append(tag)
        return [replace(post, tags=tuple(tags.get(id, ()))) for id, post in found.items()]


_OUTCOMES: Final = ("verdict", "preview_url", "moderation_reason", "error_message")
_UNDECIDED: Final = {**dict.fromkeys(_OUTCOMES), "sweeps": 0}
"""What a publication has before its first step."""


def make_slug(title: str) -> str:
    """Return a title as lower-case ASCII words joined by `-`, Cyrillic and Turkish letters
    transliterated; '' when nothing of it can be written so."""
    return slugify(title, max_length=LONGEST_SLUG)


def candidates(title: str) -> Iterator[str]:
    """Yield the slugs that a post of this title may have, the best first; no end."""
    base = make_slug(title) or f"post-{token_hex(4)}"
    yield base
    for number in count(1):
        suffix = f"-{number}"
        yield base[: LONGEST_SLUG - len(suffix)].rstrip("-") + suffix


def _article_in(row: Row) -> Article:
    return Article(**dict(zip(_FIELDS, row, strict=True)))


def _only(rows: Sequence[Row], value: str) -> Article:
    if not rows:
        raise statuses.PostNotFound(f"there is no post {value}")
    return _article_in(rows[0])


def _must_be_published(post: Article) -> Article:
    if post.status != statuses.PUBLISHED:
        why = f"{post.slug} is {post.status}; only published posts have comments"
        raise statuses.InvalidStatus(why, post.status)
    return post
