"""The settings of PDF rendering, by the names that its specification gives them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import timedelta
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Generic, Literal, TypeVar, cast, get_args, overload

from ulak.core.intake import NORMAL, PRIORITIES
from ulak.errors import BadInput
from ulak.services.pdf.document import Limits, Times
from ulak.settings import ENVIRONMENTS, Settings, read_variables, span, variable, whole_number

Policy = Literal["strict", "degrade"]
Backend = Literal["local", "s3"]
DriverName = Literal["devtools", "playwright"]

LAUNCH_TIMEOUT: Final = timedelta(seconds=10)
"""How long a browser may take to start; fixed by the specification."""
TEMPLATE_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,200}")
USUAL_PRIORITY: Final = NORMAL
"""Of a job whose request says none; 0 is the most urgent of 0 to 3."""
SHORTEST_SECRET: Final = 32
"""Characters of a secret that signs; shorter ones can be guessed."""
_MIB: Final = 1024 * 1024
_YEAR: Final = 366 * 24 * 3600

T = TypeVar("T")


class Seconds:
    """A field of the settings that is a span, and takes a number of seconds as well."""

    def __init__(self, default: float) -> None:
        self._default = timedelta(seconds=default)

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, config: PdfRenderConfig | None, owner: type) -> timedelta:
        if config is None:
            return self._default
        span: timedelta = vars(config)[self._name]
        return span

    def __set__(self, config: PdfRenderConfig, value: timedelta | float) -> None:
        try:
            span = value if isinstance(value, timedelta) else timedelta(seconds=value)
        except (TypeError, ValueError, OverflowError):
            span = None
        if span is None or span < timedelta() or isinstance(value, bool):
            raise BadInput(f"{self._name}= is a number of seconds, or a timedelta; not {value!r}")
        vars(config)[self._name] = span


class Listed(Generic[T]):
    """A list of `security` that the settings take, and show, under its own name too."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, config: None, owner: type) -> None: ...
    @overload
    def __get__(self, config: PdfRenderConfig, owner: type) -> T: ...
    def __get__(self, config: PdfRenderConfig | None, owner: type) -> T | None:
        return None if config is None else cast(T, getattr(config.security, self._name))

    def __set__(self, config: PdfRenderConfig, value: Iterable[str] | None) -> None:
        # `dataclasses.replace` hands over what it has read, as if somebody had said it.
        if value is not None and value is not getattr(config.copied, self._name, None):
            said: dict[str, Any] = {self._name: value}
            security = replace(config.security, **said)
            object.__setattr__(config, "security", security)


@dataclass(frozen=True, slots=True)
class PdfSecurityConfig:
    """What templates and pages may do."""

    _: KW_ONLY
    template_allowlist: frozenset[str] = frozenset()
    """Templates that may be rendered; empty rejects every one."""
    url_allowlist: tuple[str, ...] = ()
    """Regular expressions, each matched against a whole normalised URL; empty is no network."""
    internal_hosts: frozenset[str] = frozenset()
    """Hosts of either URL allow-list that may have addresses which are not public."""
    callback_allowlist: tuple[str, ...] = ()
    """As `url_allowlist`, for the URLs that are told of the end of jobs; empty is none."""
    extra_headers: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    """By host, what is sent along with what pages load from there: tokens, mostly."""

    def __post_init__(self) -> None:
        """Take any collection. Raises BadInput: a list is one text, which would allow its parts."""
        for name, kind in (("template_allowlist", frozenset), ("url_allowlist", tuple)):
            value = getattr(self, name)
            if isinstance(value, str):
                raise BadInput(f'{name}= is a list of texts; write ["{value}"]')
            object.__setattr__(self, name, kind(value))


@dataclass(frozen=True)
class PdfRenderConfig:
    """What is in force. `load` reads it; tests and programs may make one.

    Fields have the names of the specification. Spans are timedeltas, and may be said as numbers of
    seconds; those whose name ends so are numbers.
    """

    _: KW_ONLY
    env: str = "dev"
    copied: PdfSecurityConfig | None = field(default=None, repr=False, compare=False)
    """What `security` is; of these settings' own making, so that a copy knows what was said."""
    security: PdfSecurityConfig = field(default_factory=PdfSecurityConfig)
    template_allowlist: Listed[frozenset[str]] = Listed()
    """That of `security`; said here it counts."""
    url_allowlist: Listed[tuple[str, ...]] = Listed()
    hard_timeout: Seconds = Seconds(60)
    """How long an attempt may take when its request says nothing."""
    max_timeout: Seconds = Seconds(300)
    graceful_cancel_offset: Seconds = Seconds(5)
    lease: Seconds = Seconds(30)
    """So long after its last sign of life a worker is lost, and its attempts have failed."""
    sweep: Seconds = Seconds(30)
    """How long a job may be due before a queue of another make is told of it again."""
    heartbeat_limit: Seconds = Seconds(15)
    """A worker not heard of for longer is not counted on."""
    max_retries: int = 2
    retry_base: Seconds = Seconds(1)
    retry_max: Seconds = Seconds(30)
    artifact_tries: int = 3
    artifact_ttl_seconds: float = 86_400
    cleanup_interval_seconds: float = 3_600
    grace: Seconds = Seconds(86_400)
    """How long expired records are kept, so that clients see that they were there."""
    fail_safe_policy: Policy = "strict"
    limits: Limits = field(default_factory=Limits)
    max_payload_bytes: int = 262_144
    batch_limit: int = 100
    max_batch_bytes: int = 4 * _MIB
    """The largest body of a batch; each of its jobs is held to `max_payload_bytes` besides."""
    tenant_concurrency: int = 4
    """Attempts of one tenant at once, over all workers; 0 is no bound. A guess: more than a small
    machine does at once, and not all of a large one."""
    tenant_queue: int = 0
    """Jobs of one tenant that may wait before new ones are refused; 0 is no bound."""
    max_priority: int = NORMAL
    """The most urgent priority that callers may ask for; 0 is the most urgent there is."""
    storage_backend: Backend = "local"
    artifact_dir: Path = Path("artifacts")
    """Files land in its `pdfs/`."""
    s3: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The `S3_*` variables that are set, by their names."""
    encryption_keys: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """With keys artifacts are encrypted, with the first of them; by their ids."""
    template_dir: Path | None = None
    concurrency: int = field(default_factory=lambda: os.cpu_count() or 1)
    recycle_after: int = 100
    """Renders after which a browser is replaced; 0 never."""
    idle_after: timedelta = timedelta(minutes=5)
    """A browser that nobody has needed for so long is let go; nothing keeps it for ever."""
    driver: DriverName = "playwright"
    chromium: Path | None = None
    """The browser's program; None looks for it."""
    callback_secret: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "copied", self.security)

    @property
    def artifact_ttl(self) -> timedelta:
        """How long a PDF is kept."""
        return timedelta(seconds=self.artifact_ttl_seconds)

    @property
    def cleanup_interval(self) -> timedelta:
        """How often what is past its time is cleaned up."""
        return timedelta(seconds=self.cleanup_interval_seconds)

    @property
    def times(self) -> Times:
        """The times of an attempt whose request says nothing."""
        return self.times_for(None)

    @property
    def stage_timeout(self) -> timedelta:
        """Above the largest hard timeout with everything around it, so that the worker's own
        limits always come first."""
        return self.max_timeout + LAUNCH_TIMEOUT + timedelta(seconds=60)

    def times_for(self, timeout_s: int | None) -> Times:
        """Return the times of an attempt; None is the configured hard timeout. Raises BadInput: it
        is not above the graceful offset, or above the largest."""
        if timeout_s is None:
            return Times(self.hard_timeout, self.graceful_cancel_offset)
        least, most = _seconds(self.graceful_cancel_offset), _seconds(self.max_timeout)
        if isinstance(timeout_s, bool) or not least < timeout_s <= most:
            raise BadInput(f"a timeout is a whole number of seconds from {least + 1} to {most}")
        return Times(timedelta(seconds=timeout_s), self.graceful_cancel_offset)

    def priority_for(self, priority: int | None) -> int:
        """Return the priority of a job, 0 being the most urgent of 0 to 3; None is the usual one.
        Raises BadInput: it is more urgent than callers may ask for, or there is none such."""
        if priority is None:
            return max(NORMAL, self.max_priority)
        if isinstance(priority, bool) or priority not in PRIORITIES[self.max_priority :]:
            raise BadInput(
                f"a priority is a whole number from {self.max_priority}, the most urgent that may "
                f"be asked for, to {PRIORITIES[-1]}"
            )
        return priority


def load(
    environ: Mapping[str, str] | None = None, platform: Settings | None = None
) -> PdfRenderConfig:
    """Read the settings of this process, by default from its own environment. Raises BadInput:
    naming every value that cannot be used and everything that is missing."""
    platform = Settings() if platform is None else platform
    wrong: list[str] = []
    found: dict[str, Any] = {}
    for name, read in _READERS.items():
        # One at a time, so that what does not fit together is told along with what cannot be read.
        try:
            found |= read_variables({name: read}, environ)
        except BadInput as error:
            wrong.append(str(error))
    config = _made(found, platform)
    wrong += _misfits(config)
    if config.env == "production":
        wrong += _lacking_in_production(config, platform)
    if wrong:
        raise BadInput("; ".join(wrong))
    return config


def values_of(config: PdfRenderConfig) -> dict[str, Any]:
    """Return every setting in force by its variable."""
    # Spans are shown with their unit, also those that are numbers of seconds.
    values = {
        name: attrgetter(place.removesuffix("_seconds"))(config)
        for name, (place, _) in _SETTINGS.items()
    }
    return values | {name: config.s3.get(name, "") for name in S3_VARIABLES}


def _made(found: Mapping[str, Any], platform: Settings) -> PdfRenderConfig:
    parts: dict[str, dict[str, Any]] = {"": {}, "limits": {}, "security": {}}
    for name, (place, _) in _SETTINGS.items():
        if name in found:
            part, _, member = place.rpartition(".")
            parts[part][member] = found[name]
    # The platform's own default is a hidden folder, and these are files that people open.
    data = Path() if platform.source("data") == "default" else platform.data
    return PdfRenderConfig(
        **{"env": platform.env, "artifact_dir": data / "artifacts", **parts[""]},
        limits=Limits(**parts["limits"]),
        security=PdfSecurityConfig(**parts["security"]),
        s3={name: found[name] for name in S3_VARIABLES if name in found},
    )


def _misfits(config: PdfRenderConfig) -> Iterator[str]:
    hard, most = _seconds(config.hard_timeout), _seconds(config.max_timeout)
    offset = _seconds(config.graceful_cancel_offset)
    if offset >= hard:
        yield (
            f"PDF_HARD_TIMEOUT is {hard} s, and the page is asked to close {offset} s before; "
            "raise it, or lower PDF_GRACEFUL_CANCEL_OFFSET"
        )
    if hard > most:
        yield (
            f"PDF_HARD_TIMEOUT is {hard} s, above PDF_MAX_TIMEOUT, which is {most} s; lower it, or "
            "raise the other"
        )
    if config.retry_base > config.retry_max:
        yield "PDF_RETRY_BASE_SECONDS is above PDF_RETRY_MAX_SECONDS; lower it"
    if config.security.callback_allowlist and not config.callback_secret:
        yield (
            "PDF_CALLBACK_ALLOWLIST lets callbacks be sent, and nothing signs them; set "
            "PDF_CALLBACK_SECRET"
        )
    if config.storage_backend == "s3" and "S3_BUCKET" not in config.s3:
        yield "PDF_STORAGE_BACKEND=s3 needs S3_BUCKET; set it"


def _lacking_in_production(config: PdfRenderConfig, platform: Settings) -> Iterator[str]:
    """Production never falls back: to a disk that goes with the machine, or to any page."""
    if config.storage_backend != "s3":
        yield (
            "in production artifacts are kept in a bucket: set PDF_STORAGE_BACKEND=s3 and S3_BUCKET"
        )
    if not config.security.template_allowlist:
        yield (
            "in production the templates that may be rendered are named: set PDF_TEMPLATE_ALLOWLIST"
        )
    if not platform.secret:
        yield (
            f"in production every caller is authenticated: set {variable('secret')}, the same for "
            "every process"
        )


def _seconds(span: timedelta) -> int:
    return int(span.total_seconds())


def _span(least: int, most: int = _YEAR) -> Callable[[str], timedelta]:
    return span(whole_number(least, most))


def _one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"it is {text[:40]!r}; write {' or '.join(words)}")
        return text

    return read


def _names(text: str) -> frozenset[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if not TEMPLATE_NAME.fullmatch(name):
            raise ValueError(
                f"{name[:40]!r} is no name of a template; write letters, digits and _ . - with "
                "commas between names"
            )
    return frozenset(names)


def _patterns(text: str) -> tuple[str, ...]:
    advice = 'write a JSON list of regular expressions, as ["https://cdn\\\\.example\\\\.org/.*"]'
    said = _json(text, advice)
    if not isinstance(said, list) or not all(isinstance(one, str) and one for one in said):
        raise ValueError(f"it is no list of texts; {advice}")
    # Here and not above: few set it. Refuses what cannot be read, or would take too long.
    from ulak.services.pdf.security.urls import UrlPatterns

    UrlPatterns(cast(list[str], said))
    return tuple(cast(list[str], said))


def _json(text: str, advice: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        # Not as the parser says it: that may quote a token.
        raise ValueError(f"it is no JSON; {advice}") from None


def _hosts(text: str) -> frozenset[str]:
    hosts = [host.strip().lower() for host in text.split(",") if host.strip()]
    for host in hosts:
        if not re.fullmatch(r"[a-z0-9.:\[\]-]{1,253}", host):
            raise ValueError(f"{host[:40]!r} is no host; write names with commas between them")
    return frozenset(hosts)


def _extra_headers(text: str) -> dict[str, dict[str, str]]:
    advice = 'write a JSON object by host, as {"files.example.org": {"Authorization": "..."}}'
    said = _json(text, advice)
    if not isinstance(said, dict) or not all(isinstance(one, dict) for one in said.values()):
        raise ValueError(f"it is no object of objects; {advice}")
    # Here and not above: few set it.
    from ulak.services.pdf.fetching import ExtraHeaders

    ExtraHeaders(said)
    return said


def _folder(text: str) -> Path:
    if "\x00" in text:
        raise ValueError("write the path of a folder")
    return Path(text).expanduser()


def _folder_that_is_there(text: str) -> Path:
    folder = _folder(text)
    if not folder.is_dir():
        raise ValueError(f"there is no folder {text[:200]}")
    return folder


def _encryption_keys(text: str) -> dict[str, bytes]:
    # Here and not above: few set it.
    from ulak.artifacts.encryption import read_keys

    return read_keys(text)


def _program(text: str) -> Path:
    path = _folder(text)
    if not (path.is_file() and os.access(path, os.X_OK)):
        raise ValueError(f"{text[:200]} is no program; write the path of the browser's own binary")
    return path


def _signing_secret(text: str) -> str:
    if len(text) < SHORTEST_SECRET:
        raise ValueError(f"write {SHORTEST_SECRET} characters or more, as `openssl rand -hex 32`")
    return text


SECRETS: Final = (
    "PDF_ARTIFACT_ENCRYPTION_KEYS", "PDF_CALLBACK_SECRET", "PDF_EXTRA_HEADERS", "S3_ACCESS_KEY_ID",
    "S3_SECRET_ACCESS_KEY",
)  # fmt: skip
S3_VARIABLES: Final = (
    "S3_BUCKET", "S3_ENDPOINT_URL", "S3_REGION", "S3_ACCESS_KEY_ID", "S3_SECRET_ACCESS_KEY",
    "S3_PREFIX",
)  # fmt: skip

_SETTINGS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "PDF_ENV": ("env", _one_of(*ENVIRONMENTS)),
    "PDF_HARD_TIMEOUT": ("hard_timeout", _span(1, 3600)),
    "PDF_MAX_TIMEOUT": ("max_timeout", _span(1, 3600)),
    "PDF_GRACEFUL_CANCEL_OFFSET": ("graceful_cancel_offset", _span(1, 3600)),
    "PDF_LEASE_SECONDS": ("lease", _span(1, 3600)),
    "PDF_SWEEP_SECONDS": ("sweep", _span(1, 3600)),
    "PDF_HEARTBEAT_SECONDS": ("heartbeat_limit", _span(1, 3600)),
    "PDF_MAX_RETRIES": ("max_retries", whole_number(0, 100)),
    "PDF_RETRY_BASE_SECONDS": ("retry_base", _span(0, 3600)),
    "PDF_RETRY_MAX_SECONDS": ("retry_max", _span(0, 24 * 3600)),
    "PDF_ARTIFACT_TRIES": ("artifact_tries", whole_number(1, 20)),
    "PDF_ARTIFACT_TTL_SECONDS": ("artifact_ttl_seconds", whole_number(1, _YEAR)),
    "PDF_CLEANUP_INTERVAL_SECONDS": ("cleanup_interval_seconds", whole_number(1, _YEAR)),
    "PDF_GRACE_SECONDS": ("grace", _span(0)),
    "PDF_FAIL_SAFE_POLICY": ("fail_safe_policy", _one_of(*get_args(Policy))),
    "PDF_MAX_PAYLOAD_BYTES": ("max_payload_bytes", whole_number(1, 64 * _MIB)),
    "PDF_BATCH_LIMIT": ("batch_limit", whole_number(1, 1000)),
    # No request to ulak has a larger body.
    "PDF_MAX_BATCH_BYTES": ("max_batch_bytes", whole_number(1, 8 * _MIB)),
    "PDF_TENANT_CONCURRENCY": ("tenant_concurrency", whole_number(0, 10_000)),
    "PDF_TENANT_QUEUE": ("tenant_queue", whole_number(0, 10_000_000)),
    "PDF_MAX_PRIORITY": ("max_priority", whole_number(PRIORITIES[0], PRIORITIES[-1])),
    "PDF_STORAGE_BACKEND": ("storage_backend", _one_of(*get_args(Backend))),
    "PDF_ARTIFACT_DIR": ("artifact_dir", _folder),
    "PDF_ARTIFACT_ENCRYPTION_KEYS": ("encryption_keys", _encryption_keys),
    "PDF_TEMPLATE_DIR": ("template_dir", _folder_that_is_there),
    "PDF_CONCURRENCY": ("concurrency", whole_number(1, 64)),
    "PDF_RECYCLE_AFTER": ("recycle_after", whole_number(0, 1_000_000)),
    "PDF_IDLE_SECONDS": ("idle_after", _span(0)),
    "PDF_DRIVER": ("driver", _one_of(*get_args(DriverName))),
    "PDF_CHROMIUM": ("chromium", _program),
    "PDF_MAX_HTML_BYTES": ("limits.html_bytes", whole_number(1, 1024 * _MIB)),
    "PDF_MAX_DOM_NODES": ("limits.dom_nodes", whole_number(1, 100_000_000)),
    "PDF_MAX_PAGES": ("limits.pages", whole_number(1, 100_000)),
    "PDF_MAX_OUTPUT_BYTES": ("limits.output_bytes", whole_number(1, 4096 * _MIB)),
    "PDF_MAX_MEMORY_BYTES": ("limits.memory_bytes", whole_number(16 * _MIB, 1024 * 1024 * _MIB)),
    "PDF_TEMPLATE_ALLOWLIST": ("security.template_allowlist", _names),
    "PDF_URL_ALLOWLIST": ("security.url_allowlist", _patterns),
    "PDF_INTERNAL_HOSTS": ("security.internal_hosts", _hosts),
    "PDF_CALLBACK_ALLOWLIST": ("security.callback_allowlist", _patterns),
    "PDF_CALLBACK_SECRET": ("callback_secret", _signing_secret),
    "PDF_EXTRA_HEADERS": ("security.extra_headers", _extra_headers),
}
_READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    **{name: read for name, (_, read) in _SETTINGS.items()}, **dict.fromkeys(S3_VARIABLES, str)
}  # fmt: skip
