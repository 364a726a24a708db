"""Histories of protected operations: who asked for what, when, and what he was told.

    history = History(path)
    call = history.invoke("client-1", key="orders/4711", asked=digest, offers="value-17")
    ...                                             # ask, by a guard or over HTTP
    call.returns(REPLAYED, "value-3")

Any number of threads and processes of one machine write to one file; a process that is killed
leaves calls without an end. `ulak.testing.linearizability` tells whether such a history can be.
"""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

EXECUTED: Final = "executed"
"""It ran, and its answer is stored."""
REPLAYED: Final = "replayed"
"""It was answered from the record."""
IN_PROGRESS: Final = "in-progress"
"""Somebody else is executing: 409."""
CONFLICT: Final = "conflict"
"""The key stands for something else: 422."""
FAILED: Final = "failed"
"""It ran, and nothing of it is kept: an exception, or an answer such as 500."""
LOST: Final = "lost"
"""It ran, and somebody else had taken over meanwhile."""
UNAVAILABLE: Final = "unavailable"
"""It did not run, because the store could not be asked: 503."""
UNDONE: Final = "undone"
"""It did not run, or nothing of it is kept, and the client cannot tell which: 503."""
UNKNOWN: Final = "unknown"
"""Nobody was told: the client died, or gave up waiting."""
FORGOTTEN: Final = "forgotten"
"""An operator has removed the record, or its time has come."""
NOT_FOUND: Final = "not-found"
"""An operator has found no record to remove."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request, from its invocation to its answer."""

    client: str
    key: str
    """Whose key of which operation, in one text."""
    asked: str
    """The fingerprint of the request; empty when the key is to be forgotten."""
    offers: str
    """What it answers if it is the one that is executed; no two calls offer the same."""
    invoked_at: int
    returned_at: int | None
    """On the monotonic clock of the machine, in nanoseconds; None when there was no answer."""
    outcome: str
    value: str = ""
    """What was answered, if anything."""


class Invocation:
    """A call that has not returned."""

    def __init__(self, history: History, number: str) -> None:
        self._history = history
        self._number = number

    def returns(self, outcome: str, value: str = "") -> None:
        """Write down what was answered; to be called after the answer is known."""
        self._history.write([self._number, time.monotonic_ns(), outcome, value])


class History:
    """A file of calls, written line by line."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._calls = 0
        # Each line is one write to the end of the file, so that lines of processes do not mix.
        self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)

    def invoke(self, client: str, *, key: str, asked: str, offers: str) -> Invocation:
        """Write down that a client asks; to be called before it does."""
        with self._lock:
            self._calls += 1
            number = f"{os.getpid()}-{id(self)}-{self._calls}"
        self.write([number, time.monotonic_ns(), client, key, asked, offers])
        return Invocation(self, number)

    def write(self, line: list[object]) -> None:
        """Append one line."""
        os.write(self._fd, json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        """Give the file back."""
        os.close(self._fd)


def read_history(path: str | Path) -> list[Call]:
    """Read every call that was written, in the order of invocation."""
    invoked: dict[str, Call] = {}
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        number, at, *rest = json.loads(line)
        if number not in invoked:
            client, key, asked, offers = rest
            invoked[number] = Call(client, key, asked, offers, at, None, UNKNOWN)
            continue
        outcome, value = rest
        invoked[number] = replace(
            invoked[number],
            returned_at=None if outcome == UNKNOWN else at,
            outcome=outcome,
            value=value,
        )
    return sorted(invoked.values(), key=lambda call: call.invoked_at)
