"""A packer of others on the same orders: `pip install rectpack==0.2.2` brings it.

It needs no full cuts, so that comparisons favour it.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from itertools import product
from typing import Any, Final

from ulak.services.cutting.optimise.model import Order, to_units

_ALGORITHMS: Final = (
    "MaxRectsBl", "MaxRectsBssf", "MaxRectsBaf", "MaxRectsBlsf", "SkylineBl", "SkylineBlWm",
    "SkylineMwf", "SkylineMwfWm", "SkylineMwfl", "SkylineMwflWm",
)  # fmt: skip
_SORTS: Final = "SORT_AREA", "SORT_PERI", "SORT_SSIDE", "SORT_LSIDE"


def has_rectpack() -> bool:
    """Tell whether it is installed."""
    return find_spec("rectpack") is not None


def pack_by_rectpack(order: Order) -> int | None:
    """Return the fewest sheets of 40 ways: ten algorithms with four orders of the parts each. None:
    the plates are not all equal, or no way has a place for everything."""
    rectpack: Any = import_module("rectpack")
    if len(order.stock) != 1:
        return None
    plate, counts = order.stock[0], list[int]()
    for algorithm, sort in product(_ALGORITHMS, _SORTS):
        packer = rectpack.newPacker(
            pack_algo=getattr(rectpack, algorithm), sort_algo=getattr(rectpack, sort),
            rotation=order.parts[0].grain == 0,
        )  # fmt: skip
        packer.add_bin(to_units(plate.width), to_units(plate.height), count=float("inf"))
        for part in order.parts:
            for _ in range(part.quantity):
                packer.add_rect(to_units(part.length), to_units(part.width))
        packer.pack()
        if len(packer.rect_list()) == sum(part.quantity for part in order.parts):
            counts.append(len(packer))
    return min(counts, default=None)
