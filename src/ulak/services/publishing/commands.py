"""`ulak publishing`: the parts of publishing as processes, and what operators do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Annotated, Any

import typer

from ulak import Engine, Job, JobFilter
from ulak.auth import Keys
from ulak.kit.clock import rfc3339
from ulak.kit.commands import (
    ActorOption,
    AppOption,
    HostOption,
    JsonOption,
    load_service,
    note,
    print_acts,
    print_json,
    print_list,
)
from ulak.kit.processes import Work, run, secrets_of
from ulak.service import Service, attach
from ulak.services.publishing import Publishing, make_routes
from ulak.services.publishing.keys import SCOPES, make_keys
from ulak.services.publishing.queue import RELAY, RELAY_QUEUE, Queue
from ulak.services.publishing.settings import WORKERS, load
from ulak.settings import Settings, read_env_file
from ulak.settings import load as load_platform
from ulak.web import app as make_app

group = typer.Typer(no_args_is_help=True, help="The parts of publishing, and its dead letters.")

_PORTS = "0 for any; else ULAK_PORT, or 8000 of backend, 8001 of users-api, 8002 of the last."
PortOption = Annotated[int | None, typer.Option(min=0, max=65535, help=_PORTS)]
LimitOption = Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")]


@group.command()
def backend(host: HostOption = None, port: PortOption = None, app: AppOption = None) -> None:
    """Serve posts and the internal routes, and relay tasks to the queue."""
    with _loaded(app) as (platform, own):
        _serve("backend", own.posts_engine, own, platform.listening(host, port, 8000), "posts")


@group.command()
def users_api(host: HostOption = None, port: PortOption = None, app: AppOption = None) -> None:
    """Serve users, logins and subscriptions."""
    with _loaded(app) as (platform, own):
        _serve("users-api", own.users_engine, own, platform.listening(host, port, 8001), "users")


@group.command()
def saga_worker(app: AppOption = None) -> None:
    """Moderate posts, make their previews and publish them."""
    _work("saga-worker", app, "saga_queue", *WORKERS[:3])


@group.command()
def worker(app: AppOption = None) -> None:
    """Tell subscribers of what was published."""
    _work("worker", app, "notifications_queue", "publish")


@group.command()
def dlq_worker(app: AppOption = None) -> None:
    """Compensate what dead letters have left half done."""
    _work("dlq-worker", app, "dlq_queue", "dlq")


@group.command()
def relay(app: AppOption = None) -> None:
    """Relay tasks from the posts to the queue, and look for stuck posts."""
    with _loaded(app) as (platform, own):
        run("relay", platform, work=[_relaying(own)], secrets=_secrets(platform, own))


@group.command()
def push_notificator(
    host: HostOption = None,
    port: PortOption = None,
    per_minute: Annotated[
        int, typer.Option(min=0, help="Pushes that it takes of one token; 0 for any number.")
    ] = 10,
) -> None:
    """Stand in for a push service: for trying it, not for production."""
    from ulak.services.publishing.push_notificator import make_push_notificator

    read_env_file()
    found = load_platform().listening(host, port, 8002)
    run("push-notificator", found, app=lambda _: make_push_notificator(per_minute))


@group.command("make-keys")
def make_service_keys(
    actor: ActorOption,
    least_privilege: Annotated[
        bool, typer.Option("--least-privilege", help="Narrow each to the calls of its worker.")
    ] = False,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a service key for each worker, besides those that there are; each is shown this once."""
    with _loaded(app) as (_, own):
        own.posts_engine.store.migrate()
        made = dict(make_keys(own.posts_engine, least_privilege=least_privilege, actor=actor))
    if as_json:
        print_json(made)
        return
    for name, key in made.items():
        print(f"{name:<18} {key}")
    names = ", ".join(f"INTERNAL_API_KEY_{worker.upper()}" for worker in WORKERS)
    which = f"each as its own of {names}" if least_privilege else "any one as INTERNAL_API_KEY"
    note(f"they are not shown again: set {which}, and start the workers anew")


@group.command()
def outbox(app: AppOption = None, limit: LimitOption = 50, as_json: JsonOption = False) -> None:
    """List the tasks that were written, the newest first. Beside the posts they are in the queue
    at once; apart, when the relay has sent them."""
    with _loaded(app) as (_, own):
        queue = own.posts.queue
        flows = [flow.name for flow in queue.tasks.saga] if queue.is_same else [RELAY]
        rows = [_outbox_row(queue, *found) for found in _newest(queue.posts, flows, limit)]
    _print(rows, as_json, "id", "task", "queue", "attempts", "sent_at", "last_error")


@group.command()
def inbox(app: AppOption = None, limit: LimitOption = 50, as_json: JsonOption = False) -> None:
    """List the tasks that were processed, the newest first."""
    with _loaded(app) as (_, own):
        flows = [flow.name for flow in own.posts.queue.tasks.saga]
        rows = [
            {
                "event_id": payload.get("event_id"), "consumer": job.flow,
                "processed_at": rfc3339(job.changed_at, "seconds"), "result": job.state,
            }
            for job, payload in _newest(own.queue_engine, flows, limit, role="done")
        ]  # fmt: skip
    _print(rows, as_json, "event_id", "consumer", "processed_at", "result")


@group.command()
def redrive(
    actor: ActorOption,
    task: Annotated[str | None, typer.Option(help="Only this task, as post.notify.")] = None,
    per_second: Annotated[float, typer.Option(min=0.01, max=1000, help="How many.")] = 5.0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Let posts in ERROR go on as well.")
    ] = False,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put dead letters back that were neither redriven nor discarded."""
    with _loaded(app) as (_, own):
        act = own.dead_letters.redrive_all
        acts = act(actor=actor, task=task, resume=resume, per_second=per_second)
        print_acts("redriven", acts, "dead letter", as_json=as_json)


@contextmanager
def _loaded(app: str | None) -> Iterator[tuple[Settings, Publishing]]:
    platform, _, own = load_service("publishing", app)
    try:
        yield platform, own
    finally:
        for engine in (own.queue_engine, own.posts_engine, own.users_engine):
            engine.close()


def _serve(name: str, engine: Engine, own: Publishing, found: Settings, about: str) -> None:
    """Serve a part of the routes, on the engine of its tables; the backend relays as well."""
    own.settings.must_have_secret()
    routes = partial(make_routes, about={about})
    part = Service("publishing", attach=lambda *_: own, routes=routes, scopes=SCOPES)
    attach(part, engine, found)
    is_backend = about == "posts"
    run(
        name, found, engines=[engine], migrating=True, secrets=_secrets(found, own),
        work=[_relaying(own)] if is_backend else [],
        prepare=(own.posts if is_backend else own.users).tables.ensure,
        app=lambda unready: make_app(
            engine, identity=Keys(own.posts_engine), unready=unready, services=[part],
            platform_routes=False, swagger=True,
        ),
    )  # fmt: skip


def _work(name: str, app: str | None, queue: str, *workers: str) -> None:
    """Work on one queue; a key that `ulak up` keeps for itself is not enough."""
    with _loaded(app) as (platform, own):
        load(env=platform.env).must_have_keys(*workers)
        own.settings.must_have_secret()  # the keys of subscribers are sealed by it
        queues = [getattr(own.settings, queue)]
        work = Work(own.queue_engine, queues, lease=own.settings.visibility)
        run(name, platform, work=[work], secrets=_secrets(platform, own))


def _secrets(platform: Settings, own: Publishing) -> list[str]:
    """Return what no log may show, also of the queue, which not every part opens."""
    return [*own.settings.secrets, *secrets_of(platform, own.queue_engine)]


def _relaying(own: Publishing) -> Work:
    return Work(own.posts_engine, [RELAY_QUEUE], lease=own.settings.visibility)


def _newest(
    engine: Engine, flows: Iterable[str], limit: int, **where: Any
) -> list[tuple[Job, dict[str, Any]]]:
    """Return the newest jobs of flows, each with its payload."""
    pages = (engine.jobs(JobFilter(flow=flow, **where), limit=limit) for flow in flows)
    found = sorted(chain(*pages), key=lambda job: job.id, reverse=True)[:limit]
    payloads = [engine.inspect.payload(job.id) for job in found]
    return [(job, p if isinstance(p, dict) else {}) for job, p in zip(found, payloads, strict=True)]


def _outbox_row(queue: Queue, job: Job, row: dict[str, Any]) -> dict[str, Any]:
    task = job.flow if queue.is_same else row.get("task", "redrive")
    payload = row.get("payload", row)
    trail = queue.posts.inspect.trail(job.id)
    failures = [line.message for line in trail if line.kind in ("retry", "failed")]
    sent_at = job.created_at if queue.is_same else job.changed_at if job.is_final else None
    return {
        "id": job.id, "event_id": payload.get("event_id"), "task": task,
        "queue": queue.tasks.find(task).queue, "payload": payload,
        "available_at": rfc3339(job.not_before, "seconds"), "attempts": job.attempt,
        "last_error": failures[-1] if failures else None,
        "sent_at": None if sent_at is None else rfc3339(sent_at, "seconds"),
    }  # fmt: skip


def _print(rows: list[dict[str, Any]], as_json: bool, *columns: str) -> None:
    """Print rows by the names of the specification; a table has these columns alone."""
    cells = [["-" if row[c] is None else str(row[c])[:60] for c in columns] for row in rows]
    print_list(rows, as_json, columns, cells, keep=columns[:-1], empty="there is none")
