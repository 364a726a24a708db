"""The commands of the README do what it says, for somebody who types them."""

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.docs.pages import BLOCK, ROOT, blocks_of, diagrams_of

README = ROOT / "README.md"
PATIENCE_S = 120
SUBMIT = "import app; print(app.engine.submit(app.send_welcome, 42).id)"


def python_blocks() -> list[str]:
    return [code for code, _ in blocks_of(README)]


def ulak(folder: Path, *arguments: str) -> str:
    """What a command prints; it must end well."""
    command = [sys.executable, "-m", "ulak", *arguments]
    child = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S)
    assert child.returncode == 0, child.stderr
    return child.stdout


@pytest.mark.shows("E-8", "E-16")
def test_the_smallest_program_without_its_last_four_lines_is_run_by_a_worker(
    tmp_path: Path,
) -> None:
    lines = python_blocks()[0].splitlines()
    assert [line.split()[0] for line in lines[-4:]] == [
        "with", "job", "engine.wait(job.id)", "print(engine.result(job.id))",
    ]  # fmt: skip
    (tmp_path / "app.py").write_text("\n".join(lines[:-4]), encoding="utf-8")
    submit = [sys.executable, "-c", SUBMIT]
    job = subprocess.check_output(submit, cwd=tmp_path, text=True).strip()
    worker = subprocess.Popen(
        [sys.executable, "-m", "ulak", "worker", "app:engine"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while "done" not in ulak(tmp_path, "jobs", "show", job, "-a", "app:engine"):
            assert time.monotonic() < deadline
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(PATIENCE_S) == 0
    finally:
        worker.kill()
        worker.wait()
    shown = json.loads(ulak(tmp_path, "jobs", "show", job, "--json", "-a", "app:engine"))
    assert shown["result"] == "welcomed user 42"
    assert 'it ended in "done"' in ulak(tmp_path, "why", job, "-a", "app:engine")
    assert ulak(tmp_path, "verify", "-a", "app:engine").startswith("1 job")


def test_the_picture_is_what_the_command_draws(tmp_path: Path) -> None:
    declared = python_blocks()[1].partition("\nwith engine")[0]
    (tmp_path / "shop.py").write_text(f"{declared}\n", encoding="utf-8")
    ((name, drawn),) = diagrams_of(README)
    assert ulak(tmp_path, "flows", "--mermaid", name, "-a", "shop:engine") == drawn


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md"])
def test_the_api_is_used_as_the_page_says(page: str, tmp_path: Path) -> None:
    blocks = BLOCK.finditer((ROOT / page).read_text(encoding="utf-8"))
    said = next(b[2] for b in blocks if b[1] == "sh" and "keys create" in b[2])
    lines = [shlex.split(line, comments=True) for line in said.replace("\\\n", "").splitlines()]
    (making,) = (line for line in lines if line[:3] == ["ulak", "keys", "create"])
    assert making[-2:] == [">", "me.key"]
    smallest = "\n".join(python_blocks()[0].splitlines()[:-4])
    (tmp_path / "app.py").write_text(smallest, encoding="utf-8")
    server = subprocess.Popen(
        [sys.executable, "-m", "ulak", "up", "app:engine", "--port", "0"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        greeting = iter(server.stdout.readline, "")
        link = next(line.split()[2] for line in greeting if line.startswith("  log in "))
        base = link.partition("/auth/link")[0]
        opened = httpx.get(link, timeout=PATIENCE_S)
        assert (opened.status_code, 'href="/docs"' in opened.text) == (200, True)
        key = ulak(tmp_path, *making[1:-2]).strip()
        for line in (line for line in lines if line[0] == "curl"):
            sent = curl(line, base, key)
            assert sent.request.url.path == "/jobs"
            assert sent.status_code == (201 if sent.request.method == "POST" else 200), sent.text
        assert httpx.get(f"{base}/jobs").status_code == 401
    finally:
        server.terminate()
        server.communicate(timeout=PATIENCE_S)
    assert "send_welcome" in ulak(tmp_path, "jobs", "list", "-a", "app:engine")


def curl(line: list[str], base: str, key: str) -> httpx.Response:
    """Do what a line of curl would, at this server with this key."""
    options = list(zip(line[1::2], line[2::2], strict=False))
    headers = [value.replace("$(cat me.key)", key) for name, value in options if name == "-H"]
    body = next((value for name, value in options if name == "-d"), None)
    return httpx.request(
        "GET" if body is None else "POST",
        line[-1].replace("http://127.0.0.1:8000", base),
        headers=dict(header.split(": ", 1) for header in headers),
        content=body,
        timeout=PATIENCE_S,
    )


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/quickstart.md"])
def test_every_target_of_make_that_a_page_names_is_there(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = set(re.findall(r"(?:^    |`|&& )make ([a-z]+)", text, re.M))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert named
    assert named <= set(re.findall(r"^([a-z]+):.*##", makefile, re.M))
