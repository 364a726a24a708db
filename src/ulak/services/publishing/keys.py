"""The service keys of the workers: made for an operator, or in dev once and kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from secrets import token_hex
from typing import Final

from ulak import Engine
from ulak.auth import SERVICE, Directory, kept_secrets, new_secret
from ulak.services.publishing import scopes
from ulak.services.publishing.settings import WORKERS, PublishingSettings
from ulak.settings import Settings, is_placeholder

CALLS: Final[Mapping[str, tuple[str, ...]]] = {
    "moderation": (scopes.READ, scopes.APPROVE, scopes.REJECT),
    "preview": (scopes.READ, scopes.PREVIEW),
    "publish": (scopes.READ, scopes.PUBLISH),
    "dlq": (scopes.READ, scopes.REJECT, scopes.PUBLISH, scopes.ERROR, scopes.DLQ),
}
"""The calls of each of `WORKERS`. Who tells subscribers reads with the key of `publish`."""
FILE: Final = "publishing.json"
_SECRET: Final = "SECRET_KEY"  # noqa: S105 - its name


def make_keys(engine: Engine, *, least_privilege: bool, actor: str) -> Iterator[tuple[str, str]]:
    """Make a key for each worker, besides those that it has; yield its name and the key. Each is
    good for every internal call, with `least_privilege` for those of its worker."""
    directory = _directory(engine)
    for worker in WORKERS:
        may = CALLS[worker] if least_privilege else scopes.SCOPES
        made = directory.create_key(_name(worker), roles=[SERVICE], scopes=may, actor=actor)
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
        what="the secret and the keys of publishing",
        instead="SECRET_KEY and INTERNAL_API_KEY",
    )
    own = {name: kept[name] for name in lacking}
    return replace(
        settings,
        secret_key=settings.secret_key or kept[_SECRET],
        internal_api_keys={**keys, **own},
    ), own


def adopt(engine: Engine, kept: Mapping[str, str]) -> None:
    """Store keys that a folder keeps, so that the backend knows them."""
    for worker, key in kept.items():
        _directory(engine).adopt_key(
            key, name=_name(worker), roles=[SERVICE], scopes=scopes.SCOPES, actor="ulak-up"
        )


def _directory(engine: Engine) -> Directory:
    return Directory(engine.open().store, scopes={scope: scope for scope in scopes.SCOPES})


def _name(worker: str) -> str:
    return f"{worker}-worker"
