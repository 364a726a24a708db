"""A program that mypy and pyright must refuse, exactly in the lines that say so."""

from dataclasses import dataclass

import ulak
from ulak import Flow, Lifecycle, Run


@dataclass(frozen=True)
class Order:
    number: int


engine = ulak.connect("memory://")
orders = Flow("orders", Lifecycle("new", {"new": ["done"]}), payload=Order)
misspelt = Flow("orders", Lifecycle("new", {"new": ["done"]}), rety=3)  # wrong


@orders.stage("new")
def check(run: Run[Order]) -> int:
    run.payload.nummer  # wrong # noqa: B018
    return 1


@orders.stage("new")  # wrong
def check_text(run: Run[str]) -> None: ...


def after(run: Run[Order]) -> str:
    return run.result(check)  # wrong


@engine.job
def greet(name: str) -> None: ...


@engine.job
def spell(number: int) -> str:
    return str(number)


@engine.job(transaction=True)
def book(connection: object, seat: int) -> None: ...


engine.submit(book, "seat")  # wrong
engine.submit(book, object(), 42)  # wrong
engine.submit(orders, "an order")  # wrong
engine.submit(orders, Order(1), tenants="acme")  # wrong
engine.submit(greet, 42)  # wrong
engine.submit(greet.bind(42))  # wrong
engine.submit_many(orders, ["an order"])  # wrong
engine.call(orders, "an order")  # wrong
engine.call(orders, Order(1), timeouts=3)  # wrong
number: int = engine.result(engine.submit(spell, 1))  # wrong
number = engine.call(spell.bind(1), timeout=3)  # wrong


async def submit_on_a_loop() -> None:
    await engine.aio.submit(orders, "an order")  # wrong
