"""What a document's process can still reach when it has stepped into its place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.services.pdf.browser.scene import roomy_directory
from ulak.services.pdf.weasy.confining import can_confine
from ulak.services.pdf.weasy.ground import UNPRIVILEGED, weaknesses

# Stands where WeasyPrint stands, and tries what a document that got hold of it would try.
PROGRAM = """
import json, os, socket, sys, threading
from ulak.services.pdf.weasy import zygote

own, public, font = sys.argv[1:]


class Printing:
    @staticmethod
    def print_one(line):
        found = {}
        for name, attempt in ATTEMPTS.items():
            try:
                attempt()
                found[name] = True
            except OSError:
                found[name] = False
        line.sendall(json.dumps(found).encode())


def start():
    if os.fork() == 0:
        os._exit(0)


ATTEMPTS = {
    "read a file that everybody may read": lambda: open(public).read(),
    "write beside it": lambda: open(public + ".new", "w").close(),
    "read a font": lambda: open(font, "rb").read(1),
    "write to its own directory": lambda: open(os.environ["TMPDIR"] + "/x", "w").close(),
    "start a thread": lambda: threading.Thread(target=int).start(),
    "start a process": start,
    "execute a program": lambda: os.posix_spawn("/bin/true", ["true"], {}),
}
if own == "-":
    ours, its = socket.socketpair()
    os.environ["TMPDIR"] = os.path.dirname(public)
    Printing.print_one(its)
else:
    zygote._step_down(int(os.environ["DROP_TO"]) if "DROP_TO" in os.environ else None)
    ours, its = socket.socketpair()
    order = {"number": 1, "memory_bytes": 1 << 30, "cpu_s": 60}
    zygote._be_a_document(order, its.detach(), own, Printing)
os.write(1, ours.recv(4096))
os._exit(0)
"""
OF_FILES = {"read a file that everybody may read", "write beside it"}
NEVER = {"start a process", "execute a program"}


def attempted(own: str, folder: Path) -> dict[str, bool]:
    font = next(Path("/usr/share/fonts").rglob("*.ttf"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    if os.geteuid() == 0 and own != "-":
        environment["DROP_TO"] = str(UNPRIVILEGED)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, own, str(folder / "public"), str(font)],
        capture_output=True, text=True, check=True, env=environment,
    )  # fmt: skip
    found: dict[str, bool] = json.loads(done.stdout)
    return found


@pytest.mark.shows("P-32", "P-56")
def test_a_document_that_got_hold_of_its_process_has_fonts_and_its_own_directory_alone() -> None:
    with roomy_directory() as folder:
        (folder / "public").write_text("of the host's")
        (folder / "public").chmod(0o666)
        folder.chmod(0o777)
        own = folder / "own"
        own.mkdir()
        if os.geteuid() == 0:
            os.chown(own, UNPRIVILEGED, UNPRIVILEGED)
        control = attempted("-", folder)
        assert all(control.values()), f"the control shows too little: {control}"
        refused = {name for name, done in attempted(str(own), folder).items() if not done}
        assert refused == NEVER | (OF_FILES if can_confine() else set())
        told = {weakness.name for weakness in weaknesses()}
        assert ("files" in told) is not can_confine(), "a kernel that cannot is told of"
