"""Pages for people: one look, no script, nothing from elsewhere, light and dark."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Final

from fastapi import Request
from fastapi.responses import HTMLResponse

from ulak.web.schemas import PROBLEM_JSON

HTML: Final = "text/html"
_JSON: Final = ("application/json", PROBLEM_JSON)
_WILDCARDS: Final = ("*/*", "text/*", "application/*")

POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"

STYLE: Final = """
:root { color-scheme: light dark; --line: #d8d8d2; --soft: #f5f5f0; --faint: #666; --link: #1d4f9c }
@media (prefers-color-scheme: dark) {
  :root { --line: #3a3a3a; --soft: #1e1e1e; --faint: #9a9a9a; --link: #8ab4f8 } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 58rem; margin: 2rem auto; padding: 0 1rem }
a { color: var(--link) }
h1 { margin-bottom: .2rem } h2 { margin: 2.5rem 0 .5rem }
code, pre { font: .875rem/1.45 ui-monospace, monospace }
pre { background: var(--soft); padding: .75rem 1rem; overflow-x: auto; border-radius: .4rem }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 }
td, th { text-align: left; padding: .25rem 1rem .25rem 0; vertical-align: top;
         border-bottom: 1px solid var(--line) }
th { font-weight: 600; color: var(--faint) }
"""
NARROW: Final = """
body { max-width: 40rem; margin-top: 12vh }
h1 small { font-weight: 400; font-size: 1rem; color: var(--faint) }
h2 { font-size: 1.1rem; margin-top: 2rem }
td:last-child { color: var(--faint); padding-right: 0 } td:first-child { width: 7rem }
pre { white-space: pre-wrap; overflow-wrap: anywhere }
.faint { color: var(--faint) }
"""
"""The look of a page that is read in a minute."""


def page(title: str, body: str, *, style: str = NARROW, head: str = "") -> str:
    """Return a whole page.

    Args:
        title: What the browser's tab shows; plain text.
        body: The HTML between the tags of the body.
        style: CSS that is added to the common one.
        head: HTML that is added to the head.
    """
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>{head}
<style>{STYLE}{style}</style>
{body}
</html>
"""


def respond(html: str, status: int = 200, headers: Mapping[str, str] | None = None) -> HTMLResponse:
    """Return a page as a response that lets the browser load and run nothing else."""
    return HTMLResponse(html, status, {"Content-Security-Policy": POLICY, **(headers or {})})


def prose(text: str) -> str:
    """Return a sentence as HTML, its `code` as code."""
    parts = escape(text, quote=False).split("`")
    return "".join(f"<code>{p}</code>" if n % 2 else p for n, p in enumerate(parts))


def address_in(request: Request) -> str:
    """Return where the caller has reached the application, without a slash at the end."""
    # Not `base_url`: below a mount that is the address of the outer application.
    root: str = request.scope.get("root_path", "")
    return f"{request.url.scheme}://{request.url.netloc}{root.rstrip('/')}"


def prefers_html(request: Request) -> bool:
    """Tell whether the caller would rather read a page than JSON.

    A browser names `text/html` first; a program names JSON, or takes anything.
    """
    weights: dict[str, float] = {}
    for part in ",".join(request.headers.getlist("accept")).split(","):
        kind, *parameters = (word.strip().lower() for word in part.split(";"))
        weights[kind] = _weight(parameters)
    html = weights.get(HTML, 0.0)
    json = max(weights.get(kind, 0.0) for kind in _JSON)
    # A wildcard stands for both, and less exactly than the name that is there.
    return html > json and html >= max(weights.get(kind, 0.0) for kind in _WILDCARDS)


def _weight(parameters: list[str]) -> float:
    """Return the `q` of a media range: 1 where it is not said, 0 where it is no number."""
    q = next((p[2:] for p in parameters if p.startswith("q=")), "1")
    try:
        return float(q)
    except ValueError:
        return 0.0
