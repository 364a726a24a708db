"""The Pythons of this machine, and an environment of requirements.lock for each."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = ROOT / ".venvs"
OLDEST = (3, 11)
PROMISED = ("3.11", "3.12", "3.13")
"""The minor versions that pyproject.toml promises."""

ASK = """
import json, sys, sysconfig
usable = sys.implementation.name == "cpython" and sys.version_info.releaselevel == "final"
usable = usable and not sysconfig.get_config_var("Py_GIL_DISABLED")
print(json.dumps([sys.executable, list(sys.version_info[:3]), usable]))
"""
ANSWER_S = 30
"""A guess: far above the start of an interpreter on a busy machine."""


@dataclass(frozen=True, slots=True)
class Python:
    """An interpreter."""

    path: Path
    version: tuple[int, int, int]

    @property
    def minor(self) -> str:
        """The version without its patch, as `3.12`."""
        return ".".join(map(str, self.version[:2]))

    @property
    def name(self) -> str:
        """The whole version, as `3.12.1`."""
        return ".".join(map(str, self.version))


def find_pythons(environ: Mapping[str, str]) -> list[Python]:
    """Return one CPython of each minor version from 3.11 on, the newest patch that is found.

    Looks at PATH, at the versions of pyenv (its shims answer only for versions that are chosen),
    and at the Python that runs this.
    """
    newest: dict[str, Python] = {}
    for path in dict.fromkeys(_candidates(environ)):
        python = _ask(path)
        if python is None or python.version < OLDEST:
            continue
        known = newest.get(python.minor)
        if known is None or known.version < python.version:
            newest[python.minor] = python
    return sorted(newest.values(), key=lambda python: python.version)


def list_missing(pythons: list[Python]) -> list[str]:
    """Return the promised minor versions of which there is no Python."""
    found = {python.minor for python in pythons}
    return [minor for minor in PROMISED if minor not in found]


def make_environment(python: Python) -> Path:
    """Return the interpreter of an environment with the locked versions and ulak, editable.

    It is kept between runs, and made anew when the lock or the interpreter has changed.

    Raises:
        CalledProcessError: pip could not install something; it has said what.
    """
    folder = ENVIRONMENTS / python.minor
    inside = folder / "bin" / "python"
    lock = ROOT / "requirements.lock"
    made_from = f"{python.path} {python.name} {hashlib.sha256(lock.read_bytes()).hexdigest()}\n"
    stamp = folder / ".made-from"
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != made_from:
        shutil.rmtree(folder, ignore_errors=True)
        make_venv(python, folder)
        pip(inside, "--require-hashes", "-r", str(lock))
        stamp.write_text(made_from, encoding="utf-8")
    # Each time, since its commands and entry points are those of pyproject.toml.
    pip(inside, "--no-deps", "--no-build-isolation", "-e", str(ROOT))
    return inside


def make_venv(python: Python, folder: Path) -> Path:
    """Make an empty environment, without pip, and return its interpreter."""
    subprocess.run([python.path, "-m", "venv", "--without-pip", folder], check=True)
    return folder / "bin" / "python"


def pip(inside: Path, *arguments: str) -> None:
    """Install into an environment with the pip of `.venv`.

    Raises:
        CalledProcessError: it could not; it has said why.
    """
    quiet = ("--disable-pip-version-check", "--quiet", "--quiet")
    command = [sys.executable, "-m", "pip", *quiet, "--python", inside, "install", *arguments]
    subprocess.run(command, check=True)


def _candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    for folder in environ.get("PATH", "").split(os.pathsep):
        yield from sorted(Path(folder or ".").glob("python3*"))
    pyenv = Path(environ.get("PYENV_ROOT") or Path(environ.get("HOME", "/")) / ".pyenv")
    yield from sorted(pyenv.glob("versions/*/bin/python3"))
    yield Path(sys._base_executable)


def _ask(path: Path) -> Python | None:
    """Return what a file says of itself; None when it is no Python that ulak can be tested on."""
    try:
        done = subprocess.run(
            [path, "-I", "-c", ASK], capture_output=True, text=True, timeout=ANSWER_S, check=True
        )
        executable, version, usable = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return Python(Path(executable), tuple(version)) if usable else None
