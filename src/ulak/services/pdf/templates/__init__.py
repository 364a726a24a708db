"""Templates: folders that become documents. Knows no browser, so that every process may use it.

A template is a folder with `manifest.toml` (see `folder`), `template.html`, and, if wanted,
`sample.json`, style sheets, more HTML to include, and assets:

    <style>{{ css("style.css") }}</style>          a style sheet, its files inlined
    <img src="{{ asset('logo.svg') }}">            a file as a data: URL
    <a href="{{ link|url }}">{{ name }}</a>         a value as a URL, its scheme checked
    {{ total|money("TRY") }} {{ day|date }}        in the language of the manifest
    <rect width="{{ width|bare }}"/>               a number as programs read it
    @page { @top-left { content: {{ title|css_text }} } }

Variables stand in text or in quoted attributes, nowhere else; values have items and no methods.
`ulak pdf check` says what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ulak.services.pdf.document import Document, Limits
from ulak.services.pdf.model import PermanentPdfError
from ulak.services.pdf.output import OutputOptions, judge_output
from ulak.services.pdf.page import NOTHING_SAID, PageOptions
from ulak.services.pdf.security.template_input import is_template_name
from ulak.services.pdf.templates.folder import (
    MANIFEST,
    Signature,
    Template,
    read_template,
    sign,
    template_error,
)
from ulak.services.pdf.templates.program import (
    Complaint,
    Program,
    check,
    judge_options,
    judge_variables,
)

__all__ = ["SHIPPED", "Complaint", "Template", "Templates", "check"]

SHIPPED: Final = Path(__file__).parent / "shipped"


@dataclass(slots=True)
class _Kept:
    signature: Signature
    template: Template
    program: Program | None = None


class Templates:
    """Templates by name, each a folder of that name with a manifest. Thread-safe.

    Which of them may be rendered is not decided here, see `security.validate_template`. A folder
    that changes is read again at the next use. Of two templates with one name that of the first
    folder counts; `limits` say how large a document may become.
    """

    def __init__(
        self, folders: Iterable[Path] = (SHIPPED,), *, limits: Limits | None = None
    ) -> None:
        self.folders = tuple(folders)
        self._limits = limits or Limits()
        self._kept: dict[str, _Kept] = {}

    def names(self) -> tuple[str, ...]:
        """Return the names of the templates that there are, in order, broken ones included."""
        paths = (path for folder in self.folders for path in folder.glob(f"*/{MANIFEST}"))
        return tuple(sorted({p.parent.name for p in paths if is_template_name(p.parent.name)}))

    def get(self, name: str) -> Template:
        """Return a template. Raises PermanentPdfError: TEMPLATE_ERROR: there is none of this name,
        or it cannot be read."""
        return self._read(name).template

    def version(self, name: str) -> str:
        """Return the digest of a template's files, which is part of the key of its jobs."""
        return self.get(name).version

    def judge(
        self, name: str, variables: Mapping[str, Any], page: PageOptions = NOTHING_SAID
    ) -> None:
        """Refuse what `render` would refuse of a request, without filling the template.

        Raises:
            WrongVariables: variables are missing, unknown or of another kind.
            BadPage: the template does not allow a page option.
            PermanentPdfError: as `get`.
        """
        template = self.get(name)
        judge_options(template, page)
        judge_variables(template, variables)

    def judge_output(self, name: str, output: OutputOptions) -> None:
        """Raise BadOutput for what a template does not let its callers have done."""
        judge_output(output, self.get(name).manifest.options)

    def render(
        self, name: str, variables: Mapping[str, Any], page: PageOptions = NOTHING_SAID
    ) -> Document:
        """Fill a template; each variable is escaped once.

        Raises:
            PermanentPdfError: TEMPLATE_ERROR; the message names the template, the line and the
                name that is missing, and no value.
            BadPage: the template does not allow a page option.
        """
        kept = self._read(name)
        if kept.program is None:
            kept.program = Program(kept.template, self._limits)
        return kept.program.fill(variables, page)

    def check(self, name: str, *, patterns: Iterable[str] = ()) -> list[Complaint]:
        """Say what is wrong with a template, or that it cannot be read; `patterns` are the
        allow-list of URLs that documents may fetch.

        Raises:
            PermanentPdfError: there is none of this name.
        """
        folder = self._folder(name)
        try:
            return check(read_template(folder), patterns=patterns)
        except PermanentPdfError as error:
            return [Complaint(name, MANIFEST, None, str(error))]

    def list(self) -> tuple[Template, ...]:
        """Return the templates that can be read, by name."""
        found: list[Template] = []
        for name in self.names():
            with suppress(PermanentPdfError):
                found.append(self.get(name))
        return tuple(found)

    def _read(self, name: str) -> _Kept:
        folder = self._folder(name)
        try:
            signature = sign(folder)
            kept = self._kept.get(name)
            if kept is None or kept.signature != signature:
                self._kept[name] = kept = _Kept(signature, read_template(folder))
        except OSError as error:
            raise template_error(
                name, f" cannot be read: {type(error).__name__}", detail="file"
            ) from None
        return kept

    def _folder(self, name: str) -> Path:
        if is_template_name(name):
            for folder in self.folders:
                if (folder / name / MANIFEST).is_file():
                    return folder / name
        there = ", ".join(self.names()) or "none"
        shown = name if is_template_name(name) else "of this name"
        raise template_error(shown, f" is not there; there are {there}", detail="template_unknown")
