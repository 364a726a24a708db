"""A store that a test may interrupt, and the few words that scenarios of the worker share."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import ulak
from ulak import wiring
from ulak.core.change import Change
from ulak.engine.engine import Engine

SOON = timedelta(seconds=120)


class Double:
    """A store that counts its calls and does before and after each what a test says."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.calls: Counter[str] = Counter()
        self.order: list[str] = []
        self.before: dict[str, Callable[..., object]] = {}
        """Called with the arguments of the verb; what it raises, the verb raises."""
        self.after: dict[str, Callable[[Any], object]] = {}
        """Called with the answer; what it raises, the verb raises although it was done."""

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self.store, name)
        if not callable(verb):
            return verb

        def call(*arguments: Any, **options: Any) -> Any:
            self.calls[name] += 1
            self.order.append(name)
            if name in self.before:
                self.before[name](*arguments, **options)
            answer = verb(*arguments, **options)
            if name in self.after:
                self.after[name](answer)
            return answer

        return call


def store_of(url: str) -> Any:
    """A real store, of which a double may be made."""
    return wiring.store_of(url)


def engine_on(store: Any, *flows: Any, **options: Any) -> Engine:
    """An engine on a store or a double."""
    return Engine(store, flows=flows, **options)


def settings(**options: Any) -> ulak.WorkerSettings:
    """A worker that looks often and drains fast."""
    spans = {"poll": 0.05, "glance": 0.01, "drain": 2.0, "lease": 30.0}
    spans |= {k: options.pop(k) for k in list(options) if k in spans}
    return ulak.WorkerSettings(**{k: timedelta(seconds=v) for k, v in spans.items()}, **options)


def eventually(holds: Callable[[], object], *, within_s: float = 120.0) -> None:
    """Wait until something holds; fail when it does not in time."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.005)


async def pass_steps(steps: int) -> None:
    """Let everything else on the loop take so many steps."""
    for _ in range(steps):
        await asyncio.sleep(0)


def in_time(ask: Callable[[], object]) -> BaseException | None:
    """Return what it raised; fail when it has not ended, however long a test waits."""
    ended: list[BaseException | None] = []

    def run() -> None:
        try:
            ask()
        except Exception as error:  # noqa: BLE001 - it is what the test is about
            ended.append(error)
        else:
            ended.append(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(120.0)
    assert not thread.is_alive(), "it waits for ever"
    return ended[0]


def quickest(act: Callable[[], object], *, of: int = 5) -> float:
    """Return the seconds of the quickest of some tries: a machine may stand still in the others."""

    def measure() -> float:
        began = time.monotonic()
        act()
        return time.monotonic() - began

    return min(measure() for _ in range(of))


def kinds(engine: Engine, job: Any) -> list[str]:
    """The kinds of events in a job's trail."""
    return [event.kind for event in engine.inspect.trail(job.id)]


def codes(engine: Engine, job: Any) -> list[str | None]:
    """The codes of events in a job's trail."""
    return [event.code for event in engine.inspect.trail(job.id)]


class Gathering:
    """Lets async stages of one worker go on together, when all of them have come."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self.came = 0
        self._waiters: list[Any] = []

    async def wait(self) -> None:
        import asyncio

        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self.came += 1
        self._waiters.append(future)
        if self.came == self._size:
            for waiter in self._waiters:
                waiter.set_result(None)
        await future


def marked(changes: Sequence[Change], mark: bytes) -> list[Change]:
    """The changes that carry this mark in a result."""
    return [c for c in changes if any(mark in r.data for r in c.results)]
