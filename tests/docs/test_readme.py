"""Every page runs as written, draws what the code draws, and links to what is there."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT, diagrams_of, output_of, pages, program_of, run

README = ROOT / "README.md"
LINK = re.compile(r"\]\(([^)#\s]+)(?:#([\w-]+))?\)|\]\(#([\w-]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.M)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


RUNNABLE = [page for page in pages() if program_of(page) and page != README]


def check(page: Path, folder: Path) -> None:
    ran = run(page, folder)
    assert ran.errors == ""
    said = output_of(page)
    assert said is None or ran.printed == said
    assert ran.diagrams == [drawn for _, drawn in diagrams_of(page)]


@pytest.mark.shows("E-8")
def test_the_readme_runs_as_written(tmp_path: Path) -> None:
    assert "engine.job" in program_of(README)
    check(README, tmp_path)


@pytest.mark.parametrize("page", RUNNABLE, ids=name)
def test_a_page_runs_as_written(page: Path, tmp_path: Path) -> None:
    check(page, tmp_path)


@pytest.mark.parametrize("page", sorted((DOCS / "how-to").glob("*.md")), ids=name)
def test_a_how_to_shows_code(page: Path) -> None:
    assert program_of(page)


@pytest.mark.parametrize("page", pages(), ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for path, anchor, own in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in path or path.startswith("mailto:"):
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name(page)} links to {path}"
        if anchor or own:
            assert (anchor or own) in anchors(target), f"{name(page)} links to {path}#{anchor}"


def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings make."""
    headings = HEADING.findall(page.read_text(encoding="utf-8"))
    kept = [re.sub(r"[^\w\s-]", "", heading.lower()) for heading in headings]
    return {heading.strip().replace(" ", "-") for heading in kept}
