"""Swagger UI: the document as a page that makes requests. Nothing of it comes from elsewhere."""

from __future__ import annotations

from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse, HTMLResponse

from ulak.errors import NotFound, NotSupported

PACKAGE: Final = "fastapi_swagger"
"""Brings the files of Swagger UI; nothing of its code is imported."""
FILES: Final = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon-32x32.png": "image/png",
}

START_FILE: Final = "start.js"
# A file and not a part of the page, so that no script of a page is ever run. Without a validator:
# Swagger UI would show the document to one of its makers. Credentials are kept nowhere.
START: Final = """window.addEventListener("load", () => {
  window.ui = SwaggerUIBundle({
    url: "openapi.json",
    dom_id: "#swagger-ui",
    deepLinking: true,
    displayRequestDuration: true,
    persistAuthorization: false,
    validatorUrl: null,
  });
});
"""

# It styles its own elements, and has pictures in its stylesheet.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
_KEPT: Final = {"Cache-Control": "max-age=3600", "X-Content-Type-Options": "nosniff"}


def add_pages(routes: APIRouter) -> None:
    """Add the routes of Swagger UI to a router that has /openapi.json. Raises `NotSupported`: the
    package that brings its files is not installed, or lacks one."""
    folder = _find_folder()

    @routes.get("/docs", response_class=HTMLResponse)
    async def docs(request: Request) -> HTMLResponse:
        """Read it as a page on which every operation can be tried."""
        title = escape(str(request.app.openapi()["info"]["title"]))
        return HTMLResponse(_page(title), headers={"Content-Security-Policy": POLICY})

    @routes.get("/docs/{name}", include_in_schema=False, response_model=None)
    async def file(name: str) -> Response:
        if name == START_FILE:
            return Response(START, media_type="text/javascript", headers=_KEPT)
        if name not in FILES:
            raise NotFound(f"Swagger UI has no file {name[:64]!r}")
        return FileResponse(folder / name, media_type=FILES[name], headers=_KEPT)


def _find_folder() -> Path:
    spec = find_spec(PACKAGE)
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    for folder in (Path(place) / "resources" for place in places):
        if all((folder / name).is_file() for name in FILES):
            return folder
    raise NotSupported(
        "swagger=True needs the files of Swagger UI, which are not installed; "
        "pip install 'fastapi-swagger>=0.4.64'"
    )


def _page(title: str) -> str:
    # By addresses that are relative to /docs, wherever the application is mounted.
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}: the API</title>
<link rel="icon" href="docs/favicon-32x32.png">
<link rel="stylesheet" href="docs/swagger-ui.css">
<div id="swagger-ui"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/{START_FILE}"></script>
</html>
"""
