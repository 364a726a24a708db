"""The flows of the suite: each as small as the promise that it is for."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from ulak.core.flow import Flow
from ulak.core.lifecycle import Lifecycle
from ulak.core.policy import Backoff, Dedup, Limit, Rate, Until
from ulak.core.run import Run

HOUR = timedelta(hours=1)


def work(run: Run[Any]) -> None:
    """Stand in for a stage; the suite decides by itself how a run ends."""


def _line() -> Flow[Any]:
    """Two stages in a row, and a key until the job ends."""
    flow: Flow[Any] = Flow(
        "line",
        Lifecycle("first", {"first": ["second"], "second": ["done"]}),
        dedup=Dedup(until=Until.FINISHED),
        retry=Backoff(2, delays=[timedelta(seconds=10), timedelta(seconds=20)]),
    )
    flow.stage("first")(work)
    flow.stage("second")(work)
    return flow


def _newer() -> Flow[Any]:
    """The next version of `line`."""
    flow: Flow[Any] = Flow("line", Lifecycle("first", {"first": ["done"]}), version=2)
    flow.stage("first")(work)
    return flow


def _shorter() -> Flow[Any]:
    """The same version of `line` in a program that lacks its second stage."""
    flow: Flow[Any] = Flow("line", Lifecycle("first", {"first": ["done"]}))
    flow.stage("first")(work)
    return flow


def _dated() -> Flow[Any]:
    """A key that may be taken over after an hour, whatever became of its job."""
    flow: Flow[Any] = Flow(
        "dated",
        Lifecycle("first", {"first": ["done"]}),
        dedup=Dedup(until=Until.FORGOTTEN, keep=HOUR),
        retry=0,
    )
    flow.stage("first")(work)
    return flow


def _single() -> Flow[Any]:
    """One stage, no second attempt, and a key until the job ends."""
    flow: Flow[Any] = Flow(
        "single",
        Lifecycle("first", {"first": ["done"]}),
        dedup=Dedup(until=Until.FINISHED),
        retry=0,
    )
    flow.stage("first")(work)
    return flow


def _busy() -> Flow[Any]:
    """One stage with a busy state; its retries pass through `failed`."""
    flow: Flow[Any] = Flow(
        "busy",
        Lifecycle("queued", {"queued": ["running"], "running": ["done"]}),
        retry=Backoff(2, delays=[timedelta(seconds=10), timedelta(seconds=20)]),
    )
    flow.stage("queued", during="running", to="done")(work)
    return flow


def _saga() -> Flow[Any]:
    """A busy state and an undo, and retries that pass through `failed`."""
    flow: Flow[Any] = Flow(
        "saga",
        Lifecycle("queued", {"queued": ["running"], "running": ["done"]}),
        retry=Backoff(2, delays=[timedelta(seconds=10), timedelta(seconds=20)]),
        retry_via="failed",
    )
    flow.stage("queued", during="running", to="done")(work).undo(work)
    return flow


def _narrow() -> Flow[Any]:
    """A free stage, and after it one with a limit."""
    flow: Flow[Any] = Flow(
        "narrow",
        Lifecycle("wide", {"wide": ["tight"], "tight": ["done"]}),
        retry=Backoff(2, delays=[timedelta(seconds=10), timedelta(seconds=20)]),
    )
    flow.stage("wide")(work)
    flow.stage("tight", limit=Limit(2))(work)
    return flow


def _tight() -> Flow[Any]:
    """One stage with a limit."""
    flow: Flow[Any] = Flow("tight", Lifecycle("only", {"only": ["done"]}))
    flow.stage("only", limit=Limit(2))(work)
    return flow


def _review() -> Flow[Any]:
    """A question to a person."""
    flow: Flow[Any] = Flow(
        "review", Lifecycle("asked", {"asked": ["yes", "no"]}, done=["yes", "no"])
    )
    flow.gate("asked", choices={"approve": "yes", "refuse": "no"}, deadline=HOUR, on_expiry="no")
    return flow


def _waits() -> Flow[Any]:
    """A signal, or an hour."""
    flow: Flow[Any] = Flow(
        "waits", Lifecycle("waiting", {"waiting": ["paid", "late"]}, done=["paid", "late"])
    )
    flow.wait("waiting", signal="paid", to="paid", deadline=HOUR, on_expiry="late")
    return flow


def _brief() -> Flow[Any]:
    """Jobs that have an hour to live."""
    flow: Flow[Any] = Flow("brief", Lifecycle("first", {"first": ["done"]}), expires=HOUR)
    flow.stage("first")(work)
    return flow


def _proven() -> Flow[Any]:
    """Every event is chained into the tenant's proofs."""
    flow: Flow[Any] = Flow(
        "proven", Lifecycle("first", {"first": ["second"], "second": ["done"]}), proofs=True
    )
    flow.stage("first")(work)
    flow.stage("second")(work)
    return flow


def _proven_busy() -> Flow[Any]:
    """Proofs, and a busy state that the claim enters: an event that no change brings."""
    flow: Flow[Any] = Flow(
        "proven-busy",
        Lifecycle("queued", {"queued": ["running"], "running": ["done"]}),
        proofs=True,
    )
    flow.stage("queued", during="running", to="done")(work)
    return flow


def _keyed() -> Flow[Any]:
    """Two runs at once for each key of the payload."""
    flow: Flow[Any] = Flow("keyed", Lifecycle("only", {"only": ["done"]}))
    flow.stage("only", limit=Limit(2, key=_key_of))(work)
    return flow


def _kept() -> Flow[Any]:
    """A free stage, and after it one with two runs at once for each key."""
    flow: Flow[Any] = Flow("kept", Lifecycle("free", {"free": ["only"], "only": ["done"]}))
    flow.stage("free")(work)
    flow.stage("only", limit=Limit(2, key=_key_of))(work)
    return flow


def _oven() -> Flow[Any]:
    """For each key at most two jobs in the busy state of a stage, undone where they stand."""
    flow: Flow[Any] = Flow(
        "oven",
        Lifecycle("raw", {"raw": ["baking"], "baking": ["cool"], "cool": ["done"]}),
        retry=Backoff(2, delays=[timedelta(seconds=10), timedelta(seconds=20)]),
    )
    flow.stage("raw", during="baking", limit=Limit(2, key=_key_of, of="state"))(work).undo(work)
    flow.stage("cool")(work)
    return flow


def _unlimited_oven() -> Flow[Any]:
    """The same before it had a limit."""
    flow: Flow[Any] = Flow("oven", OVEN.lifecycle, retry=OVEN.retry)
    flow.stage("raw", during="baking")(work).undo(work)
    flow.stage("cool")(work)
    return flow


def _weighed() -> Flow[Any]:
    """One job in the busy state of a stage, before which something is called; a retry begins at
    the start."""
    flow: Flow[Any] = Flow(
        "weighed",
        Lifecycle("new", {"new": ["raw"], "raw": ["baking"], "baking": ["done"]}, retry_to="new"),
        retry=0,
    )
    flow.stage("new")(work)
    flow.stage("raw", during="baking", limit=Limit(1, of="state"))(work).before(work)
    return flow


def _rated() -> Flow[Any]:
    """Four tokens a second, six at most, and a payload that says what it costs."""
    flow: Flow[Any] = Flow("rated", Lifecycle("only", {"only": ["done"]}))
    flow.stage("only", rate=Rate(4, per=timedelta(seconds=1), burst=6, cost=_cost_of))(work)
    return flow


def _metered() -> Flow[Any]:
    """For each key one run at once, and two in ten seconds."""
    flow: Flow[Any] = Flow("metered", Lifecycle("only", {"only": ["done"]}), retry=2)
    rate = Rate(2, per=timedelta(seconds=10), key=_key_of)
    flow.stage("only", limit=Limit(1, key=_key_of), rate=rate)(work)
    return flow


def _shared() -> Flow[Any]:
    """Tenants take turns."""
    flow: Flow[Any] = Flow(
        "shared", Lifecycle("first", {"first": ["second"], "second": ["done"]}), fair=True
    )
    flow.stage("first")(work)
    flow.stage("second")(work)
    return flow


def _owned() -> Flow[Any]:
    """Whoever submits a job owns it, and a key until the job ends."""
    flow: Flow[Any] = Flow(
        "owned",
        Lifecycle("first", {"first": ["done"]}),
        dedup=Dedup(until=Until.FINISHED),
        owners=True,
    )
    flow.stage("first")(work)
    return flow


def _key_of(payload: Any) -> str:
    key: str = payload["key"]
    return key


def _cost_of(payload: Any) -> int:
    cost: int = payload["cost"]
    return cost


LINE = _line()
NEWER = _newer()
DATED = _dated()
SINGLE = _single()
BUSY = _busy()
SAGA = _saga()
NARROW = _narrow()
TIGHT = _tight()
REVIEW = _review()
WAITS = _waits()
BRIEF = _brief()
PROVEN = _proven()
PROVEN_BUSY = _proven_busy()
KEYED = _keyed()
KEPT = _kept()
OVEN = _oven()
UNLIMITED_OVEN = _unlimited_oven()
WEIGHED = _weighed()
RATED = _rated()
METERED = _metered()
SHARED = _shared()
SHORTER = _shorter()
OWNED = _owned()

NARROW_LIMIT = "narrow/tight"
TIGHT_LIMIT = "tight/only"
KEYED_LIMIT = "keyed/only"
OVEN_LIMIT = "oven/raw"
WEIGHED_LIMIT = "weighed/raw"
RATED_RATE = "rated/only"
METERED_RATE = "metered/only"
UNSTEERED = (
    LINE, DATED, BUSY, SAGA, NARROW, TIGHT, REVIEW, WAITS, BRIEF, PROVEN, PROVEN_BUSY,
)  # fmt: skip
EVERY = (*UNSTEERED, KEYED, KEPT, RATED, METERED, SHARED)
LIMITED = (OVEN, WEIGHED, KEYED, KEPT, TIGHT, SAGA, LINE)
