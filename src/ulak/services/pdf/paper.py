"""Sizes of paper: by name, or by their edges."""

from __future__ import annotations

import re
from typing import Any, Final

PAPERS: Final = {
    "A3": (11.69, 16.54),
    "A4": (8.27, 11.69),
    "A5": (5.83, 8.27),
    "A6": (4.13, 5.83),
    "B5": (6.93, 9.84),
    "Letter": (8.5, 11.0),
    "Legal": (8.5, 14.0),
}
"""Width and height in inches, upright."""
LARGEST_PAPER: Final = 200.0
"""Inches: a PDF page has no more."""

_CUSTOM: Final = re.compile(
    r"(\d{1,4}(?:\.\d{1,6})?)\s*x\s*(\d{1,4}(?:\.\d{1,6})?)\s*(mm|cm|in)", re.ASCII
)
_PER_INCH: Final = {"mm": 25.4, "cm": 2.54, "in": 1.0}


def read_paper(said: Any) -> tuple[float, float]:
    """Read `A4`, `A4 landscape` or `100 x 150 mm` as width and height in inches.

    Raises:
        ValueError: it is none of these.
    """
    text = str(said).strip()
    size, _, way = text.partition(" ")
    if size in PAPERS and way in ("", "portrait", "landscape"):
        width, height = PAPERS[size]
        return (height, width) if way == "landscape" else (width, height)
    if found := _CUSTOM.fullmatch(text):
        inches = _PER_INCH[found[3]]
        width, height = (float(found[place]) / inches for place in (1, 2))
        if 0 < width <= LARGEST_PAPER and 0 < height <= LARGEST_PAPER:
            return width, height
    raise ValueError(f"write one of {', '.join(PAPERS)}, with landscape or not, or 100 x 150 mm")
