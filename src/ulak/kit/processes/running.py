"""One process: its log, its stores, what serves and what works, from start to drained."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from ulak import wiring
from ulak.clock import Duration
from ulak.control.instruments import Instruments
from ulak.control.loop import find_pace
from ulak.control.process_metrics import Publisher, is_published, make_process_id
from ulak.control.tallies import Family
from ulak.core.job import queue_of
from ulak.engine.engine import Engine
from ulak.engine.ports import WorkerSettings
from ulak.engine.worker import Worker, find_complaint, settle_in
from ulak.errors import BadInput, NotSupported
from ulak.idempotency import cleanup
from ulak.kit.commands.output import note, say
from ulak.kit.processes import logs
from ulak.kit.processes.draining import (
    Parts,
    Waiting,
    leave_behind,
    open_when_reached,
    run_until_told,
)
from ulak.settings import Settings

if TYPE_CHECKING:
    import socket

    from fastapi import FastAPI

    from ulak.service import Address
    from ulak.web.server import Server

log = logging.getLogger("ulak.processes")

USUAL = WorkerSettings()
# A guess: short beside the time a process takes to start, long beside a turn of the loop.
GLANCE_S = 0.02


@dataclass(frozen=True, slots=True)
class Work:
    """What one worker of a process does."""

    engine: Engine
    queues: Collection[str]
    """The queues that it serves, and no others."""
    _: KW_ONLY
    lease: Duration = USUAL.lease
    """How long its jobs stay taken when it has vanished."""


def run(
    name: str,
    settings: Settings,
    *,
    work: Sequence[Work] = (),
    app: Callable[[Callable[[], str | None]], FastAPI] | None = None,
    prepare: Callable[[], None] = lambda: None,
    engines: Sequence[Engine] = (),
    migrating: bool = False,
    logins: bool = False,
    secrets: Iterable[str] = (),
) -> None:
    """Serve an application and work, until SIGTERM or Ctrl-C; then drain. A second signal hurries.

    The log is that of `ulak up`, on stderr and without secrets; it names the queues of each worker.
    Engines are opened when their stores are reached, and closed at the end.

    Args:
        name: The process, in what it says.
        settings: The address of the application is `host` and `port`; `env` is the form of the log.
        work: A worker each. One whose process serves an application also removes expired records
            of idempotency keys.
        app: Makes the application, once the engines are open. It gets a function that says what
            this process still lacks before it can work, None when nothing.
        prepare: Called once the engines are open and before anything is served.
        engines: Further ones that it uses.
        migrating: Whether it brings the stores to the schema of this release.
        logins: Whether the application knows ulak's own logins; it needs their secret then.
        secrets: What the log must not show, besides the secrets of the settings and the stores.

    Raises:
        BadInput: no stage is in a queue, the address cannot be listened on, or the secret of logins
            is not set.
        NotSupported: no other process sees the jobs of a store; or the web extra is missing.
        UlakError: the application has ended by itself.
    """
    everywhere = list(dict.fromkeys([*(each.engine for each in work), *engines]))
    for each in work:
        must_be_shared(each.engine, name)
    if app is not None:
        for engine in dict.fromkeys(each.engine for each in work):
            cleanup.attach(engine, wiring.idempotency_settings())
        work = [replace(each, queues={*each.queues, cleanup.NAME}) for each in work]
    for each in work:
        must_be_queues(each.engine, each.queues)
    if logins:
        settings = wiring.with_secret(settings)  # so that no line of the log can show it
    bound = None if app is None else bind(settings, name)
    logs.start(settings.env, [*logs.secrets_of(settings, *everywhere), *secrets])
    settle_in()
    with opened(everywhere, migrating=migrating), ExitStack() as stack:
        prepare()
        for engine in dict.fromkeys(each.engine for each in work):
            stack.enter_context(count_and_publish(engine, process=make_process_id()))
        workers = [
            each.engine.worker(replace(USUAL, queues=frozenset(each.queues), lease=each.lease))
            for each in work
        ]
        servers: list[Server] = []
        if app is not None and bound is not None:
            from ulak.web.server import Server

            made, proxies = app(lambda: unready(workers)), settings.trusted_proxies
            servers = [Server(made, bound, trusted_proxies=proxies)]
        parts: Parts = [("stage", worker) for worker in workers] or [("stage", Waiting())]

        async def hello() -> None:
            await wait_until_registered(workers)
            for each in work:
                log.info("worker started", extra={"worker": name, "queue": _listed(each.queues)})
            say(f"{name} {f'serves {servers[0].address}' if servers else 'works'}")
            for engine in everywhere:
                say(f"  store     {stored(engine)}")
            say("Ctrl-C drains and stops.")

        try:
            asyncio.run(serve(parts, servers=servers, drain=USUAL.drain, hello=hello))
        finally:
            for server in servers:
                server.stop()
        leave_behind(parts)
        for server in servers:
            server.must_not_have_failed()
    say("drained")


@contextmanager
def opened(engines: Iterable[Engine], *, migrating: bool = False) -> Iterator[None]:
    """Open engines when their stores are reached, and close them at the end of the block."""
    with ExitStack() as stack:
        for engine in engines:
            wiring.trace(engine)
            open_when_reached(engine, migrating=migrating)
            stack.enter_context(engine)
        yield


@contextmanager
def count_and_publish(
    engine: Engine, *, process: str, supervisor: str | None = None
) -> Iterator[None]:
    """Count what an engine does in this process, and publish it, while the block lasts."""
    instruments = Instruments(engine)
    stop = engine.kernel.telemetry.add(instruments)
    try:
        with publish_metrics(engine, instruments.read, process=process, supervisor=supervisor):
            yield
    finally:
        stop()


@contextmanager
def publish_metrics(
    engine: Engine,
    read: Callable[[], Iterable[Family]],
    *,
    process: str,
    supervisor: str | None = None,
) -> Iterator[None]:
    """Publish what a process counts while the block lasts; other processes of its store read it."""
    if not is_published(engine):
        yield
        return
    made = Publisher(
        engine, read, process=process, supervisor=supervisor, pace=partial(find_pace, engine)
    )
    made.start()
    try:
        yield
    finally:
        made.stop()


async def serve(
    parts: Parts,
    *,
    servers: Sequence[Server],
    drain: Duration,
    hello: Callable[[], Awaitable[None]],
) -> None:
    """Run parts beside servers until SIGTERM or SIGINT has come and all have drained, and have
    `hello` speak meanwhile."""
    running = asyncio.create_task(run_until_told(parts, drain=drain))
    for server in servers:
        # Without its API it is half of what was asked for; when one part ends, all do.
        server.start(on_failure=parts[0][1].stop)
    if not all(server.is_local for server in servers):
        note(
            "other machines can reach this address, and what they send is not encrypted; put a "
            "server that speaks TLS before it"
        )
    greeted = asyncio.ensure_future(hello())
    try:
        await running
    finally:
        greeted.cancel()
        with suppress(asyncio.CancelledError):
            await greeted
    for server in servers:
        server.stop()


async def wait_until_registered(workers: Iterable[Worker]) -> None:
    for worker in workers:
        while not worker.is_registered:
            await asyncio.sleep(GLANCE_S)


def unready(workers: Iterable[Worker]) -> str | None:
    """Say what is lacking before everything is served, and served safely; None when nothing is."""
    workers = list(workers)
    is_ready = all(worker.is_registered for worker in workers)
    return find_complaint(workers) if is_ready else "the worker is not registered"


def bind(settings: Settings, name: str, *, address: Address | None = None) -> socket.socket:
    """Take the address of the settings, or that of a service on the same host, so that a taken port
    is an answer before anything else begins; nobody is connected yet. Raises `NotSupported`: the
    web extra is missing; `BadInput`: the address cannot be listened on."""
    try:
        from ulak.web import server
    except ModuleNotFoundError as error:
        raise NotSupported(
            f"{name} needs the web extra ({error.name} is missing); pip install 'ulak[web]'"
        ) from error
    if address is not None:
        return server.bind(settings.host, address.port, cure=address.variable)
    return server.bind(settings.host, settings.port)


def must_be_shared(engine: Engine, name: str) -> None:
    """Raise `NotSupported` when no other process sees the jobs of an engine."""
    features = engine.store.features
    if not features.shared:
        raise NotSupported(
            f"{name} cannot serve the {features.name} store, whose jobs no other process "
            "sees; connect to sqlite:///app.db, or run engine.working() in the program"
        )


def must_be_queues(engine: Engine, queues: Iterable[str]) -> None:
    """Raise `BadInput` when no stage of the program is in a queue."""
    known = queues_of(engine)
    for queue in queues:
        if queue not in known:
            raise BadInput(f"no stage is in queue {queue!r}; queues are {', '.join(known)}")


def queues_of(engine: Engine) -> list[str]:
    return sorted({queue_of(lane) for flow in engine.inspect.flows for lane in flow.table.lanes})


def stored(engine: Engine) -> str:
    """Name the store, its version, where it is, and what a power cut may cost."""
    features = engine.store.features
    about: dict[str, object] = getattr(engine.store, "about", dict)()
    version = about.get(features.name, "")
    place = about.get("path") or about.get("database")
    said = [f"{features.name} {version}".strip(), place, features.durability]
    return ", ".join(str(part) for part in said if part)


def _listed(queues: Iterable[str]) -> str:
    return ", ".join(sorted(queues))
