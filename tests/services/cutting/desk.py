"""Cutting in one process, asked over HTTP at both of its addresses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
from fastapi import FastAPI

import ulak
import ulak.web
from tests.services.cutting.orders import PHONE
from tests.web.people import Known, as_
from ulak.service import attach, get_service
from ulak.services.cutting.jobs import Cutting
from ulak.services.cutting.routes import BARE, PREFIX
from ulak.services.cutting.saw import Manner, Saw
from ulak.settings import Settings

QUICK = {"stableSeconds": 0.02, "pollSeconds": 0.01, "optSeconds": 0}


class Apps(dict[str, FastAPI]):
    """The applications by their prefixes: each is made when it is asked, which takes a second."""

    def __init__(self, engine: ulak.Engine) -> None:
        super().__init__()
        self.engine = engine

    def __missing__(self, prefix: str) -> FastAPI:
        if not prefix:
            return self.setdefault(prefix, BARE.make_app(self.engine, identity=Known()))
        services = [get_service("cutting")]
        return self.setdefault(
            prefix, ulak.web.app(self.engine, identity=Known(), services=services)
        )


class Desk:
    """An engine with cutting, what serves it, and somebody who asks."""

    def __init__(self, url: str, folder: Path, **rules: Any) -> None:
        self.engine = ulak.connect(url)
        self.folder = folder
        service = get_service("cutting")
        attach(service, self.engine, Settings(data=folder))
        self.cutting: Cutting = self.engine.kernel.attached["cutting"][1]
        self.change(**QUICK, **rules)
        assert service.start is not None
        service.start(self.engine, self.cutting, None)
        self.apps = Apps(self.engine)

    def change(self, **rules: Any) -> None:
        """Edit the file of rules, as people do."""
        path = self.folder / "cutting" / "rules.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **rules}))

    def send(
        self, method: str, path: str, document: Any = None, *, who: str = "admin",
        prefix: str = PREFIX, **options: Any,
    ) -> httpx.Response:  # fmt: skip
        """Ask at one of the addresses, `prefix` says which; `who` is nobody with ''."""
        headers = {**(as_(who) if who else {}), **options.pop("headers", {})}

        async def once() -> httpx.Response:
            transport = httpx.ASGITransport(self.apps[prefix], raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://ulak") as client:
                return await client.request(
                    method, f"{prefix}{path}", json=document, headers=headers, **options
                )

        return asyncio.run(once())

    def ask(
        self, method: str, path: str, document: Any = None, *, status: int = 200, **options: Any
    ) -> Any:
        """Ask, and return the document of the answer."""
        told = self.send(method, path, document, **options)
        assert told.status_code == status, told.text
        return told.json()

    def refuse(self, method: str, path: str, document: Any = None, **options: Any) -> Any:
        """Ask for what is refused; return the status and the code of the envelope."""
        told = self.send(method, path, document, **options)
        error = told.json()["error"]
        assert set(error) == {"code", "message"}
        assert error["message"]
        return told.status_code, error["code"]

    def know(self, phone: str = PHONE) -> None:
        """Have a customer with this number."""
        self.cutting.customers.add("Ada", phone)

    def work(self) -> None:
        """Run what can be run, with a saw that cuts whatever comes."""

        async def run() -> None:
            await self.engine.worker().run(until_idle=True)

        # On a thread: whoever drives a browser has a loop of their own on theirs.
        with self.saw(), ThreadPoolExecutor(1) as aside:
            aside.submit(asyncio.run, run()).result()

    @contextmanager
    def saw(self, **manner: Any) -> Iterator[Saw]:
        """Have a saw for the length of a block."""
        folder, stop = self.cutting.config.paths().drop_folder, Event()
        saw = Saw(folder, Manner(**manner))
        thread = Thread(target=saw.run, args=(stop,), kwargs={"poll_s": 0.01})
        thread.start()
        try:
            yield saw
        finally:
            stop.set()
            thread.join()


OpenDesk = Callable[..., Desk]
