"""A storage of artifacts in memory, which fails when it is told to."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from hashlib import sha256
from threading import Lock

from ulak.artifacts.storage import (
    Stat,
    WholeReads,
    must_be_storable,
    must_be_whole,
    parts_of,
    parts_of_prefix,
)
from ulak.clock import Clock, SystemClock, to_datetime
from ulak.errors import ArtifactMissing, ArtifactUnreadable, ArtifactWriteFailed


class MemoryStorage(WholeReads):
    """Keeps artifacts of one process until it ends. See `StorageBackend` for what it promises.

    Args:
        clock: Tells when an artifact was stored.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = Lock()
        self._stored: dict[str, tuple[Stat, bytes]] = {}
        self._failing_writes = 0
        self._is_down = False

    # --- trouble ----------------------------------------------------------------------

    def fail_writes(self, times: int) -> None:
        """Let so many of the next writes and deletions fail."""
        self._failing_writes = times

    def go_down(self) -> None:
        """Let every call fail until `come_back`."""
        self._is_down = True

    def come_back(self) -> None:
        """Let calls succeed again; what was stored is still there."""
        self._is_down = False
        self._failing_writes = 0

    def damage(self, ref: str) -> None:
        """Change a byte of an artifact behind its back."""
        found, data = self._found(ref)
        self._stored[ref] = (found, bytes([data[0] ^ 1]) + data[1:] if data else b"?")

    # --- a storage --------------------------------------------------------------------

    def put_bytes(self, key: str, data: bytes, content_type: str, *, filename: str = "") -> str:
        parts_of(key)
        must_be_storable(content_type, filename)
        with self._lock:
            self._must_write(key)
            now = to_datetime(self._clock.now())
            found = Stat(len(data), sha256(data).hexdigest(), content_type, now)
            self._stored[key] = (found, bytes(data))
        return key

    def get_bytes(self, ref: str) -> bytes:
        found, data = self._found(ref)
        return must_be_whole(data, found.sha256, ref)

    def stat(self, ref: str) -> Stat:
        return self._found(ref)[0]

    def exists(self, ref: str) -> bool:
        parts_of(ref)
        self._must_read(ref)
        return ref in self._stored

    def delete(self, ref: str) -> bool:
        parts_of(ref)
        with self._lock:
            self._must_write(ref)
            return self._stored.pop(ref, None) is not None

    def list(self, prefix: str = "", *, older_than: datetime | None = None) -> Iterator[str]:
        below = parts_of_prefix(prefix)
        self._must_read("")
        with self._lock:
            stored = {ref: found.stored_at for ref, (found, _) in self._stored.items()}
        for ref, stored_at in stored.items():
            parts = ref.split("/")
            is_below = parts[: len(below)] == below and len(parts) > len(below)
            if is_below and (older_than is None or stored_at < older_than):
                yield ref

    def tidy(self, *, older_than: datetime) -> int:
        return 0

    def check(self) -> None:
        self._must_read("")

    def _found(self, ref: str) -> tuple[Stat, bytes]:
        parts_of(ref)
        self._must_read(ref)
        try:
            return self._stored[ref]
        except KeyError:
            raise ArtifactMissing(ref) from None

    def _must_read(self, ref: str) -> None:
        if self._is_down:
            raise ArtifactUnreadable("the storage is down", key=ref)

    def _must_write(self, ref: str) -> None:
        if self._is_down or self._failing_writes > 0:
            self._failing_writes = max(0, self._failing_writes - 1)
            raise ArtifactWriteFailed(f"{ref} was not written: the storage is down", key=ref)
