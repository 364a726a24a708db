"""`ulak outbox dispatch`, `list`, `redrive` and `discard`, by the entry points of ulak."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.test_proof import contracts  # noqa: F401 - the service, as ulak declares it
from tests.services.contracts.house import House
from tests.services.contracts.outbox.pair import NOWHERE, Home, served, towards

DATABASE = "contracts.db"


@pytest.fixture
def home(contracts: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:  # noqa: F811
    """Two changes of one order and one of another, of which nobody has been told."""
    monkeypatch.setenv("HOS_MODE", "hybrid")
    monkeypatch.setenv("HOS_API_KEY", "service")
    monkeypatch.setenv("HOS_BASE_URL", NOWHERE)
    monkeypatch.setenv("HOS_RETRIES", "0")
    made = Home(f"sqlite:///{tmp_path / DATABASE}", towards(NOWHERE))
    made.move("a", from_="pending", to="paid")
    made.move("b", to="cancelled")
    made.move("c", subject_ref={"type": "order", "id": "2"}, from_="pending", to="paid")
    yield made
    made.close()


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[House]:
    made = House(f"sqlite:///{tmp_path / 'remote.db'}")
    yield made
    made.close()


@pytest.mark.shows("I-50")
def test_dispatch_sends_what_is_due_and_says_how_it_fared(
    home: Home, remote: House, run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(remote) as address:
        monkeypatch.setenv("HOS_BASE_URL", address)
        one = run("outbox", "dispatch", "--limit", "1", "--json")
        assert one.document == {"sent": 1, "rejected": 0, "dead": 0, "retry": 0}
        # Both that are left, of which one waited for the first of its subject.
        assert run("outbox", "dispatch").out == "2 sent, 0 rejected, 0 dead, 0 retry\n"
        assert run("outbox", "dispatch").out == "0 sent, 0 rejected, 0 dead, 0 retry\n"
    assert len(remote.proofs()) == 3
    monkeypatch.setenv("HOS_BASE_URL", "")
    refused = run("outbox", "dispatch")
    assert (refused.code, refused.out) == (1, "")
    assert "HOS_MODE=hybrid needs HOS_BASE_URL; set it" in refused.err


@pytest.mark.shows("I-50")
def test_dispatch_goes_on_until_it_is_told_to_stop(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = threading.Semaphore(0)
    remote = House(f"sqlite:///{tmp_path / 'remote.db'}", on_change=lambda *_: told.release())
    try:
        with served(remote) as address:
            child = subprocess.Popen(
                [sys.executable, "-m", "ulak", "outbox", "dispatch", "--every", "0.1"],
                env=os.environ | {"HOS_BASE_URL": address}, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            try:
                for _ in range(3):
                    assert told.acquire(timeout=60)
                home.move("d", subject_ref={"type": "order", "id": "3"}, from_="pending", to="paid")
                assert told.acquire(timeout=60)
            finally:
                child.send_signal(signal.SIGTERM)
                _, errors = child.communicate(timeout=60)
            assert child.returncode == 0, errors
    finally:
        remote.close()
    assert [event.status for event in home.events()] == ["sent"] * 4


@pytest.mark.shows("I-55")
def test_list_shows_what_is_not_sent_and_why(home: Home, run) -> None:
    run("outbox", "dispatch")
    listed = run("outbox", "list")
    assert listed.code == 0
    assert "order:1" in listed.out
    assert "ConnectError" in listed.out
    document = run("outbox", "list", "--aggregate", "order:2", "--json").document
    (event,) = document["events"]
    assert event["idempotency_key"].startswith("pazar:proof:status_change:")
    assert (event["status"], event["attempts"], event["acts"]) == ("pending", 1, [])
    assert "service" not in listed.out + listed.err
    wrong = run("outbox", "list", "--status", "lost")
    assert wrong.code == 2
    assert "lost; write pending, processing, sent" in wrong.err
    assert "no such events" in run("outbox", "list", "--status", "dead").err


@pytest.mark.shows("I-55")
def test_redrive_and_discard_act_on_what_is_stuck_and_say_what_they_refuse(
    home: Home, run, tmp_path: Path
) -> None:
    first, second, third = (event.id for event in home.events())
    with closing(sqlite3.connect(tmp_path / DATABASE)) as db:
        for event, age_s in ((first, 0), (third, 8 * 24 * 3600)):
            db.execute(
                "UPDATE deliveries SET state = 'dead', head = 0, at = at - ? WHERE position = ?",
                (age_s * 1_000_000, event),
            )
        db.commit()
    every = run("outbox", "redrive", "--all", "--note", "the remote is back")
    assert (every.code, every.out) == (1, "redriven 1 event\n")
    assert "604800 s" in every.err
    assert "--force" in every.err
    forced = run("outbox", "redrive", str(third), "--force", "--actor", "ada")
    assert (forced.code, forced.out) == (0, "redriven 1 event\n")
    gone = run("outbox", "discard", str(second), "999", "--json")
    assert gone.code == 1
    assert gone.document == {
        "discarded": [second], "refused": {"999": "there is no event 999 in the outbox"},
    }  # fmt: skip
    acts = {event.id: event.acts for event in home.events()}
    assert set(acts) == {first, third}
    assert '"actor": "ada"' in acts[third]
    for arguments in (("redrive",), ("redrive", "1", "--all"), ("discard",)):
        assert run("outbox", *arguments).code == 2


def test_the_commands_of_ulaks_own_outbox_are_still_there(home: Home, run) -> None:
    said = run("outbox", "--help").out
    for name in ("dead", "revive", "dispatch", "list", "redrive", "discard"):
        assert f" {name} " in said
