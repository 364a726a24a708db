"""Flow control over HTTP: queues, pauses, workers, limits, rates and weights."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

import ulak
import ulak.web
from tests.web.people import Known, as_, person
from ulak import Limit, Rate
from ulak.clock import ManualClock, rfc3339
from ulak.store.memory import MemoryStore

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture
def engine():
    made = ulak.Engine(MemoryStore(ManualClock(NOON)))

    @made.job(limit=Limit(2, key=lambda payload: payload["args"][0]), queue="post", fair=True)
    def send(customer: str) -> None: ...

    @made.job(rate=Rate(5, per=timedelta(seconds=1)))
    def call(n: int) -> None: ...

    made.send, made.call = send, call
    with made:
        yield made


@pytest.fixture
def app(engine):
    return ulak.web.app(engine, identity=Known(person("ada", "admin"), person("vic", "viewer")))


@pytest.fixture
def say(ask, app):
    """Send a request as ada and answer the document."""

    def send(method, path, status=200, **options):
        answer = ask(app, path, method=method, headers=as_("ada"), **options)
        assert answer.status_code == status, answer.text
        return answer.json()

    return send


# --- queues and pauses ----------------------------------------------------------


def test_queues_say_who_uses_serves_and_has_paused_them(engine, say):
    for customer in "abc":
        engine.submit(engine.send, customer)
    worker = engine.store.register(
        "w1", lease_us=60_000_000, lanes=["post/thread/send@1/*"], about="here"
    )
    assert worker
    engine.store.register("late", lease_us=0, lanes=["post/thread/send@1/*"], about="gone")
    say("POST", "/queues/post/pause", json={"note": "a leak", "for_seconds": 900})
    call, post = say("GET", "/queues")["items"]
    assert (call["name"], call["flows"], call["workers"], call["jobs"], call["pause"]) == (
        "call", ["call"], [], 0, None,
    )  # fmt: skip
    assert (post["name"], post["flows"], post["workers"], post["jobs"]) == (
        "post", ["send"], ["w1"], 3,
    )  # fmt: skip
    assert post["pause"]["actor"] == "ada"
    late, w1 = say("GET", "/workers")["items"]
    assert (late["is_alive"], w1["is_alive"], w1["queues"], w1["flows"]) == (
        False, True, ["post"], ["send"],
    )  # fmt: skip


@pytest.mark.shows("E-74")
def test_a_backlog_counts_what_is_due_delayed_and_held_by_flow_and_queue(engine, say, ask, app):
    assert say("GET", "/backlog") == {"items": []}
    for customer in "abc":
        engine.submit(engine.send, customer)
    engine.submit(engine.send, "d", after=60)
    (row,) = say("GET", "/backlog")["items"]
    assert row == {
        "flow": "send", "queue": "post", "due": 3, "delayed": 1, "parked": 0, "leased": 0,
        "held": 0, "at_least": [], "oldest_due": rfc3339(NOON), "oldest_leased": None,
        "ended_per_second": 0.0, "done_per_second": 0.0,
    }  # fmt: skip
    assert ask(app, "/backlog", headers=as_("vic")).status_code == 200
    assert ask(app, "/backlog").status_code == 401


@pytest.mark.shows("E-60")
def test_a_queue_is_paused_and_resumed_and_both_are_audited(engine, say):
    made = say("POST", "/queues/call/pause", json={"note": "a leak", "for_seconds": 900})
    assert made == {
        "kind": "queue", "name": "call", "until": rfc3339(NOON + timedelta(minutes=15)),
        "actor": "ada", "note": "a leak", "at": rfc3339(NOON), "replaces": None,
    }  # fmt: skip
    job = engine.submit(engine.call, 1)
    asyncio.run(engine.worker().run(until_idle=True))
    assert engine.get(job.id).state == "queued"
    ended = say("POST", "/queues/call/resume", json={"note": "dry"})
    assert (ended["name"], ended["actor"]) == ("call", "ada")
    asyncio.run(engine.worker().run(until_idle=True))
    assert engine.get(job.id).state == "done"
    assert [(line.actor, line.act, line.subject, line.note) for line in engine.inspect.audit()] == [
        ("ada", "resume", "queue/call", "dry"),
        ("ada", "pause", "queue/call", "a leak"),
    ]


@pytest.mark.shows("E-60")
def test_a_flow_or_a_key_is_paused_again_and_resumed(engine, say):
    say("PUT", "/pauses/flow/send", json={"until": rfc3339(NOON + timedelta(hours=1))})
    again = say("PUT", "/pauses/flow/send", json={"note": "longer"})
    assert (again["until"], again["note"]) == (None, "longer")
    assert again["replaces"]["until"] == rfc3339(NOON + timedelta(hours=1))
    # A key is any text: this one has a slash.
    say("PUT", "/pauses/key/acme/eu", json={})
    paused = say("GET", "/pauses")["items"]
    assert [(p["kind"], p["name"]) for p in paused] == [("flow", "send"), ("key", "acme/eu")]
    assert say("DELETE", "/pauses/key/acme%2Feu?note=enough")["name"] == "acme/eu"
    assert say("DELETE", "/pauses/flow/send")["name"] == "send"
    assert say("GET", "/pauses")["items"] == []
    assert engine.inspect.audit()[1].note == "enough"


# --- limits, rates and weights --------------------------------------------------


@pytest.mark.shows("E-60")
def test_a_limit_is_set_and_reset(engine, say):
    changed = say("PUT", "/limits/send/queued", json={"n": 7, "note": "more"})
    assert (changed["n"], changed["declared"], changed["keyed"]) == (7, 2, True)
    assert say("GET", "/limits")["items"] == [changed]
    assert (changed["actor"], engine.flow_control.limits()[0].n) == ("ada", 7)
    assert say("DELETE", "/limits/send/queued?note=back")["n"] == 2
    assert [(line.actor, line.note) for line in engine.inspect.audit()] == [
        ("ada", "back"),
        ("ada", "more"),
    ]


@pytest.mark.shows("E-60")
def test_a_rate_is_set_and_reset(say):
    changed = say("PUT", "/rates/call/queued", json={"n": 60, "per_seconds": 60, "burst": 3})
    assert (changed["n"], changed["per_seconds"], changed["burst"]) == (60, 60.0, 3)
    assert changed["declared"] == {"n": 5, "per_seconds": 1.0, "burst": 5}
    assert say("GET", "/rates")["items"] == [changed]
    assert say("DELETE", "/rates/call/queued")["actor"] is None


@pytest.mark.shows("E-60")
def test_a_tenant_is_given_a_weight_and_loses_it(say):
    made = say("PUT", "/weights/acme/eu", json={"weight": 3, "note": "pays more"})
    assert (made["tenant"], made["weight"], made["actor"]) == ("acme/eu", 3, "ada")
    assert say("GET", "/weights")["items"] == [made]
    assert say("DELETE", "/weights/acme/eu")["weight"] == 1
    assert say("GET", "/weights")["items"] == []


# --- what is refused ------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "body", "sentence"),
    [
        ("POST", "/queues/pots/pause", {}, 'there is no queue "pots"; there are "call" or "post"'),
        ("POST", "/queues/post/resume", {}, 'the queue "post" is not paused'),
        ("PUT", "/pauses/flow/sned", {}, 'there is no flow "sned"'),
        ("DELETE", "/pauses/flow/send", None, 'the flow "send" is not paused'),
        ("PUT", "/limits/send/other", {"n": 1}, 'there is no limit "send/other"'),
        ("DELETE", "/limits/other/queued", None, "there is no limit"),
        ("PUT", "/rates/send/queued", {"n": 1}, 'there is no rate "send/queued"'),
        ("DELETE", "/rates/call/other", None, "there is no rate"),
    ],
)
def test_a_name_that_nobody_knows_is_404(say, method, path, body, sentence):
    problem = say(method, path, 404, **({} if body is None else {"json": body}))
    assert problem["code"] == "not-found"
    assert sentence in problem["detail"]


@pytest.mark.parametrize(
    ("method", "path", "body", "about"),
    [
        ("POST", "/queues/post/pause", {"until_when": "x"}, "until_when"),
        ("POST", "/queues/post/pause", {"for_seconds": 1, "until": rfc3339(NOON)}, "not both"),
        ("POST", "/queues/post/pause", {"for_seconds": 0}, "for_seconds"),
        ("POST", "/queues/post/pause", {"for_seconds": 1e300}, "for_seconds"),
        ("POST", "/queues/post/pause", {"until": "2026-01-31T12:00:00"}, "until"),
        ("POST", "/queues/post/pause", {"until": 1e9}, "write a time as"),
        ("POST", "/queues/post/pause", {"until": rfc3339(NOON)}, "would be over already"),
        ("POST", "/queues/post/pause", {"note": "\x00"}, "NUL"),
        ("POST", "/queues/post/pause", {"note": "x" * 4001}, "note"),
        ("PUT", "/pauses/person/ada", {}, "kind"),
        ("PUT", "/pauses/key/", {}, "not empty"),
        ("PUT", "/pauses/flow/%00", {}, "NUL"),
        ("PUT", "/limits/send/queued", {"n": -1}, "n: "),
        ("PUT", "/limits/send/queued", {"n": 10_001}, "n: "),
        ("PUT", "/limits/send/queued", {"n": "7"}, "n: "),
        ("PUT", "/limits/send/queued", {}, "n: "),
        ("PUT", "/rates/call/queued", {"n": 10**9, "per_seconds": 3e8}, "bucket is too large"),
        ("PUT", "/rates/call/queued", {"n": 1, "per_seconds": 1e-9}, "more than nothing"),
        ("PUT", "/weights/acme", {"weight": 1001}, "weight"),
        ("DELETE", "/limits/send/queued?note=" + "x" * 4001, None, "note"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_422_and_changes_nothing(engine, say, method, path, body, about):
    problem = say(method, path, 422, **({} if body is None else {"json": body}))
    assert problem["code"] == "bad-input"
    assert about in problem["detail"]
    assert engine.inspect.audit() == []


def test_half_a_character_in_a_note_is_422(engine, ask, app):
    body = b'{"note": "\\ud800"}'
    headers = {**as_("ada"), "Content-Type": "application/json"}
    answer = ask(app, "/queues/post/pause", method="POST", content=body, headers=headers)
    assert answer.status_code == 422
    assert engine.inspect.audit() == []


def test_a_viewer_reads_and_changes_nothing(engine, ask, app):
    for path in ("/queues", "/pauses", "/limits", "/rates", "/weights", "/workers"):
        assert ask(app, path, headers=as_("vic")).status_code == 200
    for method, path, body in [
        ("POST", "/queues/post/pause", {}),
        ("PUT", "/pauses/flow/send", {}),
        ("PUT", "/limits/send/queued", {"n": 1}),
        ("PUT", "/weights/acme", {"weight": 2}),
    ]:
        answer = ask(app, path, method=method, json=body, headers=as_("vic"))
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert engine.inspect.audit() == []


def test_a_store_without_flow_control_is_501(engine, say):
    engine.store.features = replace(engine.store.features, flow_control=False)
    for method, path, body in [
        ("POST", "/queues/post/pause", {}),
        ("PUT", "/limits/send/queued", {"n": 1}),
        ("PUT", "/weights/acme", {"weight": 2}),
    ]:
        assert say(method, path, 501, json=body)["code"] == "not-supported"


def test_where_nobody_is_asked_the_actor_is_anonymous(engine, ask):
    answer = ask(ulak.web.app(engine, identity=None), "/pauses/flow/send", method="PUT", json={})
    assert answer.json()["actor"] == "anonymous"
