"""A packer of others, beside plans of the same orders."""

import sys
from typing import Any

import pytest

from bench.cutting.packers import has_rectpack, pack_by_rectpack
from bench.cutting.plans import compare
from tests.services.cutting.optimise.trees import make_order, make_part, mm
from ulak.services.cutting.optimise.model import Stock


class Packer:
    """Stands in for rectpack: one of its ways leaves a part out, another needs fewest sheets."""

    def __init__(self, pack_algo: str, sort_algo: str, rotation: bool) -> None:
        self.sheets = {"MaxRectsBaf": 1, "SkylineMwf": 2}.get(pack_algo, 3)
        self.parts: list[Any] = []
        self.rotation = rotation

    def add_bin(self, width: int, height: int, count: float) -> None:
        assert (width, height, count) == (10000, 6000, float("inf"))

    def add_rect(self, width: int, height: int) -> None:
        self.parts.append((width, height))

    def pack(self) -> None:
        del self.parts[: self.sheets == 1]

    def rect_list(self) -> list[Any]:
        return self.parts

    def __len__(self) -> int:
        return self.sheets


class Rectpack:
    __spec__ = "it is there"
    newPacker = staticmethod(Packer)  # noqa: N815 - its name

    def __getattr__(self, name: str) -> str:
        return name


@pytest.mark.shows("C-105")
def test_a_packer_of_others_is_compared_where_it_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "rectpack", Rectpack())
    assert has_rectpack()
    order = make_order(make_part("a", 50, 30, 3), stock=[Stock(mm(100), mm(60))])
    assert pack_by_rectpack(order) == 2
    both = make_order(make_part("a", 50, 30), stock=[Stock(mm(100), mm(60), n) for n in (None, 2)])
    assert pack_by_rectpack(both) is None


@pytest.mark.shows("C-105")
def test_the_figure_says_where_the_packer_needs_fewer_sheets() -> None:
    ours = {"one": 4, "two": 7, "three": 9}
    figure = compare("a set", ours, {"one": 3, "two": 9, "three": None}, "make figures")
    assert figure.ok
    assert (figure.bound, figure.value) == (
        "<= 12", "11; rectpack needs fewer on 1: one (3 of 4)",
    )  # fmt: skip
    assert not compare("a set", ours, {"one": 3, "two": 7}, "make figures").ok
