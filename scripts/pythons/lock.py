"""Whether requirements.lock installs on both architectures and on every promised Python.

pip is asked what it would install there, wheels only, and the hash of each file is looked up in
the lock. Where the index serves metadata apart from the wheels, nothing else is downloaded;
`--require-hashes` would download every wheel to compute what the index already says.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from scripts.pythons.interpreters import PROMISED, ROOT

ARCHITECTURES = ("x86_64", "aarch64")
GLIBC = 36
"""That of Debian 12, the oldest system that ulak is tested on, is 2.36."""

PIN = re.compile(r"^(?P<pin>(?P<name>[a-z0-9-]+)==[^\s;]+)(?P<marker> ; [^\\]+)? \\$", re.M)
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def read_pins(text: str) -> str:
    """Return the versions of a lock without its hashes, one requirement to a line."""
    pins = (f"{pin['pin']}{(pin['marker'] or '').rstrip()}\n" for pin in PIN.finditer(text))
    return "".join(pins)


def list_unlocked(report: dict[str, object], lock: str) -> list[str]:
    """Return the files of a report of pip whose hash is not in the lock."""
    known = set(HASH.findall(lock))
    unlocked = []
    for item in report["install"]:
        info = item["download_info"]
        if info["archive_info"]["hashes"].get("sha256") not in known:
            unlocked.append(info["url"].rpartition("/")[2])
    return unlocked


def check_lock(scratch: Path) -> Iterator[tuple[str, str]]:
    """Yield each architecture and Python with what is wrong there, "" for nothing."""
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    pins = scratch / "pins.txt"
    pins.write_text(read_pins(lock), encoding="utf-8")
    for architecture in ARCHITECTURES:
        for version in PROMISED:
            yield f"{architecture}, Python {version}", _check(architecture, version, pins, lock)


def _check(architecture: str, version: str, pins: Path, lock: str) -> str:
    # Markers are judged by the Python that runs pip. Those of the lock ask for the system and for
    # CPython, which are the same everywhere here.
    systems = [f"manylinux_2_{minor}_{architecture}" for minor in range(5, GLIBC + 1)]
    systems += [f"{old}_{architecture}" for old in ("manylinux1", "manylinux2010", "manylinux2014")]
    report = pins.with_name(f"{architecture}-{version}.json")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    command += ["--dry-run", "--ignore-installed", "--no-deps", "--only-binary", ":all:"]
    command += ["--target", str(pins.with_name("target")), "--python-version", version]
    command += ["--report", str(report), "-r", str(pins)]
    for system in reversed(systems):
        command += ["--platform", system]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        return "; ".join(said) or done.stderr
    unlocked = list_unlocked(json.loads(report.read_text(encoding="utf-8")), lock)
    return f"not in the lock: {', '.join(unlocked)}" if unlocked else ""
