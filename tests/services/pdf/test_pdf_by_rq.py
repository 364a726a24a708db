"""PDF rendering by workers of RQ, as people start it: on Redis alone, and under SIGKILL."""

import os
import secrets
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx
import pytest

from tests.processes import await_gone, is_alive
from tests.services.pdf.plant import Plant, eventually, parent_of, plant
from tests.services.pdf.test_pdf_over_http import calling, create, until_succeeded
from ulak.core import event as kinds
from ulak.dispatch.rq import Dispatch, connect
from ulak.kit.ids import from_text
from ulak.services.pdf.failsafe import LONGEST_KEPT
from ulak.services.pdf.model import PdfJob, PdfJobStatus
from ulak.testing.servers import Redis

LOOPS = "<p>it loops</p><script>while (performance.now() < 700);</script>"
PLAIN, STAYING = "rq.Worker", "ulak.dispatch.rq.Worker"


@pytest.mark.shows("P-2", "P-37", "P-38")
def test_a_pdf_is_created_rendered_by_rq_and_downloaded_with_redis_alone(tmp_path: Path) -> None:
    key = secrets.token_hex(32)
    with Redis() as server:
        more = {"ULAK_RQ_QUEUES": "pdf", "RQ_REDIS_URL": server.url("1"), "ULAK_ADMIN_KEY": key}
        with plant(server.url(), tmp_path, **more) as works:
            works.rq_worker(PLAIN)
            with calling(works, key) as client:
                accepted = create(client, "plain", {"n": 1})
                assert accepted.status_code == 202, accepted.text
                told = until_succeeded(client, accepted.headers["Location"])
                assert client.get(told["download_url"]).content.startswith(b"%PDF")
                [started] = {
                    event.worker for event in works.engine.inspect.trail(told["job_id"])
                    if event.worker
                }  # fmt: skip
                pid = int(started.rsplit("-", 2)[1])
                await_gone(pid, within_s=30)  # a work-horse, and no child of `ulak up`

                eventually(lambda: degraded_without_redis(server, client))
                strict = create(client, "plain", {"n": 2})
                assert strict.status_code == 503, strict.text
                assert strict.json()["error_code"] == "PDF_RENDER_UNAVAILABLE"

                server.start()
                eventually(lambda: create(client, "plain", {"n": 2}).status_code == 202)


def degraded_without_redis(server: Redis, client: httpx.Client) -> bool:
    """Stop Redis and ask for HTML in place of a PDF. Callers are known for two seconds without
    the store: whoever asks later cannot be told from a stranger. What was found out about health
    is older than it may be by then, else the job would be submitted, and waited for."""
    time.sleep(LONGEST_KEPT.total_seconds())
    assert client.get("/jobs").status_code == 200
    server.stop()
    options = {"fail_safe": "degrade"}
    body = {"template_name": "plain", "variables": {"n": 3}, "options": options}
    answer = client.post("/pdf/jobs", json=body)
    if answer.status_code == 503:
        server.start()
        eventually(lambda: client.get("/jobs").status_code == 200)
        return False
    assert answer.status_code == 200, answer.text
    assert answer.headers["X-Pdf-Fallback"] == "html"
    return "page 3" in answer.text


@pytest.mark.shows("P-5", "P-8", "P-9")
def test_every_job_ends_with_one_artifact_however_many_rq_workers_are_killed(
    sqlite_url: str, redis_url: str, tmp_path: Path, sized: Callable[[int, int], int]
) -> None:
    kills = sized(20, 2)
    more = {"RQ_REDIS_URL": redis_url, "ULAK_RQ_QUEUES": "pdf", "PDF_LEASE_SECONDS": "2"}
    more["PDF_TEMPLATE_ALLOWLIST"] = "brief"
    with plant(sqlite_url, tmp_path, **more) as works, works.engine, connect(redis_url) as client:
        with Dispatch(works.engine, ["pdf"], connection=client):
            works.template("brief", LOOPS, javascript=True, variables='n = "number"')
            for _ in range(2):
                works.rq_worker(STAYING)
            jobs = [works.create("brief", n=n) for n in range(kills + 2)]
            for _ in range(kills):
                eventually(lambda: kill_one_in_its_first_render(works, jobs))
            for job in jobs:
                ended = works.until(job, PdfJobStatus.SUCCEEDED)
                assert ended.artifact_key in works.stored()
        trails = [works.engine.inspect.trail(job.job_id) for job in jobs]
        lapses = sum(event.kind == kinds.LAPSED for trail in trails for event in trail)
        assert lapses == kills, "each was in the middle of a render"
        assert len(works.stored()) == len(jobs)
        assert works.engine.inspect.verify() == []


def kill_one_in_its_first_render(works: Plant, jobs: Sequence[PdfJob]) -> bool:
    """SIGKILL an RQ worker and its work-horse, whose job no other worker has had before; tell
    whether there was one."""
    rows = [works.engine.store.find_job(from_text(job.job_id)) for job in jobs]
    for row in rows:
        if row is not None and row.leased_by is not None and row.token == 1:
            horse = int(row.leased_by.rsplit("-", 2)[1])
            if not is_alive(horse):
                continue  # killed before, and its lease has not lapsed
            worker = parent_of(horse)
            for pid in (worker, horse):
                os.kill(pid, signal.SIGKILL)
            [process] = [each for each in works.processes if each.pid == worker]
            process.wait()
            await_gone(horse, within_s=30)
            works.rq_worker(STAYING)
            left = works.engine.store.find_job(row.id)
            return left is not None and left.token == row.token  # it had not ended
    return False
