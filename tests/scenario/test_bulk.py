"""One act on every job that a filter matches: counted, confirmed, done in batches."""

from collections.abc import Iterator
from typing import Any

import pytest

from ulak import BadInput, Dedup, Flow, Hold, JobFilter, Lifecycle, Until
from ulak.engine import bulk as bulks
from ulak.engine.bulk import Actor, Bulk, BulkAct, BulkDone
from ulak.errors import Contended
from ulak.testing import Harness

OLGA = Actor("olga")


def parts() -> Flow[Any]:
    """Jobs fail, are held or come to a gate, as their payload says."""
    moves = {"new": ["asked"], "asked": ["done", "failed"]}
    flow: Flow[Any] = Flow(
        "parts", Lifecycle("new", moves), retry=0, permanent={TypeError},
        dedup=Dedup(key=lambda payload: payload[1], until=Until.FINISHED),
    )  # fmt: skip

    @flow.stage("new", to="asked")
    def begin(run: Any) -> Any:
        what = run.payload[0]
        if run.round == 1 and what in ("fail", "fail for good"):
            raise (ValueError if what == "fail" else TypeError)("no")
        if what == "hold":
            return Hold("odd", "look")
        return None

    flow.gate("asked", choices={"approve": "done", "refuse": "failed"}, by={"operator"})
    return flow


class Desk:
    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.engine = harness.engine
        self.bulk = Bulk(self.engine, b"secret")
        self._number = 0

    def jobs(self, what: str, number: int, **options: Any) -> list[str]:
        ids = []
        for _ in range(number):
            self._number += 1
            job = self.engine.submit(
                self.engine.inspect.flows[0], [what, str(self._number)], **options
            )  # fmt: skip
            ids.append(job.id)
        self.harness.run_until_idle()
        return ids

    def states(self, ids: list[str]) -> set[str]:
        return {self.engine.get(job).state for job in ids}

    def do(self, act: BulkAct, actor: Actor = OLGA) -> BulkDone:
        return self.bulk.do(act, actor, token=self.bulk.count(act, actor).token)


@pytest.fixture
def desk(jobs_url: str) -> Iterator[Desk]:
    with Harness(parts(), url=jobs_url) as harness:
        yield Desk(harness)


def test_counting_changes_nothing_and_the_token_does_it(desk: Desk) -> None:
    failed, held = desk.jobs("fail", 3), desk.jobs("hold", 2)
    act = BulkAct("retry", JobFilter(flow="parts"), note="again")
    counted = desk.bulk.count(act, OLGA)
    assert counted.count == 3
    assert desk.states(failed) == {"failed"}
    done = desk.bulk.do(act, OLGA, token=counted.token)
    assert done == BulkDone(3, [], 0, 0)
    assert desk.states(failed) == {"new"}
    assert desk.states(held) == {"held"}
    last = desk.engine.inspect.trail(failed[0])[-1]
    assert (last.kind, last.actor, last.message) == ("retried", "olga", "again")
    desk.harness.run_until_idle()
    assert desk.harness.verify() == []


@pytest.mark.parametrize(
    ("action", "what", "state"),
    [
        ("retry", "fail", "new"), ("release", "hold", "new"), ("approve", "hold", "new"),
        ("approve", "ask", "done"), ("decide", "ask", "failed"), ("cancel", "ask", "cancelled"),
    ],
)  # fmt: skip
def test_every_action_is_done_as_if_it_were_asked_of_each(
    desk: Desk, action: str, what: str, state: str
) -> None:
    ids = desk.jobs(what, 3)
    act = BulkAct(action, JobFilter(), choice="refuse" if action == "decide" else "")
    assert desk.do(act).done == 3
    assert desk.states(ids) == {state}
    assert desk.harness.verify() == []


def test_a_job_that_will_not_have_it_harms_no_neighbour(desk: Desk) -> None:
    good, hopeless = desk.jobs("fail", 2), desk.jobs("fail for good", 2)
    done = desk.do(BulkAct("retry", JobFilter()))
    assert (done.done, done.refused_count, done.left) == (2, 2, 0)
    assert {refusal.id for refusal in done.refused} == set(hopeless)
    assert {refusal.code for refusal in done.refused} == {"transition-not-allowed"}
    assert "it failed for good" in done.refused[0].detail
    assert desk.states(good) == {"new"}


def test_gates_ask_everybody_for_their_role(desk: Desk) -> None:
    ids = desk.jobs("ask", 2)
    act = BulkAct("approve", JobFilter())
    done = desk.do(act, Actor("eve", roles={"viewer"}))
    assert (done.done, {r.code for r in done.refused}) == (0, {"not-permitted"})
    assert desk.do(act, Actor("olga", roles={"operator"})).done == 2
    assert desk.states(ids) == {"done"}


def test_a_key_that_another_job_holds_by_now_is_told(desk: Desk) -> None:
    (old,) = desk.jobs("fail", 1)
    desk._number -= 1
    (new,) = desk.jobs("ask", 1)
    done = desk.do(BulkAct("retry", JobFilter()))
    assert [(r.id, r.code) for r in done.refused] == [(old, "key-taken")]
    assert new in done.refused[0].detail


def test_a_job_that_moves_meanwhile_is_told(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    (job,) = desk.jobs("hold", 1)
    listed = desk.engine.store.list_jobs

    def listed_late(*args: Any, **options: Any) -> Any:
        rows = listed(*args, **options)
        if rows:
            desk.engine.release(job, actor="otto")
        return rows

    monkeypatch.setattr(desk.engine.store, "list_jobs", listed_late)
    done = desk.do(BulkAct("release", JobFilter()))
    assert [(r.id, r.code) for r in done.refused] == [(job, "stale-job")]
    assert [e.actor for e in desk.engine.inspect.trail(job) if e.kind == "released"] == ["otto"]


def test_whoever_waits_for_somebody_holds_up_nobody_else(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = desk.jobs("hold", 3)
    commit = desk.engine.store.commit

    def contended(changes: Any) -> Any:
        if any(change.row.id.hex() == ids[1].replace("-", "") for change in changes):
            raise Contended("somebody holds it")
        return commit(changes)

    monkeypatch.setattr(desk.engine.store, "commit", contended)
    done = desk.do(BulkAct("release", JobFilter()))
    assert (done.done, [(r.id, r.code) for r in done.refused]) == (2, [(ids[1], "store-contended")])


def test_a_large_match_is_done_in_parts_by_the_same_token(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = desk.jobs("fail", 5)
    desk.harness.advance(seconds=1)
    hopeless = desk.jobs("fail for good", 1)
    monkeypatch.setattr(bulks, "MOST_ACTS", 2)
    act = BulkAct("retry", JobFilter())
    token = desk.bulk.count(act, OLGA).token
    parts = [desk.bulk.do(act, OLGA, token=token) for _ in range(3)]
    assert [part.done for part in parts] == [2, 2, 1]
    assert [part.left for part in parts] == [3, 1, 0]
    assert desk.states(ids) == {"new"}
    assert desk.states(hopeless) == {"failed"}


def test_only_the_first_refusals_are_told(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.jobs("fail for good", 3)
    monkeypatch.setattr(bulks, "MOST_TOLD", 1)
    done = desk.do(BulkAct("retry", JobFilter()))
    assert (len(done.refused), done.refused_count) == (1, 3)


CONFIRMED = BulkAct("decide", JobFilter(flow="parts", state="asked"), choice="approve")


@pytest.mark.parametrize(
    ("act", "actor"),
    [
        (BulkAct("decide", JobFilter(flow="parts"), choice="approve"), OLGA),
        (BulkAct("decide", JobFilter(state="asked"), choice="approve"), OLGA),
        (BulkAct("decide", JobFilter(flow="parts", state="asked"), choice="refuse"), OLGA),
        (BulkAct("approve", JobFilter(flow="parts", state="asked")), OLGA),
        (CONFIRMED, Actor("otto")),
        (CONFIRMED, Actor("olga", tenant="acme")),
    ],
)
def test_a_token_confirms_what_was_counted_and_nothing_else(
    desk: Desk, act: BulkAct, actor: Actor
) -> None:
    ids = desk.jobs("ask", 1)
    token = desk.bulk.count(CONFIRMED, OLGA).token
    with pytest.raises(BadInput, match="another action, filter, choice or caller"):
        desk.bulk.do(act, actor, token=token)
    with pytest.raises(BadInput, match="another secret"):
        Bulk(desk.engine, b"another").do(CONFIRMED, OLGA, token=token)
    assert desk.states(ids) == {"asked"}
    assert desk.bulk.do(CONFIRMED, OLGA, token=token).done == 1


@pytest.mark.parametrize("token", ["", ".", "1", "1.", "x.y", "-1.00", "9" * 30 + ".00", "\ud800"])
def test_what_is_no_token_confirms_nothing(desk: Desk, token: str) -> None:
    with pytest.raises(BadInput, match="ask again without a token"):
        desk.bulk.do(CONFIRMED, OLGA, token=token)


def test_a_token_is_good_for_ten_minutes_by_the_clock_of_the_store(desk: Desk) -> None:
    desk.jobs("ask", 1)
    counted = desk.bulk.count(CONFIRMED, OLGA)
    assert (counted.expires_at - desk.harness.now).total_seconds() == 600
    desk.harness.advance(minutes=9, seconds=59)
    late = desk.bulk.count(CONFIRMED, OLGA)
    desk.harness.advance(seconds=1)
    with pytest.raises(BadInput, match="could be used until"):
        desk.bulk.do(CONFIRMED, OLGA, token=counted.token)
    assert desk.bulk.do(CONFIRMED, OLGA, token=late.token).done == 1


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (BulkAct("delete", JobFilter()), 'there is no bulk action .*"retry"'),
        (BulkAct("decide", JobFilter()), "decide takes a choice"),
        (BulkAct("retry", JobFilter(), choice="x"), "decide takes a choice"),
        (BulkAct("retry", JobFilter(role="held")), 'jobs that are "failed", not held'),
    ],
)
def test_what_makes_no_sense_is_refused_before_it_is_counted(
    desk: Desk, act: BulkAct, words: str
) -> None:
    with pytest.raises(BadInput, match=words):
        desk.bulk.count(act, OLGA)


def test_a_job_that_a_worker_runs_is_asked_to_stop(desk: Desk) -> None:
    asked: dict[str, Any] = {}
    flow: Flow[Any] = Flow("long", Lifecycle("new", {"new": ["done"]}))

    @flow.stage("new")
    def long(run: Any) -> None:
        asked["release"] = desk.do(BulkAct("cancel", JobFilter(flow="long")))
        asked["job"] = desk.engine.get(run.job_id).cancel_requested

    desk.engine.add(flow)
    desk.engine.submit(flow, None)
    desk.harness.run_until_idle()
    assert asked["release"].done == 1
    assert asked["job"] is True
