"""The ring between processes of one machine: a FIFO beside the database.

A listener has it open for reading. A ring opens it for writing and closes it at once, and
all listeners notice that the writer has hung up; nothing is written, so nothing fills up and nobody
takes a ring from another. A ring that is lost costs a little time, since workers look by themselves
too: so whatever goes wrong here is left alone.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

# After a ring nobody listens for so long, and rings cost little. A busy process gets its own rings
# too, which it does not need: it listens less and less often until another one rings.
QUIET_MS = 4
LONGEST_QUIET_MS = 32
# How often a FIFO that is gone is made again.
RENEW_MS = 5000

# Elsewhere a FIFO that nobody writes to may seem to be hung up for ever.
IS_KNOWN = sys.platform == "linux"


class Wakeup:
    """Hears the rings of other processes on a thread of its own, and rings for them.

    Args:
        path: The database.
        heard: Called when another process may have committed; tells whether one has.
    """

    def __init__(self, path: Path, heard: Callable[[], bool]) -> None:
        # Hidden: a program that copies or reads `app.db*` would wait for a FIFO for ever.
        self._name = os.fsencode(path.with_name(f".{path.name}.wakeup"))
        self._heard = heard
        self._fifo: int | None = None
        self._stopping = False
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._serve, name="ulak-wakeup", daemon=True)
        self._thread.start()

    def ring(self) -> None:
        """Wake every process that listens; cheap when none does."""
        # Nobody listens, there is no FIFO, or it is not this program's.
        with suppress(OSError):
            os.close(os.open(self._name, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))

    def close(self) -> None:
        """Stop listening; the FIFO stays, since another process may listen."""
        self._stopping = True
        os.eventfd_write(self._stop, 1)
        self._thread.join()
        os.close(self._stop)

    def forget(self) -> None:
        """Close its files in a forked child, which has no such thread."""
        for fd in (self._fifo, self._stop):
            if fd is not None:
                os.close(fd)

    # --- the thread -------------------------------------------------------------

    def _serve(self) -> None:
        quiet_ms = QUIET_MS
        while not self._stopping:
            self._fifo = self._open()
            # What was committed while nobody listened here was not heard.
            has_changed = self._heard()
            self._wait(self._fifo, RENEW_MS)
            if self._fifo is not None:
                fifo, self._fifo = self._fifo, None
                os.close(fifo)
            has_changed = self._heard() or has_changed
            quiet_ms = QUIET_MS if has_changed else min(2 * quiet_ms, LONGEST_QUIET_MS)
            self._wait(None, quiet_ms)

    def _wait(self, fifo: int | None, timeout_ms: int) -> None:
        poll = select.poll()
        poll.register(self._stop, select.POLLIN)
        if fifo is not None:
            poll.register(fifo, 0)  # a hang-up is always reported
        poll.poll(timeout_ms)

    def _open(self) -> int | None:
        with suppress(OSError):
            if not os.path.lexists(self._name):
                os.mkfifo(self._name)
            # No harm if it is something else: what is no FIFO never hangs up.
            return os.open(self._name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        return None
