"""Create, work, download: over HTTP, with `ulak up` as people start it and a real browser."""

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pypdfium2
import pytest

from tests.services.pdf.plant import PATIENCE_S, Plant, eventually, plant

SHIPPED = {"invoice": 1, "report": 20, "certificate": 1}
"""How many pages the sample of each has."""


@pytest.fixture
def key() -> str:
    return secrets.token_hex(32)


@pytest.fixture
def works(pdf_url: str, tmp_path: Path, key: str) -> Iterator[Plant]:
    allowed = {"PDF_TEMPLATE_ALLOWLIST": ",".join([*SHIPPED, "plain"]), "ULAK_ADMIN_KEY": key}
    with plant(pdf_url, tmp_path, PDF_CONCURRENCY="2", **allowed) as made:
        yield made


@contextmanager
def calling(works: Plant, key: str) -> Iterator[httpx.Client]:
    """Start everything by one command, and call it at the address that it prints."""
    up = works.start("up", "--port", "0")
    assert up.stdout is not None
    lines: list[str] = []
    reading = threading.Thread(target=lines.extend, args=(up.stdout,), daemon=True)
    found: list[str] = []
    for line in up.stdout:
        lines.append(line)
        found = [word for word in line.split() if word.startswith("http://")]
        if " serves " in line and found:
            break
    assert found, "".join(lines)
    reading.start()  # or it would stop at a full pipe
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=found[0], headers=headers, timeout=30) as client:
        eventually(lambda: client.get("/pdf/ready").status_code == 200)
        yield client
    up.terminate()
    assert up.wait(PATIENCE_S) == 0, "".join(lines)
    reading.join(PATIENCE_S)


def create(client: httpx.Client, template: str, variables: dict[str, Any]) -> httpx.Response:
    body = {"template_name": template, "variables": variables}
    return client.post("/pdf/jobs", json=body)


def until_succeeded(client: httpx.Client, where: str) -> dict[str, Any]:
    deadline = time.monotonic() + PATIENCE_S
    while (told := client.get(where).json())["status"] in ("queued", "running"):
        assert time.monotonic() < deadline, told
        time.sleep(0.05)
    assert told["status"] == "succeeded", told
    found: dict[str, Any] = told
    return found


@pytest.mark.shows("P-2", "P-35", "P-36")
def test_what_is_created_is_rendered_and_downloaded(works: Plant, key: str) -> None:
    with calling(works, key) as client:
        for template, pages in SHIPPED.items():
            sample = works.templates.get(template).sample()
            accepted = create(client, template, sample)
            assert accepted.status_code == 202, accepted.text
            where = accepted.headers["Location"]
            told = until_succeeded(client, where)
            download = client.get(told["download_url"])
            assert download.headers["content-type"] == "application/pdf"
            document = pypdfium2.PdfDocument(download.content)
            assert len(document) == pages
            document.close()
            part = client.get(told["download_url"], headers={"Range": "bytes=0-3"})
            assert (part.status_code, part.content) == (206, b"%PDF")
            again = create(client, template, sample)
            assert again.headers["Deduplicated"] == "true"
            assert again.json()["job_id"] == told["job_id"]


@pytest.mark.shows("P-40", "P-41")
def test_many_creates_drain_while_backpressure_opens_and_closes(
    sqlite_url: str, tmp_path: Path, key: str, sized: Callable[[int, int], int]
) -> None:
    many = sized(200, 60)
    more = {"ULAK_ADMIN_KEY": key, "PDF_CONCURRENCY": "2"}
    with plant(sqlite_url, tmp_path, **more) as works, calling(works, key) as client:
        created = [create(client, "plain", {"n": n}) for n in range(many)]
        assert {answer.status_code for answer in created} == {202}
        works.jobs.set_backpressure(True, 7)
        refused = create(client, "plain", {"n": 1000})
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "7")
        assert refused.json()["error_code"] == "BACKPRESSURE_ACTIVE"
        known = create(client, "plain", {"n": 0})
        assert known.json()["job_id"] == created[0].json()["job_id"]
        works.jobs.set_backpressure(False)
        created.append(create(client, "plain", {"n": 1000}))
        assert created[-1].status_code == 202
        for answer in created:
            until_succeeded(client, answer.headers["Location"])
        shown = client.get("/metrics").text.splitlines()
        for status in ("succeeded", "queued"):
            assert f'ptf_admin_pdf_jobs_total{{status="{status}"}} {many + 1}.0' in shown
    assert len(works.stored()) == many + 1
