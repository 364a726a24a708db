"""A secret in a log, a table or an answer fails the run, and the report says where it is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ulak
from tests.conformance.stores import make_schema
from tests.databases import Databases
from tests.secrets_watch import WATCH
from ulak.auth import secrets
from ulak.auth.identity import Identity

ROOT = Path(__file__).parents[2]
KEY = secrets.new_secret()
SECRET = "of this test, and long enough for one"  # noqa: S105 - guards nothing

TESTS = """
import logging
import sqlite3
import pytest
import ulak
from argon2 import Parameters, Type, profiles
from ulak.auth.identity import Identity

PASSWORD = "correct horse battery staple"
log = logging.getLogger("shop")

@pytest.fixture
def engine(tmp_path):
    with ulak.connect(f"sqlite:///{tmp_path}/shop.db") as engine:
        engine.greet = engine.job(greet)
        yield engine

@pytest.fixture(autouse=True)
def quick(monkeypatch):
    cheap = Parameters(Type.ID, 19, 16, 32, time_cost=1, memory_cost=8, parallelism=1)
    monkeypatch.setattr(profiles, "RFC_9106_LOW_MEMORY", cheap)

def greet(name: str) -> None: ...

def change(path, statement):
    db = sqlite3.connect(path, isolation_level=None)
    db.execute(statement)
    db.close()

def test_it(engine, tmp_path):
    identity = Identity(engine.store, secret="of this test, and long enough for one")
    key = identity.create_key("ci", roles=["service"], actor="ada")
    identity.create_user("ada", PASSWORD, roles=["viewer"], actor="ada")
    engine.submit(engine.greet, "ada")
    log.warning("made %s", key.key.id)
    # here
"""

LEAKS = {
    "in a message": ('log.warning("made %s", key.text)', "log shop: key"),
    "in an extra": ('log.warning("m", extra={"a": [key.text]})', "log shop: key"),
    "in an error": (
        'try: raise ValueError(key.text)\n    except ValueError: log.exception("no")',
        "log shop: key",
    ),
    "in a header": ('log.warning("%s", {"Authorization": "Bearer abcdef"})', "log shop: header"),
    "of a link": ('log.error("GET /auth/link?code=abc")', "log shop: link (plain)"),
    "of a person": ('log.warning("%r", {"x": PASSWORD})', "log shop: password"),
    "that signs": (
        'log.warning("of this test, and long enough for one")',
        "log shop: signing secret",
    ),
    "below the level": (
        'logging.getLogger("ulak.shop").debug("%s", key.text)',
        "log ulak.shop: key",
    ),
    "where a test configures logging": (
        'logging.basicConfig(force=True); log.propagate = False; log.warning("%s", key.text)',
        "log shop: key",
    ),
    "in a payload": ("engine.submit(engine.greet, key.text)", "shop.db: payloads.data: key"),
    "in base64 in a payload": (
        "import base64; engine.submit(engine.greet, base64.b64encode(key.text.encode()).decode())",
        "(base64)",
    ),
    "of a person in the trail": ("engine.submit(engine.greet, '', actor=PASSWORD)", "events.actor"),
    "that is not hashed": (
        "change(tmp_path / 'shop.db', \"UPDATE credentials SET hash = 'plain'\")",
        "shop.db: credentials.hash: not a hash",
    ),
}


def run(folder: Path, tests: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run pytest with the plugin on some tests."""
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    plants_secrets\n")
    (folder / "test_shop.py").write_text(tests)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.secrets_watch", "-p", "no:cacheprovider",
         "--basetemp", str(folder / "temp"), *options],
        cwd=folder,
        env={
            **os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        },
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip


def test_a_run_that_leaks_nothing_passes(tmp_path: Path) -> None:
    done = run(tmp_path, TESTS)
    assert done.returncode == pytest.ExitCode.OK, done.stdout
    assert "1 passed" in done.stdout


@pytest.mark.plants_secrets
def test_each_leak_fails_the_run_and_is_named(tmp_path: Path) -> None:
    each = {name: f"test_{name.replace(' ', '_')}" for name in LEAKS}
    head, test = TESTS.split("def test_it")
    made = [f"def {each[name]}{test}".replace("# here", leak) for name, (leak, _) in LEAKS.items()]
    done = run(tmp_path, "\n".join([head, *made]))
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    told = done.stdout.split("has leaked:")
    assert f"{len(LEAKS)} passed, {len(LEAKS)} errors" in told[-1]
    for before, after, name in zip(told, told[1:], LEAKS, strict=False):
        assert before.endswith(f"test_shop.py::{each[name]} "), name
        assert LEAKS[name][1] in after, name
        assert "correct horse" not in after.partition("Captured")[0], "a report tells none either"


def test_under_xdist_a_leak_fails_the_run_as_well(tmp_path: Path) -> None:
    leaking = TESTS.replace("# here", LEAKS["in a message"][0])
    done = run(tmp_path, leaking, "-p", "xdist", "-n", "1")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    assert "test_shop.py::test_it has leaked:\n  log shop: key" in done.stdout


def test_what_is_planted_on_purpose_is_left_alone(tmp_path: Path) -> None:
    leaking = TESTS.replace("# here", LEAKS["in a message"][0])
    done = run(tmp_path, leaking.replace("def test_it", "@pytest.mark.plants_secrets\ndef test_it"))
    assert done.returncode == pytest.ExitCode.OK, done.stdout


def test_a_database_that_is_given_back_is_looked_at(databases: Databases) -> None:
    def greet(name: str) -> None: ...

    for payload, leaks in (("ada", 0), (KEY, 1)):
        with databases.lend(make_schema) as url, ulak.connect(url) as engine:
            identity = Identity(engine.store, secret=SECRET)
            identity.create_key("ci", roles=["service"], actor="ada")
            engine.submit(engine.job(greet), payload)
        found = WATCH.end()
        assert len(found) == leaks, found
        assert all("ulak.payloads.data" in leak for leak in found)
