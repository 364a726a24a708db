"""The ring between processes of one machine: FIFOs beside the database.

A listener has one open for reading. A ring opens it for writing and closes it at once: every
listener sees the hang-up, and nothing is written that could fill up. A lost ring costs a little
time, since workers look by themselves too: so failures here are left alone.

`wakeup` rings when a job may have become due, and every listener has it open. `moved` rings for
all other moves, and only processes that wait for a job have it open.
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

from ulak.store.processes import Watchers

# After a ring nobody listens for so long. A busy process hears its own rings too: it listens less
# and less often until another one rings.
QUIET_MS = 4
LONGEST_QUIET_MS = 32
# How often a FIFO that is gone is made again.
RENEW_MS = 5000
# After a ring without a listener none is tried for so long: a failed one costs a lone submit some
# per cent. A listener that begins meanwhile looks once more when this has passed.
SILENCE_MS = 5
# Longer than the claim that follows a ring (`bench.pickup`), shorter than a pickup may take.
CLAIM_MS = 2

_TO_RING = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
# Elsewhere a FIFO that nobody writes to may seem to be hung up for ever.
IS_KNOWN = sys.platform == "linux"


class Fifo:
    """One FIFO: rung by those who commit, opened by those who listen."""

    def __init__(self, path: Path, purpose: str) -> None:
        # Hidden: a program that copies or reads `app.db*` would wait for a FIFO for ever.
        self._name = os.fsencode(path.with_name(f".{path.name}.{purpose}"))
        self._silent_until = 0.0
        self.rung_at = 0.0
        self.fd: int | None = None

    def ring(self) -> None:
        """Wake every process that listens; cheap when none does."""
        now = time.monotonic()
        if now < self._silent_until:
            return
        try:
            fd = os.open(self._name, _TO_RING)
        except OSError:  # there is no listener, no FIFO, or it is another program's
            self._silent_until = now + SILENCE_MS / 1000
            return
        os.close(fd)
        self.rung_at = now

    def open(self) -> None:
        """Begin to listen, as far as there can be a FIFO."""
        with suppress(OSError):
            if not os.path.lexists(self._name):
                with suppress(FileExistsError):  # another process was faster
                    os.mkfifo(self._name)
            # No harm if it is something else: what is no FIFO never hangs up.
            self.fd = os.open(self._name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def close(self) -> None:
        if self.fd is not None:
            fd, self.fd = self.fd, None
            os.close(fd)


class Wakeup:
    """Rings for other processes, and listens to their rings on a thread of its own. `heard` is
    called when another process may have committed, and returns whether one has; `watched` is what
    in this process waits for jobs to move."""

    def __init__(
        self, path: Path, heard: Callable[[], bool], watched: Watchers | None = None
    ) -> None:
        self._due = Fifo(path, "wakeup")
        self.ring = self._due.ring
        """Wakes every process that listens: a job may have become due."""
        self._moved = Fifo(path, "moved")
        self.ring_watchers = self._moved.ring
        """Wakes every process that waits for jobs to move: one has, and none became due."""
        self._heard = heard
        self._watched = watched
        self._beginning = threading.Lock()
        self._stopping = False
        self._stir: int | None = None
        """An eventfd that ends a wait of the thread."""
        self._thread: threading.Thread | None = None

    def listen(self) -> None:
        """Begin to listen. A process that only submits need not: it would notice its own rings."""
        with self._beginning:
            if self._stopping:
                return
            if self._thread is None:
                self._stir = os.eventfd(0, os.EFD_CLOEXEC)
                self._thread = threading.Thread(
                    target=self._serve, args=(self._stir,), name="ulak-wakeup", daemon=True
                )
                self._thread.start()
            elif self._stir is not None and self._watched and self._moved.fd is None:
                os.eventfd_write(self._stir, 1)

    def close(self) -> None:
        with self._beginning:
            self._stopping = True
            if self._thread is None or self._stir is None:
                return
            os.eventfd_write(self._stir, 1)
            self._thread.join()
            os.close(self._stir)
            self._stir = None

    def forget(self) -> None:
        """Close its files in a forked child, which has no such thread."""
        for fifo in (self._due, self._moved):
            fifo.close()
        if self._stir is not None:
            os.close(self._stir)

    def _serve(self, stir: int) -> None:
        quiet_ms = QUIET_MS
        while not self._stopping:
            self._due.open()
            if self._watched:
                self._moved.open()
            # What was committed while nobody listened here was not heard.
            has_changed = self._heard()
            if not self._wait(stir, SILENCE_MS + 1):
                has_changed = self._heard() or has_changed
                self._wait(stir, RENEW_MS)
            self._due.close()
            self._moved.close()
            # After a ring of its own, this process claims: let that thread go first.
            if time.monotonic() < self._due.rung_at + CLAIM_MS / 1000:
                self._wait(stir, CLAIM_MS)
            has_changed = self._heard() or has_changed
            quiet_ms = QUIET_MS if has_changed else min(2 * quiet_ms, LONGEST_QUIET_MS)
            self._wait(stir, quiet_ms)

    def _wait(self, stir: int, timeout_ms: int) -> bool:
        """Wait for a ring, a new watcher or the end; return whether one of them has come."""
        poll = select.poll()
        poll.register(stir, select.POLLIN)
        for fifo in (self._due, self._moved):
            if fifo.fd is not None:
                poll.register(fifo.fd, 0)  # a hang-up is always reported
        found = poll.poll(timeout_ms)
        if (stir, select.POLLIN) in found and not self._stopping:
            os.eventfd_read(stir)
        return bool(found)
