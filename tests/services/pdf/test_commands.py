"""`ulak pdf`: what an operator sees."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ulak.errors import UlakError
from ulak.kit.commands.output import complain
from ulak.services.pdf import ground
from ulak.services.pdf.commands import pdf

PAGE = "<p>{{ who }}</p>"
MANIFEST = 'version = "2"\ntitle = "Mine"\n[variables]\nwho = "text"\n'
VALUE = "tell-nobody-4711"


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


Run = Callable[..., Answer]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `ulak pdf ...` in a folder of its own, with a template of one's own in `mine`."""
    folder = tmp_path / "templates" / "mine"
    folder.mkdir(parents=True)
    (folder / "manifest.toml").write_text(MANIFEST)
    (folder / "template.html").write_text(PAGE)
    (folder / "sample.json").write_text('{"who": "sample"}')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PDF_TEMPLATE_DIR", str(tmp_path / "templates"))

    def command(*arguments: str) -> Answer:
        code: Any = 1
        try:
            pdf(args=list(arguments), prog_name="ulak pdf")
        except SystemExit as ended:
            code = ended.code or 0
        except UlakError as error:  # as the command line does with what a command raises
            complain(str(error))
        captured = capsys.readouterr()
        return Answer(int(code), captured.out, captured.err)

    return command


def test_templates_lists_those_of_the_operator_and_those_that_are_shipped(run: Run) -> None:
    answer = run("templates", "--json")
    listed = {entry["name"]: entry for entry in json.loads(answer.out)}
    assert sorted(listed) == ["certificate", "invoice", "mine", "report"]
    mine = listed["mine"]
    assert mine["title"] == "Mine"
    assert mine["version"] == "2"
    assert mine["paper_mm"] == [210, 297]
    assert mine["variables"] == {"who": "text"}
    assert mine["allowed"] is True
    assert len(mine["digest"]) == 64
    assert listed["invoice"]["variables"]["note"] == "text?"
    assert "Mine" in run("templates").out


def test_templates_shows_what_is_broken_and_what_is_not_allowed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PDF_TEMPLATE_ALLOWLIST", "invoice")
    (tmp_path / "templates" / "mine" / "manifest.toml").write_text("version = ")
    listed = {entry["name"]: entry for entry in json.loads(run("templates", "--json").out)}
    assert "manifest.toml" in listed["mine"]["error"]
    assert {name for name, entry in listed.items() if entry["allowed"]} == {"invoice"}
    assert run("templates").code == 0


@pytest.mark.shows("P-57")
def test_check_is_silent_about_what_is_right_and_ends_in_1_otherwise(
    run: Run, tmp_path: Path
) -> None:
    answer = run("check")
    assert (answer.code, answer.out) == (0, "4 templates: nothing to complain about\n")
    page = tmp_path / "templates" / "mine" / "template.html"
    page.write_text("<p title={{ who }}>\n{{ nobody }}</p>")
    answer = run("check")
    assert answer.code == 1
    assert "mine/template.html, line 1: a variable stands in an attribute" in answer.out
    assert "mine/template.html, line 2: 'nobody' is not in [variables]" in answer.out
    answer = run("check", "mine", "--json")
    assert answer.code == 1
    assert [(found["file"], found["line"]) for found in json.loads(answer.out)] == [
        ("template.html", 1), ("template.html", 2),
    ]  # fmt: skip
    assert run("check", "invoice").code == 0


@pytest.mark.shows("P-57")
def test_check_knows_the_allow_list_of_urls(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "templates" / "mine" / "template.html"
    page.write_text('{{ who }}<img src="https://cdn.example/x.png">')
    assert "will be refused" in run("check", "mine").out
    monkeypatch.setenv("PDF_URL_ALLOWLIST", json.dumps([r"https://cdn\.example/.*"]))
    assert run("check", "mine").code == 0


def test_render_writes_a_pdf(run: Run, tmp_path: Path) -> None:
    (tmp_path / "vars.json").write_text('{"who": "Ayşe"}')
    answer = run("render", "mine", "vars.json", "-o", "mine.pdf", "--json")
    assert answer.code == 0, answer.err
    told = json.loads(answer.out)
    content = (tmp_path / "mine.pdf").read_bytes()
    assert content.startswith(b"%PDF-")
    assert (told["pages"], told["bytes"]) == (1, len(content))
    assert "Chrome" in told["engine"]
    assert set(told["timings"]) == {"template", "launch", "load", "print", "store", "total"}
    assert told["warnings"] == []
    # Nothing half-written is left beside it.
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "mine.pdf",
        "templates",
        "vars.json",
    ]


@pytest.mark.shows("P-60", "P-62")
def test_render_tells_what_each_step_took_and_which_characters_no_font_has(
    run: Run, tmp_path: Path
) -> None:
    # For private use: no font of any system has them.
    (tmp_path / "vars.json").write_text(json.dumps({"who": "a\U0010fffd\U0010fffd\U0010fff0"}))
    answer = run("render", "mine", "vars.json")
    assert answer.code == 0, answer.err
    first, second = answer.out.splitlines()
    assert first.startswith("out.pdf: 1 page, ")
    steps = [step.split() for step in second.split(", ")]
    assert [name for name, *_ in steps] == ["template", "launch", "load", "print", "store"]
    assert all(float(number) >= 0 and unit == "s" for _, number, unit in steps)
    assert answer.err == "note: no font has U+10FFFD, U+10FFF0: printed as boxes (3 in all)\n"


def test_render_fills_from_standard_input_and_from_the_sample(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO('{"who": "<piped>"}'))
    assert run("render", "mine", "-", "--html", "-o", "a.html").code == 0
    assert (tmp_path / "a.html").read_text() == "<p>&lt;piped&gt;</p>"
    assert run("render", "mine", "--sample", "--html", "-o", "b.html").code == 0
    assert (tmp_path / "b.html").read_text() == "<p>sample</p>"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"who": "x",\n "a": }', "vars.json is no JSON: Expecting value, line 2, column 7"),
        ("[1]", "holds no object"),
        ('{"who": NaN}', "NaN is no number of JSON"),
        ('{"who": "x", "who": "tell-nobody-4711"}', "a member is there twice"),
        ("{}", "who is missing"),
        ('{"who": 5}', "who is not of the kind text"),
        ('{"who": "x", "extra": "tell-nobody-4711"}', "extra is not one of its variables"),
    ],
)
@pytest.mark.shows("P-34")
def test_render_says_what_is_wrong_with_the_variables(
    run: Run, tmp_path: Path, content: str, told: str
) -> None:
    (tmp_path / "vars.json").write_text(content)
    answer = run("render", "mine", "vars.json")
    assert answer.code == 1
    assert told in answer.err
    assert VALUE not in answer.err + answer.out
    assert not (tmp_path / "out.pdf").exists()


def test_render_names_the_folder_that_is_missing(run: Run) -> None:
    answer = run("render", "mine", "--sample", "--html", "-o", "no/where/out.html")
    assert answer.code == 1
    assert "there is no folder no/where" in answer.err


def test_render_needs_variables_or_the_sample_and_not_both(run: Run, tmp_path: Path) -> None:
    (tmp_path / "vars.json").write_text("{}")
    assert run("render", "mine").code == 2
    assert run("render", "mine", "vars.json", "--sample").code == 2


def test_an_unknown_template_names_those_that_there_are(run: Run) -> None:
    for command in (("render", "nope", "--sample"), ("check", "nope")):
        answer = run(*command)
        assert answer.code == 1
        assert "there are certificate, invoice, mine, report" in answer.err


@pytest.mark.shows("P-26")
def test_render_keeps_to_the_allow_list_once_there_is_one(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PDF_TEMPLATE_ALLOWLIST", "invoice")
    answer = run("render", "mine", "--sample", "--html", "-o", "a.html")
    assert answer.code == 1
    assert "'mine' is not in the allow-list" in answer.err
    assert run("render", "invoice", "--sample", "--html", "-o", "a.html").code == 0


def test_a_missing_browser_says_how_to_get_one(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ground, "_KNOWN", ())
    monkeypatch.setattr(ground, "_downloads", lambda: iter(()))
    monkeypatch.setenv("PATH", str(tmp_path))
    answer = run("render", "mine", "--sample")
    assert answer.code == 1
    assert "install" in answer.err
    assert not (tmp_path / "out.pdf").exists()
