"""When a schedule is due, over every change of the clocks."""

from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from random import Random
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from ulak.clock import SECOND, Instant, to_datetime, to_instant
from ulak.core.schedule import LATE, Rule, cron_rule, dates_due, every_rule, next_after
from ulak.errors import FlowError

MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
BERLIN = "Europe/Berlin"

# Gaps and repeats of an hour, of half an hour, at midnight, and none at all.
ZONES = [
    "UTC", BERLIN, "America/New_York", "Australia/Lord_Howe", "Asia/Beirut", "America/Sao_Paulo",
    "Africa/Casablanca", "Asia/Kathmandu", "Europe/Istanbul",
]  # fmt: skip
CRONS = [
    "* * * * *", "*/15 * * * *", "30 * * * *", "0 3 * * *", "30 2 * * *", "0,30 2-3 * * *",
    "0 0 * * *", "30 0 * * *", "0 */6 * * *", "*/20 0-3 * * *", "15 4 * * MON", "0 0 1 * *",
    "59 23 L * *", "0 12 29 2 *",
]  # fmt: skip

rules = st.one_of(
    st.builds(cron_rule, st.sampled_from(CRONS), st.sampled_from(ZONES)),
    st.integers(1, 10 * 86_400).map(lambda seconds: every_rule(timedelta(seconds=seconds))),
)
instants = st.datetimes(datetime(2015, 1, 1), datetime(2040, 1, 1)).map(  # noqa: DTZ001 - made aware below
    lambda moment: to_instant(moment.replace(tzinfo=UTC))
)


def at(text: str, zone: str = "UTC", *, fold: int = 0) -> Instant:
    return to_instant(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold))


def dates(rule: Rule, since: str, until: str) -> list[str]:
    """Every date from one day to another, as the clocks of the zone show it."""
    zone = ZoneInfo(rule.zone)
    found, end = [], at(until, rule.zone)
    date = next_after(rule, at(since, rule.zone) - 1)
    while date < end:
        found.append(to_datetime(date).astimezone(zone).isoformat())
        date = next_after(rule, date)
    return found


# --- dates ----------------------------------------------------------------------


def test_a_cron_expression_means_the_clocks_of_its_zone() -> None:
    rule = cron_rule("0 3 * * *", "Europe/Istanbul")
    assert next_after(rule, at("2026-05-01T00:00")) == at("2026-05-02T00:00")
    assert next_after(rule, at("2026-05-01T00:00") - 1) == at("2026-05-01T00:00")


@pytest.mark.shows("E-59")
def test_a_time_that_does_not_exist_is_run_once_when_the_gap_ends() -> None:
    assert dates(cron_rule("30 2 * * *", BERLIN), "2026-03-28", "2026-03-31") == [
        "2026-03-28T02:30:00+01:00",
        "2026-03-29T03:00:00+02:00",
        "2026-03-30T02:30:00+02:00",
    ]


@pytest.mark.shows("E-59")
def test_a_time_that_comes_twice_is_run_the_first_time() -> None:
    rule = cron_rule("30 2 * * *", BERLIN)
    assert dates(rule, "2026-10-24", "2026-10-27") == [
        "2026-10-24T02:30:00+02:00",
        "2026-10-25T02:30:00+02:00",
        "2026-10-26T02:30:00+01:00",
    ]
    between = at("2026-10-25T02:10", BERLIN, fold=1)
    assert next_after(rule, between) == at("2026-10-26T02:30", BERLIN)


@pytest.mark.shows("E-59")
def test_several_times_of_one_gap_are_one_date() -> None:
    assert dates(cron_rule("0,30 2-3 * * *", BERLIN), "2026-03-29", "2026-03-30") == [
        "2026-03-29T03:00:00+02:00",
        "2026-03-29T03:30:00+02:00",
    ]


def test_what_is_run_every_hour_is_run_by_the_hours_that_pass() -> None:
    rule = cron_rule("30 * * * *", BERLIN)
    assert len(dates(rule, "2026-03-29", "2026-03-30")) == 23
    assert len(dates(rule, "2026-10-25", "2026-10-26")) == 25
    found = dates(rule, "2026-10-25T02:00", "2026-10-25T04:00")
    assert [text[11:] for text in found] == ["02:30:00+02:00", "02:30:00+01:00", "03:30:00+01:00"]


def test_an_interval_is_counted_from_1970() -> None:
    rule = every_rule(timedelta(minutes=5))
    assert rule == Rule("@every 300s")
    assert next_after(rule, at("2026-05-01T10:03")) == at("2026-05-01T10:05")
    assert next_after(rule, at("2026-05-01T10:05")) == at("2026-05-01T10:10")


@given(rules, instants)
def test_the_next_date_is_later_and_found_from_every_instant_before_it(
    rule: Rule, after: Instant
) -> None:
    date = next_after(rule, after)
    assert date > after
    for between in (date - 1, (after + date) // 2, after + 1):
        if after <= between < date:
            assert next_after(rule, between) == date


def moves_of_the_clocks(zone: str) -> list[datetime]:
    """The hours in which the clocks of a zone were put forward or back, roughly."""
    hours = [datetime(2018, 1, 1, tzinfo=UTC) + timedelta(hours=n) for n in range(8766)]
    local = [hour.astimezone(ZoneInfo(zone)) for hour in hours]
    return [b for a, b in pairwise(local) if a.utcoffset() != b.utcoffset()]


def watched(expression: str, zone: ZoneInfo, start: Instant, end: Instant) -> list[Instant]:
    """The dates that somebody would write down who watches a clock, minute by minute."""
    minute, hour, *_ = expression.split()
    names_hours = not (minute.startswith("*") or hour.startswith("*"))
    found: list[Instant] = []
    before: datetime | None = None
    for instant in range(start, end, MINUTE):
        local = to_datetime(instant).astimezone(zone)
        shown = local.replace(tzinfo=None, fold=0)
        missed = []
        if before is not None and shown > before + timedelta(minutes=1):
            gap = int((shown - before).total_seconds()) // 60
            missed = [before + timedelta(minutes=n) for n in range(1, gap)]
        before = shown
        if names_hours:
            if any(is_named(expression, time) for time in missed) or (
                is_named(expression, shown) and local.fold == 0
            ):
                found.append(instant)
        elif is_named(expression, shown):
            found.append(instant)
    return found


@cache
def is_named(expression: str, shown: datetime) -> bool:
    return next(CronSim(expression, shown - timedelta(minutes=1))) == shown


@pytest.mark.shows("E-59")
@pytest.mark.parametrize("zone", ZONES)
def test_around_every_move_of_the_clocks_the_dates_are_those_of_a_watched_clock(zone: str) -> None:
    moves = moves_of_the_clocks(zone) or [at_noon(zone)]
    for move in moves[:2]:
        start = to_instant(move) - 4 * HOUR
        end = start + 8 * HOUR
        for expression in CRONS:
            expected = watched(expression, ZoneInfo(zone), start, end)
            rule, found = Rule(expression, zone), []
            date = next_after(rule, start - 1)
            while date < end:
                found.append(date)
                date = next_after(rule, date)
            assert found == expected, expression


@pytest.mark.parametrize("zone", ZONES)
def test_around_every_move_of_the_clocks_a_date_is_found_from_any_instant(zone: str) -> None:
    draw = Random(zone)  # noqa: S311 - drawn again at every run, not secret
    for move in moves_of_the_clocks(zone)[:2]:
        start = to_instant(move) - 4 * HOUR
        for expression in CRONS:
            rule = Rule(expression, zone)
            dates = [next_after(rule, start - 1)]
            while dates[-1] < start + 8 * HOUR:
                dates.append(next_after(rule, dates[-1]))
            for _ in range(20):
                asked = draw.randrange(start, start + 8 * HOUR)
                assert next_after(rule, asked) == next(d for d in dates if d > asked), expression


def at_noon(zone: str) -> datetime:
    return datetime(2018, 6, 1, 12, tzinfo=ZoneInfo(zone))


# --- mistakes -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("61 * * * *", r"cron='61 \* \* \* \*' cannot be read: bad minute"),
        ("0 3 * *", r"has 4 fields; write five"),
        ("0 0 3 * * *", r"has 6 fields; write five"),
        ("@daily", r"has 1 fields; write five"),
        ("0 0 31 2 *", r"cannot be read: bad day-of-month"),
        ("0 0 * 2 MON#9", r"cannot be read: bad day-of-week"),
    ],
)
def test_an_expression_that_cannot_be_read_is_named(expression: str, said: str) -> None:
    with pytest.raises(FlowError, match=said):
        cron_rule(expression, "UTC")


@pytest.mark.parametrize("zone", ["Europe/Stambul", "", "../etc/passwd", "Europe", "a\0b"])
def test_a_zone_that_nobody_knows_is_named(zone: str) -> None:
    with pytest.raises(FlowError, match="is not a time zone that this machine knows"):
        cron_rule("0 3 * * *", zone)


@pytest.mark.parametrize("seconds", [0, -5, 0.5, 1.5])
def test_an_interval_is_whole_seconds(seconds: float) -> None:
    with pytest.raises(FlowError, match="whole seconds, one or more"):
        every_rule(timedelta(seconds=seconds))


# --- catching up ----------------------------------------------------------------

HOURLY = cron_rule("0 * * * *", "UTC")
NOON = at("2026-05-01T12:00")


def test_a_date_that_is_seen_in_time_is_run_whatever_the_rule() -> None:
    for catch_up in ("none", "last", "all"):
        for late in (0, SECOND, LATE):
            due = dates_due(HOURLY, catch_up, NOON, NOON + late, most=9)
            assert due == ([NOON], NOON + HOUR), catch_up


@pytest.mark.shows("E-59")
def test_after_an_outage_none_the_last_or_all_of_the_dates_are_run() -> None:
    now = NOON + 3 * HOUR + 10 * MINUTE
    following = NOON + 4 * HOUR
    assert dates_due(HOURLY, "none", NOON, now, most=9) == ([], following)
    assert dates_due(HOURLY, "last", NOON, now, most=9) == ([NOON + 3 * HOUR], following)
    every = [NOON + n * HOUR for n in range(4)]
    assert dates_due(HOURLY, "all", NOON, now, most=9) == (every, following)


def test_none_still_runs_the_date_that_has_just_come() -> None:
    now = NOON + 3 * HOUR + SECOND
    assert dates_due(HOURLY, "none", NOON, now, most=9) == ([NOON + 3 * HOUR], NOON + 4 * HOUR)


def test_all_is_so_many_at_a_time_and_the_rest_follows() -> None:
    now = NOON + 3 * HOUR
    first, following = dates_due(HOURLY, "all", NOON, now, most=3)
    assert (first, following) == ([NOON, NOON + HOUR, NOON + 2 * HOUR], now)
    assert dates_due(HOURLY, "all", following, now, most=3) == ([now], now + HOUR)


def test_the_last_date_of_ten_years_of_minutes_is_found_at_once() -> None:
    rule = cron_rule("* * * * *", BERLIN)
    start = at("2016-01-01T00:00")
    found = dates_due(rule, "last", start, NOON + SECOND, most=1)
    assert found == ([NOON], NOON + MINUTE)


@settings(max_examples=50)
@given(rules, instants, st.integers(0, 60 * DAY), st.integers(1, 5))
def test_every_date_is_seen_to_once_and_none_of_them_twice(
    rule: Rule, start: Instant, span: int, most: int
) -> None:
    first = next_after(rule, start)
    now = first + min(span, 300 * (next_after(rule, first) - first))
    walked, date = [], first
    while date <= now:
        walked.append(date)
        date = next_after(rule, date)
    run: list[Instant] = []
    next_at = first
    while next_at <= now:
        due, next_at = dates_due(rule, "all", next_at, now, most=most)
        assert 1 <= len(due) <= most
        run += due
    assert run == walked
    assert all(a < b for a, b in pairwise(run))
    assert next_at == date
    assert dates_due(rule, "last", first, now, most=most) == (walked[-1:], date)
    late = now - walked[-1] > LATE
    assert dates_due(rule, "none", first, now, most=most) == ([] if late else walked[-1:], date)
