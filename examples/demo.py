"""A small program on ulak: a plain job, an approval and a saga, in one SQLite file.

`ulak up examples.demo:engine` serves it, and its first start submits a few jobs to look at;
`python -m examples.demo` submits a few more.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import ulak

DATA = Path(".data")
DATA.mkdir(exist_ok=True)

engine = ulak.connect(f"sqlite:///{DATA}/demo.db")


# --- a plain job ----------------------------------------------------------------


@engine.job(retry=3)
def send_welcome(user_id: int) -> str:
    """The smallest durable job: a function that is run at least once."""
    return f"welcome, user {user_id}"


# --- an approval ----------------------------------------------------------------


@dataclass(frozen=True)
class Expense:
    """What an employee wants back."""

    employee: str
    amount: float
    iban: str


expense = ulak.Flow(
    "expense",
    ulak.Lifecycle(
        "requested",
        {"requested": ["approved", "refused"], "approved": ["paid"]},
        done=["paid", "refused"],
    ),
    payload=Expense,
    secret={"iban"},
)

review = expense.gate(
    "requested",
    choices={"approve": "approved", "refuse": "refused"},
    not_by=ulak.SUBMITTER,
    deadline=timedelta(days=3),
    on_expiry="refused",
)


@expense.stage("approved", to="paid")
def pay(run: ulak.Run[Expense]) -> str:
    """Runs once somebody else than the employee has approved."""
    decision = run.decision(review)
    return f"{run.payload.amount:.2f} to {run.payload.employee}, approved by {decision.actor}"


# --- a saga ---------------------------------------------------------------------


class CardDeclined(Exception):
    """The bank says no, and will say so again."""

    code = "card-declined"


@dataclass(frozen=True)
class Order:
    """Some of one thing, paid by a card."""

    item: str
    quantity: int
    card: str


order = ulak.Flow(
    "order",
    ulak.Lifecycle(
        "new",
        {"new": ["reserved"], "reserved": ["charged"], "charged": ["shipped"]},
        done="shipped",
        undone="rolled_back",
    ),
    payload=Order,
    secret={"card"},
    permanent={CardDeclined},
)


@order.stage("new")
def reserve(run: ulak.Run[Order]) -> str:
    """Put the goods aside."""
    return f"{run.payload.quantity} x {run.payload.item} put aside"


@reserve.undo
def put_back(run: ulak.Run[Order]) -> None:
    """Runs when the order fails later; finding nothing to put back is success."""


@order.stage("reserved")
async def charge(run: ulak.Run[Order]) -> str:
    """Take the money, under a key that the bank sees again if this runs twice."""
    if run.payload.card.startswith("0000"):
        raise CardDeclined(
            "the bank declined the card, as it is meant to: this order shows its undo"
        )
    return f"charged under {run.key('charge')}"


@order.stage("charged")
async def ship(run: ulak.Run[Order]) -> str:
    """Send the parcel."""
    run.emit("order.shipped", {"item": run.payload.item})
    return "on its way"


engine.add(expense)
engine.add(order)


# --- something to look at -------------------------------------------------------


async def submit_some(prefix: str) -> list[ulak.Job]:
    """Submit one job of each kind, and an order that is meant to fail, so that it is undone.

    The keys make a repetition harmless: two workers that start at once submit one set.
    """
    submit = engine.aio.submit
    return [
        await submit(send_welcome, 42, dedup_key=f"{prefix}-welcome"),
        await submit(
            expense, Expense("ayse", 128.5, "TR330006100519786457841326"), actor="ayse",
            dedup_key=f"{prefix}-expense",
        ),
        await submit(order, Order("lamp", 2, "4242424242424242"), dedup_key=f"{prefix}-order"),
        await submit(order, Order("desk", 1, "0000000000000000"), dedup_key=f"{prefix}-declined"),
    ]  # fmt: skip


class FirstJobs:
    """Stands for the jobs of the first start, which every worker looks for before it works."""


@engine.resource(FirstJobs)
@asynccontextmanager
async def first_jobs() -> AsyncIterator[FirstJobs]:
    """Give a new store something to show."""
    if not await engine.aio.jobs(limit=1):
        await submit_some("first")
    yield FirstJobs()


if __name__ == "__main__":
    import asyncio
    import uuid

    for job in asyncio.run(submit_some(uuid.uuid4().hex)):
        print(job.id, job.flow, job.state)
    engine.close()
