"""After the same history every store stands where the reference stands."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.places import place_of
from tests.conformance.stores import STORES, memory
from ulak.core.flow import Flow
from ulak.store import flow_control as control
from ulak.store.flow_control import is_keyed
from ulak.store.protocol import SlotRow
from ulak.testing.conformance import Desk
from ulak.testing.conformance.flows import LIMITED
from ulak.testing.conformance.history import History

OTHERS = {name: factory for name, factory in STORES.items() if factory is not memory}


SEEDS = range(100, 110)
EVERY = [
    pytest.param(name, seed, marks=pytest.mark.sampled if name == "pooled" and seed > 102 else ())
    for name in OTHERS
    for seed in SEEDS
]


@pytest.mark.parametrize(("name", "seed"), EVERY)
def test_the_same_history_leads_to_the_same_rows(
    name: str, seed: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with place_of(name, request, tmp_path) as where:
        _compare(_desk(memory, where), _desk(OTHERS[name], where), seed=seed)


@pytest.mark.shows("E-65", "E-66")
@pytest.mark.parametrize("seed", SEEDS[:3])
@pytest.mark.parametrize("name", ["sqlite", "postgres", "redis"])
def test_the_same_history_of_limited_states_leads_to_the_same_rows(
    name: str, seed: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with place_of(name, request, tmp_path) as where:
        _compare(_desk(memory, where), _desk(OTHERS[name], where), seed=seed, flows=LIMITED)


def _compare(*desks: Desk, seed: int, flows: Sequence[Flow[Any]] | None = None) -> None:
    steers = all(desk.store.features.flow_control for desk in desks)
    reference, other = (History(desk, seed, steers=steers, flows=flows) for desk in desks)
    for _ in range(20):
        reference.go_on(16)
        other.go_on(16)
        assert _picture(other.desk) == _picture(reference.desk)
    for desk in desks:
        desk.store.close()


def _desk(factory: Any, where: str) -> Desk:
    store = factory(where)
    store.open()
    # The same ids in both stores: the jitter of a retry is drawn from them.
    return Desk(store, random_bytes=bytes)


def _picture(desk: Desk) -> list[object]:
    """Everything that is stored, except commit ids, which are drawn at random."""
    store, rows = desk.store, desk.jobs()
    trails = [[e._replace(commit_id=b"") for e in store.trail(row.id)] for row in rows]
    results = [sorted(store.find_results(row.id)) for row in rows]
    return [
        rows,
        trails,
        results,
        [store.pending_requests(row.id) for row in rows],
        _slots(store.slots()),
        sorted(store.scan_keys()),
        sorted(store.workers()),
        sorted(store.counts()),
        store.proof_heads(),
        store.limits(),
        store.rates(),
        _buckets(desk),
        store.pauses(),
        store.weights(),
        store.audit_trail(),
    ]


def _buckets(desk: Desk) -> list[object]:
    """What is in the buckets now; a full one may have a row or none."""
    terms = {rate.name: control.terms_of(rate) for rate in desk.store.rates()}
    found: list[object] = []
    for bucket in desk.store.buckets():
        rate = terms[control.stage_of(bucket.name)]
        level = control.fill(control.Level(bucket.level, bucket.filled_at), rate, desk.now)
        if level != control.full(rate, desk.now) or bucket.ready_at is not None:
            found.append((bucket.name, level, bucket.ready_at))
    return found


def _slots(slots: list[SlotRow]) -> list[SlotRow]:
    """Leave out keys of which nobody holds a slot: open or not, they count for nothing."""
    held = {slot.limit for slot in slots if slot.job_id is not None}
    return [slot for slot in slots if slot.limit in held or not is_keyed(slot.limit)]
