"""PDFs over HTTP: whole, in part, or not at all when the caller has them; never on the loop."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from hashlib import sha256
from http import HTTPStatus
from queue import SimpleQueue
from typing import Any, Final, NamedTuple, TypeVar

from fastapi import Response

from ulak.errors import ArtifactError, ArtifactMissing, BadInput
from ulak.services.pdf.envelope import (
    ARTIFACT_MISSING,
    ARTIFACT_READ_FAILED,
    RANGE_NOT_SATISFIABLE,
    Refusal,
)

R = TypeVar("R")

MEDIA_TYPE: Final = "application/pdf"
# The largest PDF that is rendered by default takes a few seconds over a slow line to the bucket.
PATIENCE_S: Final = 30.0
# So many readings at once: what hangs keeps its thread, and nobody else's.
READERS: Final = 8

_RANGE: Final = re.compile(r"bytes=\s*(\d{0,18})-(\d{0,18})\s*", re.IGNORECASE)


class Part(NamedTuple):
    """Bytes of a whole: from `start` to before `end`."""

    start: int
    end: int


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
        """Return what the storage answers.

        Raises:
            Refusal: the artifact is gone, damaged, or did not come in time.
        """
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
    """Return the bytes that a request asks for, after they were compared with their digest; with
    None everything of the answer but its bytes, for a HEAD.

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


def part_of(headers: Mapping[str, str], artifact: Artifact) -> Part | None:
    """Return the part that a request asks for, None for the whole.

    What cannot be read, several ranges at once, and a range of another version are answered with
    the whole, as RFC 9110 allows: a caller that wants a part looks for 206.

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
            status=416, error_code=RANGE_NOT_SATISFIABLE, job_id=artifact.job_id,
            headers={"Content-Range": f"bytes */{size}"},
        )  # fmt: skip
    return Part(start, end)


def lost(job_id: str) -> Refusal:
    """Say that a PDF was stored and is gone before its time."""
    return Refusal(
        "the PDF was stored and is gone; ask for it again to have it rendered anew",
        status=500, error_code=ARTIFACT_MISSING, job_id=job_id,
    )  # fmt: skip


def unreadable(job_id: str, why: str) -> Refusal:
    """Say that a PDF is there, or may be, and cannot be read."""
    return Refusal(
        f"the PDF cannot be read: {why}; try again",
        status=500, error_code=ARTIFACT_READ_FAILED, job_id=job_id,
    )  # fmt: skip


def _headers(artifact: Artifact) -> dict[str, str]:
    return {
        "ETag": artifact.etag,
        "Accept-Ranges": "bytes",
        "Content-Disposition": f'attachment; filename="{artifact.job_id}.pdf"',
        "Cache-Control": "private, no-store",
        "X-Content-Type-Options": "nosniff",
    }
