"""What `import ulak` costs: third-party modules loaded, and names to learn."""

from __future__ import annotations

import subprocess
import sys

from bench.measure import ROOT, Figure

MOST_NAMES = 34

_FOREIGN = """
import sys
known = set(sys.modules)
import ulak
loaded = {name.partition(".")[0] for name in set(sys.modules) - known}
print(len(loaded - set(sys.stdlib_module_names) - {"ulak"}))
"""


def modules_figure() -> Figure:
    """In a fresh interpreter, every package that is neither the standard library nor ulak."""
    done = subprocess.run(
        [sys.executable, "-c", _FOREIGN], cwd=ROOT, capture_output=True, text=True, check=True
    )
    foreign = int(done.stdout)
    return Figure(
        "third-party modules that `import ulak` loads", "0", str(foreign), foreign == 0,
        "python -m bench.figures modules",
    )  # fmt: skip


def names_figure() -> Figure:
    """The length of `ulak.__all__`."""
    import ulak

    names = len(ulak.__all__)
    return Figure(
        "public names", f"<= {MOST_NAMES}", str(names), names <= MOST_NAMES,
        "python -m bench.figures names",
    )  # fmt: skip
