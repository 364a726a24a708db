"""The example that `make run` starts, used as its greeting says."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120


def ulak(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "ulak", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )


def jobs(folder: Path) -> dict[str, str]:
    """Every job's id and state."""
    with ulak(folder, "jobs", "list", "--json", "-a", "examples.demo:engine") as process:
        out, _ = process.communicate(timeout=PATIENCE_S)
    return {job["id"]: job["state"] for job in json.loads(out)["jobs"]}


def start(folder: Path) -> tuple[subprocess.Popen[str], str]:
    process = ulak(folder, "up", "examples.demo:engine", "--port", "0")
    said = ""
    while "Ctrl-C" not in said:
        line = process.stdout.readline()
        assert line, said
        said += line
    return process, said


def until_settled(folder: Path, states: list[str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while sorted(jobs(folder).values()) != states:
        assert time.monotonic() < deadline, jobs(folder)


def test_the_example_shows_a_job_an_approval_and_an_undo(tmp_path: Path):
    process, said = start(tmp_path)
    try:
        until_settled(tmp_path, ["done", "requested", "rolled_back", "shipped"])
        decide = re.search(r"python -m ulak (jobs decide .*)", said)
        assert decide, said
        with ulak(tmp_path, *decide[1].split()) as deciding:
            assert "requested > approved" in deciding.communicate(timeout=PATIENCE_S)[0]
        until_settled(tmp_path, ["done", "paid", "rolled_back", "shipped"])
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()

    again, said = start(tmp_path)
    again.terminate()
    again.communicate(timeout=PATIENCE_S)
    assert "jobs decide" not in said
    assert len(jobs(tmp_path)) == 4
