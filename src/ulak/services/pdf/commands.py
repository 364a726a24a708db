"""`ulak pdf`: the templates that there are, what is wrong with them, and one document at once."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ulak import settings as platform
from ulak.errors import BadInput
from ulak.kit import read_json
from ulak.kit.commands import JsonOption, note, print_json, print_table, some
from ulak.kit.files import write_atomically
from ulak.services.pdf import settings
from ulak.services.pdf.configuration import open_renderer, templates_of
from ulak.services.pdf.document import (
    BREAKDOWN,
    MISSING_GLYPHS,
    STORE,
    TEMPLATE,
    Document,
    Rendered,
    Steps,
    in_milliseconds,
)
from ulak.services.pdf.model import PermanentPdfError
from ulak.services.pdf.security.template_input import must_be_listed
from ulak.services.pdf.settings import PdfRenderConfig
from ulak.services.pdf.templates import Templates

pdf = typer.Typer(no_args_is_help=True, help="Templates of PDF documents.")

TemplateArgument = Annotated[
    str, typer.Argument(metavar="TEMPLATE", help="As `ulak pdf templates` names them.")
]


@pdf.command("templates")
def templates(as_json: JsonOption = False) -> None:
    """List the templates that there are: those of PDF_TEMPLATE_DIR, and those that are shipped."""
    config = _config()
    known = templates_of(config)
    allowed = _allowed(config, known)
    found: list[dict[str, Any]] = []
    for name in known.names():
        entry: dict[str, Any] = {"name": name, "allowed": name in allowed}
        try:
            template = known.get(name)
        except PermanentPdfError as error:
            entry |= {"error": str(error)}
        else:
            manifest = template.manifest
            width, height = manifest.paper
            entry |= {
                "title": manifest.title,
                "version": manifest.version,
                "engine": manifest.engine,
                "javascript": manifest.javascript,
                "paper_mm": [round(width * 25.4), round(height * 25.4)],
                "variables": {
                    variable.name: variable.kind + ("?" if variable.is_optional else "")
                    for variable in (manifest.variables or {}).values()
                },
                "options": list(manifest.options),
                "digest": template.version,
            }
        found.append(entry)
    if as_json:
        print_json(found)
        return
    print_table(
        ("name", "title", "version", "paper", "allowed", "variables"),
        [_row(entry) for entry in found],
        keep=("name",),
    )


@pdf.command("check")
def check(
    template: Annotated[
        str | None, typer.Argument(metavar="TEMPLATE", help="By default all of them.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Look for what would fail or be refused; exit 1 when something would.

    Names that nobody declares, variables where escaping does not protect them, URLs that
    PDF_URL_ALLOWLIST refuses, files that are not there, a sample that does not render.
    """
    config = _config()
    known = templates_of(config)
    names = known.names() if template is None else (template,)
    found = [
        complaint
        for name in names
        for complaint in known.check(name, patterns=config.security.url_allowlist)
    ]
    if as_json:
        print_json([asdict(complaint) for complaint in found])
    elif found:
        for complaint in found:
            print(complaint)
    else:
        print(f"{some(len(names), 'template')}: nothing to complain about")
    if found:
        raise typer.Exit(1)


@pdf.command("render")
def render(
    template: TemplateArgument,
    variables: Annotated[
        Path | None, typer.Argument(metavar="VARS", help="A JSON file; - reads standard input.")
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="PDF", help="Where the document is written.")
    ] = Path("out.pdf"),
    sample: Annotated[
        bool, typer.Option("--sample", help="Fill it with the template's own sample.")
    ] = False,
    html: Annotated[
        bool, typer.Option("--html", help="Write the HTML that would be printed, not a PDF.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Render one document at once, in this process.

    The template must be in PDF_TEMPLATE_ALLOWLIST, as for the service. Where that is not set, in
    dev, every template that is installed may be rendered; in production none may.
    """
    config = _config()
    known = templates_of(config)
    known.get(template)  # an unknown name is told before one that is not allowed
    must_be_listed(template, _allowed(config, known))
    said = _variables(known, template, variables, sample)
    with Steps() as steps:
        steps.begin(TEMPLATE)
        document = known.render(template, said)
        steps.end()
        if html:
            _write(output, document.html.encode())
            return
        rendered = asyncio.run(_rendered(document, config))
        steps.begin(STORE)
        _write(output, rendered.pdf)
    timings = in_milliseconds({**steps.took, **rendered.timings})
    facts = {
        "output": str(output),
        "pages": rendered.pages,
        "bytes": len(rendered.pdf),
        "engine": rendered.engine,
        "timings": timings,
        "blocked": dict(rendered.blocked),
        "script_errors": list(rendered.script_errors),
        "warnings": [warning.as_document() for warning in rendered.warnings],
    }
    if as_json:
        print_json(facts)
        return
    for reason, count in rendered.blocked.items():
        note(f"{some(count, 'request')} of the page refused: {reason}")
    for error in rendered.script_errors:
        note(f"a script failed: {error}")
    for warning in rendered.warnings:
        if warning.code == MISSING_GLYPHS:
            lacking = ", ".join(warning.characters) or "some characters"
            note(f"no font has {lacking}: printed as boxes ({warning.count} in all)")
        else:
            note(f"warning: {warning.code}")
    print(f"{output}: {some(rendered.pages, 'page')}, {len(rendered.pdf)} bytes, {rendered.engine}")
    print(", ".join(f"{name} {timings[name]:.3f} s" for name in BREAKDOWN if name in timings))


def _config() -> PdfRenderConfig:
    return settings.load(platform=platform.load())


def _allowed(config: PdfRenderConfig, known: Templates) -> frozenset[str]:
    """Return what may be rendered here: in dev, all that there is if nobody has said what may."""
    named = config.security.template_allowlist
    return frozenset(known.names()) if not named and config.env == "dev" else named


def _row(entry: dict[str, Any]) -> tuple[str, ...]:
    allowed = "yes" if entry["allowed"] else "no"
    if "error" in entry:
        return (entry["name"], entry["error"], "-", "-", allowed, "-")
    width, height = entry["paper_mm"]
    names = ", ".join(
        name + ("?" if kind.endswith("?") else "") for name, kind in entry["variables"].items()
    )
    paper = f"{width} x {height} mm"
    return (entry["name"], entry["title"], entry["version"], paper, allowed, names or "any")


def _variables(known: Templates, template: str, path: Path | None, sample: bool) -> dict[str, Any]:
    """Read the variables of a document; refuse what is no JSON object, and say where."""
    if sample == (path is not None):
        raise typer.BadParameter(
            "name a JSON file with the variables, or say --sample", param_hint="VARS"
        )
    if path is None:
        return known.get(template).sample()
    name = "standard input" if str(path) == "-" else str(path)
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
        said = read_json(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise BadInput(f"{name} is no JSON: {error.msg}, {where}") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{name} is no UTF-8 from byte {error.start} on") from None
    except ValueError as error:
        raise BadInput(f"{name} cannot be used: {error}") from None
    except RecursionError:
        raise BadInput(f"{name} is nested too deep") from None
    if not isinstance(said, dict):
        raise BadInput(f'{name} holds no object; write {{"name": "value"}}')
    return said


async def _rendered(document: Document, config: PdfRenderConfig) -> Rendered:
    async with open_renderer(replace(config, concurrency=1)) as renderer:
        return await renderer.render(document, config.times)


def _write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all: a half-written PDF looks like one."""
    if not path.parent.is_dir():
        raise BadInput(f"there is no folder {path.parent} to write {path.name} into; make it first")
    write_atomically(path, content)
