"""A publisher that takes half a second, and 1,500 keys: each message is sent once, none is dead.

Beside it the same worker goes on with other work. Its rate is taken while messages are being sent,
and while there are none.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from typing import Any, NamedTuple

import ulak
from bench import postgres
from bench.measure import Figure, scratch
from ulak.cli.speed import fill, flow_of
from ulak.ids import from_text

KEYS = 1_500
CALL_S = 0.5
JOBS_PER_TAKE = 1_000
TAKES = 5
# What one round of messages costs a worker is small; the rest is what rates differ by anyway.
STAYS = 0.9
PATIENCE_S = 600.0


class Sending(NamedTuple):
    """What became of the messages, and of the work beside them."""

    seconds: float
    sent_again: int
    dead: int
    alone: float
    """No-op jobs a second while there are no messages."""
    beside: float
    """The same while messages are being sent."""


def publishers_figures() -> list[Figure]:
    """Send by a plain and by an async publisher, on SQLite and on PostgreSQL."""
    figures: list[Figure] = []
    for kind in ("plain", "async"):
        with scratch() as folder:
            figures += _figures(f"{kind} publisher", send(f"sqlite:///{folder / 'slow.db'}", kind))
        with postgres.durable() as server:
            figures += _figures(f"{kind} publisher, PostgreSQL", send(server.fresh(), kind))
    return figures


def _figures(name: str, sending: Sending) -> list[Figure]:
    what = f"{name} of {CALL_S:g} s, {KEYS:,} keys: "
    command = "python -m bench.figures publishers"
    share = sending.beside / sending.alone
    return [
        Figure(
            what + "messages sent more than once, dead letters", "0, 0",
            f"{sending.sent_again}, {sending.dead} ({sending.seconds:.0f} s)",
            sending.sent_again == sending.dead == 0, command,
        ),
        Figure(
            what + "rate of other jobs meanwhile, of the rate without messages", f">= {STAYS}",
            f"{share:.2f} ({sending.beside:,.0f} of {sending.alone:,.0f} jobs/s)",
            share >= STAYS, command,
        ),
    ]  # fmt: skip


def send(url: str, kind: str) -> Sending:
    """Send one message of each key, with one worker."""
    noop, sent = flow_of("publishers"), Counter[str]()

    async def emit(run: ulak.Run[Any]) -> None:
        for n in range(KEYS):
            run.emit("slow", n, key=f"key-{n}")

    def publish(message: ulak.Message) -> None:
        time.sleep(CALL_S)
        sent[message.key] += 1

    async def publish_async(message: ulak.Message) -> None:
        await asyncio.sleep(CALL_S)
        sent[message.key] += 1

    crowd: ulak.Flow[Any] = ulak.Flow.steps("crowd", ("emit", emit))
    with ulak.connect(url, flows=[noop, crowd]) as engine:
        engine.outbox.publish(publish if kind == "plain" else publish_async)
        with engine.working():
            _rate(engine, noop)  # the first one prepares its statements
            alone = [_rate(engine, noop) for _ in range(TAKES)]
            began = time.monotonic()
            job = engine.wait(engine.submit(crowd).id)
            beside = [_rate(engine, noop) for _ in range(TAKES)]
            assert len(sent) < KEYS, "the messages were sent before the rate was taken"
            _wait_until_sent(engine, job)
            took = time.monotonic() - began
            alone += [_rate(engine, noop) for _ in range(TAKES)]
        dead = len(engine.outbox.dead(limit=KEYS))
        assert engine.inspect.verify() == []
    again = sum(times - 1 for times in sent.values())
    return Sending(took, again, dead, statistics.median(alone), statistics.median(beside))


def _rate(engine: ulak.Engine, flow: ulak.Flow[Any]) -> float:
    """Return how many jobs a second are submitted and done."""
    wanted = _done(engine, flow) + JOBS_PER_TAKE
    began = time.perf_counter()
    fill(engine, flow, JOBS_PER_TAKE)
    while _done(engine, flow) < wanted:
        time.sleep(0.005)
    return JOBS_PER_TAKE / (time.perf_counter() - began)


def _done(engine: ulak.Engine, flow: ulak.Flow[Any]) -> int:
    return sum(c.jobs for c in engine.inspect.counts() if (c.flow, c.role) == (flow.name, "done"))


def _wait_until_sent(engine: ulak.Engine, job: ulak.Job) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while any(m.state == "pending" for m in _messages(engine, job)):
        assert time.monotonic() < deadline, "messages are left that are neither sent nor dead"
        time.sleep(0.5)


def _messages(engine: ulak.Engine, job: ulak.Job) -> list[Any]:
    return engine.store.scan_messages(from_text(job.id))
