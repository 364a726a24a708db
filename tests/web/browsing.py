"""A real browser for tests of pages: an application on an address, and Chromium in front of it."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from playwright.sync_api import Page, sync_playwright

from ulak.services.pdf.ground import find_browser

PATIENCE_MS = 120_000
"""A machine may be busy."""


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """Serve an application on a port of this machine; return its address."""
    bound = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE_MS / 1000)
        bound.close()
    assert not thread.is_alive()


@dataclass
class Browsing:
    """One page, what it has asked for, and what its console complains of."""

    page: Page
    asked: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


@contextmanager
def browsing() -> Iterator[Browsing]:
    """Open an empty page; the browser finds no host but this machine."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=find_browser(),
            args=["--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"],
        )
        page = browser.new_page(viewport={"width": 1280, "height": 1600})
        page.set_default_timeout(PATIENCE_MS)
        made = Browsing(page)
        page.on("request", lambda request: made.asked.append(request.url))
        page.on("pageerror", lambda error: made.complaints.append(str(error)))
        page.on(
            "console",
            lambda line: made.complaints.append(line.text) if line.type == "error" else None,
        )
        try:
            yield made
        finally:
            browser.close()


@dataclass
class SwaggerUI:
    """The page of Swagger UI, as people use it."""

    page: Page

    def authorise(self, **values: str) -> None:
        """Write a credential for each scheme: `bearer=`, or `token=` with its whole header."""
        boxes = {"bearer": "#auth-bearer-value", "token": "#api_key_value"}
        self.page.click(".auth-wrapper button.authorize")
        for scheme, value in values.items():
            form = self.page.locator(f".auth-container:has({boxes[scheme]})")
            form.locator(boxes[scheme]).fill(value)
            form.locator("button.authorize").click()
        self.page.locator(".btn-done").first.click()

    def execute(self, tag: str, operation: str, **parameters: str) -> tuple[str, str]:
        """Press "Try it out" and "Execute" of an operation; return the status and the body."""
        block = self.page.locator(f"#operations-{tag}-{operation}")
        if not block.locator(".opblock-body").count():
            block.locator(".opblock-summary-control").click()
            block.locator(".try-out__btn").first.wait_for()
        # An operation that was closed remembers what was pressed.
        for button in (".btn-clear", ".try-out__btn:not(.cancel, .reset)"):
            if block.locator(button).count():
                block.locator(button).click()
        for name, value in parameters.items():
            box = (
                "textarea.body-param__text"
                if name == "body"
                else f'[data-param-name="{name}"] input'
            )
            block.locator(box).fill(value)
        block.locator("button.execute").click()
        answer = block.locator(".live-responses-table tr.response")
        answer.wait_for()
        status = answer.locator(".response-col_status").inner_text()
        return status.split()[0], answer.locator(".response-col_description").inner_text()

    def close(self, tag: str, operation: str) -> None:
        """Close an operation: each that is open is drawn anew whenever a letter is typed."""
        self.page.locator(f"#operations-{tag}-{operation} .opblock-summary-control").click()
