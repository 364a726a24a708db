"""`ulak up` with PDF rendering where there is no browser: it works, and says what that costs."""

import json
import os
import re
from pathlib import Path

import httpx
import pytest

from tests.cli.test_up import PATIENCE_S, address, greeting, running, until
from ulak.services.pdf import ground
from ulak.services.pdf.templates import SHIPPED

SAMPLE = SHIPPED / "invoice" / "sample.json"
NO_BROWSER = """
import ulak.services.pdf.ground as ground

ground.find_browser = lambda *arguments, **options: None
"""
"""Run by every Python of the test before anything else: the machine looks as if it had none."""


@pytest.fixture
def without_a_browser(tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(NO_BROWSER)
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
    return {
        "PYTHONPATH": path, "PDF_TEMPLATE_ALLOWLIST": "invoice",
        "PDF_ARTIFACT_DIR": str(tmp_path / "artifacts"),
    }  # fmt: skip


def test_it_starts_is_ready_and_says_what_the_missing_browser_costs(shop, without_a_browser):
    command = ("up", "shop:engine", "--service", "pdf", "--port", "0")
    with running(shop, *command, env=without_a_browser) as process:
        said = greeting(process)
        missing = re.search(r"^  missing   (.+)$", said, re.M)[1]
        assert missing == (
            "no browser can be executed here: a worker on this machine takes no PDF job; "
            "install a browser, as `apt-get install chromium-headless-shell`"
        )
        base = address(said)
        until(lambda: httpx.get(f"{base}/health/ready", timeout=PATIENCE_S).status_code == 200)
        key = shop.ulak("keys", "create", "ci", "--role", "service").out.strip()
        known = {"Authorization": f"Bearer {key}"}
        with httpx.Client(base_url=base, headers=known, timeout=PATIENCE_S) as client:
            job = shop.submit("greet", "ada")
            until(lambda: client.get(f"/jobs/{job}").json()["state"] == "done")
            wanted = {"template_name": "invoice", "variables": json.loads(SAMPLE.read_text())}
            refused = client.post("/pdf/jobs", json=wanted)
            assert (refused.status_code, refused.json()["error_code"]) == (
                503, "PDF_RENDER_UNAVAILABLE",
            )  # fmt: skip
            until(lambda: "UNSUPPORTED_PLATFORM" in client.get("/pdf/ready").json()["detail"])
            assert client.get("/health/ready").status_code == 200
        process.terminate()
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


@pytest.mark.shows("P-32")
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_doctor_says_so_and_exits_with_1(shop, monkeypatch, options):
    monkeypatch.setenv("ULAK_SERVICE", "pdf")
    monkeypatch.setattr(ground, "find_browser", lambda *_, **__: None)
    told = shop.ulak("doctor", *options)
    assert told.code == 1
    assert "no browser can be executed here: a worker on this machine takes no PDF job" in told.out
    assert not options or "no browser" in json.loads(told.out)["missing"][0]


def test_doctor_exits_with_0_where_a_browser_starts(shop, monkeypatch):
    monkeypatch.setenv("ULAK_SERVICE", "pdf")
    told = shop.ulak("doctor")
    assert (told.code, told.err) == (0, "")
