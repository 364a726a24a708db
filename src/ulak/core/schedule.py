"""When a schedule is due: the dates of a rule, and which of them are run when some were missed.

A date is an instant. Of a cron expression it is the moment at which the clocks of its zone show
what it says; of an interval it is a multiple of it since 1970, so that every process agrees.

Where clocks are put forward or back, as Debian's cron has it: an expression that names its hours
is run once that day - at the end of the gap when its time does not exist, at the first of the two
when it comes twice. One whose minute or hour begins with a star is run by the hours that pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal

from ulak.clock import (
    SECOND,
    Duration,
    Instant,
    duration_complaint,
    micros,
    to_datetime,
    to_instant,
)
from ulak.errors import FlowError

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

CatchUp = Literal["none", "last", "all"]
CATCH_UPS: Final = ("none", "last", "all")

UTC: Final = "UTC"

SUBMITTER_PREFIX: Final = "schedule:"
"""With the name of the schedule, the submitter of its jobs."""

# With `none` a date is missed when nobody saw it for so long: more than a restart takes, less
# than a person would call late. A guess.
LATE = 60 * SECOND

ZERO = timedelta(0)

_EVERY: Final = "@every "


@dataclass(frozen=True, slots=True)
class Rule:
    """Which instants are dates: `text` is a cron expression, or `@every 300s`."""

    text: str
    zone: str = UTC

    @property
    def every_us(self) -> int | None:
        if not self.text.startswith(_EVERY):
            return None
        return int(self.text.removeprefix(_EVERY).removesuffix("s")) * SECOND


def cron_rule(expression: str, zone: str) -> Rule:
    """Check a cron expression of five fields and its zone; `FlowError` if it cannot be used."""
    from cronsim import CronSimError

    _must_be_a_zone(zone)
    fields = expression.split()
    if len(fields) != 5:
        raise FlowError(
            f"cron={expression!r} has {len(fields)} fields; write five: minute, hour, "
            "day of month, month, day of week"
        )
    rule = Rule(" ".join(fields), zone)
    try:
        next_after(rule, 0)
    except CronSimError as error:
        said = str(error).lower()
        raise FlowError(f"cron={expression!r} cannot be read: {said}") from None
    return rule


def every_rule(span: Duration) -> Rule:
    """Check an interval; `FlowError` if it is not one or more whole seconds."""
    wrong = duration_complaint(span)
    if wrong is not None:
        raise FlowError(f"every= cannot be used: {wrong}")
    seconds, rest = divmod(micros(span), SECOND)
    if rest or seconds < 1:
        raise FlowError(f"every={span} is not a number of whole seconds, one or more")
    return Rule(f"{_EVERY}{seconds}s")


def next_after(rule: Rule, after: Instant) -> Instant:
    """Return the first date after this instant; `FlowError` if there is none for fifty years."""
    if (every := rule.every_us) is not None:
        return (after // every + 1) * every
    minute, hour, *_ = rule.text.split()
    if minute.startswith("*") or hour.startswith("*"):
        dates = _by_hours_that_pass(rule, after)
    else:
        dates = _once_a_day_that_has_it(rule, after)
    for date in dates:
        if date > after:
            return date
    raise FlowError(f"cron={rule.text!r} names no day of the next fifty years")


def _once_a_day_that_has_it(rule: Rule, after: Instant) -> Iterator[Instant]:
    """Each time that is named: the first of two equal ones, or the end of the gap it falls in."""
    zone = _zone(rule.zone)
    for shown in _shown_after(rule, to_datetime(after).astimezone(zone)):
        while (instant := _when_shown(shown, zone, fold=0)) is None:
            shown += timedelta(minutes=1)
        yield instant


def _by_hours_that_pass(rule: Rule, after: Instant) -> Iterator[Instant]:
    """Each moment at which the clocks show such a time: twice when it comes twice."""
    zone = _zone(rule.zone)
    local = to_datetime(after).astimezone(zone)
    # In the first of two equal hours, what the second will show lies behind on the clock.
    shift = (local.utcoffset() or ZERO) - (local.replace(fold=1).utcoffset() or ZERO)
    again: list[Instant] = []
    for shown in _shown_after(rule, local - max(shift, ZERO)):
        first, second = (_when_shown(shown, zone, fold=fold) for fold in (0, 1))
        if first is None or second is None:
            continue  # the clocks skip it
        if first > after:
            yield min([first, *again])
            return
        if second > after:
            again.append(second)


def _shown_after(rule: Rule, local: datetime) -> Iterator[datetime]:
    from cronsim import CronSim

    # Without a zone: cronsim 2.8 loses dates where clocks move by half an hour, as on Lord Howe.
    return CronSim(rule.text, local.replace(tzinfo=None, fold=0))


def _when_shown(shown: datetime, zone: ZoneInfo, *, fold: int) -> Instant | None:
    """Return when the clocks of the zone show this, None when they never do."""
    instant = to_instant(shown.replace(tzinfo=zone, fold=fold))
    back = to_datetime(instant).astimezone(zone)
    return instant if back.replace(tzinfo=None, fold=0) == shown else None


def dates_due(
    rule: Rule, catch_up: str, next_at: Instant, now: Instant, *, most: int
) -> tuple[list[Instant], Instant]:
    """Return which dates to run, and the first date that is left for later. `next_at` is the first
    date that nobody has seen to, and it has come. `all` runs every date from there until now, at
    most so many at a time; `last` runs the latest of them; `none` runs the latest unless it is
    late."""
    if catch_up == "all":
        dates, following = [next_at], next_after(rule, next_at)
        while following <= now and len(dates) < most:
            dates.append(following)
            following = next_after(rule, following)
        return dates, following
    last, following = _latest(rule, next_at, now)
    if catch_up == "none" and now - last > LATE:
        return [], following
    return [last], following


def _latest(rule: Rule, since: Instant, now: Instant) -> tuple[Instant, Instant]:
    """Return the last date until now, `since` or later, and the first one after now. Looks back
    from now, further each time: after a long outage nobody walks over every minute."""
    found, back = since, LATE
    while (start := now - back) > since:
        if (date := next_after(rule, start)) <= now:
            found = date
            break
        back *= 8
    while (following := next_after(rule, found)) <= now:
        found = following
    return found, following


def _must_be_a_zone(name: str) -> None:
    try:
        _zone(name)
    except (OSError, ValueError, LookupError):
        raise FlowError(
            f"zone={name!r} is not a time zone that this machine knows; write one such as "
            '"Europe/Istanbul" or "UTC", and install tzdata where there is no zone database'
        ) from None


def _zone(name: str) -> ZoneInfo:
    # Imported here: it asks the interpreter how it was built, which `import ulak` need not know.
    from zoneinfo import ZoneInfo

    return ZoneInfo(name)
