"""What a power cut costs idempotency records in Redis, by how often its file is flushed.

    python -m bench.redis_power_cut

Clients claim keys as fast as they can. Redis is killed at a moment drawn at random, and everything
of its file that no flush had reached by then is cut off, as a power cut may do: what was written
between two flushes is lost at worst. It is started again, and every claim that it had confirmed is
looked for. A library that is loaded before Redis writes down how long the file was at each flush;
it is compiled by `cc`.
"""

from __future__ import annotations

import random
import subprocess
import threading
import time
from pathlib import Path
from statistics import median

from ulak.errors import StoreError
from ulak.store.records import PROCESSING, RecordId, RecordRow
from ulak.store.redis import RedisRecords
from ulak.testing.servers import EVERY_SECOND, Redis

CUTS, CLIENTS = 12, 4
SECONDS = (1.5, 4.0)
TTL_US = 3600 * 1_000_000

WATCHER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
int fdatasync(int fd) {
    int (*flush)(int) = dlsym(RTLD_NEXT, "fdatasync");
    struct stat before;
    fstat(fd, &before);
    int failed = flush(fd);
    if (!failed) {
        int log = open(getenv("FLUSHED"), O_WRONLY | O_APPEND | O_CREAT, 0644);
        dprintf(log, "%ld %ld\n", (long)before.st_ino, (long)before.st_size);
        close(log);
    }
    return failed;
}
"""


class Watched(Redis):
    """A Redis on the disk, of whose file it is known how far it was flushed."""

    def _prepare(self) -> None:
        source = self._write("watcher.c", [WATCHER])
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-o", str(self._library), str(source), "-ldl"],  # noqa: S607
            check=True,
        )
        self._library.chmod(0o755)

    def _command(self) -> list[str]:
        variables = (f"LD_PRELOAD={self._library}", f"FLUSHED={self.directory / 'flushed'}")
        return ["/usr/bin/env", *variables, *super()._command()]

    @property
    def _library(self) -> Path:
        return self.directory / "watcher.so"

    def cut(self) -> int:
        """Kill it, take away what was not flushed, and return how many bytes that were."""
        self.kill()
        (file,) = (self.directory / "appendonlydir").glob("*.incr.aof")
        lines = (self.directory / "flushed").read_text().split("\n")[:-1]
        pairs = [tuple(map(int, line.split())) for line in lines]
        kept = max((size for inode, size in pairs if inode == file.stat().st_ino), default=0)
        lost = file.stat().st_size - kept
        with file.open("r+b") as whole:
            whole.truncate(kept)
        return lost


def claim_until(records: RedisRecords, name: str, confirmed: list[tuple[float, str]]) -> None:
    """Claim one key after the other until Redis is gone; note when each was confirmed."""
    n = 0
    while True:
        n += 1
        row = RecordRow(
            "", "bench", f"{name}-{n}", PROCESSING, "5f" * 32, "", "token", None, 1,
            *[None] * 7, 0, 0, 0,
        )  # fmt: skip
        try:
            records.claim_record(row, ttl_us=TTL_US, lease_us=TTL_US)
        except StoreError:
            return
        confirmed.append((time.monotonic(), row.key))


def cut_once(settings: dict[str, str], after_s: float) -> tuple[int, int, float]:
    """Return how many claims were confirmed, how many are gone, and how old the oldest was."""
    with Watched(durable=True, settings=settings) as server:
        records = RedisRecords(server.url())
        confirmed: list[tuple[float, str]] = []
        threads = [
            threading.Thread(target=claim_until, args=(records, f"c{n}", confirmed))
            for n in range(CLIENTS)
        ]
        for thread in threads:
            thread.start()
        time.sleep(after_s)
        killed_at = time.monotonic()
        server.cut()
        for thread in threads:
            thread.join()
        server.start()
        found = records.find_records([RecordId("", "bench", key) for _, key in confirmed])
        gone = [at for (at, _), row in zip(confirmed, found, strict=True) if row is None]
        return len(confirmed), len(gone), killed_at - min(gone, default=killed_at)


def main() -> None:
    draw = random.Random(21)
    moments = [draw.uniform(*SECONDS) for _ in range(CUTS)]
    for name, settings in (("always", {}), ("everysec", EVERY_SECOND)):
        cuts = [cut_once(settings, after_s) for after_s in moments]
        rate = median(claims / s for (claims, _, _), s in zip(cuts, moments, strict=True))
        lost = [gone for _, gone, _ in cuts]
        oldest = [age * 1000 for _, _, age in cuts]
        print(
            f"appendfsync {name}: {CUTS} power cuts at {rate:,.0f} claims a second lose "
            f"{min(lost)} to {max(lost)} confirmed claims each (median {median(lost):.0f}), "
            f"the oldest {max(oldest):.0f} ms old"
        )


if __name__ == "__main__":
    main()
