"""`POST /jobs` with an `Idempotency-Key`: the job and the record of the key are one commit."""

import asyncio

import httpx
import pytest

import ulak
import ulak.web
from tests.conformance.places import place_of
from tests.web.idempotent import STORES, same
from tests.web.people import Known, as_
from ulak.errors import BadInput, StoreError
from ulak.idempotency.settings import IdempotencySettings
from ulak.store.records import RecordId
from ulak.wiring import guard_of, idempotency_settings

BODY = {"flow": "greet", "payload": ["ada"]}


@pytest.fixture(params=STORES)
def engine(request, tmp_path):
    with place_of(request.param, request, tmp_path) as where:
        url = {"memory": "memory://", "sqlite": f"sqlite:///{where}"}.get(request.param, where)
        made = ulak.connect(url)

        @made.job
        def greet(name: str) -> str:
            return f"hello {name}"

        with made:
            yield made


@pytest.fixture
def app(engine):
    return ulak.web.app(engine, identity=Known())


@pytest.fixture
def submit(ask, app):
    def send(key=None, who="service", **body):
        headers = as_(who) | ({} if key is None else {"Idempotency-Key": key})
        return ask(app, "/jobs", method="POST", json={**BODY, **body}, headers=headers)

    return send


@pytest.mark.shows("I-2", "I-3", "I-27")
def test_a_repeated_submission_makes_no_second_job(engine, submit):
    first, again = submit("order-1"), submit("order-1")
    assert first.status_code == 201
    assert same(first, again)
    assert again.headers["location"] == first.headers["location"]
    assert [job.id for job in engine.jobs()] == [first.json()["id"]]
    asyncio.run(engine.worker().run(until_idle=True))
    assert same(first, submit("order-1"))  # as it was answered, not as the job stands now
    assert engine.result(first.json()["id"]) == "hello ada"


def test_without_a_key_nothing_has_changed(engine, submit):
    answers = [submit(), submit()]
    assert {answer.status_code for answer in answers} == {201}
    assert len(engine.jobs()) == 2
    assert answers[0].headers["idempotent-replayed"] == "false"


@pytest.mark.shows("I-6", "I-7", "I-13")
def test_keys_are_of_a_tenant_and_of_an_actor(engine, submit):
    submit("order-1")
    assert submit("order-1", "acme-service").status_code == 201
    other = submit("order-1", "operator")
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
    assert other.json()["correlation_id"]
    assert submit("order-1", "viewer").status_code == 403
    assert submit("order-1", "nobody").status_code == 401
    assert len(engine.jobs()) == 2


@pytest.mark.shows("I-18")
def test_a_submission_that_cannot_be_used_leaves_the_key_free(engine, submit):
    assert submit("order-1", flow="nothing").status_code == 422
    assert submit("order-1", prioriti=1).status_code == 422
    assert submit("order-1", "acme-service", tenant="other").status_code == 403
    assert engine.store.find_records([RecordId("", "jobs.submit", "order-1")]) == [None]
    assert submit("order-1").status_code == 201


@pytest.mark.shows("I-8", "I-27")
def test_many_at_once_make_one_job(engine, app):
    async def post_all():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://ulak") as client:
            headers = as_("service") | {"Idempotency-Key": "order-1"}
            posts = [client.post("/jobs", json=BODY, headers=headers) for _ in range(50)]
            return await asyncio.gather(*posts)

    answers = asyncio.run(post_all())
    assert {answer.status_code for answer in answers} <= {201, 409}
    assert len({answer.content for answer in answers if answer.status_code == 201}) == 1
    assert len(engine.jobs()) == 1


def test_a_job_and_its_record_are_one_commit(engine, submit, monkeypatch):
    if not engine.store.features.open_transactions:
        pytest.skip("in memory there is no transaction that both could be in")
    from ulak.idempotency.execution import Transactional

    def fail(self, answer):
        self._give_up()
        raise RuntimeError("the process would have died here")

    monkeypatch.setattr(Transactional, "_store", fail)
    failed = submit("order-1")
    assert (failed.status_code, failed.json()["code"]) == (500, "internal-error")
    assert failed.headers["idempotency-key"] == "order-1"
    assert failed.headers["idempotent-replayed"] == "false"
    assert engine.jobs() == []
    monkeypatch.undo()
    assert submit("order-1").status_code == 201


@pytest.mark.shows("I-9")
def test_while_nobody_can_be_looked_up_nothing_is_executed(engine, submit, monkeypatch):
    def fail(*_):
        raise StoreError("the disk is gone")

    monkeypatch.setattr(Known, "authenticate", fail)
    answer = submit("order-1")
    assert (answer.status_code, answer.json()["code"]) == (503, "idempotency_store_unavailable")
    assert answer.headers["idempotent-replayed"] == "false"
    assert submit().json()["code"] == "store-error", "without a key nothing is protected"
    monkeypatch.undo()
    assert submit("order-1").headers["idempotent-replayed"] == "false"
    assert len(engine.jobs()) == 1


def test_the_document_tells_of_keys(engine, app):
    operation = app.openapi()["paths"]["/jobs"]["post"]
    (parameter,) = [p for p in operation["parameters"] if p["name"] == "Idempotency-Key"]
    assert (parameter["in"], parameter["required"]) == ("header", False)
    assert {"400", "409", "422", "503"} <= operation["responses"].keys()
    assert "Idempotent-Replayed" in operation["responses"]["201"]["headers"]


# --- settings -------------------------------------------------------------------------


def test_the_settings_are_those_of_the_specification():
    kept = idempotency_settings({})
    assert kept == IdempotencySettings()
    assert (kept.backend, kept.ttl_seconds, kept.lease_seconds) == ("sql", 604800, 60)
    assert (kept.lock_wait_ms, kept.max_body_bytes) == (2000, 1048576)
    assert (kept.cleanup_cron, kept.cleanup_batch) == ("0 3 * * *", 1000)
    said = idempotency_settings({"IDEMPOTENCY_TTL_SECONDS": "60", "IDEMPOTENCY_LOCK_WAIT_MS": "5"})
    scope = said.scope("orders")
    assert (scope.ttl.total_seconds(), scope.lock_wait.total_seconds()) == (60, 0.005)


def test_every_bad_setting_is_named_at_once():
    with pytest.raises(BadInput) as refused:
        idempotency_settings(
            {
                "IDEMPOTENCY_BACKEND": "mysql", "IDEMPOTENCY_REDIS_URL": "http://:hunter2@cache",
                "IDEMPOTENCY_REDIS_ALLOW_VOLATILE": "perhaps", "IDEMPOTENCY_TTL_SECONDS": "0",
                "IDEMPOTENCY_CLEANUP_CRON": "daily", "IDEMPOTENCY_CLEANUP_BATCH": "many",
            }
        )  # fmt: skip
    said = str(refused.value)
    assert "'mysql' is none; write sql, redis or memory" in said
    assert "hunter2" not in said
    for name in (
        "REDIS_URL",
        "REDIS_ALLOW_VOLATILE",
        "TTL_SECONDS",
        "CLEANUP_CRON",
        "CLEANUP_BATCH",
    ):
        assert f"IDEMPOTENCY_{name}" in said


def test_production_refuses_to_start_on_records_that_are_forgotten(engine, monkeypatch, tmp_path):
    memory = IdempotencySettings(backend="memory")
    with pytest.raises(BadInput, match="IDEMPOTENCY_BACKEND is memory"):
        guard_of(engine, "production", memory)
    assert guard_of(engine, "dev", memory).features.name == "memory"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ULAK_ENV", "production")
    if engine.store.features.durable:
        ulak.web.app(engine, identity=Known())
    else:
        with pytest.raises(BadInput, match=r"must outlive the process.*the memory store"):
            ulak.web.app(engine, identity=Known())
