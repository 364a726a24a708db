"""A program changes its states, and an operator says where the jobs of the old ones go."""

import json
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from tests.scenario.doubles import Double
from ulak import Backoff, Dedup, Flow, Goto, Hold, Lifecycle, Limit, Until
from ulak.engine import migration
from ulak.engine.engine import Engine
from ulak.engine.migration import Migrated, StateMap, migrate
from ulak.errors import BadInput
from ulak.ids import from_text
from ulak.store.protocol import ClaimRequest, Want
from ulak.testing import Harness, faults

HOUR = timedelta(hours=1)
STATES = {
    "new": "new",
    "asked": "checked",
    "waiting": "awaiting",
    "sent": "posted",
    "held": "held",
    "failed": "failed",
}


def parcel(version: int, asked: str, waiting: str, sent: str) -> Flow[Any]:
    """A stage, a gate, a wait and a stage that does what its payload says."""
    moves = {"new": [asked], asked: [waiting], waiting: [sent, "late"], sent: ["done"]}
    flow: Flow[Any] = Flow(
        "parcel",
        Lifecycle("new", moves, done=["done", "late"]),
        version=version,
        retry=Backoff(2, delays=[timedelta(minutes=10)] * 2),
        dedup=Dedup(until=Until.FINISHED),
    )

    @flow.stage("new")
    def begin(run: Any) -> str:
        return "begun"

    flow.gate(asked, choices={"go": waiting})
    flow.wait(waiting, signal=f"paid-{version}", to=sent, deadline=version * HOUR, on_expiry="late")

    @flow.stage(sent)
    def send(run: Any) -> Any:
        assert run.result(begin) == "begun"
        once = run.once("stamp", lambda key: f"version {version}")
        if version == 1 and run.payload == "hold":
            return Hold("odd", "look at it")
        if version == 1:
            raise RuntimeError(run.payload)
        return once

    return flow


OLD = ("asked", "waiting", "sent")
NEW = ("checked", "awaiting", "posted")


def deploy(harness: Harness, *flows: Flow[Any]) -> Harness:
    """Return the next program, on the store and the clock of the one before."""
    later = Harness(*flows, clock=harness.clock)
    later.engine = Engine(harness.engine.store, flows=flows)
    return later


def move(harness: Harness, states: dict[str, str], **more: Any) -> Migrated:
    """Migrate from version 1 as ada."""
    options = {k: more.pop(k) for k in ("dry_run", "note") if k in more}
    flow = harness.engine.inspect.flows[0].name
    wanted = StateMap(flow, from_version=1, states=states, **more)
    return migrate(harness.engine.kernel, wanted, actor="ada", **options)


def row(harness: Harness, job_id: str) -> Any:
    found = harness.engine.store.find_job(from_text(job_id))
    assert found is not None
    return found


def in_every_state(harness: Harness, flow: Flow[Any]) -> dict[str, str]:
    """Leave a job in each state of version 1; return their ids."""
    engine, ids = harness.engine, {}
    for payload in ("failed", "sent", "held", "waiting", "asked"):
        job_id = harness.run(flow, "hold" if payload == "held" else payload).id
        if payload != "asked":
            engine.decide(job_id, "go", actor="op")
        if payload not in ("asked", "waiting"):
            engine.signal(job_id, "paid-1")
            harness.run_until_idle()
        if payload == "failed":
            harness.advance(hours=0.5)
        ids[payload] = job_id
    ids["new"] = harness.submit(flow, "x", after=2 * HOUR, dedup_key="the-key").id
    assert {state: harness.job(job_id).state for state, job_id in ids.items()} == {
        state: state for state in STATES
    }
    return ids


@pytest.mark.shows("E-50")
def test_jobs_of_every_state_go_on_under_the_new_version(jobs_url: str) -> None:
    old = parcel(1, *OLD)
    with Harness(old, url=jobs_url) as before:
        ids = in_every_state(before, old)
        rows = {state: row(before, job_id) for state, job_id in ids.items()}
        with deploy(before, parcel(2, *NEW)) as harness:
            dry = move(harness, STATES, dry_run=True)
            assert {row(harness, job_id).flow_version for job_id in ids.values()} == {1}
            done = move(harness, STATES, note="release 2")
            assert dry.moved == done.moved == dict.fromkeys(STATES.items(), 1)
            assert (done.leased, done.left_count, done.standing) == (0, 0, {})
            for state, job_id in ids.items():
                was, now = rows[state], row(harness, job_id)
                assert (now.flow_version, now.state, now.role) == (2, STATES[state], was.role)
                kept = (
                    "attempt",
                    "not_before",
                    "code",
                    "round",
                    "dedup_key",
                    "expires_at",
                    "token",
                )
                assert [getattr(now, name) for name in kept] == [
                    getattr(was, name) for name in kept
                ]
                last = harness.trail(job_id)[-1]
                assert (last.kind, last.actor, last.message) == ("migrated", "ada", "release 2")
                assert (last.from_state, last.to_state) == (state, STATES[state])
                assert last.details == {"from_version": 1, "to_version": 2}
            assert row(harness, ids["waiting"]).deadline_at == rows["waiting"].deadline_at
            assert row(harness, ids["waiting"]).awaits == "paid-2"
            assert row(harness, ids["sent"]).attempt == 1
            assert (rows["held"].resume, row(harness, ids["held"]).resume) == ("sent", "posted")
            assert harness.verify() == []
            assert not harness.submit(
                harness.engine.inspect.flows[0], "y", dedup_key="the-key"
            ).created
            finish(harness, ids)


def finish(harness: Harness, ids: dict[str, str]) -> None:
    """Let every job end by the ways of version 2."""
    engine = harness.engine
    harness.advance(hours=0.3)
    assert harness.job(ids["sent"]).state == "done"
    assert harness.result(ids["sent"]) == "version 1", "what it did once is not done again"
    engine.release(ids["held"], actor="op")
    engine.retry(ids["failed"], actor="op")
    engine.decide(ids["asked"], "go", actor="op")
    engine.signal(ids["asked"], "paid-2")
    harness.advance(hours=3)
    engine.decide(ids["new"], "go", actor="op")
    engine.signal(ids["new"], "paid-2")
    harness.run_until_idle()
    ends = {state: harness.job(job_id).state for state, job_id in ids.items()}
    assert ends == {**dict.fromkeys(STATES, "done"), "waiting": "late"}
    assert harness.verify() == []
    again = move(harness, STATES)
    assert (again.moved, again.standing) == ({}, {}), "a second run finds nothing to do"


@pytest.mark.shows("E-50")
def test_a_map_that_cannot_be_followed_changes_nothing(jobs_url: str) -> None:
    old = parcel(1, *OLD)
    with Harness(old, url=jobs_url) as before:
        jobs = [before.run(old, "x").id, before.submit(old, "y").id]
        with deploy(before, parcel(2, *NEW)) as harness:
            before_rows = [row(harness, job_id) for job_id in jobs]
            for states, more, said in (
                ({"asked": "elsewhere"}, {}, 'has no state "elsewhere"'),
                ({"asked": "new"}, {}, "decide or release"),
                ({"asked": "done"}, {}, "decide or release"),
                ({"new": "new"}, {}, 'stand in "asked", which the map leaves out'),
                ({"asked": "checked"}, {"to_version": 3}, "in version 2, not in 3"),
            ):
                with pytest.raises(BadInput, match=said):
                    move(harness, states, **more)
            with pytest.raises(BadInput, match='no flow "parcels"; this program declares "parcel"'):
                migrate(harness.engine.kernel, StateMap("parcels", from_version=1), actor="ada")
            with pytest.raises(BadInput, match="who acts"):
                migrate(harness.engine.kernel, StateMap("parcel", from_version=1), actor="")
            assert [row(harness, job_id) for job_id in jobs] == before_rows


@pytest.mark.shows("E-50", "E-18")
def test_a_leased_job_is_left_alone_and_counted(jobs_url: str) -> None:
    old = parcel(1, *OLD)
    with Harness(old, url=jobs_url) as before:
        jobs = sorted(before.submit(old, n).id for n in range(3))
        store = before.engine.store
        store.register("w", lease_us=10**9, lanes=(), about="")
        request = ClaimRequest("w", (Want(tuple(old.table.lanes), 1),))
        assert [claim.row.id for claim in store.claim(request).claims] == [from_text(jobs[0])]
        with deploy(before, parcel(2, *NEW)) as harness:
            double = Double(store)
            # Between the look and the commit another is leased too.
            double.before["commit"] = lambda changes: store.claim(request)
            harness.engine.kernel.store = double
            done = move(harness, {"new": "new"})
            assert done.moved == {("new", "new"): 1}
            assert (done.leased, done.left_count, done.standing) == (2, 0, {"new": 2})
            assert [row(before, job_id).flow_version for job_id in jobs] == [1, 1, 2]
            trails = [[event.kind for event in before.trail(job_id)] for job_id in jobs]
            assert [kinds.count("migrated") for kinds in trails] == [0, 0, 1]


@pytest.mark.shows("E-50")
def test_a_state_that_this_version_has_lost_is_mapped_within_it(jobs_url: str) -> None:
    old = parcel(1, *OLD)
    with Harness(old, url=jobs_url) as before:
        job_id, other = before.run(old, "x").id, before.submit(old, "y", after=HOUR).id
        with deploy(before, parcel(1, *NEW)) as harness:
            with pytest.raises(BadInput, match='has "new" itself'):
                move(harness, {"new": "posted", "asked": "checked"})
            assert move(harness, {"asked": "checked"}).moved == {("asked", "checked"): 1}
            assert move(harness, {"asked": "checked"}).moved == {}
            assert row(harness, other).state == "new"
            harness.engine.decide(job_id, "go", actor="op")
            assert harness.job(job_id).state == "awaiting"
            assert harness.verify() == []


def booking(version: int, first: str) -> Flow[Any]:
    """A first stage with an undo, a wait, and a stage that fails for good."""
    moves = {first: ["rest"], "rest": ["pay"], "pay": ["done"]}
    flow: Flow[Any] = Flow(
        "booking",
        Lifecycle(first, moves),
        version=version,
        retry=0,
        undo_retry=Backoff(5, delays=[timedelta(minutes=1)] * 5),
    )

    def book(run: Any) -> Any:
        if run.payload == "fails":
            raise RuntimeError("full")
        return Goto("rest", after=HOUR)

    def unbook(run: Any) -> None:
        if version == 1:
            raise RuntimeError("not yet")

    def pay(run: Any) -> None:
        raise RuntimeError("no money")

    flow.stage(first)(book).undo(unbook)
    flow.wait("rest", after=HOUR, to="pay")
    flow.stage("pay")(pay)
    return flow


@pytest.mark.shows("E-50", "E-42")
def test_owed_undos_go_along_or_keep_their_job(jobs_url: str) -> None:
    old = booking(1, "book")
    with Harness(old, url=jobs_url) as before:
        resting, undoing = before.run(old, "x").id, before.run(old, "fails").id
        assert [before.job(i).role for i in (resting, undoing)] == ["waiting", "undoing"]
        with deploy(before, booking(2, "reserve")) as harness:
            states = {"rest": "rest", "book": "reserve"}
            one = move(harness, {"rest": "rest", "book": "pay"})
            assert (one.moved, one.left_count) == ({}, 2)
            assert {job.id for job in one.left} == {resting, undoing}
            assert all('owes or will come back to "pay"' in job.detail for job in one.left)
            done = move(harness, states)
            assert done.moved == {("rest", "rest"): 1, ("book", "reserve"): 1}
            assert row(harness, resting).started == row(harness, undoing).started == "reserve"
            harness.advance(hours=2)
            for job_id in (resting, undoing):
                assert harness.job(job_id).state == "failed"
                undone = [e.message for e in harness.trail(job_id) if e.kind == "undone"]
                assert undone == ["reserve"]
            assert harness.verify() == []


@pytest.mark.shows("E-50", "E-29")
def test_parked_jobs_are_unparked_and_get_the_keys_of_the_new_version(jobs_url: str) -> None:
    def limited(version: int, state: str, limit: Limit) -> Flow[Any]:
        flow: Flow[Any] = Flow("calls", Lifecycle(state, {state: ["done"]}), version=version)
        flow.stage(state, limit=limit)(lambda run: None)
        return flow

    old = limited(1, "call", Limit(1))
    new = limited(2, "dial", Limit(1, key=lambda payload: payload["to"]))
    with Harness(old, url=jobs_url) as before:
        jobs = [before.submit(old, {"to": f"p{n % 2}"}).id for n in range(4)]
        before.engine.flow_control.set_limit("calls/call", 0, actor="op")
        before.run_until_idle()
        assert {row(before, job_id).parked_on for job_id in jobs} == {"calls/call"}
        odd = before.submit(old, {"from": "nobody"}).id
        with deploy(before, new) as harness:
            done = move(harness, {"call": "dial"})
            assert (done.moved, [job.id for job in done.left]) == ({("call", "dial"): 4}, [odd])
            assert "makes no key of its payload (KeyError)" in done.left[0].detail
            assert {row(harness, job_id).parked_on for job_id in jobs} == {None}
            assert {row(harness, job_id).slot for job_id in jobs} == {
                "calls/dial/p0",
                "calls/dial/p1",
            }
            assert json.loads(row(harness, jobs[0]).keys) == {"dial": {"slot": "p0"}}
            harness.run_until_idle()
            assert {harness.job(job_id).state for job_id in jobs} == {"done"}
            assert harness.verify() == []


# --- killed in the middle -----------------------------------------------------------

JOBS = 50


def migrate_in_pages(url: str) -> None:
    """What the child does until it is killed."""
    migration.A_PAGE = 20  # type: ignore[misc]
    with Harness(parcel(2, *NEW), url=url) as harness:
        move(harness, {"new": "new"})


@pytest.mark.shows("E-50")
@pytest.mark.parametrize(("point", "moved"), [("commit.inside", 20), ("commit.after", 40)])
def test_a_migration_that_was_killed_is_finished_by_another(
    shared_url: str, point: str, moved: int
) -> None:
    old = parcel(1, *OLD)
    with Harness(old, url=shared_url) as before:
        ids = [job.id for job in before.engine.submit_many(old, range(JOBS))]
    assert faults.run(migrate_in_pages, shared_url, kill_at=point, nth=2).killed
    with Harness(parcel(2, *NEW), url=shared_url, clock=before.clock) as harness:
        versions = Counter(row(harness, job_id).flow_version for job_id in ids)
        assert versions == {2: moved, 1: JOBS - moved}
        done = move(harness, {"new": "new"})
        assert done.moved == {("new", "new"): JOBS - moved}
        trails = [[e.kind for e in harness.trail(job_id)] for job_id in ids]
        assert trails == [["submitted", "migrated"]] * JOBS
        harness.run_until_idle()
        assert {harness.job(job_id).state for job_id in ids} == {"checked"}
        assert harness.verify() == []
