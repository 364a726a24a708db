"""Points at which a test may kill a process that runs a service."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
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


class FaultSteps:
    """The points of a service's steps, one before and one after each:

        step = FaultSteps("letters")

        with step("stamp"):
            stamp(letter)

    The block passes `letters.stamp.before` and, unless it raises, `letters.stamp.after`.
    """

    def __init__(self, service: str) -> None:
        self._service = service
        self._made: dict[str, tuple[FaultPoint, FaultPoint]] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Pass the points of a step, for the length of a block."""
        before, after = self.points(name)
        before()
        yield
        after()

    def points(self, name: str) -> tuple[FaultPoint, FaultPoint]:
        """Return the points before and after a step."""
        if name not in self._made:
            step = f"{self._service}.{name}"
            self._made[name] = FaultPoint(f"{step}.before"), FaultPoint(f"{step}.after")
        return self._made[name]
