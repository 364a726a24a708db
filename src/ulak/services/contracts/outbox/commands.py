"""`ulak outbox dispatch`, `list`, `redrive` and `discard`: events of contracts on their way to a
remote."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final, get_args

import typer

from ulak.errors import NotFound
from ulak.kit.clock import Instant, rfc3339, to_datetime
from ulak.kit.commands import (
    ActorOption,
    AppOption,
    JsonOption,
    NoteOption,
    complain,
    note,
    print_json,
    print_table,
    reading,
    some,
    when,
)
from ulak.services.contracts.outbox import desk, settings
from ulak.services.contracts.outbox.claims import Attempt
from ulak.services.contracts.outbox.dispatcher import A_ROUND, Dispatcher
from ulak.services.contracts.outbox.events import DEAD, STATUSES, Event
from ulak.services.contracts.outbox.outcomes import Verdict
from ulak.services.contracts.outbox.remote import Remote
from ulak.services.contracts.outbox.tables import Tables

outbox = typer.Typer(no_args_is_help=True, help="Events of contracts on their way to a remote.")

VERDICTS: Final = get_args(Verdict)
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
        dispatcher = Dispatcher(Tables(engine), remote)
        if every is not None:
            with _stopped_by_signals(dispatcher.stop):
                dispatcher.run(every)
            return
        fared = Counter(attempt.outcome.verdict for attempt in _rounds(dispatcher, limit))
    if as_json:
        print_json({verdict: fared[verdict] for verdict in VERDICTS})
    else:
        print(", ".join(f"{fared[verdict]} {verdict}" for verdict in VERDICTS))


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
    wanted = status or [name for name in STATUSES if name != "sent"]
    if unknown := sorted(set(wanted) - set(STATUSES)):
        raise typer.BadParameter(
            f"{', '.join(unknown)}; write {', '.join(STATUSES)}", param_hint="--status"
        )
    with reading(app) as engine:
        found = desk.list_events(
            Tables(engine), statuses=wanted, tenant_id=tenant, aggregate=aggregate, after=after,
            limit=limit,
        )  # fmt: skip
    if as_json:
        print_json({"events": [_document(event) for event in found]})
    elif found:
        print_table(
            ("event", "tenant", "subject", "status", "attempts", "next", "last error"),
            [
                (
                    str(event.id), event.tenant_id, event.aggregate, event.status,
                    str(event.attempts), when(_due(event)), event.last_error or "-",
                )
                for event in found
            ],
            keep=("event", "next"),
        )  # fmt: skip
    else:
        note("no such events")


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
        tables = Tables(engine)
        if every:
            dead = desk.list_events(tables, statuses=(DEAD,), limit=MOST_REDRIVEN)
            events = [event.id for event in dead]

        def act(id: int) -> object:
            return desk.redrive(tables, id, actor=actor, note=why, ttl=ttl, force=force)

        done, refused = _each(events or [], act)
    _report("redriven", done, refused, as_json=as_json)


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
        tables = Tables(engine)
        done, refused = _each(events, lambda id: desk.discard(tables, id, actor=actor, note=why))
    _report("discarded", done, refused, as_json=as_json)


def _rounds(dispatcher: Dispatcher, limit: int) -> Iterator[Attempt]:
    """Send round by round, since a round takes one event of a subject at most; a round in which
    nothing got through is the last, since the next would fare no better."""
    left, goes_on = limit, True
    while left > 0 and goes_on:
        attempts = dispatcher.send_once(min(left, A_ROUND))
        left -= len(attempts)
        goes_on = any(attempt.outcome.verdict == "sent" for attempt in attempts)
        yield from attempts


def _each(ids: list[int], act: Callable[[int], object]) -> tuple[list[int], dict[int, str]]:
    """Act on one after the other; answer those that were done, and why others were not."""
    done: list[int] = []
    refused: dict[int, str] = {}
    for id in ids:
        try:
            act(id)
            done.append(id)
        except (NotFound, desk.NotNow) as error:
            refused[id] = str(error)
    return done, refused


def _report(act: str, done: list[int], refused: dict[int, str], *, as_json: bool) -> None:
    if as_json:
        print_json({act: done, "refused": {str(id): why for id, why in refused.items()}})
    else:
        print(f"{act} {some(len(done), 'event')}")
    for why in refused.values():
        complain(why)
    if refused:
        raise typer.Exit(1)


def _due(event: Event) -> Any:
    """When somebody does something about it; None when nobody does."""
    return to_datetime(event.available_at) if event.status in ("pending", "processing") else None


def _document(event: Event) -> dict[str, Any]:
    def date(instant: Instant | None) -> str | None:
        return None if instant is None else rfc3339(to_datetime(instant))

    return {
        "id": event.id,
        "tenant_id": event.tenant_id,
        "event_type": event.event_type,
        "aggregate": event.aggregate,
        "payload": event.body,
        "idempotency_key": event.idempotency_key,
        "status": event.status,
        "attempts": event.attempts,
        "last_error": event.last_error,
        "available_at": date(event.available_at),
        "give_up_at": date(event.give_up_at),
        "lease_until": date(event.lease_until),
        "sent_at": date(event.sent_at),
        "response_status": event.response_status,
        "response": event.response_json,
        "drift": event.drift,
        "acts": json.loads(event.acts),
        "created_at": date(event.created_at),
        "updated_at": date(event.updated_at),
    }


@contextmanager
def _stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Have SIGTERM and Ctrl-C end the loop after what is being sent; twice is once."""
    before = {
        number: signal.signal(number, lambda *_: stop())
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
