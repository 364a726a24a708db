"""Templates: filled in a sandbox, escaped once, strict, bounded, and quiet about values."""

from __future__ import annotations

import functools
import html
import json
import logging
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ulak.services.pdf.document import Document, Limits
from ulak.services.pdf.model import PdfErrorCode, PermanentPdfError
from ulak.services.pdf.page import PAPERS
from ulak.services.pdf.templates import Templates, sandbox
from ulak.services.pdf.templates.folder import Manifest, Template, read_template
from ulak.services.pdf.templates.program import Program

MANIFEST = 'version = "1"\ntitle = "One"\n'
VALUE = "tell-nobody-4711"

GROW = "{{% set n = namespace(x='x') %}}{{% for x in range(60) %}}{}{{% endfor %}}"
"""Sixty turns, each of which may double what was there."""

Make = Callable[..., Templates]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Write a template called `one`, and answer the templates that there are."""

    def write(page: str, manifest: str = "", **files: str) -> Templates:
        folder = tmp_path / "one"
        folder.mkdir(exist_ok=True)
        (folder / "manifest.toml").write_text(MANIFEST + manifest)
        (folder / "template.html").write_text(page)
        for name, text in files.items():
            (folder / name.replace("__", ".")).write_text(text)
        return Templates([tmp_path])

    return write


def failure(templates: Templates, **variables: Any) -> str:
    with pytest.raises(PermanentPdfError) as caught:
        templates.render("one", variables)
    assert caught.value.code == PdfErrorCode.TEMPLATE_ERROR
    assert "'one'" in str(caught.value)
    return str(caught.value)


# Escaping


@pytest.mark.shows("P-31")
def test_a_value_is_escaped_exactly_once_in_text_and_in_attributes(make: Make) -> None:
    templates = make('<p title="{{ a }}">{{ a }}{{ b.c[0] }}</p>')
    document = templates.render("one", {"a": "<&\"'>", "b": {"c": ["&amp;"]}})
    escaped = "&lt;&amp;&#34;&#39;&gt;"
    assert document.html == f'<p title="{escaped}">{escaped}&amp;amp;</p>'


@pytest.mark.shows("P-31")
@settings(max_examples=150, deadline=None)
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40))
def test_the_printed_text_is_the_text_that_was_given(text: str) -> None:
    """Whatever is done to it on the way: filters see the text and not its entities."""
    parts = [
        "{{ a }}", "{{ a|length }}", "{{ a|upper }}", "{{ a ~ '<' }}", "{{ a[:3] }}",
        "{{ [a]|join }}",
        "{% for c in a %}{{ c }}{% endfor %}", "{{ a == b[0] }}",
        "{{ a|first|d('') if a else '' }}",
    ]  # fmt: skip
    filled = [program(part).fill({"a": text, "b": [text]}).html for part in parts]
    wanted = [
        text, str(len(text)), text.upper(), text + "<", text[:3], text, text, "True", text[:1],
    ]  # fmt: skip
    # Escaped once and no more: markupsafe writes the two quotes by number.
    numbers = {"&quot;": "&#34;", "&#x27;": "&#39;"}
    assert filled == [
        re.sub("&quot;|&#x27;", lambda found: numbers[found[0]], html.escape(one)) for one in wanted
    ]


@functools.cache
def program(page: str) -> Program:
    files = {"template.html": page.encode()}
    return Program(Template("x", Manifest(version="1", title="x"), files, ""))


@pytest.mark.parametrize("value", ["a\0b", "\ud800"])
@pytest.mark.shows("P-31")
def test_what_html_cannot_hold_is_refused_and_named_by_its_place(make: Make, value: str) -> None:
    assert "variable a.b[1] holds" in failure(make("{{ a.b }}"), a={"b": ["x", value]})


@pytest.mark.parametrize(
    "page",
    [
        "<p {{ a }}>", "<p class={{ a }}>", "<p class= {{ a }}>", "<p class=x{{ a }}>",
        "<{{ a }}>", "<p {{ a }}='x'>", "<script>{{ a }}</script>",
        "<script>let x='{{ a }}'</script>",
        "<style>{{ a }}</style>", '<p style="color: {{ a }}">x</p>', '<p onclick="{{ a }}">x</p>',
        '<a href="{{ a }}">x</a>', '<img src="{{ a }}">', '<img src="{{ a|upper }}">',
        '<img src="{{ a|url or a }}">', '<img src="{{ b if a else a|url }}">', "<!-- {{ a }} -->",
        '<iframe srcdoc="{{ a }}"></iframe>', '<img srcset="{{ a }} 2x">',
        '<a href = "{{ a }}">x</a>',
        '<a href="javascript{{ a }}">x</a>', '<a href="{{ a|urlencode }}">x</a>',
        '<svg><image xlink:href="{{ a }}"/></svg>', "<A HREF='{{ a }}'>x</A>",
        '{% if a %}<p title="{% else %}<p title={% endif %}{{ a }}">x</p>',
        '{% if a %}<p title="{% elif b %}<p title="{% endif %}{{ a }}">x</p>',
        '<meta http-equiv="refresh" content="0;url={{ a }}">', '<meta http-equiv="{{ a }}">',
        '{% for x in [1] %}<p title="{% endfor %}{{ a }}">', '{% include "x.html" %}<p {{ a }}>',
        '<p title="x{% if a %}">{% endif %}{{ a }}',
        "{% autoescape false %}{{ a }}{% endautoescape %}",
    ],
)  # fmt: skip
@pytest.mark.shows("P-31", "P-57")
def test_a_variable_where_escaping_does_not_protect_it_is_refused(make: Make, page: str) -> None:
    templates = make(page, x__html="")
    assert "line 1" in failure(templates, a=VALUE, b="")
    assert any(complaint.line == 1 for complaint in templates.check("one"))


@pytest.mark.parametrize(
    "page",
    [
        "<p>{{ a }}</p>", '<p class="x {{ a }}">x</p>', "<p class='{{ a }}'>x</p>",
        "<title>{{ a }}</title>",
        '<p {% if a %}class="{{ a }}"{% endif %}>x</p>', '<p style="width: {{ 3|bare }}mm">x</p>',
        "<style>{% for x in [1] %}p { content: {{ a|css_text }} }{% endfor %}</style>",
        '<a href="{{ link|url }}">x</a>', '<a href="https://a.example/{{ a|urlencode }}">x</a>',
        '<a href="{{ (link if a else link)|url }}">x</a>', '<p title = "{{ a }}">x</p>',
        '{% if a %}<p title="{{ a }}">{% else %}<p>{% endif %}x</p>', "a < b {{ a }}",
        "<!doctype html>{{ a }}",
        "{# {{ nothing }} #}{{ a }}",
        '{% macro m(x) %}<b title="{{ x }}">{{ x }}</b>{% endmacro %}{{ m(a) }}',
    ],
)  # fmt: skip
@pytest.mark.shows("P-31")
def test_text_and_quoted_attributes_are_where_variables_stand(make: Make, page: str) -> None:
    make(page).render("one", {"a": "x", "link": "https://a.example/"})


@pytest.mark.parametrize(
    "value",
    ["javascript:alert(1)", "JAVASCRIPT:x", " https://a.example", "java\tscript:x", "file:///etc/x",
     "data:text/html,x", "vbscript:x", "//a.example/", "x.html", "", "https:\\\\a.example",
     "data:image/svg+xml;base64,AAAA"],
)  # fmt: skip
@pytest.mark.shows("P-31")
def test_a_value_used_as_a_url_has_its_scheme_checked(make: Make, value: str) -> None:
    told = failure(make('<a href="{{ a|url }}">x</a>'), a=value)
    assert "line 1: |url was given" in told
    assert not value.strip() or value not in told


@pytest.mark.parametrize(
    "value",
    ["https://a.example/?a=1&b='", "http://a.example", "mailto:a@b.example", "tel:+90", "#part",
     "data:image/png;base64,iVBORw0KGgo="],
)  # fmt: skip
@pytest.mark.shows("P-31")
def test_good_urls_are_escaped_and_kept(make: Make, value: str) -> None:
    document = make('<a href="{{ a|url }}">x</a>').render("one", {"a": value})
    assert html.unescape(document.html) == f'<a href="{value}">x</a>'


@pytest.mark.shows("P-31")
def test_a_text_in_a_style_sheet_cannot_leave_its_string(make: Make) -> None:
    templates = make("<style>p { content: {{ a|css_text }} }</style>")
    document = templates.render("one", {"a": 'x"; } </style>\\\n'})
    inner = document.html.removeprefix('<style>p { content: "').removesuffix('" }</style>')
    assert not set(inner) & set('"<>;{}\n')
    assert inner.startswith("x\\000022\\00003b")


# The sandbox


@pytest.mark.parametrize(
    "expression",
    [
        "''.__class__.__mro__", "a.__class__", "a['__class__']", "a.upper()", "a.format(1)",
        "range.__self__",
        "lipsum(5)", "cycler('a')", "asset.__globals__", "a|attr('__class__')", "a|safe",
        "a|tojson",
        "a|xmlattr", "(a ~ '%s') % 1", "'%s' % 1", "''|format", "self.__init__", "a.items()",
        "config", "joiner()",
    ],
)  # fmt: skip
@pytest.mark.shows("P-31")
def test_there_is_no_way_out_of_the_sandbox(make: Make, expression: str) -> None:
    failure(make("{{ " + expression + " }}"), a="x")


@pytest.mark.parametrize(
    "path", ["../secret.txt", "/etc/passwd", "sub/../../secret.txt", "none.html"]
)
@pytest.mark.parametrize("how", ['{% include "PATH" %}', '{% import "PATH" as x %}',
                                 '<img src="{{ asset("PATH") }}">',
                                 '<style>{{ css("PATH") }}</style>'])  # fmt: skip
@pytest.mark.shows("P-31")
def test_nothing_outside_of_the_folder_can_be_had(
    make: Make, tmp_path: Path, how: str, path: str
) -> None:
    (tmp_path / "secret.txt").write_text(VALUE)
    assert VALUE not in failure(make(how.replace("PATH", path)))


def test_a_symbolic_link_out_of_the_folder_is_no_part_of_it(make: Make, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text(VALUE)
    templates = make('{% include "link.txt" %}')
    (tmp_path / "one" / "link.txt").symlink_to(tmp_path / "secret.txt")
    assert "link.txt" in failure(templates)


@pytest.mark.parametrize(
    "page",
    [
        "{% for x in range(10**9) %}x{% endfor %}",
        "{% for x in range(2000) %}{% for y in range(2000) %}{% endfor %}{% endfor %}",
        "{% for x in l %}{% for y in l %}{% for z in l %}{% endfor %}{% endfor %}{% endfor %}",
        "{% for x in l %}{% for y in l %}{{ l|sort|length }}{% endfor %}{% endfor %}",
        "{{ 'x' * 10**9 }}", "{{ [1] * 10**9 }}", "{{ 9**99999 }}", "{{ '%1000000000d' % 1 }}",

        GROW.format("{% set n.x = n.x ~ n.x %}"),

        GROW.format("{% set n.x = n.x + n.x %}"),
        GROW.replace("'x'", "9").format("{% set n.x = n.x * n.x %}"),
        "{% macro d(x) %}{{ x }}{{ x }}{% endmacro %}" + GROW.format("{% set n.x = d(n.x) %}"),
        GROW.format("{% set y %}{{ n.x }}{{ n.x }}{% endset %}{% set n.x = y %}"),
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ s|replace('x', s)|replace('x', s) }}", "{{ l|join(s) }}",
        "{% for x in range(600) %}{{ s }}{% endfor %}",
    ],
)  # fmt: skip
@pytest.mark.shows("P-32")
def test_a_template_that_would_never_end_or_grow_for_ever_is_stopped(make: Make, page: str) -> None:
    failure(make(page), l=[0] * 300, s="x" * 20_000)


def test_the_limit_of_the_html_is_exact(make: Make, tmp_path: Path) -> None:
    make("ş{{ a }}")
    templates = Templates([tmp_path], limits=Limits(html_bytes=10))
    assert templates.render("one", {"a": "x" * 8}).html == "ş" + "x" * 8
    assert "more than 10 bytes" in failure(templates, a="x" * 9)


def test_an_item_is_never_a_method_of_python(make: Make) -> None:
    templates = make(
        "{% for x in order.items %}{{ x.keys }}{% endfor %}{{ order.values|d('none') }}"
    )
    assert (
        templates.render("one", {"order": {"items": [{"keys": 1}, {"keys": 2}]}}).html == "12none"
    )


def test_threads_do_not_share_their_turns(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MOST_STEPS", 100)
    templates = make("{% for x in l %}{{ x }}{% endfor %}")
    templates.render("one", {"l": []})
    done: list[str] = []
    threads = [
        threading.Thread(target=lambda: done.append(templates.render("one", {"l": [1] * 90}).html))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == ["1" * 90] * 8


# Errors


@pytest.mark.shows("P-31", "P-34")
def test_an_undefined_name_is_told_with_its_line_and_without_a_value(make: Make) -> None:
    templates = make("<p>{{ a.b }}</p>\n\n<p>{{ a.missing }}</p>")
    assert failure(templates, a={"b": VALUE}).endswith("line 3: 'missing' is undefined (undefined)")
    assert "line 1: 'a' is undefined" in failure(templates)


@pytest.mark.parametrize(
    "expression",
    ["d[s]", "s + 1", "s|money", "s|date", "s|number", "1 // z", "s|int // z", "s.x", "l[9]",
     "s|round", "s|sum", "[s, 1]|max", "d.x|bare", "{}[s]", "s.x[:1]"],
)  # fmt: skip
@pytest.mark.shows("P-34")
def test_no_error_holds_a_value(
    make: Make, expression: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    templates = make("\n{{ " + expression + " }}")
    with pytest.raises(PermanentPdfError) as caught:
        templates.render("one", {"s": VALUE, "d": {"x": VALUE}, "z": 0, "l": []})
    shown = str(caught.value) + repr(caught.value) + caplog.text
    assert VALUE not in shown
    assert "line 2" in shown
    # What is raised from within is not told either: a traceback prints it.
    assert caught.value.__suppress_context__


def test_an_error_in_an_included_file_names_that_file(make: Make) -> None:
    templates = make('{% include "part.html" %}', part__html="\n\n{{ nowhere }}")
    assert ", part.html line 3: 'nowhere' is undefined" in failure(templates)


def test_a_syntax_error_names_its_line(make: Make) -> None:
    assert "template.html line 2: " in failure(make("x\n{% for %}"))


@pytest.mark.shows("P-26")
def test_an_unknown_template_names_those_that_there_are(make: Make) -> None:
    templates = make("x")
    for name in ("two", "../one", "ONE"):
        with pytest.raises(PermanentPdfError, match="there are one") as caught:
            templates.render(name, {})
        assert caught.value.code == PdfErrorCode.TEMPLATE_ERROR


# The manifest


def test_a_manifest_says_how_the_document_is_printed(make: Make) -> None:
    manifest = 'paper = "A4 landscape"\njavascript = true\ntagged = false\noutline = false\n'
    width, height = PAPERS["A4"]
    assert make("x", manifest).render("one", {}) == Document(
        "x", javascript=True, paper=(height, width), tagged=False, outline=False
    )


@pytest.mark.shows("P-9")
def test_javascript_is_off_unless_the_manifest_says_otherwise(make: Make) -> None:
    assert make("x").render("one", {}) == Document(
        "x", javascript=False, paper=PAPERS["A4"], tagged=True, outline=True
    )


def test_a_paper_may_be_of_any_size(make: Make) -> None:
    assert make("x", 'paper = "50.8 x 25.4 mm"').render("one", {}).paper == (2.0, 1.0)


def test_everything_that_is_wrong_with_a_manifest_is_told_at_once(make: Make) -> None:
    manifest = 'paper = "A9"\nlanguage = "xx"\nengine = "x"\njavascript = 1\ncolour = 2\n'
    told = failure(make("x", manifest + '[variables]\na = "texts"\n'))
    for word in (
        "paper:",
        "language:",
        "engine:",
        "javascript:",
        "colour is unknown",
        "variables: a",
    ):
        assert word in told


@pytest.mark.parametrize(
    "expression",
    [
        "{{ a }}", "{{ a|upper }}", "{{ a|trim|title }}", "{{ a|date }}", "{{ a|money }}",
        "{{ a|number(2) }}", "{{ a|percent }}", "{{ a|round(1) }}", "{{ a|escape }}", "{{ a|e }}",
        "{{ a|replace('x', 'y') }}", "{{ a|default('') }}", "{{ a ~ a }}", "{{ [a, a]|join }}",
        "{% for x in a %}{{ x }}{% endfor %}", '<a href="{{ a|url }}" title="{{ a }}"></a>',
        "<style>p::after { content: {{ a|css_text }} }</style>", "{{ a|bare }}", "{{ a|length }}",
        "{{ o.a }}", "{% set b %}{{ a }}{% endset %}{{ b }}",
    ],
)  # fmt: skip
def test_an_optional_variable_that_is_absent_prints_nothing(make: Make, expression: str) -> None:
    templates = make(expression, '[variables]\na = "text?"\no = "object"\n')
    for absent in ({}, {"a": None}):
        printed = templates.render("one", {"o": {"a": None}, **absent}).html
        assert "None" not in printed
        assert re.sub(r'<.*?>|p::after { content: "" }', "", printed) == ""


def test_a_text_in_a_style_sheet_has_a_largest_length(make: Make) -> None:
    templates = make("<style>p::after { content: {{ a|css_text }} }</style>")
    assert "x" * 2_000 in templates.render("one", {"a": "x" * 2_000}).html
    assert "css_text takes up to 2000 characters" in failure(templates, a="x" * 2_001)


def test_something_may_stand_for_an_optional_variable_that_is_absent(make: Make) -> None:
    templates = make("{{ a|default('-') }}{{ a|d('-') }}", '[variables]\na = "text?"\n')
    assert templates.render("one", {}).html == "--"
    assert templates.render("one", {"a": "x"}).html == "xx"
    assert templates.render("one", {"a": ""}).html == ""


def test_variables_are_held_against_what_is_declared(make: Make) -> None:
    declared = '[variables]\na = "text"\nn = "number"\nl = "list"\nb = "boolean?"\n'
    templates = make("{{ a }} {{ n }} {{ l|length }} {{ b }}", declared)
    assert templates.render("one", {"a": "x", "n": "1.50", "l": []}).html == "x 1.50 0 "
    told = failure(templates, a=1, n="many", b="yes", c=VALUE)
    assert told == (
        "template 'one': l is missing; a is not of the kind text; n is not of the kind number; "
        "b is not of the kind boolean; c is not one of its variables (variables)"
    )


# The content version


@pytest.mark.shows("P-12")
def test_any_change_of_any_file_changes_the_version(make: Make, tmp_path: Path) -> None:
    templates = make("x", style__css="a")
    seen = {templates.version("one")}
    again = Templates([tmp_path]).version("one")
    assert {again} == seen
    for change in (
        {"page": "y", "style__css": "a"},
        {"page": "y", "style__css": "b"},
        {"page": "y", "style__css": "b", "more__css": ""},
        {"page": "y", "style__css": "b", "more__css": "", "manifest": "tagged = true\n"},
    ):
        make(**change)
        seen.add(templates.version("one"))
    (tmp_path / "one" / "more.css").rename(tmp_path / "one" / "less.css")
    seen.add(templates.version("one"))
    assert len(seen) == 6
    assert all(len(version) == 64 for version in seen)


@pytest.mark.shows("P-12")
def test_the_version_does_not_depend_on_where_or_when(make: Make, tmp_path: Path) -> None:
    version = make("x").version("one")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "one").rename(elsewhere / "one")
    os.utime(elsewhere / "one" / "template.html", (0, 0))
    (elsewhere / "one" / ".swap").write_text("not part of it")
    assert Templates([elsewhere]).version("one") == version


def test_a_changed_template_is_read_again_and_an_open_one_stays(make: Make) -> None:
    templates = make("old")
    before = templates.get("one")
    assert templates.render("one", {}).html == "old"
    make("new")
    assert templates.render("one", {}).html == "new"
    assert Program(before).fill({}).html == "old"


def test_the_first_of_two_folders_counts(make: Make, tmp_path: Path) -> None:
    make("mine")
    other = tmp_path / "other" / "one"
    other.mkdir(parents=True)
    (other / "manifest.toml").write_text(MANIFEST)
    (other / "template.html").write_text("theirs")
    assert Templates([tmp_path, tmp_path / "other"]).render("one", {}).html == "mine"
    assert Templates([tmp_path / "other", tmp_path]).render("one", {}).html == "theirs"


def test_assets_are_inlined_from_pages_and_from_style_sheets(make: Make, tmp_path: Path) -> None:
    page = '<style>{{ css("s.css") }}</style><img src="{{ asset(\'a.svg\') }}">'
    templates = make(page, s__css="p { background: url(a.svg) url('none.png') }", a__svg="<svg/>")
    inlined = "data:image/svg+xml;base64,PHN2Zy8+"
    shown = templates.render("one", {}).html
    assert f"url(\"{inlined}\") url('none.png')" in shown
    assert f'src="{inlined}"' in shown


def test_a_style_sheet_cannot_end_its_element(make: Make) -> None:
    told = failure(make('<style>{{ css("s.css") }}</style>', s__css="/* </STYLE> */"))
    assert "</style" in told


def test_a_folder_has_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ulak.services.pdf.templates.folder.MOST_BYTES", 40)
    (tmp_path / "manifest.toml").write_text(MANIFEST)
    (tmp_path / "template.html").write_text("x" * 40)
    with pytest.raises(PermanentPdfError, match="has more than"):
        read_template(tmp_path)


# Writing


@pytest.mark.parametrize(
    ("expression", "english", "turkish"),
    [
        ("1234567.891|number", "1,234,567.891", "1.234.567,891"),
        ("'1234.5'|number(2)", "1,234.50", "1.234,50"),
        ("0.125|number(2)", "0.13", "0,13"),
        ("(-0.001)|number(2)", "0.00", "0,00"),
        ("(-5)|number", "\N{MINUS SIGN}5", "\N{MINUS SIGN}5"),
        ("'1234.5'|money", "₺1,234.50", "₺1.234,50"),
        ("(-1)|money('EUR')", "\N{MINUS SIGN}€1.00", "\N{MINUS SIGN}€1,00"),
        ("1234|money('JPY')", "¥1,234", "¥1.234"),
        ("5|money('CHF')", "CHF\N{NO-BREAK SPACE}5.00", "CHF\N{NO-BREAK SPACE}5,00"),
        ("18|percent", "18%", "%18"),
        ("'2026-11-05'|date", "5 November 2026", "5 Kas\u0131m 2026"),
        ("'2026-11-05T10:00:00Z'|date('short')", "05/11/2026", "05.11.2026"),
        ("'2026-08-01'|date('month')", "August 2026", "Ağustos 2026"),
        ("'istanbul i\u0131'|upper", "ISTANBUL II", "İSTANBUL İI"),
        ("'IĞDIR'|lower", "iğdir", "\u0131ğd\u0131r"),
        ("'izmir \u0131r'|title", "Izmir Ir", "İzmir Ir"),
        ("2.50|bare", "2.5", "2.5"),
        ("100|bare", "100", "100"),
    ],
)
@pytest.mark.shows("P-31")
def test_values_are_written_in_the_language_of_the_template(
    make: Make, expression: str, english: str, turkish: str
) -> None:
    page = "{{ " + expression + " }}"
    assert make(page).render("one", {}).html == english
    assert make(page, 'language = "tr"\n').render("one", {}).html == turkish


@pytest.mark.parametrize(
    "expression", ["true|number", "'x'|number", "'NaN'|money", "1|number(99)", "'1e999'|number"]
)
def test_what_is_no_number_is_not_written_as_one(make: Make, expression: str) -> None:
    assert "line 1" in failure(make("{{ " + expression + " }}"))


# Checking


def complaints(templates: Templates, *patterns: str) -> list[str]:
    return [str(complaint) for complaint in templates.check("one", patterns=patterns)]


@pytest.mark.shows("P-57")
def test_undefined_names_are_found_before_anything_is_queued(make: Make) -> None:
    page = "{{ known }}\n{% for row in rows %}{{ row.x }}{{ unknown }}{% endfor %}\n{{ rows[0].y }}"
    manifest = '[variables]\nknown = "text"\nrows = "list"\n'
    sample = json.dumps({"known": "x", "rows": [{"x": 1}]})
    found = complaints(make(page, manifest, sample__json=sample))
    assert found[0] == (
        "one/template.html, line 2: 'unknown' is not in [variables] of manifest.toml"
    )
    page = page.replace("{{ unknown }}", "")
    (only,) = complaints(make(page, manifest, sample__json=sample))
    assert "line 3: 'y' is undefined" in only
    assert complaints(make(page.replace("[0].y", ""), manifest, sample__json=sample)) == []


@pytest.mark.parametrize(
    ("page", "told"),
    [
        ('<img src="file:///etc/x">', "file: is never fetched"),
        ('<img src="http://a.example/x.png">', "the allow-list does not name it"),
        ('<img src="https://a.example@evil.example/x">', "the allow-list does not name it"),
        ('<img src="x.png">', "use asset()"),
        ('<link rel="stylesheet" href="/style.css">', "use asset()"),
        ('<script src="https://evil.example/x.js"></script>', "the allow-list does not name it"),
        ("<style>p { background: url(ftp://a.example/x) }</style>", "ftp: is never fetched"),
        ("<style>@import 'https://evil.example/x.css';</style>", "the allow-list does not name it"),
        ('<p style="background: url(//evil.example/)">x</p>', "use asset()"),
        (
            '<img srcset="https://a.example/1 1x, http://evil.example/2 2x">',
            "'http://evil.example/2'",
        ),
        ('<a href="javascript:alert(1)">x</a>', "leads nowhere"),
        ('<img src="https://evil.example/{{ 1|urlencode }}">', "the allow-list does not name it"),
    ],
)
@pytest.mark.shows("P-57")
def test_forbidden_urls_are_found_before_anything_is_queued(
    make: Make, page: str, told: str
) -> None:
    found = complaints(make("\n" + page, "javascript = true\n"), r"https://a\.example/.*")
    assert len(found) == 1
    assert told in found[0]
    assert found[0].startswith("one/template.html, line 2: ")


@pytest.mark.shows("P-57")
def test_urls_of_style_sheets_are_found_too(make: Make) -> None:
    sheet = "p {}\nb { background: url('https://evil.example/x') }\ni { background: url(a.svg) }"
    (only,) = complaints(make("x", s__css=sheet, a__svg="<svg/>"))
    assert only.startswith("one/s.css, line 2: 'https://evil.example/x' will be refused")


def test_what_is_allowed_is_no_matter_of_complaint(make: Make) -> None:
    page = (
        '<img src="https://a.example/x.png"><a href="http://other.example/">x</a>'
        '<a href="#part">y</a><img src="data:image/gif;base64,R0lGODlh">'
    )
    assert complaints(make(page), r"https://a\.example/.*") == []


def test_a_file_that_is_no_text_is_a_complaint(make: Make, tmp_path: Path) -> None:
    templates = make("x")
    (tmp_path / "one" / "s.css").write_bytes(b"\xff")
    (tmp_path / "one" / "p.html").write_bytes(b"\xff")
    told = ["one/p.html: the file is no UTF-8", "one/s.css: the file is no UTF-8"]
    assert complaints(templates) == told


def test_scripts_that_do_not_run_are_a_complaint(make: Make) -> None:
    page = "<script>document.title = 1</script>"
    assert "scripts do not run" in complaints(make(page))[0]
    assert complaints(make(page, "javascript = true\n")) == []


def test_a_folder_that_cannot_be_read_is_a_complaint(make: Make, tmp_path: Path) -> None:
    assert "paper" in complaints(make("x", 'paper = "A9"'))[0]
    make("x", sample__json="{")
    assert "sample.json" in complaints(Templates([tmp_path]))[0]
