"""The service keys of the workers: what they may do, and how they are made and kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from secrets import token_hex
from typing import Final

from ulak import Engine
from ulak.auth import OPERATOR, SERVICE, AccessScope, Directory, kept_secrets, new_secret
from ulak.services.publishing.settings import WORKERS, PublishingSettings
from ulak.settings import Settings, is_placeholder


def _scope(word: str, allows: str) -> AccessScope:
    return AccessScope(f"publishing:{word}", allows, roles={SERVICE, OPERATOR}, of_a_tenant=False)


READ: Final = _scope("read", "read posts whatever their status")
APPROVE: Final = _scope("approve", "approve posts")
REJECT: Final = _scope("reject", "reject posts")
PREVIEW: Final = _scope("preview", "store previews of posts")
PUBLISH: Final = _scope("publish", "publish posts that have their preview")
ERROR: Final = _scope("error", "mark the publication of a post as failed")
DLQ: Final = _scope("dlq", "read, redrive and discard dead letters")
SCOPES: Final = (READ, APPROVE, REJECT, PREVIEW, PUBLISH, ERROR, DLQ)
CALLS: Final[Mapping[str, tuple[str, ...]]] = {
    "moderation": (READ, APPROVE, REJECT),
    "preview": (READ, PREVIEW),
    "publish": (READ, PUBLISH),
    "dlq": (READ, REJECT, PUBLISH, ERROR, DLQ),
}
"""The calls of each of `WORKERS`. Who tells subscribers reads with the key of `publish`."""
FILE: Final = "publishing.json"
_SECRET: Final = "SECRET_KEY"  # noqa: S105 - its name


def make_keys(engine: Engine, *, least_privilege: bool, actor: str) -> Iterator[tuple[str, str]]:
    """Make a key for each worker, besides those that it has; yield its name and the key. Each is
    good for every internal call, with `least_privilege` for those of its worker."""
    directory = _directory(engine)
    for worker in WORKERS:
        may = CALLS[worker] if least_privilege else SCOPES
        made = directory.create_key(f"{worker}-worker", roles=[SERVICE], scopes=may, actor=actor)
        yield made.key.name, made.text


def with_kept(
    settings: PublishingSettings, platform: Settings
) -> tuple[PublishingSettings, Mapping[str, str]]:
    """Return settings that in dev have what the data folder keeps, where nobody has set a secret or
    a key, and the kept keys that they have, by worker. A placeholder counts as not set."""
    keys = settings.internal_api_keys
    lacking = [name for name, key in keys.items() if not key or is_placeholder(key)]
    if platform.env != "dev" or (settings.secret_key and not lacking):
        return settings, {}
    kept = kept_secrets(
        platform.data / FILE,
        lambda: {_SECRET: token_hex(32), **{name: new_secret() for name in WORKERS}},
        what="the secret and the keys of publishing", instead="SECRET_KEY and INTERNAL_API_KEY",
    )  # fmt: skip
    own = {name: kept[name] for name in lacking}
    secret = settings.secret_key or kept[_SECRET]
    return replace(settings, secret_key=secret, internal_api_keys={**keys, **own}), own


def adopt(engine: Engine, kept: Mapping[str, str]) -> None:
    """Store keys that a folder keeps, so that the backend knows them."""
    for worker, key in kept.items():
        _directory(engine).adopt_key(
            key, name=f"{worker}-worker", roles=[SERVICE], scopes=SCOPES, actor="ulak-up"
        )


def _directory(engine: Engine) -> Directory:
    return Directory(engine.open().store, scopes={scope: scope for scope in SCOPES})
