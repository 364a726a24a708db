"""A job of a template without a browser, over HTTP, where there is no browser at all."""

from __future__ import annotations

import secrets
from pathlib import Path

import pypdfium2
import pytest

from tests.services.pdf.plant import Plant, plant
from tests.services.pdf.test_pdf_over_http import calling, create, until_succeeded
from tests.services.pdf.weasy.room import children_of

MANIFEST = """
version = "1"
title = "Letter"
engine = "weasyprint"
options = ["ranges"]

[variables]
name = "text"
"""


def add_letter(works: Plant) -> None:
    folder = works.folder / "templates" / "letter"
    folder.mkdir()
    (folder / "manifest.toml").write_text(MANIFEST)
    (folder / "template.html").write_text(
        "<!doctype html><title>Letter</title><p>Dear {{ name }},</p>"
        "<p style='break-before: page'>second<img src='https://elsewhere.test/x.png'></p>"
    )
    (folder / "sample.json").write_text('{"name": "Ada"}')


@pytest.mark.shows("P-1", "P-56", "P-59")
def test_a_letter_is_created_rendered_and_downloaded_without_a_browser(
    sqlite_url: str, tmp_path: Path
) -> None:
    key = secrets.token_hex(32)
    settings = {
        "PDF_TEMPLATE_ALLOWLIST": "letter",
        "PDF_CHROMIUM": "/bin/false",
        "ULAK_ADMIN_KEY": key,
    }
    with plant(sqlite_url, tmp_path, **settings) as works:
        add_letter(works)
        with calling(works, key) as client:
            accepted = create(client, "letter", {"name": "Müller & <Söhne>"})
            assert accepted.status_code == 202, accepted.text
            where = accepted.headers["Location"]
            until_succeeded(client, where)
            pdf = client.get(f"{where}/download").content
            opened = pypdfium2.PdfDocument(pdf)
            assert len(opened) == 2
            assert "Müller & <Söhne>" in opened[0].get_textpage().get_text_bounded()
            opened.close()

            body = {"template_name": "letter", "variables": {"name": "x"}}
            for option, value in (("header", "h.html"), ("single_page", True), ("wait_for", "p")):
                refused = client.post(
                    "/pdf/jobs", json=body | {"options": {"page": {option: value}}}
                )
                assert refused.status_code == 422
                assert f"options.page.{option}" in refused.text
            ranged = client.post("/pdf/jobs", json=body | {"options": {"page": {"ranges": "2"}}})
            until_succeeded(client, ranged.headers["Location"])

            engine = client.get("/version").json()["engines"]["weasyprint"]
            assert engine.startswith("WeasyPrint/")
            ready = client.get("/pdf/ready")
            assert (ready.status_code, ready.json()["checks"]["weasyprint"]) == (200, "ok")
            report = works.jobs.find_report(where.rpartition("/")[2])
            assert report is not None
            assert report["engine"] == engine
            assert report["blocked"] == {"allowlist": 1}

            (up,) = works.processes
            workers = children_of(up.pid)
            assert workers
            for pid in (up.pid, *workers):
                modules = {name.split(".")[0] for name in works.modules(pid)}
                assert "ulak" in modules
                assert not modules & {"weasyprint", "pydyf"}, "neither the API nor the worker"
        assert works.browsers() == set(), "nothing of it is left"
