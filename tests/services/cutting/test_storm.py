"""Orders in a storm: runners are killed, plans come in pieces, and the saw lies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bench.cutting import storm
from bench.cutting.workshop import Workshop
from tests.services.cutting.conftest import make_cutting


@pytest.mark.timeout(3600)
@pytest.mark.shows("C-106")
@pytest.mark.parametrize("store", ["sqlite", pytest.param("postgres", marks=pytest.mark.sampled)])
def test_every_order_is_cut_once_or_stops_with_a_documented_code(
    store: str, tmp_path: Path, sized: Callable[[int, int], int], request: pytest.FixtureRequest
) -> None:
    if store == "sqlite":
        rage(f"sqlite:///{tmp_path / 'cutting.db'}", tmp_path, sized(100, 10), request)
        return
    with request.getfixturevalue("databases").lend(make_cutting) as url:
        rage(url, tmp_path, sized(100, 10), request)


def rage(url: str, folder: Path, orders: int, request: pytest.FixtureRequest) -> None:
    options = {"rules": storm.RULES, "program": storm.PROGRAM, "manner": storm.MANNER}
    with Workshop(folder, url, **options) as shop:
        verdict = storm.rage(shop, orders, seed=request.config.option.sample_seed)
    assert verdict.wrong == [], verdict.counts
    assert verdict.counts["kills"] >= orders / 5, verdict.counts
    assert verdict.counts.get("DONE", 0) >= orders / 2, verdict.counts
