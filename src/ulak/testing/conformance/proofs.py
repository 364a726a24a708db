"""Proofs: per tenant a chain without a gap, written by the same commit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256

import pytest

from ulak.core.change import LeaseLost, proof_body
from ulak.core.outcome import Raised
from ulak.store.protocol import ProofRow, Store
from ulak.testing.conformance.desk import Desk, Suite, claim_request, patiently
from ulak.testing.conformance.flows import BUSY, LINE, PROVEN, PROVEN_BUSY


class TestProofs(Suite):
    """Each link covers the one before it."""

    @pytest.mark.shows("E-47")
    def test_a_submit_and_every_move_are_chained(self, desk: Desk) -> None:
        (row,) = desk.leased(1, PROVEN)
        change = desk.end(row, flow=PROVEN)
        desk.write(change)
        chain = _chain(desk.store, "")
        events = desk.store.trail(row.id)
        assert [(p.job_id, p.seq) for p in chain] == [(row.id, e.seq) for e in events]
        assert [p.body for p in chain] == [proof_body(e) for e in events]
        assert desk.store.proof_heads() == {"": (2, chain[-1].hash)}

    @pytest.mark.shows("E-47")
    def test_each_tenant_has_a_chain_of_its_own(self, desk: Desk) -> None:
        for tenant in ("a", "b", "a"):
            desk.submit(PROVEN, tenant=tenant)
        assert [len(_chain(desk.store, tenant)) for tenant in ("a", "b", "c")] == [2, 1, 0]
        assert sorted(desk.store.proof_heads()) == ["a", "b"]

    @pytest.mark.shows("E-47")
    def test_ordinary_flows_and_repeats_and_refused_changes_are_not_chained(
        self, desk: Desk
    ) -> None:
        desk.submit(LINE)
        first = desk.new(PROVEN, dedup_key="k")
        desk.store.add([first, desk.new(PROVEN, dedup_key="k"), first])
        desk.store.add([first])
        assert len(_chain(desk.store, "")) == 1
        desk.hire("w")
        row = desk.lease(PROVEN)
        change = desk.end(row, flow=PROVEN)
        assert desk.commit(change._replace(token=row.token + 1)) == LeaseLost()
        assert len(_chain(desk.store, "")) == 1
        desk.write(change)
        desk.write(change)
        assert len(_chain(desk.store, "")) == 2

    @pytest.mark.shows("E-47")
    def test_what_a_claim_writes_of_a_job_with_proofs_is_chained_too(self, desk: Desk) -> None:
        (row,) = desk.leased(1, PROVEN_BUSY, worker="gone")
        assert [p.seq for p in _chain(desk.store, "")] == [1, 2]
        desk.turn(minutes=5)
        desk.hire("w")
        again = desk.lease(PROVEN_BUSY)
        desk.write(desk.end(again, flow=PROVEN_BUSY))
        events = desk.store.trail(row.id)
        assert [e.kind for e in events] == ["submitted", "entered", "lapsed", "moved"]
        chain = _chain(desk.store, "")
        assert [p.body for p in chain] == [proof_body(e) for e in events]
        assert desk.store.proof_heads() == {"": (4, chain[-1].hash)}

    @pytest.mark.shows("E-47")
    def test_a_lapse_and_the_claim_after_it_are_chained_in_their_order(self, desk: Desk) -> None:
        row = desk.submit(PROVEN_BUSY)
        desk.hire("gone")
        # A claimer that does not know of the busy state leaves the job ready.
        want = claim_request("gone", 1, [PROVEN_BUSY])
        assert desk.store.claim(replace(want, entries={})).claims
        desk.turn(minutes=5)
        desk.hire("w")
        desk.lease(PROVEN_BUSY)
        assert desk.kinds(row.id) == ["submitted", "lapsed", "entered"]
        assert [p.seq for p in _chain(desk.store, "")] == [1, 2, 3]

    @pytest.mark.shows("E-47")
    def test_a_claim_chains_each_job_with_proofs_for_its_tenant_and_no_other_job(
        self, desk: Desk
    ) -> None:
        flows = (BUSY, PROVEN_BUSY)
        for n in range(12):
            desk.submit(flows[n % 2], tenant=f"t{n % 3}")
        desk.hire("gone")
        desk.look("gone", 12, flows)
        desk.turn(minutes=5)
        desk.hire("w")
        assert len(desk.look("w", 12, flows).claims) == 12
        proven = [row for row in desk.jobs() if row.flow == PROVEN_BUSY.name]
        for tenant in ("t0", "t1", "t2"):
            own = [(row.id, seq) for row in proven if row.tenant == tenant for seq in (1, 2, 3)]
            assert sorted((p.job_id, p.seq) for p in _chain(desk.store, tenant)) == own

    @pytest.mark.shows("E-47", "E-21")
    def test_a_batch_is_chained_by_job_whatever_its_order(self, desk: Desk) -> None:
        jobs = [desk.new(PROVEN, tenant=f"t{n % 2}") for n in range(20)]
        mixed = jobs[::-2] + jobs[::2]
        assert [a.row.id for a in desk.store.add(mixed)] == [job.row.id for job in mixed]
        desk.hire("w")
        rows = [claim.row for claim in desk.claim("w", 20, PROVEN)]
        ends = [desk.end(row, flow=PROVEN) for row in rows]
        ends[6] = ends[6]._replace(token=99)
        receipts = desk.store.commit(ends[::-2] + ends[::2])
        assert [n for n, r in enumerate(receipts) if r == LeaseLost()] == [13]
        for tenant in ("t0", "t1"):
            own = [row.id for row in rows if row.tenant == tenant]
            moved = [job_id for job_id in own if job_id != rows[6].id]
            assert [p.job_id for p in _chain(desk.store, tenant)] == own + moved

    @pytest.mark.shows("E-47")
    def test_the_chain_has_no_gap_when_eight_threads_write_it(self, desk: Desk) -> None:
        def work(n: int) -> None:
            for _ in range(5):
                new = [desk.new(PROVEN, tenant=f"t{n % 2}") for _ in range(2)]
                patiently(desk.store.add, new)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
        desk.hire("w")
        rows = [claim.row for claim in desk.claim("w", 80, PROVEN)]
        desk.write(*(desk.end(row, flow=PROVEN) for row in rows))
        chains = [_chain(desk.store, tenant) for tenant in ("t0", "t1")]
        assert [len(chain) for chain in chains] == [80, 80]

    @pytest.mark.shows("E-47")
    def test_proofs_outlive_their_jobs(self, desk: Desk) -> None:
        (row,) = desk.leased(1, PROVEN)
        desk.write(desk.end(row, Raised("boom", "", permanent=True), flow=PROVEN))
        before = _chain(desk.store, "")
        desk.turn(days=1)
        assert desk.store.prune(before=desk.now, limit=10) == 1
        assert _chain(desk.store, "") == before
        desk.submit(PROVEN)
        assert len(_chain(desk.store, "")) == len(before) + 1

    def test_proofs_are_read_in_pages(self, desk: Desk) -> None:
        desk.submit_many(5, PROVEN)
        pages = [desk.store.scan_proofs("", after=n, limit=2) for n in (0, 2, 4, 5)]
        assert [[p.proof_id for p in page] for page in pages] == [[1, 2], [3, 4], [5], []]


def _chain(store: Store, tenant: str) -> list[ProofRow]:
    """Read a chain and check every link of it."""
    chain = store.scan_proofs(tenant)
    before = bytes(32)
    for number, proof in enumerate(chain, 1):
        assert (proof.tenant, proof.proof_id) == (tenant, number)
        before = sha256(before + proof.body).digest()
        assert proof.hash == before
    return chain
