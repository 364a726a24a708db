"""Ruin and recreate on a number of plates, on the tables of `kernel`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import numpy as np

from ulak.services.cutting.optimise.kernel import (
    FREE,
    OUTER,
    Facts,
    Places,
    anneal,
    measure,
    recreate,
)
from ulak.services.cutting.optimise.layout import Column, Layout, Placed, Problem
from ulak.services.cutting.optimise.model import Plate

ROUNDS: Final = 2_000
"""Of one call of the kernel: it can be stopped between two."""


class Search:
    """Pieces on a number of plates, the first cuts along one axis; some may find no place."""

    def __init__(
        self, problem: Problem, counts: Sequence[int], plates: Sequence[Plate], axis: int, seed: int
    ) -> None:
        self.plates, self.axis = plates, axis
        self._parts = [part for part in problem.parts for _ in range(counts[part.number])]
        number, kerf = len(self._parts), problem.kerf
        widths, heights = np.zeros((2, number, 2), np.int64)
        for row, part in enumerate(self._parts):
            for n, pose in enumerate(part.poses):
                widths[row, n] = pose.extents[1 - axis] + kerf
                heights[row, n] = pose.extents[axis] + kerf
        wide, high = widths[:, 0], heights[:, 0]
        longest, area = np.maximum(wide, high), wide * high
        self._facts = Facts(
            widths, heights, poses=np.array([len(part.poses) for part in self._parts], np.int64),
            # The more often a way stands here, the more often it is taken.
            keys=np.stack([area, area, area, area, high, high, wide, longest, longest]),
            full=np.array(
                [[p.usable[1 - axis] + kerf, p.usable[axis] + kerf] for p in plates], np.int64
            ),
            is_two_stage=problem.is_two_stage, is_exact=not problem.order.trimming,
        )  # fmt: skip
        self._places, self._kept = (
            Places(
                pieces=np.full((number, 2), FREE, np.int64),
                columns=np.full((number, 3), FREE, np.int64),
                strips=np.full((number, 3), FREE, np.int64),
                used=np.zeros(len(plates), np.int64),
                ends=np.zeros(2, np.int64),
            )
            for _ in range(2)
        )
        self._random = np.array([(seed * 2_654_435_761) % 0xFFFFFFFF or 1], np.int64)
        measure(self._places, self._facts)

    @property
    def is_complete(self) -> bool:
        """Whether every piece has a place."""
        return bool((self._places.pieces[:, OUTER] != FREE).all())

    def fill(self) -> None:
        """Give a place to every piece that has none, the largest first."""
        recreate(self._places, self._facts, self._random, 0, 0, 100, 100)

    def anneal(self, temperature: float, rounds: int = ROUNDS) -> int:
        """Ruin and recreate for some rounds, or until it is complete; return the rounds."""
        done: int = anneal(self._places, self._facts, self._kept, self._random, rounds, temperature)
        return done

    def narrow_last(self, most: int) -> None:
        """Let the strips of the last sheet reach only so far."""
        self._facts.full[-1, 1] = most

    def read_layouts(self) -> list[Layout]:
        """Return what lies on each plate that is used."""
        _, columns, strips, *_ = self._places
        found: dict[int, dict[int, dict[int, Column]]] = defaultdict(
            lambda: defaultdict(lambda: defaultdict(list))
        )
        for part, (column, pose) in zip(self._parts, self._places.pieces, strict=True):
            if column != FREE:
                strip = columns[column, OUTER]
                sheet = found[strips[strip, OUTER]]
                sheet[strip][column].append(Placed(part.number, part.poses[pose]))
        return [
            Layout(self.plates[n], self.axis, [[*strip.values()] for strip in sheet.values()])
            for n, sheet in sorted(found.items())
        ]
