"""What a process does for itself whose only work is ulak's."""

from __future__ import annotations

import gc

# A run leaves some thirty small objects that live until its commit and hold no cycles. With the
# interpreter's thresholds they are walked through again and again; these cost a tenth less time
# per job (`python -m bench.figures drain`) and, at a few hundred bytes each, some megabytes. A full
# loop of 500 runs stays below the first.
YOUNG, MIDDLE, OLD = 25_000, 20, 20


def settle_in() -> None:
    """Have the garbage collector leave alone what was loaded, and look less often.

    For a process of its own, as `ulak worker` and `ulak up` start it, after the program is
    loaded. A program that embeds a worker decides about its process itself.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
