"""The flows that the simulator runs: between them, every rule that a store must survive.

Their functions are never called: the simulator draws how each run ends.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import Any

from ulak.clock import Instant
from ulak.core.flow import Flow
from ulak.core.intake import Submission, begin
from ulak.core.job import JobRow, NewJob, Payload
from ulak.core.lifecycle import Lifecycle
from ulak.core.policy import SUBMITTER, Backoff, Dedup, Limit, Rate, Until
from ulak.ids import time_ordered_id

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


def flows() -> tuple[Flow[Any], ...]:
    """Return fresh flows, checked and resolved."""
    slip: Flow[Any] = Flow.steps("slip", ("print", _work), retry=Backoff(1))
    made = (
        _plain(), _render(), _review(), _payment(), _press(), _calls(), _mail(), _oven(),
        _parcel(Follow(slip)), slip,
    )  # fmt: skip
    for flow in made:
        assert flow.table.lanes
    return made


def _work(run: object) -> None:
    raise AssertionError("a simulated stage has no function")


def _plain() -> Flow[Any]:
    """Three steps and a dedup key until the job has ended; it may spawn jobs of its own kind."""
    named = [(state, _work) for state in ("fetch", "check", "send")]
    return Flow.steps("plain", *named, retry=Backoff(2), dedup=Dedup())


def _render() -> Flow[Any]:
    """A busy state with slots, retries through failed, lapses that are failures, a final wait."""
    flow: Flow[Any] = Flow(
        "render",
        Lifecycle(
            "queued",
            {"queued": ["running"], "running": ["succeeded"], "succeeded": ["expired"]},
            done="succeeded",
        ),
        retry=Backoff(delays=[MINUTE, MINUTE]), retry_via="failed", on_lapse="worker-lost",
        max_lapses=4, dedup=Dedup(until=Until.FAILED_FOR_GOOD),
    )  # fmt: skip
    flow.stage("queued", during="running", limit=Limit(2))(_work)
    flow.wait("succeeded", after=6 * HOUR, to="expired")
    return flow


def _review() -> Flow[Any]:
    """A gate with a deadline, undos without a state of their own, an expiry, proofs."""
    flow: Flow[Any] = Flow(
        "review",
        Lifecycle(
            "draft",
            {
                "draft": ["layout"], "layout": ["in_review"],
                "in_review": ["approved", "refused", "draft"], "approved": ["published"],
            },
            done=["published", "refused"], release_to="draft",
        ),
        retry=Backoff(1), expires=timedelta(days=1), proofs=True,
        undo_retry=Backoff(delays=[MINUTE]),
    )  # fmt: skip
    flow.stage("draft")(_work).undo(_work)
    flow.stage("layout")(_work).undo(_work)
    flow.stage("approved", limit=Limit(1))(_work).undo(_work)
    flow.gate(
        "in_review",
        choices={"approve": "approved", "refuse": "refused", "redo": "draft", "kill": "failed"},
        refusals={"refuse", "redo"}, not_by=SUBMITTER, deadline=3 * HOUR, on_expiry="refused",
    )  # fmt: skip
    return flow


def _payment() -> Flow[Any]:
    """A signal with a deadline, undos in a state of their own and with an end of their own."""
    flow: Flow[Any] = Flow(
        "payment",
        Lifecycle(
            "reserve",
            {
                "reserve": ["pending"], "pending": ["paid"], "paid": ["shipping", "failed", "held"],
                "shipping": ["done"],
            },
            undoing="rolling_back", undone="rolled_back",
        ),
        retry=Backoff(1), undo_retry=Backoff(1), max_lapses=3, dedup=Dedup(),
        retries_permanent=True,
    )  # fmt: skip
    flow.stage("reserve")(_work).undo(_work)
    flow.wait("pending", signal="paid", to="paid", deadline=2 * HOUR, on_expiry="failed")
    flow.stage("paid", to="shipping", limit=Limit(1))(_work).undo(_work)
    flow.stage("shipping", limit=Limit(2))(_work)
    return flow


def _press() -> Flow[Any]:
    """Two limited stages in a row, each with a busy state: a kept lease changes its slot."""
    flow: Flow[Any] = Flow(
        "press",
        Lifecycle(
            "plates",
            {
                "plates": ["etching"], "etching": ["sheets", "plates"], "sheets": ["printing"],
                "printing": ["drying"], "drying": ["done"],
            },
            failed="broken", held="stopped",
        ),
        retry=Backoff(2), expires=timedelta(hours=12), proofs=True,
        dedup=Dedup(until=["broken", "expired", "cancelled"]),
    )  # fmt: skip
    flow.stage("plates", during="etching", to="sheets", limit=Limit(2))(_work)
    flow.stage("sheets", during="printing", limit=Limit(1))(_work).undo(_work)
    flow.wait("drying", after=HOUR, to="done")
    return flow


def _calls() -> Flow[Any]:
    """A limit and a rate for each key, with a cost, after a stage that keeps its lease."""
    flow: Flow[Any] = Flow(
        "calls",
        Lifecycle("prepare", {"prepare": ["call"], "call": ["calling"], "calling": ["done"]}),
        retry=Backoff(2),
    )
    flow.stage("prepare", limit=Limit(2, key=_key))(_work)
    flow.stage(
        "call", during="calling", limit=Limit(1, key=_key),
        rate=Rate(1, per=timedelta(seconds=10), burst=5, key=_key, cost=_cost),
    )(_work)  # fmt: skip
    return flow


def _mail() -> Flow[Any]:
    """A fair flow with undos and a rate."""
    flow: Flow[Any] = Flow(
        "mail", Lifecycle("write", {"write": ["send"], "send": ["done"]}), fair=True,
        retry=Backoff(1), undo_retry=Backoff(1),
    )  # fmt: skip
    flow.stage("write")(_work).undo(_work)
    flow.stage("send", rate=Rate(2, per=timedelta(seconds=30)))(_work)
    return flow


def _oven() -> Flow[Any]:
    """Busy states with slots of their own: one for each key, undone in the state, and one that is
    entered after something was called before it."""
    flow: Flow[Any] = Flow(
        "oven",
        Lifecycle(
            "raw",
            {"raw": ["baking"], "baking": ["cold"], "cold": ["cooling"], "cooling": ["done"]},
        ),
        retry=Backoff(2), undo_retry=Backoff(1), expires=timedelta(hours=12), max_lapses=4,
    )  # fmt: skip
    flow.stage("raw", during="baking", limit=Limit(1, key=_key, of="state"))(_work).undo(_work)
    cold = flow.stage("cold", during="cooling", limit=Limit(2, of="state"))(_work)
    cold.before(_work)
    return flow


def _parcel(follow: Follow) -> Flow[Any]:
    """Jobs that a job follows: each end in each round, two final states in a row, undos first."""
    flow: Flow[Any] = Flow(
        "parcel",
        Lifecycle(
            "packed",
            {"packed": ["moving"], "moving": ["delivered", "failed"], "delivered": ["archived"]},
            done=["delivered", "archived"],
        ),
        retry=Backoff(1), retry_via="failed", undo_retry=Backoff(1), max_lapses=3,
        retries_permanent=True, expires=timedelta(hours=2), on_end=follow,
    )  # fmt: skip
    flow.stage("packed", during="moving", to="delivered")(_work).undo(_work)
    flow.wait("delivered", after=HOUR, to="archived")
    return flow


@dataclass(frozen=True, slots=True)
class Follow:
    """Makes the job that follows an end. Its payload names that end, and its id the commit, so
    that each attempt to write it makes another job."""

    target: Flow[Any]

    def complaint(self) -> str | None:
        return None

    def make(self, ended: JobRow, now: Instant, *, commit_id: bytes) -> NewJob | None:
        payload = json.dumps([ended.id.hex(), ended.round, ended.state]).encode()
        return begin(
            self.target, Payload(payload, 1), Submission(tenant=ended.tenant), now,
            job_id=time_ordered_id(now, lambda n: sha256(commit_id).digest()[:n]),
            commit_id=commit_id,
        )  # fmt: skip


def _key(payload: Any) -> str:
    key: str = payload["key"]
    return key


def _cost(payload: Any) -> int:
    cost: int = payload["cost"]
    return cost
