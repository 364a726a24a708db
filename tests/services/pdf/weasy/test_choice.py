"""Which engine prints is the template's to say, and a host needs no more than its templates do."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.services.pdf.browser.scene import colours_of, text_of
from tests.services.pdf.weasy.room import AMPLE, a_pool, document
from ulak.services.pdf import ground as browser_ground
from ulak.services.pdf import output
from ulak.services.pdf.commands import pdf
from ulak.services.pdf.configuration import condition, open_renderer
from ulak.services.pdf.document import Document
from ulak.services.pdf.model import PermanentPdfError
from ulak.services.pdf.page import NAMES, BadPage, read_page
from ulak.services.pdf.settings import PdfRenderConfig
from ulak.services.pdf.templates import SHIPPED, Templates
from ulak.services.pdf.templates.folder import WITHOUT_A_BROWSER, read_manifest
from ulak.services.pdf.weasy import ground
from ulak.settings import Settings

MANIFEST = 'version = "1"\ntitle = "Letter"\nengine = "weasyprint"\n'
NOWHERE = Path("/nonexistent/chromium")
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a template `letter` of the engine weasyprint."""

    def made(more: str = "", html: str = "<p>Dear Ada</p>") -> Path:
        folder = tmp_path / "templates" / "letter"
        folder.mkdir(parents=True)
        (folder / "manifest.toml").write_text(MANIFEST + more)
        (folder / "template.html").write_text(f"<!doctype html><title>Letter</title>{html}")
        return folder.parent

    return made


def without_a_browser(templates: Path) -> dict[str, str]:
    return {
        "PDF_TEMPLATE_DIR": str(templates),
        "PDF_TEMPLATE_ALLOWLIST": "letter",
        # A program, as the setting wants it, and no browser.
        "PDF_CHROMIUM": "/bin/false",
    }


@pytest.mark.shows("P-56")
def test_a_host_without_a_browser_prints_the_templates_that_need_none(write: Write) -> None:
    templates = Templates([write()])
    config = PdfRenderConfig(concurrency=1, chromium=NOWHERE)

    async def story() -> None:
        async with open_renderer(config) as renderer:
            rendered = await renderer.render(templates.render("letter", {}), AMPLE)
            assert rendered.engine.startswith("WeasyPrint/")
            assert "Dear Ada" in text_of(rendered.pdf)
            with pytest.raises(PermanentPdfError) as failed:
                await renderer.render(Document("<p>x"), AMPLE)
            assert failed.value.code == "UNSUPPORTED_PLATFORM"

    asyncio.run(story())


@pytest.mark.shows("P-56")
def test_both_engines_print_beside_each_other() -> None:
    async def story() -> None:
        async with open_renderer(PdfRenderConfig(concurrency=2)) as renderer:
            one, other = await asyncio.gather(
                renderer.render(Document("<p>both"), AMPLE),
                renderer.render(document("<p>both"), AMPLE),
            )
            assert "Chrome" in one.engine
            assert "WeasyPrint" in other.engine
            with pytest.raises(PermanentPdfError, match="chromium, weasyprint"):
                await renderer.render(Document("<p>x", engine="netscape"), AMPLE)

    asyncio.run(story())


@pytest.mark.shows("P-56")
def test_a_manifest_that_asks_for_scripts_without_a_browser_is_refused(write: Write) -> None:
    templates = Templates([write("javascript = true\n")])
    with pytest.raises(PermanentPdfError, match="weasyprint runs no scripts"):
        templates.get("letter")
    assert ["runs no scripts" in complaint.message for complaint in templates.check("letter")] == [
        True
    ]


@pytest.mark.parametrize("name", [*NAMES, *output.NAMES])
@pytest.mark.shows("P-56")
def test_options_that_take_a_browser_are_refused_in_the_manifest(name: str) -> None:
    text = f'{MANIFEST}options = ["{name}"]\n'
    if name in WITHOUT_A_BROWSER:
        assert read_manifest("letter", text).options == (name,)
        return
    with pytest.raises(PermanentPdfError, match=f"{name} needs a browser"):
        read_manifest("letter", text)


@pytest.mark.shows("P-54", "P-56")
def test_page_options_that_the_template_cannot_allow_are_refused_of_a_request(
    write: Write,
) -> None:
    templates = Templates([write('options = ["ranges", "landscape"]\n')])
    with pytest.raises(BadPage) as refused:
        templates.judge("letter", {}, read_page({"wait_for": "p", "header": "h.html"}))
    assert [name for name, _ in refused.value.wrong] == ["header", "wait_for"]
    templates.judge("letter", {}, read_page({"ranges": "1"}))
    assert templates.render("letter", {}, read_page({"ranges": "1"})).engine == "weasyprint"


def test_check_and_render_of_the_command_line_need_no_browser(
    write: Write, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:  # fmt: skip
    for name, value in without_a_browser(write()).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)

    def told(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            pdf(args=list(arguments), prog_name="ulak pdf")
        assert not ended.value.code
        return capsys.readouterr().out

    assert "nothing to complain about" in told("check", "letter")
    said = json.loads(told("render", "letter", "--sample", "-o", "letter.pdf", "--json"))
    assert said["engine"].startswith("WeasyPrint/")
    assert (tmp_path / "letter.pdf").read_bytes().startswith(b"%PDF-")


# --- what is missing ------------------------------------------------------------


def test_doctor_tells_of_the_engines_that_templates_need_and_of_no_others(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = without_a_browser(write())
    monkeypatch.setattr(browser_ground, "find_browser", lambda executable, *, uid=None: None)
    assert not any("browser" in note for note in condition(Settings(), environ).notes)
    both = condition(Settings(), environ | {"PDF_TEMPLATE_ALLOWLIST": "letter,invoice"})
    assert any("install a browser" in note for note in both.notes)

    monkeypatch.setattr(ground, "LIBRARIES", ("libpango-9.9.so.9",))
    assert "libpangoft2-1.0-0" in condition(Settings(), environ).notes[0]
    monkeypatch.setattr(ground, "find_spec", lambda name: None)
    assert "ulak[weasyprint]" in condition(Settings(), environ).notes[0]
    usual = condition(Settings(), {"PDF_TEMPLATE_ALLOWLIST": "invoice"}).notes
    assert not any("weasyprint" in note for note in usual)


@pytest.mark.parametrize(
    ("source", "cure"),
    [
        ('raise OSError("cannot load library libpango-1.0-0")', "apt-get install libpango-1.0-0"),
        ('raise ModuleNotFoundError("no", name="weasyprint")', "ulak[weasyprint]"),
        ('__version__ = "1"', "ulak[weasyprint]"),
    ],
)
@pytest.mark.shows("P-32", "P-56")
def test_what_is_missing_fails_the_job_and_says_how_to_mend_it(
    source: str, cure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "path" / "weasyprint"
    fake.mkdir(parents=True)
    (fake / "__init__.py").write_text(source)
    monkeypatch.syspath_prepend(fake.parent)

    async def story() -> None:
        async with a_pool() as pool:
            with pytest.raises(PermanentPdfError) as failed:
                await pool.render(document("<p>x"), AMPLE)
            assert failed.value.code == "UNSUPPORTED_PLATFORM"
            assert cure in str(failed.value)
            # Mended, it is found so without a restart.
            shutil.rmtree(fake)
            assert (await pool.render(document("<p>x"), AMPLE)).pages == 1

    asyncio.run(story())


# --- a template that people know --------------------------------------------------


@pytest.mark.shows("P-56")
def test_the_invoice_that_is_shipped_is_printed_without_a_browser_too(tmp_path: Path) -> None:
    shutil.copytree(SHIPPED / "invoice", tmp_path / "invoice")
    manifest = tmp_path / "invoice" / "manifest.toml"
    manifest.write_text(manifest.read_text().replace("paper =", 'engine = "weasyprint"\npaper ='))
    templates = Templates([tmp_path])
    sample = templates.get("invoice").sample()
    filled = templates.render("invoice", sample)

    async def story() -> Any:
        async with a_pool() as pool:
            return await pool.render(filled, AMPLE)

    rendered = asyncio.run(story())
    assert rendered.pages == 1
    assert rendered.blocked == {}
    text = text_of(rendered.pdf)
    assert sample["number"] in text
    assert sample["buyer"]["name"].split()[0] in text
    assert (15, 76, 92) in colours_of(rendered.pdf), "the bar of the total has its colour"
