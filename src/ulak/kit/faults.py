"""Points at which a test may kill a process that runs a service."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from ulak.errors import BadInput
from ulak.store import faults

_NAME: Final = re.compile(r"[a-z][a-z0-9-]*(\.[a-z0-9-]+)+")


@dataclass(frozen=True, slots=True)
class FaultPoint:
    """A named point of a service, declared once in its module:

    STAMPED = FaultPoint("letters.stamped")

    The service calls `STAMPED()` where it passes the point, which costs one comparison. A test
    kills the process there: `ulak.testing.faults.run(work, kill_at=STAMPED)`. Raises `BadInput`:
    the name is not lower-case words with dots between them, or is a point of a store.
    """

    name: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.name.partition(".")[0] in faults.KINDS:
            raise BadInput(
                f"{self.name!r} is no name of a service's point; write the service and the point, "
                "as letters.stamped"
            )

    def __call__(self) -> None:
        faults.point(self.name)
