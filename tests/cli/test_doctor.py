"""`ulak doctor`: what is in force, and which jobs nobody can serve."""

import asyncio
import re
from pathlib import Path

import pytest

from ulak.cli import doctor
from ulak.control.config import VARIABLES as CONTROL
from ulak.control.guard import VARIABLES

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"

NEXT = """
import ulak
engine = ulak.connect("sqlite:///shop.db")
"""


def test_doctor_tells_every_setting_and_where_it_came_from(shop, monkeypatch):
    monkeypatch.setenv("ULAK_PORT", "9000")
    found = shop.ulak("doctor", "--json").document
    assert found["settings"]["app"] == {"value": "shop:engine", "source": "command line"}
    assert found["settings"]["port"] == {"value": 9000, "source": "ULAK_PORT"}
    assert found["settings"]["env"] == {"value": "dev", "source": "default"}
    assert found["store"]["path"] == "shop.db"
    said = shop.ulak("doctor").out
    assert "9000  (ULAK_PORT)" in said
    assert max(map(len, said.splitlines())) <= 100


def test_doctor_names_the_version_of_sqlite_and_its_bug(shop):
    import sqlite3

    store = shop.ulak("doctor", "--json").document["store"]
    said = shop.ulak("doctor").out
    assert store["sqlite"] == sqlite3.sqlite_version
    assert store["sqlite"] in said
    assert ("WAL-reset" in said) == store["wal_reset_bug"]


def test_doctor_names_jobs_that_no_worker_serves(shop):
    shop.submit("greet", "ada")
    import shop as program

    troubles = shop.ulak("doctor", "--json").document["troubles"]
    assert [(t["code"], t["flow"], t["jobs"]) for t in troubles] == [
        ("lane-not-served", "greet", 1)
    ]
    with program.engine as engine:
        lanes = sorted(lane for flow in engine.inspect.flows for lane in flow.table.lanes)
        engine.store.register("w1", lease_us=60_000_000, lanes=lanes, about="here")
    found = shop.ulak("doctor", "--json").document
    assert found["troubles"] == []
    assert [worker["id"] for worker in found["workers"]] == ["w1"]


@pytest.mark.shows("E-50")
def test_before_a_deploy_doctor_lists_what_the_new_program_cannot_serve(shop, tmp_path):
    shop.submit("greet", "ada")
    assert shop.ulak("doctor", "--before-deploy").code == 0
    (tmp_path / "later.py").write_text(
        NEXT + "@engine.job(version=2)\ndef greet(name: str) -> str: return name\n"
    )
    answer = shop.run("doctor", "--before-deploy", "-a", "later:engine")
    assert answer.code == 1
    assert "greet@1" in answer.out
    assert "only version 2" in " ".join(answer.out.split())
    document = shop.run("doctor", "--before-deploy", "--json", "-a", "later:engine").document
    assert [(t["code"], t["flow"], t["version"], t["jobs"]) for t in document["troubles"]] == [
        ("version-missing", "greet", 1, 1)
    ]


@pytest.mark.shows("E-50")
def test_before_a_deploy_doctor_lists_states_that_a_version_has_lost(shop, tmp_path):
    shop.submit("claim", {"who": "ada", "amount": 1, "iban": "x"})
    (tmp_path / "renamed.py").write_text(
        NEXT + 'engine.add(ulak.Flow.steps("claim", ("asked", lambda run: None)))\n'
    )
    answer = shop.run("doctor", "--before-deploy", "--json", "-a", "renamed:engine")
    assert answer.code == 1
    assert [(t["code"], t["state"]) for t in answer.document["troubles"]] == [
        ("state-missing", "requested")
    ]
    assert shop.run("jobs", "list", "-a", "renamed:engine").code == 0
    (told,) = [
        trouble
        for trouble in shop.run("doctor", "--json", "-a", "renamed:engine").document["troubles"]
        if trouble["code"] == "state-missing"
    ]
    assert [told[name] for name in ("flow", "version", "state", "jobs")] == [
        "claim", 1, "requested", 1,
    ]  # fmt: skip


TRIP = """
trip = ulak.Flow(
    "trip",
    ulak.Lifecycle("book", {"book": ["fly"], "fly": ["done"]}),
    retry=0,
    undo_retry=ulak.Backoff(1, first=3600),
)

@trip.stage("book")
def book(run): ...

@trip.stage("fly")
def fly(run): raise RuntimeError("no plane")

engine.add(trip)
"""
UNDO = """
@book.undo
def cancel(run): raise RuntimeError("nobody answers")

"""


@pytest.mark.shows("E-50")
def test_before_a_deploy_doctor_lists_undos_that_a_version_has_lost(shop, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "PAGE", 2)  # of five jobs
    (tmp_path / "trips.py").write_text(NEXT + TRIP.replace("engine.add", UNDO + "engine.add"))
    (tmp_path / "hasty.py").write_text(NEXT + TRIP)
    import trips

    with trips.engine as engine:
        for _ in range(5):
            engine.submit(trips.trip)
        asyncio.run(engine.worker().run(until_idle=True))
    for extra in ([], ["--before-deploy"]):
        told = shop.run("doctor", *extra, "--json", "-a", "hasty:engine").document["troubles"]
        (trouble,) = [trouble for trouble in told if trouble["code"] == "undo-missing"]
        assert [trouble[name] for name in ("flow", "version", "jobs")] == ["trip", 1, 5]
        assert 'the undo of "book"' in trouble["sentence"]
    assert shop.run("doctor", "--before-deploy", "-a", "trips:engine").code == 0


def test_ended_jobs_need_nobody(shop, tmp_path):
    shop.submit("greet", "ada")
    shop.work()
    (tmp_path / "bare.py").write_text(NEXT)
    assert shop.run("doctor", "--before-deploy", "-a", "bare:engine").code == 0


def test_doctor_says_whether_secrets_are_set_and_never_what_they_are(shop, monkeypatch):
    secret = "0123456789abcdef" * 2  # the shortest there may be
    monkeypatch.setenv("ULAK_SECRET", secret)
    found = shop.ulak("doctor", "--json")
    assert found.document["settings"]["secret"] == {"value": "set", "source": "ULAK_SECRET"}
    assert found.document["settings"]["admin_key"] == {"value": "not set", "source": "default"}
    assert found.document["settings"]["data"] == {"value": ".ulak", "source": "default"}
    said = shop.ulak("doctor")
    assert "set  (ULAK_SECRET)" in said.out
    assert secret not in found.out + found.err + said.out + said.err


@pytest.mark.shows("A-56")
def test_doctor_shows_the_settings_of_the_guard(shop, monkeypatch):
    monkeypatch.setenv("OPS_GUARD_RATE_LIMIT_OTHER_PER_MINUTE", "60")
    found = shop.ulak("doctor", "--json").document["settings"]
    assert found.keys() >= set(VARIABLES)
    limit = "OPS_GUARD_RATE_LIMIT_OTHER_PER_MINUTE"
    assert found[limit] == {"value": 60, "source": limit}
    assert found["OPS_GUARD_DECISION_LAYER_ENABLED"] == {"value": False, "source": "default"}


def test_doctor_shows_the_settings_of_adaptive_control(shop, monkeypatch):
    monkeypatch.setenv("ADAPTIVE_CONTROL_DWELL_TIME", "60")
    found = shop.ulak("doctor", "--json").document["settings"]
    dwell = "ADAPTIVE_CONTROL_DWELL_TIME"
    assert found[dwell] == {"value": 60, "source": dwell}
    assert found["ADAPTIVE_CONTROL_ENABLED"] == {"value": True, "source": "default"}
    assert set(CONTROL) <= set(found)
    page = PAGE.read_text(encoding="utf-8")
    described = re.findall(r"^\| (ADAPTIVE_CONTROL_\w+) \|", page, re.M)
    assert described == list(CONTROL)
