"""What is wrong with a template, found before anything is queued."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import unquote

from jinja2 import TemplateSyntaxError, meta, nodes

from ulak.services.pdf.document import UrlBlocked
from ulak.services.pdf.model import PermanentPdfError
from ulak.services.pdf.security.urls import UrlPatterns
from ulak.services.pdf.templates.folder import MANIFEST, PAGE, SAMPLE, Template
from ulak.services.pdf.templates.positions import Named, Reading, read_positions
from ulak.services.pdf.templates.program import Program
from ulak.services.pdf.templates.sandbox import Sandbox

_CSS_URL: Final = re.compile(
    r"url\(\s*[\"']?([^\"')]*)[\"']?\s*\)|@import\s+[\"']([^\"']*)[\"']", re.IGNORECASE
)
_PAGE_SIZE: Final = re.compile(rb"@page\b[^{;]*\{[^}]*?[\s;{]size\s*:", re.IGNORECASE)
_SCHEME: Final = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]*):")
_LINK_SCHEMES: Final = ("http", "https", "mailto", "tel")


@dataclass(frozen=True, slots=True)
class Complaint:
    """One thing that is wrong with a template, and where."""

    template: str
    file: str
    line: int | None
    message: str

    def __str__(self) -> str:
        at = "" if self.line is None else f", line {self.line}"
        return f"{self.template}/{self.file}{at}: {self.message}"


def check(template: Template, *, patterns: Iterable[str] = ()) -> list[Complaint]:
    """Look for what would fail, or be refused, when the template is rendered.

    That is: names that are neither declared nor set, variables where escaping does not protect
    them, URLs that the allow-list refuses or that lead nowhere, files that are not there, options
    of callers that would change nothing, and a sample that the template cannot be filled with.

    Args:
        template: As it was read.
        patterns: The allow-list of URLs that documents may fetch.
    """
    return list(dict.fromkeys(_complaints(template, UrlPatterns(patterns))))


def _complaints(template: Template, allowed: UrlPatterns) -> Iterator[Complaint]:
    sandbox = Sandbox(template)
    broken = False
    for path in sorted(template.files):
        if not path.endswith((".css", ".html")):
            continue
        try:
            source = template.text(path)
        except PermanentPdfError:
            broken = True
            yield Complaint(template.name, path, None, "the file is no UTF-8")
            continue
        if path.endswith(".css"):
            for line, url in _css_urls(1, source):
                yield from _url(template, path, Named(line, url, False), allowed)
            continue
        try:
            reading = read_positions(sandbox, source)
            tree = sandbox.parse(source)
            sandbox.compile(tree, path)
        except TemplateSyntaxError as error:
            broken = True
            yield Complaint(template.name, path, error.lineno, error.message or "cannot be read")
            continue
        for finding in reading.findings:
            broken = True
            yield Complaint(template.name, path, finding.line, finding.message)
        yield from _names(template, path, tree, set(sandbox.globals))
        yield from _urls(template, path, reading, allowed)
    yield from _options(template)
    if not broken:
        yield from _sample(template)


def _options(template: Template) -> Iterator[Complaint]:
    """Complain of options that callers may use and that change nothing."""
    allowed = template.manifest.options
    if "wait_for_expression" in allowed and not template.manifest.javascript:
        yield Complaint(
            template.name, MANIFEST, None,
            "options: wait_for_expression needs scripts; remove it, or set javascript = true",
        )  # fmt: skip
    useless = [name for name in ("paper", "landscape") if name in allowed]
    texts = (text for path, text in template.files.items() if path.endswith((".css", ".html")))
    if useless and any(_PAGE_SIZE.search(text) for text in texts):
        yield Complaint(
            template.name, MANIFEST, None,
            f"options: a style sheet has a page size, so that {' and '.join(useless)} changes "
            "nothing; remove the one or the other",
        )  # fmt: skip


def _names(
    template: Template, path: str, tree: nodes.Template, given: set[str]
) -> Iterator[Complaint]:
    """Complain of names that nobody declares."""
    declared = template.manifest.variables
    known = given | set(template.sample() if declared is None else declared)
    where = SAMPLE if declared is None else "[variables] of manifest.toml"
    # An included file sees what its includer has set; only the page itself must know all names.
    if path != PAGE:
        return
    for name in sorted(meta.find_undeclared_variables(tree) - known):
        lines = (node.lineno for node in tree.find_all(nodes.Name) if node.name == name)
        yield Complaint(
            template.name, path, min(lines, default=None), f"{name!r} is not in {where}"
        )


def _urls(
    template: Template, path: str, reading: Reading, allowed: UrlPatterns
) -> Iterator[Complaint]:
    for named in reading.urls:
        yield from _url(template, path, named, allowed)
    for first, style in reading.styles:
        for line, url in _css_urls(first, style):
            yield from _url(template, path, Named(line, url, False), allowed)
    if "script" in reading.elements and not template.manifest.javascript:
        yield Complaint(
            template.name, path, None,
            "it holds <script>, and scripts do not run; remove it, or set javascript = true",
        )  # fmt: skip


def _css_urls(first: int, style: str) -> Iterator[tuple[int, str]]:
    for found in _CSS_URL.finditer(style):
        yield first + style.count("\n", 0, found.start()), found[1] or found[2] or ""


def _url(template: Template, path: str, named: Named, allowed: UrlPatterns) -> Iterator[Complaint]:
    """Complain of a URL that will be refused, or that leads nowhere."""
    url = named.url.strip()
    scheme = found[1].lower() if (found := _SCHEME.match(url)) else ""
    if not url or url.startswith("#") or "\0" in url.partition("/")[0] or scheme == "data":
        return
    message = ""
    if named.is_link:
        if scheme not in _LINK_SCHEMES:
            message = f"a link to {_shown(url)} leads nowhere; write http, https, mailto or tel"
    elif not scheme:
        beside = str(PurePosixPath(path).parent / unquote(url))
        if path.endswith(".css") and beside in template.files:
            return
        message = f"{_shown(url)} leads nowhere, a document has no address; use asset()"
    else:
        try:
            allowed.check(url.replace("\0", "x"))
        except UrlBlocked as blocked:
            because = (
                f"{scheme}: is never fetched"
                if blocked.reason == "scheme"
                else "the allow-list does not name it"
            )
            message = f"{_shown(url)} will be refused: {because}"
    if message:
        yield Complaint(template.name, path, named.line, message)


def _shown(url: str) -> str:
    return repr(url.replace("\0", "…")[:80])


def _sample(template: Template) -> Iterator[Complaint]:
    """Fill the template with its sample: what names inside of objects lack shows only so."""
    try:
        Program(template).fill(template.sample())
    except PermanentPdfError as error:
        message = str(error).removeprefix(f"template {template.name!r}").lstrip(", ")
        yield Complaint(template.name, SAMPLE, None, f"the sample does not render: {message}")
