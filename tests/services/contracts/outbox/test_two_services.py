"""A local and a remote contract service, over a real network, with real deaths."""

import json
import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from fastapi import FastAPI, Response

from tests.scenario.doubles import eventually
from tests.services.contracts.house import House
from tests.services.contracts.outbox.pair import (
    NOWHERE,
    Home,
    dispatch_and_die,
    served,
    serving,
    towards,
)
from ulak.clock import ManualClock
from ulak.services.contracts.outbox.settings import RemoteSettings
from ulak.testing import faults


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[House]:
    made = House(f"sqlite:///{tmp_path / 'remote.db'}")
    yield made
    made.close()


@pytest.fixture
def open_home(url: str) -> Iterator[Callable[..., Home]]:
    made: list[Home] = []

    def start(settings: RemoteSettings, **options: object) -> Home:
        made.append(Home(url, settings, **options))
        return made[-1]

    yield start
    for home in made:
        home.close()


@pytest.mark.shows("I-48", "I-57")
def test_a_change_is_decided_here_and_told_there(
    open_home: Callable[..., Home], remote: House
) -> None:
    with served(remote) as address:
        home = open_home(towards(address))
        assert home.move("k1", from_="pending", to="paid", actor_id="u-1").status_code == 200
        assert home.move("k2", to="cancelled").status_code == 200
        # Replays, refusals and what changes nothing are no news.
        home.move("k1", from_="pending", to="paid", actor_id="u-1")
        home.move("k3", to="paid")
        home.move("k4", to="cancelled")
        assert [event.status for event in home.events()] == ["pending", "pending"]
        assert remote.proofs() == []
        assert home.send() == {"sent": 2}
    assert [event.status for event in home.events()] == ["sent", "sent"]
    assert [event.drift for event in home.events()] == [None, None]
    assert remote.subject()["status"] == home.subject()["status"] == "cancelled"
    local = [proof["proof_id"] for proof in home.proofs()]
    told = [proof["idempotency_key"] for proof in remote.proofs()]
    assert told == [f"pazar:proof:status_change:{id}" for id in local]


@pytest.mark.shows("I-48")
def test_a_change_whose_event_cannot_be_written_is_not_made(
    open_home: Callable[..., Home],
) -> None:
    home = open_home(towards(NOWHERE))
    home.move("k0", from_="pending", to="paid")
    home.sql("ALTER TABLE {schema}.deliveries RENAME TO hidden")
    assert home.move("k1", to="cancelled").status_code >= 500
    assert home.subject()["status"] == "paid"
    assert len(home.proofs()) == 1
    home.sql("ALTER TABLE {schema}.hidden RENAME TO deliveries")
    assert home.move("k1", to="cancelled").status_code == 200
    assert len(home.events()) == 2


@pytest.mark.shows("I-52")
def test_a_dispatcher_that_dies_after_the_remote_accepted_leads_to_the_same_proof(
    url: str, open_home: Callable[..., Home], remote: House
) -> None:
    clock = ManualClock(datetime.now(UTC))
    with served(remote) as address:
        home = open_home(towards(address), clock=clock)
        home.move("k1", from_="pending", to="paid")
        died = faults.run(dispatch_and_die, url, address)
        assert died.killed, died.errors
        status, _, body = died.lines[0].partition(" ")
        assert status == "200"
        # The remote has it, and here nobody knows.
        accepted = json.loads(body)["proof_id"]
        assert [proof["proof_id"] for proof in remote.proofs()] == [accepted]
        assert [event.status for event in home.events()] == ["processing"]
        assert home.send() == {}
        clock.advance(timedelta(minutes=10))
        assert home.send() == {"sent": 1}
    (event,) = home.events()
    assert event.status == "sent"
    assert event.response_json == body  # to the byte
    assert [proof["proof_id"] for proof in remote.proofs()] == [accepted]
    assert remote.subject()["version"] == 1


@pytest.mark.shows("I-57")
def test_a_remote_that_cannot_be_reached_harms_nobody(open_home: Callable[..., Home]) -> None:
    home = open_home(towards(NOWHERE))
    assert home.move("k1", from_="pending", to="paid").json()["ok"] is True
    assert home.send() == {"pending": 1}
    assert home.move("k2", to="cancelled").json()["ok"] is True
    assert home.get("/v1/ready").status_code == 200


@pytest.mark.shows("I-57")
def test_a_remote_that_judges_otherwise_is_drift(
    open_home: Callable[..., Home], remote: House, caplog: pytest.LogCaptureFixture
) -> None:
    remote.move("theirs", from_="pending", to="cancelled")
    with served(remote) as address:
        home = open_home(towards(address))
        home.move("k1", from_="pending", to="paid")
        with caplog.at_level(logging.WARNING, "ulak.contracts.outbox"):
            home.send()
    (event,) = home.events()
    assert (event.status, event.drift) == ("rejected", "HTTP 409: stale_status")
    assert "drift: the remote judges otherwise" in caplog.text
    assert home.subject()["status"] == "paid"


@pytest.mark.shows("I-50", "I-57")
def test_workers_send_events_without_being_asked(
    open_home: Callable[..., Home], remote: House
) -> None:
    with served(remote) as address:
        home = open_home(towards(address))
        with home.engine.working():
            home.move("k1", from_="pending", to="paid")
            eventually(lambda: [event.status for event in home.events()] == ["sent"])
    assert len(remote.proofs()) == 1


@pytest.mark.shows("I-57")
def test_in_mode_remote_the_remote_decides(open_home: Callable[..., Home], remote: House) -> None:
    with served(remote) as address:
        home = open_home(towards(address, mode="remote"))
        first = home.move("k1", from_="pending", to="paid", meta={"price": 1.50})
        assert first.status_code == 200
        again = home.move("k1", from_="pending", to="paid", meta={"price": 1.50})
        assert again.content == first.content
        assert again.headers["Idempotent-Replayed"] == "true"
        refused = home.move("k2", from_="pending", to="cancelled")
        assert (refused.status_code, refused.json()["reason"]) == (409, "stale_status")
        reused = home.move("k1", to="cancelled")
        assert (reused.status_code, reused.json()["code"]) == (422, "idempotency_key_reused")
        (proof,) = remote.proofs()
        assert (proof["proof_id"], proof["source"]) == (first.json()["proof_id"], "key:shop")
        question = {"tenant_id": "acme", "subject_type": "order", "subject_id": "1", "to": "paid"}
        allowed = home.post("/v1/contract/can-transition", question)
        assert allowed.json() == {
            "allowed": True, "reason": None, "contract_version": "2025-12-28",
        }  # fmt: skip
        assert home.get("/v1/contract").json() == remote.get("/v1/contract").json()
        elsewhere = home.get("/v1/proof")
        assert elsewhere.status_code == 501
        assert address in elsewhere.json()["detail"]
        # The caller's tenant is asked here, since the remote knows our key only.
        foreign = home.move("k9", who="acme-service", tenant_id="other", from_="pending", to="paid")
        assert foreign.status_code == 403


@pytest.mark.shows("I-57")
def test_in_mode_remote_nothing_changes_and_nothing_is_allowed_while_it_is_away(
    open_home: Callable[..., Home],
) -> None:
    home = open_home(towards(NOWHERE, mode="remote"))
    answer = home.move("k1", from_="pending", to="paid")
    assert answer.status_code == 503
    assert answer.json()["code"] == "remote_unavailable"
    assert answer.json()["retryable"] is True
    question = {"subject_type": "order", "from": "pending", "to": "paid"}
    allowed = home.post("/v1/contract/can-transition", question)
    assert allowed.status_code == 200
    assert allowed.json()["allowed"] is False
    assert allowed.json()["reason"] == "remote_unavailable"
    assert home.get("/v1/contract").json()["versions"] == {}


@pytest.mark.shows("I-57")
@pytest.mark.parametrize("who", ["nobody", "viewer"])
def test_in_mode_remote_a_key_that_the_remote_refuses_is_not_the_callers_fault(
    open_home: Callable[..., Home], remote: House, who: str
) -> None:
    with served(remote) as address:
        home = open_home(towards(address, mode="remote", api_key=who))
        assert home.move("k1", from_="pending", to="paid").status_code == 503


@pytest.mark.shows("I-53", "I-57")
@pytest.mark.parametrize("status", [200, 404])
@pytest.mark.parametrize(
    ("media_type", "page"), [("text/html", "<h1>Log in</h1>"), ("application/json", '{"a": 1}')]
)
def test_in_mode_remote_a_page_of_another_program_is_no_answer(
    open_home: Callable[..., Home], status: int, media_type: str, page: str
) -> None:
    gateway = FastAPI()

    @gateway.api_route("/{path:path}", methods=["GET", "POST"])
    def show() -> Response:
        return Response(page, status, media_type=media_type)

    with serving(gateway) as address:
        home = open_home(towards(address, mode="remote"))
        answer = home.move("k1", from_="pending", to="paid")
        assert (answer.status_code, answer.json()["code"]) == (503, "remote_unavailable")
        question = {"subject_type": "order", "from": "pending", "to": "paid"}
        allowed = home.post("/v1/contract/can-transition", question)
        assert (allowed.status_code, allowed.json()["reason"]) == (200, "remote_unavailable")
        assert home.get("/v1/contract").json()["versions"] == {}


@pytest.mark.shows("I-57")
def test_embedded_writes_no_events_and_serves_no_outbox(open_home: Callable[..., Home]) -> None:
    home = open_home(RemoteSettings())
    assert home.move("k1", from_="pending", to="paid").status_code == 200
    assert home.events() == []
    assert home.get("/v1/outbox/ready", who="operator").status_code == 404
