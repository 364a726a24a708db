"""A store with every kind of job in it, each standing where its name says."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from ulak import (
    SUBMITTER,
    Backoff,
    Dedup,
    Engine,
    Flow,
    Hold,
    Lifecycle,
    Limit,
    Rate,
    RetryLater,
    Until,
)
from ulak.clock import SECOND
from ulak.ids import from_text
from ulak.store.protocol import ClaimRequest, Want
from ulak.testing import Harness, ManualClock

HOUR = timedelta(hours=1)
LEASE = 1000 * 24 * 3600 * SECOND
KEEPER = "keeper"


def steps_flow() -> Flow[Any]:
    flow: Flow[Any] = Flow(
        "steps",
        Lifecycle("first", {"first": ["second"], "second": ["done"]}, undoing="undoing"),
        retry=Backoff(delays=[HOUR]),
        undo_retry=Backoff(delays=[HOUR]),
        permanent={ValueError},
        expires=timedelta(days=3000),
    )

    @flow.stage("first")
    def first(run: Any) -> Any:
        run.emit("begun", {"n": 1})
        run.emit("begun", {"n": 2})
        return {"seen": run.once("look", lambda key: key)}

    @first.undo
    def forget(run: Any) -> None:
        if run.payload.get("undo") == "fails":
            raise RuntimeError("cannot be undone")

    @flow.stage("second")
    def second(run: Any) -> Any:
        how = run.payload.get("how")
        if how == "hold":
            return Hold("look-at-me", "a person must look")
        if how == "transient":
            raise RuntimeError("not now")
        if how == "permanent":
            raise ValueError("never")
        if how == "spawn":
            run.spawn(flow, [{}])
        return None

    return flow


def limited_flow() -> Flow[Any]:
    flow: Flow[Any] = Flow(
        "limited", Lifecycle("queued", {"queued": ["running"], "running": ["done"]})
    )

    @flow.stage("queued", during="running", limit=Limit(1))
    def work(run: Any) -> None: ...

    return flow


def metered_flow() -> Flow[Any]:
    flow: Flow[Any] = Flow("metered", Lifecycle("queued", {"queued": ["done"]}))
    rate = Rate(2, per=timedelta(days=1), key=lambda payload: str(payload["key"]), cost=2)
    limit = Limit(3, key=lambda payload: str(payload["key"]))

    @flow.stage("queued", limit=limit, rate=rate)
    def work(run: Any) -> None: ...

    return flow


def oven_flow() -> Flow[Any]:
    """One job at a time stands in a busy state, whether it runs or not."""
    flow: Flow[Any] = Flow("oven", Lifecycle("raw", {"raw": ["baking"], "baking": ["done"]}))

    @flow.stage("raw", during="baking", limit=Limit(1, of="state"))
    def bake(run: Any) -> RetryLater:
        return RetryLater(timedelta(days=3000))

    return flow


def asking_flow() -> Flow[Any]:
    moves = {
        "asked": ["paying", "refused"],
        "paying": ["resting"],
        "resting": ["kept"],
        "kept": ["expired"],
    }
    flow: Flow[Any] = Flow(
        "asking",
        Lifecycle("asked", moves, done=["kept", "refused"]),
        dedup=Dedup(key=lambda payload: str(payload["key"]), until=Until.FAILED_FOR_GOOD),
        proofs=True,
    )
    flow.gate(
        "asked", choices={"yes": "paying", "no": "refused"}, by={"operator"}, not_by=SUBMITTER,
        deadline=timedelta(days=900), on_expiry="refused",
    )  # fmt: skip
    flow.wait("paying", signal="paid", to="resting")
    flow.wait("resting", after=timedelta(days=800), to="kept")
    flow.wait("kept", after=timedelta(days=2000), to="expired")
    return flow


def stranger_flow() -> Flow[Any]:
    """A flow that the program which verifies does not declare."""
    flow: Flow[Any] = Flow("stranger", Lifecycle("alone", {"alone": ["done"]}))

    @flow.stage("alone")
    def work(run: Any) -> None: ...

    return flow


@dataclass(frozen=True)
class Museum:
    """The harness, and the id of each job by the name of where it stands."""

    harness: Harness
    ids: Mapping[str, str]

    def id(self, name: str) -> bytes:
        return from_text(self.ids[name])


def build(url: str = "memory://") -> Museum:
    """Bring every kind of job to where it stands, those first that need time to get there."""
    steps, limited, asking, metered = steps_flow(), limited_flow(), asking_flow(), metered_flow()
    oven = oven_flow()
    harness = Harness(steps, limited, asking, metered, oven, url=url)
    engine = harness.engine
    ids: dict[str, str] = {}

    def add(name: str, flow: Flow[Any], payload: Any = None, **options: Any) -> str:
        ids[name] = engine.submit(flow, payload or {}, **options).id
        return ids[name]

    def ask(name: str) -> str:
        return add(name, asking, {"key": name}, actor="ada", tenant="acme")

    engine.decide(ask("kept"), "yes", actor="op")
    engine.signal(ids["kept"], "paid")
    add("expired", steps, expires=timedelta(minutes=1), after=HOUR)
    add("retried", steps, {"how": "transient"})
    engine.schedules.add("yearly", steps, {}, cron="0 3 1 1 *")
    harness.advance(days=801)
    ids["ticked"] = engine.schedules.ticks("yearly")[0].job_id
    engine.retry(ids["retried"], actor="op")

    for name in ("paying", "resting"):
        engine.decide(ask(name), "yes", actor="op")
    engine.signal(ids["resting"], "paid")
    engine.decide(ask("refused"), "no", actor="op")
    engine.cancel(ask("cancelled"), actor="op")
    engine.signal(ask("asked"), "paid", {"early": True})

    add("done", steps)
    add("spawner", steps, {"how": "spawn"})
    add("held", steps, {"how": "hold"})
    add("failed", steps, {"how": "permanent"})
    add("undoing", steps, {"how": "permanent", "undo": "fails"})
    add("delayed", steps, {"how": "transient"})
    add("later", steps, after=timedelta(days=500))
    add("baking", oven, priority=0)
    add("raw", oven)
    harness.run_until_idle()

    add("suspect", steps)
    for _ in range(2):
        lapse(harness, ids["suspect"])
    add("leased", limited, priority=0)
    add("parked", limited)
    lanes = (*steps.table.lanes, *limited.table.lanes)
    engine.store.register(KEEPER, lease_us=LEASE, lanes=lanes, about="the museum")
    both = Want(tuple(limited.table.lanes), 2)
    engine.store.claim(ClaimRequest(KEEPER, (both,), {("limited", 1, "queued"): "running"}))

    engine.flow_control.pause(key="b", actor="op", note="too many complaints")
    add("paid", metered, {"key": "a"}, priority=0)
    add("unpaid", metered, {"key": "a"})
    add("paused", metered, {"key": "b"})
    engine.store.claim(ClaimRequest(KEEPER, (Want(tuple(metered.table.lanes), 9),)))

    abroad = Engine(engine.store, flows=[stranger_flow()])
    ids["stranger"] = abroad.submit(abroad.inspect.flows[0], {}).id
    return Museum(harness, ids)


def copy(original: Museum, path: Path) -> Museum:
    """Open a copy of a museum that was built in a file and closed."""
    shutil.copy(original.harness.engine.store.path, path)  # type: ignore[attr-defined]
    return reopened(original, f"sqlite:///{path}")


def reopened(original: Museum, url: str) -> Museum:
    """Return the museum that was built and closed, where it or a copy of it is now."""
    clock = ManualClock(original.harness.now)
    return Museum(
        Harness(*original.harness.engine.inspect.flows, url=url, clock=clock), original.ids
    )


class Hall:
    """A museum in PostgreSQL, built once and lent many times: see `Databases.lend`."""

    def __init__(self) -> None:
        self._built: Museum | None = None

    def prepare(self, url: str) -> None:
        self._built = build(url)
        self._built.harness.close()

    def at(self, url: str) -> Museum:
        assert self._built is not None
        return reopened(self._built, url)


def lapse(harness: Harness, job_id: str) -> None:
    """Lease the job to a worker that vanishes, and let another find that out."""
    store = harness.engine.store
    row = store.find_job(from_text(job_id))
    assert row is not None
    ghost = f"ghost-{row.lapses}"
    store.register(ghost, lease_us=SECOND, lanes=(row.lane,), about="vanishes")
    claimed = store.claim(ClaimRequest(ghost, (Want((row.lane,), 500),)))
    assert row.id in {claim.row.id for claim in claimed.claims}
    harness.clock.advance(timedelta(seconds=2))
    store.register("finder", lease_us=SECOND, lanes=(), about="finds")
    store.claim(ClaimRequest("finder", ()))
    store.unregister("finder")
