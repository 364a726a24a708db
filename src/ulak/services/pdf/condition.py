"""What of PDF rendering is in force on this machine, and what is missing or weaker here."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from ulak.service import Condition
from ulak.services.pdf.settings import SECRETS, load, values_of, variables_set
from ulak.settings import Settings


def condition(platform: Settings, environ: Mapping[str, str] | None = None) -> Condition:
    """Tell the settings and where each is from, and every weakness of the browser here.

    Starts no browser; it looks at what there is to start one with.

    Raises:
        BadInput: a setting cannot be used.
    """
    # Here and not above: whoever serves the API has no browser and needs none of this.
    from ulak.services.pdf.browser.ground import weaknesses

    config = load(environ, platform)
    said = variables_set(environ)
    settings = {
        name: (_shown(name, value), name if name in said else "default")
        for name, value in values_of(config).items()
    }
    found = weaknesses(config.chromium)
    return Condition(settings, [f"{weak.message}; {weak.cure}" for weak in found])


def _shown(name: str, value: Any) -> str:
    if name in SECRETS:
        return "set" if value else "not set"
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g} s"
    if isinstance(value, frozenset | tuple):
        return ", ".join(sorted(value)) or "none"
    return "not set" if value in (None, "") else str(value)
