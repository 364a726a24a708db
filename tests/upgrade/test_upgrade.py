"""A database of an earlier release is brought to this one and the next, beside running workers."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from time import monotonic, sleep
from typing import Any

import httpx
import pytest

from tests.upgrade import later, program
from tests.upgrade.conftest import Site
from ulak import Engine, Job, JobFilter, StoreError
from ulak.auth.identity import Identity
from ulak.core.delivery import GAVE_UP
from ulak.core.lifecycle import FINAL, ROLES
from ulak.idempotency import Guard
from ulak.services.contracts.configuration import contracts_of
from ulak.services.contracts.ledger import HANDLER
from ulak.services.contracts.outbox.desk import Desk
from ulak.services.contracts.outbox.remote import Remote
from ulak.services.contracts.outbox.sending import declare
from ulak.services.contracts.outbox.settings import RemoteSettings
from ulak.store.protocol import DeliveryFilter, Store

PATIENCE = timedelta(seconds=60)

STOOD = {
    "asked": "busy", "cancelled": "cancelled", "crashed": "busy", "dead message": "done",
    "delayed": "ready", "done": "done", "done too": "done", "expired": "expired",
    "failed": "failed", "gate": "held", "held": "held", "letter 1": "held", "letter 2": "held",
    "napping": "waiting", "paused key": "ready", "paused queue": "ready", "permanent": "failed",
    "pressed": "ready", "ready": "ready", "report 0": "done", "report 1": "ready",
    "report 2": "done", "report 3": "ready", "retried": "busy", "second": "ready",
    "settled acme": "done", "settled globex": "done", "signal": "waiting", "undoing": "undoing",
    "unsent": "done",
}  # fmt: skip
"""The role of each job of the fixtures; ticks of a schedule have no names of their own. A fixture
of an earlier release may have fewer."""

DUE = {
    "asked": "cancelled", "crashed": "sent", "delayed": "sent", "napping": "done",
    "pressed": "done", "ready": "sent", "report 1": "done", "report 3": "done", "retried": "sent",
    "second": "done", "undoing": "failed",
}  # fmt: skip
"""Where each job ends that workers carry on by themselves."""

TOLD = {
    "failed": "sent", "gate": "refused", "held": "sent", "letter 1": "posted",
    "letter 2": "posted", "paused key": "done", "paused queue": "done", "signal": "settled",
}  # fmt: skip
"""Where each job ends that waits for a person, once the person has spoken."""


@pytest.mark.shows("E-90", "E-70")
def test_a_store_upgrades_with_its_data_beside_workers_of_both_releases(site: Site) -> None:
    newest, stored = later.newest(site.url), site.schema()
    if stored < newest:
        with pytest.raises(StoreError, match=rf"this ulak needs {newest}; run `ulak migrate`"):
            site.engine().open()
        assert site.ulak("migrate") == f"schema {stored} > {newest}"
    with site.engine() as engine:
        trails = read_trails(engine)
        roles = {name: job.role for name, job in named(engine).items()}
        assert roles == {name: STOOD[name] for name in roles}
        assert set(roles.values()) == set(ROLES)
        assert engine.inspect.verify() == []
        same = submit(engine, "order", {"name": "crashed"}, tenant="acme")
        assert not same.created, "its dedup key is held"
        migrate_beside_workers(site, engine, newest)
        assert_that_due_work_was_done(site, engine)
        restart_the_release_before(site, engine, newest)
        assert read_trails(engine, like=trails) == trails
        assert_that_records_are_kept(engine)
        assert_that_contracts_are_kept(engine)
    assert "every trail, key, slot and counter agrees" in site.ulak("verify")
    proofs = site.ulak("proof", "verify")
    assert proofs == "6 proofs of 1 tenant: every chain is whole"


@pytest.mark.shows("E-90")
def test_a_release_reads_the_same_before_and_after_the_next_one_has_migrated(site: Site) -> None:
    site.ulak("migrate")
    store = site.engine().store
    store.open()
    before = read_everything(store)
    assert [kind for kind, found in before.items() if not found] == [], "no kind is missing"
    site.ulak("migrate", is_next=True)
    assert read_everything(store) == before
    store.close()


def migrate_beside_workers(site: Site, engine: Engine, newest: int) -> None:
    """The next release migrates and starts while this one is in the middle of a stage."""
    hold = site.folder / "hold"
    hold.touch()
    long = submit(engine, "order", {"name": "long", "while": "hold"})
    this = site.work("this")
    eventually((site.folder / "hold.reached").exists)
    said = site.ulak("migrate", is_next=True)
    assert said == f"schema {newest} > {newest + 1}"
    following = site.work("next", is_next=True)
    eventually(lambda: len(living(engine)) == 2)
    between = submit(engine, "order", {"name": "between"})
    hold.unlink()
    wait_for(engine, {**DUE, "long": "sent", "between": "sent"})
    assert engine.result(long.id)["by"] == "this"
    assert engine.result(between.id)["by"] in ("this", "next")
    assert engine.inspect.verify() == []
    # A message that could not be sent is sent now; a job may end before its message is.
    eventually(lambda: {"packed unsent", "packed crashed"} <= set(sent(site)))
    site.stop(this)
    site.stop(following)


def restart_the_release_before(site: Site, engine: Engine, newest: int) -> None:
    """This release starts again on the schema of the next one, and does what people say."""
    said = site.ulak("migrate")
    assert said == (
        f"schema {newest + 1}: nothing to do; this release knows {newest} and may run on it"
    )
    store = json.loads(site.ulak("doctor", "--json"))["store"]
    numbers = (store["schema"], store["newest_schema"], store["oldest_schema"])
    assert numbers == (newest + 1, newest, newest)
    this_month = int(f"{datetime.now(UTC):%Y%m}")
    assert this_month in store.get("months", [this_month]), "partitions are made as time goes on"
    again = site.work("this again")
    new = submit(engine, "order", {"name": "new"})
    tell(engine)
    wait_for(engine, {**TOLD, "new": "sent"})
    eventually(lambda: "packed dead message" in sent(site))
    assert engine.result(new.id)["by"] == "this again"
    assert [job for job in named(engine).values() if job.role not in FINAL] == []
    assert engine.outbox.dead() == []
    site.stop(again)


def tell(engine: Engine) -> None:
    """Say to each job that waits for a person what it waits for."""
    jobs = named(engine)
    engine.retry(jobs["failed"].id, actor="ada")
    engine.release(jobs["held"].id, actor="ada")
    engine.decide(jobs["gate"].id, "refuse", actor="bob")
    engine.signal(jobs["signal"].id, "paid", actor="bank")
    engine.flow_control.resume(queue="night", actor="ada")
    engine.flow_control.resume(key="B", actor="ada")
    for name in ("letter 1", "letter 2"):
        engine.decide(jobs[name].id, "post", actor="ada")
    (dead,) = engine.outbox.dead()
    engine.outbox.redrive(dead.id, actor="ada")


def assert_that_due_work_was_done(site: Site, engine: Engine) -> None:
    assert "packed done" not in sent(site), "a message that was sent is not sent again"
    ticks = engine.schedules.ticks("half-daily")
    assert len(ticks) == 5, "of all the dates that nobody has seen to, the last one"
    assert datetime.now(UTC) - ticks[0].due_at < timedelta(hours=12)
    assert engine.get(ticks[0].job_id).state == "done"
    assert engine.schedules.get("nightly").paused_by == "ada"
    assert engine.schedules.ticks("nightly") == []
    assert {limit.name: limit.n for limit in engine.flow_control.limits()}["order/packed"] == 5
    assert [(weight.tenant, weight.weight) for weight in engine.flow_control.weights()] == [
        ("acme", 3)
    ]


def assert_that_records_are_kept(engine: Engine) -> None:
    guard = Guard(engine.store)
    answered = guard.execute(program.CHARGED, lambda execution: pytest.fail("executed again"))
    assert (answered.is_replay, answered.answer) == (True, program.RECEIPT)
    taken = guard.begin(program.CHARGING)
    assert taken.attempt == 2, "its process has died"
    taken.settle(program.RECEIPT)
    assert guard.execute(program.CHARGING, lambda execution: pytest.fail("again")).is_replay
    identity = Identity(engine.store, secret="s" * 32)
    assert identity.authenticate(program.KEY).name == "key:fixture"
    assert identity.login("ada", program.PASSWORD).principal.name == "ada"


def assert_that_contracts_are_kept(engine: Engine) -> None:
    contracts = contracts_of(engine)
    assert contracts.transition(program.transition("sent")).is_replay, "its proof is there"
    assert contracts.verify().broken == ()
    settings = RemoteSettings(mode="hybrid", base_url="http://remote.test", api_key="k" * 32)
    transport = httpx.MockTransport(
        lambda request: httpx.Response(200, json={"ok": True, "from": "pending", "to": "paid"})
    )
    declare(engine, Remote(settings, transport=transport))
    engine.outbox.deliver(HANDLER)
    assert {event.aggregate: event.status for event in Desk(engine).events()} == {
        "order:sent": "sent", "order:rejected": "rejected", "order:dead": "dead",
        "order:due": "sent", "order:leased": "dead",  # it was tried, and its time is over
    }  # fmt: skip


# --- what is asked ----------------------------------------------------------------------


def read_everything(store: Store) -> dict[str, list[Any]]:
    """Return what is stored, by every verb that reads."""
    jobs = store.scan_jobs()
    ids = [job.id for job in jobs]
    record = store.find_records([program.CHARGED.id, program.CHARGING.id])
    return {
        "jobs": jobs,
        "listed": store.list_jobs(JobFilter()),
        "payloads": [store.find_payload(job_id) for job_id in ids],
        "trails": [store.trail(job_id) for job_id in ids],
        "results": [result for job_id in ids for result in store.find_results(job_id)],
        "progress": [found for job_id in ids if (found := store.find_progress(job_id))],
        "requests": [found for job_id in ids for found in store.pending_requests(job_id)],
        "leased": [row for worker in store.workers() for row in store.leased(worker.id)],
        "messages": [message for job_id in ids for message in store.scan_messages(job_id)],
        "dead messages": store.deliveries(DeliveryFilter(states=GAVE_UP)),
        "workers": store.workers(),
        "counts": store.counts(),
        "keys": list(store.scan_keys()),
        "slots": store.slots(),
        "limits": store.limits(),
        "rates": store.rates(),
        "buckets": store.buckets(),
        "pauses": store.pauses(),
        "weights": store.weights(),
        "audit": store.audit_trail(),
        "schedules": store.schedules(),
        "ticks": store.ticks("half-daily"),
        "proofs": store.scan_proofs("acme"),
        "heads": list(store.proof_heads().items()),
        "credentials": store.credentials("key") + store.credentials("user"),
        "records": [*record],
    }


def submit(engine: Engine, flow: str, payload: dict[str, str], **options: Any) -> Job:
    """Submit a job of a flow by its name."""
    return engine.submit(
        next(f for f in engine.inspect.flows if f.name == flow), payload, **options
    )


def named(engine: Engine) -> dict[str, Job]:
    """Return every job by the name in its payload; those of schedules have none of their own."""
    jobs = {engine.inspect.payload(job.id)["name"]: job for job in engine.jobs(limit=1000)}
    jobs.pop("tick", None)
    return jobs


def eventually(holds: Callable[[], bool]) -> None:
    """Wait until something holds that other processes bring about, and leave them the machine."""
    deadline = monotonic() + PATIENCE.total_seconds()
    while not holds():
        assert monotonic() < deadline, "it did not come true in time"
        sleep(0.05)


def wait_for(engine: Engine, ends: dict[str, str]) -> None:
    """Wait until each of these jobs has ended, and see that it did where it should."""
    jobs = {name: job for name, job in named(engine).items() if name in ends}
    ended = {name: engine.wait(job.id, timeout=PATIENCE).state for name, job in jobs.items()}
    assert ended == {name: ends[name] for name in jobs}


def read_trails(engine: Engine, like: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the trail of every job, or as much of it as others have."""
    trails = {job.id: engine.inspect.trail(job.id) for job in engine.jobs(limit=1000)}
    if like is None:
        return trails
    return {job_id: trails[job_id][: len(trail)] for job_id, trail in like.items()}


def living(engine: Engine) -> list[str]:
    """Return the workers whose lease has not lapsed."""
    now = engine.store.clock.now()
    return [worker.id for worker in engine.store.workers() if worker.expires_at > now]


def sent(site: Site) -> list[str]:
    """Return the messages that were sent since the fixture was loaded."""
    path = site.folder / "sent"
    return path.read_text().splitlines() if path.exists() else []
