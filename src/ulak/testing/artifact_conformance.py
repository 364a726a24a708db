"""The conformance suite of storages: every promise of `ulak.artifacts.storage`, for any of them.

A storage of your own is held to them by a test module that imports the class,

    from ulak.testing.artifact_conformance import TestStorage

and a fixture `storage` that answers a fresh one, which keeps `pdfs/...` apart from other tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from threading import Barrier
from typing import Any, Final

import pytest

from ulak.artifacts.storage import LONGEST_KEY, LONGEST_PART, StorageBackend
from ulak.errors import ArtifactError, ArtifactMissing, BadInput

PDF: Final = "application/pdf"
KEY: Final = "pdfs/4711/report.pdf"
# Larger than any buffer on the way, and without a period in which a lost block would hide.
LARGE: Final = b"".join(sha256(n.to_bytes(4, "big")).digest() for n in range(200_000))

NO_KEYS: Final = (
    "", "/", "//", "/etc/passwd", "pdfs/", "/pdfs", "pdfs//a", "..", ".", "../a", "a/../b", "a/..",
    "./a", "a/./b", "a/.hidden", "a\0b", "a\\b", "a b", "a\nb", "ä", "%2e%2e/a", "~/a", "a:b",
    "C:/a", "a/" + "b" * (LONGEST_PART + 1), "/".join(["a" * 100] * 6),
)  # fmt: skip
"""None of these is a key: escapes, and what is read differently by others."""


class TestStorage:
    """What anybody may rely on who keeps artifacts."""

    @pytest.mark.shows("P-58")
    @pytest.mark.parametrize(
        "data", [b"", b"x", b"%PDF-1.7\n%%EOF\n", bytes(range(256)) * 3, b"\n" * 600, LARGE],
        ids=["empty", "one", "pdf", "every byte", "newlines", "large"],
    )  # fmt: skip
    def test_what_was_stored_is_read(self, storage: StorageBackend, data: bytes) -> None:
        assert storage.put_bytes(KEY, data, PDF) == KEY
        assert storage.get_bytes(KEY) == data
        found = storage.stat(KEY)
        assert (found.size, found.sha256) == (len(data), sha256(data).hexdigest())
        assert found.content_type == PDF

    def test_an_artifact_that_looks_like_a_stored_one_is_one(self, storage: StorageBackend) -> None:
        line = f"\n%ulak 1 sha256={'0' * 64} size=0 type=text/plain\n".encode()
        storage.put_bytes(KEY, line, PDF)
        assert storage.get_bytes(KEY) == line
        assert storage.stat(KEY).content_type == PDF

    def test_it_is_known_when_an_artifact_was_stored(self, storage: StorageBackend) -> None:
        before = datetime.now(UTC)
        storage.put_bytes(KEY, b"x", PDF)
        # Servers cut to whole seconds.
        slack = timedelta(seconds=2)
        assert before - slack <= storage.stat(KEY).stored_at <= datetime.now(UTC) + slack

    def test_a_second_write_replaces_the_first(self, storage: StorageBackend) -> None:
        storage.put_bytes(KEY, b"a long first one", PDF)
        storage.put_bytes(KEY, b"second", "text/html; charset=utf-8")
        assert storage.get_bytes(KEY) == b"second"
        assert storage.stat(KEY).content_type == "text/html; charset=utf-8"
        assert list(storage.list()) == [KEY]

    def test_the_longest_key_is_one(self, storage: StorageBackend) -> None:
        key = "/".join(["a" * (LONGEST_PART - 1), "b" * (LONGEST_PART - 1)])
        key = f"{key}/{'c' * (LONGEST_KEY - len(key) - 1)}"
        assert len(key) == LONGEST_KEY
        storage.put_bytes(key, b"x", PDF)
        assert storage.get_bytes(key) == b"x"
        assert list(storage.list()) == [key]

    @pytest.mark.parametrize(("start", "end"), [(0, 0), (0, 4), (3, 7), (9, 10), (0, 99), (10, 99)])
    def test_a_range_is_a_part(self, storage: StorageBackend, start: int, end: int) -> None:
        storage.put_bytes(KEY, b"0123456789", PDF)
        assert storage.read_range(KEY, start, end) == b"0123456789"[start:end]

    @pytest.mark.parametrize(("start", "end"), [(-1, 3), (4, 3), (0, -1)])
    def test_what_is_no_range_is_refused(
        self, storage: StorageBackend, start: int, end: int
    ) -> None:
        storage.put_bytes(KEY, b"0123456789", PDF)
        with pytest.raises(BadInput):
            storage.read_range(KEY, start, end)

    def test_what_was_never_stored_is_missing(self, storage: StorageBackend) -> None:
        assert not storage.exists(KEY)
        calls: Iterable[Callable[[], object]] = (
            lambda: storage.get_bytes(KEY),
            lambda: storage.read_range(KEY, 0, 1),
            lambda: storage.stat(KEY),
        )
        for call in calls:
            with pytest.raises(ArtifactMissing) as raised:
                call()
            assert raised.value.key == KEY

    def test_a_deletion_tells_whether_there_was_one(self, storage: StorageBackend) -> None:
        assert storage.delete(KEY) is False
        storage.put_bytes(KEY, b"x", PDF)
        assert storage.exists(KEY)
        assert storage.delete(KEY) is True
        assert not storage.exists(KEY)
        assert storage.delete(KEY) is False
        with pytest.raises(ArtifactMissing):
            storage.get_bytes(KEY)

    def test_a_deletion_leaves_the_neighbours(self, storage: StorageBackend) -> None:
        kept = {"pdfs/4711/other.pdf", "pdfs/4712/report.pdf", "text/4711/report.pdf"}
        for key in (KEY, *kept):
            storage.put_bytes(key, key.encode(), PDF)
        storage.delete(KEY)
        assert set(storage.list()) == kept
        assert {storage.get_bytes(key).decode() for key in kept} == kept

    @pytest.mark.shows("P-23")
    @pytest.mark.parametrize("key", NO_KEYS)
    def test_what_is_no_key_is_refused_by_every_call(
        self, storage: StorageBackend, key: str
    ) -> None:
        calls: Iterable[Callable[[], object]] = (
            lambda: storage.put_bytes(key, b"x", PDF),
            lambda: storage.get_bytes(key),
            lambda: storage.read_range(key, 0, 1),
            lambda: storage.stat(key),
            lambda: storage.exists(key),
            lambda: storage.delete(key),
            lambda: storage.get_presigned_url(key),
        )
        for call in calls:
            with pytest.raises(BadInput):
                call()
        assert list(storage.list()) == []

    @pytest.mark.parametrize("kind", ["", " ", "text/plain\nX: y", "ä/b", "a" * 128, "a/b "])
    def test_what_is_no_content_type_is_refused(self, storage: StorageBackend, kind: str) -> None:
        with pytest.raises(BadInput):
            storage.put_bytes(KEY, b"x", kind)
        assert not storage.exists(KEY)

    @pytest.mark.parametrize("name", ['a".pdf', "a/b.pdf", "a\r\nX: y", "ä.pdf", ".pdf"])
    def test_what_is_no_file_name_is_refused(self, storage: StorageBackend, name: str) -> None:
        with pytest.raises(BadInput):
            storage.put_bytes(KEY, b"x", PDF, filename=name)
        assert not storage.exists(KEY)

    @pytest.mark.parametrize("expires_in", [0, -1, timedelta(days=7, seconds=1), True, "60"])
    def test_a_link_lives_a_second_to_seven_days(
        self, storage: StorageBackend, expires_in: Any
    ) -> None:
        with pytest.raises(BadInput):
            storage.get_presigned_url(KEY, expires_in)

    def test_a_list_has_what_is_below_whole_parts(self, storage: StorageBackend) -> None:
        keys = {"pdfs/a/1.pdf", "pdfs/a/2.pdf", "pdfs/ab/1.pdf", "pdfs2/a/1.pdf", "top"}
        for key in keys:
            storage.put_bytes(key, b"x", PDF)
        assert set(storage.list()) == keys
        assert set(storage.list("pdfs")) == {k for k in keys if k.startswith("pdfs/")}
        assert set(storage.list("pdfs/a")) == {"pdfs/a/1.pdf", "pdfs/a/2.pdf"}
        assert set(storage.list("pdfs/a/")) == set(storage.list("pdfs/a"))
        assert set(storage.list("pdfs/a/1.pdf")) == set()
        assert set(storage.list("none")) == set()
        with pytest.raises(BadInput):
            list(storage.list("../pdfs"))

    @pytest.mark.shows("P-25")
    def test_a_list_can_leave_out_what_is_young(self, storage: StorageBackend) -> None:
        storage.put_bytes(KEY, b"x", PDF)
        stored_at = storage.stat(KEY).stored_at
        assert list(storage.list("pdfs", older_than=stored_at + timedelta(seconds=1))) == [KEY]
        assert list(storage.list("pdfs", older_than=stored_at)) == []

    def test_what_is_listed_may_be_deleted_on_the_way(self, storage: StorageBackend) -> None:
        for number in range(12):
            storage.put_bytes(f"pdfs/{number}/report.pdf", b"x", PDF)
        assert sum(storage.delete(key) for key in storage.list("pdfs")) == 12
        assert list(storage.list()) == []

    def test_a_healthy_storage_passes_its_check(self, storage: StorageBackend) -> None:
        storage.check()
        storage.put_bytes(KEY, b"x", PDF)
        storage.check()
        assert list(storage.list()) == [KEY]

    def test_tidying_leaves_artifacts_alone(self, storage: StorageBackend) -> None:
        storage.put_bytes(KEY, b"x", PDF)
        assert storage.tidy(older_than=datetime.now(UTC) + timedelta(days=1)) == 0
        assert storage.get_bytes(KEY) == b"x"

    @pytest.mark.shows("P-23")
    def test_of_two_writers_one_wins_whole(self, storage: StorageBackend) -> None:
        texts = [bytes([65 + n]) * 100_000 for n in range(4)]
        start = Barrier(len(texts) + 1)

        def write(text: bytes) -> None:
            start.wait()
            for _ in range(5):
                storage.put_bytes(KEY, text, PDF)

        with ThreadPoolExecutor(len(texts)) as pool:
            writes = [pool.submit(write, text) for text in texts]
            start.wait()
            seen = set()
            while not all(w.done() for w in writes):
                try:
                    seen.add(storage.get_bytes(KEY))
                except ArtifactMissing:
                    continue
            for w in writes:
                w.result()
        assert seen <= set(texts)
        assert storage.get_bytes(KEY) in texts

    def test_reading_while_others_delete_finds_all_or_nothing(
        self, storage: StorageBackend
    ) -> None:
        start = Barrier(2)

        def churn() -> None:
            start.wait()
            for _ in range(20):
                storage.put_bytes(KEY, LARGE[:500_000], PDF)
                assert storage.delete(KEY)

        with ThreadPoolExecutor(1) as pool:
            churning = pool.submit(churn)
            start.wait()
            while not churning.done():
                try:
                    assert storage.get_bytes(KEY) == LARGE[:500_000]
                except ArtifactError as error:
                    assert isinstance(error, ArtifactMissing)  # noqa: PT017 - both may happen
            churning.result()
