"""What the short ways of a claim must not get wrong."""

import pytest

from ulak.core.job import Payload
from ulak.core.policy import LimitTerms
from ulak.store.protocol import ClaimRequest, Want
from ulak.store.sqlite import SqliteStore, claims, leases
from ulak.testing.conformance import Desk
from ulak.testing.conformance.flows import LINE, TIGHT


def test_two_wants_of_one_lane_take_each_job_once(store: SqliteStore) -> None:
    desk = Desk(store)
    jobs = desk.submit_many(5)
    desk.hire("w")
    lanes = tuple(LINE.table.lanes)
    claimed = store.claim(ClaimRequest("w", (Want(lanes, 2), Want(lanes, 9)))).claims
    assert [claim.row.id for claim in claimed] == [job.id for job in jobs]
    assert {claim.row.token for claim in claimed} == {1}


@pytest.mark.shows("E-23")
def test_jobs_of_several_lanes_come_by_how_long_they_are_due(store: SqliteStore) -> None:
    desk = Desk(store)
    jobs = []
    for n in range(6):
        jobs.append(desk.submit(priority=n % 2))
        desk.turn(seconds=1)
    desk.hire("w")
    claimed = [claim.row.id for claim in desk.claim("w", 6)]
    assert claimed == [job.id for job in sorted(jobs, key=lambda job: (job.priority, job.id))]


def test_a_payload_of_any_length_comes_back_as_it_was(store: SqliteStore) -> None:
    desk = Desk(store)
    payloads = [b"", bytes(range(256)), bytes(leases.LONGEST_PACKED), b"\xff" * 100_000]
    store.add([desk.new(payload=data) for data in payloads])
    desk.hire("w")
    assert [claim.payload for claim in desk.claim("w", 9)] == [Payload(p, 1) for p in payloads]


def test_a_crowd_before_one_slot_is_parked_in_parts(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "MOST_PARKED", 3)
    desk = Desk(store)
    store.declare({"tight/only": LimitTerms(1)})
    desk.submit_many(8, TIGHT)
    desk.hire("w")
    first = desk.look("w", 8, (TIGHT,))
    assert len(first.claims) == 1
    assert first.next_at == desk.now, "there is more to be looked at, at once"
    assert sum(job.parked_on is not None for job in desk.jobs()) == 3
    while desk.look("w", 8, (TIGHT,)).next_at is not None:
        pass
    assert sum(job.parked_on is not None for job in desk.jobs()) == 7
