"""Rendered PDFs: stored under keys that name their job, read, deleted, and swept when nobody's."""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from itertools import islice
from typing import Final

from ulak.artifacts import StorageBackend
from ulak.errors import (
    ArtifactError,
    ArtifactMissing,
    ArtifactUnreadable,
    ArtifactWriteFailed,
    BadInput,
)
from ulak.kit.clock import Clock, Instant, micros, to_datetime, to_instant
from ulak.services.pdf.model import PdfErrorCode, PermanentPdfError

CONTENT_TYPE: Final = "application/pdf"
WRITE_FAILED: Final = "artifact_write_failed"
FOLDER: Final = "pdfs"
TRIES: Final = 3
FIRST_WAIT: Final = timedelta(milliseconds=200)
"""Before the second try; each further wait is twice as long. A guess: a restart of a server takes
longer, but an attempt has a browser's place while it waits."""
STALE: Final = timedelta(hours=1)
"""When a write has surely broken off: no attempt lasts so long."""

log = logging.getLogger(__name__)

_A_PAGE = 500
_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
# The instant to the microsecond, and sixteen random digits: of two attempts in one microsecond,
# on two machines or on a clock that stands, neither writes over the other.
_WRITTEN_AS = "%Y%m%dT%H%M%S%fZ"
_KEY = re.compile(rf"{FOLDER}/({_JOB_ID.pattern})/(\d{{8}}T\d{{12}}Z)-[0-9a-f]{{16}}\.pdf")

Needed = Callable[[Sequence[str]], Mapping[str, str]]
"""Answers, of those of these jobs that may have artifacts, which one each needs; '' for any."""


class PdfArtifactStore:
    """The PDFs of jobs, in any storage. Every call may block; asynchronous callers use threads.

    The clock is that of the jobs; a write is tried so often within an attempt.
    """

    def __init__(
        self,
        backend: StorageBackend,
        clock: Clock,
        *,
        tries: int = TRIES,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        if tries < 1:
            raise BadInput(f"an artifact is written in 1 try or more, not in {tries}")
        self.backend = backend
        self._clock = clock
        self._tries = tries
        self._wait = wait

    def generate_key(self, job_id: str) -> str:
        """Return a new key for a PDF of this job, `pdfs/{job_id}/{timestamp}-{64 random bits}.pdf`.
        Raises BadInput: this cannot be the id of a job."""
        written = to_datetime(self._clock.now()).strftime(_WRITTEN_AS)
        return f"{_folder_of(job_id)}/{written}-{secrets.token_hex(8)}.pdf"

    def store_pdf(self, job_id: str, data: bytes) -> str:
        """Store the PDF of an attempt durably under a new key, and return the key.

        It becomes the job's when the attempt is committed; until then, and for ever if the worker
        dies, it is one more file in the job's folder (`delete_others`).

        Raises:
            BadInput: this cannot be the id of a job.
            PermanentPdfError: no try was confirmed: `UNKNOWN`, detail `artifact_write_failed`.
        """
        key = self.generate_key(job_id)
        for attempt in range(1, self._tries + 1):
            try:
                return self.backend.put_bytes(key, data, CONTENT_TYPE, filename=f"{job_id}.pdf")
            except ArtifactWriteFailed as error:
                facts = {"job_id": job_id, "attempt": attempt, "error": str(error)}
                log.warning("a PDF was not stored", extra=facts)
            if attempt < self._tries:
                self._wait(FIRST_WAIT.total_seconds() * 2 ** (attempt - 1))
        why = f"the PDF of job {job_id} could not be stored in {self._tries} tries"
        raise PermanentPdfError(why, code=PdfErrorCode.UNKNOWN, detail=WRITE_FAILED)

    def get_pdf(self, key: str) -> bytes:
        """Return a PDF, compared with its SHA-256.

        Raises:
            ArtifactMissing: it is lost.
            ArtifactUnreadable: it is damaged, or the storage does not answer.
        """
        return self.backend.get_bytes(_must_be_ours(key))

    def exists(self, key: str) -> bool:
        """Tell whether there is such a PDF. Raises ArtifactUnreadable: the storage does not answer,
        so nobody knows."""
        return self.backend.exists(_must_be_ours(key))

    def is_whole(self, key: str, digest: str | None) -> bool:
        """Tell whether there is such a PDF and can be read, with this SHA-256 unless it is None;
        all of it is read. Raises ArtifactUnreadable: the storage does not answer, so nobody
        knows."""
        try:
            data = self.get_pdf(key)
        except ArtifactMissing:
            return False
        except ArtifactUnreadable:
            self.exists(key)  # raises where it is the storage that does not answer
            return False
        return digest is None or sha256(data).hexdigest() == digest

    def delete_pdf(self, key: str) -> bool:
        """Delete a PDF, and tell whether there was one. Raises ArtifactWriteFailed: it was not
        confirmed, so it must be tried again."""
        return self.backend.delete(_must_be_ours(key))

    def delete_others(self, job_id: str, keep: str) -> int:
        """Delete what earlier attempts of a job have stored, once it has succeeded with `keep`;
        return their number.

        Raises:
            ArtifactError: the storage does not answer; some may be deleted.
        """
        if job_id_of(keep) != job_id:
            raise BadInput(f"{keep} is no artifact of job {job_id}")
        found = (key for key in self.backend.list(_folder_of(job_id)) if key != keep)
        return sum(self.backend.delete(key) for key in found)

    def sweep(self, needed: Needed, older_than: timedelta) -> int:
        """Delete each PDF that no job needs and what broken writes have left; return how many PDFs.

        What is under `pdfs/` and was not stored by `store_pdf` is left alone, and so are PDFs
        younger than `older_than`, which is longer than an attempt may last. One that cannot be
        deleted is left for the next sweep. Raises ArtifactError: the storage does not answer.
        """
        self.backend.tidy(older_than=to_datetime(self._clock.now() - micros(STALE)))
        deleted = 0
        for key, job_id in self.find_unneeded(needed, older_than):
            try:
                deleted += self.backend.delete(key)
            except ArtifactError as error:
                facts = {"job_id": job_id, "error": str(error)}
                log.warning("an orphaned PDF was not deleted", extra=facts)
        return deleted

    def find_unneeded(self, needed: Needed, older_than: timedelta) -> Iterator[tuple[str, str]]:
        """Find what `sweep` would delete: the key of each PDF, and the job that it names. Raises
        ArtifactError: the storage does not answer."""
        before = self._clock.now() - micros(older_than)
        old = (key for key in self.backend.list(FOLDER) if _is_older(key, before))
        while page := {key: job_id_of(key) for key in islice(old, _A_PAGE)}:
            known = needed(sorted(set(page.values())))
            for key, job_id in page.items():
                if job_id not in known or known[job_id] not in ("", key):
                    yield key, job_id


def job_id_of(key: str) -> str:
    """Return the id of the job that a key names. Raises BadInput: it is no key of a PDF."""
    if not (found := _KEY.fullmatch(key)):
        raise BadInput(f"{key[:200]!r} is no key of a PDF; one is pdfs/JOB/TIMESTAMP.pdf")
    return found[1]


def _folder_of(job_id: str) -> str:
    if not _JOB_ID.fullmatch(job_id):
        raise BadInput(f"{job_id[:200]!r} cannot be the id of a job")
    return f"{FOLDER}/{job_id}"


def _must_be_ours(key: str) -> str:
    # A caller does not make up where a record points, so the form of the key is not checked.
    if not key.startswith(f"{FOLDER}/"):
        raise BadInput(f"{key[:200]!r} is no key of a PDF; one is pdfs/JOB/TIMESTAMP.pdf")
    return key


def _is_older(key: str, before: Instant) -> bool:
    """Tell whether a key was made before; what is no key of ours is never."""
    found = _KEY.fullmatch(key)
    if not found:
        return False
    try:
        made = datetime.strptime(found[2], _WRITTEN_AS).replace(tzinfo=UTC)
    except ValueError:
        return False  # a month 13, as no clock writes it
    return to_instant(made) < before
