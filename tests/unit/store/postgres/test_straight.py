"""The straight way of a claim leads where the steps lead."""

import random
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from tests.conformance.stores import make_schema
from tests.databases import Databases
from ulak.clock import ManualClock
from ulak.core.flow import Flow
from ulak.store.postgres import PostgresStore, straight
from ulak.store.postgres.pipeline import Pipeline
from ulak.store.protocol import Claimed, ClaimRequest, Want
from ulak.testing.conformance.desk import Desk
from ulak.testing.conformance.flows import BUSY, LINE, NARROW, PROVEN_BUSY, SAGA

PLACES = (0, 1, 2, 3, 9)
FLOWS = (LINE, BUSY, NARROW, PROVEN_BUSY, SAGA)


@pytest.fixture
def stores(databases: Databases) -> Iterator[tuple[PostgresStore, PostgresStore]]:
    with databases.lend(make_schema) as one, databases.lend(make_schema) as other:
        stores = PostgresStore(one, clock=ManualClock()), PostgresStore(other, clock=ManualClock())
        for store in stores:
            store.open()
        yield stores
        for store in stores:
            store.close()


@pytest.mark.shows("E-23")
@pytest.mark.parametrize("seed", range(6))
def test_both_ways_lease_the_same_jobs(
    seed: int, stores: tuple[PostgresStore, PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = []
    for store, goes_straight in zip(stores, (True, False), strict=True):
        if not goes_straight:
            monkeypatch.setattr(straight, "is_open_to", lambda request: False)
        answers.append(claims_of(store, random.Random(seed)))  # noqa: S311 - a test's dice
    assert answers[0] == answers[1]
    assert any(claimed.claims for claimed in answers[0])
    assert any(claimed.next_at for claimed in answers[0])


def claims_of(store: PostgresStore, dice: random.Random) -> list[Claimed]:
    """Submit and claim as the dice fall; jobs with and without a slot, a busy state, a proof."""
    desk = Desk(store, dice.randbytes)
    desk.declare(*FLOWS)
    lanes = [tuple(sorted(flow.table.lanes)) for flow in FLOWS]
    entries = {
        (flow.name, flow.version, state): busy
        for flow in FLOWS
        for state, busy in flow.table.entries.items()
    }
    desk.hire("w")
    answers = []
    for _ in range(24):
        # Most of the time no job has a slot, so that the way is clear.
        flows = FLOWS if dice.random() < 0.2 else [flow for flow in FLOWS if flow is not NARROW]
        for _ in range(dice.randint(0, 6)):
            after = timedelta(seconds=dice.choice([0, 0, 0, 1, 50]))
            desk.submit(dice.choice(flows), priority=dice.randint(0, 3), after=after)
        desk.turn(seconds=1)
        parted = dice.randint(0, len(lanes))
        wants = (
            Want(tuple(lane for some in lanes[:parted] for lane in some), dice.choice(PLACES)),
            Want(tuple(lane for some in lanes[parted:] for lane in some), dice.choice(PLACES)),
        )
        ageing = dice.choice([0, 10_000_000])
        claimed = store.claim(ClaimRequest("w", wants, entries, ageing_us=ageing))
        taken = [sum(c.row.lane in want.lanes for c in claimed.claims) for want in wants]
        if any(want.places <= n for want, n in zip(wants, taken, strict=True)):
            claimed = claimed._replace(next_at=None)  # it need not count lanes without a place
        # Those of one want are in the order of their urgency; of two, nobody says which is first.
        answers.append(claimed._replace(claims=sorted(claimed.claims, key=lambda c: c.row.id)))
    return answers


@pytest.mark.shows("E-85", "E-23")
@pytest.mark.parametrize("flow", [LINE, NARROW])
@pytest.mark.parametrize("goes_straight", [True, False])
def test_an_empty_claim_looks_at_the_lanes_once(
    goes_straight: bool,
    flow: Flow[Any],
    stores: tuple[PostgresStore, PostgresStore],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Broken by a second look, which beside an old snapshot costs as much as the first."""
    store, sent = stores[0], list[str]()
    desk = Desk(store)
    desk.declare(NARROW)
    desk.hire("w")
    if not goes_straight:
        monkeypatch.setattr(straight, "is_open_to", lambda request: False)
    send = Pipeline.send

    def heard(self: Pipeline, statement: str, *facts: Any) -> None:
        sent.append(statement)
        send(self, statement, *facts)

    monkeypatch.setattr(Pipeline, "send", heard)
    assert desk.claim("w", 5, flow) == []
    assert sum("AS share" in statement for statement in sent) == 1
    assert sent.count("COMMIT") == 1
    desk.submit(flow)
    assert len(desk.claim("w", 5, flow)) == 1
