"""The ring between processes of one machine: a FIFO beside the database.

Listeners have it open for reading. A ring opens it for writing and closes it at once, and every
listener notices that the writer has hung up; nothing is written, so nothing fills up and no
listener takes a ring from another. A ring that is lost costs a little time, since workers look by
themselves too: so failures here are left alone.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

# After a ring nobody listens for so long, and rings cost little. A busy process hears its own rings
# too, of which it need not be told: it listens less and less often until another one rings.
QUIET_MS = 4
LONGEST_QUIET_MS = 32
# How often a FIFO that is gone is made again.
RENEW_MS = 5000
# After a ring without a listener none is tried for so long: a failed one costs a lone submit some
# per cent. A listener that begins meanwhile looks once more when this has passed.
SILENCE_MS = 5

_TO_RING = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC

# Elsewhere a FIFO that nobody writes to may seem to be hung up for ever.
IS_KNOWN = sys.platform == "linux"


class Wakeup:
    """Rings for other processes, and listens to their rings on a thread of its own.

    Args:
        path: The database.
        heard: Called when another process may have committed; tells whether one has.
    """

    def __init__(self, path: Path, heard: Callable[[], bool]) -> None:
        # Hidden: a program that copies or reads `app.db*` would wait for a FIFO for ever.
        self._name = os.fsencode(path.with_name(f".{path.name}.wakeup"))
        self._heard = heard
        self._fifo: int | None = None
        self._silent_until = 0.0
        self._stopping = False
        self._stop: int | None = None
        self._thread: threading.Thread | None = None

    def ring(self) -> None:
        """Wake every process that listens; cheap when none does."""
        now = time.monotonic()
        if now < self._silent_until:
            return
        try:
            fifo = os.open(self._name, _TO_RING)
        except OSError:  # there is no listener, no FIFO, or it is another program's
            self._silent_until = now + SILENCE_MS / 1000
            return
        os.close(fifo)

    def listen(self) -> None:
        """Begin to listen. A process that only submits need not: it would notice its own rings."""
        if self._thread is None:
            self._stop = os.eventfd(0, os.EFD_CLOEXEC)
            self._thread = threading.Thread(
                target=self._serve, args=(self._stop,), name="ulak-wakeup", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """Stop listening; the FIFO stays, since another process may listen."""
        self._stopping = True
        if self._thread is not None and self._stop is not None:
            os.eventfd_write(self._stop, 1)
            self._thread.join()
            os.close(self._stop)

    def forget(self) -> None:
        """Close its files in a forked child, which has no such thread."""
        for fd in (self._fifo, self._stop):
            if fd is not None:
                os.close(fd)

    # --- the thread -------------------------------------------------------------

    def _serve(self, stop: int) -> None:
        quiet_ms = QUIET_MS
        while not self._stopping:
            self._fifo = self._open()
            # What was committed while nobody listened here was not heard.
            has_changed = self._heard()
            if not _wait(stop, self._fifo, SILENCE_MS + 1):
                has_changed = self._heard() or has_changed
                _wait(stop, self._fifo, RENEW_MS)
            if self._fifo is not None:
                fifo, self._fifo = self._fifo, None
                os.close(fifo)
            has_changed = self._heard() or has_changed
            quiet_ms = QUIET_MS if has_changed else min(2 * quiet_ms, LONGEST_QUIET_MS)
            _wait(stop, None, quiet_ms)

    def _open(self) -> int | None:
        with suppress(OSError):
            if not os.path.lexists(self._name):
                with suppress(FileExistsError):  # another process was faster
                    os.mkfifo(self._name)
            # No harm if it is something else: what is no FIFO never hangs up.
            return os.open(self._name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        return None


def _wait(stop: int, fifo: int | None, timeout_ms: int) -> bool:
    """Wait for a ring or the end; return whether one of them has come."""
    poll = select.poll()
    poll.register(stop, select.POLLIN)
    if fifo is not None:
        poll.register(fifo, 0)  # a hang-up is always reported
    return bool(poll.poll(timeout_ms))
