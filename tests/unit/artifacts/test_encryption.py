"""Encryption at rest: what the storage below holds, and which keys read it."""

import base64
import sys
from hashlib import sha256

import pytest

from ulak.artifacts import EncryptedStorage
from ulak.artifacts.encryption import read_keys
from ulak.errors import ArtifactMissing, ArtifactUnreadable, BadInput, NotSupported
from ulak.testing.artifacts import MemoryStorage

KEY = "pdfs/4711/report.pdf"
PDF = "application/pdf"
DATA = b"%PDF-1.7\n" + b"what nobody else may read\n" * 100
OLD, NEW = b"o" * 32, b"n" * 32


@pytest.fixture
def inner() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
def storage(inner: MemoryStorage) -> EncryptedStorage:
    return EncryptedStorage(inner, {"old": OLD})


def unreadable(storage: EncryptedStorage, key: str = KEY) -> str:
    with pytest.raises(ArtifactUnreadable) as raised:
        storage.get_bytes(key)
    return str(raised.value)


@pytest.mark.shows("P-58")
def test_the_storage_below_learns_neither_the_bytes_nor_the_type_nor_the_digest(
    storage: EncryptedStorage, inner: MemoryStorage
) -> None:
    storage.put_bytes(KEY, DATA, PDF, filename="4711.pdf")
    below = inner.get_bytes(KEY)
    assert b"PDF" not in below
    assert b"nobody" not in below
    assert b"old" in below[:64]
    assert inner.stat(KEY).content_type != PDF
    assert inner.stat(KEY).sha256 != sha256(DATA).hexdigest()
    assert storage.stat(KEY).sha256 == sha256(DATA).hexdigest()


@pytest.mark.shows("P-58")
def test_the_same_bytes_are_never_encrypted_alike(
    storage: EncryptedStorage, inner: MemoryStorage
) -> None:
    stored = set()
    for _ in range(20):
        storage.put_bytes(KEY, DATA, PDF)
        stored.add(inner.get_bytes(KEY))
    assert len(stored) == 20


@pytest.mark.shows("P-58")
def test_a_wrong_key_reads_nothing(storage: EncryptedStorage, inner: MemoryStorage) -> None:
    storage.put_bytes(KEY, DATA, PDF)
    assert "cannot be decrypted" in unreadable(EncryptedStorage(inner, {"old": NEW}))
    assert "'old'" in unreadable(EncryptedStorage(inner, {"new": NEW}))
    assert storage.get_bytes(KEY) == DATA


@pytest.mark.shows("P-58")
def test_a_key_follows_another_without_anything_being_written_again(
    storage: EncryptedStorage, inner: MemoryStorage
) -> None:
    storage.put_bytes(KEY, DATA, PDF)
    later = EncryptedStorage(inner, {"new": NEW, "old": OLD})
    assert later.get_bytes(KEY) == DATA
    later.put_bytes("pdfs/4712/report.pdf", b"newer", PDF)
    assert EncryptedStorage(inner, {"new": NEW}).get_bytes("pdfs/4712/report.pdf") == b"newer"
    assert "'new'" in unreadable(storage, "pdfs/4712/report.pdf")


@pytest.mark.shows("P-58")
@pytest.mark.parametrize("place", [0, 17, 18, 22, 40, 100, -1])
def test_a_changed_byte_is_noticed_also_by_who_can_mend_the_digest(
    storage: EncryptedStorage, inner: MemoryStorage, place: int
) -> None:
    storage.put_bytes(KEY, DATA, PDF)
    below = bytearray(inner.get_bytes(KEY))
    below[place] ^= 1
    inner.put_bytes(KEY, bytes(below), PDF)
    unreadable(storage)


@pytest.mark.shows("P-58")
def test_an_artifact_in_the_place_of_another_is_noticed(
    storage: EncryptedStorage, inner: MemoryStorage
) -> None:
    storage.put_bytes(KEY, DATA, PDF)
    inner.put_bytes("pdfs/4712/report.pdf", inner.get_bytes(KEY), PDF)
    assert "cannot be decrypted" in unreadable(storage, "pdfs/4712/report.pdf")


@pytest.mark.shows("P-58")
def test_the_id_of_the_key_is_authenticated_too(inner: MemoryStorage) -> None:
    storage = EncryptedStorage(inner, {"old": OLD, "new": OLD})
    storage.put_bytes(KEY, DATA, PDF)
    inner.put_bytes(KEY, inner.get_bytes(KEY).replace(b"\nold\n", b"\nnew\n", 1), PDF)
    assert "cannot be decrypted" in unreadable(storage)


@pytest.mark.parametrize("below", [b"", b"%PDF", b"ulak-aes256gcm-1\nold\nshort"])
def test_what_was_not_encrypted_is_not_handed_out(
    storage: EncryptedStorage, inner: MemoryStorage, below: bytes
) -> None:
    inner.put_bytes(KEY, below, PDF)
    unreadable(storage)


def test_there_is_no_link_past_the_service(storage: EncryptedStorage) -> None:
    storage.put_bytes(KEY, DATA, PDF)
    assert storage.get_presigned_url(KEY) is None


def test_what_is_missing_is_missing(storage: EncryptedStorage) -> None:
    with pytest.raises(ArtifactMissing):
        storage.get_bytes(KEY)


@pytest.mark.parametrize("keys", [{}, {"": OLD}, {"a b": OLD}, {"x" * 33: OLD}, {"a": b"short"}])
def test_keys_that_cannot_be_used_are_refused(inner: MemoryStorage, keys: dict[str, bytes]) -> None:
    with pytest.raises(BadInput):
        EncryptedStorage(inner, keys)


@pytest.mark.shows("P-34")
def test_no_key_is_shown(inner: MemoryStorage) -> None:
    shown = repr(EncryptedStorage(inner, {"old": OLD}))
    assert "old" in shown
    assert "oooo" not in shown


def test_keys_are_read_in_their_order() -> None:
    old, new = (base64.b64encode(key).decode() for key in (OLD, NEW))
    assert list(read_keys(f"new:{new}, old:{old}").items()) == [("new", NEW), ("old", OLD)]


@pytest.mark.parametrize("text", ["", "x", "a:", ":b29v", "a:b29v", "a:!!", "{k},", "{k},{k}"])
def test_what_are_no_keys_are_refused_unquoted(text: str) -> None:
    key = base64.b64encode(OLD).decode()
    with pytest.raises(ValueError, match="openssl") as raised:
        read_keys(text.format(k=f"a:{key}"))
    assert key not in str(raised.value)


def test_without_cryptography_it_is_said_what_to_install(
    inner: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(NotSupported, match=r"ulak\[encryption\]"):
        EncryptedStorage(inner, {"old": OLD})
