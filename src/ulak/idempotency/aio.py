"""The guard for an event loop: looks are shared, and duplicates of one process wait on the loop."""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Final, TypeVar, cast

from ulak.clock import Duration, read_micros, seconds
from ulak.engine.threads import Aside
from ulak.errors import BadInput, GuardUnavailable, IdempotencyError, InProgress
from ulak.idempotency.execution import Execution, Transactional
from ulak.idempotency.guard import TOO_LONG, Asked, Guard, in_progress
from ulak.idempotency.scope import Answer
from ulak.idempotency.turns import LONGEST_S, Turn
from ulak.store.records import RecordId
from ulak.store.transaction import OpenTransaction, PartedTransaction

T = TypeVar("T")
Told = Answer | IdempotencyError | None

MOST_LOOKS: Final = 500

NEWS: Final = 16
"""After so many new keys in a row, nobody looks before the claim. A guess."""

PLACES: Final = 16
"""How many transactions of one process are open at once, each on a connection of its own."""
ENDING: Final = 2
"""How many threads end what does not end on the loop. Few: each takes the interpreter from it."""

# How often whoever may wait looks whether another process has ended. A guess: so often that a
# person does not notice, and so seldom that a store does not.
LOOK_AGAIN_S: Final = 0.05


class AsyncGuard:
    """`guard.aio`: the verbs of a guard, to be awaited. Its promises are the guard's; the store is
    the law, and what is known here only spares it questions."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._places = 1 if guard.features.one_writer else PLACES
        self._looking = Aside("idempotency-look", at_once=False)
        # Who must wait for another process does so on a thread of its own, so that few are enough
        # for the rest: threads that are many take their time from each other.
        self._waiting = Aside("idempotency-wait", PLACES, at_once=False)
        self._ending = Aside("idempotency-end", ENDING, at_once=False)
        self._here: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Here] = (
            weakref.WeakKeyDictionary()
        )
        # A loop knows its tasks by weak references only: these may have nobody who waits for them.
        self._tasks: set[asyncio.Task[None]] = set()
        weakref.finalize(self, _close, (self._looking, self._waiting, self._ending))

    async def begin(self, asked: Asked, *, wait: Duration = 0) -> Execution | Answer:
        """Claim a key, or return what was answered before, as `Guard.begin` does. `wait` is how
        long to wait for another execution, besides the `lock_wait` of a transactional scope, and
        be answered from its record. Raises as `Guard.begin`, and `BadInput` when `wait` is no
        duration."""
        until = asyncio.get_running_loop().time() + read_micros(wait, "wait=") / 1e6
        while True:
            try:
                return await self._begin(asked)
            except InProgress:
                if asyncio.get_running_loop().time() + LOOK_AGAIN_S > until:
                    raise
            await asyncio.sleep(LOOK_AGAIN_S)

    async def settle(self, execution: Execution, answer: Answer) -> None:
        """End an execution with an answer, as `Execution.settle` does."""
        if isinstance(execution, Transactional):
            if self._guard.features.one_writer:
                await self._end_part(execution, partial(execution.settle, answer))
                return
            if execution.settles_on_loop(answer):
                await self._settle_on_loop(execution, answer)
                return
        await self._end(execution, partial(execution.settle, answer))

    async def abandon(self, execution: Execution) -> None:
        """End an execution as if it had never been; one that is over is left alone."""
        if execution.is_over:
            return
        if isinstance(execution, Transactional) and self._guard.features.one_writer:
            await self._end_part(execution, execution.abandon)
        else:
            await self._end(execution, execution.abandon)

    async def carry_out(self, serving: Coroutine[Any, Any, None]) -> None:
        """Wait until a request was served; whoever gives up waiting does not stop it."""
        task = asyncio.create_task(serving)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.shield(task)

    async def _settle_on_loop(self, execution: Transactional, answer: Answer) -> None:
        here = self._of_loop()
        try:
            await execution.settle_on_loop(answer)
        finally:
            here.places.give()
            here.over(execution.row.id)

    async def _end(self, execution: Execution, work: Callable[[], None]) -> None:
        here = self._of_loop()
        ending = self._ending.run(work)
        if execution.scope.mode == "transactional":
            ending.add_done_callback(lambda _: here.places.give())
        try:
            await ending  # whoever gives up waiting does not stop the thread
        finally:
            here.over(execution.row.id)

    async def _end_part(self, execution: Transactional, work: Callable[[], None]) -> None:
        here = self._of_loop()
        turn = here.turn
        if turn is None:
            raise BadInput("this execution is over")
        try:
            try:
                committed = turn.end_part(work)
            finally:
                self._pass_on(here)
            if committed is not None:
                await committed
        finally:
            here.over(execution.row.id)

    def _pass_on(self, here: _Here) -> None:
        turn = here.turn
        if turn is None:
            here.places.give()
        elif turn.may_go_on and here.places.is_wanted:
            if turn.has_kept and not turn.is_timed:
                # Whoever comes next may take long; those who have ended do not wait for it.
                turn.is_timed = True
                asyncio.get_running_loop().call_later(LONGEST_S, self._relieve, here, turn)
            here.places.give()
        else:
            here.turn = None
            self._ending.run(turn.commit).add_done_callback(lambda _: here.places.give())

    def _relieve(self, here: _Here, turn: Turn) -> None:
        turn.is_timed = False
        if here.turn is turn and turn.has_kept:
            self._ending.submit(turn.relieve)

    async def _begin(self, asked: Asked) -> Execution | Answer:
        here = self._of_loop()
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds(asked.scope.lock_wait)
        while True:
            told = await here.look(asked) if here.may_be_known(asked) else None
            if told is not None:
                here.was_known(asked)
                if isinstance(told, Answer):
                    return told
                raise told
            running = here.running.get(asked.id)
            if running is None:
                return await self._claim(here, asked)
            # It is executed in this process: waiting for it on the loop costs no thread.
            await asyncio.wait((running,), timeout=until - loop.time())
            if not running.done():
                raise in_progress(asked)

    async def _claim(self, here: _Here, asked: Asked) -> Execution | Answer:
        is_open = asked.scope.mode == "transactional"
        here.running[asked.id] = asyncio.get_running_loop().create_future()
        try:
            if is_open:
                await here.places.take(seconds(asked.scope.lock_wait))
        except BaseException:
            here.over(asked.id)
            raise
        try:
            begun = await self._begun(here, asked)
        except BaseException:
            self._not_begun(here, asked)
            raise
        if isinstance(begun, Answer):
            here.was_known(asked)
            self._not_begun(here, asked)
        elif not is_open:
            here.over(asked.id)  # the record tells whoever looks
        return begun

    async def _begun(self, here: _Here, asked: Asked) -> Execution | Answer:
        if asked.scope.mode == "lease":
            return await self._run(self._guard.begin, asked)
        if self._guard.features.one_writer:
            return await self._begin_part(here, asked)
        if self._guard.features.on_loop:
            return await self._guard.begin_on_loop(asked)
        return await self._run(self._guard.begin, asked)

    async def _begin_part(self, here: _Here, asked: Asked) -> Execution | Answer:
        if here.turn is None:
            # To open one asks no server: where nobody is in the way, that is shorter than the way
            # to a thread and back.
            opened: OpenTransaction | Answer | None = self._guard.open_at_once(asked)
            if opened is None:
                opened = await self._run(self._guard.open, asked)
            if isinstance(opened, Answer):
                return opened
            here.turn = Turn(cast(PartedTransaction, opened))
        return self._guard.begin_within(asked, here.turn.begin_part())

    def _not_begun(self, here: _Here, asked: Asked) -> None:
        if asked.scope.mode == "transactional":
            self._pass_on(here)
        here.over(asked.id)

    async def _run(self, begin: Callable[[Asked], T], asked: Asked) -> T:
        """Have a thread begin; whoever goes away meanwhile has begun nothing."""
        beginning = self._waiting.run(begin, asked)
        try:
            return await asyncio.shield(beginning)
        except asyncio.CancelledError:
            # The thread cannot be stopped, and what it claims would be held by nobody: on SQLite
            # the one writer's turn, for ever. It waits for no longer than the scope's lock_wait.
            await asyncio.shield(self._give_back(beginning))
            raise

    async def _give_back(self, beginning: asyncio.Future[Any]) -> None:
        await asyncio.wait({beginning})
        if beginning.exception() is not None:
            return
        begun = beginning.result()
        if isinstance(begun, Execution):
            await self._ending.run(begun.abandon)
        elif not isinstance(begun, Answer):
            await self._ending.run(cast(OpenTransaction, begun).roll_back)

    def _of_loop(self) -> _Here:
        loop = asyncio.get_running_loop()
        found = self._here.get(loop)
        if found is None:
            found = self._here[loop] = _Here(self._guard, self._looking, self._places)
        return found


class _Here:
    """What is under way on one loop."""

    def __init__(self, guard: Guard, thread: Aside, places: int) -> None:
        self.places = _Places(places)
        self.turn: Turn | None = None
        """Of a store with one writer: the transaction that the next execution goes on in."""
        self.running: dict[RecordId, asyncio.Future[None]] = {}
        """The keys that are executed now; each ends with its execution."""
        self._guard = guard
        self._thread = thread
        self._waiting: list[tuple[Asked, asyncio.Future[Told]]] = []
        self._is_looking = False
        self._news: dict[str, int] = {}

    def over(self, id: RecordId) -> None:
        running = self.running.pop(id, None)
        if running is not None and not running.done():
            running.set_result(None)

    def may_be_known(self, asked: Asked) -> bool:
        """Tell whether looking is worth it: not while a scope has had nothing but new keys, of
        which a claim finds out just as well. One of many looks all the same."""
        news = self._news.get(asked.scope.name, 0)
        if asked.id in self.running:
            return True
        self._news[asked.scope.name] = news + 1
        return news < NEWS or news % NEWS == 0

    def was_known(self, asked: Asked) -> None:
        self._news[asked.scope.name] = 0

    def look(self, asked: Asked) -> asyncio.Future[Told]:
        """Ask what became of a key, together with everybody who asks until the look begins."""
        loop = asyncio.get_running_loop()
        told: asyncio.Future[Told] = loop.create_future()
        self._waiting.append((asked, told))
        if not self._is_looking:
            self._is_looking = True
            # Whoever else this turn of the loop has heard of comes along.
            loop.call_soon(self._look)
        return told

    def _look(self) -> None:
        taken, self._waiting = self._waiting[:MOST_LOOKS], self._waiting[MOST_LOOKS:]
        looked = self._thread.run(self._guard.look, [asked for asked, _ in taken])
        looked.add_done_callback(partial(self._tell, [told for _, told in taken]))

    def _tell(
        self, waiting: Sequence[asyncio.Future[Told]], looked: asyncio.Future[list[Told]]
    ) -> None:
        error = looked.exception()
        found: Sequence[Any] = [error] * len(waiting) if error is not None else looked.result()
        for told, fact in zip(waiting, found, strict=True):
            if told.done():  # whoever asked has gone
                continue
            if error is not None:
                told.set_exception(error)
            else:
                told.set_result(fact)
        if self._waiting:
            self._look()
        else:
            self._is_looking = False


class _Places:
    """Lets so many have an open transaction at once; the others wait in order, on no thread."""

    def __init__(self, number: int) -> None:
        self._free = number
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self, patience_s: float) -> None:
        """Wait for a place; `GuardUnavailable`: there was none for so long."""
        if self._free:
            self._free -= 1
            return
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        timer = loop.call_later(patience_s, _give_up, turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.give()  # it came, and nobody is there any more
            raise
        finally:
            timer.cancel()

    @property
    def is_wanted(self) -> bool:
        return any(not turn.done() for turn in self._waiting)

    def give(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


def _give_up(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_exception(GuardUnavailable(TOO_LONG))


def _close(threads: Iterable[Aside]) -> None:
    for each in threads:
        each.close()
