"""Calls of workers: what is sent, and what each answer means."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from tests.services.publishing.played import (
    KEYS,
    POST_ID,
    PUBLICATION_ID,
    Answer,
    Played,
    done,
    payload,
    playing,
    refused,
)
from ulak.services.publishing import backend
from ulak.services.publishing.backend import (
    CALLS,
    Backend,
    BackendAway,
    CallRefused,
    Failure,
    KeyRefused,
    StepPassed,
)
from ulak.services.publishing.events import read_payload
from ulak.services.publishing.settings import PublishingSettings

EVENT = read_payload(payload())


@pytest.fixture
def played() -> Iterator[Played]:
    with playing(lambda asked: done(changed=True, status="PENDING_PUBLISH")) as server:
        yield server


def call(url: str, name: str = "moderation.approve", **body: str) -> Any:
    async def one() -> Any:
        asking = Backend(PublishingSettings(backend_url=url, internal_api_keys=KEYS))
        async with asking.client:
            return await asking.call(name, EVENT, **body)

    return asyncio.run(one())


def fail(url: str) -> Failure:
    with pytest.raises(Failure) as failed:
        call(url)
    return failed.value


@pytest.mark.shows("S-33")
@pytest.mark.parametrize("name", CALLS)
def test_a_call_has_the_key_of_its_worker_the_publication_and_a_key_of_its_own(
    played: Played, name: str
) -> None:
    worker, _, operation = name.partition(".")
    assert call(played.url, name)["changed"] is True
    (asked,) = played.asked
    owner = "publish" if worker == "notify" else worker
    assert asked.headers["Authorization"] == f"Token {KEYS[owner]}"
    assert asked.path.startswith(f"/internal/articles/{POST_ID}")
    assert asked.step == operation
    methods = {"read": "GET", "preview": "PUT"}
    assert asked.method == methods.get(operation, "POST")
    if asked.method == "GET":
        assert asked.body == {}
        return
    assert asked.body == {"publication_id": PUBLICATION_ID}
    assert asked.headers["Idempotency-Key"] == f"{EVENT.event_id}:{operation}"


@pytest.mark.shows("S-18")
@pytest.mark.parametrize(
    ("answer", "means"),
    [
        (refused(500, "internal"), BackendAway),
        (refused(502, ""), BackendAway),
        (refused(503, "idempotency_store_unavailable"), BackendAway),
        (refused(408, "timeout"), BackendAway),
        (refused(425, "too_early"), BackendAway),
        (refused(429, "overloaded"), BackendAway),
        (refused(401, "invalid_api_key"), KeyRefused),
        (refused(403, "insufficient_scope"), KeyRefused),
        (refused(409, "idempotency_in_progress"), KeyRefused),
        (refused(404, "not_found"), StepPassed),
        (refused(409, "stale_publication"), StepPassed),
        (refused(409, "invalid_status"), StepPassed),
        (refused(409, "already_approved"), StepPassed),
        (refused(409, "already_rejected"), StepPassed),
        (refused(409, "step_done"), StepPassed),
        (refused(409, "preview_missing"), CallRefused),
        (refused(400, "bad_request"), CallRefused),
        (refused(422, "validation_error"), CallRefused),
        # Another 409, and a code of a passed step that is on another answer.
        (refused(409, "idempotency_key_reused"), CallRefused),
        (refused(422, "stale_publication"), CallRefused),
        # What is not the backend: its gateway, a redirect, a page.
        (Answer(404, b"<h1>nginx</h1>"), BackendAway),
        (Answer(404, {"detail": "Not Found"}), BackendAway),
        (Answer(307, b"", {"Location": "/elsewhere"}), BackendAway),
        (Answer(200, b"<h1>Log in</h1>"), BackendAway),
        (Answer(200, [1]), BackendAway),
    ],
)
def test_the_code_of_an_answer_decides_before_its_status(
    answer: Answer, means: type[Failure]
) -> None:
    with playing(lambda asked: answer) as played:
        failed = fail(played.url)
    assert type(failed) is means, failed
    said = answer.body.get("code") if isinstance(answer.body, dict) else None
    assert failed.code == (said or f"http_{answer.status}")
    assert "moderation.approve" in str(failed)
    assert failed.status == answer.status


@pytest.mark.shows("S-18")
def test_no_answer_is_worth_a_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    assert type(fail(f"http://127.0.0.1:{port}")) is BackendAway
    with playing(lambda asked: Answer(0)) as played:
        assert type(fail(played.url)) is BackendAway
    monkeypatch.setattr(backend, "TIMEOUT_S", 0.05)
    answered = threading.Event()
    with playing(lambda asked: Answer(200, b"", wait=answered)) as played:
        hanging = fail(played.url)
        answered.set()
    assert type(hanging) is BackendAway
    assert "ReadTimeout" in str(hanging)


@pytest.mark.shows("S-17")
def test_retry_after_is_read_as_seconds_or_a_date_and_anything_else_is_nothing() -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    past = format_datetime(datetime.now(UTC) - timedelta(days=1), usegmt=True)

    def read(text: str) -> timedelta | None:
        with playing(lambda asked: refused(503, "away", Retry_After=text)) as played:
            return fail(played.url).retry_after

    assert read("7") == timedelta(seconds=7)
    assert timedelta(seconds=80) < (read(soon) or timedelta()) <= timedelta(seconds=90)
    assert read(past) == timedelta()
    assert read("9" * 40) == timedelta(hours=1)
    assert [read(text) for text in ("soon", "-1", "1.5", "")] == [None] * 4


@pytest.mark.shows("S-34")
def test_no_error_has_the_key_in_it(played: Played) -> None:
    played.says = lambda asked: refused(401, "invalid_api_key")
    assert not any(key in repr(fail(played.url)) for key in KEYS.values())
    settings = PublishingSettings(backend_url=played.url, internal_api_keys=KEYS)
    assert not any(key in repr(settings) for key in KEYS.values())
