"""Where concrete classes are picked: one URL chooses the store, the flows never change."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

from ulak.core.flow import Flow
from ulak.engine.engine import Engine
from ulak.errors import BadInput
from ulak.store.protocol import Store

SCHEMES = (
    "sqlite:///file.db",
    "sqlite:////absolute/file.db",
    "postgresql://user@host/database",
    "memory://",
)


def connect(
    url: str,
    *,
    flows: Iterable[Flow[Any]] = (),
    submit_timeout: timedelta = timedelta(seconds=30),
) -> Engine:
    """Make an engine on the store that a URL names. Nothing is opened before the first verb.

    `sqlite:///app.db` is a file beside the program; `?synchronous=NORMAL` trades the last
    commits before a power cut for speed. `postgresql://user@host/database` is a database of
    any number of machines; its options are those of libpq, and `?pooled=true` says that a pooler
    in transaction mode stands before it. `memory://` forgets everything with the process.

    Raises:
        BadInput: the URL names no store that ulak knows.
    """
    return Engine(store_of(url), flows=flows, submit_timeout=submit_timeout)


def store_of(url: str) -> Store:
    """Make the store that a URL names, closed.

    Raises:
        BadInput: the URL names no store that ulak knows.
    """
    parts = urlsplit(url)
    if parts.scheme == "memory":
        from ulak.store.memory import MemoryStore

        return MemoryStore()
    if parts.scheme == "sqlite":
        return _sqlite(url, parts.path, parts.netloc, dict(parse_qsl(parts.query)))
    if parts.scheme in ("postgresql", "postgres"):
        return _postgres(url, parts)
    raise BadInput(f"{_without_password(url)!r} names no store; use one of {', '.join(SCHEMES)}")


def _sqlite(url: str, path: str, host: str, options: dict[str, str]) -> Store:
    from ulak.store.sqlite import SqliteStore

    # sqlite:///app.db is relative, sqlite:////var/app.db absolute, as SQLAlchemy has it.
    name = unquote(path[1:])
    if host or not name:
        raise BadInput(f"{url!r} names no file; write {SCHEMES[0]} or {SCHEMES[1]}")
    synchronous = options.pop("synchronous", "FULL").upper()
    if options or synchronous not in ("FULL", "NORMAL"):
        raise BadInput(f"{url!r}: the only option is synchronous=FULL or synchronous=NORMAL")
    store: Store = SqliteStore(Path(name), synchronous=synchronous)
    return store


def _postgres(url: str, parts: SplitResult) -> Store:
    try:
        from ulak.store.postgres import PostgresStore
    except ImportError as error:
        raise BadInput(
            f"{_without_password(url)!r} needs psycopg, which is not installed ({error}); "
            "install ulak[postgres]"
        ) from None
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    pooled = options.pop("pooled", "false")
    if pooled not in ("true", "false"):
        raise BadInput(f"pooled={pooled!r} is neither true nor false")
    conninfo = parts._replace(query=urlencode(options)).geturl()
    store: Store = PostgresStore(conninfo, pooled=pooled == "true")
    return store


def _without_password(url: str) -> str:
    """Write a URL for an error: whoever reads it need not learn the password."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    return parts._replace(netloc=parts.netloc.replace(f":{parts.password}@", ":***@")).geturl()
