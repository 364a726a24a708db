"""Moves that must be provable are chained: nothing can be taken out or changed unseen."""

import threading
from hashlib import sha256
from typing import Any

import pytest

from ulak import Flow, Lifecycle
from ulak.core.change import proof_body
from ulak.engine.verify import PROOF_MISSING
from ulak.store.memory import MemoryStore
from ulak.store.protocol import ClaimRequest, Want
from ulak.testing import Harness


def contract(*, proofs: bool = True) -> Flow[Any]:
    """A flow without stages, moved through gates only."""
    moves = {"drafted": ["signed", "void"], "signed": ["closed"]}
    flow: Flow[Any] = Flow(
        "contract" if proofs else "note",
        Lifecycle("drafted", moves, done=["closed", "void"]),
        proofs=proofs,
    )
    flow.gate("drafted", choices={"sign": "signed", "void": "void"})
    flow.gate("signed", choices={"close": "closed"})
    return flow


@pytest.mark.shows("E-47")
def test_every_move_is_one_link_of_its_tenants_chain(jobs_url: str) -> None:
    with Harness(contract(), url=jobs_url) as harness:
        engine, flow = harness.engine, harness.engine.inspect.flows[0]
        ours = harness.submit(flow, {}, tenant="ours")
        theirs = harness.submit(flow, {}, tenant="theirs")
        engine.decide(ours.id, "sign", actor="ada")
        engine.decide(theirs.id, "void", actor="eve")
        engine.decide(ours.id, "close", actor="ada")
        for tenant, job, moves in (("ours", ours, 3), ("theirs", theirs, 2)):
            chain = engine.store.scan_proofs(tenant)
            assert [proof.proof_id for proof in chain] == list(range(1, moves + 1))
            link = bytes(32)
            events = engine.store.trail(bytes.fromhex(job.id.replace("-", "")))
            for proof, event in zip(chain, events, strict=True):
                link = sha256(link + proof.body).digest()
                assert (proof.seq, proof.body, proof.hash) == (event.seq, proof_body(event), link)
            assert engine.store.proof_heads()[tenant] == (moves, link)
        assert harness.verify() == []


@pytest.mark.shows("E-47")
def test_ordinary_trails_have_no_proofs(jobs_url: str) -> None:
    with Harness(contract(proofs=False), url=jobs_url) as harness:
        job = harness.submit(harness.engine.inspect.flows[0], {}, tenant="ours")
        harness.engine.decide(job.id, "sign", actor="ada")
        assert harness.engine.store.scan_proofs("ours") == []
        assert "ours" not in harness.engine.store.proof_heads()


@pytest.mark.shows("E-47")
def test_numbers_stay_gapless_when_many_act_at_once(jobs_url: str) -> None:
    with Harness(contract(), url=jobs_url) as harness:
        engine, flow = harness.engine, harness.engine.inspect.flows[0]
        jobs = [harness.submit(flow, {"n": n}, tenant="ours") for n in range(8)]
        start = threading.Barrier(len(jobs))

        def sign(job_id: str) -> None:
            start.wait()
            engine.decide(job_id, "sign", actor="ada")
            engine.decide(job_id, "close", actor="ada")

        threads = [threading.Thread(target=sign, args=(job.id,)) for job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        numbers = [proof.proof_id for proof in engine.store.scan_proofs("ours")]
        assert numbers == list(range(1, 3 * len(jobs) + 1))
        assert harness.verify() == []


@pytest.mark.shows("E-47")
def test_a_refused_move_leaves_no_link(jobs_url: str) -> None:
    with Harness(contract(), url=jobs_url) as harness:
        engine = harness.engine
        job = harness.submit(engine.inspect.flows[0], {}, tenant="ours")
        before = engine.store.proof_heads()["ours"]
        with pytest.raises(Exception, match="not a choice"):
            engine.decide(job.id, "burn", actor="ada")
        assert engine.store.proof_heads()["ours"] == before


@pytest.mark.shows("E-47")
def test_a_worker_s_moves_are_proved_as_well(jobs_url: str) -> None:
    flow: Flow[Any] = Flow(
        "worked", Lifecycle("a", {"a": ["b"], "b": ["c"], "c": ["done"]}), proofs=True
    )

    @flow.stage("a")
    def a(run: Any) -> None:
        run.once("look", lambda key: 1)

    @flow.stage("b", during="c")
    def b(run: Any) -> None: ...

    with Harness(flow, url=jobs_url) as harness:
        job = harness.run(flow, {}, tenant="ours")
        events = harness.trail(job.id)
        proved = [proof.seq for proof in harness.engine.store.scan_proofs("ours")]
        assert [event.to_state for event in events] == ["a", "a", "b", "c", "done"]
        assert proved == [event.seq for event in events]


def press() -> Flow[Any]:
    """A flow whose claim enters a busy state."""
    flow: Flow[Any] = Flow(
        "press", Lifecycle("queued", {"queued": ["running"], "running": ["done"]}), proofs=True
    )

    @flow.stage("queued", during="running", to="done")
    def run(run: Any) -> None: ...

    return flow


@pytest.mark.shows("E-47")
def test_what_a_claim_and_a_lapse_write_is_proved_as_well(jobs_url: str) -> None:
    with Harness(press(), url=jobs_url) as harness:
        engine, flow = harness.engine, harness.engine.inspect.flows[0]
        job = harness.submit(flow, {}, tenant="ours")
        engine.store.register("gone", lease_us=1_000_000, lanes=[], about="")
        lane = engine.store.scan_jobs()[0].lane
        entries = {(flow.name, flow.version, "queued"): "running"}
        engine.store.claim(ClaimRequest("gone", (Want((lane,), 1),), entries))
        harness.advance(seconds=5)
        harness.run_until_idle()
        events = harness.trail(job.id)
        assert [e.kind for e in events] == ["submitted", "entered", "lapsed", "moved"]
        proved = [proof.seq for proof in engine.store.scan_proofs("ours")]
        assert proved == [event.seq for event in events]
        assert harness.verify() == []


@pytest.mark.shows("E-47")
def test_an_event_of_a_claim_without_its_proof_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        MemoryStore, "_append_own", lambda self, tenant, event: self._append(tenant, [event], [])
    )
    with Harness(press()) as harness:
        job = harness.run(harness.engine.inspect.flows[0], {}, tenant="ours")
        (found,) = harness.verify()
        assert (found.kind, found.job_id) == (PROOF_MISSING, job.id)
        assert found.sentence == "event 2 has no proof"
