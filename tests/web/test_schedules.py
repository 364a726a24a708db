"""What the clock submits, over HTTP."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

import ulak
import ulak.web
from tests.web.people import Known, as_, person
from ulak.clock import ManualClock
from ulak.store.memory import MemoryStore


@pytest.fixture
def clock():
    return ManualClock(datetime(2026, 1, 1, tzinfo=UTC))


@pytest.fixture
def engine(clock):
    made = ulak.Engine(MemoryStore(clock))

    @made.job(secret=["kwargs"])
    def report(pages: int) -> None: ...

    made.schedules.add("nightly", report, 3, cron="0 3 * * *", tenant="north", catch_up="all")
    with made:
        yield made


@pytest.fixture
def say(engine, ask):
    app = ulak.web.app(engine, identity=Known(person("ada", "operator")))

    def send(method, path, status=200, **options):
        answer = ask(app, path, method=method, headers=as_("ada"), **options)
        assert answer.status_code == status, answer.text
        return answer.json()

    return send


@pytest.mark.shows("E-59")
def test_schedules_are_listed_with_their_next_and_last_date(engine, clock, say):
    (found,) = say("GET", "/schedules")["items"]
    assert (found["name"], found["rule"], found["zone"]) == ("nightly", "0 3 * * *", "UTC")
    assert (found["next_at"], found["last"]) == ("2026-01-01T03:00:00.000000Z", None)
    assert found["payload"] == {"args": [3], "kwargs": "***"}
    clock.advance(timedelta(days=1))
    asyncio.run(engine.worker().run(until_idle=True))
    (found,) = say("GET", "/schedules")["items"]
    assert found["last"]["due_at"] == "2026-01-01T03:00:00.000000Z"
    assert engine.get(found["last"]["job_id"]).tenant == "north"


def test_dates_come_in_pages_the_latest_first(engine, clock, say):
    clock.advance(timedelta(days=5))
    asyncio.run(engine.worker().run(until_idle=True))
    days, path = [], "/schedules/nightly/ticks?limit=2"
    while path is not None:
        page = say("GET", path)
        days += [tick["due_at"][8:10] for tick in page["items"]]
        following = page["next"]
        path = following and f"/schedules/nightly/ticks?limit=2&after={following}"
    assert days == ["05", "04", "03", "02", "01"]


@pytest.mark.shows("E-60")
def test_a_schedule_is_paused_and_resumed_and_both_are_audited(engine, say):
    paused = say("POST", "/schedules/nightly/pause", json={"note": "a holiday"})
    assert (paused["paused_by"], paused["pause_note"]) == ("ada", "a holiday")
    assert say("POST", "/schedules/nightly/resume", json={})["paused_at"] is None
    assert [(line.actor, line.subject) for line in engine.inspect.audit()] == [
        ("ada", "schedule/nightly")
    ] * 2


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/schedules/weekly/ticks"),
        ("POST", "/schedules/weekly/pause"),
        ("POST", "/schedules/weekly/resume"),
    ],
)
def test_a_schedule_that_is_not_there_is_404(say, method, path):
    problem = say(method, path, 404, **({"json": {}} if method == "POST" else {}))
    assert "no schedule 'weekly'; there is nightly" in problem["detail"]


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "after=7", "after=noon", "before=1"])
def test_a_page_that_cannot_be_is_422(say, query):
    say("GET", f"/schedules/nightly/ticks?{query}", 422)
