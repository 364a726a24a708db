"""Sagas while a tenth of all calls is broken: all end, and the ledger of the receiver is exact."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from bench.publishing import storm
from bench.publishing.blog import Blog
from tests.services.publishing.plays import APART, BESIDE


@pytest.fixture
def variables() -> Mapping[str, str]:
    return storm.VARIABLES


@pytest.fixture
def orders() -> Mapping[str, Any]:
    return {}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("store", "way"), [("sqlite", BESIDE), ("postgres", APART)])
@pytest.mark.shows("S-17", "S-38", "S-40")
def test_every_saga_ends_and_each_subscriber_is_told_once_whatever_call_is_broken(
    blog: Blog, sized: Callable[[int, int], int], request: pytest.FixtureRequest
) -> None:
    blog.start(*blog.names)
    verdict = storm.rage(blog, sized(1000, 50), seed=request.config.option.sample_seed)
    assert verdict.wrong == [], verdict.counts
    # About a tenth was broken, and in every way.
    share = verdict.counts["calls broken"] / verdict.counts["calls"]
    assert storm.SHARE / 2 < share < storm.SHARE * 2, verdict.counts
