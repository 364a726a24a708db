"""The built wheel in a clean environment for each extra: what it promises works, and what is
absent is named.

Each extra has a small program that uses what the extra brings, at its public entry. The program
runs where the extra is installed, and says which extra to install where it is not.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scripts.pythons.interpreters import ROOT, Python, make_venv, pip
from scripts.pythons.lock import read_pins

BARE = """
import asyncio, sys
import ulak
heavy = {"cronsim", "msgspec", "rich", "typer"} & set(sys.modules)
assert not heavy, f"import ulak has imported {heavy}"

for url in ("memory://", "sqlite:///bare.db"):
    engine = ulak.connect(url)

    @engine.job
    def greet(name: str) -> str:
        return f"hello {name}"

    with engine:
        job = engine.submit(greet, "ada")
        asyncio.run(engine.worker().run(until_idle=True))
        assert engine.result(job.id) == "hello ada"
"""


@dataclass(frozen=True, slots=True)
class Extra:
    """What an extra of pyproject.toml promises."""

    name: str
    program: str
    """Uses what the extra brings; fails, and names the extra, where it is not installed."""
    beside: str = ""
    """The extra that is installed in any case, since the program needs it too."""
    refused: tuple[tuple[str, ...], ...] = ()
    """Commands of `ulak` that name the extra where it is not installed."""


ATTACH = """
import ulak
from ulak.service import attach, get_service
from ulak.settings import Settings
attach(get_service("{name}"), ulak.connect("sqlite:///{name}.db"), Settings())
"""

EXTRAS = (
    Extra("postgres", "import ulak; ulak.connect('postgresql://app@127.0.0.1/app')"),
    Extra(
        "redis",
        "import os, ulak; from ulak import wiring\n"
        "os.environ |= {'IDEMPOTENCY_BACKEND': 'redis', 'IDEMPOTENCY_REDIS_URL': 'redis://cache'}\n"
        "wiring.guard_and_scope(ulak.connect('memory://'), 'orders')",
    ),
    Extra(
        "rq",
        "import ulak; from ulak.dispatch import find_dispatch; from ulak.settings import Settings\n"
        "flow = ulak.Flow('letters', ulak.Lifecycle('new', {'new': ['sent']}, done='sent'))\n"
        "flow.stage('new', queue='post')(lambda run: None)\n"
        "engine = ulak.connect('sqlite:///letters.db', flows=[flow])\n"
        "find_dispatch(engine, Settings(rq_queues='post'))",
    ),
    Extra(
        "web",
        "import ulak; from ulak.web import app; from ulak.web.server import Server\n"
        "from ulak.auth import passwords, tokens\n"
        "app(ulak.connect('memory://'), identity=None)",
        refused=(("up", "--service", "contracts"),),
    ),
    Extra(
        "otel",
        "import logging, sys, ulak; from ulak import wiring; logging.basicConfig()\n"
        "engine = ulak.connect('memory://')\n"
        "wiring.trace(engine, {'OTEL_TRACES_EXPORTER': 'otlp'})\n"
        "sys.exit(engine.kernel.tracing is None)",
    ),
    Extra(
        "contracts",
        "import os\n"
        "os.environ |= {'HOS_MODE': 'hybrid', 'HOS_API_KEY': 'key-of-a-test'}\n"
        "os.environ['HOS_BASE_URL'] = 'https://hos.example.org'\n"
        + ATTACH.format(name="contracts"),
    ),
    Extra(
        "pdf",
        ATTACH.format(name="pdf") + "from ulak.services.pdf import PdfRenderWorker, Templates\n"
        "from ulak.services.pdf.browser.playwright import PlaywrightDriver\n"
        "from ulak.services.pdf.finishing import applying\n"
        "from ulak.services.pdf.security.urls import compile_pattern\n"
        "assert compile_pattern('a+').fullmatch('aa')",
        refused=(("pdf", "--help"), ("worker", "--service", "pdf")),
    ),
    Extra(
        "weasyprint",
        "import sys\n"
        "from ulak.services.pdf.weasy.ground import weaknesses\n"
        "fatal = [f'{weak.message}; {weak.cure}' for weak in weaknesses() if weak.is_fatal]\n"
        "fatal and sys.exit('; '.join(fatal))\n"
        "import ulak.services.pdf.weasy.printing",
        beside="pdf",
    ),
    Extra(
        "publishing",
        ATTACH.format(name="publishing") + "import dotenv, fastapi_swagger",
        beside="web",
        refused=(("publishing", "--help"), ("worker", "--service", "publishing")),
    ),
    Extra(
        "cutting",
        ATTACH.format(name="cutting") + "import defusedxml, openpyxl",
        beside="web",
        refused=(("cutting", "--help"), ("worker", "--service", "cutting")),
    ),
    Extra(
        "control",
        "import runpy, sys\n"
        "from pathlib import Path\n"
        "Path('step.yaml').write_text('load: step')\n"
        "sys.argv = ['ulak', 'control', 'simulate', 'step.yaml']\n"
        "runpy.run_module('ulak', run_name='__main__')",
    ),
    Extra("s3", "from ulak.artifacts import *; S3Storage(S3Settings(bucket='artifacts'))"),
    Extra(
        "encryption",
        "from pathlib import Path; from ulak.artifacts import *\n"
        "storage = EncryptedStorage(LocalStorage(Path('artifacts')), {'key': bytes(32)})\n"
        "ref = storage.put_bytes('a/b', b'secret', 'text/plain')\n"
        "assert storage.get_bytes(ref) == b'secret'",
    ),
)


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this repository and return its file.

    Raises:
        CalledProcessError: it cannot be built; hatchling has said why.
    """
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    subprocess.run([*command, "--directory", folder], cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def list_extras() -> set[str]:
    """Return the extras that pyproject.toml declares for users."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return set(declared["project"]["optional-dependencies"]) - {"dev"}


def check_extras(python: Python, scratch: Path) -> Iterator[tuple[str, str]]:
    """Yield each extra, "none" first, with what is wrong with it, "" for nothing."""
    wheel = build_wheel(scratch)
    pins = scratch / "pins.txt"
    pins.write_text(read_pins((ROOT / "requirements.lock").read_text(encoding="utf-8")))
    rooms = {"": _install(python, wheel, pins, "", scratch)}
    yield "none", _check_bare(rooms[""])
    for extra in EXTRAS:
        names = ",".join(filter(None, (extra.beside, extra.name)))
        rooms[extra.name] = _install(python, wheel, pins, names, scratch)
        yield extra.name, _check(extra, rooms[extra.name], rooms[extra.beside])


@dataclass(frozen=True, slots=True)
class Room:
    """An environment with the wheel in it, and an empty folder to run programs in."""

    python: Path
    folder: Path

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run this environment's Python, with nothing of ours in the environment variables."""
        environ = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        return subprocess.run(
            [self.python, *arguments], cwd=self.folder, env=environ, capture_output=True, text=True,
            check=False, timeout=120,
        )  # fmt: skip


def _install(python: Python, wheel: Path, pins: Path, extras: str, scratch: Path) -> Room:
    place = scratch / (extras or "none")
    inside = make_venv(python, place / "venv")
    pip(inside, "--constraint", str(pins), f"{wheel}[{extras}]" if extras else str(wheel))
    folder = place / "folder"
    folder.mkdir()
    return Room(inside, folder)


def _check_bare(room: Room) -> str:
    runs = (("-c", BARE), ("-m", "ulak", "--version"), ("-m", "ulak", "--help"))
    for arguments in runs:
        done = room.run(*arguments)
        if done.returncode:
            return f"{arguments} failed: {done.stdout}{done.stderr}"
    return ""


def _check(extra: Extra, present: Room, absent: Room) -> str:
    done = present.run("-c", extra.program)
    if done.returncode:
        return f"does not work where it is installed: {done.stdout}{done.stderr}"
    for arguments in (("-c", extra.program), *(("-m", "ulak", *line) for line in extra.refused)):
        done = absent.run(*arguments)
        said = done.stderr.strip()
        if not done.returncode:
            return f"{arguments} works where it is not installed"
        # What an error says of itself is its last line; a command prints no traceback at all.
        if "-m" in arguments and "Traceback" in said:
            return f"{arguments} prints a traceback where it is not installed: {said}"
        if f"ulak[{extra.name}" not in said.rpartition("\n")[2]:
            return f"{arguments} does not name the extra where it is not installed: {said}"
    return ""
