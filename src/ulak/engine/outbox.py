"""Messages: their handlers, how deliveries stand, and another chance for those that gave up."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from ulak.clock import Duration, read_micros, to_datetime
from ulak.core.acts import must_act
from ulak.core.bounds import must_fit, storable_key
from ulak.core.checks import STORABLE_NAME, backoff_makes_sense
from ulak.core.delivery import EVERY_TOPIC, GAVE_UP, NOBODY, PENDING, STATES, Terms
from ulak.core.job import Message as StoredMessage
from ulak.core.policy import Backoff, as_backoff
from ulak.engine.ports import FollowFunction, Handler, Receiver
from ulak.engine.relay import Relay
from ulak.engine.view import message_id
from ulak.errors import BadInput, FlowError, NotFound
from ulak.ids import from_text, time_ordered_id, to_text
from ulak.store import codec
from ulak.store.protocol import DeliveryFilter, OutboxRow, Store

if TYPE_CHECKING:
    from ulak.engine.kernel import Kernel

R = TypeVar("R", bound=Receiver)

TRIES = 10
UNHANDLED = "unhandled"
"""The state of a pending message that nobody wants, in counts."""

DELIVERY_ID = re.compile(
    r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/([0-9]{1,9})/([0-9]{1,9}|-1)(?:/(.+))?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message for one handler, or an event for one follower, and how far it has come."""

    id: str
    """`job/seq/n/handler`; without the handler for the publisher; n of an event is -1."""
    handler: str
    """'' is the publisher, or nobody."""
    job_id: str
    topic: str
    """Of an event, the flow."""
    key: str
    state: str
    """`pending`, `sent`, `dead`, `refused` or `discarded`."""
    tries: int
    """How many have failed."""
    at: datetime
    """When the message was sent."""
    sent_at: datetime | None
    data: Any
    answer: Any
    """What the handler returned."""
    error: str | None
    position: int


@dataclass(frozen=True, slots=True)
class DeliveryCount:
    """How many deliveries of a handler stand in a state."""

    handler: str
    state: str
    """`pending`, `dead`, `refused`, or `unhandled`: no handler wants it."""
    deliveries: int
    oldest_at: datetime
    """When the oldest of these messages was sent."""


class Outbox:
    """`engine.outbox`: how messages are delivered, and what becomes of those that cannot be."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def publish(self, publisher: R) -> R:
        """Declare the function that gets every message, beside the handlers of `engine.on`, and
        those of the last seven days that nobody wanted. The last one declared counts."""
        declare(self._kernel, Handler(NOBODY, EVERY_TOPIC, publisher, make_terms(TRIES)))
        return publisher

    def deliveries(
        self,
        *,
        handler: str | None = None,
        states: Sequence[str] = (),
        key: str | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> list[Delivery]:
        """Return deliveries, the oldest first; `after` is the `position` of the last one seen.

        Raises:
            BadInput: there is no such state.
        """
        if unknown := sorted(set(states) - {*STATES}):
            raise BadInput(f"states={unknown}: a delivery is {', '.join(STATES)}")
        where = DeliveryFilter(handler, tuple(states), key)
        found = self._kernel.open().store.deliveries(where, after=after, limit=limit)
        return [_view(row) for row in found]

    def dead(self, *, limit: int = 100) -> list[Delivery]:
        """Return deliveries that gave up or were refused, the oldest first."""
        return self.deliveries(states=GAVE_UP, limit=limit)

    def counts(self) -> list[DeliveryCount]:
        """Count what is pending, unhandled, dead and refused, by handler."""
        store = self._kernel.open().store
        known = {row.name for row in store.handlers()}
        counts = []
        for handler, state, number, oldest_at in store.count_deliveries():
            shown = UNHANDLED if state == PENDING and handler not in known else state
            counts.append(DeliveryCount(handler, shown, number, to_datetime(oldest_at)))
        return counts

    def handlers(self) -> dict[str, str]:
        """Return the topic of each handler, `flow:NAME` of a follower; '' is the publisher."""
        rows = self._kernel.open().store.handlers()
        return {row.name: f"flow:{row.flow}" if row.flow else row.topic for row in rows}

    def deliver(self, handler: str, *, limit: int = 50) -> Counter[str]:
        """Deliver what is due to one handler of this program, here and now, until nothing gets
        through. Return how many ended in each state; `pending` ones are tried again.
        Messages of one key follow each other, beside the workers too.

        Raises:
            NotFound: this program declares no such handler.
            StoreError: the store could not answer.
        """
        kernel = self._kernel.open()
        kernel.refuse_on_a_loop("outbox.deliver")
        receivers = [name for name, one in kernel.handlers.items() if one.flow is None]
        if handler not in receivers:
            known = ", ".join(map(repr, receivers)) or "none"
            raise NotFound(f"this program declares no handler {handler!r}; it declares {known}")
        ended = asyncio.run(Relay(kernel).send_up_to(handler, limit))
        return Counter(end.state for end in ended)

    def redrive(
        self,
        delivery_id: str,
        *,
        actor: str,
        note: str = "",
        give_up: Duration | None = None,
        connection: Any = None,
    ) -> Delivery:
        """Let a dead or refused delivery be tried again, with all its tries; audited. It goes
        before everything younger of its key.

        Args:
            give_up: For how long; by default as its handler is declared.
            connection: Your own open transaction, of which this is to be a part.

        Raises:
            NotFound: no dead or refused delivery has this id.
            BadInput: nobody acts, or the connection cannot be used.
        """
        must_act(actor, note)
        own_us = None if give_up is None else read_micros(give_up, "give_up=")

        def act(store: Store) -> Delivery:
            row = _find(store, delivery_id, GAVE_UP)
            limit_us = own_us
            if limit_us is None:
                limit_us = {h.name: h.give_up_us for h in store.handlers()}.get(row.handler)
            give_up_at = None if limit_us is None else store.clock.now() + limit_us
            if not store.redrive_message(row, give_up_at=give_up_at, actor=actor, note=note):
                raise _not_found(delivery_id, GAVE_UP)
            return _view(row)

        return self._kernel.acting_on(connection, "outbox.redrive", act)

    def discard(
        self, delivery_id: str, *, actor: str, note: str = "", connection: Any = None
    ) -> Delivery:
        """Give up a pending, dead or refused delivery; audited. What follows it goes on. One that
        is on its way may still arrive. With `connection` it is part of your own transaction.

        Raises:
            NotFound: no such delivery has this id.
            BadInput: nobody acts, or the connection cannot be used.
        """
        must_act(actor, note)
        states = (PENDING, *GAVE_UP)

        def act(store: Store) -> Delivery:
            row = _find(store, delivery_id, states)
            if not store.discard_message(row, actor=actor, note=note):
                raise _not_found(delivery_id, states)
            return _view(row)

        return self._kernel.acting_on(connection, "outbox.discard", act)

    def forget(self, name: str, *, actor: str, note: str = "") -> int:
        """Drop a stored handler and discard what it has not got; audited. Return how many that was.

        A program that still declares it stores it again when it is opened.

        Raises:
            NotFound: no handler is stored under this name.
            BadInput: nobody acts.
        """
        must_act(actor, note)
        store = self._kernel.open().store
        discarded = store.forget_handler(name, actor=actor, note=note)
        if discarded is None:
            known = ", ".join(repr(row.name) for row in store.handlers()) or "none"
            raise NotFound(f"no handler is named {name!r}; stored are {known}")
        return discarded


def declare(kernel: Kernel, handler: Handler) -> None:
    """Register a handler, and store it if the engine is open.

    Raises:
        FlowError: another one has its name.
    """
    if handler.name and handler.name in kernel.handlers:
        raise FlowError(
            f"two handlers are named {handler.name!r}; deliveries are stored under the name, so "
            "give each one its own"
        )
    if kernel.is_open:
        kernel.store.keep_handlers([handler.row])
    kernel.handlers[handler.name] = handler


def make_handler(
    topic: str,
    name: str,
    receive: Receiver,
    *,
    retry: int | Backoff,
    give_up: Duration | None,
    block: bool,
) -> Handler:
    """Read the declaration of a handler.

    Raises:
        BadInput: topic or name cannot be stored, a span is none, or nothing can be called.
    """
    storable_key(topic, "engine.on: the topic")
    terms = make_terms(retry, give_up, block=block)
    return _check(Handler(name, topic, receive, terms), "engine.on")


def make_follower(
    name: str, flow: str, function: FollowFunction, *, retry: int | Backoff
) -> Handler:
    """Read the declaration of a follower.

    Raises:
        BadInput: the name cannot be stored, no flow can be named so, or nothing can be called.
    """
    if not isinstance(flow, str) or not STORABLE_NAME.fullmatch(flow):
        raise BadInput(f"engine.follow: flow={flow!r}; give the name of a flow, such as 'orders'")
    terms = make_terms(retry, block=True, verb="engine.follow")
    return _check(Handler(name, "", function, terms, flow), "engine.follow")


def _check(handler: Handler, verb: str) -> Handler:
    storable_key(handler.name, f"{verb}: the name")
    if not callable(handler.receive):
        raise BadInput(f"{verb}: {handler.receive!r} cannot be called; decorate a function")
    return handler


def make_terms(
    retry: int | Backoff,
    give_up: Duration | None = None,
    *,
    block: bool = False,
    verb: str = "engine.on",
) -> Terms:
    """Read how a handler's deliveries are tried.

    Raises:
        BadInput: `retry` or `give_up` makes no sense.
    """
    give_up_us = None if give_up is None else read_micros(give_up, f"{verb}: give_up=")
    backoff = as_backoff(retry)
    if isinstance(retry, bool) or not isinstance(backoff, Backoff):
        raise BadInput(f"{verb}: retry= cannot be {retry!r}; give a number or a Backoff")
    for wrong in backoff_makes_sense(backoff, f"{verb}: retry="):
        raise BadInput(wrong)
    return Terms(backoff, give_up_us, block)


def make_message(kernel: Kernel, topic: str, data: object, key: str | None) -> StoredMessage:
    """Make a message that no stage sends; by default its key is its own.

    Raises:
        BadInput: topic, key or data cannot be stored.
    """
    storable_key(topic, "emit: the topic")
    if key is not None:
        storable_key(key, "emit: the key")
    now = kernel.open().store.clock.now()
    own = time_ordered_id(now)
    encoded = must_fit(codec.encode(data), f"emit({topic!r}): the message")
    return StoredMessage(own, 0, 0, key or own.hex(), topic, encoded, now)


def _find(store: Store, delivery_id: str, states: Sequence[str]) -> OutboxRow:
    parts = DELIVERY_ID.fullmatch(delivery_id)
    if parts is None:
        raise _not_found(delivery_id, states)
    place = (int(parts[2]), int(parts[3]), parts[4] or NOBODY)
    for row in store.scan_messages(from_text(parts[1])):
        if (row.message.seq, row.message.n, row.handler) == place and row.state in states:
            return row
    raise _not_found(delivery_id, states)


def _view(row: OutboxRow) -> Delivery:
    message, own = row.message, message_id(row.message)
    return Delivery(
        id=f"{own}/{row.handler}" if row.handler else own, handler=row.handler,
        job_id=to_text(message.job_id) if message.seq else "", topic=message.topic,
        key=message.key, state=row.state, tries=row.tries, at=to_datetime(message.at),
        sent_at=None if row.sent_at is None else to_datetime(row.sent_at),
        data=codec.decode(message.data),
        answer=None if row.answer is None else codec.decode(row.answer), error=row.error,
        position=row.position,
    )  # fmt: skip


def _not_found(delivery_id: str, states: Sequence[str]) -> NotFound:
    which = "dead message" if PENDING not in states else "message that is not delivered"
    return NotFound(f"no {which} is {delivery_id!r}; its id is job/seq/n, or job/seq/n/handler")
