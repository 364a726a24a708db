"""The long soak: its machinery for some seconds, and its verdict on made-up series."""

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.measure import ROOT
from bench.soak.hours import sampler
from bench.soak.hours.picture import NAMES, PANELS, draw, make_table
from bench.soak.hours.run import run_part
from bench.soak.hours.sampler import Line
from bench.soak.hours.traffic import Plan
from bench.soak.hours.verdict import judge
from ulak.clock import SECOND, to_instant

NEW_YEAR = to_instant(datetime(2027, 1, 1, tzinfo=UTC))
SHORT = Plan(
    hours=1, rate=10, stores=("sqlite",), sample_s=1, kill_s=3, keep_s=2, prune_s=1,
    zero_us=NEW_YEAR - 2 * SECOND,
)  # fmt: skip
LONG = Plan(hours=3, rate=20, stores=("sqlite",))
STEP_S = 30.0


# --- the machinery ----------------------------------------------------------------


def has_seen_all(lines: list[Line]) -> bool:
    """Tell whether a worker was killed, the month has ended and something was sampled."""
    return {"kill", "month"} <= {line.mark for line in lines} and count_samples(lines) > 1


def count_samples(lines: list[Line]) -> int:
    return sum(bool(line.values) for line in lines)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that PostgreSQL may enter, which runs as a user of its own; pytest's are closed."""
    with tempfile.TemporaryDirectory(prefix="ulak-soak-") as made:
        Path(made).chmod(0o755)
        path = Path(made) / "soak"
        path.mkdir(mode=0o755)
        yield path


@pytest.mark.parametrize("store", ["sqlite", pytest.param("postgres", marks=pytest.mark.sampled)])
def test_a_soak_is_sampled_ended_and_gone_on_with(store: str, folder: Path) -> None:
    replace(SHORT, stores=(store,)).write(folder)
    over, failures = threading.Event(), list[BaseException]()

    def run_first() -> None:
        try:
            run_part(folder, Plan.read(folder), over)
        except BaseException as error:  # noqa: BLE001 - the test shows it
            failures.append(error)

    part = threading.Thread(target=run_first)
    part.start()
    while part.is_alive() and not has_seen_all(sampler.read(folder)):
        part.join(0.1)
    over.set()
    part.join()
    assert failures == []
    first = sampler.read(folder)
    marks = [line.mark for line in first if line.mark]
    assert [mark for mark in marks if mark.startswith("fault")] == []
    assert (marks[0], marks[-1]) == ("part", "verified")
    seen = {name for line in first for name in line.values}
    assert set(PANELS) - seen <= {"dead rows", "indexes MB", "pickup p50 ms"}
    assert {"rows slots", "steady pss MB", "client descriptors"} <= seen

    # A kill has cut off the last line; the soak goes on after the last whole one.
    with (folder / sampler.SAMPLES).open("a") as out:
        out.write('\n{"t": 12.5, "sto')
    command = [sys.executable, "-m", "bench.soak.hours", "--go-on", str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as second:
        while (
            second.poll() is None and count_samples(sampler.read(folder)) < count_samples(first) + 2
        ):
            time.sleep(0.1)
        second.terminate()
        printed, _ = second.communicate()
    both = sampler.read(folder)
    assert both[: len(first)] == first
    assert min(line.t for line in both[len(first) :]) >= max(line.t for line in first)
    assert f"{store}: " in printed
    assert "parts 2" in printed
    assert printed.endswith("PASS (too short for trends)\n")
    assert (second.returncode, (folder.parent / f"soak-{store}.json").exists()) == (0, True)


# --- the verdict ------------------------------------------------------------------


def make_lines(*parts: Callable[[float], dict[str, float]], store: str = "sqlite") -> list[Line]:
    """Make the lines of three hours, in equal parts, with these values beside the usual ones."""
    lines, length_s = [], 3 * 3600 / len(parts)
    for n, values in enumerate(parts):
        lines.append(Line(n * length_s, store, {}, "part"))
        for step in range(int(length_s / STEP_S)):
            within = step * STEP_S
            usual = {"ended per s": 20.0, "rows jobs": 6500.0}
            lines.append(Line(n * length_s + within, store, usual | values(within)))
    return lines


def grow(name: str, start: float, per_day: float) -> Callable[[float], dict[str, float]]:
    return lambda t: {name: start + per_day * t / 86_400}


@pytest.mark.parametrize(
    ("name", "start", "per_day"),
    [
        ("steady rss MB", 50, 14),  # a pointer of every job
        ("client rss MB", 50, 14),
        ("steady descriptors", 15, 24),  # one an hour
        ("rows workers", 2, 720),  # each that was killed
        ("rows ticks", 200, 43_200),
        ("wal MB", 17, 10),
        ("unfinished", 5, 100),
        ("ended per s", 20, -3),
    ],
)
def test_what_grows_is_found(name: str, start: float, per_day: float) -> None:
    verdict = judge(make_lines(grow(name, start, per_day)), LONG)
    assert verdict.wrong["sqlite"] == [f"{name} grows"]
    assert "GROWS" in verdict.table()
    assert "FAIL" in verdict.table()


def test_what_is_flat_passes() -> None:
    def flat(t: float) -> dict[str, float]:
        return {
            "steady rss MB": 50 + 5 * (t < 1200),  # warms up, the other way round
            "steady descriptors": 15 + (int(t / 30) % 5 == 0),
            "rows count_deltas": t % 390,  # folded now and then
            "dead rows": 7000 - t % 700 * 10,
            "rows audit": t,  # kept for ever by design
        }

    verdict = judge(make_lines(flat), LONG)
    assert verdict.wrong == {"sqlite": []}
    assert verdict.table().endswith("PASS")


def test_processes_that_begin_anew_are_no_growth() -> None:
    def part(start: float) -> Callable[[float], dict[str, float]]:
        return lambda t: {"steady rss MB": start + min(t, 400) / 100}

    assert judge(make_lines(part(40), part(44), part(48)), LONG).passed
    leak = [grow("steady rss MB", start, 30) for start in (40, 39, 38)]
    assert judge(make_lines(*leak), LONG).wrong["sqlite"] == ["steady rss MB grows"]


def test_a_limit_that_is_exceeded_and_a_month_that_stays_are_found() -> None:
    plan = replace(LONG, stores=("postgres",))

    def months(t: float) -> dict[str, float]:
        values = {"oldest month": 202612.0, "rows of no month": 0.0}
        return {**values, "rows jobs": 20_000.0, "wal MB": t / 30}

    lines = [*make_lines(months, store="postgres"), Line(3600, "postgres", {}, "month")]
    assert judge(lines, plan).wrong["postgres"] == [
        "rows jobs reached 20000, 15180 may be",
        "wal MB reached 359, 295.279 may be",
        "month 202612 is over and its partitions are still there",
    ]


# --- the picture ------------------------------------------------------------------


def test_every_series_is_drawn_and_listed() -> None:
    def values(t: float) -> dict[str, float]:
        return {name: 5 + n + t % 90 / 30 for n, name in enumerate(PANELS)}

    lines = [*make_lines(values), Line(3600, "sqlite", {}, "month")]
    lines += [line._replace(store="postgres") for line in lines]
    plan = replace(LONG, stores=("sqlite", "postgres"))

    picture = ElementTree.fromstring(draw(lines, plan))  # noqa: S314 - our own
    texts = {element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")}
    assert {*PANELS.values(), *NAMES.values(), "0", "1", "2"} <= texts
    table = make_table(judge(lines, plan))
    assert all(f"| {title} | " in table for title in PANELS.values())
