"""`ulak outbox`: events of contracts on their way to a remote."""

from __future__ import annotations

import json
import logging
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from threading import Event as Flag
from typing import Annotated, Any, Final

import typer

from ulak import Engine
from ulak.errors import FlowError, NotFound, UlakError
from ulak.kit.clock import rfc3339, to_datetime
from ulak.kit.commands import (
    ActorOption,
    AppOption,
    JsonOption,
    NoteOption,
    print_acts,
    print_json,
    print_list,
    reading,
    when,
)
from ulak.services.contracts.ledger import HANDLER
from ulak.services.contracts.outbox import desk, settings
from ulak.services.contracts.outbox.remote import Remote
from ulak.services.contracts.outbox.sending import declare

log = logging.getLogger("ulak.contracts.outbox")

outbox = typer.Typer(no_args_is_help=True, help="Events of contracts on their way to a remote.")

VERDICTS: Final = {"sent": "sent", "rejected": "refused", "dead": "dead", "retry": "pending"}
DUE: Final = ("pending", "processing")
A_ROUND: Final = 50
# How many a loop sends before it looks whether it is to stop: as many as go at once.
A_FEW: Final = 8
MOST_REDRIVEN = 10_000

EventsArgument = Annotated[
    list[int] | None, typer.Argument(metavar="EVENT", help="As `list` numbers them.")
]


@outbox.command("dispatch")
def dispatch(
    app: AppOption = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")] = A_ROUND,
    every: Annotated[
        float | None,
        typer.Option(min=0.1, max=3600, help="Go on until stopped, and look so often, in seconds."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Send the events that are due to the remote of HOS_BASE_URL.

    Any number of these may run at once, beside workers that do the same.
    """
    remote = Remote(settings.load())
    with reading(app) as engine:
        with suppress(FlowError):  # the service is attached in mode hybrid, and has declared it
            declare(engine, remote)
        if every is not None:
            _go_on(engine, every)
            return
        states = engine.outbox.deliver(HANDLER, limit=limit)
    fared = {verdict: states[state] for verdict, state in VERDICTS.items()}
    if as_json:
        print_json(fared)
    else:
        print(", ".join(f"{number} {verdict}" for verdict, number in fared.items()))


@outbox.command("list")
def list_(
    app: AppOption = None,
    status: Annotated[
        list[str] | None, typer.Option(metavar="STATUS", help="Only these; may be repeated.")
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Only of this tenant.")] = None,
    aggregate: Annotated[
        str | None, typer.Option(help="Only of this subject, as order:42.")
    ] = None,
    after: Annotated[int, typer.Option(min=0, help="Only events after this one.")] = 0,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """List events in the order of their numbers; without --status all that are not sent."""
    wanted = status or [name for name in desk.STATUSES if name != "sent"]
    if unknown := sorted(set(wanted) - set(desk.STATUSES)):
        raise typer.BadParameter(
            f"{', '.join(unknown)}; write {', '.join(desk.STATUSES)}", param_hint="--status"
        )
    with reading(app) as engine:
        found = desk.Desk(engine).events(
            statuses=wanted, tenant_id=tenant, aggregate=aggregate, after=after, limit=limit
        )
    rows = [
        (
            str(event.id), event.tenant_id, event.aggregate, event.status, str(event.attempts),
            when(to_datetime(event.available_at) if event.status in DUE else None),
            event.last_error or "-",
        )
        for event in found
    ]  # fmt: skip
    print_list(
        {"events": [_document(event) for event in found]}, as_json,
        ("event", "tenant", "subject", "status", "attempts", "next", "last error"), rows,
        keep=("event", "next"), empty="no such events",
    )  # fmt: skip


@outbox.command("redrive")
def redrive(
    actor: ActorOption,
    events: EventsArgument = None,
    every: Annotated[bool, typer.Option("--all", help="Every dead event.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Although the remote may have forgotten its key.")
    ] = False,
    why: NoteOption = "",
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Have dead or rejected events sent again, under the keys that they have.

    An event that is older than the remote remembers keys (HOS_REMOTE_TTL_SECONDS) is refused.
    """
    if every == bool(events):
        raise typer.BadParameter("name the events, or say --all", param_hint="EVENT")
    ttl = settings.load().ttl
    with reading(app) as engine:
        redriver = desk.Desk(engine)
        if every:
            found = redriver.events(statuses=(desk.DEAD,), limit=MOST_REDRIVEN)
            events = [event.id for event in found]
        act = partial(redriver.redrive, actor=actor, note=why, ttl=ttl, force=force)
        print_acts(desk.REDRIVEN, _each(events or [], act), "event", as_json=as_json)


@outbox.command("discard")
def discard(
    actor: ActorOption,
    events: EventsArgument = None,
    why: NoteOption = "",
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give events up: they are never sent, and what follows in their subjects is."""
    if not events:
        raise typer.BadParameter("name the events", param_hint="EVENT")
    with reading(app) as engine:
        act = partial(desk.Desk(engine).discard, actor=actor, note=why)
        print_acts(desk.DISCARDED, _each(events, act), "event", as_json=as_json)


def _go_on(engine: Engine, every: float) -> None:
    """Send until SIGTERM or Ctrl-C: what is being sent is awaited; twice is once."""
    stopping = Flag()
    signals = (signal.SIGTERM, signal.SIGINT)
    before = {each: signal.signal(each, lambda *_: stopping.set()) for each in signals}
    try:
        while not stopping.is_set():
            try:
                sent = engine.outbox.deliver(HANDLER, limit=A_FEW)
            except Exception:
                # A worker loop: nobody would notice its end before the events are hours old.
                log.exception("a round of the outbox failed")
                sent = Counter()
            if not sent:
                stopping.wait(every)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _each(ids: list[int], act: Callable[[int], object]) -> Iterator[tuple[int, UlakError | None]]:
    """Act on one after the other; yield each, with the error of one with which it could not be."""
    for id in ids:
        try:
            act(id)
        except (NotFound, desk.NotNow) as error:
            yield id, error
        else:
            yield id, None


def _document(event: desk.Event) -> dict[str, Any]:
    document = asdict(event) | {"payload": event.body, "acts": json.loads(event.acts)}
    for name, value in document.items():
        if name.endswith(("_at", "_until")) and value is not None:
            document[name] = rfc3339(to_datetime(value))
    document["response"] = document.pop("response_json")
    del document["discarded_at"]  # those that were are not listed
    return document
