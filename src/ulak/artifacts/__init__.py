"""Artifacts: bytes that jobs leave behind, in a directory or in a bucket.

    storage = LocalStorage(Path("artifacts"))
    ref = storage.put_bytes("pdfs/4711/report.pdf", data, "application/pdf")
    storage.get_bytes(ref)

What is read is what was written: every artifact is stored with its SHA-256 and compared with it
at each reading. `docs/how-to/keep-artifacts.md` tells the rest.
"""

from ulak.artifacts.encryption import EncryptedStorage
from ulak.artifacts.local import LocalStorage
from ulak.artifacts.s3 import S3Settings, S3Storage
from ulak.artifacts.signing import DownloadLinks
from ulak.artifacts.storage import Stat, StorageBackend

__all__ = [
    "DownloadLinks",
    "EncryptedStorage",
    "LocalStorage",
    "S3Settings",
    "S3Storage",
    "Stat",
    "StorageBackend",
]
