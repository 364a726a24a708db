"""A small program in a folder of its own, and the command line run inside it."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.installed import Site
from ulak.cli import main

SHOP = """
import asyncio
from dataclasses import dataclass

import ulak

engine = ulak.connect("sqlite:///shop.db")


@engine.job
def greet(name: str) -> str:
    return f"hello {name}"


@engine.job(retry=0)
def stumble(times: int) -> None:
    raise RuntimeError("no [bold]luck[/bold] today \\x1b[31m")


@engine.job
async def nap(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "rested"


@dataclass
class Claim:
    who: str
    amount: int
    iban: str


@dataclass
class Verdict:
    grade: int


claim = ulak.Flow(
    "claim",
    ulak.Lifecycle(
        "requested",
        {"requested": ["approved", "refused"], "approved": ["paid"]},
        done=["paid", "refused"],
    ),
    payload=Claim,
    secret={"iban"},
)
review = claim.gate(
    "requested",
    choices={"approve": "approved", "refuse": "refused"},
    data=Verdict,
    by={"operator"},
    not_by=ulak.SUBMITTER,
)


@claim.stage("approved")
def pay(run: ulak.Run[Claim]) -> ulak.Hold | int:
    if run.payload.amount > 1000:
        return ulak.Hold("too-much", "somebody must look at this")
    return run.payload.amount


engine.add(claim)
"""


@dataclass(frozen=True)
class Answer:
    """What a command said and how it ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document on stdout."""
        return json.loads(self.out)


class Shop:
    """The program, as its operator and its author see it."""

    def __init__(self, folder: Path, run: Callable[..., Answer]) -> None:
        self.folder = folder
        self.run = run

    def ulak(self, *arguments: str) -> Answer:
        """Run a command about this program."""
        return self.run(*arguments, "-a", "shop:engine")

    def submit(self, function: str, *arguments: Any, **options: Any) -> str:
        """Submit a job as another process would."""
        import shop

        with shop.engine as engine:
            return engine.submit(getattr(shop, function), *arguments, **options).id

    def work(self) -> None:
        """Run what can be run."""
        import shop

        with shop.engine as engine:
            asyncio.run(engine.worker().run(until_idle=True))

    def start(self, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start the real command in a process of its own, with these settings only."""
        others = {k: v for k, v in os.environ.items() if not k.startswith("ULAK_")}
        return subprocess.Popen(
            [sys.executable, "-m", "ulak", *arguments],
            cwd=self.folder,
            env=others | dict(env or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a group of its own, as in a terminal
        )


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Answer]:
    """Run the command line in an empty folder, as if it were a process of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in [name for name in os.environ if name.startswith("ULAK_")]:
        monkeypatch.delenv(name)

    def call(*arguments: str) -> Answer:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return Answer(int(ended.value.code or 0), said.out, said.err)

    return call


@pytest.fixture
def site(run: Callable[..., Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A folder for packages of a test."""
    folder = tmp_path / "site"
    folder.mkdir()
    sys.path.insert(0, str(folder))
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{os.environ.get('PYTHONPATH', '')}")
    return Site(folder, monkeypatch)


@pytest.fixture
def shop(tmp_path: Path, run: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch) -> Shop:
    """A program with a plain job, a failing one, a slow one and an approval."""
    (tmp_path / "shop.py").write_text(SHOP)
    sys.path.insert(0, str(tmp_path))
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    import shop

    monkeypatch.setitem(sys.modules, "shop", shop)
    return Shop(tmp_path, run)
