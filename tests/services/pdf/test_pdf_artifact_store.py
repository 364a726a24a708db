"""The PDFs of jobs: their keys, tries, and what is swept."""

import base64
import logging
import os
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ulak.artifacts import LocalStorage
from ulak.clock import ManualClock, SystemClock, micros
from ulak.errors import ArtifactMissing, ArtifactUnreadable, ArtifactWriteFailed, BadInput
from ulak.services.pdf.artifacts import PdfArtifactStore, job_id_of
from ulak.services.pdf.configuration import artifacts_of
from ulak.services.pdf.model import PdfErrorCode, PermanentPdfError
from ulak.services.pdf.settings import load
from ulak.settings import Settings
from ulak.testing.artifacts import MemoryStorage

JOB = "0192e4a0-5b6c-7d10-8a4e-0f2b6c9d1e33"
OTHER = "0192e4a0-5b6c-7d10-8a4e-0f2b6c9d1e34"
PDF = b"%PDF-1.7\n...\n%%EOF\n"
NO_TIME = timedelta(0)

job_ids = st.uuids().map(str) | st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}", fullmatch=True)


class Waits(list[float]):
    """Remembers how long it was to wait, and does not."""

    def __call__(self, seconds: float) -> None:
        self.append(seconds)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def storage(clock: ManualClock) -> MemoryStorage:
    return MemoryStorage(clock)


@pytest.fixture
def waits() -> Waits:
    return Waits()


@pytest.fixture
def pdfs(storage: MemoryStorage, clock: ManualClock, waits: Waits) -> PdfArtifactStore:
    return PdfArtifactStore(storage, clock, wait=waits)


# --- keys -----------------------------------------------------------------------------


@pytest.mark.shows("P-P9")
@settings(max_examples=200, deadline=None)
@given(
    ids=st.lists(job_ids, min_size=2, max_size=8, unique=True),
    steps=st.lists(st.integers(0, 3), min_size=8, max_size=8),
)
def test_different_jobs_never_share_an_artifact_key(ids: list[str], steps: list[int]) -> None:
    """Feature: pdf-render-worker, Property 9: different job ids never share an artifact key."""
    clock = ManualClock()
    stores = [PdfArtifactStore(MemoryStorage(), clock) for _ in range(2)]
    keys: dict[str, str] = {}
    for job_id, step in zip(ids, steps, strict=False):
        # Two stores, as of two workers, and a clock that may not have moved.
        for store in stores:
            for _ in range(3):
                key = store.generate_key(job_id)
                assert key not in keys, "two attempts share a key"
                keys[key] = job_id
        clock.advance(timedelta(microseconds=step))
    # Also where no two keys were made: the folder of one job is never that of another, or in it.
    folders = {job_id: {key.rpartition("/")[0] for key in keys if keys[key] == job_id}
               for job_id in ids}  # fmt: skip
    assert all(len(found) == 1 for found in folders.values())
    assert len(set.union(*folders.values())) == len(ids)
    assert {job_id_of(key) for key in keys} == set(ids)


@pytest.mark.shows("P-P9")
@settings(max_examples=100, deadline=None)
@given(ids=st.lists(job_ids, min_size=2, max_size=4, unique=True), data=st.data())
def test_what_one_job_stores_and_deletes_no_other_notices(ids: list[str], data: Any) -> None:
    """Feature: pdf-render-worker, Property 9: different job ids never share an artifact key."""
    pdfs = PdfArtifactStore(MemoryStorage(), ManualClock())
    stored = {job_id: pdfs.store_pdf(job_id, job_id.encode()) for job_id in ids}
    gone = data.draw(st.sampled_from(ids))
    assert pdfs.delete_pdf(stored[gone])
    for job_id in ids:
        assert pdfs.exists(stored[job_id]) is (job_id != gone)
        if job_id != gone:
            assert pdfs.get_pdf(stored[job_id]) == job_id.encode()


@pytest.mark.shows("P-23")
def test_a_key_names_the_job_and_the_moment(pdfs: PdfArtifactStore, clock: ManualClock) -> None:
    clock.advance(timedelta(hours=1, microseconds=7))
    found = re.fullmatch(
        rf"pdfs/{JOB}/20260101T010000000007Z-[0-9a-f]{{16}}\.pdf", pdfs.generate_key(JOB)
    )
    assert found


@pytest.mark.shows("P-23")
def test_a_thousand_attempts_in_one_microsecond_have_a_thousand_keys(clock: ManualClock) -> None:
    stores = [PdfArtifactStore(MemoryStorage(), clock) for _ in range(2)]
    assert len({store.generate_key(JOB) for store in stores for _ in range(500)}) == 1000


@pytest.mark.shows("P-23")
@pytest.mark.parametrize(
    "job_id", ["", ".", "..", "../x", "a/b", "/a", "a\0", "a b", "a.b", "é", "a\n", "x" * 129]
)
def test_what_cannot_be_the_id_of_a_job_is_refused(pdfs: PdfArtifactStore, job_id: str) -> None:
    with pytest.raises(BadInput):
        pdfs.generate_key(job_id)
    with pytest.raises(BadInput):
        pdfs.store_pdf(job_id, PDF)


@pytest.mark.shows("P-23")
@pytest.mark.parametrize("key", ["", "other/a.pdf", "pdfs/../a.pdf", "/pdfs/a/b.pdf", "pdfs2/a/b"])
def test_no_key_leads_out_of_the_folder_of_pdfs(pdfs: PdfArtifactStore, key: str) -> None:
    for call in (pdfs.get_pdf, pdfs.exists, pdfs.delete_pdf):
        with pytest.raises(BadInput):
            call(key)


# --- storing --------------------------------------------------------------------------


@pytest.mark.shows("P-22", "P-23")
def test_a_pdf_is_stored_read_and_deleted_in_a_directory(tmp_path: Path) -> None:
    pdfs = PdfArtifactStore(LocalStorage(tmp_path / "artifacts"), SystemClock())
    key = pdfs.store_pdf(JOB, PDF)
    assert pdfs.exists(key)
    assert pdfs.get_pdf(key) == PDF
    assert pdfs.backend.read_range(key, 0, 5) == b"%PDF-"
    found = pdfs.backend.stat(key)
    assert (found.size, found.sha256) == (len(PDF), sha256(PDF).hexdigest())
    assert found.content_type == "application/pdf"
    assert [p.parent.name for p in (tmp_path / "artifacts" / "pdfs").rglob("*.pdf")] == [JOB]
    assert pdfs.delete_pdf(key) is True
    assert pdfs.delete_pdf(key) is False
    assert not pdfs.exists(key)
    with pytest.raises(ArtifactMissing):
        pdfs.get_pdf(key)


@pytest.mark.shows("P-16")
def test_a_write_that_fails_is_tried_again_within_the_attempt(
    pdfs: PdfArtifactStore, storage: MemoryStorage, waits: Waits
) -> None:
    storage.fail_writes(2)
    key = pdfs.store_pdf(JOB, PDF)
    assert pdfs.get_pdf(key) == PDF
    assert waits == [0.2, 0.4]
    assert list(storage.list()) == [key]


@pytest.mark.shows("P-16")
def test_a_write_that_goes_on_failing_ends_the_job(
    pdfs: PdfArtifactStore, storage: MemoryStorage, waits: Waits, caplog: pytest.LogCaptureFixture
) -> None:
    storage.fail_writes(3)
    with (
        caplog.at_level(logging.WARNING, "ulak.services.pdf"),
        pytest.raises(PermanentPdfError) as raised,
    ):
        pdfs.store_pdf(JOB, PDF)
    assert (raised.value.code, raised.value.detail) == (
        PdfErrorCode.UNKNOWN, "artifact_write_failed",
    )  # fmt: skip
    assert len(waits) == 2
    assert [record.getMessage() for record in caplog.records] == ["a PDF was not stored"] * 3
    assert [record.attempt for record in caplog.records] == [1, 2, 3]
    # Three were tried, not four: the next would have succeeded.
    assert pdfs.store_pdf(JOB, PDF)


@pytest.mark.shows("P-16")
@pytest.mark.parametrize("tries", [1, 5])
def test_the_number_of_tries_can_be_set(
    storage: MemoryStorage, clock: ManualClock, waits: Waits, tries: int
) -> None:
    pdfs = PdfArtifactStore(storage, clock, tries=tries, wait=waits)
    storage.fail_writes(tries - 1)
    pdfs.store_pdf(JOB, PDF)
    storage.fail_writes(tries)
    with pytest.raises(PermanentPdfError):
        pdfs.store_pdf(JOB, PDF)
    with pytest.raises(BadInput):
        PdfArtifactStore(storage, clock, tries=0)


@pytest.mark.shows("P-16")
def test_a_directory_that_cannot_be_written_ends_the_job(tmp_path: Path, waits: Waits) -> None:
    (tmp_path / "artifacts").write_bytes(b"no directory")
    pdfs = PdfArtifactStore(LocalStorage(tmp_path / "artifacts"), SystemClock(), wait=waits)
    with pytest.raises(PermanentPdfError) as raised:
        pdfs.store_pdf(JOB, PDF)
    assert raised.value.detail == "artifact_write_failed"
    assert len(waits) == 2


@pytest.mark.shows("P-58")
def test_a_damaged_pdf_is_not_handed_out(pdfs: PdfArtifactStore, storage: MemoryStorage) -> None:
    key = pdfs.store_pdf(JOB, PDF)
    storage.damage(key)
    with pytest.raises(ArtifactUnreadable):
        pdfs.get_pdf(key)
    with pytest.raises(ArtifactUnreadable):
        pdfs.backend.read_range(key, 5, 9)


@pytest.mark.shows("P-24")
def test_a_deletion_that_fails_is_told_and_can_be_repeated(
    pdfs: PdfArtifactStore, storage: MemoryStorage
) -> None:
    key = pdfs.store_pdf(JOB, PDF)
    storage.fail_writes(1)
    with pytest.raises(ArtifactWriteFailed):
        pdfs.delete_pdf(key)
    assert pdfs.get_pdf(key) == PDF
    assert pdfs.delete_pdf(key) is True


# --- sweeping -------------------------------------------------------------------------


def knowing(*known: str) -> Any:
    """Answers that of those among these any PDF is needed."""

    def answer(job_ids: Sequence[str]) -> Mapping[str, str]:
        assert len(set(job_ids)) == len(job_ids)
        return {job_id: "" for job_id in job_ids if job_id in known}

    return answer


@pytest.mark.shows("P-25")
def test_a_pdf_whose_job_has_no_record_is_swept_when_it_is_old(
    pdfs: PdfArtifactStore, storage: MemoryStorage, clock: ManualClock
) -> None:
    orphans = [pdfs.store_pdf(OTHER, PDF) for _ in range(2)]
    kept = pdfs.store_pdf(JOB, PDF)
    clock.advance(timedelta(hours=2))
    young = pdfs.store_pdf(OTHER, PDF)

    assert pdfs.sweep(knowing(JOB), timedelta(hours=3)) == 0
    assert set(storage.list()) == {*orphans, kept, young}
    assert pdfs.sweep(knowing(JOB), timedelta(hours=1)) == 2
    assert set(storage.list()) == {kept, young}
    assert pdfs.sweep(knowing(JOB), timedelta(hours=1)) == 0


@pytest.mark.shows("P-25")
def test_every_page_of_a_large_folder_is_swept(
    pdfs: PdfArtifactStore, storage: MemoryStorage, clock: ManualClock
) -> None:
    for number in range(1203):
        pdfs.store_pdf(f"job-{number}", PDF)
    clock.advance(timedelta(days=1))
    kept = [f"job-{number}" for number in range(0, 1203, 3)]
    assert pdfs.sweep(knowing(*kept), NO_TIME) == 1203 - len(kept)
    assert {job_id_of(key) for key in storage.list()} == set(kept)


@pytest.mark.shows("P-25")
def test_what_is_no_pdf_of_ours_is_never_swept(
    pdfs: PdfArtifactStore, storage: MemoryStorage, clock: ManualClock
) -> None:
    strange = {
        "pdfs/readme.txt", f"pdfs/{JOB}/notes.pdf", "other/thing.bin",
        f"pdfs/{JOB}/20261399T000000000000Z-0123456789abcdef.pdf",
    }  # fmt: skip
    for key in strange:
        storage.put_bytes(key, b"x", "text/plain")
    clock.advance(timedelta(days=10_000))
    assert pdfs.sweep(knowing(), NO_TIME) == 0
    assert set(storage.list()) == strange


@pytest.mark.shows("P-25")
def test_nothing_is_swept_when_nobody_can_say_what_is_known(
    pdfs: PdfArtifactStore, storage: MemoryStorage, clock: ManualClock
) -> None:
    key = pdfs.store_pdf(JOB, PDF)
    clock.advance(timedelta(days=1))

    def broken(job_ids: Sequence[str]) -> Mapping[str, str]:
        raise ConnectionError("the store is away")

    with pytest.raises(ConnectionError):
        pdfs.sweep(broken, NO_TIME)
    assert list(storage.list()) == [key]
    storage.go_down()
    with pytest.raises(ArtifactUnreadable):
        pdfs.sweep(knowing(), NO_TIME)


@pytest.mark.shows("P-25")
def test_one_orphan_that_cannot_be_deleted_does_not_keep_the_others(
    pdfs: PdfArtifactStore, storage: MemoryStorage, clock: ManualClock
) -> None:
    for job_id in (JOB, OTHER, "third"):
        pdfs.store_pdf(job_id, PDF)
    clock.advance(timedelta(days=1))
    storage.fail_writes(1)
    assert pdfs.sweep(knowing(), NO_TIME) == 2
    assert pdfs.sweep(knowing(), NO_TIME) == 1
    assert list(storage.list()) == []


@pytest.mark.shows("P-25")
def test_a_sweep_removes_what_broken_writes_have_left(tmp_path: Path) -> None:
    clock = SystemClock()
    pdfs = PdfArtifactStore(LocalStorage(tmp_path), clock)
    pdfs.store_pdf(JOB, PDF)
    left = tmp_path / "pdfs" / JOB / ".writing-0123456789abcdef"
    left.write_bytes(b"half")
    assert pdfs.sweep(knowing(JOB), NO_TIME) == 0
    assert left.exists()
    two_hours_ago = (clock.now() - micros(timedelta(hours=2))) * 1000
    os.utime(left, ns=(two_hours_ago, two_hours_ago))
    assert pdfs.sweep(knowing(JOB), NO_TIME) == 0
    assert not left.exists()


@pytest.mark.shows("P-7")
def test_what_dead_attempts_have_stored_goes_when_the_job_has_succeeded(
    pdfs: PdfArtifactStore, storage: MemoryStorage
) -> None:
    _, _, won = (pdfs.store_pdf(JOB, PDF) for _ in range(3))
    other = pdfs.store_pdf(OTHER, PDF)
    assert pdfs.delete_others(JOB, won) == 2
    assert set(storage.list()) == {won, other}
    with pytest.raises(BadInput):
        pdfs.delete_others(JOB, other)
    assert set(storage.list()) == {won, other}


@pytest.mark.shows("P-7")
def test_a_sweep_finds_what_dead_attempts_have_stored(
    pdfs: PdfArtifactStore, storage: MemoryStorage, clock: ManualClock
) -> None:
    _, won, late = (pdfs.store_pdf(JOB, PDF) for _ in range(3))
    running = pdfs.store_pdf(OTHER, PDF)
    clock.advance(timedelta(hours=1))
    young = pdfs.store_pdf(JOB, PDF)
    swept = pdfs.sweep(lambda job_ids: {JOB: won, OTHER: ""}, timedelta(minutes=30))
    assert swept == 2
    assert set(storage.list()) == {won, running, young}
    assert not pdfs.exists(late)


# --- settings -------------------------------------------------------------------------


@pytest.mark.shows("P-22")
def test_in_development_pdfs_are_kept_below_the_data_folder(tmp_path: Path) -> None:
    platform = Settings().override("test", data=tmp_path)
    pdfs = artifacts_of(load({}, platform), SystemClock())
    key = pdfs.store_pdf(JOB, PDF)
    assert (tmp_path / "artifacts" / key).is_file()
    assert key.startswith("pdfs/")


@pytest.mark.shows("P-58")
def test_with_a_key_pdfs_are_encrypted_at_rest(tmp_path: Path) -> None:
    key = base64.b64encode(os.urandom(32)).decode()
    platform = Settings().override("test", data=tmp_path)
    config = load({"PDF_ARTIFACT_ENCRYPTION_KEYS": f"first:{key}"}, platform)
    assert key not in repr(config)
    pdfs = artifacts_of(config, SystemClock())
    stored = pdfs.store_pdf(JOB, PDF)
    assert pdfs.get_pdf(stored) == PDF
    assert PDF not in (tmp_path / "artifacts" / stored).read_bytes()
    with pytest.raises(BadInput) as raised:
        load({"PDF_ARTIFACT_ENCRYPTION_KEYS": f"first:{key[:-8]}"}, platform)
    assert key[:-8] not in str(raised.value)


def test_a_key_can_be_dated_by_any_clock_that_a_store_has() -> None:
    clock = ManualClock(datetime(2031, 12, 31, 23, 59, 59, 999999, tzinfo=UTC))
    key = PdfArtifactStore(MemoryStorage(), clock).generate_key(JOB)
    assert "/20311231T235959999999Z-" in key
