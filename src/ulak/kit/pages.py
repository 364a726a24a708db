"""Plain pages of services: HTML without script, in which every value is escaped.

    return respond_page("Letters", table(("letter", "state"), rows))

Needs the web extra.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from html import escape
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import parse_qs, quote

from fastapi import Request, Response
from fastapi.responses import RedirectResponse

from ulak.errors import ServiceError, Unauthenticated
from ulak.web.pages import page, respond
from ulak.web.slash_route import SlashRoute

__all__ = [
    "Html", "PageRoute", "form", "link", "local_path", "read_form", "respond_document",
    "respond_page", "see_other", "table", "to_html",
]  # fmt: skip

STYLE: Final = """
body { max-width: 76rem }
main { overflow-x: auto } th { white-space: nowrap }
td { overflow-wrap: break-word; max-width: 34rem }
nav a { display: inline-block; padding: .6rem .8rem; margin-right: .4rem; background: var(--soft) }
form { display: inline-flex; gap: .8rem; align-items: end; flex-wrap: wrap; margin: .3rem .8rem 0 0}
label { display: flex; flex-direction: column; font-size: .9rem; color: var(--faint) }
input, button { font: inherit; padding: .5rem .8rem; min-height: 44px; min-width: 44px;
                box-sizing: border-box }
.said { border-left: .3rem solid #c0392b; padding: .5rem 1rem; background: var(--soft) }
"""
# Nothing of it is to be seen by whoever comes to the browser later.
HEADERS: Final = {"Cache-Control": "no-store"}


NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class Html(str):
    """A text that is HTML already: it is written as it is, where every other value is escaped."""

    __slots__ = ()


def to_html(value: object) -> Html:
    """Return a value as HTML: a text, of None nothing, of several parts one after the other."""
    if isinstance(value, Html):
        return value
    if isinstance(value, list | tuple):
        return Html("".join(map(to_html, value)))
    return Html("" if value is None else escape(str(value)))


def local_path(request: Request, path: str) -> str:
    """Return a path of the application as a browser has to ask for it: below the root path."""
    return f"{request.scope.get('root_path', '')}{path}"


def link(where: str, text: object) -> Html:
    """Return a link; the address is that of a path, with the root path of the application."""
    return Html(f'<a href="{escape(where)}">{to_html(text)}</a>')


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> Html:
    """Return a table of values; columns may be named as programs name them, created_at."""
    heads = "".join(f"<th>{to_html(each.replace('_', ' '))}</th>" for each in head)
    lines = ("".join(f"<td>{to_html(cell)}</td>" for cell in row) for row in rows)
    return Html(f"<table><tr>{heads}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>")


def form(
    where: str, button: str, fields: Mapping[str, object] = NOTHING, *,
    hidden: Mapping[str, str] = NOTHING, method: str = "post", enabled: bool = True,
) -> Html:  # fmt: skip
    """Return a form with a field for each name, filled with its value, and one button."""
    labels = "".join(
        f'<label>{to_html(name.title())}<input name="{escape(name)}" value="{to_html(value)}">'
        "</label>"
        for name, value in fields.items()
    )
    for name, value in hidden.items():
        labels += f'<input type="hidden" name="{escape(name)}" value="{escape(value)}">'
    off = "" if enabled else " disabled"
    return Html(
        f'<form method="{method}" action="{escape(where)}">{labels}'
        f"<button{off}>{to_html(button)}</button></form>"
    )


def respond_page(title: str, *body: object, said: str = "", status: int = 200) -> Response:
    """Return a page; `said` is what went wrong, above everything else."""
    wrong = f'<p class="said" role="alert">{to_html(said)}</p>' if said else ""
    inside = f"<main>\n<h1>{to_html(title)}</h1>\n{wrong}{to_html(body)}\n</main>"
    return respond(page(title, inside, style=STYLE), status, HEADERS)


def respond_document(html: str) -> Response:
    """Return a whole document of HTML, which nobody else may keep."""
    return respond(html, headers=HEADERS)


def see_other(where: str) -> Response:
    """Return what leads a browser on, after a form, to a path of this server."""
    return RedirectResponse(where, 303)


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form, each its first value; a route takes it by `Depends`."""
    text = (await request.body()).decode("utf-8", "replace")
    return {name: values[0] for name, values in parse_qs(text).items()}


class PageRoute(SlashRoute):
    """A route of a page. A caller who has not logged in gets a page that says where to; a form that
    is refused by a `ServiceError` gets one that says why, and leads back."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what serves a request once the route has matched."""
        serve = super().get_route_handler()

        async def serve_or_explain(request: Request) -> Response:
            try:
                return await serve(request)
            except Unauthenticated as error:
                home = link(local_path(request, "/"), "How to log in")
                return respond_page("Log in", home, said=str(error), status=401)
            except ServiceError as error:
                if request.method != "POST":
                    raise
                # On this server, whatever the header says.
                came_from = request.headers.get("referer", "").partition("://")[2].partition("/")[2]
                back = link("/" + quote(came_from.lstrip("/"), safe="/?&=%"), "Back")
                return respond_page("Not done", back, said=str(error), status=error.status)

        return serve_or_explain
