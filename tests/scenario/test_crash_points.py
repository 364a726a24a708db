"""A process is killed before, inside and after every kind of write; another one finishes the work.

Nothing that was acknowledged is lost, nothing is counted twice, and every trail is true.
"""

import sqlite3
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.stores import make_schema
from tests.databases import Databases
from ulak import Dedup, Flow, Goto, Lifecycle, Limit, Until, WorkerSettings
from ulak.clock import SECOND
from ulak.core.admission import StopRow
from ulak.core.job import Message, Request
from ulak.core.policy import RateTerms
from ulak.ids import from_text
from ulak.store.faults import KINDS, POINTS
from ulak.store.postgres.pipeline import Pipeline
from ulak.store.protocol import (
    CredentialRow,
    OutboxRow,
    Progress,
    ScheduleRow,
    Settled,
    Store,
    Tick,
)
from ulak.store.records import RecordId, RecordRow, RecordStore
from ulak.store.transaction import TransactionStore
from ulak.testing import Harness, ManualClock, faults

LEASE = timedelta(minutes=5)
SETTINGS = WorkerSettings(lease=LEASE)
BROKEN, DOUBTFUL = "broken", "doubtful"
WHOLE = ("order-1", "order-2", "order-3")
ORDERS = (BROKEN, DOUBTFUL, *WHOLE)

# Which kind of write each writing verb of the protocol is. A verb that is in neither table has
# no points, and the test below says so.
WRITES = {
    "add": "add", "add_owner": "add",
    "commit": "commit", "claim": "claim", "register": "register", "renew": "renew",
    "unregister": "unregister", "request": "request", "dismiss": "dismiss", "report": "report",
    "unpark": "unpark", "fold_counts": "fold", "prune": "prune", "take_messages": "take",
    "hold_messages": "take", "settle_messages": "settle", "redrive_message": "redrive",
    "discard_message": "redrive", "keep_handlers": "handlers", "forget_handler": "handlers",
    "post_messages": "post", "expire_messages": "sweep",
    "declare": "declare",
    "change_limit": "limit", "change_rate": "rate", "pause": "pause", "resume": "resume",
    "weigh": "weigh", "stop_accepting": "stop", "accept": "stop", "sweep": "sweep",
    "keep_schedules": "schedules", "tick": "tick", "pause_schedule": "schedule-pause",
    "resume_schedule": "schedule-pause", "add_credential": "credential",
    "change_credential": "credential", "note_use": "credential",
    "note_refusal": "credential",
    "forget_credentials": "credential",
    "claim_record": "record", "renew_records": "record", "mark_record": "record",
    "finish_record": "record", "release_record": "record", "forget_record": "record",
    "clean_records": "record", "begin": "transaction",
}  # fmt: skip
READS = {
    "reading",
    "due", "ended", "overdue_leased", "asked", "deliveries", "count_deliveries", "handlers",
    "has_due", "find_job", "find_payload",
    "find_results",
    "find_key", "find_commits", "find_progress", "trail", "list_jobs", "count_jobs", "counts",
    "workers", "leased", "pending_requests", "slots", "scan_jobs", "scan_messages", "scan_keys",
    "scan_proofs", "proof_heads", "scan_orphans", "changed_elsewhere", "on_commit", "on_move",
    "open", "close", "migrate", "limits", "rates", "buckets", "pauses", "weights", "stops",
    "count_waiting", "audit_trail", "count_standing", "find_owners", "find_owned",
    "due_schedules", "schedules", "ticks", "find_credential", "credentials", "find_records",
    "find_claimable",
}  # fmt: skip


def order_flow() -> Flow[Any]:
    """A flow that uses everything which a commit can write."""
    moves = {"new": ["paid", "parted"], "paid": ["packing"], "packing": ["shipped"], "parted": []}
    flow: Flow[Any] = Flow(
        "order",
        Lifecycle("new", moves | {"shipped": []}, done=["shipped", "parted"]),
        dedup=Dedup(
            key=lambda payload: payload["name"], until=Until.FORGOTTEN, keep=timedelta(days=1)
        ),
        retry=0,
        proofs=True,
    )

    @flow.stage("new", to="paid")
    def pay(run: Any) -> Any:
        if run.payload.get("of"):
            return Goto("parted")
        run.emit("paying", run.payload["name"])
        return run.once("charge", lambda key: {"key": key})

    @pay.undo
    def pay_back(run: Any) -> None:
        run.emit("paid-back", run.payload["name"])

    @flow.stage("paid", during="packing", limit=Limit(1))
    def pack(run: Any) -> Any:
        if run.payload["name"] == BROKEN:
            raise RuntimeError("it fell down")
        parts = [{"name": f"{run.payload['name']}-{n}", "of": run.job_id} for n in range(2)]
        run.spawn(flow, parts)
        run.emit("packed", run.payload["name"])
        run.progress(1.0)

    return flow


def harness_on(url: str, *, later: timedelta = timedelta(0)) -> Harness:
    clock = ManualClock()
    clock.advance(later)
    return Harness(order_flow(), url=url, clock=clock, settings=SETTINGS)


def work(url: str) -> None:
    """Pass every kind of write, saying what was acknowledged. Runs in a child that is killed."""
    harness = harness_on(url)
    engine, store = harness.engine, harness.engine.store
    flow = engine.inspect.flows[0]
    engine.open()
    ids = []
    for name in ORDERS:
        job = engine.submit(flow, {"name": name})
        say("accepted", job.id)
        ids.append(job.id)
    doubtful = from_text(ids[1])
    store.request(Request(doubtful, "cancel", "", "ada", None, None, 0))
    say("asked", "cancel")
    store.dismiss(doubtful, [("cancel", "")])
    store.report([Progress(doubtful, 0.5, "half", 0)])
    store.register("other", lease_us=SECOND, lanes=("order",), about="other")
    store.renew("other", lease_us=SECOND)
    store.unregister("other")
    steer(store)
    harness.run_until_idle()
    for job_id in ids:
        say(engine.get(job_id).state, job_id)
    lost = Message(doubtful, 1, 0, "key", "topic", b"1", 0)
    store.settle_messages([Settled(lost, "", "dead")])
    gone = OutboxRow(lost, "")
    store.redrive_message(gone, give_up_at=None, actor="ada", note="")
    store.post_messages([])
    store.prune(before=0, limit=10)
    nightly = ScheduleRow("nightly", "order", 1, "", 1, None, b"1", "0 3 * * *", "UTC", "none", 0)
    store.keep_schedules([nightly])
    store.tick([Tick(nightly, (), SECOND)])
    store.pause_schedule("nightly", actor="ada", note="")
    store.resume_schedule("nightly", next_at=SECOND, actor="ada", note="")
    ada = CredentialRow(
        "user", "ada", "ada", None, "admin", "", "0" * 64, 0, "ada", 0, None, None, 1
    )
    store.add_credential(ada, act="created", actor="ada", note="")
    store.change_credential(ada, act="disabled", actor="ada", note="")
    store.note_use("user", "ada", 1)
    store.note_refusal("user", "ada", act="refused", actor="anonymous", note="")
    store.forget_credentials("user", before=1)
    protect(store)
    say("ended", "all")
    harness.close()


def steer(store: Store) -> None:
    """What operators change meanwhile, each act taken back: nothing but the audit is left of it."""
    store.change_limit("order/paid", 2, actor="ada", note="")
    store.change_limit("order/paid", None, actor="ada", note="")
    store.change_rate("order/new", RateTerms(5, SECOND, 5), actor="ada", note="")
    store.pause("queue", "other", until=None, actor="ada", note="")
    store.resume("queue", "other", actor="ada", note="")
    store.weigh("acme", 2, actor="ada", note="")
    store.stop_accepting(StopRow("nothing", "*", SECOND, "ada", None, store.clock.now()))
    store.accept("nothing", "*", actor="ada", note="")
    store.sweep(10)


A_RECORD = RecordRow(
    "", "pay", "key", "processing", "00", "", "token", None, 1, "charged", "{}", None, None, None,
    None, None, 0, 0, 0,
)  # fmt: skip


def protect(store: Any) -> None:
    """What guards of protected operations write."""
    row = A_RECORD
    protect_without_transactions(store)
    transaction = store.begin()
    transaction.claim_record(row, ttl_us=SECOND, lease_us=None)
    transaction.finish_record(row._replace(status="completed"), ttl_us=24 * 3600 * SECOND)
    transaction.commit()


def protect_without_transactions(store: Any) -> None:
    row = A_RECORD
    store.claim_record(row, ttl_us=SECOND, lease_us=SECOND)
    store.renew_records([row], lease_us=[SECOND])
    store.mark_record(row, lease_us=SECOND)
    store.release_record(row)
    store.forget_record(row.id, actor="ada", note="")
    store.clean_records(10)


def say(word: str, what: str) -> None:
    """Tell the outside, before anything else happens."""
    print(word, what, flush=True)  # noqa: T201 - the child's only way to tell


def finish(url: str) -> Harness:
    """What another process does an hour later: submit again whatever may be lost, and work."""
    harness = harness_on(url, later=timedelta(hours=1))
    flow = harness.engine.inspect.flows[0]
    harness.engine.open()
    for name in ORDERS:
        harness.submit(flow, {"name": name})
    harness.advance(hours=1)
    return harness


PASSES = [(point, 1) for point in faults.NAMES] + [
    (point, nth) for point in POINTS["commit"] for nth in (2, 4, 6)
]


@pytest.mark.shows("E-61")
@pytest.mark.parametrize(("point", "nth"), PASSES)
def test_a_process_killed_at_any_point_of_a_write_loses_nothing(
    point: str, nth: int, shared_url: str
) -> None:
    crashed = faults.run(work, shared_url, kill_at=point, nth=nth)
    assert crashed.killed, crashed.errors
    said = [line.split(" ", 1) for line in crashed.lines]

    with finish(shared_url) as harness:
        assert harness.verify() == []
        assert harness.unfinished() == []
        jobs = {job.id: job for job in harness.engine.jobs(limit=1000)}
        assert jobs.keys() >= {what for word, what in said if word == "accepted"}
        ended = {what: word for word, what in said if word in ("shipped", "failed")}
        assert {job_id: jobs[job_id].state for job_id in ended} == ended
        (answered,) = harness.engine.store.find_records([RecordId("", "pay", "key")])
        assert (answered is not None) is (point == "transaction.after")
        was_asked = point in ("request.after", "dismiss.before", "dismiss.inside")
        each_moved_once(
            harness, list(jobs), end_of_doubtful="cancelled" if was_asked else "shipped"
        )


def each_moved_once(harness: Harness, jobs: list[str], *, end_of_doubtful: str) -> None:
    """Every order went its way once, with its parts and its messages."""
    names: Counter[str] = Counter()
    arrivals: Counter[tuple[str, str]] = Counter()
    messages: Counter[tuple[str, str]] = Counter()
    for job_id in jobs:
        name = harness.engine.inspect.payload(job_id)["name"]
        names[name] += 1
        moves = [e for e in harness.trail(job_id) if e.from_state != e.to_state]
        arrivals.update((name, event.to_state) for event in moves)
        for row in harness.engine.store.scan_messages(from_text(job_id)):
            assert row.sent_at is not None
            messages[name, row.message.topic] += 1
    whole = {*WHOLE, DOUBTFUL} if end_of_doubtful == "shipped" else set(WHOLE)
    parts = {f"{name}-{n}" for name in whole for n in range(2)}
    assert names == Counter(dict.fromkeys({*ORDERS, *parts}, 1))
    for name in whole:
        assert [arrivals[name, state] for state in ("new", "paid", "packing", "shipped")] == [1] * 4
        assert messages[name, "paying"] == messages[name, "packed"] == 1
    assert all(arrivals[part, "parted"] == 1 for part in parts)
    assert arrivals[DOUBTFUL, end_of_doubtful] == 1
    assert arrivals[BROKEN, "failed"] == messages[BROKEN, "paid-back"] == 1


@pytest.mark.shows("E-61")
def test_every_kind_of_write_has_a_point_before_inside_and_after_it(shared_url: str) -> None:
    with faults.traced() as seen:
        work(shared_url)
    for kind in KINDS:
        passed = [name for name in seen if name.split(".")[0] == kind]
        points = list(POINTS[kind])
        assert passed == points * (len(passed) // len(points)), kind
        assert passed, f"nothing that was done is a write of the kind {kind}"


@pytest.mark.shows("E-61")
def test_every_writing_verb_of_the_protocol_is_a_kind_of_write() -> None:
    protocols = (Store, RecordStore, TransactionStore)
    names = {name for protocol in protocols for name in dir(protocol)}
    verbs = {name for name in names if not name.startswith("_")} - {"features", "clock"}
    assert verbs == WRITES.keys() | READS
    assert set(WRITES.values()) == set(KINDS)


@pytest.mark.shows("E-61")
def test_no_transaction_is_committed_without_passing_its_points(tmp_path: Path) -> None:
    harness = harness_on(f"sqlite:///{tmp_path}/jobs.db")
    harness.engine.open()
    store: Any = harness.engine.store
    db: sqlite3.Connection = store._writer.db
    commits: list[str] = []
    db.set_trace_callback(lambda sql: commits.append(sql) if sql == "COMMIT" else None)
    with harness, faults.traced() as seen:
        harness.submit(harness.engine.inspect.flows[0], {"name": "order-1"})
        harness.run_until_idle()
        store.prune(before=0, limit=1)
        db.set_trace_callback(None)
    inside = [name for name in seen if name.endswith(".inside")]
    assert len(commits) > 10
    assert len(inside) == len(commits)


@pytest.mark.shows("E-61")
def test_no_transaction_of_postgresql_is_committed_without_passing_its_points(
    databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits: list[str] = []
    send = Pipeline.send

    def count_commits(pipeline: Any, statement: str, *rest: Any) -> None:
        if statement == "COMMIT":
            commits.append(statement)
        send(pipeline, statement, *rest)

    with databases.lend(make_schema) as url:
        harness = harness_on(url)
        harness.engine.open()
        monkeypatch.setattr(Pipeline, "send", count_commits)
        with harness, faults.traced() as seen:
            harness.submit(harness.engine.inspect.flows[0], {"name": "order-1"})
            harness.run_until_idle()
            harness.engine.store.prune(before=0, limit=1)
            written = len(commits)
        inside = [name for name in seen if name.endswith(".inside")]
        assert written > 10
        assert len(inside) == written


def test_a_point_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'commit\.somewhere' is no point"):
        faults.run(work, "nowhere", kill_at="commit.somewhere")
