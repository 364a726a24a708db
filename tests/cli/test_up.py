"""`ulak up` and `ulak worker`, as processes of their own."""

import os
import re
import signal
import socket
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import pytest

from ulak.errors import WriteRefused

PATIENCE_S = 120


@contextmanager
def running(shop, *arguments: str, **options) -> Iterator[subprocess.Popen[str]]:
    process = shop.start(*arguments, **options)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def until(condition: Callable[[], object]) -> None:
    """Wait for another process to have done something, and leave it the machine."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)


def greeting(process: subprocess.Popen[str]) -> str:
    """What `ulak up` says when it is ready, to the last line."""
    said = ""
    while "Ctrl-C" not in said:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        said += line
    return said


def address(said: str) -> str:
    return re.search(r"http://\S+", said)[0]


@contextmanager
def logged_in(said: str) -> Iterator[httpx.Client]:
    """A browser that has followed the link of the greeting, on a page of the same site."""
    base = address(said)
    with httpx.Client(base_url=base, headers={"Origin": base}) as browser:
        link = re.search(r"http://\S+/auth/link\?code=\S+", said)[0]
        assert browser.get(link).status_code == 200
        yield browser


def state(shop, job: str) -> str:
    return shop.ulak("jobs", "show", job, "--json").document["state"]


@pytest.mark.shows("E-16", "E-40")
def test_up_serves_works_and_drains(shop):
    job = shop.submit("greet", "ada")
    with running(shop, "up", "shop:engine", "--port", "0") as process:
        base = address(greeting(process))
        home = httpx.get(f"{base}/", headers={"Accept": "text/html"}).text
        assert "This server runs <code>shop:engine</code>." in home
        assert f"ulak link --address {base} -a shop:engine" in home
        ready = httpx.get(f"{base}/health/ready")
        assert (ready.status_code, ready.json()) == (200, {"status": "ready"})
        until(lambda: state(shop, job) == "done")
        assert httpx.get(f"{base}/jobs").status_code == 401
        key = shop.ulak("keys", "create", "ci", "--role", "viewer").out.strip()
        listed = httpx.get(
            f"{base}/jobs", params={"flow": "greet"}, headers={"Authorization": f"Bearer {key}"}
        ).json()["items"]
        assert [(j["id"], j["state"]) for j in listed] == [(job, "done")]
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert "drained" in out
    assert "Traceback" not in err
    assert shop.ulak("doctor", "--json").document["workers"] == []


def test_up_prints_a_link_that_logs_in_once(shop):
    with running(shop, "up", "shop:engine", "--port", "0") as process:
        said = greeting(process)
        line = re.search(r"(http://\S+/auth/link\?code=\S+)  \(once, within 10 minutes\)\n", said)
        link = line[1]
        with httpx.Client(timeout=PATIENCE_S) as browser:
            landed = browser.get(link)
            docs = browser.get(landed.url.join(re.search(r'href="(.+?)"', landed.text)[1]))
            assert (docs.status_code, docs.url.path) == (200, "/docs")
            me = browser.get(landed.url.join("/auth/me")).json()
            assert me["roles"] == ["admin"]
        refused = httpx.get(link, timeout=PATIENCE_S)
        assert (refused.status_code, "`ulak link`" in refused.json()["detail"]) == (401, True)
        typed = re.search(r"python -m ulak (link .+)", said)[1]
        assert typed == f"link --address {address(said)} -a shop:engine"
        another = shop.run(*typed.split()).out.strip()
        assert httpx.get(another, timeout=PATIENCE_S).status_code == 200
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


def test_in_production_no_link_goes_where_a_log_is_kept(shop):
    secrets = {"ULAK_ENV": "production", "ULAK_SECRET": "s" * 40}
    with running(shop, "up", "shop:engine", "--port", "0", env=secrets) as process:
        assert "/auth/link" not in greeting(process)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)


@pytest.mark.shows("E-54")
@pytest.mark.parametrize("command", [("up", "--port", "0"), ("worker",)], ids=" ".join)
def test_a_start_names_the_version_of_sqlite(shop, command):
    with running(shop, command[0], "shop:engine", *command[1:]) as process:
        said = greeting(process)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
    assert (
        f"sqlite {sqlite3.sqlite_version}, shop.db, nothing that was acknowledged is lost" in said
    )


def test_up_prints_how_to_answer_the_question_that_is_asked(shop):
    job = shop.submit("claim", {"who": "ada", "amount": 1, "iban": "x"}, actor="ada")
    with running(shop, "up", "shop:engine", "--port", "0") as process:
        said = greeting(process)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert "jobs list -a shop:engine" in said
    assert f"jobs decide {job} approve -a shop:engine" in said


def test_up_is_not_ready_any_more_while_it_drains(shop):
    shop.submit("nap", 600)
    with running(shop, "up", "shop:engine", "--port", "0", "--drain", "500") as process:
        base = address(greeting(process))
        until(lambda: shop.ulak("jobs", "list", "--json").document["jobs"][0]["leased_by"])
        process.send_signal(signal.SIGTERM)
        until(lambda: httpx.get(f"{base}/health/ready").status_code == 503)
        assert httpx.get(f"{base}/health/live").status_code == 200
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


def test_a_taken_port_is_one_line(shop):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        answer = shop.run("up", "shop:engine", "--port", port)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith(f"error: port {port} of 127.0.0.1 is taken")
    assert answer.err.count("\n") == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_api_that_dies_takes_the_worker_along(shop, monkeypatch):
    import uvicorn

    def die(self, sockets):
        raise RuntimeError("no more")

    monkeypatch.setattr(uvicorn.Server, "run", die)
    answer = shop.run("up", "shop:engine", "--port", "0")
    assert answer.code == 1
    assert "the API has ended by itself" in answer.err


def test_a_worker_that_cannot_begin_ends_the_process_with_one_line(shop, monkeypatch):
    import shop as program

    def refuse(*_args, **_options):
        raise WriteRefused("no room for a worker")

    monkeypatch.setattr(program.engine.store, "register", refuse)
    answer = shop.run("up", "shop:engine", "--port", "0")
    assert (answer.code, answer.out) == (1, "")
    assert "error: no room for a worker" in answer.err


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("up", "--host", "no.such.host.invalid"), 1),
        (("up", "--host", "192.0.2.1"), 1),
        (("up", "--port", "70000"), 2),
        (("worker", "--queue", "nowhere"), 1),
        (("worker", "--lease", "0"), 2),
        (("worker", "--lease", "soon"), 2),
        (("worker", "--drain", "-1"), 2),
        (("worker", "--threads", "-1"), 2),
    ],
)
def test_what_cannot_be_started_says_why(shop, arguments, code):
    answer = shop.run(arguments[0], "shop:engine", *arguments[1:])
    assert answer.code == code
    assert answer.err


@pytest.mark.shows("E-40")
def test_a_worker_lets_a_running_stage_end_before_it_exits(shop):
    job = shop.submit("nap", 1.0)
    with running(shop, "worker", "shop:engine", "--queue", "nap") as process:
        until(lambda: shop.ulak("jobs", "show", job, "--json").document["leased_by"])
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert state(shop, job) == "done"


@pytest.mark.shows("E-40")
def test_a_second_signal_hurries_and_spends_no_attempt(shop):
    job = shop.submit("nap", 600)
    with running(shop, "worker", "shop:engine", "--drain", "500") as process:
        until(lambda: shop.ulak("jobs", "show", job, "--json").document["leased_by"])
        process.send_signal(signal.SIGTERM)
        assert "serves" in greeting(process)
        assert "draining; 1 stage may take 500 s" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    left = shop.ulak("jobs", "show", job, "--json").document
    assert (left["role"], left["leased_by"], left["attempt"]) == ("ready", None, 0)


def test_a_stage_that_will_not_stop_ends_with_the_process_and_is_told(shop, tmp_path):
    (tmp_path / "stubborn.py").write_text(
        "import time, ulak\n"
        'engine = ulak.connect("sqlite:///shop.db")\n'
        "@engine.job\n"
        "def sleep(seconds: int) -> None: time.sleep(seconds)\n"
    )
    import stubborn

    with stubborn.engine as engine:
        job = engine.submit(stubborn.sleep, 600).id
    with running(shop, "worker", "stubborn:engine", "--drain", "0.2", "--lease", "5") as process:
        until(lambda: shop.ulak("jobs", "show", job, "--json").document["leased_by"])
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "error: 1 stage did not stop in time" in err


@pytest.mark.shows("E-38")
def test_an_interrupt_from_the_terminal_is_no_failure_of_an_isolated_stage(shop, tmp_path):
    (tmp_path / "apart.py").write_text(
        "import pathlib, time, ulak\n"
        'engine = ulak.connect("sqlite:///shop.db")\n'
        'flow = ulak.Flow("apart", ulak.Lifecycle("a", {"a": ["done"]}))\n'
        '@flow.stage("a", isolate="process")\n'
        "def sleep(run):\n"
        '    pathlib.Path("begun").touch()\n'
        "    time.sleep(600)\n"
        "engine.add(flow)\n"
    )
    import apart

    with apart.engine as engine:
        job = engine.submit(apart.flow).id
    with running(shop, "worker", "apart:engine", "--drain", "1") as process:
        until((tmp_path / "begun").exists)
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    left = shop.ulak("jobs", "show", job, "--json").document
    assert (left["role"], left["leased_by"], left["attempt"]) == ("ready", None, 0)
