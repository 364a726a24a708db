"""The page about adaptive control does what it says, for somebody who types it."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.ports import reserve_port
from bench.zygote import Zygote
from tests.docs.pages import DOCS, ROOT
from tests.docs.terminal import Terminal, blocks, section, terminal
from tests.unit.control.test_monitoring import specified
from ulak.control.config import PREFIX, VARIABLES, AdaptiveControlConfig
from ulak.control.scenario import Scenario

PAGE = DOCS / "services" / "control.md"


@pytest.fixture
def opened(tmp_path: Path, zygote: Zygote) -> Iterator[Terminal]:
    port = reserve_port()
    replaced = {"localhost:8000": f"127.0.0.1:{port}"}
    with terminal(tmp_path, zygote, replaced, ULAK_PORT=str(port)) as made:
        (tmp_path / "examples").symlink_to(ROOT / "examples")
        yield made


@pytest.mark.shows("A-37", "A-52", "A-79")
def test_the_walk_from_settings_to_a_confirmed_restore_is_typed_as_the_page_says(
    opened: Terminal,
) -> None:
    typed = blocks(section(PAGE, "Try it", "Choose the timers"))
    assert len(typed) >= 10
    for block in typed:
        said = opened.follow(block)
        if "HTTP/1.1 429" in block.printed:
            wait = re.search(r"^retry-after: (\d+)\s*$", said, re.M | re.I)
            assert wait is not None
            assert int(wait[1]) >= 1
    # What the rules and the dashboard speak of is what this program shows.
    shown = opened.read('curl localhost:8000/metrics -H "$OPS"')
    missing = {name for name in specified() if f"\n{name}" not in shown}
    assert missing == set()


def test_every_setting_is_on_the_page_with_its_default() -> None:
    rows = re.findall(r"^\| (`[A-Z0-9_`, ]+`) \| ([^|]+) \|", section(PAGE, "Settings"), re.M)
    told = {}
    for names, defaults in rows:
        found = re.findall(r"`(\w+)`", names)
        values = [text.strip(" `") for text in defaults.split(",")]
        told |= dict(zip(found, values, strict=True))
    usual = AdaptiveControlConfig()
    assert told.keys() == {name.removeprefix(PREFIX) for name in VARIABLES}
    for variable, name in VARIABLES.items():
        value = getattr(usual, name)
        said = told[variable.removeprefix(PREFIX)]
        if isinstance(value, bool):
            assert said == str(value).lower()
        elif isinstance(value, list):
            assert said == "[]"
        else:
            assert float(said) == value, name


def test_every_field_of_a_scenario_is_on_the_page() -> None:
    table = section(PAGE, "Choose the timers").partition("| Field |")[2].partition("\n\n")[0]
    told = [name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])
            if row.startswith("|")]  # fmt: skip
    assert sorted(told) == sorted(set(Scenario.__struct_fields__) - {"control"})


@pytest.mark.shows("A-42")
def test_the_arithmetic_of_the_page_is_right() -> None:
    def within_slo(open_s: float, *, slo: float = 30, k: float = 3, c: float = 8) -> float:
        return min(1.0, (slo - 20 / c) / ((k - 1) * open_s))

    assert [round(within_slo(open_s), 2) for open_s in (10, 20, 125)] == [1.0, 0.69, 0.11]
    rows = re.findall(r"\| (\d+) % ?", section(PAGE, "Choose the timers"))
    assert rows == ["100", "69", "11"]
