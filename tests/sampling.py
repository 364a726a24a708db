"""Tests of which every run takes a part, and `make soak` takes all.

A test marked `sampled` repeats what other tests show, on one more store or with one more seed. A
run draws a tenth of these tests and prints its seed; `--sample-seed N` draws the same tests again.
A test that takes the fixture `sized` does a part of its work. `--whole` runs all of both.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import pytest

MARKER: Final = "sampled"
SIZED: Final = "sized"
SHARE: Final = 0.1


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--whole", action="store_true", help="run all of what is sampled or sized")
    parser.addoption(
        "--sample-seed", type=int, help="which tenth of the sampled tests runs (default: the day)"
    )


def pytest_configure(config: pytest.Config) -> None:
    # Options travel to the workers of xdist, so that a run over midnight draws once.
    if config.option.sample_seed is None:
        config.option.sample_seed = datetime.now(UTC).date().toordinal()


def pytest_itemcollected(item: pytest.Item) -> None:
    if SIZED in getattr(item, "fixturenames", ()):
        item.add_marker(SIZED)


@pytest.fixture
def sized(request: pytest.FixtureRequest) -> Callable[[int, int], int]:
    """Return how much of a long test to do: `sized(whole, part)`."""
    is_whole: bool = request.config.option.whole
    return lambda whole, part: whole if is_whole else part


def is_drawn(nodeid: str, seed: int) -> bool:
    """Tell whether a seed draws a test; another test never changes the answer."""
    return random.Random(f"{seed} {nodeid}").random() < SHARE  # noqa: S311 - a draw to repeat


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.whole:
        return
    left_out = [
        item
        for item in items
        if item.get_closest_marker(MARKER)
        and not is_drawn(item.nodeid, config.option.sample_seed)
        and not _is_named(config, item)
    ]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]


def pytest_report_header(config: pytest.Config) -> str:
    share = "all" if config.option.whole else "a tenth"
    return f"sampled tests: {share}, --sample-seed {config.option.sample_seed}"


def _is_named(config: pytest.Config, item: pytest.Item) -> bool:
    """Tell whether the command line asks for just this test."""
    return any(item.nodeid.startswith(name) for name in config.args if "::" in name)
