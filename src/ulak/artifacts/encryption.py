"""Artifacts that nobody can read who has only the storage: AES-256-GCM around any other one.

Needs `cryptography`. What is stored begins with a header: a mark, the id of the key, and a nonce.
Header and artifact key are authenticated with the bytes, so that neither another key nor another
place is taken for the right one.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from ulak.artifacts.storage import Stat, StorageBackend, WholeReads, must_be_storable, parts_of
from ulak.errors import ArtifactUnreadable, BadInput, NotSupported

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES: Final = 32
CONTENT_TYPE: Final = "application/octet-stream"
"""What the storage below is told; what an artifact is stands in its encrypted part."""

_MARK = b"ulak-aes256gcm-1\n"
_ID = re.compile(r"[A-Za-z0-9_-]{1,32}")
_NONCE_BYTES = 12
_HEADER = re.compile(rb"ulak-aes256gcm-1\n([A-Za-z0-9_-]{1,32})\n(.{12})", re.DOTALL)
_LONGEST_HEADER = len(_MARK) + 32 + 1 + _NONCE_BYTES


class EncryptedStorage(WholeReads):
    """Keeps artifacts encrypted in another storage. See `StorageBackend` for what it promises.

    `stat` reads the whole artifact, since what is known of it is encrypted with it. There are no
    links past the service: what they led to could not be read. `keys` are 32 bytes for each id: the
    first encrypts; all decrypt, so that a key can follow another and nothing is written again.
    Raises `BadInput` when there is no key, or one cannot be used, and `NotSupported` without
    cryptography.
    """

    def __init__(self, inner: StorageBackend, keys: Mapping[str, bytes]) -> None:
        if not keys:
            raise BadInput("encryption needs a key")
        for id, key in keys.items():
            if not _ID.fullmatch(id) or len(key) != KEY_BYTES:
                raise BadInput(
                    f"the id of a key has 1 to 32 letters, digits, '_' and '-', and a key "
                    f"{KEY_BYTES} bytes; make one with `openssl rand -base64 {KEY_BYTES}`"
                )
        self._inner = inner
        self._ciphers = {id: _cipher(key) for id, key in keys.items()}
        self._current = next(iter(keys))

    def __repr__(self) -> str:
        return f"EncryptedStorage({self._inner!r}, keys={list(self._ciphers)!r})"

    def put_bytes(self, key: str, data: bytes, content_type: str, *, filename: str = "") -> str:
        parts_of(key)
        must_be_storable(content_type, filename)
        nonce = os.urandom(_NONCE_BYTES)
        header = _MARK + self._current.encode() + b"\n" + nonce
        plain = content_type.encode() + b"\n" + data
        sealed = self._ciphers[self._current].encrypt(nonce, plain, _bound(header, key))
        return self._inner.put_bytes(key, header + sealed, CONTENT_TYPE)

    def get_bytes(self, ref: str) -> bytes:
        return self._open(ref)[1]

    def stat(self, ref: str) -> Stat:
        outer = self._inner.stat(ref)
        content_type, data = self._open(ref)
        return replace(
            outer, size=len(data), sha256=sha256(data).hexdigest(), content_type=content_type
        )

    def exists(self, ref: str) -> bool:
        return self._inner.exists(ref)

    def delete(self, ref: str) -> bool:
        return self._inner.delete(ref)

    def list(self, prefix: str = "", *, older_than: datetime | None = None) -> Iterator[str]:
        return self._inner.list(prefix, older_than=older_than)

    def tidy(self, *, older_than: datetime) -> int:
        return self._inner.tidy(older_than=older_than)

    def check(self) -> None:
        self._inner.check()

    def _open(self, ref: str) -> tuple[str, bytes]:
        from cryptography.exceptions import InvalidTag

        stored = self._inner.get_bytes(ref)
        header = _HEADER.match(stored[:_LONGEST_HEADER])
        if header is None:
            raise ArtifactUnreadable(f"{ref} was not stored encrypted", key=ref)
        id = header[1].decode()
        if id not in self._ciphers:
            raise ArtifactUnreadable(
                f"{ref} is encrypted with key {id!r}, which is not among those given", key=ref
            )
        try:
            plain = self._ciphers[id].decrypt(
                header[2], memoryview(stored)[header.end() :], _bound(header[0], ref)
            )
        except InvalidTag:
            raise ArtifactUnreadable(
                f"{ref} cannot be decrypted: key {id!r} is another one now, or it is damaged",
                key=ref,
            ) from None
        content_type, _, data = plain.partition(b"\n")
        return content_type.decode(), data


def read_keys(text: str) -> dict[str, bytes]:
    """Read keys as a setting holds them: `ID:BASE64`, with commas between them, the newest
    first. Raises `ValueError`: one cannot be used; no key is quoted."""
    keys: dict[str, bytes] = {}
    for item in text.split(","):
        id, _, encoded = item.strip().partition(":")
        try:
            key = base64.b64decode(encoded, validate=True)
        except binascii.Error:
            key = b""
        if not _ID.fullmatch(id) or len(key) != KEY_BYTES or id in keys:
            raise ValueError(
                f"write ID:KEY with commas between them, each id once, each key {KEY_BYTES} bytes "
                f"in base64; make one with `openssl rand -base64 {KEY_BYTES}`"
            )
        keys[id] = key
    return keys


def _bound(header: bytes, ref: str) -> bytes:
    return header + b"\n" + ref.encode()


def _cipher(key: bytes) -> AESGCM:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise NotSupported(
            f"encryption needs cryptography, which is not installed ({error}); "
            "pip install 'ulak[encryption]'"
        ) from None
    return AESGCM(key)
