"""Where concrete classes are picked: one URL chooses the store, the flows never change."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, unquote, urlencode

from ulak.clock import Clock, Duration
from ulak.core.flow import Flow
from ulak.engine.engine import Engine
from ulak.errors import BadInput
from ulak.store import without_password
from ulak.store.protocol import RecordKeeper, Store

if TYPE_CHECKING:
    from ulak.auth.identity import Identity
    from ulak.control import AdaptiveControlConfig
    from ulak.control.guard import GuardConfig
    from ulak.control.guard_state import GuardState
    from ulak.control.loop import ControlLoop
    from ulak.engine.tracing import Tracing
    from ulak.idempotency.guard import Guard
    from ulak.idempotency.scope import Scope
    from ulak.idempotency.settings import IdempotencySettings
    from ulak.settings import Settings

log = logging.getLogger("ulak.wiring")

EXPORTERS = ("otlp", "console")
OTLP_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
SCHEMES = (
    "sqlite:///file.db",
    "sqlite:////absolute/file.db",
    "postgresql://user@host/database",
    "redis://host/0",
    "memory://",
)


def connect(
    url: str, *, flows: Iterable[Flow[Any]] = (), submit_timeout: Duration = timedelta(seconds=30)
) -> Engine:
    """Make an engine on the store that a URL names. Nothing is opened before the first verb.

    `sqlite:///app.db` is a file beside the program; `?synchronous=NORMAL` trades the last
    commits before a power cut for speed. `postgresql://user@host/database` is a database of
    any number of machines; its options are those of libpq, and `?pooled=true` says that a pooler
    in transaction mode stands before it. `redis://host/0` is a database of a Redis server that
    writes a log and removes nothing; `?durability=none` says that it may lose jobs. `memory://`
    forgets everything with the process.

    Raises:
        BadInput: the URL names no store that ulak knows.
    """
    engine = Engine(store_of(url), flows=flows, submit_timeout=submit_timeout)
    engine.kernel.tracing = _tracing_of_program()
    return engine


def trace(engine: Engine, environ: Mapping[str, str] | None = None) -> None:
    """Have the engine of a process traced if the `OTEL_*` variables say where spans go. A program
    that has set a TracerProvider of its own is traced by that one. For a process that is ulak's
    own, as `ulak up` and `ulak worker` start it: it sets the provider for all of it. Raises
    `BadInput`: the variables ask for an exporter that is not there."""
    environ = os.environ if environ is None else environ
    exporter = environ.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if not exporter and any(environ.get(name) for name in OTLP_ENDPOINTS):
        exporter = "otlp"
    is_disabled = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if engine.kernel.tracing is not None or exporter in ("", "none") or is_disabled:
        return
    if exporter not in EXPORTERS:
        raise BadInput(
            f"OTEL_TRACES_EXPORTER is {exporter!r}; ulak exports by {', '.join(EXPORTERS)}, or none"
        )
    try:
        from ulak import tracing_otel
    except ModuleNotFoundError as error:
        log.warning("nothing is traced: install ulak[otel]", extra={"missing": error.name})
        return
    provider = tracing_otel.provider_of_program() or tracing_otel.provider_of_environment(exporter)
    engine.kernel.tracing = tracing_otel.OtelTracing(provider)


def _tracing_of_program() -> Tracing | None:
    # Whoever has set one has loaded this; nobody else should pay for it.
    if "opentelemetry.sdk.trace" not in sys.modules:
        return None
    from ulak import tracing_otel

    provider = tracing_otel.provider_of_program()
    return None if provider is None else tracing_otel.OtelTracing(provider)


def store_of(url: str, *, clock: Clock | None = None) -> Store:
    """Make the store that a URL names, closed; with a clock of its own, or this one. Raises
    `BadInput`: the URL names no store that ulak knows."""
    scheme, _, rest = url.partition(":")
    scheme = scheme.lower()
    if scheme == "memory" and rest == "//":
        from ulak.store.memory import MemoryStore

        return MemoryStore(clock)
    if scheme == "sqlite":
        return _sqlite(url, rest, clock)
    if scheme in ("postgresql", "postgres") and rest.startswith("//"):
        return _postgres(url, clock)
    if scheme in ("redis", "rediss") and rest.startswith("//"):
        return _redis(url, clock)
    raise BadInput(f"{without_password(url)!r} names no store; use one of {', '.join(SCHEMES)}")


def identity_of(engine: Engine, settings: Settings) -> Identity:
    """Make the identity of an engine; nothing is opened. In dev, a secret that nobody has set is
    made once and kept in the data folder. Raises `BadInput`: a secret is needed and there is none,
    or the one that is kept cannot be used."""
    from ulak.auth.identity import Identity

    secret = with_secret(settings).secret
    return Identity(engine.store, secret=secret, first_key=settings.admin_key)


def idempotency_settings(environ: Mapping[str, str] | None = None) -> IdempotencySettings:
    """Read the `IDEMPOTENCY_*` variables. Raises `BadInput`: naming every value that cannot be
    used."""
    from ulak.idempotency.settings import READERS, settings_of
    from ulak.settings import read_variables

    return settings_of(read_variables(READERS, environ))


def guard_settings(environ: Mapping[str, str] | None = None) -> GuardConfig:
    """Read the `OPS_GUARD_*` variables of the request guard. Raises `BadInput`: naming every value
    that cannot be used."""
    from ulak.control.guard import read_guard_environment

    return read_guard_environment(os.environ if environ is None else environ)


def find_guard_state(engine: Engine) -> GuardState | None:
    """Return the request guard of an engine in this process; nothing is opened. None: its store has
    no tables in which processes could share its state. Raises as `guard_settings` does."""
    from ulak.control.guard_state import guard_state

    features = engine.store.features
    if not features.open_transactions or not features.dialect:
        return None
    return guard_state(engine, guard_settings())


def attach_control(engine: Engine) -> None:
    """Have the workers of an engine run adaptive control, where there is something to control.
    Raises as `control_settings` and `guard_settings` do."""
    from ulak.control.loop import attach

    attach(engine, control_settings(), find_guard_state(engine))


def find_control_loop(engine: Engine) -> ControlLoop | None:
    """Return adaptive control of an engine in this process; nothing is opened. None: its store has
    no place for it. Raises as `attach_control` does."""
    from ulak.control.loop import find_loop

    return find_loop(engine, control_settings(), find_guard_state(engine))


def control_settings(environ: Mapping[str, str] | None = None) -> AdaptiveControlConfig:
    """Read the `ADAPTIVE_CONTROL_*` variables. Raises `BadInput`: naming every value that cannot be
    used."""
    from ulak.control.config import read_environment

    return read_environment(os.environ if environ is None else environ)


def guard_of(engine: Engine, env: str, idempotency: IdempotencySettings) -> Guard:
    """Make the guard of an engine's protected operations; a Redis is opened, and nothing else.

    Raises:
        BadInput: in production the records would be forgotten with the process, or by their Redis;
            or its address is missing or is none.
        StoreError: that Redis cannot be asked.
    """
    from ulak.idempotency.guard import Guard
    from ulak.store.memory import MemoryStore

    if idempotency.backend == "redis":
        records = _redis_records(idempotency)
        records.open()
        return Guard(records)
    store = engine.store if idempotency.backend == "sql" else MemoryStore()
    if env == "production" and not store.features.durable:
        why = (
            "IDEMPOTENCY_BACKEND is memory"
            if idempotency.backend == "memory"
            else f"the {store.features.name} store keeps nothing"
        )
        raise BadInput(
            f"in production idempotency records must outlive the process, and {why}: a repeated "
            "request would be executed again after a restart; use sqlite:///... or postgresql://..."
        )
    return Guard(store)


def guard_and_scope(engine: Engine, name: str) -> tuple[Guard, Scope]:
    """Make the guard and the scope of an operation whose effects are rows of the engine's store;
    nothing is opened.

    They and the record are one commit. With records in Redis they cannot be, and the scope has the
    mode `lease`: the operation must know by its own rows what it has done. Raises `BadInput`: a
    setting cannot be used.
    """
    from ulak.idempotency.guard import Guard

    kept = idempotency_settings()
    if kept.backend == "redis":
        return Guard(_redis_records(kept)), kept.scope(name, mode="lease")
    return Guard(engine.store), kept.scope(name)


def _redis_records(idempotency: IdempotencySettings) -> RecordKeeper:
    with _needing_redis("IDEMPOTENCY_BACKEND=redis"):
        from ulak.store.redis import RedisRecords
    return RedisRecords(idempotency.redis_url, may_forget=idempotency.redis_allow_volatile)


def with_secret(settings: Settings) -> Settings:
    """Return settings that have a secret: the one that is set, in dev else the one that is kept.
    Raises `BadInput`: there is none, or the one that is kept cannot be used."""
    from ulak.auth.tokens import kept_secret
    from ulak.settings import MAKE_ONE, variable

    if settings.secret:
        return settings
    if settings.env != "dev":
        raise BadInput(
            f"{variable('secret')} is not set: in {settings.env} it must be, the same for every "
            f"process; {MAKE_ONE}"
        )
    return settings.override("the data folder", secret=kept_secret(settings.data))


def _sqlite(url: str, rest: str, clock: Clock | None) -> Store:
    from ulak.store.sqlite import SqliteStore

    # sqlite:///app.db is relative, sqlite:////var/app.db absolute, as SQLAlchemy has it.
    path, _, query = rest.partition("?")
    name = unquote(path.removeprefix("///"))
    if not path.startswith("///") or not name or "#" in rest or "\0" in name:
        meant = quote(unquote(path).lstrip("/").replace("\0", "")) or "file.db"
        raise BadInput(
            f"{url!r} names no file; write sqlite:///{meant}, or sqlite:////{meant} for a path "
            "from the root"
        )
    if name == ":memory:":
        raise BadInput(f"{url!r} is a database of one connection; write memory://")
    options = dict(parse_qsl(query, keep_blank_values=True))
    synchronous = options.pop("synchronous", "FULL").upper()
    if options or synchronous not in ("FULL", "NORMAL"):
        raise BadInput(f"{url!r}: the only option is synchronous=FULL or synchronous=NORMAL")
    store: Store = SqliteStore(Path(name), synchronous=synchronous, clock=clock)
    return store


def _postgres(url: str, clock: Clock | None) -> Store:
    try:
        from psycopg import ProgrammingError
        from psycopg.conninfo import conninfo_to_dict

        from ulak.store.postgres import PostgresStore
    except ImportError as error:
        raise BadInput(
            f"{without_password(url)!r} needs psycopg, which is not installed ({error}); "
            "install ulak[postgres]"
        ) from None
    conninfo, pooled = _without_pooled(url)
    if pooled not in ("true", "false"):
        raise BadInput(f"pooled={pooled!r} is neither true nor false")
    try:
        port = str(conninfo_to_dict(conninfo).get("port") or "")
        if port.strip("0123456789,"):
            raise ProgrammingError("its port is no number")
    except ProgrammingError as error:
        # Of a URL that it cannot part, libpq quotes the pieces: the password may be one of them.
        shown = without_password(url)
        why = error if shown == url else "write @ : / ? # % of a password percent-encoded"
        raise BadInput(f"{shown!r} cannot be read: {why}") from None
    store: Store = PostgresStore(conninfo, pooled=pooled == "true", clock=clock)
    return store


def _redis(url: str, clock: Clock | None) -> Store:
    with _needing_redis(repr(without_password(url))):
        from ulak.store.redis import RedisStore
    place, _, query = url.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    durability = options.pop("durability", "full")
    if durability not in ("full", "none"):
        raise BadInput(f"{without_password(url)!r}: write durability=full or durability=none")
    if options:
        place = f"{place}?{urlencode(options)}"
    return RedisStore(place, clock=clock, may_forget=durability == "none")


@contextmanager
def _needing_redis(what: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise BadInput(
            f"{what} needs redis, which is not installed ({error}); install ulak[redis]"
        ) from None


def _without_pooled(url: str) -> tuple[str, str]:
    """Take the option that is ours out of a URL; the others are libpq's, to the letter."""
    head, mark, query = url.partition("?")
    options = query.split("&") if query else []
    ours = [option for option in options if option.partition("=")[0] == "pooled"]
    others = [option for option in options if option not in ours]
    value = ours[-1].partition("=")[2] if ours else "false"
    return head + (mark + "&".join(others) if others else ""), value
