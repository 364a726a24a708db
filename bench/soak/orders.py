"""What the soak runs: orders of five stages, with undos, slots, gates and every kind of trouble.

What befalls an order is drawn from the seed and its number, so that the end of each is known
before it is submitted.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import ulak
from bench.soak.ledger import Ledger

TROUBLES = {
    "none": 30,
    "reviewed": 14,  # a person approves it
    "refused": 6,  # a person refuses it: undone
    "shaky": 14,  # fails twice before and after its effect, then goes on
    "broken": 8,  # fails for good at the last stage: undone
    "weary": 5,  # spends its retries: undone; an operator retries it, and it goes on
    "signalled": 6,  # waits for a signal, which may come before it waits
    "expiring": 4,  # has little time: undone wherever it is then
    "held": 5,  # stops for a person, who lets it go
    "cancelled": 5,  # an operator cancels it wherever it is: undone
    "stubborn": 3,  # as broken, and an undo fails until a person has looked
}
ENDS = {
    "refused": {"refused"},
    "broken": {"failed"},
    "stubborn": {"failed"},
    # Done when the cancel or the expiry came too late.
    "cancelled": {"cancelled", "done"},
    "expiring": {"expired", "done"},
}
GOOD_ENDS = {"done"}

LINES = ("north", "south")
PACKERS = 2
"""So many orders of each line stand in "packing", whoever packs them and whoever has vanished."""
SHIPPERS = 4
LIMITS = {"packers": PACKERS * len(LINES), "shippers": SHIPPERS}

# Every twentieth order spawns another job with its last move.
RECEIPT_EVERY = 20

UNDO_OF = {"reserve": "unreserve", "charge": "refund", "pack": "unpack", "ship": "recall"}
AFTER_PACKING = {"reviewed": "review", "refused": "review", "signalled": "out_of_stock"}
STAGES = ("reserve", "charge", "pack", "ship", "notify")

# An undo after a lapse waits until its stage's time is over (E-43): keep that short here.
TIMEOUT = timedelta(seconds=4)
QUICK = ulak.Backoff(3, first=timedelta(milliseconds=40))


class Broken(Exception):
    """No retry mends this."""


class Weary(Exception):
    """A retry may mend this."""


@dataclass(frozen=True, slots=True)
class Order:
    """One order: its number, and what befalls it."""

    n: int
    trouble: str


def order(seed: int, n: int) -> Order:
    """Draw what befalls the order of a number."""
    dice = random.Random(f"{seed}/{n}")
    return Order(n, dice.choices(list(TROUBLES), weights=list(TROUBLES.values()))[0])


def key_of(placed: Order) -> str:
    """Return the dedup key of an order."""
    return f"order-{placed.n}"


def line_of(placed: Order) -> str:
    """Return the line on which an order is packed."""
    return LINES[placed.n % len(LINES)]


def time_of(placed: Order) -> timedelta | None:
    """Return how long an order may take, if it is one that expires."""
    return timedelta(milliseconds=300) if placed.trouble == "expiring" else None


def has_receipt(placed: Order) -> bool:
    """Tell whether this order spawns a receipt when it is done."""
    return placed.n % RECEIPT_EVERY == 0


def permit(folder: Path, n: int) -> Path:
    """The file by which an operator lets an order go on, beside his release."""
    return folder / f"permit-{n}"


def news(job: ulak.Job[Any], code: str | None) -> list[object] | None:
    """Return what is told of the end of an order; nothing of one that is done."""
    return None if job.state == "done" else [job.id, job.round, job.state]


def flows(ledger: Ledger, folder: Path) -> tuple[ulak.Flow[Any], ...]:
    """Declare the flows of the soak: orders, receipts and notices of ends."""
    notices: ulak.Flow[Any] = ulak.Flow(
        "notice", ulak.Lifecycle("tell", {"tell": ["done"]}), retry=QUICK
    )
    receipts: ulak.Flow[int] = ulak.Flow(
        "receipt", ulak.Lifecycle("print", {"print": ["done"]}), payload=int, retry=QUICK
    )
    orders: ulak.Flow[Order] = ulak.Flow(
        "order",
        ulak.Lifecycle(
            "reserve",
            {
                "reserve": ["charge"],
                "charge": ["pack"],
                "pack": ["packing"],
                "packing": ["review", "out_of_stock", "ship"],
                "review": ["ship", "refused"],
                "out_of_stock": ["ship"],
                "ship": ["notify"],
                "notify": ["done"],
            },
            done=["done", "refused"],
        ),
        payload=Order,
        retry=QUICK,
        undo_retry=ulak.Backoff(2, first=timedelta(milliseconds=40)),
        permanent={Broken},
        dedup=ulak.Dedup(key_of, until=ulak.Until.FORGOTTEN, keep=timedelta(days=1)),
        on_end=ulak.OnEnd(notices, payload=news),
    )
    work = _Work(ledger, folder)

    @orders.stage("reserve", timeout=TIMEOUT)
    async def reserve(run: ulak.Run[Order]) -> int:
        return await work.do(run, "reserve")

    @reserve.undo
    async def unreserve(run: ulak.Run[Order]) -> None:
        await work.do(run, "unreserve")

    @orders.stage("charge", timeout=TIMEOUT)
    def charge(run: ulak.Run[Order]) -> int:
        if run.payload.trouble == "shaky" and run.attempt == 1:
            raise Weary("before the effect")
        done = work.do_in_thread(run, "charge")
        if run.payload.trouble == "shaky" and run.attempt == 2:
            raise Weary("after the effect")
        return done

    @charge.undo
    def refund(run: ulak.Run[Order]) -> None:
        if run.payload.trouble == "stubborn" and not permit(folder, run.payload.n).exists():
            raise Weary("nobody has looked")
        work.do_in_thread(run, "refund")

    at_packing = ulak.Limit(PACKERS, key=line_of, of="state")

    @orders.stage("pack", during="packing", timeout=TIMEOUT, limit=at_packing)
    async def pack(run: ulak.Run[Order]) -> ulak.Goto:
        ledger.append("in", "packers", run.job_id, run.token)
        try:
            done = await work.do(run, "pack")
        finally:
            ledger.append("out", "packers", run.job_id, run.token)
        return ulak.Goto(AFTER_PACKING.get(run.payload.trouble, "ship"), result=done)

    @pack.undo
    async def unpack(run: ulak.Run[Order]) -> None:
        await work.do(run, "unpack")

    review: Any = orders.gate(
        "review", choices={"approve": "ship", "refuse": "refused"}, refusals={"refuse"}
    )

    orders.wait("out_of_stock", signal="stocked", to="ship")

    @orders.stage("ship", timeout=TIMEOUT, limit=ulak.Limit(SHIPPERS))
    def ship(run: ulak.Run[Order]) -> int | ulak.Hold:
        ledger.append("in", "shippers", run.job_id, run.token)
        try:
            placed = run.payload
            if placed.trouble == "held" and not permit(folder, placed.n).exists():
                return ulak.Hold("look", "a person must look at this")
            if placed.trouble == "reviewed" and run.decision(review).choice != "approve":
                raise Broken("shipped without an approval")
            if placed.trouble == "weary" and run.round == 1:
                raise Weary("no truck today")
            return work.do_in_thread(run, "ship")
        finally:
            ledger.append("out", "shippers", run.job_id, run.token)

    @ship.undo
    def recall(run: ulak.Run[Order]) -> None:
        work.do_in_thread(run, "recall")

    @orders.stage("notify", timeout=TIMEOUT)
    async def notify(run: ulak.Run[Order]) -> int:
        placed = run.payload
        if placed.trouble in ("broken", "stubborn"):
            await work.begin(run, "notify")
            raise Broken("no address")
        done = await work.do(run, "notify")
        run.emit("order.done", {"n": placed.n})
        if has_receipt(placed):
            run.spawn(receipts, [placed.n])
        return done

    @receipts.stage("print")
    async def print_receipt(run: ulak.Run[int]) -> None:
        await work.do(run, "print")

    @notices.stage("tell")
    async def tell(run: ulak.Run[Any]) -> None: ...

    return orders, receipts, notices


class _Work:
    """5 to 50 ms of waiting, with one outside effect in the middle."""

    def __init__(self, ledger: Ledger, folder: Path) -> None:
        self._ledger = ledger

    async def begin(self, run: ulak.Run[Any], name: str) -> float:
        self._ledger.append("begin", run.key(name), run.token)
        took = _seconds(run, name)
        await asyncio.sleep(took / 2)
        return took / 2

    async def do(self, run: ulak.Run[Any], name: str) -> int:
        left = await self.begin(run, name)

        async def effect(key: str) -> int:
            self._ledger.append("effect", key, run.token)
            return run.token

        token = await run.once(name, effect)
        await asyncio.sleep(left)
        return token

    def do_in_thread(self, run: ulak.Run[Any], name: str) -> int:
        self._ledger.append("begin", run.key(name), run.token)
        took = _seconds(run, name)
        time.sleep(took / 2)

        def effect(key: str) -> int:
            self._ledger.append("effect", key, run.token)
            return run.token

        token = run.once(name, effect)
        time.sleep(took / 2)
        return token


def _seconds(run: ulak.Run[Any], name: str) -> float:
    return random.Random(f"{run.key(name)}/{run.token}").uniform(0.005, 0.050)
