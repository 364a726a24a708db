"""An emulator of S3 in a process of its own: moto's server, a stand-in for a real bucket.

Run as a program it prints its URL and serves until its standard input ends.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx

BUCKET = "artifacts"
A_PAGE = 10
"""How much a list answers at once; a real server would a thousand."""


@dataclass(frozen=True)
class Emulator:
    """A server that runs, with an empty bucket."""

    url: str
    process: subprocess.Popen[str]

    def stop(self) -> None:
        """Let it go down; may be called twice."""
        self.process.kill()
        self.process.wait()


@contextmanager
def emulator() -> Iterator[Emulator]:
    """Start a server, and end it."""
    with subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "MOTO_S3_DEFAULT_MAX_KEYS": str(A_PAGE)},
    ) as process:
        try:
            url = process.stdout.readline().strip()
            httpx.put(f"{url}/{BUCKET}").raise_for_status()
            yield Emulator(url, process)
        finally:
            process.kill()


if __name__ == "__main__":
    from contextlib import redirect_stdout

    from moto.server import ThreadedMotoServer

    with redirect_stdout(sys.stderr):
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
        server.start()
    host, port = server.get_host_and_port()
    print(f"http://{host}:{port}", flush=True)  # noqa: T201 - how a child says where it is
    sys.stdin.read()
