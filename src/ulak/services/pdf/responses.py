"""Answers over HTTP: errors as the specification draws them, and PDFs, whole, in part or not at
all when the caller has them; never on the loop."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Future
from datetime import timedelta
from hashlib import sha256
from http import HTTPStatus
from queue import SimpleQueue
from typing import Any, Final, NamedTuple, TypeVar

from fastapi import Request, Response

from ulak.errors import (
    ArtifactError,
    ArtifactMissing,
    BadInput,
    GuardUnavailable,
    ServiceError,
    StoreError,
    UnknownOutcome,
)
from ulak.services.pdf.failsafe import Unavailable
from ulak.services.pdf.model import PdfErrorCode
from ulak.web.idempotency import IdempotentRoute

# What the rest of ulak refuses before a route is called, by status. A conflict of idempotency
# keys has a status that others have too, and a code that says all there is to say.
_OF_STATUS: Final[Mapping[int, str]] = {
    HTTPStatus.UNAUTHORIZED: "UNAUTHORIZED",
    HTTPStatus.FORBIDDEN: "FORBIDDEN",
    HTTPStatus.NOT_FOUND: "JOB_NOT_FOUND",
    HTTPStatus.METHOD_NOT_ALLOWED: "METHOD_NOT_ALLOWED",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "PAYLOAD_TOO_LARGE",
    HTTPStatus.UNPROCESSABLE_ENTITY: "VALIDATION_ERROR",
    HTTPStatus.SERVICE_UNAVAILABLE: str(PdfErrorCode.PDF_RENDER_UNAVAILABLE),
}
_OF_KEYS: Final = "idempotency_"

R = TypeVar("R")
MEDIA_TYPE: Final = "application/pdf"
# The largest PDF that is rendered by default takes a few seconds over a slow line to the bucket.
PATIENCE_S: Final = 30.0
# So many readings at once: what hangs keeps its thread, and nobody else's.
READERS: Final = 8
_RANGE: Final = re.compile(r"bytes=\s*(\d{0,18})-(\d{0,18})\s*", re.IGNORECASE)


class Refusal(ServiceError):
    """A request is not done. Its message has no variables, HTML, keys or tokens; `error_code` is
    what programs compare, `job_id` a job that the caller may know of, `details` facts besides."""

    def __init__(
        self,
        message: str,
        *,
        status: int,
        error_code: str,
        job_id: str | None = None,
        retry_after_s: int | None = None,
        details: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        facts = {"job_id": job_id, "details": None if details is None else dict(details)}
        super().__init__(
            message,
            retry_after=None if retry_after_s is None else timedelta(seconds=retry_after_s),
            error_code=error_code,
            **{name: fact for name, fact in facts.items() if fact is not None},
        )
        self.status = status
        self.code = error_code.lower().replace("_", "-")
        self.headers = headers or {}


def envelope(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what the specification's envelope adds to a problem of anybody's; a refusal of the
    service's own has these members already."""
    code, status = document["code"], document["status"]
    if code.startswith(_OF_KEYS):
        error_code = code.upper()
    else:
        error_code = _OF_STATUS.get(status, str(PdfErrorCode.UNKNOWN))
    added = {"error_code": error_code, "message": document["detail"]}
    if wrong := document.get("errors"):
        added["details"] = {
            "fields": [{"field": e["parameter"], "message": e["message"]} for e in wrong]
        }
    return {name: value for name, value in added.items() if name not in document}


def answering(unavailable: Callable[[Request, str], Awaitable[Response]]) -> type[IdempotentRoute]:
    """Make the class of routes that let `unavailable` answer, by request and reason, while the
    store does not answer or nobody works."""

    class Answering(IdempotentRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handler = super().get_route_handler()

            async def serve(request: Request) -> Response:
                try:
                    return await handler(request)
                except Unavailable as error:
                    return await unavailable(request, str(error))
                except (StoreError, GuardUnavailable, UnknownOutcome):
                    # Not what it says: that names hosts and files of the inside.
                    return await unavailable(request, "the store of jobs does not answer")

            return serve

    return Answering


class Artifact(NamedTuple):
    """What is known of a PDF before it is read."""

    job_id: str
    key: str
    sha256: str
    size: int

    @property
    def etag(self) -> str:
        """Its entity tag: two PDFs with the same one are the same, byte by byte."""
        return f'"{self.sha256}"'


class Reader:
    """Reads artifacts in threads of its own, and gives up on storage that does not answer.

    Its threads keep no process alive, and none but downloads waits for them.
    """

    def __init__(self, *, at_once: int = READERS, patience_s: float = PATIENCE_S) -> None:
        self._at_once = at_once
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._threads = 0
        self._asked: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()

    async def read(self, job_id: str, ask: Callable[[], R]) -> R:
        """Return what the storage answers. Raises Refusal: the artifact is gone, damaged, or did
        not come in time."""
        answer: Future[R] = Future()
        self._asked.put((answer, ask))
        with self._lock:
            if self._threads < self._at_once:
                self._threads += 1
                threading.Thread(target=self._serve, name="ulak-pdf-read", daemon=True).start()
        try:
            async with asyncio.timeout(self._patience_s):
                return await asyncio.wrap_future(answer)
        except ArtifactMissing:
            raise lost(job_id) from None
        except TimeoutError:
            raise unreadable(
                job_id, f"the storage has not answered within {self._patience_s:g} s"
            ) from None
        except (ArtifactError, BadInput, OSError):
            raise unreadable(job_id, "it is damaged, or the storage does not answer") from None

    def _serve(self) -> None:
        while True:
            answer, ask = self._asked.get()
            if not answer.set_running_or_notify_cancel():
                continue  # whoever asked has given up
            try:
                answer.set_result(ask())
            except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits
                answer.set_exception(error)


def download(artifact: Artifact, headers: Mapping[str, str], pdf: bytes | None) -> Response:
    """Return the bytes that a request asks for, compared with their digest; for None, a HEAD,
    everything else of the answer.

    Raises:
        Refusal: they are not what was rendered, or have no such part.
    """
    if pdf is not None and (
        len(pdf) != artifact.size or sha256(pdf).hexdigest() != artifact.sha256
    ):
        raise unreadable(artifact.job_id, "its bytes are not those that were rendered")
    status, told = HTTPStatus.OK, _headers(artifact)
    start, end = 0, artifact.size
    if (part := part_of(headers, artifact)) is not None:
        status, (start, end) = HTTPStatus.PARTIAL_CONTENT, part
        told["Content-Range"] = f"bytes {start}-{end - 1}/{artifact.size}"
    if pdf is None:
        told["Content-Length"] = str(end - start)
        return Response(status_code=status, media_type=MEDIA_TYPE, headers=told)
    return Response(pdf[start:end], status, media_type=MEDIA_TYPE, headers=told)


def unchanged(artifact: Artifact, headers: Mapping[str, str]) -> Response | None:
    """Return 304 when the caller says that it has these bytes; None when not."""
    said = headers.get("if-none-match")
    if said is None:
        return None
    tags = [tag.strip().removeprefix("W/") for tag in said.split(",")]
    if "*" not in tags and artifact.etag not in tags:
        return None
    told = {n: v for n, v in _headers(artifact).items() if n != "Content-Disposition"}
    return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=told)


def part_of(headers: Mapping[str, str], artifact: Artifact) -> tuple[int, int] | None:
    """Return the part that a request asks for, None for the whole.

    What cannot be read, several ranges at once, and a range of another version get the whole, as
    RFC 9110 allows.

    Raises:
        Refusal: it begins behind the last byte.
    """
    said = headers.get("range")
    if said is None or headers.get("if-range", artifact.etag).strip() != artifact.etag:
        return None
    found = _RANGE.fullmatch(said.strip())
    if found is None or found[0] == "" or not (found[1] or found[2]):
        return None
    size = artifact.size
    if not found[1]:  # so many of the last
        start, end = max(0, size - int(found[2])), size
    else:
        start = int(found[1])
        end = min(size, int(found[2]) + 1) if found[2] else size
        if found[2] and int(found[2]) < start:
            return None
    if start >= size or start >= end:
        raise Refusal(
            f"the PDF has {size} bytes, and none of them is in that range",
            status=416, error_code="RANGE_NOT_SATISFIABLE", job_id=artifact.job_id,
            headers={"Content-Range": f"bytes */{size}"},
        )  # fmt: skip
    return start, end


def lost(job_id: str) -> Refusal:
    """Say that a PDF was stored and is gone before its time."""
    return Refusal(
        "the PDF was stored and is gone; ask for it again to have it rendered anew",
        status=500, error_code="ARTIFACT_MISSING", job_id=job_id,
    )  # fmt: skip


def unreadable(job_id: str, why: str) -> Refusal:
    """Say that a PDF is there, or may be, and cannot be read."""
    return Refusal(
        f"the PDF cannot be read: {why}; try again",
        status=500, error_code="ARTIFACT_READ_FAILED", job_id=job_id,
    )  # fmt: skip


def _headers(artifact: Artifact) -> dict[str, str]:
    return {
        "ETag": artifact.etag,
        "Accept-Ranges": "bytes",
        "Content-Disposition": f'attachment; filename="{artifact.job_id}.pdf"',
        "Cache-Control": "private, no-store",
        "X-Content-Type-Options": "nosniff",
    }
