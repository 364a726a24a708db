"""One process of PDF rendering: an engine, its job store and its artifacts, on a clock by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.conformance.stores import make_schema
from ulak.artifacts.local import LocalStorage
from ulak.clock import ManualClock
from ulak.engine.engine import Engine
from ulak.services.pdf.artifacts import PdfArtifactStore
from ulak.services.pdf.document import Document, Rendered, Times
from ulak.services.pdf.flow import make_flow, payload_of
from ulak.services.pdf.jobs import Created, PdfJobStore
from ulak.services.pdf.model import PdfJob, PdfJobStatus
from ulak.services.pdf.page import NOTHING_SAID, PageOptions
from ulak.services.pdf.settings import PdfRenderConfig, PdfSecurityConfig
from ulak.services.pdf.totals import Totals
from ulak.services.pdf.worker import PdfRenderWorker
from ulak.wiring import store_of

INVOICE = "invoice"
A_PDF = b"%PDF-1.4\n%%EOF\n"
# Every retry is due at once: what is asked here is whether there is one.
AT_ONCE = {"retry_base": timedelta(0), "retry_max": timedelta(0)}


def make_tables(url: str) -> None:
    """What every database of these tests begins with."""
    make_schema(url)
    with Engine(store_of(url), flows=[make_flow(PdfRenderConfig())]) as engine:
        Totals(engine).read()


def payload(**variables: Any) -> dict[str, Any]:
    """A payload of the invoice with these variables."""
    return payload_of(variables, template_version="1")


def created(
    jobs: PdfJobStore, template: str, asked: Mapping[str, Any], *, tenant: str = "",
    actor: str = "", **options: Any,
) -> Created:  # fmt: skip
    """Create a job, and tell whether it was there already."""
    new = jobs.new_job(template, asked, tenant=tenant, **options)
    [made] = jobs.create_jobs([new], tenant=tenant, actor=actor)
    assert isinstance(made, Created)
    return made


class Desk:
    """An engine with the flow `pdf`, and what stands around it."""

    def __init__(
        self,
        url: str,
        folder: Path,
        *,
        clock: ManualClock | None = None,
        config: PdfRenderConfig | None = None,
        storage: Any = None,
    ) -> None:
        self.clock = ManualClock() if clock is None else clock
        self.config = PdfRenderConfig(
            security=PdfSecurityConfig(template_allowlist=frozenset({INVOICE})), **AT_ONCE
        )
        self.config = config or self.config
        self.flow = make_flow(self.config)
        self.engine = Engine(store_of(url, clock=self.clock), flows=[self.flow])
        self.storage = LocalStorage(folder) if storage is None else storage
        self.artifacts = PdfArtifactStore(self.storage, self.clock)
        self.jobs = PdfJobStore(self.engine, self.artifacts, self.config)

    def close(self) -> None:
        self.jobs.close()
        self.engine.close()

    def create(self, **variables: Any) -> PdfJob:
        """Create a job that is like no other unless its variables are the same."""
        return self.jobs.create_job(INVOICE, payload(**variables))

    def succeed(self, job_id: str) -> PdfJob:
        """Have a queued job succeed with an artifact."""
        self.jobs.update_status(job_id, PdfJobStatus.RUNNING)
        key = self.artifacts.store_pdf(job_id, A_PDF)
        return self.jobs.update_status(job_id, PdfJobStatus.SUCCEEDED, artifact_key=key)

    def fail(self, job_id: str, code: str = "UNKNOWN") -> PdfJob:
        """Have a queued job fail once."""
        self.jobs.update_status(job_id, PdfJobStatus.RUNNING)
        return self.jobs.update_status(job_id, PdfJobStatus.FAILED, error_code=code)

    def stored(self) -> list[str]:
        """Every artifact that there is."""
        return sorted(self.storage.list("pdfs"))

    def worker(self, renderer: Any = None, templates: Any = None) -> PdfRenderWorker:
        """A worker that renders with these."""
        return PdfRenderWorker(
            self.config, templates or Pages(), renderer or Printer(), self.artifacts,
            engine=self.engine,
        )  # fmt: skip


def config_of(**settings: Any) -> PdfRenderConfig:
    """Settings under which the invoice may be rendered, and retries are due at once."""
    security = PdfSecurityConfig(template_allowlist=frozenset({INVOICE}))
    return PdfRenderConfig(security=security, **{**AT_ONCE, **settings})


def serve(desk: Desk, renderer: Any, templates: Any = None, *, places: int = 4) -> None:
    """Have the workers of a desk's engine render with these."""

    @desk.engine.resource(PdfRenderWorker, queue="pdf", places=places)
    @asynccontextmanager
    async def opened() -> AsyncIterator[PdfRenderWorker]:
        yield desk.worker(renderer, templates)


class Pages:
    """Templates that say what they were asked for."""

    def __init__(self, version: str = "1") -> None:
        self._version = version
        self.asked: list[tuple[str, Mapping[str, Any]]] = []

    def judge(
        self, name: str, variables: Mapping[str, Any], page: PageOptions = NOTHING_SAID
    ) -> None:
        """Refuse nothing."""

    def render(
        self, name: str, variables: Mapping[str, Any], page: PageOptions = NOTHING_SAID
    ) -> Document:
        self.asked.append((name, variables))
        return Document(f"<p>{name}</p>")

    def version(self, name: str) -> str:
        return self._version


class Printer:
    """A renderer that answers at once: with a PDF, or what a test wants raised, in turn."""

    def __init__(self, *raised: BaseException | None) -> None:
        self.raised = list(raised)
        self.times: list[Times] = []

    async def render(self, document: Document, times: Times) -> Rendered:
        self.times.append(times)
        error = self.raised.pop(0) if self.raised else None
        if error is not None:
            raise error
        return Rendered(
            A_PDF, pages=1, engine="Printer/1", timings={"load": 0.01, "print": 0.02, "total": 0.03}
        )
