"""A flow whose jobs move whenever somebody says so, as often as one likes."""

import ulak
from ulak import Flow, Lifecycle


def to_and_fro() -> Flow:
    flow = Flow("to-and-fro", Lifecycle("here", {"here": ["there", "done"], "there": ["here"]}))
    flow.gate("here", choices={"go": "there", "end": "done"})
    flow.gate("there", choices={"go": "here"})
    return flow


FLOW = to_and_fro()


def new_job(engine: ulak.Engine, **options: str) -> str:
    return engine.submit(FLOW, {}, **options).id


def move(engine: ulak.Engine, job: str, times: int = 1, note: str = "") -> None:
    for _ in range(times):
        engine.decide(job, "go", actor="ada", note=note)


def end(engine: ulak.Engine, job: str) -> None:
    if engine.get(job).state == "there":
        move(engine, job)
    engine.decide(job, "end", actor="ada")
