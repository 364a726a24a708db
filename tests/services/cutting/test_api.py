"""The API of section 1.2: the same answers at both addresses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from tests.services.cutting.desk import Desk
from tests.services.cutting.orders import PHONE, make_back, make_order, make_part
from ulak.core.lifecycle import states_of
from ulak.services.cutting import page
from ulak.services.cutting.flow import LIFECYCLE
from ulak.services.cutting.routes import PREFIX

NOBODY = "00000000-0000-4000-8000-000000000000"
A_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
JOB = {
    "id", "order_id", "payload_json", "payload_hash", "state", "error_code", "error_message",
    "retry_count", "opti_mode", "next_run_at", "manual_trigger_approved", "created_at",
    "updated_at",
}  # fmt: skip
AUDIT = {"id", "job_id", "event_type", "message", "details_json", "actor", "created_at"}


AT_BOTH = pytest.mark.parametrize("prefix", [PREFIX, ""], ids=["below /cutting", "bare"])


@pytest.fixture
def prefix() -> str:
    """At which address everything of a test is asked."""
    return PREFIX


@pytest.fixture
def ask(desk: Desk, prefix: str) -> Callable[..., Any]:
    return lambda *asked, **options: desk.ask(*asked, prefix=prefix, **options)


@pytest.fixture
def refuse(desk: Desk, prefix: str) -> Callable[..., Any]:
    return lambda *asked, **options: desk.refuse(*asked, prefix=prefix, **options)


@AT_BOTH
@pytest.mark.shows("C-6")
def test_health_is_asked_by_everybody(ask):
    said = ask("GET", "/health", who="")
    assert (said["status"], said["service"]) == ("ok", "orchestrator")
    assert A_TIME.fullmatch(said["timestamp"])
    assert set(said) == {"status", "service", "timestamp"}


@pytest.mark.shows("C-6")
def test_a_customer_is_found_and_stored_once(ask, refuse):
    known = {"success": True, "phone_normalized": "+905551234567"}
    assert ask("GET", f"/customers/lookup?phone={PHONE}") == {**known, "customer": None}
    assert refuse("GET", "/customers/lookup") == (400, "E_PHONE_REQUIRED")
    assert refuse("GET", "/customers/lookup?phone=%20") == (400, "E_PHONE_REQUIRED")
    made = ask("POST", "/customers", {"name": "Ada", "phone": PHONE}, status=201)["customer"]
    assert set(made) == {"id", "name", "phone_normalized", "created_at"}
    assert A_TIME.fullmatch(made["created_at"])
    again = ask("POST", "/customers", {"name": "Grace", "phone": "+90 555 1234567"})
    assert again == {"customer": made}
    assert ask("GET", "/customers/lookup?phone=5551234567") == {**known, "customer": made}
    for wrong in ({}, {"name": "", "phone": "1"}, {"name": "Ada", "phone": "-"}, [], "Ada"):
        assert refuse("POST", "/customers", wrong) == (422, "E_VALIDATION")


@AT_BOTH
@pytest.mark.shows("C-6", "C-9")
def test_an_order_is_a_job_and_the_same_order_is_the_same_job(ask, desk):
    order = make_order()
    job = ask("POST", "/jobs", order, status=201)["job"]
    assert set(job) == JOB
    assert UUID(job["id"])
    assert (job["order_id"], job["state"]) == (order["order_id"], "NEW")
    assert (job["error_code"], job["error_message"]) == (None, None)
    assert (job["retry_count"], job["manual_trigger_approved"]) == (0, 0)
    assert job["opti_mode"] == json.loads(job["payload_json"])["opti_mode"] == "E"
    assert re.fullmatch("[0-9a-f]{64}", job["payload_hash"])
    assert all(A_TIME.fullmatch(job[at]) for at in ("next_run_at", "created_at", "updated_at"))
    again = ask("POST", "/jobs", order)
    assert (again["deduplicated"], again["job"]["id"]) == (True, job["id"])
    path = f"/orders/{order['order_id']}/import/xlsx"
    third = ask("POST", path, {**order, "order_id": "of the body"})
    assert (third["deduplicated"], third["job"]["id"]) == (True, job["id"])
    other = ask("POST", "/orders/another/import/xlsx", order, status=201)["job"]
    assert (other["order_id"], "deduplicated" in other) == ("another", False)


@AT_BOTH
@pytest.mark.shows("C-8")
def test_a_refused_order_names_every_problem_by_its_path(desk, prefix):
    wrong = make_order(make_part(grain=7), make_part(id="b", quantity=0), customer_phone="")
    for path in ("/jobs", "/orders/one/import/xlsx"):
        told = desk.send("POST", path, wrong, prefix=prefix)
        assert told.status_code == 422
        error = told.json()["error"]
        assert error["code"] == "E_VALIDATION"
        problems = [problem.partition(": ") for problem in error["message"].split("; ")]
        assert [path for path, *_ in problems] == [
            "customer_phone", "parts.0.grain", "parts.1.quantity"
        ]  # fmt: skip
        assert all(text for *_, text in problems)


@pytest.mark.shows("C-8")
@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'{"order_id": NaN}', b'{"a": 1, "a": 2}', b"\xff", b"[" * 100_000],
)
def test_what_is_no_json_object_is_refused_with_a_sentence(desk, body):
    for method, path in (("POST", "/jobs"), ("PUT", "/config/rules")):
        told = desk.send(method, path, content=body)
        assert told.status_code == 422, told.text
        error = told.json()["error"]
        assert (error["code"], error["message"].partition(":")[0]) == ("E_VALIDATION", "body")


@pytest.mark.shows("C-5", "C-6")
@pytest.mark.parametrize("path", ["/jobs", "/orders/one/import/xlsx"])
def test_a_body_above_five_megabytes_is_413(desk, prefix, path):
    most = 5 * 1024 * 1024
    body = json.dumps(make_order(iidesc="x")).encode()
    fits, larger = body.ljust(most), body.ljust(most + 1)
    assert desk.send("POST", path, content=fits, prefix=prefix).status_code == 201
    for sent in (larger, body.ljust(9 * 1024 * 1024)):
        told = desk.send("POST", path, content=sent, prefix=prefix)
        assert told.status_code == 413
        assert told.json()["error"]["code"] == "E_PAYLOAD_TOO_LARGE"


@pytest.mark.shows("C-7", "C-10")
def test_a_list_is_the_newest_first_within_its_limit(ask, refuse, desk):
    for number in range(3):
        ask("POST", "/jobs", make_order(order_id=f"order {number}"), status=201)
    ask("POST", "/jobs", make_order(order_id="order 1", revision=2), status=201)

    def listed(query: str) -> tuple[list[str], int]:
        found = ask("GET", f"/jobs{query}")
        assert all(set(job) == JOB for job in found["jobs"])
        return [job["order_id"] for job in found["jobs"]], found["total"]

    everything = ["order 1", "order 2", "order 1", "order 0"]
    for query in ("", "?limit=", "?limit=many", "?limit=nan", "?limit=501", "?limit=1e9"):
        assert listed(query) == (everything, 4)
    for query in ("?limit=0", "?limit=-7", "?limit=1.9"):
        assert listed(query) == (everything[:1], 4)
    assert listed("?limit=2&offset=1") == (everything[1:3], 4)
    assert listed("?offset=4") == ([], 4)
    assert listed("?order_id=order%201") == (["order 1", "order 1"], 2)
    assert listed("?state=NEW&order_id=order%202") == (["order 2"], 1)
    assert listed("?state=HOLD") == ([], 0)
    for query in ("?state=LOST", "?offset=-1", "?offset=x", "?order_id=%00"):
        assert refuse("GET", f"/jobs{query}") == (422, "E_VALIDATION")


@pytest.mark.shows("C-7")
def test_a_list_has_a_hundred_jobs_when_no_number_is_said_and_five_hundred_at_most(desk):
    seen: list[int] = []
    desk.cutting.jobs.list = lambda **asked: (seen.append(asked["limit"]), ([], 0))[1]
    for said in ("", "?limit=x", "?limit=600", "?limit=500", "?limit=12.9", "?limit=-1"):
        desk.ask("GET", f"/jobs{said}")
    assert seen == [100, 100, 500, 500, 12, 1]


@pytest.mark.shows("C-6", "C-9")
def test_a_job_is_read_with_its_audit_and_without_its_claim(ask, refuse):
    made = ask("POST", "/jobs", make_order(), status=201)["job"]
    read = ask("GET", f"/jobs/{made['id']}")
    assert (set(read), read["job"]) == ({"job", "audit"}, made)
    assert all(set(line) == AUDIT for line in read["audit"])
    ids = [line["id"] for line in read["audit"]]
    assert ids == sorted(set(ids))
    assert [line["event_type"] for line in read["audit"]] == ["JOB_CREATED", "STATE_NEW"]
    assert ask("GET", f"/jobs/{made['id']}/audit") == {"audit": read["audit"]}
    for unknown in (NOBODY, "nobody", "%00"):
        for path in ("", "/audit", "/xml", "/merges", "/receipt"):
            assert refuse("GET", f"/jobs/{unknown}{path}") == (404, "E_JOB_NOT_FOUND")
        for act in ("retry", "approve", "cancel"):
            assert refuse("POST", f"/jobs/{unknown}/{act}") == (404, "E_JOB_NOT_FOUND")


@AT_BOTH
@pytest.mark.shows("C-6")
def test_an_order_is_held_approved_done_and_read(ask, refuse, desk):
    order = make_order(make_part(), make_back())
    job = ask("POST", "/jobs", order, status=201)["job"]["id"]
    assert refuse("GET", f"/jobs/{job}/xml") == (400, "E_XML_NOT_READY")
    assert refuse("POST", f"/jobs/{job}/approve") == (400, "E_JOB_NOT_IN_HOLD")
    assert refuse("POST", f"/jobs/{job}/retry") == (400, "E_JOB_NOT_FAILED")
    desk.work()
    assert ask("GET", f"/jobs/{job}")["job"]["error_code"] == "E_CRM_NO_MATCH"
    assert refuse("POST", f"/jobs/{job}/retry") == (400, "E_JOB_NOT_FAILED")
    desk.know(order["customer_phone"])
    approved = ask("POST", f"/jobs/{job}/approve")
    assert (set(approved), approved["success"]) == ({"success", "job"}, True)
    assert (approved["job"]["state"], approved["job"]["error_code"]) == ("NEW", None)
    desk.work()
    assert ask("GET", f"/jobs/{job}")["job"]["state"] == "DONE"
    links = ask("GET", f"/jobs/{job}/xml", status=300)["links"]
    assert len(links) == 2
    for link in links:
        told = desk.send("GET", link.removeprefix(desk_prefix(link)), prefix=desk_prefix(link))
        assert told.headers["content-type"] == "application/xml"
        assert b"<Solution" in told.content
    assert refuse("GET", f"/jobs/{job}/xml?batch=2")[0] == 404
    assert refuse("GET", f"/jobs/{job}/xml?batch=x") == (422, "E_VALIDATION")
    assert "receipt" in ask("GET", f"/jobs/{job}/receipt")
    assert "merges" in ask("GET", f"/jobs/{job}/merges")
    for act, code in (("approve", "E_JOB_NOT_IN_HOLD"), ("retry", "E_JOB_NOT_FAILED")):
        assert refuse("POST", f"/jobs/{job}/{act}") == (400, code)
    assert refuse("POST", f"/jobs/{job}/cancel")[0] == 400


def desk_prefix(link: str) -> str:
    return PREFIX if link.startswith(PREFIX) else ""


@pytest.mark.shows("C-6")
def test_a_cancelled_job_is_failed_for_good(ask, refuse, desk):
    job = ask("POST", "/jobs", make_order(), status=201)["job"]["id"]
    cancelled = ask("POST", f"/jobs/{job}/cancel")["job"]
    assert (cancelled["state"], cancelled["error_code"]) == ("FAILED", "E_CANCELLED")
    assert refuse("POST", f"/jobs/{job}/retry") == (400, "E_CANCELLED")
    assert refuse("POST", f"/jobs/{job}/cancel")[0] == 400
    assert refuse("POST", f"/jobs/{job}/approve") == (400, "E_JOB_NOT_IN_HOLD")


@pytest.mark.shows("C-6")
def test_a_failed_job_is_retried_as_often_as_the_rules_say(open_desk, prefix):
    desk = open_desk(retry_count_max=1)
    desk.know()
    order = make_order(customer_phone=PHONE, opti_mode="A")
    job = desk.ask("POST", "/jobs", order, status=201)["job"]["id"]
    desk.work()
    failed = desk.ask("GET", f"/jobs/{job}", prefix=prefix)["job"]
    assert failed["error_code"] == "E_OPTI_MODE_A_RUNNER_MISSING"
    retried = desk.ask("POST", f"/jobs/{job}/retry", prefix=prefix)
    assert retried == {"success": True, "retry_count": 1}
    assert desk.ask("GET", f"/jobs/{job}", prefix=prefix)["job"]["state"] == "NEW"


@pytest.mark.shows("C-6")
@pytest.mark.parametrize("name", ["rules", "paths"])
def test_the_files_are_read_and_put_whole(ask, refuse, desk, name):
    path = f"/config/{name}"
    found = ask("GET", path)
    assert ask("PUT", path, found) == found
    for wrong in ({}, {**found, "no such key": 1}):
        assert refuse("PUT", path, wrong) == (422, "E_VALIDATION")
    assert ask("GET", path) == found
    (desk.folder / "cutting" / f"{name}.json").write_text("{")
    assert refuse("GET", path) == (503, "E_CONFIG_UNAVAILABLE")
    assert ask("PUT", path, found) == found


@pytest.mark.shows("C-6")
def test_the_worker_is_read_and_its_breaker_reset(ask, refuse):
    status = ask("GET", "/jobs/worker/status")
    assert ask("POST", "/jobs/worker/reset").keys() == status.keys()
    assert refuse("POST", "/jobs/worker/reset", who="operator") == (403, "E_FORBIDDEN")


@AT_BOTH
@pytest.mark.shows("C-6", "C-86")
def test_every_route_needs_its_role_and_says_so_in_the_envelope(desk, prefix):
    kinds = {
        "viewer": [
            ("GET", "/customers/lookup?phone=1"), ("GET", "/jobs"), ("GET", "/jobs/worker/status"),
            *(("GET", f"/jobs/{NOBODY}{x}") for x in ("", "/audit", "/xml", "/merges", "/receipt")),
        ],
        "operator": [
            ("POST", "/customers"), ("POST", "/jobs"), ("POST", "/orders/one/import/xlsx"),
            *(("POST", f"/jobs/{NOBODY}/{act}") for act in ("retry", "approve", "cancel")),
        ],
        "admin": [
            *((verb, f"/config/{name}") for verb in ("GET", "PUT") for name in ("rules", "paths")),
            ("POST", "/jobs/worker/reset"),
        ],
    }  # fmt: skip
    tested = {("GET", "/health")}
    roles = list(kinds)
    for needed, asked in kinds.items():
        for method, path in asked:
            for who in ("", "nobody"):
                said = desk.refuse(method, path, who=who, prefix=prefix)
                assert said == (401, "E_UNAUTHORIZED"), path
            for who in roles:
                told = desk.send(method, path, who=who, prefix=prefix)
                refused = roles.index(who) < roles.index(needed)
                assert (told.status_code == 403) is refused, (who, path)
                if refused:
                    assert told.json()["error"]["code"] == "E_FORBIDDEN"
            tested.add((method, re.sub(rf"{NOBODY}|(?<=orders/)one", "*", path.partition("?")[0])))
    served = {
        (method.upper(), re.sub(r"{\w+}", "*", path.removeprefix(PREFIX)))
        for path, methods in desk.apps[PREFIX].openapi()["paths"].items()
        for method in methods
        if path.startswith(PREFIX)
    }
    assert served == tested
    # Those of one tenant have no part of a workshop that is everybody's.
    assert desk.refuse("GET", "/jobs", who="acme-operator", prefix=prefix) == (403, "E_FORBIDDEN")


@pytest.mark.shows("C-108")
def test_both_addresses_serve_the_same_routes_and_the_bare_one_nothing_else_but_logins(desk):
    def routes_of(prefix: str) -> set[tuple[str, str]]:
        return {
            (method, path.removeprefix(prefix))
            for path, methods in desk.apps[prefix].openapi()["paths"].items()
            for method in methods
            if path.startswith(prefix)
        }

    extra = routes_of("") - routes_of(PREFIX)
    assert routes_of(PREFIX) <= routes_of("")
    assert {path for _, path in extra} == {
        "/health/live", "/health/ready", "/metrics", "/openapi.json", "/docs",
    }  # fmt: skip
    # There a bare POST /jobs takes an order; on the main address it is ulak's own.
    assert "job" in desk.ask("POST", "/jobs", make_order(), status=201, prefix="")
    assert desk.send("GET", "/flows", prefix="").status_code == 404


@pytest.mark.shows("C-108")
@pytest.mark.parametrize("verb", ["approve", "release"])
def test_acts_of_the_engine_have_the_same_effect_codes_and_audit(desk, verb):
    order = make_order(opti_mode="C")
    desk.know()
    ours, theirs = (
        desk.ask("POST", "/jobs", order | {"order_id": name}, status=201)["job"]["id"]
        for name in ("ours", "theirs")
    )
    desk.work()
    main = desk.apps[PREFIX]
    desk.apps["/jobs"] = main  # the same application, below its own path
    desk.ask("POST", f"/jobs/{ours}/approve")
    desk.ask("POST", f"/{theirs}/{verb}", prefix="/jobs")
    both = [desk.ask("GET", f"/jobs/{job}") for job in (ours, theirs)]
    for read in both:
        assert (read["job"]["state"], read["job"]["manual_trigger_approved"]) == ("NEW", 1)
    # One fails, as its plan never comes, and is retried by each.
    assert told_of(both[0]) == told_of(both[1])


@pytest.mark.shows("C-108")
def test_a_retry_of_the_engine_has_the_same_effect_codes_and_audit(desk):
    order = make_order(opti_mode="A")
    desk.know()
    desk.apps["/jobs"] = desk.apps[PREFIX]
    ours, theirs = (
        desk.ask("POST", "/jobs", order | {"order_id": name}, status=201)["job"]["id"]
        for name in ("ours", "theirs")
    )
    desk.work()
    desk.ask("POST", f"/jobs/{ours}/retry")
    desk.ask("POST", f"/{theirs}/retry", prefix="/jobs")
    both = [desk.ask("GET", f"/jobs/{job}") for job in (ours, theirs)]
    for read in both:
        assert (read["job"]["state"], read["job"]["retry_count"]) == ("NEW", 1)
    assert told_of(both[0]) == told_of(both[1])


def told_of(read: Any) -> list[tuple[str, str, str, list[str]]]:
    """What the audit says, without what differs between two jobs."""
    return [
        (
            line["event_type"],
            line["message"],
            line["actor"],
            sorted(json.loads(line["details_json"])),
        )
        for line in read["audit"]
        if line["event_type"] not in ("STATE_OPTI_IMPORTED",)
    ]


def test_the_states_of_a_filter_are_those_of_the_flow():
    assert sorted(page.STATES) == sorted(states_of(LIFECYCLE))
