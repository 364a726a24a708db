"""Whose job is next: tenants take turns, urgent jobs come first, and nobody waits for ever."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.scenario.doubles import settings as worker_settings
from tests.services.pdf.desk import INVOICE, Desk, Pages, Printer, config_of, payload, serve
from ulak.errors import BadInput
from ulak.services.pdf.document import Document
from ulak.services.pdf.jobs import Created
from ulak.services.pdf.settings import PdfRenderConfig, load

PATIENCE = timedelta(seconds=60)
QUEUES = frozenset({"pdf"})


@pytest.fixture
def desk(open_desk: Callable[..., Desk]) -> Desk:
    """Return one that bounds no tenant: what is shown here is whose turn it is."""
    return open_desk(config=config_of(tenant_concurrency=0))


class Noting(Pages):
    """Templates that note the order in which documents are made."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[str] = []

    def render(self, name: str, variables: Any, page: Any = None) -> Document:
        self.order.append(variables["name"])
        return Document("<p>")


def create(desk: Desk, name: str, tenant: str = "", *, n: int = 0, **options: Any) -> str:
    made = desk.jobs.create_job(INVOICE, payload(name=name, n=n), tenant=tenant, **options)
    return made.job_id


def work(desk: Desk, pages: Noting, *awaited: str) -> None:
    """Have one worker with one place do jobs until these have ended."""
    serve(desk, Printer(), pages, places=1)
    with desk.engine.working(worker_settings(queues=QUEUES)):
        for job_id in awaited:
            desk.engine.wait(job_id, timeout=PATIENCE)


@pytest.mark.shows("P-52")
def test_a_thousand_jobs_of_one_tenant_do_not_hold_up_the_one_of_another(desk: Desk) -> None:
    crowd = [
        desk.jobs.new_job(INVOICE, payload(name=f"big {n}"), tenant="big") for n in range(1000)
    ]
    made = desk.jobs.create_jobs(crowd, tenant="big")
    assert all(isinstance(each, Created) for each in made)
    desk.clock.advance(timedelta(minutes=5))
    pages = Noting()
    work(desk, pages, create(desk, "small", "small"))
    assert "small" in pages.order[:2]


@pytest.mark.shows("P-52")
def test_a_tenant_of_more_weight_has_more_turns(desk: Desk) -> None:
    desk.engine.flow_control.set_weight("gold", 3, actor="ada")
    ids = [create(desk, tenant, tenant, n=n) for tenant in ("gold", "iron") for n in range(8)]
    pages = Noting()
    work(desk, pages, *ids)
    assert pages.order[:8].count("gold") == 6


@pytest.mark.shows("P-52")
@pytest.mark.parametrize(("waited", "order"), [(19, ["urgent", "calm"]), (21, ["calm", "urgent"])])
def test_a_level_of_priority_is_worth_ten_minutes_of_waiting(
    desk: Desk, waited: int, order: list[str]
) -> None:
    calm = create(desk, "calm", "acme", priority=3)
    desk.clock.advance(timedelta(minutes=waited))
    urgent = create(desk, "urgent", "globex", priority=1)
    pages = Noting()
    work(desk, pages, calm, urgent)
    assert pages.order == order


@pytest.mark.shows("P-52")
def test_urgent_jobs_come_before_the_turn_of_others(desk: Desk) -> None:
    ids = []
    for name, tenant, priority in (("usual", "acme", 1), ("urgent", "globex", 0)):
        for n in range(2):
            ids.append(create(desk, f"{name} {n}", tenant, priority=priority))
            desk.clock.advance(timedelta(seconds=1))
    pages = Noting()
    work(desk, pages, *ids)
    assert pages.order == ["urgent 0", "urgent 1", "usual 0", "usual 1"]


@pytest.mark.shows("P-52", "P-12")
def test_a_priority_is_no_part_of_the_key_and_changes_nothing_of_a_job_that_is_there(
    desk: Desk,
) -> None:
    first = create(desk, "same", priority=2)
    assert create(desk, "same", priority=0) == first
    assert desk.engine.get(first).priority == 2


@pytest.mark.shows("P-52")
def test_callers_may_be_as_urgent_as_the_settings_say() -> None:
    usual = PdfRenderConfig()
    assert [usual.priority_for(asked) for asked in (None, 1, 2, 3)] == [1, 1, 2, 3]
    for wrong in (0, -1, 4, True):
        with pytest.raises(BadInput, match="from 1, the most urgent"):
            usual.priority_for(wrong)
    assert load({"PDF_MAX_PRIORITY": "0"}).priority_for(0) == 0
    calm = load({"PDF_MAX_PRIORITY": "2"})
    assert calm.priority_for(None) == 2
    with pytest.raises(BadInput, match="from 2"):
        calm.priority_for(1)
    with pytest.raises(BadInput, match="PDF_MAX_PRIORITY"):
        load({"PDF_MAX_PRIORITY": "4"})


@pytest.mark.shows("P-52")
def test_every_bound_of_a_tenant_is_a_setting(open_desk: Callable[..., Desk]) -> None:
    config = load(
        {
            "PDF_BATCH_LIMIT": "7", "PDF_MAX_BATCH_BYTES": "1000", "PDF_TENANT_CONCURRENCY": "2",
            "PDF_TENANT_QUEUE": "3",
        }
    )  # fmt: skip
    assert (config.batch_limit, config.max_batch_bytes) == (7, 1000)
    assert (config.tenant_concurrency, config.tenant_queue) == (2, 3)
    usual = load({})
    assert (usual.batch_limit, usual.max_batch_bytes) == (100, 4 * 2**20)
    assert (usual.tenant_concurrency, usual.tenant_queue, usual.max_priority) == (4, 0, 1)
    desk = open_desk(config=config_of(tenant_concurrency=2))
    [limit] = desk.engine.flow_control.limits()
    assert (limit.name, limit.n) == ("pdf/queued", 2)
