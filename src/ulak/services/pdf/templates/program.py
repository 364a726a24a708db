"""A template made ready to be filled, by a request or to find what is wrong with it."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final
from urllib.parse import unquote

import jinja2
from jinja2 import TemplateError, TemplateNotFound, TemplateSyntaxError, UndefinedError, meta, nodes

from ulak.services.pdf.document import Document, Limits, UrlBlocked
from ulak.services.pdf.model import PermanentPdfError, WrongVariables
from ulak.services.pdf.page import NOTHING_SAID, PageOptions, judge_page, on_page
from ulak.services.pdf.security.template_input import find_unprintable, sanitize_html_variables
from ulak.services.pdf.security.urls import UrlPatterns
from ulak.services.pdf.templates.folder import MANIFEST, PAGE, SAMPLE, Template, template_error
from ulak.services.pdf.templates.formats import Unwritable
from ulak.services.pdf.templates.positions import Named, Reading, read_positions
from ulak.services.pdf.templates.sandbox import FILENAME, OverLimit, Sandbox

# What a template's own arithmetic can raise. Their messages may hold values, so they stay here.
_FAULTS: Final = (
    ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError,
)  # fmt: skip
_CLASS: Final = re.compile(r"""\bclass\s*=\s*("[^"]*"|'[^']*'|[^\s"'>]+)""", re.IGNORECASE)
_CLASS_VALUE: Final = re.compile(r"""^class\s*=\s*["']?|["']$""", re.IGNORECASE)
_CSS_URL: Final = re.compile(
    r"url\(\s*[\"']?([^\"')]*)[\"']?\s*\)|@import\s+[\"']([^\"']*)[\"']", re.IGNORECASE
)
_PAGE_SIZE: Final = re.compile(rb"@page\b[^{;]*\{[^}]*?[\s;{]size\s*:", re.IGNORECASE)
_SCHEME: Final = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]*):")
_LINK_SCHEMES: Final = ("http", "https", "mailto", "tel")


class Program:
    """Fills one template, by any number of threads.

    Raises:
        PermanentPdfError: TEMPLATE_ERROR: it cannot be read, or a variable stands where escaping
            does not protect it. The message names the file and the line.
    """

    def __init__(self, template: Template, limits: Limits | None = None) -> None:
        self.template = template
        self._limits = limits or Limits()
        self._sandbox = Sandbox(template)
        for path in sorted(template.files):
            if path.endswith(".html"):
                self._judge(path)
        try:
            self._page = self._sandbox.get_template(PAGE)
        except TemplateError as error:
            raise self._fault(error) from None

    def fill(self, variables: Mapping[str, Any], page: PageOptions = NOTHING_SAID) -> Document:
        """Fill the template, and its header and footer where these are asked for; see
        `Templates.render`."""
        manifest = self.template.manifest
        judge_variables(self.template, variables)
        judge_options(self.template, page)
        safe = dict.fromkeys(manifest.variables or ()) | sanitize_html_variables(variables)
        if (unprintable := find_unprintable(variables)) is not None:
            what = f": variable {unprintable} holds a character that HTML cannot hold"
            raise template_error(self.template.name, what, detail="variables")
        document = Document(
            self._text(self._page, safe), engine=manifest.engine, paper=manifest.paper,
            javascript=manifest.javascript, tagged=manifest.tagged, outline=manifest.outline,
        )  # fmt: skip
        if page == NOTHING_SAID:
            return document
        header, footer = (self._part(path, safe) for path in (page.header, page.footer))
        return on_page(document, page, header=header, footer=footer)

    def _part(self, path: str, variables: Mapping[str, Any]) -> str:
        """Fill a header or a footer, '' when there is none."""
        if not path:
            return ""
        try:
            part = self._sandbox.get_template(path)
        except TemplateError as error:
            raise self._fault(error, path) from None
        text = self._text(part, variables)
        if any("date" in _CLASS_VALUE.sub("", found[0]).split() for found in _CLASS.finditer(text)):
            # The browser would write the moment of printing there, and no two PDFs were the same.
            what = f', {path}: class="date" prints the moment; print a variable'
            raise template_error(self.template.name, what, detail="header")
        return text

    def _judge(self, path: str) -> None:
        try:
            findings = read_positions(self._sandbox, self.template.text(path)).findings
        except TemplateSyntaxError as error:
            raise self._fault(error, path) from None
        for found in findings:
            what = f", {path} line {found.line}: {found.message}"
            raise template_error(self.template.name, what, detail="position")

    def _text(self, page: jinja2.Template, variables: Mapping[str, Any]) -> str:
        parts: list[str] = []
        left = self._limits.html_bytes
        self._sandbox.begin()
        try:
            for part in page.generate(variables):
                left -= len(part)
                if left < 0:
                    break
                parts.append(part)
        except (TemplateError, *_FAULTS) as error:
            raise self._fault(error) from None
        text = "".join(parts)
        if left < 0 or len(text.encode()) > self._limits.html_bytes:
            what = f": the document has more than {self._limits.html_bytes} bytes"
            raise template_error(self.template.name, what, detail="size")
        return text

    def _fault(self, error: Exception, path: str = PAGE) -> PermanentPdfError:
        """Say what a template stumbled over, and where, without a value."""
        name = self.template.name
        if isinstance(error, TemplateSyntaxError):
            file = error.name or path
            return template_error(
                name, f", {file} line {error.lineno}: {error.message}", detail="syntax"
            )
        at = _line_of(error)
        if isinstance(error, TemplateNotFound):
            return template_error(name, f"{at}: there is no file {error.name!r}", detail="file")
        for kind, detail in (
            (UndefinedError, "undefined"), (OverLimit, "limit"), (Unwritable, "value")
        ):  # fmt: skip
            if isinstance(error, kind):
                return template_error(name, f"{at}: {error.message}", detail=detail)
        why = f"it cannot be computed ({type(error).__name__})"
        return template_error(name, f"{at}: {why}", detail="value")


def judge_variables(template: Template, variables: Mapping[str, Any]) -> None:
    """Raise WrongVariables for what is not as the manifest declares; one that declares none takes
    all."""
    declared = template.manifest.variables
    if declared is None:
        return
    wrong = [
        (name, "is missing")
        for name, variable in declared.items()
        if name not in variables and not variable.is_optional
    ]
    for name, value in variables.items():
        if name not in declared:
            wrong.append((_shown(name), "is not one of its variables"))
        elif not declared[name].takes(value):
            wrong.append((name, f"is not of the kind {declared[name].kind}"))
    if wrong:
        raise WrongVariables(template.name, wrong)


def judge_options(template: Template, page: PageOptions) -> None:
    """Raise BadPage for page options that a template does not allow its callers."""
    manifest = template.manifest
    judge_page(page, manifest.options, files=template.files, javascript=manifest.javascript)


def _line_of(error: Exception) -> str:
    """Return the file and the line of a template in which an error arose."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.startswith(FILENAME):
            return f", {frame.filename.removeprefix(FILENAME)} line {frame.lineno}"
    return ""


def _shown(name: object) -> str:
    text = str(name)
    return text if text.isidentifier() and len(text) <= 100 else "a name"


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
    them, URLs that the allow-list `patterns` refuses or that lead nowhere, files that are not
    there, options of callers that would change nothing, and a sample that does not render.
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
            message = f"a link to {_quote(url)} leads nowhere; write http, https, mailto or tel"
    elif not scheme:
        beside = str(PurePosixPath(path).parent / unquote(url))
        if path.endswith(".css") and beside in template.files:
            return
        message = f"{_quote(url)} leads nowhere, a document has no address; use asset()"
    else:
        try:
            allowed.check(url.replace("\0", "x"))
        except UrlBlocked as blocked:
            because = (
                f"{scheme}: is never fetched"
                if blocked.reason == "scheme"
                else "the allow-list does not name it"
            )
            message = f"{_quote(url)} will be refused: {because}"
    if message:
        yield Complaint(template.name, path, named.line, message)


def _quote(url: str) -> str:
    return repr(url.replace("\0", "…")[:80])


def _sample(template: Template) -> Iterator[Complaint]:
    """Fill the template with its sample: what names inside of objects lack shows only so."""
    try:
        Program(template).fill(template.sample())
    except PermanentPdfError as error:
        message = str(error).removeprefix(f"template {template.name!r}").lstrip(", ")
        yield Complaint(template.name, SAMPLE, None, f"the sample does not render: {message}")
