"""What the roadmap says is shown is shown by something that is there."""

import re

from tests.docs.pages import DOCS, ROOT

ROADMAP = (DOCS / "roadmap.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`((?:tests|src|docs|bench)/[\w./-]+)(?:::(\w+))?`")

# Those of the engine whose rows the roadmap must have: the first part's, and the upgrade's.
FIRST = {*range(1, 33), 35, *range(37, 46), *range(47, 55), 57, *range(61, 65), 90}
SHELL = {77, 78, *range(81, 87)}
SEAMS = {*range(65, 76), 79, *range(87, 90)}
REDIS = {56}


def test_every_file_and_test_that_the_roadmap_names_is_there() -> None:
    rows = [line for line in ROADMAP.splitlines() if line.startswith("| ")]
    # The line itself may name what is to come; what shows it must be here.
    named = [found for row in rows for found in NAMED.findall(row.rsplit(" | ", 1)[1])]
    assert named
    for path, test in named:
        assert (ROOT / path).exists(), path
        if test:
            assert f"def {test}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path}::{test}"


def test_every_requirement_of_the_engine_has_a_row_of_its_own() -> None:
    rows = re.findall(r"^\| E-(\d+) \| [^|]+ \| ([^|]+) \|$", ROADMAP, re.M)
    wanted = FIRST | SHELL | SEAMS | REDIS
    assert {int(number) for number, _ in rows} == wanted
    assert len(rows) == len(wanted)
    assert all("`" in shown or shown.startswith("open") for _, shown in rows)


def test_every_requirement_of_idempotency_has_a_row_of_its_own() -> None:
    rows = re.findall(r"^\| I-(\d+) \| [^|]+ \| ([^|]+) \|$", ROADMAP, re.M)
    assert [int(number) for number, _ in rows] == list(range(1, 61))
    assert all("`" in shown or shown.startswith("open") for _, shown in rows)


def test_every_requirement_of_rendering_has_a_row_of_its_own() -> None:
    rows = re.findall(r"^\| (P-P?\d+) \| [^|]+ \| ([^|]+) \|$", ROADMAP, re.M)
    blocking = [f"P-{n}" for n in (*range(1, 44), 53, 59)] + [f"P-P{n}" for n in range(1, 11)]
    found = [name for name, _ in rows]
    assert set(blocking) <= set(found)
    assert len(found) == len(set(found))
    assert all("`" in shown or shown.startswith("open") for _, shown in rows)


def test_every_requirement_and_race_of_publishing_has_a_row_of_its_own() -> None:
    rows = re.findall(r"^\| ([SR]-\d+) \| [^|]+ \| ([^|]+) \|$", ROADMAP, re.M)
    wanted = [f"S-{n}" for n in range(1, 49)] + [f"R-{n}" for n in range(1, 20)]
    assert [name for name, _ in rows] == wanted
    assert all("`" in shown or shown.startswith("open") for _, shown in rows)


def test_every_requirement_of_cutting_has_a_row_of_its_own() -> None:
    rows = re.findall(r"^\| C-(\d+) \| [^|]+ \| ([^|]+) \|$", ROADMAP, re.M)
    # The pages of the console, 79 to 83, share a row until there is one.
    wanted = {*range(1, 79), *range(84, 111)}
    assert sorted(int(number) for number, _ in rows) == sorted(wanted)
    assert all("`" in shown or shown.startswith("open") for _, shown in rows)
