"""Services are found by name: their flows, routes and commands, and what is wrong with them."""

import json
import re
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.cli.installed import Site
from tests.cli.test_apart import children_of, unready
from tests.cli.test_up import PATIENCE_S, address, greeting, logged_in, running, until

GOOD = """
import os
import pathlib

import ulak
from ulak.service import Service

pathlib.Path("imported").touch()

flow = ulak.Flow("letter", ulak.Lifecycle("new", {"new": ["printed"]}, done="printed"))


@flow.stage("new", queue="printer")
def print_it(run):
    return os.getpid()


def attach(engine, settings):
    engine.add(flow)
    engine.flow_control.apart("printer")


def routes(engine, attached):
    from fastapi import APIRouter

    from ulak.auth import JOBS_READ, JOBS_SUBMIT
    from ulak.web import Access, Routes

    router = APIRouter(prefix="/letters")

    @router.post("")
    async def write() -> dict[str, str]:
        return {"job": (await engine.aio.submit(flow, {})).id}

    @router.get("/papers")
    def papers() -> list[str]:
        return ["A4"]

    access = [
        Access("POST", "/letters", JOBS_SUBMIT, "jobs"),
        Access("GET", "/letters/papers", JOBS_READ),
    ]
    return Routes([router], access)


def commands():
    import typer

    app = typer.Typer(help="Letters.")

    @app.command()
    def papers() -> None:
        print("A4")

    return app


service = Service("letters", attach=attach, routes=routes, commands=commands)
"""

Install = Callable[[str, str, str], None]


@pytest.fixture
def install(site: Site) -> Install:
    """Put a package with one service where this process and its children find it."""

    def make(package: str, point: str, code: str) -> None:
        site.install(package, f"[ulak.services]\n{point}\n", code)

    return make


@pytest.fixture
def letters(install: Install) -> None:
    install("acme-letters", "letters = acme_letters:service", GOOD)


def is_one_line(text: str) -> bool:
    return text.startswith("error: ") and text.count("\n") == 1


def test_the_commands_of_a_service_appear_without_importing_it(letters, run, tmp_path):
    said = run("--help")
    assert said.code == 0
    assert "letters" in said.out
    assert "package acme-letters" in " ".join(said.out.split())
    assert run("--version").code == 0
    assert not (tmp_path / "imported").exists()
    assert run("letters", "papers").out == "A4\n"
    assert (tmp_path / "imported").exists()
    assert run("letters", "nothing").code == 2
    assert "papers" in run("letters", "--help").out


@pytest.mark.shows("E-16")
def test_up_mounts_a_service_by_name_on_a_store_of_its_own(letters, shop, tmp_path):
    with running(shop, "up", "--service", "letters", "--port", "0") as process:
        said = greeting(process)
        base = address(said)
        assert "serves letters at" in said
        assert "ULAK_SERVICE=letters" in said
        assert httpx.get(f"{base}/letters/papers").status_code == 401
        with logged_in(said) as browser:
            assert browser.get("/letters/papers").json() == ["A4"]
            until(lambda: unready(base) is None)
            job = browser.post("/letters").json()["job"]
            until(lambda: browser.get(f"/jobs/{job}").json()["state"] == "printed")
        children = children_of(process.pid)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert len(children) == 1
    assert (tmp_path / ".ulak" / "ulak.db").exists()


ADDRESS = """

def address(engine, attached):
    from functools import partial

    import ulak.web
    from ulak.service import Address

    app = partial(
        ulak.web.app, engine, services=[service], platform_routes=["/health/ready", "/auth/me"]
    )
    return Address(int(os.environ.get("LETTERS_PORT", "0")), "LETTERS_PORT", lambda unready: app())


service = dataclasses.replace(service, address=address)
"""


@pytest.fixture
def letters_apart(install: Install) -> None:
    code = f"import dataclasses\n{GOOD}{ADDRESS}"
    install("acme-letters", "letters = acme_letters:service", code)


def test_up_opens_the_address_that_a_service_has_of_its_own_and_prints_it(
    letters_apart, shop, monkeypatch
):
    monkeypatch.setenv("ULAK_SERVICE", "letters")
    with running(shop, "up", "--service", "letters", "--port", "0") as process:
        said = greeting(process)
        own = re.search(r"^  letters   (http://127.0.0.1:\d+)$", said, re.M)[1]
        assert own != address(said)
        key = shop.run("keys", "create", "ci", "--role", "operator").out.strip()
        headers = {"Authorization": f"Bearer {key}"}
        assert httpx.get(f"{own}/letters/papers").status_code == 401
        for base in (own, address(said)):
            assert httpx.get(f"{base}/letters/papers", headers=headers).json() == ["A4"]
        assert httpx.get(f"{own}/auth/me", headers=headers).json()["name"] == "key:ci"
        assert httpx.get(f"{own}/jobs", headers=headers).status_code == 404
        assert httpx.get(f"{own}/health/ready").status_code == 200
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert "Traceback" not in err


def test_a_taken_address_of_a_service_is_one_line_that_names_its_variable(
    letters_apart, run, monkeypatch
):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        monkeypatch.setenv("LETTERS_PORT", port)
        answer = run("up", "--service", "letters", "--port", "0")
    assert answer.code == 1
    assert answer.err == (
        f"error: port {port} of 127.0.0.1 is taken; choose another with LETTERS_PORT\n"
    )


@pytest.mark.shows("E-16")
def test_every_command_finds_the_jobs_of_services(letters, run, monkeypatch):
    monkeypatch.setenv("ULAK_SERVICE", "letters")
    monkeypatch.setenv("ULAK_STORE", "sqlite:///post.db")
    assert "letter" in run("flows").out
    assert run("jobs", "list").code == 0
    assert Path("post.db").exists()


def test_a_program_may_have_services_too(letters, run, tmp_path, shop):
    said = run("flows", "-a", "shop:engine").out
    assert "letter" not in said
    (tmp_path / "pyproject.toml").write_text('[tool.ulak]\nservice = ["letters"]\n')
    said = run("flows", "-a", "shop:engine").out
    assert "letter" in said
    assert "greet" in said


def test_the_password_of_a_store_is_not_shown(letters, run, monkeypatch):
    monkeypatch.setenv("ULAK_SERVICE", "letters")
    monkeypatch.setenv("ULAK_APP", "none:engine")
    monkeypatch.setenv("ULAK_STORE", "postgresql://ada:hunter2@db.invalid/jobs")
    from ulak import settings

    assert settings.load().shown("store") == "postgresql://ada:***@db.invalid/jobs"
    monkeypatch.delenv("ULAK_APP")
    answer = run("doctor")
    assert answer.code == 1
    assert "hunter2" not in answer.out + answer.err


@pytest.mark.parametrize(
    ("code", "point", "about"),
    [
        ("import not_installed", "bad_service:service", "No module named 'not_installed'"),
        ("1 / 0", "bad_service:service", "ZeroDivisionError"),
        ("", "bad_service:service", "has no attribute 'service'"),
        ("service = 7", "bad_service:service", "bad_service:service is a int"),
        ("", "bad service", "cannot be imported"),
        (GOOD, "bad_service:service", 'calls itself "letters"'),
    ],
)
def test_a_broken_service_is_one_line_that_names_its_package(run, install, code, point, about):
    install("bad-service", f"bad = {point}", code)
    for command in (("up", "--service", "bad"), ("worker", "--service", "bad"), ("bad", "do")):
        answer = run(*command)
        assert (answer.code, answer.out) == (1, "")
        assert is_one_line(answer.err), answer.err
        assert 'the service "bad" of package bad-service' in answer.err
        assert about in answer.err
    assert run("--help").code == 0
    assert run("bench", "--help").code == 0


def test_a_service_that_fails_to_start_is_one_line(run, install):
    install(
        "sad-service",
        "sad = sad_service:service",
        "from ulak.service import Service\n"
        "def attach(engine, settings): raise OSError('no printer')\n"
        "service = Service('sad', attach=attach)\n",
    )
    answer = run("up", "--service", "sad")
    assert answer.code == 1
    assert answer.err == 'error: the service "sad" cannot be started: OSError: no printer\n'
    answer = run("sad", "do")
    assert 'the service "sad" has no commands' in answer.err


def test_a_service_that_nobody_brings_is_named_with_those_that_are_there(letters, run):
    answer = run("up", "--service", "letters,ledgers")
    assert answer.code == 1
    assert answer.err.startswith('error: there is no service "ledgers"; installed are ')
    assert "letters" in answer.err
    assert is_one_line(answer.err)
    assert run("ledgers").code == 2
    assert run("up", "--service", "letters,,").code == 2


def test_two_packages_that_bring_the_same_service_are_named(letters, install, run):
    install("other-letters", "letters = other_letters:service", GOOD)
    answer = run("letters", "papers")
    assert answer.code == 1
    assert is_one_line(answer.err)
    assert "acme-letters" in answer.err
    assert "other-letters" in answer.err


def test_a_command_of_ulak_is_never_replaced(install, run, tmp_path):
    install("sly", "jobs = sly:service", GOOD)
    assert "trail" in run("jobs", "--help").out
    assert "package sly" not in run("--help").out
    assert not (tmp_path / "imported").exists()


def test_verify_prints_what_a_service_finds(run, install, monkeypatch):
    install(
        "strict-service",
        "strict = strict_service:service",
        "from ulak.service import Service\n"
        "def verify(engine, settings): yield 'page-missing', '7', 'print it again'\n"
        "service = Service('strict', attach=lambda engine, settings: None, verify=verify)\n",
    )
    monkeypatch.setenv("ULAK_SERVICE", "strict")
    answer = run("verify")
    assert answer.code == 1
    assert "page-missing  7: print it again" in answer.out
    answer = run("verify", "--json")
    found = {"kind": "page-missing", "job_id": "7", "sentence": "print it again"}
    assert json.loads(answer.out) == {"jobs": 0, "findings": [found]}
