"""Many ask at once, in threads and in processes: every change is one, whole, and proved."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from threading import Event
from time import monotonic, sleep
from typing import Any

import pytest

from tests.services.contracts.house import TENANT, House, backdoor
from ulak.services.contracts import ledger

ROOT = Path(__file__).parents[3]
PATIENCE_S = 120
CROWD = 12
WAITING = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


def asked(key: str, to: str, *, id: str = "1", **members: Any) -> dict[str, Any]:
    return {"tenant_id": TENANT, "type": "order", "id": id, "to": to, "key": key, **members}


@contextmanager
def child(url: str, requests: list[dict[str, Any]], how: str = "live") -> Iterator[Any]:
    command = [sys.executable, "-m", "tests.services.contracts.child", url, json.dumps(requests)]
    with subprocess.Popen(
        [*command, how], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def in_two_processes(url: str, *requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Have processes ask at the same moment; answer what each was told."""
    told: list[dict[str, Any]] = []
    with child(url, requests[0]) as one, child(url, requests[1]) as other:
        for process in (one, other):
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in (one, other):
            told += json.loads(process.communicate(timeout=PATIENCE_S)[0])
    return told


def at_once(house: House, requests: list[dict[str, Any]]) -> list[Any]:
    with ThreadPoolExecutor(len(requests)) as threads:
        return list(threads.map(lambda body: house.post("/v1/contract/transition", body), requests))


def over_http(key: str, to: str, **members: Any) -> dict[str, Any]:
    return {
        "tenant_id": TENANT, "subject_type": "order", "subject_id": "1", "to": to,
        "idempotency_key": key, **members,
    }  # fmt: skip


@pytest.mark.shows("I-37")
def test_of_many_keys_that_ask_the_same_change_one_changes(house: House) -> None:
    bodies = [over_http(f"k{n}", "paid", **{"from": "pending"}) for n in range(CROWD)]
    answers = at_once(house, bodies)
    assert {answer.status_code for answer in answers} == {200}
    assert sorted(answer.json()["changed"] for answer in answers) == [False] * 11 + [True]
    assert len({answer.json()["proof_id"] for answer in answers}) == 1
    assert len(house.proofs()) == 1
    assert house.subject()["version"] == 1


@pytest.mark.shows("I-37", "I-10")
def test_of_many_keys_in_two_processes_one_changes_and_repetitions_are_replays(
    house: House, url: str
) -> None:
    house.contracts.find_subject("", "", "")  # the tables are there
    mine = [asked(f"a{n}", "paid", from_="pending") for n in range(CROWD)]
    theirs = [asked(f"b{n}", "paid", from_="pending") for n in range(CROWD)]
    same = [asked("same", "paid", id="2", from_="pending")] * 25
    told = in_two_processes(url, mine + same, theirs + same)
    of_one = [one for one in told if one["key"] != "same"]
    assert sorted(json.loads(one["body"])["changed"] for one in of_one) == [False] * 23 + [True]
    of_same = [one for one in told if one["key"] == "same"]
    assert len({one["body"] for one in of_same}) == 1
    assert [one["is_replay"] for one in of_same].count(False) == 1
    assert len(house.proofs()) == 2
    assert {s["version"] for s in (house.subject(), house.subject(id="2"))} == {1}
    assert house.contracts.verify().broken == ()


def during_a_change(
    open_house: Callable[..., House], change: dict[str, Any], other: dict[str, Any]
) -> tuple[Any, Any]:
    """Ask for another change while one is written and not committed; return both answers.

    The first commits when the second waits for a lock, whichever it is.
    """
    is_written = Event()

    def wait(connection: Any, proof: Any) -> None:
        is_written.set()
        with backdoor(slow.url) as (db, _, _):
            db.autocommit = True
            give_up = monotonic() + PATIENCE_S
            while not db.execute(WAITING).fetchone()[0]:
                assert monotonic() < give_up, "nobody waits for the change"
                sleep(0.005)

    slow, quick = open_house(on_change=wait), open_house()
    with ThreadPoolExecutor(1) as threads:
        asking = threads.submit(slow.post, "/v1/contract/transition", change)
        assert is_written.wait(PATIENCE_S)
        answer = quick.post("/v1/contract/transition", other)
        return asking.result(), answer


@pytest.mark.shows("I-37", "I-35")
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_a_change_of_an_existing_subject_is_waited_for(
    house: House, open_house: Callable[..., House]
) -> None:
    house.move("born", from_="pending", to="pending")
    first, second = during_a_change(open_house, over_http("a", "paid"), over_http("b", "paid"))
    assert (first.json()["changed"], first.json()["version"]) == (True, 1)
    # It has waited for the subject, so it knows of the change: there is nothing left to do.
    assert (second.status_code, second.json().get("changed")) == (200, False)
    assert second.json()["proof_id"] == first.json()["proof_id"]
    assert len(house.proofs()) == 1
    assert house.subject()["version"] == 1


@pytest.mark.shows("I-37")
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_a_change_that_has_not_waited_for_the_subject_is_refused_by_its_version(
    house: House, open_house: Callable[..., House], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "_LOCK_SUBJECT", ledger._FIND_SUBJECT)
    house.move("born", from_="pending", to="pending")
    first, second = during_a_change(open_house, over_http("a", "paid"), over_http("b", "paid"))
    assert first.json()["changed"] is True
    assert (second.status_code, second.json()["retryable"]) == (503, True)
    assert len(house.proofs()) == 1
    assert house.subject()["version"] == 1
    assert house.contracts.verify().broken == ()


@pytest.mark.shows("I-38")
def test_of_two_targets_the_loser_is_judged_against_the_new_status(house: House) -> None:
    for number in range(8):
        ref = {"subject_id": str(number)}
        house.post("/v1/contract/transition",
                   over_http(f"c{number}", "pending", **ref, **{"from": "pending"}))  # fmt: skip
        paid, cancelled = at_once(
            house,
            [over_http(f"p{number}", "paid", **ref), over_http(f"x{number}", "cancelled", **ref)],
        )
        if paid.json()["ok"]:
            assert cancelled.json()["from"] == "paid"
            assert cancelled.json()["version"] == 2
        else:
            assert paid.json()["reason"] == "terminal_state"
            assert (cancelled.json()["from"], cancelled.json()["version"]) == ("pending", 1)
        assert house.subject(id=str(number))["status"] == "cancelled"


@pytest.mark.shows("I-38")
def test_of_two_targets_of_two_processes_each_is_judged_after_the_other(
    house: House, url: str
) -> None:
    house.contracts.find_subject("", "", "")
    ids = [str(number) for number in range(CROWD)]
    told = in_two_processes(
        url,
        [asked(f"p{id}", "paid", id=id, from_="pending") for id in ids],
        [asked(f"x{id}", "cancelled", id=id, from_="pending") for id in ids],
    )
    bodies = [json.loads(one["body"]) for one in told]
    refused = [body for body in bodies if not body["ok"]]
    assert len(refused) == CROWD
    assert {body["reason"] for body in refused} == {"stale_status"}
    assert len(house.proofs()) == CROWD


@pytest.mark.shows("I-29", "I-35")
def test_a_change_without_what_belongs_to_it_is_no_change(
    house: House, open_house: Callable[..., House]
) -> None:
    def fail(connection: Any, proof: Any) -> None:
        raise RuntimeError("no room for the event")

    clumsy = open_house(on_change=fail)
    failed = clumsy.move("a", from_="pending", to="paid")
    marks = (failed.headers["Idempotency-Key"], failed.headers["Idempotent-Replayed"])
    assert (failed.status_code, *marks) == (500, "a", "false")
    assert house.subject() is None
    assert house.proofs() == []
    assert house.sql("SELECT count(*) FROM {schema}.idempotency_records") == [(0,)]
    assert house.move("a", from_="pending", to="paid").json()["changed"] is True


@pytest.mark.shows("I-35")
def test_a_process_that_dies_in_the_middle_leaves_nothing(house: House, url: str) -> None:
    house.contracts.find_subject("", "", "")
    with child(url, [asked("a", "paid", from_="pending")], "die") as process:
        out, _ = process.communicate("go\n", timeout=PATIENCE_S)
    assert out == ""
    assert house.subject() is None
    assert house.proofs() == []
    answer = house.move("a", from_="pending", to="paid")
    assert (answer.json()["changed"], answer.headers["Idempotent-Replayed"]) == (True, "false")


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_who_waits_too_long_for_a_subject_is_told_to_try_again(
    open_house: Callable[..., House],
) -> None:
    house = open_house(patience=timedelta(milliseconds=50))
    house.move("a", from_="pending", to="paid")
    with backdoor(house.url) as (db, _, _):
        db.execute("SELECT 1 FROM ulak.hos_contract_subjects FOR UPDATE")
        answer = house.move("b", to="cancelled")
    assert (answer.status_code, answer.json()["code"]) == (503, "idempotency_store_unavailable")
    assert answer.json()["retryable"] is True
    assert house.move("b", to="cancelled").json()["changed"] is True


def test_who_is_told_of_changes_hears_of_each_once_and_sees_it(
    open_house: Callable[..., House],
) -> None:
    heard: list[Any] = []

    def hear(connection: Any, proof: Any) -> None:
        schema = "main" if house.url.startswith("sqlite") else "ulak"
        seen = connection.execute(f"SELECT status FROM {schema}.hos_contract_subjects")  # noqa: S608
        heard.append((proof.proof_id, proof.from_status, proof.version, seen.fetchall()))

    house = open_house(on_change=hear)
    proof = house.move("a", from_="pending", to="paid").json()["proof_id"]
    house.move("a", from_="pending", to="paid")
    house.move("b", to="paid")
    house.move("c", to="pending")
    assert heard == [(proof, "pending", 1, [("paid",)])]
