"""Processes that a service runs: what they refuse, what they say, and how they end."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

import ulak
from ulak.errors import BadInput, NotSupported
from ulak.kit.processes import Work, run
from ulak.kit.processes.draining import Waiting
from ulak.settings import Settings

PATIENCE_S = 120

OFFICE = """
import sys

import ulak
import ulak.web
from ulak.kit.processes import Work, run
from ulak.settings import Settings

letters, papers = ulak.connect("sqlite:///letters.db"), ulak.connect("sqlite:///papers.db")


@letters.job(queue="printer")
def write() -> str:
    return "written"


@letters.job(queue="elsewhere")
def leave() -> None:
    pass


@papers.job(queue="store-room")
def buy() -> str:
    raise RuntimeError("the key is " + sys.argv[1])


if __name__ == "__main__":
    with letters, papers:
        letters.submit(write), letters.submit(leave), papers.submit(buy)
    run(
        "office",
        Settings(port=0),
        work=[Work(letters, ["printer"]), Work(papers, {"store-room"})],
        app=lambda unready: ulak.web.app(letters, identity=None, unready=unready),
        prepare=lambda: print("prepared", flush=True),
        secrets=[sys.argv[1]],
    )
"""


def until(holds, what=str):
    deadline = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)
    return found


def test_one_process_serves_and_works_for_several_engines_until_it_is_told(tmp_path):
    (tmp_path / "office.py").write_text(OFFICE)
    log = tmp_path / "office.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "office.py", "not-to-be-read"], cwd=tmp_path, stdout=out, stderr=out
        )
    try:
        until(lambda: "Ctrl-C" in log.read_text() or process.poll() is not None)
        said = log.read_text()
        base = re.search(r"^office serves (http://\S+)$", said, re.M)[1]
        assert said.index("prepared") < said.index("office serves")
        lines = [line for line in said.splitlines() if "worker started" in line]
        assert [line.partition("queue=")[2] for line in lines] == [
            "idempotency-cleanup, printer", "idempotency-cleanup, store-room",
        ]  # fmt: skip
        assert httpx.get(f"{base}/health/ready").status_code == 200

        def states() -> dict[str, str]:
            listed = httpx.get(f"{base}/jobs").json()["items"]
            return {job["flow"]: job["state"] for job in listed}

        until(lambda: states()["write"] == "done")
        assert states()["leave"] == "queued"
        until(lambda: "the key is ***" in log.read_text(), log.read_text)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
    assert log.read_text().endswith("drained\n")
    assert "not-to-be-read" not in log.read_text()


@pytest.fixture
def engine(tmp_path: Path) -> ulak.Engine:
    flow = ulak.Flow.steps("greet", ("work", lambda run: None))
    return ulak.connect(f"sqlite:///{tmp_path}/jobs.db", flows=[flow])


def test_a_queue_that_no_stage_is_in_is_refused_before_anything_is_opened(engine, tmp_path):
    with pytest.raises(BadInput, match="no stage is in queue 'nowhere'; queues are greet"):
        run("office", Settings(), work=[Work(engine, ["nowhere"])])
    assert os.listdir(tmp_path) == []


def test_a_store_that_no_other_process_sees_is_refused():
    flow = ulak.Flow.steps("greet", ("work", lambda run: None))
    engine = ulak.connect("memory://", flows=[flow])
    with pytest.raises(NotSupported, match="office cannot serve the memory store"):
        run("office", Settings(), work=[Work(engine, ["greet"])])


def test_a_taken_port_is_told_before_anything_is_opened(engine, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BadInput, match=f"port {port} of 127.0.0.1 is taken"):
            run("office", Settings(port=port), app=lambda _: pytest.fail("made"), engines=[engine])
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("is_told_before", [True, False])
def test_a_process_without_a_worker_waits_until_it_is_told(is_told_before):
    waiting = Waiting()

    async def wait() -> None:
        task = asyncio.create_task(waiting.run())
        if not is_told_before:
            await asyncio.sleep(0)
            assert not task.done()
            threading.Thread(target=waiting.stop).start()
        async with asyncio.timeout(PATIENCE_S):
            await task

    if is_told_before:
        waiting.stop()
    asyncio.run(wait())
