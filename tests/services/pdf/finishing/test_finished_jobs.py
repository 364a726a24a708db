"""Output options of whole jobs: printed by a worker, put together in its time, and stored."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pikepdf
import pytest

from tests.services.pdf.browser.yard import a_pool, text_of
from tests.services.pdf.desk import A_PDF, Desk
from tests.services.pdf.plant import Plant, plant
from ulak.services.pdf.document import Document, Limits, Rendered, Times
from ulak.services.pdf.flow import PdfPayload, payload_of
from ulak.services.pdf.model import PdfError, PdfErrorCode, PdfJobStatus
from ulak.services.pdf.output import NAMES, as_json, read_output, sealing_of
from ulak.services.pdf.templates import Templates
from ulak.services.pdf.worker import PdfRenderWorker
from ulak.settings import Settings

XML = "PD94bWwgdmVyc2lvbj0nMS4wJz8+PEZhdHVyYS8+"
EVERYTHING: dict[str, Any] = {
    "metadata": {"title": "Whole", "author": "Ada"},
    "watermark": {"text": "TASLAK"},
    "attachments": [{"name": "f.xml", "media_type": "application/xml", "data": XML}],
}


@pytest.fixture
def templates(tmp_path: Path) -> Templates:
    folder = tmp_path / "templates" / "invoice"
    folder.mkdir(parents=True)
    (folder / "manifest.toml").write_text(
        f'version = "1"\ntitle = "One"\noptions = {list(NAMES)}\n'
    )
    (folder / "template.html").write_text(
        '<!doctype html><html lang="en"><title>T</title><h1>page {{ n }}</h1></html>'
    )
    return Templates([folder.parent])


def given(templates: Templates, output: dict[str, Any], n: int = 1) -> PdfPayload:
    written = as_json(read_output(output))
    payload = payload_of(
        {"n": n}, template_version=templates.version("invoice"), options={"output": written}
    )
    return PdfPayload("invoice", payload, job_key="k")


def appended(*numbers: int) -> list[dict[str, Any]]:
    return [{"template_name": "invoice", "variables": {"n": n}} for n in numbers]


class Slow:
    """A renderer of which every document takes its time, by a clock of its own."""

    def __init__(self, takes_s: float = 0, pages: int = 1) -> None:
        self.now = 0.0
        self.takes_s, self.pages = takes_s, pages
        self.times: list[Times] = []

    async def render(self, document: Document, times: Times) -> Rendered:
        self.times.append(times)
        self.now += self.takes_s
        return Rendered(A_PDF, pages=self.pages, engine="Slow/1", timings={})


@pytest.mark.shows("P-10", "P-55")
def test_a_job_is_put_together_marked_and_described(
    sqlite_desk: Desk, templates: Templates
) -> None:
    wanted = given(templates, {**EVERYTHING, "append": appended(2, 3)})

    async def perform() -> list[bytes]:
        async with a_pool() as pool:
            worker = sqlite_desk.worker(pool, templates)
            reports = [await worker.perform(job, wanted) for job in ("job-1", "job-2")]
        assert [report["pages"] for report in reports] == [3, 3]
        assert set(reports[0]["timings"]) >= {"print", "load", "finish", "store", "template"}
        return [sqlite_desk.artifacts.get_pdf(report["artifact_key"]) for report in reports]

    first, second = asyncio.run(perform())
    assert first == second
    words = text_of(first).split()
    assert [word for word in words if word in ("1", "2", "3")] == ["1", "2", "3"]
    assert words.count("TASLAK") == 3
    with pikepdf.open(io.BytesIO(first)) as read:
        assert str(read.docinfo.Title) == "Whole"
        assert list(read.attachments) == ["f.xml"]
        assert "/StructTreeRoot" in read.Root


@pytest.mark.shows("P-13", "P-55")
def test_every_document_has_what_is_left_of_the_jobs_time(
    sqlite_desk: Desk, templates: Templates
) -> None:
    slow = Slow(takes_s=20)
    worker = PdfRenderWorker(
        sqlite_desk.config, templates, slow, sqlite_desk.artifacts, monotonic=lambda: slow.now
    )
    with pytest.raises(PdfError) as caught:
        asyncio.run(worker.perform("job-1", given(templates, {"append": appended(2, 3, 4)})))
    assert caught.value.code == "NAVIGATION_TIMEOUT"
    assert [times.hard.total_seconds() for times in slow.times] == [60, 40, 20]
    assert sqlite_desk.stored() == []


@pytest.mark.shows("P-32", "P-55")
@pytest.mark.parametrize(
    ("limits", "detail"),
    [(Limits(pages=5), "too_many_pages"), (Limits(output_bytes=40), "output_too_large")],
)
def test_limits_are_of_all_documents_together(
    sqlite_desk: Desk, templates: Templates, limits: Limits, detail: str
) -> None:
    printer = Slow(pages=2)
    config = replace(sqlite_desk.config, limits=limits)
    worker = PdfRenderWorker(config, templates, printer, sqlite_desk.artifacts)
    with pytest.raises(PdfError) as caught:
        asyncio.run(worker.perform("job-1", given(templates, {"append": appended(2, 3, 4)})))
    assert (caught.value.code, caught.value.detail) == ("TEMPLATE_ERROR", detail)
    assert len(printer.times) == 3, "what is too much is not printed to its end"
    assert sqlite_desk.stored() == []


@pytest.mark.shows("P-55")
def test_the_worker_asks_the_template_and_the_allow_list_again(
    sqlite_desk: Desk, templates: Templates, tmp_path: Path
) -> None:
    wanted = given(templates, {"metadata": {"title": "x"}})
    elsewhere = given(templates, {"append": [{"template_name": "passwords", "variables": {}}]})
    changed = given(
        templates,
        {"append": [{**appended(1)[0], "template_version": "0" * 64}]},
    )
    printer = Slow()
    worker = sqlite_desk.worker(printer, templates)
    for payload, detail in ((elsewhere, ""), (changed, "template_changed")):
        with pytest.raises(PdfError) as caught:
            asyncio.run(worker.perform("job-1", payload))
        assert caught.value.code == "TEMPLATE_ERROR"
        if detail:
            assert caught.value.detail == detail
    folder = tmp_path / "templates" / "invoice"
    (folder / "manifest.toml").write_text('version = "1"\ntitle = "One"\n')
    wanted.payload["template_version"] = ""
    with pytest.raises(PdfError) as caught:
        asyncio.run(worker.perform("job-1", wanted))
    assert (caught.value.code, caught.value.detail) == ("TEMPLATE_ERROR", "output_options")
    assert printer.times == []


@pytest.fixture
def works(sqlite_url: str, tmp_path: Path) -> Iterator[Plant]:
    with plant(sqlite_url, tmp_path) as made:
        yield made


@pytest.mark.shows("P-55")
def test_a_worker_of_its_own_opens_the_password_that_was_sealed(works: Plant) -> None:
    manifest = works.folder / "templates" / "plain" / "manifest.toml"
    manifest.write_text(f"options = {list(NAMES)}\n{manifest.read_text()}")
    settings = Settings(data=works.folder / "data")
    sealing = sealing_of(works.engine, settings)
    version = works.templates.version("plain")
    output = {"password": {"allow": ["print"]}, "metadata": {"author": "Ada"}}
    bare = payload_of({"n": 1}, template_version=version, options={"output": output})
    payload = sealing.seal("plain", bare, {"user": "müşteri", "owner": ""})
    stranger = {**payload, "variables": {"n": 2}}
    worker = works.worker()
    made = [works.jobs.create_job("plain", one) for one in (payload, stranger)]
    opened, refused = (
        works.until(job, PdfJobStatus.SUCCEEDED, PdfJobStatus.FAILED) for job in made
    )
    pdf = works.artifacts.get_pdf(opened.artifact_key or "")
    with pytest.raises(pikepdf.PasswordError):
        pikepdf.open(io.BytesIO(pdf))
    with pikepdf.open(io.BytesIO(pdf), password="müşteri") as read:  # noqa: S106 - made up here
        assert str(read.docinfo.Author) == "Ada"
        assert read.encryption.R == 6
    assert (refused.error_code, refused.error_detail) == (
        PdfErrorCode.UNKNOWN, "password_sealed",
    )  # fmt: skip
    worker.terminate()
    told, _ = worker.communicate(timeout=60)
    assert worker.returncode == 0
    assert "müşteri" not in told
