"""What one request asks of a template, judged without filling it, before a job is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ulak.services.pdf.model import WrongVariables
from ulak.services.pdf.page import PageOptions, judge_page
from ulak.services.pdf.templates.folder import Template


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


def _shown(name: object) -> str:
    text = str(name)
    return text if text.isidentifier() and len(text) <= 100 else "a name"
