"""Each operation of the table in section 1 of the specification, called as it stands there."""

from __future__ import annotations

import asyncio
import inspect
import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import ulak.services.pdf as pdf
from tests.services.pdf.desk import A_PDF, AT_ONCE, INVOICE, Desk, payload
from tests.services.pdf.plant import plant
from ulak.artifacts.local import LocalStorage
from ulak.errors import BadInput

NOBODYS = "019c0000-0000-7000-8000-000000000000"


def test_the_store_answers_as_the_table_says(sqlite_desk: Desk) -> None:
    jobs = sqlite_desk.jobs
    made = jobs.create_job(INVOICE, payload())
    assert isinstance(made, pdf.PdfJob)
    assert jobs.create_job(INVOICE, payload()) == made == jobs.get_job(made.job_id)
    assert made.job_key == jobs.compute_job_key(INVOICE, payload())
    assert jobs.find_by_key(made.job_key) == made
    assert jobs.find_by_key("none") is None
    for absent in (NOBODYS, "no id"):
        assert jobs.get_job(absent) is None
    assert jobs.get_job(made.job_id, tenant="other") is None
    assert jobs.update_status(made.job_id, "running").status is pdf.PdfJobStatus.RUNNING
    jobs.update_status(made.job_id, "failed", error_code="UNKNOWN")
    assert jobs.cleanup_expired(0) == 1
    jobs.set_backpressure(True, 7)
    assert jobs.backpressure().retry_after_seconds == 7


def test_the_verbs_of_a_worker_are_plain_calls(sqlite_desk: Desk) -> None:
    worker = sqlite_desk.worker()
    job = sqlite_desk.create()
    done = worker.process_job(job.job_id)
    assert done is not None
    assert done.state == "succeeded"
    assert worker.render_html_to_pdf("<p>", 30) == A_PDF
    assert worker.validate_template(INVOICE) is True
    assert worker.validate_template("payroll") is False
    assert worker.validate_url("https://example.org/") is False
    assert worker.sanitize_payload({"variables": {"name": "<b>"}})["variables"]["name"] == (
        "&lt;b&gt;"
    )
    for name in ("process_job", "render_html_to_pdf", "validate_template", "validate_url"):
        assert not inspect.iscoroutinefunction(getattr(worker, name))


def test_on_a_loop_a_verb_that_waits_says_what_to_do_instead(sqlite_desk: Desk) -> None:
    worker, job = sqlite_desk.worker(), sqlite_desk.create()

    async def call() -> Any:
        with pytest.raises(BadInput, match=r"asyncio\.to_thread"):
            worker.process_job(job.job_id)
        return await asyncio.to_thread(worker.process_job, job.job_id)

    assert asyncio.run(call()).state == "succeeded"


def test_a_program_without_a_loop_renders_with_a_browser_of_its_own(
    sqlite_url: str, tmp_path: Path
) -> None:
    with plant(sqlite_url, tmp_path) as works:
        job = works.create("plain", n=7)
        with pdf.open_render_worker(works.engine, works.config) as worker:
            done = worker.process_job(job.job_id)
            assert done is not None
            assert done.state == "succeeded"
            # The second is printed by the browser of the first: it has not gone with the call.
            assert worker.render_html_to_pdf("<p>text</p>", 30).startswith(b"%PDF-")
        unreadable = replace(works.config, url_allowlist=["("])
        with (
            pytest.raises(BadInput, match="URL pattern"),
            pdf.open_render_worker(works.engine, unreadable),
        ):
            pass


def test_artifacts_are_kept_by_any_backend(tmp_path: Path, sqlite_desk: Desk) -> None:
    backend: pdf.StorageBackend = LocalStorage(tmp_path / "kept")
    store = pdf.PdfArtifactStore(backend, sqlite_desk.clock)
    key = store.store_pdf("job-1", A_PDF)
    assert key.startswith("pdfs/job-1/")
    assert (store.get_pdf(key), store.exists(key)) == (A_PDF, True)
    assert backend.get_presigned_url(key) is None
    assert (store.delete_pdf(key), store.delete_pdf(key), store.exists(key)) == (True, False, False)


def test_helpers_and_fail_safe_answer_as_the_table_says(sqlite_desk: Desk) -> None:
    assert pdf.validate_template("invoice", ["invoice"]) is True
    assert pdf.validate_template("invoice", []) is False
    assert pdf.validate_url("https://a.example/x", [r"https://a\.example/.*"]) is True
    assert pdf.validate_url("https://b.example/x", [r"https://a\.example/.*"]) is False
    assert pdf.sanitize_html_variables({"name": "<b>"}) == {"name": "&lt;b&gt;"}
    assert pdf.check_worker_health(sqlite_desk.engine) is False
    html = pdf.handle_unavailable("degrade", "<p>x</p>")
    assert (html.status_code, html.body) == (200, b"<p>x</p>")
    refused = pdf.handle_unavailable("strict", "<p>x</p>")
    assert refused.status_code == 503
    assert json.loads(bytes(refused.body))["error_code"] == "PDF_RENDER_UNAVAILABLE"


def test_the_queue_is_told_by_one_function_that_can_be_swapped(
    sqlite_desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    pdf.enqueue_pdf_job(NOBODYS)
    told: list[str] = []
    monkeypatch.setattr("ulak.services.pdf.jobs.enqueue_pdf_job", told.append)
    job = sqlite_desk.create()
    assert told == [job.job_id]


def test_settings_take_the_fields_of_the_specification_and_numbers_of_seconds() -> None:
    config = pdf.PdfRenderConfig(
        hard_timeout=20, max_timeout=40.5, graceful_cancel_offset=timedelta(seconds=3),
        max_retries=1, artifact_ttl_seconds=100, cleanup_interval_seconds=50,
        fail_safe_policy="degrade", template_allowlist=["invoice"],
        url_allowlist=[r"https://a\.example/.*"],
    )  # fmt: skip
    assert config.hard_timeout == timedelta(seconds=20)
    assert config.max_timeout == timedelta(seconds=40.5)
    assert config.times.navigation == timedelta(seconds=17)
    assert (config.artifact_ttl_seconds, config.artifact_ttl) == (100, timedelta(seconds=100))
    assert config.cleanup_interval == timedelta(seconds=50)
    assert config.template_allowlist == config.security.template_allowlist == {"invoice"}
    assert config.url_allowlist == config.security.url_allowlist == (r"https://a\.example/.*",)


def test_a_copy_of_settings_has_the_lists_that_were_said_last() -> None:
    config = pdf.PdfRenderConfig(template_allowlist={"a"})
    other = pdf.PdfSecurityConfig(template_allowlist=frozenset({"b"}), url_allowlist=("x",))
    assert replace(config, max_retries=0).template_allowlist == {"a"}
    assert replace(config, template_allowlist={"c"}).security.template_allowlist == {"c"}
    moved = replace(config, security=other)
    assert (moved.template_allowlist, moved.url_allowlist) == ({"b"}, ("x",))
    assert replace(moved, security=pdf.PdfSecurityConfig()).template_allowlist == frozenset()
    assert pdf.PdfRenderConfig(template_allowlist=moved.template_allowlist) == (
        pdf.PdfRenderConfig(security=pdf.PdfSecurityConfig(template_allowlist=frozenset({"b"})))
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hard_timeout", "soon"), ("lease", -1), ("grace", float("nan")), ("sweep", True),
        ("template_allowlist", "invoice"), ("url_allowlist", "https://a.example/"),
    ],
)  # fmt: skip
def test_settings_refuse_what_is_no_span_and_no_list(name: str, value: Any) -> None:
    with pytest.raises(BadInput, match=f"{name}="):
        pdf.PdfRenderConfig(**AT_ONCE, **{name: value})
