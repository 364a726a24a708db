"""Stages that run in children; a child imports this module by its name."""

import ctypes
import logging
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import ulak
from ulak.engine.engine import Engine
from ulak.errors import NotSupported
from ulak.store.memory import MemoryStore

SHORT = timedelta(seconds=2.5)

engine = Engine(MemoryStore())
LIFE = ulak.Lifecycle("go", {"go": ["done"]})


def tell(path: str, *words: object) -> None:
    with Path(path).open("a") as ledger:
        ledger.write(" ".join(map(str, words)) + "\n")


patient: ulak.Flow[dict[str, Any]] = ulak.Flow("patient", LIFE, retry=0)


@patient.stage("go", isolate="process")
def wait_for_file(run: ulak.Run[dict[str, Any]]) -> int:
    tell(run.payload["ledger"], "start", os.getpid())
    while not Path(run.payload["until"]).exists():
        time.sleep(0.01)
    return os.getpid()


hasty: ulak.Flow[dict[str, Any]] = ulak.Flow("hasty", LIFE, retry=0)


@hasty.stage("go", isolate="process", timeout=SHORT)
def never_ends(run: ulak.Run[dict[str, Any]]) -> None:
    tell(run.payload["ledger"], "start", os.getpid())
    while True:
        time.sleep(0.01)


everything: ulak.Flow[dict[str, Any]] = ulak.Flow(
    "everything", LIFE, retry=ulak.Backoff(delays=[timedelta(0)] * 3)
)
spawned: ulak.Flow[Any] = ulak.Flow("spawned", ulak.Lifecycle("go", {"go": ["done"]}))


@spawned.stage("go")
async def nothing(run: ulak.Run[Any]) -> None: ...


@everything.stage("go", isolate="process")
def use_everything(run: ulak.Run[dict[str, Any]]) -> dict[str, Any]:
    ledger = run.payload["ledger"]

    def effect(key: str) -> str:
        tell(ledger, "effect", key)
        return key.upper()

    first = run.once("pay", effect)
    assert run.once("pay", effect) == first
    if run.attempt == 1:
        tell(ledger, "crash", run.attempt)
        ctypes.string_at(0)
    run.emit("paid", {"n": 1})
    run.progress(0.5, "half")
    ids = run.spawn(spawned, [1, 2])
    try:
        run.resource(dict)
    except NotSupported as refusal:
        said = str(refusal)
    return {"first": first, "ids": ids, "resource": said, "cancelled": run.cancelled}


@engine.job(isolate="process", retry=0)
def square(n: int) -> list[int]:
    return [n * n, os.getpid()]


@engine.job(isolate="process", retry=0)
def fail(text: str) -> None:
    raise ValueError(text)


@engine.job(isolate="process", retry=0)
def leave(code: int) -> None:
    os._exit(code)


lost: ulak.Flow[Any] = ulak.Flow("lost", LIFE)


@lost.stage("go", isolate="process")
def overwritten(run: ulak.Run[Any]) -> None: ...


globals()["overwritten"] = None  # as a later name of the same module would

for flow in (lost, patient, hasty, everything, spawned):
    engine.add(flow)


odd: ulak.Flow[Any] = ulak.Flow("odd", LIFE, retry=0)


@odd.stage("go", isolate="process")
def holds_with_a_number(run: ulak.Run[Any]) -> Any:
    return ulak.Hold(404, "not found")  # type: ignore[arg-type]


polite: ulak.Flow[str] = ulak.Flow("polite", LIFE, retry=0)
mute: ulak.Flow[str] = ulak.Flow("mute", LIFE, retry=0)


@polite.stage("go", isolate="process")
def stops_at_a_checkpoint(run: ulak.Run[str]) -> None:
    tell(run.payload, "polite")
    while True:
        time.sleep(0.01)
        run.checkpoint()


@mute.stage("go", isolate="process")
def returns_when_told(run: ulak.Run[str]) -> str:
    tell(run.payload, "mute")
    while not run.cancelled:
        time.sleep(0.01)
    return "25 of 100"


chatty: ulak.Flow[Any] = ulak.Flow("chatty", LIFE, retry=0)


@chatty.stage("go", isolate="process")
def says_something(run: ulak.Run[Any]) -> None:
    log = logging.getLogger("app")
    log.info("said in %s", "a stage", extra={"thing": object()})
    run.log.warning("said in a stage", extra={"state": "mine"})
    try:
        _ = 1 / 0
    except ZeroDivisionError:
        log.exception("said in a stage")


knowing: ulak.Flow[Any] = ulak.Flow("knowing", ulak.Lifecycle("ask", {"ask": ["done"]}))


@knowing.stage("ask", isolate="process")
def asks_where_it_is(run: ulak.Run[Any]) -> list[str]:
    return [run.now.isoformat(), run.flow, run.state]


noting: ulak.Flow[Any] = ulak.Flow("noting", ulak.Lifecycle("ask", {"ask": ["done"]}))


@noting.stage("ask", isolate="process")
def notes_something(run: ulak.Run[Any]) -> None:
    run.note("isolated.noted", "from a child", n=1)
