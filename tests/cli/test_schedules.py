"""`ulak schedules`, and what `doctor` says of them."""

from datetime import timedelta

import pytest

from ulak.clock import SECOND
from ulak.store.protocol import ScheduleRow

SCHEDULES = """
from datetime import timedelta

engine.schedules.add("nightly", greet, "ada", cron="0 3 * * *", zone="Europe/Istanbul")
engine.schedules.add(
    "refund", claim, Claim("ada", 5, "TR1"), every=timedelta(seconds=1), catch_up="all",
    tenant="acme", expires=timedelta(hours=1),
)
"""


@pytest.fixture
def clock(shop, tmp_path, monkeypatch):
    """The program with two schedules."""
    import sys

    with (tmp_path / "shop.py").open("a") as program:
        program.write(SCHEDULES)
    monkeypatch.delitem(sys.modules, "shop")
    import shop as changed

    monkeypatch.setitem(sys.modules, "shop", changed)
    return shop


def tick(dates: int) -> None:
    """Let the last dates of the refund be ticked as a worker would."""
    import shop

    from ulak.engine.upkeep import Ticker

    with shop.engine as engine:
        row = next(row for row in engine.store.schedules() if row.name == "refund")
        engine.store.pause_schedule("refund", actor="test", note="")
        back = row.next_at - dates * SECOND
        engine.store.resume_schedule("refund", next_at=back, actor="test", note="")
        Ticker(engine.kernel, 0).tick()


def test_schedules_are_listed_with_their_next_and_last_date(clock):
    tick(2)
    found = clock.ulak("schedules", "list", "--json").document["schedules"]
    assert [(s["name"], s["rule"], s["zone"]) for s in found] == [
        ("nightly", "0 3 * * *", "Europe/Istanbul"),
        ("refund", "@every 1s", "UTC"),
    ]
    assert found[0]["last"] is None
    assert found[1]["last"]["due_at"] < found[1]["next_at"]
    assert found[1]["expires_s"] == 3600
    said = clock.ulak("schedules", "list").out
    assert "0 3 * * * Europe/Istanbul" in said
    assert found[0]["next_at"][:16] in said
    assert max(map(len, said.splitlines())) <= 100


def test_one_schedule_is_shown_without_its_secrets(clock):
    found = clock.ulak("schedules", "show", "refund", "--json").document
    assert found["payload"] == {"who": "ada", "amount": 5, "iban": "***"}
    assert found["is_declared"]
    said = clock.ulak("schedules", "show", "refund").out
    assert "TR1" not in said
    assert "acme" in said
    assert "catch up" in said


def test_a_schedule_is_paused_and_resumed(clock):
    paused = clock.ulak("schedules", "pause", "nightly", "--actor", "ada", "-n", "stocktaking")
    assert "paused by ada" in paused.out
    shown = clock.ulak("schedules", "show", "nightly").out
    assert "by ada: stocktaking" in shown
    assert "paused by ada" in clock.ulak("schedules", "list").out
    assert clock.ulak("doctor", "--json").document["schedules"][0]["paused"]
    assert "2, 1 paused" in clock.ulak("doctor").out
    resumed = clock.ulak("schedules", "resume", "nightly", "--json").document
    assert resumed["paused_at"] is None
    assert clock.ulak("schedules", "pause", "nightly", "--json").document["paused_at"]


def test_the_history_names_the_jobs_and_how_they_stand(clock):
    assert "no ticks" in clock.ulak("schedules", "history", "refund").err
    tick(3)
    ticks = clock.ulak("schedules", "history", "refund", "--json").document["ticks"]
    assert {line["state"] for line in ticks} == {"requested"}
    assert len(ticks) >= 3
    assert [line["due_at"] for line in ticks] == sorted(
        (line["due_at"] for line in ticks), reverse=True
    )
    job = clock.ulak("jobs", "show", ticks[0]["job_id"], "--json").document
    assert job["submitter"] == "schedule:refund"
    assert job["scheduled_for"] == ticks[0]["due_at"]
    assert ticks[0]["job_id"] in clock.ulak("schedules", "history", "refund", "--limit", "1").out


def test_a_schedule_is_run_now(clock):
    job_id = clock.ulak("schedules", "run", "nightly", "--actor", "ada").out.split()[-1]
    job = clock.ulak("jobs", "show", job_id, "--json").document
    assert (job["flow"], job["submitter"], job["scheduled_for"]) == ("greet", "ada", None)
    assert clock.ulak("schedules", "run", "nightly", "--json").document["flow"] == "greet"


def test_a_schedule_that_is_not_there_is_one_line(clock):
    answer = clock.ulak("schedules", "show", "weekly")
    assert answer.code == 1
    assert answer.err == ("error: there is no schedule 'weekly'; there is nightly, refund\n")


def test_a_program_without_schedules_says_so(shop):
    assert "no schedules" in shop.ulak("schedules", "list").err
    assert shop.ulak("schedules", "list", "--json").document == {"schedules": []}


@pytest.mark.shows("E-59")
def test_doctor_names_schedules_that_are_late_although_workers_run(clock):
    import shop

    with shop.engine as engine:
        now = engine.store.clock.now()
        old = ScheduleRow("old", "greet", 1, "", 1, None, b"1", "0 3 * * *", "UTC", "last", now)
        engine.store.keep_schedules([old._replace(next_at=now - 3600 * SECOND)])
    assert clock.ulak("doctor", "--json").document["troubles"] == []
    with shop.engine as engine:
        lease = timedelta(minutes=1) // timedelta(microseconds=1)
        engine.store.register("w", lease_us=lease, lanes=("a",), about="here")
    (trouble,) = clock.ulak("doctor", "--json").document["troubles"]
    assert trouble["code"] == "schedule-late"
    assert "schedule old was due" in trouble["sentence"]
    assert "this program does not declare it; pause it" in trouble["sentence"]
    assert "not declared here" in " ".join(clock.ulak("schedules", "list").out.split())
    clock.ulak("schedules", "pause", "old")
    assert clock.ulak("doctor", "--json").document["troubles"] == []
