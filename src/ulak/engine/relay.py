"""Delivers messages: at least once, in order per key, one poisoned key stopping only itself.

Each handler has a line of its own: however slow one is, the others go on.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from ulak.clock import SECOND
from ulak.core.bounds import find_excess
from ulak.core.delivery import DEAD, PENDING, SENT, Verdict, is_overdue, judge
from ulak.core.job import Message
from ulak.core.outcome import Refused, RetryLater
from ulak.engine import deliverer
from ulak.engine.deliverer import Deliverer, Follower
from ulak.engine.ports import Handler, Receiver
from ulak.engine.threads import Aside, call_on
from ulak.engine.view import Message as View
from ulak.engine.view import message_view
from ulak.errors import BadInput
from ulak.ids import to_text
from ulak.store import codec
from ulak.store.protocol import OutboxRow, Settled

if TYPE_CHECKING:
    from ulak.engine.kernel import Kernel

log = logging.getLogger("ulak.relay")

# As many heads as a line has in hand at most, however quick its handler is.
A_ROUND = 100
# A relay that vanishes keeps its heads so long; a worker says its lease instead.
HOLD_US = 30 * SECOND
# After so long an async call is cancelled. A plain one cannot be: its message stays held until it
# ends, and another thread takes its turn.
LONGEST_PUBLISH_S = 30.0
# How many calls of a handler run at once. A guess: enough to hide a slow broker, few enough not to
# crowd it.
PUBLISHERS = 8
ASYNC_PUBLISHERS = 32
# A handler that does all that it was given within this time is given more the next time.
QUICK_S = 0.1
# How long what has ended waits for others, to be recorded with them.
LINGER_S = 0.02


class Relay:
    """Delivers the messages for the handlers that this program declares, until it is stopped."""

    def __init__(self, kernel: Kernel, *, hold_us: int = HOLD_US) -> None:
        self._kernel = kernel
        self._hold_us = hold_us
        self._lines: dict[str, Deliverer] = {}
        self._is_rung = False

    async def run(self) -> None:
        """Deliver until cancelled; handlers that are declared meanwhile are served too."""
        loop, tasks = asyncio.get_running_loop(), dict[str, asyncio.Task[None]]()
        stop_ringing: Callable[[], None] | None = None
        try:
            while True:
                for line in self._find_lines():
                    if line.name not in tasks:
                        tasks[line.name] = loop.create_task(line.run())
                if not tasks:
                    await asyncio.sleep(deliverer.PAUSE_S)
                    continue
                if stop_ringing is None:
                    # Not before: a ring costs the loop of a program without handlers a turn.
                    stop_ringing = self._kernel.on_ring(partial(self._ring, loop))
                ended, _ = await asyncio.wait(
                    tasks.values(), timeout=deliverer.PAUSE_S, return_when=asyncio.FIRST_EXCEPTION
                )
                for task in ended:
                    task.result()
        finally:
            if stop_ringing is not None:
                stop_ringing()
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)
            for line in self._lines.values():
                await line.close()

    async def send_once(self) -> int:
        """Deliver one round of heads; return how many were delivered or are on their way."""
        return sum(await asyncio.gather(*(line.send_once() for line in self._find_lines())))

    async def send_up_to(self, name: str, limit: int) -> list[Settled]:
        """Deliver up to `limit` messages of one handler that are due; return how each has ended."""
        line = _Line(self._kernel, name, self._hold_us)
        try:
            return await line.send_up_to(limit)
        finally:
            await line.close()

    def _find_lines(self) -> list[Deliverer]:
        for name, handler in tuple(self._kernel.handlers.items()):
            if name not in self._lines:
                line = _Line if handler.flow is None else Follower
                self._lines[name] = line(self._kernel, name, self._hold_us)
        return list(self._lines.values())

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have every line look at the store, from any thread; a crowd of rings is one."""
        if not self._is_rung:
            self._is_rung = True
            call_on(loop, self._rung_here)

    def _rung_here(self) -> None:
        self._is_rung = False
        for line in self._lines.values():
            line.wake()


@dataclass(slots=True, eq=False)
class _Delivery:
    """A head that this relay holds, until the end of its call is recorded."""

    row: OutboxRow
    task: asyncio.Task[Settled] = field(init=False)
    began_at: float | None = None
    """When the call of a plain handler began, on the monotonic clock."""

    def is_late(self) -> bool:
        began_at = self.began_at
        return began_at is not None and time.monotonic() - began_at > LONGEST_PUBLISH_S


class _Line(Deliverer):
    """Hands one handler the heads of its keys: no more than it can do soon, and held until done."""

    def __init__(self, kernel: Kernel, name: str, hold_us: int) -> None:
        super().__init__(kernel, name, hold_us)
        self._hold_s = hold_us / 1e6
        self._publishers = Aside("publisher", PUBLISHERS, at_once=False)
        self._aside = Aside("relay")
        self._in_hand: dict[tuple[bytes, int, int], _Delivery] = {}
        self._window = 0
        """How many heads may be in hand, beside those of calls that hang."""
        self._turns = asyncio.Semaphore(ASYNC_PUBLISHERS)
        self._renew_at = 0.0
        self._says_answers = True

    async def close(self) -> None:
        """Record what ends soon, and let go of the rest."""
        # What was sent should not be sent again; what is not yet sent will be, by somebody.
        if self._in_hand:
            tasks = [delivery.task for delivery in self._in_hand.values()]
            _, late = await asyncio.wait(tasks, timeout=deliverer.PATIENCE_S)
            for task in late:
                task.cancel()
            await self._settle()
        self._publishers.close()
        self._aside.close()

    async def send_up_to(self, limit: int) -> list[Settled]:
        """Deliver round by round: a round has one message of a key at most. One in which nothing
        got through is the last."""
        handler, ended = self._kernel.handlers[self.name], list[Settled]()
        self._window = A_ROUND
        while len(ended) < limit and await self._take(handler, limit - len(ended)):
            before = len(ended)
            while self._in_hand:
                await self._renew()
                await self._await_some([held.task for held in self._in_hand.values()])
                ended += await self._settle()
            if not any(end.state == SENT for end in ended[before:]):
                break
        return ended

    async def _send(self, handler: Handler) -> int:
        await self._renew()
        taken = await self._take(handler)
        if not self._in_hand:
            return 0
        began_at = self._loop.time()
        tasks = [delivery.task for delivery in self._in_hand.values()]
        await self._await_some(tasks)
        is_quick = self._loop.time() - began_at < QUICK_S and all(task.done() for task in tasks)
        sent = sum(end.state == SENT for end in await self._settle())
        if not is_quick:
            self._window = _at_once(handler)
        elif taken >= self._window:
            self._window = min(2 * self._window, A_ROUND)
        return sent + len(self._in_hand)

    async def _await_some(self, tasks: list[asyncio.Task[Settled]]) -> None:
        """Wait until a call ends, and a little for others, or until there may be more to do."""
        rung = self._loop.create_task(self._rung.wait())
        try:
            ended, _ = await asyncio.wait(
                [*tasks, rung],
                timeout=min(deliverer.PAUSE_S, self._hold_s / 3),
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            rung.cancel()
        others = [task for task in tasks if not task.done()]
        if ended - {rung} and others:
            await asyncio.wait(others, timeout=LINGER_S)

    async def _renew(self) -> None:
        """Hold on to everything in hand at a third of the hold."""
        if not self._in_hand or self._loop.time() < self._renew_at:
            return
        rows = [delivery.row for delivery in self._in_hand.values()]
        hold = partial(self._store.hold_messages, rows, hold_us=self._hold_us)
        for row in await self._aside.run(hold):
            self._in_hand[_identity(row.message)].row = row
        self._renew_at = self._loop.time() + self._hold_s / 3

    async def _take(self, handler: Handler, most: int = A_ROUND) -> int:
        """Take as many heads as can be sent soon, and begin to; return how many were taken."""
        late = sum(delivery.is_late() for delivery in self._in_hand.values())
        self._publishers.resize(PUBLISHERS + late)
        self._window = max(self._window, _at_once(handler))
        places = min(self._window + late, A_ROUND, most) - len(self._in_hand)
        self._looked_at, self._looked_in_vain = self._loop.time(), True
        if places < 1:
            return 0
        if not self._in_hand:
            self._renew_at = self._loop.time() + self._hold_s / 3
        take = partial(self._store.take_messages, self.name, places, hold_us=self._hold_us)
        rows = await self._aside.run(take)
        for row in rows:
            identity = _identity(row.message)
            known = self._in_hand.get(identity)
            if known is not None:
                # Its hold had lapsed, in an outage; it is still being sent, or not yet recorded.
                known.row = row
                continue
            delivery = self._in_hand[identity] = _Delivery(row)
            # Heads are of different keys: they go side by side, and one that hangs stops itself.
            delivery.task = self._loop.create_task(self._try(handler, delivery))
        self._looked_in_vain = not rows
        return len(rows)

    async def _try(self, handler: Handler, delivery: _Delivery) -> Settled:
        row, message, now = delivery.row, delivery.row.message, self._store.clock.now()
        if is_overdue(row.tries, row.give_up_at, now):
            why = f"its time was over when it could be tried again; before that: {row.error}"
            return self._failed(handler, row, Verdict(DEAD, now, False, why))
        try:
            answer = await self._call(handler, delivery)
        except asyncio.CancelledError as cancelled:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            error: BaseException = cancelled  # raised by the handler itself
        except Exception as raised:  # noqa: BLE001 - a worker loop: every failure is retried
            error = raised
        else:
            if not isinstance(answer, (RetryLater, Refused)):
                return Settled(message, self.name, SENT, answer=self._encode(answer))
            error = answer
        verdict = judge(
            error, handler.terms, self._store.clock.now(), tries=row.tries,
            give_up_at=row.give_up_at, seed=message.job_id,
        )  # fmt: skip
        return self._failed(handler, row, verdict)

    def _failed(self, handler: Handler, row: OutboxRow, verdict: Verdict) -> Settled:
        message, is_over = row.message, verdict.state != PENDING
        level = logging.WARNING if verdict.spends_try else logging.INFO
        log.log(
            logging.ERROR if is_over else level,
            "a message is a dead letter" if is_over else "a message was not sent",
            extra={
                "topic": message.topic, "handler": self.name, "job_id": to_text(message.job_id),
                "error": verdict.error, "attempt": row.tries + verdict.spends_try,
            },
        )  # fmt: skip
        return Settled(
            message, self.name, verdict.state, verdict.not_before, verdict.spends_try,
            handler.terms.block and is_over, error=verdict.error,
        )  # fmt: skip

    def _encode(self, answer: Any) -> bytes | None:
        """Write what a handler returned, unless it cannot be kept: that is logged once."""
        if answer is None:
            return None
        try:
            data = codec.encode(answer)
            why = find_excess(data, "the answer")
        except BadInput as error:
            why = str(error)
        if why is not None and self._says_answers:
            self._says_answers = False
            facts = {"handler": self.name, "error": why}
            log.warning("what a handler returned is not kept", extra=facts)
        return data if why is None else None

    async def _settle(self) -> list[Settled]:
        """Record how attempts ended, late ones too; return them."""
        ended = [d for d in self._in_hand.values() if d.task.done()]
        settled = [d.task.result() for d in ended if not d.task.cancelled()]
        if settled:
            await self._aside.run(self._store.settle_messages, settled)
            sent = sum(end.state == SENT for end in settled)
            again = sum(end.state == PENDING for end in settled)
            self._kernel.telemetry.published(sent, again, len(settled) - sent - again)
        for delivery in ended:
            del self._in_hand[_identity(delivery.row.message)]
        return settled

    async def _call(self, handler: Handler, delivery: _Delivery) -> Any:
        row, receive = delivery.row, handler.receive
        message = message_view(row.message, row.tries)
        if _is_async(receive):
            async with self._turns, asyncio.timeout(LONGEST_PUBLISH_S):
                return await receive(message)
        answer = await self._on_thread(receive, message, delivery)
        if inspect.isawaitable(answer):  # such as what a lambda around a coroutine returns
            async with self._turns, asyncio.timeout(LONGEST_PUBLISH_S):
                return await answer
        return answer

    def _on_thread(
        self, receive: Receiver, message: View, delivery: _Delivery
    ) -> asyncio.Future[Any]:
        """Call a plain handler on a thread; one that hangs must not keep the process alive."""

        def call() -> Any:
            delivery.began_at = time.monotonic()
            try:
                return receive(message)
            except BaseException as error:
                if isinstance(error, Exception) and not isinstance(error, StopIteration):
                    raise
                # A future does not take these, or the loop would end with them.
                raise RuntimeError(f"the handler raised {error!r}") from None

        return self._publishers.run(call)


def _at_once(handler: Handler) -> int:
    return ASYNC_PUBLISHERS if _is_async(handler.receive) else PUBLISHERS


def _is_async(receive: Receiver) -> bool:
    return inspect.iscoroutinefunction(receive) or inspect.iscoroutinefunction(
        getattr(receive, "__call__", None)  # noqa: B004 - an object with an async __call__
    )


def _identity(message: Message) -> tuple[bytes, int, int]:
    return message.job_id, message.seq, message.n
