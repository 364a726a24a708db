"""Every page runs as written, draws what the code draws, and links to what is there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT, blocks_of, diagrams_of, output_of, pages, program_of, run
from ulak.auth.directory import LINK_LIFE_TEXT
from ulak.service import installed
from ulak.web.access import ACCESS

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


@pytest.mark.shows("E-8")
@pytest.mark.parametrize(("code", "said"), blocks_of(README), ids=["smallest", "flow"])
def test_each_program_of_the_readme_runs_when_it_is_pasted_alone(
    code: str, said: str, tmp_path: Path
) -> None:
    pasted = tmp_path / "pasted.py"
    pasted.write_text(code, encoding="utf-8")
    child = subprocess.run(
        [sys.executable, "-W", "error", pasted.name],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (child.stderr, child.stdout) == ("", said)


def test_the_readme_says_how_ulak_gets_on_the_path_before_it_is_typed() -> None:
    text = README.read_text(encoding="utf-8")
    first = re.search(r"`ulak [a-z]|^ulak [a-z]", text, re.M)
    assert first is not None
    assert "make setup && . .venv/bin/activate" in text[: first.start()]


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md", "docs/how-to/give-access.md"])
def test_a_first_page_names_the_public_routes_as_they_are(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert "except `/`, `/health/*` and the login" in text.replace("\n", " ") or (
        "except /, /health/* and the login" in text
    )
    needs_nothing = {path for (_, path), line in ACCESS.items() if line.is_public}
    assert {path for path in needs_nothing if not re.match(r"/health(/|$)|/auth/", path)} == {"/"}


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md", "docs/how-to/give-access.md"])
def test_a_first_page_says_how_long_a_link_works_and_how_to_get_another(page: str) -> None:
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert f"within {LINK_LIFE_TEXT}" in text
    assert "ulak link" in text


def test_the_status_calls_nothing_that_is_here_future_work() -> None:
    status = README.read_text(encoding="utf-8").partition("## Status")[2].partition("\n## ")[0]
    here, _, to_come = status.partition("To come:")
    assert installed()
    for service in installed():
        pages = (f"docs/{service}.md", f"docs/services/{service}.md")
        assert any((ROOT / page).exists() and page in here for page in pages), service
    assert "docs/idempotency.md" in here
    assert not re.search("pdf|idempoten|contract", to_come, re.I)


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
