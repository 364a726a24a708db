"""A template made ready to be filled: read, judged and compiled once, filled often.

What one request asks of it is judged without filling it too, before a job is made.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping
from typing import Any, Final

import jinja2
from jinja2 import TemplateError, TemplateNotFound, TemplateSyntaxError, UndefinedError

from ulak.services.pdf.document import Document, Limits
from ulak.services.pdf.model import PermanentPdfError, WrongVariables
from ulak.services.pdf.page import NOTHING_SAID, PageOptions, judge_page, on_page
from ulak.services.pdf.security.template_input import find_unprintable, sanitize_html_variables
from ulak.services.pdf.templates.folder import PAGE, Template
from ulak.services.pdf.templates.manifest import template_error
from ulak.services.pdf.templates.positions import read_positions
from ulak.services.pdf.templates.sandbox import FILENAME, OverLimit, Sandbox
from ulak.services.pdf.templates.writing import Unwritable

# What a template's own arithmetic can raise. Their messages may hold values, so they stay here.
_FAULTS: Final = (
    ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError,
)  # fmt: skip
_CLASS: Final = re.compile(r"""\bclass\s*=\s*("[^"]*"|'[^']*'|[^\s"'>]+)""", re.IGNORECASE)
_CLASS_VALUE: Final = re.compile(r"""^class\s*=\s*["']?|["']$""", re.IGNORECASE)


class Program:
    """Fills one template. May be used by any number of threads.

    Args:
        template: As it was read.
        limits: How large a document may become.

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
        """Fill the template, and its header and footer where these are asked for; each variable is
        escaped once.

        Raises:
            PermanentPdfError: TEMPLATE_ERROR. The message names the line and the name that is
                missing, and no value.
            BadPage: the template does not allow a page option.
        """
        manifest = self.template.manifest
        judge_variables(self.template, variables)
        judge_options(self.template, page)
        safe = dict.fromkeys(manifest.variables or ()) | sanitize_html_variables(variables)
        if (unprintable := find_unprintable(variables)) is not None:
            raise template_error(
                self.template.name,
                f": variable {unprintable} holds a character that HTML cannot hold",
                detail="variables",
            )
        document = Document(
            self._text(self._page, safe),
            engine=manifest.engine,
            javascript=manifest.javascript,
            paper=manifest.paper,
            tagged=manifest.tagged,
            outline=manifest.outline,
        )
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
            raise template_error(
                self.template.name,
                f', {path}: class="date" prints the moment; print a variable',
                detail="header",
            )
        return text

    def _judge(self, path: str) -> None:
        try:
            findings = read_positions(self._sandbox, self.template.text(path)).findings
        except TemplateSyntaxError as error:
            raise self._fault(error, path) from None
        for found in findings:
            raise template_error(
                self.template.name,
                f", {path} line {found.line}: {found.message}",
                detail="position",
            )

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
        except TemplateError as error:
            raise self._fault(error) from None
        except _FAULTS as error:
            raise self._fault(error) from None
        text = "".join(parts)
        if left < 0 or len(text.encode()) > self._limits.html_bytes:
            raise template_error(
                self.template.name,
                f": the document has more than {self._limits.html_bytes} bytes",
                detail="size",
            )
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
        if isinstance(error, UndefinedError):
            return template_error(name, f"{at}: {error.message}", detail="undefined")
        if isinstance(error, TemplateNotFound):
            return template_error(name, f"{at}: there is no file {error.name!r}", detail="file")
        if isinstance(error, OverLimit):
            return template_error(name, f"{at}: {error.message}", detail="limit")
        if isinstance(error, Unwritable):
            return template_error(name, f"{at}: {error.message}", detail="value")
        kind = type(error).__name__
        return template_error(name, f"{at}: it cannot be computed ({kind})", detail="value")


def judge_variables(template: Template, variables: Mapping[str, Any]) -> None:
    """Refuse variables that are not what the manifest declares; one that declares none takes all.

    Raises:
        WrongVariables: naming those that are missing, unknown or of another kind.
    """
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
    """Refuse page options that a template does not allow its callers.

    Raises:
        BadPage: naming every one.
    """
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
