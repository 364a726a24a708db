"""What of PDF rendering is in force on this machine, and what is missing or weaker here."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from ulak.service import Condition
from ulak.services.pdf.model import PdfErrorCode
from ulak.services.pdf.settings import (
    SECRETS,
    PdfRenderConfig,
    load,
    values_of,
    variables_set,
)
from ulak.settings import Settings


def condition(platform: Settings, environ: Mapping[str, str] | None = None) -> Condition:
    """Tell the settings and where each is from, and every weakness of what renders here.

    Of an engine that no template needs nothing is told. Starts nothing; it looks at what there is
    to start it with.

    Raises:
        BadInput: a setting cannot be used.
    """
    # Here and not above: whoever serves the API has no browser and needs none of this.
    from ulak.services.pdf import ground
    from ulak.services.pdf.weasy import ground as weasy_ground

    config = load(environ, platform)
    said = variables_set(environ)
    settings = {
        name: (_shown(name, value), name if name in said else "default")
        for name, value in values_of(config).items()
    }
    needed = _engines_of(config)
    found = ground.weaknesses(config.chromium) if "chromium" in needed else []
    found += weasy_ground.weaknesses() if "weasyprint" in needed else []
    # What two engines lack is told once.
    notes = dict.fromkeys(f"{weak.message}; {weak.cure}" for weak in found)
    fails = f"jobs that need it fail with {PdfErrorCode.UNSUPPORTED_PLATFORM}"
    missing = dict.fromkeys(f"{w.message}: {fails}; {w.cure}" for w in found if w.is_fatal)
    return Condition(settings, list(notes), list(missing))


def _engines_of(config: PdfRenderConfig) -> set[str]:
    """Return the engines of the templates that may be rendered; the browser when there is none."""
    from ulak.services.pdf.configuration import templates_of

    allowed = config.security.template_allowlist
    known = templates_of(config).list()
    # Where nobody has said what may be rendered, `ulak pdf render` takes all that there is.
    return {
        template.manifest.engine for template in known if template.name in allowed or not allowed
    } or {"chromium"}


def _shown(name: str, value: Any) -> str:
    if name in SECRETS:
        return "set" if value else "not set"
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g} s"
    if isinstance(value, frozenset | tuple):
        return ", ".join(sorted(value)) or "none"
    return "not set" if value in (None, "") else str(value)
