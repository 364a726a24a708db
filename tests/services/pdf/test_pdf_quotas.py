"""What one tenant may have: so many attempts at once, so many jobs that wait."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.scenario.doubles import settings as worker_settings
from tests.services.pdf.desk import A_PDF, INVOICE, Desk, Pages, config_of, payload, serve
from tests.services.pdf.plant import eventually
from tests.services.pdf.site import CONFIG, DATABASES, Site, database
from ulak.core.admission import find_waiting
from ulak.engine.engine import Engine
from ulak.services.pdf.artifacts import PdfArtifactStore
from ulak.services.pdf.document import Document, Rendered, Times
from ulak.services.pdf.failsafe import count_queued
from ulak.services.pdf.flow import make_flow
from ulak.services.pdf.jobs import Created, InvalidTransition, PdfJobStore
from ulak.services.pdf.model import PdfErrorCode, PdfJobStatus
from ulak.services.pdf.submission import QuotaExceeded
from ulak.store.protocol import JobFilter
from ulak.store.sqlite.intake import waiting_steps
from ulak.wiring import store_of

QUEUED, RUNNING, SUCCEEDED, FAILED, EXPIRED = PdfJobStatus
PATIENCE = timedelta(seconds=60)


def create(desk: Desk, n: Any, tenant: str = "acme", **options: Any) -> str:
    made = desk.jobs.create_job(INVOICE, payload(n=n), tenant=tenant, **options)
    return made.job_id


@pytest.fixture(params=DATABASES)
def open_site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Site]]:
    made: list[Site] = []
    with database(request, tmp_path) as url:

        def start(**settings: Any) -> Site:
            site = Site(url, tmp_path, config=replace(CONFIG, **settings))
            site.heartbeat()
            made.append(site)
            return site

        yield start
        for site in made:
            site.close()


# --- how many wait --------------------------------------------------------------


@pytest.mark.shows("P-52")
def test_a_new_job_beyond_the_quota_is_refused_until_one_has_begun(
    open_site: Callable[..., Site],
) -> None:
    site = open_site(tenant_queue=2)
    first, second = site.new("a", who="key:acme"), site.new("b", who="key:acme")
    refused = site.create("c", who="key:acme-2")
    assert refused.status_code == 429
    said = refused.json()
    assert said["error_code"] == "QUOTA_EXCEEDED"
    assert said["details"] == {"max_waiting": 2}
    assert int(refused.headers["Retry-After"]) == said["retry_after_seconds"] >= 1
    assert site.count() == 2
    assert site.create("b", who="key:acme-2").json()["job_id"] == second, "it is no new job"
    assert site.create("c", who="key:globex").status_code == 202, "it is another's quota"
    assert site.create("c").status_code == 202, "and so is nobody's"
    site.jobs.update_status(first, RUNNING)
    assert site.create("c", who="key:acme").status_code == 202


@pytest.mark.shows("P-52")
def test_a_batch_is_taken_as_far_as_there_is_room(open_site: Callable[..., Site]) -> None:
    site = open_site(tenant_queue=3)
    known = site.new("known", who="key:acme")
    names = ["a", "b", "c", "a", "known", "d"]
    jobs = [{"template_name": "letter", "variables": {"name": name}} for name in names]
    answer = site.ask("POST", "/pdf/batches", json={"jobs": jobs}, who="key:acme")
    results = answer.json()["results"]
    assert [each["status"] for each in results] == [202, 202, 429, 202, 202, 429]
    assert results[3]["job_id"] == results[0]["job_id"]
    assert results[4]["job_id"] == known
    assert {results[n]["error_code"] for n in (2, 5)} == {"QUOTA_EXCEEDED"}
    assert min(results[n]["retry_after_seconds"] for n in (2, 5)) >= 1
    assert site.count() == 3


@pytest.mark.shows("P-52", "P-40")
def test_the_quota_comes_after_backpressure_and_before_health(
    open_site: Callable[..., Site],
) -> None:
    site = open_site(tenant_queue=1)
    site.new("a", who="key:acme")
    site.clock.advance(site.config.heartbeat_limit + timedelta(seconds=1))
    site.later()
    degrade = {"fail_safe": "degrade"}
    refused = site.create("b", who="key:acme", options=degrade)
    assert (refused.status_code, refused.json()["error_code"]) == (429, "QUOTA_EXCEEDED")
    assert site.create("b", who="key:globex", options=degrade).status_code == 200
    site.jobs.set_backpressure(True, 7)
    pressed = site.create("b", who="key:acme", options=degrade)
    assert pressed.json()["error_code"] == "BACKPRESSURE_ACTIVE"


@pytest.mark.shows("P-52")
def test_jobs_that_are_parked_and_retries_that_are_delayed_wait_too(
    open_desk: Callable[..., Desk],
) -> None:
    late = {"retry_base": PATIENCE, "retry_max": PATIENCE}
    desk = open_desk(config=config_of(tenant_queue=2, tenant_concurrency=1, **late))
    running = create(desk, 1)
    desk.jobs.update_status(running, RUNNING)
    parked = create(desk, 2)
    with desk.engine.working(worker_settings(queues=frozenset({"pdf"}))):
        eventually(lambda: desk.engine.get(parked).parked_on)
    assert desk.engine.get(parked).parked_on == "pdf/queued/tenant/acme"
    assert desk.engine.inspect.why(parked).code == "parked"
    assert count_queued(desk.engine) == 1, "the depth of the queue has it too"
    code = PdfErrorCode.NAVIGATION_TIMEOUT
    assert desk.jobs.update_status(running, FAILED, error_code=code).status is QUEUED
    assert queued(desk) == 2
    assert isinstance(desk.jobs.find_refusal("acme"), QuotaExceeded)
    with pytest.raises(QuotaExceeded):
        create(desk, 3)
    desk.jobs.cancel(parked, actor="ada")
    create(desk, 3)


@pytest.mark.shows("P-52")
@pytest.mark.parametrize("tenant", ["", "a/b", "*", "ü%_", "t" * 400])
def test_a_tenant_with_a_quota_may_have_any_name(
    open_desk: Callable[..., Desk], tenant: str
) -> None:
    desk = open_desk(config=config_of(tenant_queue=1, tenant_concurrency=1))
    first = create(desk, 1, tenant)
    with pytest.raises(QuotaExceeded, match="1 jobs"):
        create(desk, 2, tenant)
    assert isinstance(desk.jobs.find_refusal(tenant), QuotaExceeded)
    assert desk.jobs.find_refusal(tenant + "x") is None
    desk.jobs.update_status(first, RUNNING)
    second = create(desk, 2, tenant)
    with pytest.raises(InvalidTransition):
        desk.jobs.update_status(second, RUNNING)
    other = create(desk, 1, tenant + "x")
    assert desk.jobs.update_status(other, RUNNING).status is RUNNING


@pytest.mark.shows("P-52")
def test_the_quota_is_exact_however_many_ask_at_once(open_desk: Callable[..., Desk]) -> None:
    desks = [open_desk(config=config_of(tenant_queue=5)) for _ in range(2)]
    ready = threading.Barrier(12)

    def ask(n: int) -> bool:
        ready.wait(60)
        try:
            create(desks[n % 2], n)
        except QuotaExceeded:
            return False
        return True

    with ThreadPoolExecutor(12) as pool:
        made = list(pool.map(ask, range(12)))
    assert made.count(True) == 5
    assert queued(desks[0]) == 5


@pytest.mark.shows("P-52", "P-20")
def test_who_asks_for_the_same_at_once_gets_the_same_job_though_it_was_the_last(
    open_desk: Callable[..., Desk],
) -> None:
    desks = [open_desk(config=config_of(tenant_queue=1)) for _ in range(2)]
    ready = threading.Barrier(8)

    def ask(n: int) -> str:
        ready.wait(60)
        return create(desks[n % 2], "same", actor=f"person-{n}")

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(ask, range(8)))
    assert len(set(made)) == 1
    assert desks[0].jobs.read_job(made[0]).owners == {f"person-{n}" for n in range(8)}


def test_what_waits_is_counted_by_indexes_and_not_in_the_whole_table(sqlite_desk: Desk) -> None:
    """What has ended long ago costs a create nothing, however much of it there is."""
    desk, bounded = sqlite_desk, make_flow(config_of(tenant_queue=5, tenant_concurrency=1))
    waiting = find_waiting(bounded, "acme")
    assert waiting.limit == 5
    asked = waiting_steps(waiting)
    statements = [next(asked)]
    with suppress(StopIteration):
        while True:
            statements.append(asked.send([(0,)]))
    with desk.engine.reading() as connection:
        steps = [
            row[-1]
            for statement, values in statements
            for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)
        ]
    assert [step for step in steps if "jobs_claimable" in step]
    assert [step for step in steps if "jobs_parked" in step]
    assert not [step for step in steps if step.startswith("SCAN jobs")]


def test_a_store_in_memory_keeps_the_quota_too(tmp_path: Path) -> None:
    config = config_of(tenant_queue=2)
    with Engine(store_of("memory://"), flows=[make_flow(config)]) as engine:
        desk_storage = PdfArtifactStore(_Nowhere(), engine.store.clock)  # type: ignore[arg-type]
        jobs = PdfJobStore(engine, desk_storage, config)
        new = [jobs.new_job(INVOICE, payload(n=n), tenant="acme") for n in (1, 2, 1, 3)]
        made = jobs.create_jobs(new, tenant="acme", actor="ada")
    assert [isinstance(each, Created) for each in made] == [True, True, True, False]
    assert made[0].job.job_id == made[2].job.job_id  # type: ignore[union-attr]


class _Nowhere:
    """A storage that nobody asks."""


# --- how many run ---------------------------------------------------------------


@pytest.mark.shows("P-52")
def test_attempts_by_hand_are_bounded_for_each_tenant_over_all_processes(
    open_desk: Callable[..., Desk],
) -> None:
    config = config_of(tenant_concurrency=2)
    here, there = open_desk(config=config), open_desk(config=config)
    first, second, third = (create(here, n) for n in range(3))
    other = create(there, 0, "globex")
    here.jobs.update_status(first, RUNNING)
    there.jobs.update_status(second, RUNNING)
    with pytest.raises(InvalidTransition):
        there.jobs.update_status(third, RUNNING)
    assert there.jobs.update_status(other, RUNNING).status is RUNNING
    here.jobs.update_status(first, FAILED)
    assert there.jobs.update_status(third, RUNNING).status is RUNNING


class Gated:
    """A renderer that holds every document until it is let go, and knows whose it has."""

    def __init__(self) -> None:
        self.began = threading.Semaphore(0)
        self.go = threading.Event()
        self.lock = threading.Lock()
        self.now: dict[str, int] = {}
        self.most: dict[str, int] = {}

    async def render(self, document: Document, times: Times) -> Rendered:
        whose = document.html
        with self.lock:
            self.now[whose] = self.now.get(whose, 0) + 1
            self.most[whose] = max(self.most.get(whose, 0), self.now[whose])
        self.began.release()
        await asyncio.to_thread(self.go.wait, 60)
        with self.lock:
            self.now[whose] -= 1
        return Rendered(A_PDF, pages=1, engine="Gated/1", timings={})


class Owned(Pages):
    """Templates whose document is the name of the tenant."""

    def render(self, name: str, variables: Any, page: Any = None) -> Document:
        return Document(variables["tenant"])


@pytest.mark.shows("P-52")
def test_workers_together_run_so_many_of_a_tenant_and_leave_others_their_places(
    open_desk: Callable[..., Desk],
) -> None:
    config, gated = config_of(tenant_concurrency=2), Gated()
    desks = [open_desk(config=config) for _ in range(2)]
    for desk in desks:
        serve(desk, gated, Owned())
    ids = {
        tenant: [
            desks[0].jobs.create_job(
                INVOICE, payload(tenant=tenant, n=n), tenant=tenant
            ).job_id
            for n in range(jobs)
        ]
        for tenant, jobs in (("acme", 7), ("globex", 1))
    }  # fmt: skip
    with ExitStack() as workers:
        for desk in desks:
            workers.enter_context(desk.engine.working(worker_settings(queues=frozenset({"pdf"}))))
        for _ in range(3):
            assert gated.began.acquire(timeout=60)
        assert gated.now == {"acme": 2, "globex": 1}
        # Every worker has free places and has looked again before anything ends.
        eventually(lambda: all(desks[0].engine.get(i).parked_on for i in waiting(desks[0], ids)))
        gated.go.set()
        for job_id in (*ids["acme"], *ids["globex"]):
            desks[0].engine.wait(job_id, timeout=PATIENCE)
    assert gated.most == {"acme": 2, "globex": 1}
    found = {desks[0].jobs.read_job(job_id).status for job_id in ids["acme"]}
    assert found == {SUCCEEDED}


def test_a_bound_is_changed_while_jobs_wait_for_it(open_desk: Callable[..., Desk]) -> None:
    bounded = open_desk(config=config_of(tenant_concurrency=1))
    first, second, third = (create(bounded, n) for n in range(3))
    bounded.jobs.update_status(first, RUNNING)
    with pytest.raises(InvalidTransition):
        bounded.jobs.update_status(second, RUNNING)
    bounded.engine.flow_control.set_limit("pdf/queued", 2, actor="ada", note="they asked for more")
    assert bounded.jobs.update_status(second, RUNNING).status is RUNNING
    free = open_desk(config=config_of(tenant_concurrency=0))
    for n in (3, 4):
        new = create(free, n)
        assert free.jobs.update_status(new, RUNNING).status is RUNNING, "nothing bounds it"
    bounded.jobs.update_status(first, FAILED)
    assert free.succeed(third).status is SUCCEEDED, "it waits by the bound that it came under"


def queued(desk: Desk) -> int:
    """How many jobs of acme are queued."""
    where = JobFilter(flow="pdf", state="queued", tenant="acme")
    return len(desk.engine.jobs(where, limit=1000))


def waiting(desk: Desk, ids: dict[str, list[str]]) -> list[str]:
    """The jobs of the crowd that do not run."""
    crowd = ids["acme"]
    return [job_id for job_id in crowd if desk.jobs.read_job(job_id).status is QUEUED]
