"""The program whose jobs are in the fixtures of earlier releases.

`python -m tests.upgrade.make` fills a database with its jobs, and the workers that tests start
serve them. A later release may add flows; those that are here stay as they are, since stored jobs
follow them.
"""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import ulak
from ulak.idempotency import Answer, Asked, Scope
from ulak.services.contracts.requests import Transition

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)

CHARGE = Scope("fixture.charge", mode="lease", ttl=timedelta(days=36_500))
"""Its records outlive whoever reads this."""
CHARGED = Asked(CHARGE, "charged", request_hash="c" * 64, tenant="acme", actor="ada")
CHARGING = Asked(CHARGE, "charging", request_hash="d" * 64, tenant="acme", actor="ada")
RECEIPT = Answer(201, b'{"receipt": 1}', (("content-type", "application/json"),))

KEY = "a-key-of-the-fixture-that-opens-nothing-else"
PASSWORD = "a password of the fixture"  # noqa: S105 - it opens a database of the tests


def transition(subject: str) -> Transition:
    """Return the request by which a subject of contracts was paid."""
    return Transition(
        "acme", "order", subject, "paid", key=f"pay {subject}", caller="ada", from_="pending"
    )  # fmt: skip


class Outside:
    """What stages and the publisher reach: here a folder, and all is well.

    Args:
        release: Who reaches it; every stage returns this.
        folder: Where sent messages are written, one to a line. A stage whose payload names a file
            there waits for as long as the file exists.
    """

    def __init__(self, release: str = "", folder: Path = Path()) -> None:
        self.release = release
        self.folder = folder

    def reach(self, run: ulak.Run[Any]) -> str | ulak.Hold:
        """Do what a stage does outside."""
        gate = self.folder / run.payload.get("while", "no such file")
        if gate.exists():
            (self.folder / f"{gate.name}.reached").touch()
        while gate.exists():
            time.sleep(0.01)
        return self.release

    def undo(self, run: ulak.Run[Any]) -> None:
        """Take back what a stage did outside."""

    def publish(self, message: ulak.Message) -> None:
        """Send a message."""
        with (self.folder / "sent").open("a") as sent:
            sent.write(f"{message.topic} {message.data['name']}\n")


def make_engine(url: str, outside: Outside) -> ulak.Engine:
    """Make the program's engine on a store; nothing is opened."""
    engine = ulak.connect(url)
    for flow in (order(), booking(), claim(), nap(), press(), report(), quiet(), count()):
        engine.add(flow)
    for version in (1, 2):
        engine.add(letter(version))
    tick = next(flow for flow in engine.inspect.flows if flow.name == "count")
    engine.schedules.add("half-daily", tick, {"name": "tick"}, every=12 * HOUR, catch_up="last")
    engine.schedules.add(
        "nightly", tick, {"name": "night"}, cron="0 3 * * *", zone="Europe/Istanbul"
    )
    engine.outbox.publish(outside.publish)

    @engine.resource(Outside)
    @asynccontextmanager
    async def open_outside() -> AsyncIterator[Outside]:
        yield outside

    return engine


def order() -> ulak.Flow[Any]:
    """Effects, messages, retries, holds, a busy state, dedup keys."""
    moves = {"new": ["packing"], "packing": ["packed"], "packed": ["sent"]}
    flow: ulak.Flow[Any] = ulak.Flow(
        "order",
        ulak.Lifecycle("new", moves, done="sent"),
        retry=ulak.Backoff(delays=[HOUR]),
        permanent=[LookupError],
        dedup=ulak.Dedup(key=lambda payload: str(payload["name"])),
    )

    @flow.stage("new", during="packing")
    def pack(run: ulak.Run[Any]) -> dict[str, str] | ulak.Hold:
        label = run.once("label", lambda key: f"label {run.payload['name']}")
        by = run.resource(Outside).reach(run)
        if isinstance(by, ulak.Hold):
            return by
        run.emit("packed", {"name": run.payload["name"]}, key=run.payload.get("key"))
        return {"label": label, "by": by}

    @flow.stage("packed", limit=ulak.Limit(3))
    async def send(run: ulak.Run[Any]) -> dict[str, str]:
        return {**run.result(pack), "sent_by": run.resource(Outside).release}

    return flow


def booking() -> ulak.Flow[Any]:
    """A stage that is taken back when the next one fails, and it always does."""
    moves = {"asked": ["booked"], "booked": ["travelled"]}
    flow: ulak.Flow[Any] = ulak.Flow(
        "booking",
        ulak.Lifecycle("asked", moves, done="travelled", undoing="undoing"),
        retry=0,
        undo_retry=ulak.Backoff(delays=[HOUR] * 9),
    )

    @flow.stage("asked")
    def reserve(run: ulak.Run[Any]) -> str:
        return "seat 12"

    @reserve.undo
    def give_back(run: ulak.Run[Any]) -> None:
        run.resource(Outside).undo(run)

    @flow.stage("booked")
    def travel(run: ulak.Run[Any]) -> None:
        raise ConnectionError("there is no train today")

    return flow


def claim() -> ulak.Flow[Any]:
    """A gate and a signal, every move proved."""
    moves = {"requested": ["approved", "refused"], "approved": ["settled"]}
    flow: ulak.Flow[Any] = ulak.Flow(
        "claim",
        ulak.Lifecycle("requested", moves, done=["settled", "refused"]),
        proofs=True,
    )
    flow.gate("requested", choices={"approve": "approved", "refuse": "refused"})
    flow.wait("approved", signal="paid", to="settled")
    return flow


def nap() -> ulak.Flow[Any]:
    """A wait that the clock ends."""
    flow: ulak.Flow[Any] = ulak.Flow("nap", ulak.Lifecycle("asleep", {"asleep": ["done"]}))
    flow.wait("asleep", after=2 * DAY, to="done")
    return flow


def press() -> ulak.Flow[Any]:
    """One run at a time for each machine."""
    flow: ulak.Flow[Any] = ulak.Flow("press", ulak.Lifecycle("queued", {"queued": ["done"]}))
    limit = ulak.Limit(1, key=lambda payload: str(payload["machine"]))

    @flow.stage("queued", limit=limit)
    def run_press(run: ulak.Run[Any]) -> str | ulak.Hold:
        return run.resource(Outside).reach(run)

    return flow


def report() -> ulak.Flow[Any]:
    """Tenants in turn, at a rate."""
    flow: ulak.Flow[Any] = ulak.Flow(
        "report", ulak.Lifecycle("queued", {"queued": ["done"]}), fair=True
    )

    @flow.stage("queued", rate=ulak.Rate(2, per=timedelta(seconds=1)))
    async def write(run: ulak.Run[Any]) -> str:
        return run.resource(Outside).release

    return flow


def quiet() -> ulak.Flow[Any]:
    """A queue of its own, which is paused in the fixture."""
    flow: ulak.Flow[Any] = ulak.Flow("quiet", ulak.Lifecycle("queued", {"queued": ["done"]}))

    @flow.stage("queued", queue="night")
    async def whisper(run: ulak.Run[Any]) -> str:
        return run.resource(Outside).release

    return flow


def count() -> ulak.Flow[Any]:
    """What schedules submit."""

    async def counted(run: ulak.Run[Any]) -> str:
        return run.resource(Outside).release

    return ulak.Flow.steps("count", counted)


def letter(version: int) -> ulak.Flow[Any]:
    """A flow of which two versions are served, with ids that tell nothing."""
    flow: ulak.Flow[Any] = ulak.Flow(
        "letter",
        ulak.Lifecycle("written", {"written": ["posted"]}, done="posted"),
        version=version,
        unguessable_ids=True,
    )
    flow.gate("written", choices={"post": "posted"})
    return flow
