"""Publishing: posts of a blog, published by a choreographed saga with dead letters.

ulak up --service publishing
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ulak import Engine, connect
from ulak.errors import NotSupported
from ulak.service import Condition, Service
from ulak.services.publishing import keys
from ulak.services.publishing.settings import WORKERS, PublishingSettings, load
from ulak.settings import Settings, describe_settings
from ulak.tables import shares_store

if TYPE_CHECKING:
    import typer

    from ulak.services.publishing.articles import Posts
    from ulak.services.publishing.dead_letters import DeadLetters
    from ulak.services.publishing.handling import ModerationPolicy
    from ulak.services.publishing.saga import Saga
    from ulak.services.publishing.users import Logins, Users
    from ulak.web import Routes


@dataclass(frozen=True, slots=True)
class Publishing:
    """Everything of publishing in one process; the engines may be one and the same."""

    settings: PublishingSettings
    queue_engine: Engine
    posts_engine: Engine
    users_engine: Engine
    posts: Posts
    saga: Saga
    users: Users
    dead_letters: DeadLetters
    logins: Logins
    kept: Mapping[str, str] = field(repr=False)
    """The keys that the data folder keeps and that are in force, by worker."""


def attach(
    engine: Engine, platform: Settings, *, policy: ModerationPolicy | None = None
) -> Publishing:
    """Give the engine of the queue the flows of publishing, and that of the posts its own: the
    given one, unless the settings name another store. Nothing is opened. `policy` tells whether a
    post is approved. Raises `BadInput`: a setting cannot be used; `NotSupported`: the extra is not
    installed, or the store of posts or users has no transactions to share."""
    _check_extra()
    from ulak.services.publishing import notifications, queue, tasks
    from ulak.services.publishing.articles import Posts
    from ulak.services.publishing.dead_letters import DeadLetters
    from ulak.services.publishing.saga import Saga
    from ulak.services.publishing.users import Logins, Users

    settings, kept = keys.with_kept(_load(platform), platform)
    queue_engine = _find_engine(settings.redis_url, engine)
    posts_engine = _find_engine(settings.database_url, engine)
    users_engine = _find_engine(settings.users_database_url, posts_engine, engine)
    sender = queue.Queue(posts_engine, queue_engine, tasks.make_tasks(settings))
    posts, users = Posts(posts_engine, sender), Users(users_engine, settings)
    saga = Saga(posts, stuck_after=settings.stuck_after)
    dead_letters = DeadLetters(sender, saga)
    tasks.declare(
        sender, settings, dead_letters=dead_letters, policy=policy,
        notifications=notifications.Notifications(users, settings),
    )  # fmt: skip
    saga.declare_sweep(posts_engine, queue=queue.RELAY_QUEUE)
    logins = Logins(settings.secret_key, settings.access_token_expire, users_engine.store.clock)
    return Publishing(
        settings, queue_engine, posts_engine, users_engine, posts, saga, users, dead_letters,
        logins, kept,
    )  # fmt: skip


def make_routes(
    engine: Engine, publishing: Publishing, *, about: Collection[str] = ("posts", "users")
) -> Routes:
    """Make the routes about posts, with the internal ones, and about users. Raises `BadInput`:
    there is no secret to check tokens with."""
    from ulak.services.publishing import bodies, routes
    from ulak.web import Routes

    publishing.settings.must_have_secret()
    own, engine, posts = publishing, publishing.posts_engine, publishing.posts
    made = [routes.make_ready(own.users.tables)]
    if "posts" in about:
        made = [routes.make_ready(posts.tables, None if posts.queue.is_same else own.queue_engine)]
        made.append(routes.make_public(engine, posts, own.logins))
        made.append(routes.make_internal(engine, own.saga, own.dead_letters))
    if "users" in about:
        made.append(routes.make_users(own.users, own.logins))
    lines = [line for _, lines in made for line in lines]
    return Routes([router for router, _ in made], lines, envelope=bodies.envelope)


def make_service(*, policy: ModerationPolicy | None = None) -> Service:
    """Return the service, with a policy of moderation of one's own."""
    return Service(
        "publishing", attach=partial(attach, policy=policy), routes=make_routes, scopes=keys.SCOPES,
        condition=lambda platform: Condition(describe_settings(_load(platform))), start=_start,
        store=lambda: load().database_url, commands=_commands,
        engines=lambda own: dict.fromkeys((own.queue_engine, own.posts_engine)),
    )  # fmt: skip


def _start(engine: Engine, publishing: Publishing, address: str | None) -> Mapping[str, str]:
    """See to it that every worker has a key that the backend knows."""
    publishing.settings.must_have_keys(*WORKERS)
    keys.adopt(publishing.posts_engine, publishing.kept)
    return {} if address is None else {"internal": f"{address}/internal"}


def _load(platform: Settings) -> PublishingSettings:
    if platform.host in ("0.0.0.0", "::"):  # noqa: S104 - who listens everywhere is reached here
        platform = replace(platform, host="127.0.0.1")
    return load(env=platform.env, backend_url=platform.address)


def _find_engine(url: str, *others: Engine) -> Engine:
    """Return the engine of a store: the first of the others without a URL, or one that is on it."""
    made = connect(url) if url else others[0]
    return next((other for other in others if shares_store(made, other)), made)


def _check_extra() -> None:
    wanted = ("fastapi", "jwt", "cryptography", "httpx", "slugify")
    if missing := next((name for name in wanted if find_spec(name) is None), ""):
        raise NotSupported(f"publishing needs {missing}; pip install 'ulak[publishing,web]'")


def _commands() -> typer.Typer:
    _check_extra()
    from ulak.services.publishing.commands import group

    return group


service = make_service()
