"""What the stories of `on_end` share: orders that end, and the notices that follow."""

from datetime import timedelta
from typing import Any

import ulak
from ulak import Engine, Flow, Goto, Job, Lifecycle, OnEnd
from ulak.store.protocol import JobFilter
from ulak.testing import Harness

HOUR = timedelta(hours=1)


def notice(**options: Any) -> Flow[Any]:
    """What follows: a job that says how another ended."""
    flow: Flow[Any] = Flow("notice", Lifecycle("new", {"new": ["told"]}, done="told"), **options)

    @flow.stage("new", to="told")
    def tell(run: Any) -> Any:
        return run.payload

    return flow


def facts(job: Job, code: str | None) -> Any:
    return {"job": job.id, "state": job.state, "round": job.round, "code": code}


def order(follows: Flow[Any], payload: Any = facts, **options: Any) -> Flow[Any]:
    """What ends: an order that is paid, refused, cancelled, late or broken."""
    flow: Flow[Any] = Flow(
        "order",
        Lifecycle(
            "new",
            {"new": ["asked"], "asked": ["paid", "refused"], "paid": ["archived"]},
            done=["paid", "refused", "archived"],
        ),
        retry=0,
        operator_retry=ulak.Backoff(3),
        on_end=OnEnd(follows, payload=payload),
        **options,
    )

    @flow.stage("new")
    def ask(run: Any) -> Any:
        if run.payload == "broken":
            raise RuntimeError("out of paper")
        return Goto("asked")

    flow.gate(
        "asked",
        choices={"pay": "paid", "refuse": "refused"},
        deadline=HOUR,
        on_expiry="refused",
    )
    flow.wait("paid", after=timedelta(days=1), to="archived")
    return flow


def notices(engine: Engine) -> list[Any]:
    """What was submitted when jobs ended, in the order of their ends."""
    found = engine.jobs(JobFilter(flow="notice"), limit=100)
    return [engine.inspect.payload(job.id) for job in reversed(found)]


def submit(harness: Harness, payload: Any = None, **options: Any) -> str:
    made = harness.submit(harness.engine.inspect.flows[0], payload, **options)
    harness.run_until_idle()
    return made.id
