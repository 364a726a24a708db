"""Storages: in a directory, in a bucket of an emulator, in memory, and encrypted."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.unit.artifacts.s3_server import BUCKET, Emulator, emulator
from ulak.artifacts import EncryptedStorage, LocalStorage, S3Settings, S3Storage, StorageBackend
from ulak.testing.artifacts import MemoryStorage

pytest.register_assert_rewrite("ulak.testing.artifact_conformance")

SECRET = "s3-secret-of-tests-0123456789"  # noqa: S105 - moto takes any


@pytest.fixture(scope="session")
def s3() -> Iterator[Emulator]:
    """An emulator of S3, one for each process of tests."""
    with emulator() as running:
        yield running


@pytest.fixture
def s3_settings(s3: Emulator) -> S3Settings:
    """A part of the bucket that no other test has."""
    return S3Settings(
        BUCKET,
        endpoint_url=s3.url,
        access_key_id="AKIDTEST",
        secret_access_key=SECRET,
        prefix=f"tests/{uuid4().hex}",
    )


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """Where artifacts are kept; not there yet."""
    return tmp_path / "data" / "artifacts"


@pytest.fixture(params=["local", "s3", "memory", "encrypted"])
def storage(request: pytest.FixtureRequest) -> StorageBackend:
    """Each kind of storage, fresh."""
    match request.param:
        case "local":
            return LocalStorage(request.getfixturevalue("base"))
        case "s3":
            return S3Storage(request.getfixturevalue("s3_settings"))
        case "encrypted":
            return EncryptedStorage(MemoryStorage(), {"first": bytes(range(32))})
        case _:
            return MemoryStorage()
