"""PDF rendering behind its routes, asked as a client would ask it; what renders is a hand.

Everything is real but the browser and the template engine: the application, the store, the
artifacts on disk. A hand takes a job, stores its PDF and ends it, as a worker would.
"""

import asyncio
import hashlib
import html
import json as codec
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from fastapi import Request

import ulak.web
from tests.conformance.stores import make_schema
from tests.web.discretion import must_be_discreet
from tests.web.people import Known, as_, person
from ulak import JobFilter
from ulak.artifacts.local import LocalStorage
from ulak.artifacts.signing import DownloadLinks
from ulak.auth.principal import ADMIN, SERVICE, VIEWER, Principal
from ulak.clock import Clock, ManualClock, micros
from ulak.engine.engine import Engine
from ulak.errors import StoreError
from ulak.idempotency import Guard
from ulak.idempotency.settings import IdempotencySettings
from ulak.service import Service, attach
from ulak.services.pdf import PDF_READ, PDF_RENDER, callbacks
from ulak.services.pdf.artifacts import PdfArtifactStore
from ulak.services.pdf.document import Document
from ulak.services.pdf.failsafe import HealthCheck, Pacing
from ulak.services.pdf.flow import make_flow
from ulak.services.pdf.job_routes import MOST_WAITING, Waiting
from ulak.services.pdf.jobs import PdfJobStore
from ulak.services.pdf.model import PdfErrorCode, PdfJob, pdf_error
from ulak.services.pdf.output import Sealing
from ulak.services.pdf.page import NOTHING_SAID, PageOptions, judge_page
from ulak.services.pdf.responses import Reader
from ulak.services.pdf.routes import make_routes
from ulak.services.pdf.settings import PdfRenderConfig, PdfSecurityConfig
from ulak.services.pdf.totals import Totals
from ulak.settings import Settings
from ulak.web.server import Server, bind
from ulak.wiring import store_of

R = TypeVar("R")

TEMPLATE = "letter"
BROKEN = "broken"
A_PDF = b"%PDF-1.7\n" + bytes(range(256)) * 8 + b"\n%%EOF\n"

PEOPLE = (
    person("key:shop", SERVICE),
    person("key:other", SERVICE),
    person("ada", ADMIN),
    person("vera", VIEWER),
    person("key:acme", SERVICE, "acme"),
    person("key:acme-2", SERVICE, "acme"),
    person("anna", ADMIN, "acme"),
    person("key:globex", SERVICE, "globex"),
    Principal("key:reads", tenant=None, roles=frozenset({SERVICE}), scopes=frozenset({PDF_READ})),
)


def credential_of(name: str) -> str:
    """What somebody shows; not the name, which answers may tell."""
    return f"credential-of-{name}"


def everybody() -> Known:
    known = Known()
    known.people = {credential_of(principal.name): principal for principal in PEOPLE}
    return known


class Pages:
    """Stands in for the templates: one that works, and one that is allowed and cannot be filled."""

    def __init__(self) -> None:
        self.filled = 0

    def judge(
        self, name: str, variables: Mapping[str, Any], page: PageOptions = NOTHING_SAID
    ) -> None:
        """Let every variable pass; of page options only turning the paper."""
        judge_page(page, ("landscape",), files={}, javascript=False)

    def render(
        self, name: str, variables: Mapping[str, Any], page: PageOptions = NOTHING_SAID
    ) -> Document:
        self.filled += 1
        if name == BROKEN:
            raise pdf_error("it cannot be filled", code=PdfErrorCode.TEMPLATE_ERROR)
        return Document(f"<p>Dear {html.escape(str(variables.get('name', 'you')))}</p>")

    def version(self, name: str) -> str:
        if name == "absent":
            raise pdf_error("there is none", code=PdfErrorCode.TEMPLATE_ERROR)
        return hashlib.sha256(name.encode()).hexdigest()


CONFIG = PdfRenderConfig(
    security=PdfSecurityConfig(template_allowlist=frozenset({TEMPLATE, BROKEN, "absent"})),
    retry_base=timedelta(),
    retry_max=timedelta(),
)


def make_tables(url: str) -> None:
    """What every database of these tests begins with."""
    make_schema(url)
    engine = Engine(store_of(url), flows=[make_flow(CONFIG)])
    with engine:
        Totals(engine).read()


class Outage:
    """Makes a store unreachable for a while, at its seam: whatever is asked of it raises."""

    def __init__(self, engine: Engine) -> None:
        self._store = engine.store
        self._verbs = (
            "add", "workers", "find_job", "find_key", "reading", "begin", "claim_record",
            "find_records",
        )  # fmt: skip

    def __enter__(self) -> None:
        for verb in self._verbs:
            if hasattr(self._store, verb):
                setattr(self._store, verb, self._refuse)

    def __exit__(self, *_: object) -> None:
        for verb in self._verbs:
            if verb in vars(self._store):
                delattr(self._store, verb)

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise StoreError("the database at 10.0.0.7 does not answer")


class Queue(Waiting):
    """Those who wait for the end of a job, and a sign that one more does."""

    def __init__(self, engine: Engine, *, at_most: int) -> None:
        super().__init__(engine, at_most=at_most)
        self.stands = threading.Event()

    async def until_ended(self, request: Request, job_id: str, seconds: float) -> None:
        self.stands.set()
        await super().until_ended(request, job_id, seconds)


class Site:
    """One process: an engine, the jobs, and the application that serves them."""

    def __init__(
        self, url: str, folder: Path, *, config: PdfRenderConfig = CONFIG,
        clock: Clock | None = None, reader: Reader | None = None,
        enqueue: Callable[[str], object] | None = None,
        submit_timeout: timedelta = timedelta(seconds=30), most_waiting: int = MOST_WAITING,
        sealing: Callable[[], Sealing] | None = None,
    ) -> None:  # fmt: skip
        self.config = config
        self.clock: Any = ManualClock() if clock is None else clock
        self.engine = Engine(store_of(url, clock=self.clock), submit_timeout=submit_timeout)
        self.engine.add(make_flow(config, on_end=callbacks.attach(self.engine, config)))
        self.artifacts = PdfArtifactStore(
            LocalStorage(folder / "artifacts"), self.clock, wait=lambda _: None
        )
        self.jobs = PdfJobStore(self.engine, self.artifacts, config, enqueue=enqueue)
        self.pages = Pages()
        self.monotonic = 0.0
        self.health = HealthCheck(
            self.engine, heartbeat=config.heartbeat_limit, monotonic=lambda: self.monotonic
        )
        self.pacing = Pacing(self.engine, config, monotonic=lambda: self.monotonic)
        self.waiting = Queue(self.engine, at_most=most_waiting)
        self.links = DownloadLinks(b"k" * 32, self.clock)
        self._reader = reader
        self._sealing = sealing
        service = self._service()
        attach(service, self.engine, Settings())
        self.app = ulak.web.app(
            self.engine, identity=everybody(), services=[service],
            guard=Guard(self.engine.store),
        )  # fmt: skip

        # One loop for every request: to make one takes longer than most answers.
        self._runner = asyncio.Runner()
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://ulak")

    def _service(self) -> Service:
        return Service(
            "pdf", attach=lambda *_: None, scopes=(PDF_READ, PDF_RENDER),
            routes=lambda engine, _: make_routes(
                self.jobs, self.pages, guard=Guard(engine.store), kept=IdempotencySettings(),
                links=self.links, health=self.health, reader=self._reader,
                waiting=self.waiting, pacing=self.pacing, sealing=self._sealing,
            ),
        )  # fmt: skip

    # --- asking -----------------------------------------------------------------

    def together(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run something on the loop of the requests, for what is asked while others wait."""
        return self._runner.run(coroutine)

    async def asked(
        self, method: str, path: str, *, who: str = "key:shop", **options: Any
    ) -> httpx.Response:
        """Send one request from that loop."""
        return await self._client.request(
            method, path, headers=as_(credential_of(who)), **options
        )  # fmt: skip

    def ask(
        self, method: str, path: str, *, who: str | None = "key:shop", json: Any = None,
        content: bytes | None = None, headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:  # fmt: skip
        """Send one request, without a network between; no answer tells a secret."""
        sent = {**(as_(credential_of(who)) if who else {}), **(headers or {})}
        if json is not None:
            content = codec.dumps(json).encode()
        answer = self._runner.run(self._client.request(method, path, content=content, headers=sent))
        if "/pdf/links/" not in path and not path.endswith("/link"):
            must_be_discreet(
                method, path, sent=(sent, json), status=answer.status_code,
                answer=(answer.headers.multi_items(), answer.content),
            )  # fmt: skip
        return answer

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.ask("GET", path, **options)

    def create(
        self, name: Any = "Ada", *, template: Any = TEMPLATE, who: str | None = "key:shop",
        headers: Mapping[str, str] | None = None, **more: Any,
    ) -> httpx.Response:  # fmt: skip
        """Ask for a letter to somebody."""
        body = {"template_name": template, "variables": {"name": name}, **more}
        return self.ask("POST", "/pdf/jobs", who=who, json=body, headers=headers)

    def new(self, name: Any = "Ada", **options: Any) -> str:
        """Ask for a letter to somebody, and answer its job."""
        answer = self.create(name, **options)
        assert answer.status_code == 202, answer.text
        job_id: str = answer.json()["job_id"]
        return job_id

    def status(self, job_id: str, **options: Any) -> Any:
        return self.get(f"/pdf/jobs/{job_id}", **options).json()

    def download(self, job_id: str, **options: Any) -> httpx.Response:
        return self.get(f"/pdf/jobs/{job_id}/download", **options)

    def follow(self) -> None:
        """Count what has happened, as the follower of a worker does."""
        Totals(self.engine).count_all(self.engine.jobs(JobFilter(flow="pdf"), limit=1000))

    def metrics(self) -> str:
        with suppress(StoreError):  # a worker that does not reach the store counts later
            self.follow()
        answer = self.get("/metrics", who="ada")
        assert answer.status_code == 200
        return answer.text

    def value(self, metric: str, **labels: str) -> float:
        """What a scrape shows of one metric."""
        return value_in(self.metrics(), metric, **labels)

    # --- working ----------------------------------------------------------------

    def heartbeat(self, *, lanes: tuple[str, ...] | None = None, name: str = "worker-1") -> None:
        """Have a worker be heard of now; the next request sees it."""
        served = ("pdf/async/pdf@1",) if lanes is None else lanes
        store = self.engine.open().store
        store.register(name, lease_us=micros(timedelta(minutes=5)), lanes=served, about="a test")
        self.later()

    def later(self) -> None:
        """Let what was found out about health be forgotten."""
        self.monotonic += 3

    def finish(self, job_id: str, pdf: bytes = A_PDF, **report: Any) -> PdfJob:
        """Render a job by hand."""
        self.jobs.update_status(job_id, "running")
        key = self.artifacts.store_pdf(job_id, pdf)
        return self.jobs.update_status(
            job_id, "succeeded", artifact_key=key, sha256=hashlib.sha256(pdf).hexdigest(),
            size=len(pdf), **report,
        )  # fmt: skip

    def fail(self, job_id: str, code: PdfErrorCode = PdfErrorCode.TEMPLATE_ERROR) -> PdfJob:
        """Fail an attempt by hand."""
        self.jobs.update_status(job_id, "running")
        return self.jobs.update_status(job_id, "failed", error_code=code)

    def count(self) -> int:
        """How many jobs there are."""
        return sum(row.jobs for row in self.engine.inspect.counts() if row.flow == "pdf")

    def outage(self) -> Outage:
        self.engine.open()
        return Outage(self.engine)

    @contextmanager
    def served(self) -> Iterator[str]:
        """Serve it over a real socket; answers the address."""
        server = Server(self.app, bind("127.0.0.1", 0))
        server.start(lambda: None)
        try:
            yield server.address
        finally:
            server.stop()

    def __enter__(self) -> "Site":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End as a process does: whatever it still had taken is renewed no more."""
        for attempt in self.jobs._attempts.values():
            attempt._lease.stop()
        with self._runner:
            self._runner.run(self._client.aclose())
        self.engine.close()


def value_in(text: str, metric: str, **labels: str) -> float:
    """Read one value of an exposition."""
    said = ",".join(f'{name}="{value}"' for name, value in sorted(labels.items()))
    line = metric + (f"{{{said}}}" if said else "") + " "
    found = [each for each in text.splitlines() if each.startswith(line)]
    assert len(found) == 1, f"{line!r} is in the text {len(found)} times"
    return float(found[0].rpartition(" ")[2])


DATABASES = ("sqlite", "postgres")


@contextmanager
def database(request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    """The URL of a database of this kind that nobody else uses."""
    if request.param == "sqlite":
        yield f"sqlite:///{folder / 'jobs.db'}?synchronous=NORMAL"
        return
    with request.getfixturevalue("databases").lend(make_tables) as url:
        yield url


def opened(request: pytest.FixtureRequest, folder: Path, **options: Any) -> Iterator[Site]:
    """A site on either database, with a worker that lives."""
    with database(request, folder) as url, Site(url, folder, **options) as made:
        made.heartbeat()
        yield made
