"""What every storage promises: whole artifacts under keys, each with its SHA-256."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Final, Protocol

from ulak.clock import Duration, read_micros
from ulak.errors import ArtifactUnreadable, BadInput

LONGEST_KEY: Final = 512
LONGEST_PART: Final = 200
LONGEST_TYPE: Final = 127

# Neither "." nor ".." nor a hidden name is one, nor is anything that a file system or a URL
# would read differently from what is written.
_PART = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9._-]{{0,{LONGEST_PART - 1}}}")
_TYPE = re.compile(rf"[\x21-\x7e](?:[\x20-\x7e]{{0,{LONGEST_TYPE - 2}}}[\x21-\x7e])?")
_FILENAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._ -]{0,199}")


@dataclass(frozen=True, slots=True)
class Stat:
    """What is known of an artifact without reading it."""

    size: int
    sha256: str
    """Of its bytes, in hexadecimal; two artifacts with the same one are the same."""
    content_type: str
    stored_at: datetime


class StorageBackend(Protocol):
    """Keeps artifacts. Every call may be made from many threads and processes at once.

    A key is parts of letters, digits, `_`, `.` and `-` with `/` between them, none beginning with
    a dot; a ref is the key. A call with any other key raises `BadInput` and touches nothing.
    """

    def put_bytes(self, key: str, data: bytes, content_type: str, *, filename: str = "") -> str:
        """Store an artifact whole and durably, and return its ref; what was there is replaced.

        A reader finds what was there before, or this, never half of it. `filename` is the name in a
        browser that comes by `get_presigned_url`.

        Raises:
            BadInput: the key, the type or the file name cannot be used.
            ArtifactWriteFailed: it was not confirmed; the same call may be made again.
        """

    def get_bytes(self, ref: str) -> bytes:
        """Return the bytes that were stored, compared with their SHA-256; a deletion meanwhile does
        no harm to a reading that has begun.

        Raises:
            ArtifactMissing: there is none.
            ArtifactUnreadable: it is damaged, or the storage does not answer.
        """

    def read_range(self, ref: str, start: int, end: int) -> bytes:
        """Return the bytes from `start` to before `end`, cut off at the last. They are checked as
        those of `get_bytes`, so a part costs as much as the whole.

        Raises:
            BadInput: the range begins before 0, or after its end.
            ArtifactError: as `get_bytes` does.
        """

    def stat(self, ref: str) -> Stat:
        """Return what is known of an artifact; its bytes are not checked. Raises
        `ArtifactError`: as `get_bytes` does."""

    def exists(self, ref: str) -> bool:
        """Tell whether there is an artifact. Raises `ArtifactUnreadable`: the storage does not
        answer, so nobody knows."""

    def delete(self, ref: str) -> bool:
        """Delete an artifact, and tell whether there was one. Raises `ArtifactWriteFailed`: it
        was not confirmed; the same call may be made again."""

    def get_presigned_url(self, ref: str, expires_in: Duration = 300) -> str | None:
        """Return a link that reads the artifact without asking us, None where there is none; a
        secret until it expires. Whether the artifact exists is not looked at. A number means
        seconds. Raises `BadInput`: it would not be good for a second, or for more than seven
        days."""

    def list(self, prefix: str = "", *, older_than: datetime | None = None) -> Iterator[str]:
        """Return the ref of every artifact below a prefix, in no order; what is stored or deleted
        meanwhile may be among them or not.

        Args:
            prefix: Whole parts of keys: `pdfs` is one of `pdfs/a`, not of `pdfs2/a`; '' of all.
            older_than: Only those that were stored before.

        Raises:
            ArtifactUnreadable: the storage does not answer.
        """

    def tidy(self, *, older_than: datetime) -> int:
        """Remove what writes that broke off before have left, and return how much it was. A
        write that is under way and older than that begins anew or fails. Raises
        `ArtifactWriteFailed`: the storage does not answer."""

    def check(self) -> None:
        """Ask whether artifacts can be kept here now, as for `/health/ready`. Raises
        `ArtifactError`: they cannot; the message says why."""


def parts_of(key: str) -> list[str]:
    """Return the parts of a key. Raises `BadInput`: it is none; an escape from where artifacts
    are kept is none either."""
    parts = key.split("/")
    if len(key) > LONGEST_KEY or not all(map(_PART.fullmatch, parts)):
        raise BadInput(
            f"{key[:LONGEST_KEY]!r} is no key of an artifact; it has up to {LONGEST_KEY} letters, "
            "digits, '_', '.', '-' and '/', and no part of it is empty or begins with a dot"
        )
    return parts


def is_part(name: str) -> bool:
    """Tell whether a name can be part of a key."""
    return _PART.fullmatch(name) is not None


def parts_of_prefix(prefix: str) -> list[str]:
    """Return the parts of a prefix; a `/` at its end says nothing. Raises `BadInput`: no key
    begins so."""
    return parts_of(prefix.removesuffix("/")) if prefix else []


def must_be_storable(content_type: str, filename: str) -> None:
    """Refuse with `BadInput` what would not be read as it was meant."""
    if not _TYPE.fullmatch(content_type):
        raise BadInput(
            f"{content_type[:LONGEST_TYPE]!r} is no content type; write one like application/pdf"
        )
    if filename and not _FILENAME.fullmatch(filename):
        raise BadInput(
            f"{filename[:LONGEST_PART]!r} is no name for a download; it has letters, digits, "
            "spaces, '_', '.' and '-'"
        )


def must_be_whole(data: bytes, digest: str, key: str) -> bytes:
    """Return the bytes if they have this SHA-256. Raises `ArtifactUnreadable`: they are not
    those that were stored."""
    if sha256(data).hexdigest() != digest:
        raise ArtifactUnreadable(
            f"{key} is damaged: its bytes are not those that were stored", key=key
        )
    return data


LONGEST_LINK: Final = timedelta(days=7)


def read_life(expires_in: Duration) -> timedelta:
    """Return how long a link is good. Raises `BadInput`: it is no duration, less than a second,
    or more than seven days."""
    life = timedelta(microseconds=read_micros(expires_in, "expires_in="))
    if not timedelta(seconds=1) <= life <= LONGEST_LINK:
        raise BadInput(f"a link is good for a second to seven days, not for {life}")
    return life


class WholeReads:
    """What a storage without ranges and links of its own does."""

    def get_bytes(self, ref: str) -> bytes:
        raise NotImplementedError

    def read_range(self, ref: str, start: int, end: int) -> bytes:
        if not 0 <= start <= end:
            raise BadInput(f"bytes {start} to {end} are no range; write 0 <= start <= end")
        return self.get_bytes(ref)[start:end]

    def get_presigned_url(self, ref: str, expires_in: Duration = 300) -> str | None:
        parts_of(ref)
        read_life(expires_in)
        return None
