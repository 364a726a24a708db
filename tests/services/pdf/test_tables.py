"""The tables of PDF rendering: made together by whoever comes first, and not needed for jobs."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest

from tests.conformance.stores import make_schema
from ulak.artifacts.local import LocalStorage
from ulak.engine.engine import Engine
from ulak.services.pdf.artifacts import PdfArtifactStore
from ulak.services.pdf.flow import make_flow
from ulak.services.pdf.jobs import PdfJobStore
from ulak.services.pdf.settings import PdfRenderConfig
from ulak.services.pdf.totals import Totals
from ulak.store.memory import MemoryStore
from ulak.wiring import store_of

CROWD = 4


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A store that has never heard of PDFs."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'jobs.db'}"
        return
    with request.getfixturevalue("databases").lend(make_schema) as url:
        yield url


def test_api_and_workers_that_start_at_once_make_the_tables_once(url: str) -> None:
    engines = [Engine(store_of(url), flows=[make_flow(PdfRenderConfig())]) for _ in range(CROWD)]
    for engine in engines:
        engine.open()
    together = Barrier(CROWD)

    def begin(number: int) -> bool:
        together.wait()
        return not Totals(engines[number]).read().totals

    with ThreadPoolExecutor(CROWD) as threads:
        assert list(threads.map(begin, range(CROWD))) == [True] * CROWD
    for engine in engines:
        engine.close()


def test_jobs_are_kept_in_a_durable_store_without_tables(tmp_path: Path) -> None:
    store = MemoryStore()
    store.features = replace(store.features, name="other", durable=True)
    config = PdfRenderConfig()
    with Engine(store, flows=[make_flow(config)]) as engine:
        artifacts = PdfArtifactStore(LocalStorage(tmp_path), store.clock)
        jobs = PdfJobStore(engine, artifacts, config)
        made = jobs.create_job("invoice", {}, actor="ada")
        jobs.create_job("invoice", {}, actor="bob")
        assert jobs.read_job(made.job_id).owners == {"ada", "bob"}
        assert Totals(engine).read().totals["jobs", "queued"] == 1
