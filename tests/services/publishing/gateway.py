"""A real nginx with the configuration of the repository, on ports of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx

from bench.ports import reserve_port
from tests.services.publishing.parts import PATIENCE_S, ROOT

PATHS = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


@contextmanager
def nginx(folder: Path, servers: Mapping[str, str]) -> Iterator[str]:
    """Serve `nginx.conf`, with these addresses in the place of those that it names; return where.
    What nginx writes stays in the folder."""
    port = reserve_port()
    text = (ROOT / "nginx.conf").read_text()
    for name, address in {**servers, "listen 80;": f"listen 127.0.0.1:{port};"}.items():
        assert text.count(name) == 1, name
        text = text.replace(name, address)
    own = "".join(f"{each}_temp_path {folder}/{each};" for each in PATHS)
    configuration = folder / "nginx.conf"
    configuration.write_text(text.replace("http {", f"http {{ access_log off; {own}", 1))
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    assert program, "nginx is missing; scripts/servers.sh installs it"
    user = "user root;" if os.getuid() == 0 else ""
    with (folder / "nginx.err").open("wb") as errors, subprocess.Popen(
        [program, "-p", folder, "-e", "stderr", "-c", configuration,
         "-g", f"daemon off; pid {folder}/nginx.pid; {user}"],
        stderr=errors,
    ) as process:  # fmt: skip
        try:
            deadline = time.monotonic() + PATIENCE_S
            while True:
                try:
                    httpx.get(f"http://127.0.0.1:{port}/nothing")
                    break
                except httpx.TransportError:
                    said = (folder / "nginx.err").read_text()
                    assert process.poll() is None, said
                    assert time.monotonic() < deadline, said
                    time.sleep(0.02)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
