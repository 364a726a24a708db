"""A program whose types are all right; `assert_type` says what a checker must have understood."""

from dataclasses import dataclass
from typing import Any, assert_type

import ulak
from ulak import Decision, Flow, Goto, Hold, Job, Lifecycle, RetryLater, Run


@dataclass(frozen=True)
class Order:
    number: int


@dataclass(frozen=True)
class Verdict:
    reason: str


@dataclass(frozen=True)
class Receipt:
    amount: int


orders = Flow(
    "orders",
    Lifecycle("new", {"new": ["checked"], "checked": ["review"], "review": ["paid"]}, done="paid"),
    payload=Order,
    retry=2,
)
assert_type(orders, Flow[Order])
assert_type(Flow("plain", Lifecycle("new", {"new": ["done"]})), Flow[Any])


@orders.stage("new")
def check(run: Run[Order]) -> str | Goto | Hold | RetryLater:
    assert_type(run.payload, Order)
    return "checked"


@orders.stage("checked")
async def charge(run: Run[Order]) -> Receipt:
    assert_type(run.result(check), str)
    assert_type(run.find_result(check), str | None)
    assert_type(await run.once("charge", take_money), Receipt)
    return Receipt(1)


async def take_money(key: str) -> Receipt:
    return Receipt(len(key))


def write_invoice(key: str) -> int:
    return len(key)


review = orders.gate("review", choices={"accept": "paid"}, data=Verdict)
paid = orders.wait("shipped", signal="arrived", to="done", data=Receipt)


@orders.stage("paid")
def ship(run: Run[Order]) -> None:
    assert_type(run.result(charge), Receipt)
    assert_type(run.decision(review), Decision[Verdict])
    assert_type(run.signal(paid), Receipt)
    assert_type(run.once("invoice", write_invoice), int)
    assert_type(run.spawn(orders, [Order(2)], tenant="acme"), list[str])


engine = ulak.connect("memory://", flows=[orders])


@engine.job(retry=3, queue="mail")
def greet(name: str, times: int = 1) -> str:
    return name * times


@engine.job
async def fetch(number: int) -> bytes:
    return bytes(number)


@engine.job(transaction=True, retry=1)
def book(connection: Any, seat: int) -> None: ...


assert_type(greet("Ada"), str)
assert_type(engine.submit(book, 42), Job[None])
assert_type(engine.submit(orders, Order(1), tenant="acme"), Job)
assert_type(engine.submit(greet, "Ada", 2, priority=0), Job[str])
assert_type(engine.submit(greet.bind("Ada", times=2), priority=0), Job[str])
assert_type(engine.submit(fetch, 1), Job[bytes])
assert_type(engine.submit(fetch.bind(number=1)), Job[bytes])
assert_type(engine.submit_many(orders, [Order(1)]), list[Job])
assert_type(engine.submit_many(greet, ["ada", greet.bind("bob", times=2)]), list[Job])
assert_type(engine.result(engine.submit(greet, "Ada")), str)
assert_type(engine.result(engine.submit(fetch, 1)), bytes)
assert_type(engine.result(engine.submit(orders, Order(1))), Any)
assert_type(engine.result("an id"), Any)
assert_type(engine.call(greet.bind("Ada", times=2), timeout=10, tenant="acme"), str)
assert_type(engine.call(fetch.bind(1)), bytes)
assert_type(engine.call(orders, Order(1), timeout=10), Any)


def read_any(job: Job) -> Any:
    return engine.result(job)


async def submit_on_a_loop() -> None:
    assert_type(await engine.aio.submit(orders, Order(1)), Job)
    assert_type(await engine.aio.submit(greet, "Ada"), Job[str])
    assert_type(await engine.aio.result(await engine.aio.submit(fetch, 1)), bytes)
    assert_type(await engine.aio.call(greet.bind("Ada"), timeout=10), str)
