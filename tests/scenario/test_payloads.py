"""A payload may be declared in every way that people declare data, and its secrets stay hidden."""

import asyncio
import enum
import re
import sqlite3
import uuid
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec
import psycopg
import pydantic
import pytest

from ulak import BadInput, Flow, FlowError, Lifecycle, Run
from ulak.core import bounds
from ulak.errors import PayloadTooLarge
from ulak.testing import Harness


@dataclass
class Card:
    holder: str
    iban: str


class CardStruct(msgspec.Struct):
    holder: str
    iban: str


class CardModel(pydantic.BaseModel):
    holder: str
    iban: str


CHILD: Flow[Any] = Flow("child", Lifecycle("ready", {"ready": ["done"]}))
CHILD.stage("ready")(lambda run: None)

KINDS = [Card, CardStruct, CardModel]
PLAIN = {"holder": "Ada", "iban": "TR33"}


def paying(kind: Any, **options: Any) -> Flow[Any]:
    """Two stages: the first answers the payload, the second reads that as its own type."""
    moves = {"new": ["copied"], "copied": ["done"]}
    flow: Flow[Any] = Flow("paying", Lifecycle("new", moves), payload=kind, retry=0, **options)

    def copy(run: Run[Any]) -> Any:
        assert kind is None or isinstance(run.payload, kind)
        return run.payload

    copy.__annotations__["return"] = kind or Any
    copied = flow.stage("new")(copy)

    @flow.stage("copied")
    def compare(run: Run[Any]) -> bool:
        assert type(run.result(copied)) is type(run.payload)
        return bool(run.result(copied) == run.payload)

    return flow


@pytest.mark.shows("E-15")
@pytest.mark.parametrize("given", ["its own type", "plain data"])
@pytest.mark.parametrize("kind", [*KINDS, None], ids=lambda kind: getattr(kind, "__name__", "JSON"))
def test_a_payload_and_a_result_come_back_as_the_types_that_were_declared(
    kind: Any, given: str, jobs_url: str
) -> None:
    flow = paying(kind)
    payload = PLAIN if kind is None or given == "plain data" else kind(**PLAIN)
    with Harness(flow, url=jobs_url) as harness:
        job = harness.run(flow, payload)
        assert (job.state, harness.result(job.id)) == ("done", True)
        assert harness.engine.inspect.payload(job.id) == PLAIN


@pytest.mark.shows("E-15")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_payload_that_does_not_fit_is_refused_at_submit(kind: Any) -> None:
    flow = paying(kind)
    with Harness(flow) as harness:
        with pytest.raises(BadInput, match=kind.__name__):
            harness.submit(flow, {"holder": "Ada"})
        assert harness.engine.jobs() == []


@pytest.mark.shows("E-15")
@pytest.mark.parametrize("kind", [*KINDS, None], ids=lambda kind: getattr(kind, "__name__", "JSON"))
def test_a_secret_is_hidden_from_readers_and_seen_by_the_stage(kind: Any) -> None:
    flow = paying(kind, secret={"iban"})
    with Harness(flow) as harness:
        job = harness.run(flow, PLAIN)
        assert harness.engine.inspect.payload(job.id) == {"holder": "Ada", "iban": "***"}
        assert harness.engine.inspect.payload(job.id, reveal=True) == PLAIN
        assert harness.result(job.id) is True


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Painted:
    colour: Colour
    number: int


class PaintedModel(pydantic.BaseModel):
    colour: Colour
    number: int


@pytest.mark.shows("E-15")
@pytest.mark.parametrize("kind", [Painted, PaintedModel])
@pytest.mark.parametrize(
    "wrong", [{"colour": "TR33-hush", "number": 1}, {"colour": "red", "number": "TR33-hush"}]
)
def test_no_text_about_a_payload_that_does_not_fit_quotes_it(
    kind: Any, wrong: dict[str, Any]
) -> None:
    """Texts are kept in the trail and shown; a value that is in the wrong place may be a secret."""
    flow = paying(None)
    with Harness(flow) as harness:
        job = harness.submit(flow, wrong)
        flow.payload = kind
        with pytest.raises(BadInput) as refused:
            harness.submit(flow, wrong)
        harness.run_until_idle()
        assert harness.job(job.id).code == "payload-unreadable"
        said = f"{refused.value} {harness.why(job.id)} {harness.trail(job.id)}"
        assert "hush" not in said
        assert ("colour" if wrong["number"] == 1 else "number") in said


@pytest.mark.shows("E-15")
def test_a_payload_whose_flow_is_not_declared_is_hidden_whole(shared_url: str) -> None:
    flow = paying(Card, secret={"iban"})
    with Harness(flow, url=shared_url) as harness:
        job = harness.submit(flow, PLAIN)
    with Harness(url=shared_url) as stranger:
        assert stranger.engine.inspect.payload(job.id) == {"holder": "***", "iban": "***"}
        assert stranger.engine.inspect.payload(job.id, reveal=True) == PLAIN


# --- large ones ---------------------------------------------------------------------


@pytest.mark.shows("E-84")
def test_a_payload_that_is_too_large_is_refused_at_every_door(jobs_url: str) -> None:
    flow: Flow[Any] = Flow("small", Lifecycle("go", {"go": ["done"]}), max_payload=100, retry=0)
    parent: Flow[Any] = Flow("parent", Lifecycle("go", {"go": ["done"]}), retry=0)
    fits, large = "x" * 98, "x" * 99

    @flow.stage("go")
    def go(run: Run[Any]) -> None: ...

    @parent.stage("go")
    def spawn(run: Run[Any]) -> None:
        run.spawn(flow, [fits, run.payload])

    with Harness(flow, parent, url=jobs_url) as harness:
        engine = harness.engine
        harness.submit(flow, fits)
        sentence = r"small: this payload has 101 bytes, and 100 are allowed; store the bytes as an"
        with pytest.raises(PayloadTooLarge, match=sentence) as refused:
            engine.submit(flow, large)
        assert isinstance(refused.value, BadInput)
        with pytest.raises(PayloadTooLarge):
            engine.submit_many(flow, [fits, large])
        with pytest.raises(PayloadTooLarge):
            asyncio.run(engine.aio.submit(flow, large))
        with pytest.raises(PayloadTooLarge):
            asyncio.run(engine.aio.submit_many(flow, [fits, large]))
        with pytest.raises(PayloadTooLarge):
            engine.schedules.add("nightly", flow, large, cron="0 3 * * *")
        failed = harness.submit(parent, large)
        harness.run_until_idle()
        assert harness.job(failed.id).state == "failed"
        assert "payload has 101 bytes" in str(engine.inspect.trail(failed.id)[-1].message)
        assert sorted(job.flow for job in engine.jobs()) == ["parent", "small"]


@pytest.mark.shows("E-84")
def test_a_payload_that_is_too_large_leaves_a_callers_transaction_as_it_was(
    shared_url: str,
) -> None:
    flow: Flow[Any] = Flow("small", Lifecycle("go", {"go": ["done"]}), max_payload=100)

    @flow.stage("go")
    def go(run: Run[Any]) -> None: ...

    def connect() -> Any:
        if shared_url.startswith("postgresql"):
            return psycopg.connect(shared_url)
        return sqlite3.connect(shared_url.removeprefix("sqlite:///"), isolation_level="IMMEDIATE")

    with Harness(flow, url=shared_url) as harness:
        with closing(connect()) as own:
            own.execute("CREATE TABLE mine (n INTEGER)")
            own.execute("INSERT INTO mine VALUES (1)")
            with pytest.raises(PayloadTooLarge):
                harness.engine.submit(flow, "x" * 99, connection=own)
            harness.engine.submit(flow, "x" * 98, connection=own)
            own.commit()
            assert own.execute("SELECT n FROM mine").fetchall() == [(1,)]
        assert len(harness.engine.jobs()) == 1


@pytest.mark.shows("E-84", "E-7")
def test_4_mib_are_allowed_unless_the_flow_says_otherwise() -> None:
    assert Flow("any", Lifecycle("go", {"go": ["done"]})).max_payload == 4 * 1024 * 1024
    flow: Flow[Any] = Flow("none", Lifecycle("go", {"go": ["done"]}), max_payload=0)

    @flow.stage("go")
    def go(run: Run[Any]) -> None: ...

    with pytest.raises(FlowError, match="max_payload=0 would refuse every job"):
        Harness(flow).engine.open()


@pytest.mark.shows("E-84", "E-22")
def test_what_a_job_carries_beside_its_payload_is_bounded_at_every_door(jobs_url: str) -> None:
    """Broken by a door that measures nothing: one row would slow every claim and every relay."""
    moves = {"new": ["paid"], "paid": ["agreed", "refused"], "agreed": ["done"]}
    flow: Flow[Any] = Flow(
        "shop", Lifecycle("new", moves, done=["done", "refused"]), retry=0
    )  # fmt: skip
    flow.wait("new", signal="paid", to="paid")
    flow.gate("paid", choices={"approve": "agreed", "refuse": "refused"})
    fits, large, long = "x" * (256 * 1024 - 2), "x" * (256 * 1024 - 1), "x" * 4001

    @flow.stage("agreed")
    def send(run: Run[Any]) -> None:
        run.progress(0.5, "\x00" + long)
        run.emit("agreed", run.payload)

    too_large = r"has 262,\d{3} bytes, and 262,144 may be stored; keep it in a file"
    too_long = "this note has 4,001 characters; 4,000 are allowed"
    with Harness(flow, url=jobs_url) as harness:
        engine = harness.engine
        good, bad = harness.submit(flow, fits), harness.submit(flow, large)
        with pytest.raises(BadInput, match=f"the data of this signal {too_large}"):
            engine.signal(good.id, "paid", large)
        engine.signal(good.id, "paid", fits)
        engine.signal(bad.id, "paid")
        for act in (partial(engine.decide, choice="approve"), engine.decide):
            with pytest.raises(BadInput, match=f"this decision {too_large}"):
                act(good.id, actor="ada", data=large)
            with pytest.raises(BadInput, match=too_long):
                act(good.id, actor="ada", note=long)
        for job in (good, bad):
            engine.decide(job.id, actor="ada", data="x" * 1000)
        harness.run_until_idle()
        assert harness.job(good.id).state == "done"
        assert harness.job(bad.id).state == "failed"
        said = str(engine.inspect.trail(bad.id)[-1].message)
        assert re.search(rf"emit\('agreed'\): the message {too_large}", said)
        for act in (
            partial(engine.cancel, good.id), partial(engine.release, good.id),
            partial(engine.retry, bad.id), partial(engine.expire, bad.id),
            partial(engine.decide, good.id, "approve"),
            partial(engine.flow_control.pause, flow="shop"),
            partial(engine.flow_control.resume, flow="shop"),
            partial(engine.flow_control.set_weight, "acme", 2),
            partial(engine.outbox.redrive, "1/1/1"),
            partial(engine.retention.prune, ended_before=datetime.now(UTC)),
        ):  # fmt: skip
            with pytest.raises(BadInput, match=too_long):
                act(actor="ada", note=long)
        waits = harness.submit(flow, 1)
        with pytest.raises(BadInput, match=too_long):
            engine.signal(waits.id, "paid", note=long)
        engine.cancel(waits.id, actor="ada", note=long[1:])
        assert engine.inspect.verify() == []


@pytest.mark.shows("E-84")
@pytest.mark.parametrize(
    "add",
    [
        lambda run, n: [run.emit("topic", n) for n in range(20 + n)],
        lambda run, n: run.spawn(CHILD, [None] * (20 + n)),
        lambda run, n: [run.emit("topic", "x" * 100_000) for _ in range(10 + n)],
    ],
    ids=["messages", "jobs", "bytes"],
)
def test_a_move_brings_only_so_many_messages_and_jobs(
    add: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "MOST_ADDED", 20)
    monkeypatch.setattr(bounds, "LARGEST_ADDED", 1_001_000)
    flow: Flow[Any] = Flow("adding", Lifecycle("ready", {"ready": ["done"]}), retry=0)
    flow.stage("ready")(lambda run: add(run, run.payload) and None)
    with Harness(flow, CHILD) as harness:
        fits, is_too_much = harness.submit(flow, 0), harness.submit(flow, 1)
        harness.run_until_idle()
        assert harness.engine.get(fits.id).state == "done"
        failed = harness.engine.get(is_too_much.id)
        assert (failed.state, failed.code) == ("failed", "bad-input")
        end = harness.engine.inspect.trail(is_too_much.id)[-1]
        assert "are allowed: divide them among several stages or jobs" in str(end)
        assert harness.engine.store.scan_messages(uuid.UUID(is_too_much.id).bytes) == []
