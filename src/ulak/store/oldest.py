"""Which releases may run on a schema: each numbered SQL file names the oldest in its head.

A file that older releases survive says so in a line of its own, `-- oldest: 5`: the number of the
oldest schema whose release may go on, and start, when the file has been run. A file without such a
line lets no release before it run.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

NAMED: Final = re.compile(r"^-- oldest: ([0-9]+)$", re.MULTILINE)


def find_oldest(script: Callable[[int], str], version: int) -> int:
    """Return the oldest schema whose release may run on a database at `version`.

    Every file up to there has been run, so the strictest of them decides.

    Args:
        script: Returns the text of a file, by its number.
        version: The number of the last file.
    """
    return max(_named(script(number), number) for number in range(1, version + 1))


def too_old(place: str, schema: int, *, oldest: int, newest: int) -> str:
    """Return the sentence that refuses a release which must not run on a schema."""
    return (
        f"{place} at schema {schema}, this ulak knows {newest}, and only releases that know "
        f"{oldest} or later may run on it: a newer release has run `ulak migrate` on it; install "
        "that release"
    )


def _named(script: str, number: int) -> int:
    found = NAMED.search(script)
    return number if found is None else int(found[1])
