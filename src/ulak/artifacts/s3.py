"""Artifacts in a bucket that speaks S3, by obstore (`pip install 'ulak[s3]'`).

The SHA-256 of an artifact is metadata of its object, so that a link leads to the very bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime, timedelta
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from ulak import errors
from ulak.artifacts import storage
from ulak.clock import Duration, duration_complaint, micros, seconds

if TYPE_CHECKING:
    from types import ModuleType

    from obstore.store import S3Credential, S3Store

_DIGEST = "sha256"
_TYPE = "Content-Type"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_REGION = re.compile(r"[a-z0-9-]{1,64}")
# What a server says in its own words may quote what was signed; these two words cannot.
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
_NO_BUCKET = "NoSuchBucket"


@dataclass(frozen=True, slots=True)
class S3Settings:
    """Which bucket, and how it is asked.

    Nothing else of the environment has a say, with one exception: without a key of their own the
    requests are signed by the role of the machine, as obstore finds it. Raises `BadInput`: naming
    every value that cannot be used.
    """

    bucket: str
    _: KW_ONLY
    endpoint_url: str = ""
    """'' for Amazon's own of the region."""
    region: str = "us-east-1"
    access_key_id: str = field(default="", repr=False)
    secret_access_key: str = field(default="", repr=False)
    prefix: str = ""
    """Whole parts of keys that stand before every key."""
    timeout: Duration = timedelta(seconds=30)
    """Of one request; a guess, for 50 MiB over a slow line."""
    connect_timeout: Duration = timedelta(seconds=5)
    retries: int = 2
    """How often a request is repeated that found nobody, or a server in trouble."""

    def __post_init__(self) -> None:
        wrong = [f"{name}: {said}" for name, said in _mistakes(self)]
        if wrong:
            raise errors.BadInput("; ".join(wrong))

    @classmethod
    def from_settings(cls, said: Mapping[str, str]) -> S3Settings:
        """Read the settings from `VARIABLES`; an empty one is not set, others are not looked at.
        Raises `BadInput`: naming every value that is missing or cannot be used, and no secret."""
        given = {name: said[variable] for name, variable in VARIABLES.items() if said.get(variable)}
        return cls(given.pop("bucket", ""), **given)  # type: ignore[arg-type] # all are texts


VARIABLES: Final[Mapping[str, str]] = {
    "bucket": "S3_BUCKET",
    "endpoint_url": "S3_ENDPOINT_URL",
    "region": "S3_REGION",
    "access_key_id": "S3_ACCESS_KEY_ID",
    "secret_access_key": "S3_SECRET_ACCESS_KEY",
    "prefix": "S3_PREFIX",
}


class S3Storage(storage.WholeReads):
    """Keeps artifacts in a bucket. See `StorageBackend` for what it promises.

    Two deletions of one artifact at the same moment may both say that there was one: S3 does not
    tell. Made in the process that uses it: what obstore runs does not survive a fork. Nothing is
    asked of the bucket before the first call. Raises `NotSupported`: obstore is not installed.
    """

    def __init__(self, settings: S3Settings) -> None:
        self._settings = settings
        self._obstore = _obstore()
        self._store = _open(settings)

    @classmethod
    def from_settings(cls, said: Mapping[str, str]) -> S3Storage:
        """Make the storage of variables, as `S3Settings.from_settings` reads them."""
        return cls(S3Settings.from_settings(said))

    def __repr__(self) -> str:
        return f"S3Storage({self._settings!r})"

    def put_bytes(self, key: str, data: bytes, content_type: str, *, filename: str = "") -> str:
        storage.parts_of(key)
        storage.must_be_storable(content_type, filename)
        attributes = {
            _TYPE: content_type,
            _DIGEST: sha256(data).hexdigest(),
            # For who comes by a link: what is said to those who come to the service itself.
            "Cache-Control": "private, no-store",
            "Content-Disposition": "attachment" + (f'; filename="{filename}"' if filename else ""),
        }
        # In one request, which a bucket takes whole or not at all; parts of an upload that broke
        # off would stay there unseen.
        self._write(
            key, "stored",
            lambda: self._obstore.put(
                self._store, key, data, attributes=attributes, use_multipart=False
            ),
        )  # fmt: skip
        return key

    def delete(self, ref: str) -> bool:
        try:
            found = self.exists(ref)
        except errors.ArtifactUnreadable as error:
            raise errors.ArtifactWriteFailed(str(error), key=ref) from None
        if found:
            self._write(ref, "deleted", lambda: self._obstore.delete(self._store, ref))
        return found

    def get_bytes(self, ref: str) -> bytes:
        storage.parts_of(ref)

        def get() -> tuple[Mapping[str, str], bytes]:
            found = self._obstore.get(self._store, ref)
            return found.attributes, found.bytes().to_bytes()

        attributes, data = self._read(ref, get)
        return storage.must_be_whole(data, _digest(attributes, ref), ref)

    def stat(self, ref: str) -> storage.Stat:
        storage.parts_of(ref)
        found = self._read(ref, lambda: self._head(ref))
        digest, kind = _digest(found.attributes, ref), found.attributes.get(_TYPE, "")
        return storage.Stat(found.meta["size"], digest, str(kind), found.meta["last_modified"])

    def exists(self, ref: str) -> bool:
        storage.parts_of(ref)
        try:
            self._read(ref, lambda: self._head(ref))
        except errors.ArtifactMissing:
            return False
        return True

    def get_presigned_url(self, ref: str, expires_in: Duration = 300) -> str | None:
        storage.parts_of(ref)
        life = storage.read_life(expires_in)
        return str(self._read(ref, lambda: self._obstore.sign(self._store, "GET", ref, life)))

    def list(self, prefix: str = "", *, older_than: datetime | None = None) -> Iterator[str]:
        below = "/".join(storage.parts_of_prefix(prefix)) or None
        return self._list(below, older_than)

    def tidy(self, *, older_than: datetime) -> int:
        return 0  # a write is one request, of which nothing stays when it breaks off

    def check(self) -> None:
        next(self._list(None, None), None)

    def _list(self, prefix: str | None, older_than: datetime | None) -> Iterator[str]:
        pages = iter(self._obstore.list(self._store, prefix, chunk_size=1000))
        while (page := self._read("", lambda: next(pages, None))) is not None:
            for found in page:
                if all(map(storage.is_part, found["path"].split("/"))) and (
                    older_than is None or found["last_modified"] < older_than
                ):
                    yield found["path"]

    def _head(self, ref: str) -> Any:
        try:
            return self._obstore.get(self._store, ref, options={"head": True})
        except FileNotFoundError:
            # An answer without a body does not tell whether the object or its bucket is missing.
            return self._obstore.get(self._store, ref)

    def _read(self, ref: str, ask: Callable[[], Any]) -> Any:
        # Not "from" the errors of obstore: their texts hold what the server was sent.
        try:
            return ask()
        except FileNotFoundError as error:
            if _NO_BUCKET not in str(error):
                raise errors.ArtifactMissing(ref) from None
            why = _why(error)
        except (OSError, self._obstore.exceptions.BaseError) as error:
            why = _why(error)
        raise errors.ArtifactUnreadable(
            f"bucket {self._settings.bucket} does not answer for {ref or 'its list'}: {why}",
            key=ref,
        )

    def _write(self, ref: str, done: str, ask: Callable[[], Any]) -> None:
        try:
            ask()
            return
        except (OSError, self._obstore.exceptions.BaseError) as error:
            why = _why(error)
        raise errors.ArtifactWriteFailed(
            f"{ref} may not have been {done} in bucket {self._settings.bucket}: {why}", key=ref
        )


def _mistakes(settings: S3Settings) -> Iterator[tuple[str, str]]:
    if not settings.bucket:
        yield VARIABLES["bucket"], "it is not set; name the bucket"
    elif not _BUCKET.fullmatch(settings.bucket):
        yield VARIABLES["bucket"], f"{settings.bucket!r} is no name of a bucket"
    if settings.endpoint_url and not _is_endpoint(settings.endpoint_url):
        # It is not quoted: a password in it would be.
        advice = "write http:// or https:// and a host, without path, user or password"
        yield VARIABLES["endpoint_url"], advice
    if not _REGION.fullmatch(settings.region):
        yield VARIABLES["region"], "write a region like us-east-1"
    if bool(settings.access_key_id) != bool(settings.secret_access_key):
        names = (VARIABLES["access_key_id"], VARIABLES["secret_access_key"])
        yield " and ".join(names), "set both, or neither"
    try:
        storage.parts_of_prefix(settings.prefix)
    except errors.BadInput as error:
        yield VARIABLES["prefix"], str(error)
    for name in ("timeout", "connect_timeout"):
        span: Duration = getattr(settings, name)
        if (wrong := duration_complaint(span)) is not None:
            yield name, wrong
        elif micros(span) <= 0:
            yield name, "a request needs some time"
    if settings.retries < 0:
        yield "retries", "write 0 or more"


def _is_endpoint(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port_is_good = parts.port is None or parts.port > 0
    except ValueError:
        return False
    return (
        parts.scheme in ("http", "https")
        and bool(parts.hostname)
        and port_is_good
        and "@" not in parts.netloc
        and parts.path in ("", "/")
        and not parts.query
        and not parts.fragment
    )


def _open(settings: S3Settings) -> S3Store:
    from obstore.store import S3Store

    endpoint = settings.endpoint_url or f"https://s3.{settings.region}.amazonaws.com"
    more: dict[str, Any] = {}
    if settings.access_key_id:
        # By a function and not as configuration, which obstore shows to whoever asks.
        more = {"credential_provider": partial(_credential, settings), "skip_signature": False}
    return S3Store(
        settings.bucket,
        prefix="/".join(storage.parts_of_prefix(settings.prefix)) or None,
        endpoint=endpoint.rstrip("/"),
        # A variable for Amazon's tools would win over `endpoint`.
        aws_endpoint_url_s3=endpoint.rstrip("/"),
        region=settings.region,
        virtual_hosted_style_request=False,
        # Not every server that speaks S3 knows the deletion of many at once.
        disable_bulk_delete=True,
        client_options={
            "allow_http": endpoint.startswith("http://"),
            "timeout": timedelta(seconds=seconds(settings.timeout)),
            "connect_timeout": timedelta(seconds=seconds(settings.connect_timeout)),
        },
        retry_config={
            "max_retries": settings.retries,
            "retry_timeout": timedelta(seconds=seconds(settings.timeout)),
            "backoff": {
                "init_backoff": timedelta(milliseconds=100),
                "max_backoff": timedelta(seconds=2),
                "base": 2,
            },
        },
        **more,
    )


def _credential(settings: S3Settings) -> S3Credential:
    return {
        "access_key_id": settings.access_key_id,
        "secret_access_key": settings.secret_access_key,
        "token": None,
        "expires_at": None,
    }


def _digest(attributes: Mapping[str, Any], ref: str) -> str:
    digest = attributes.get(_DIGEST)
    if not digest:
        raise errors.ArtifactUnreadable(
            f"{ref} has no SHA-256 in its metadata, so it was not stored as an artifact", key=ref
        )
    return str(digest)


def _why(error: Exception) -> str:
    """Return the reason in words that hold nothing of the request."""
    text = str(error)
    found = [match[1] for pattern in (_STATUS, _CODE) if (match := pattern.search(text))]
    if found:
        return " ".join(found)
    return "no answer" if "HTTP error" in text else "an answer that is none of S3"


def _obstore() -> ModuleType:
    try:
        import obstore
        import obstore.exceptions
    except ImportError as error:
        raise errors.NotSupported(
            f"buckets need obstore, which is not installed ({error}); pip install 'ulak[s3]'"
        ) from None
    return obstore
