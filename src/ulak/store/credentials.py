"""Credentials: what makes a caller known, and lines of audit, which never hold a hash."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple, Protocol

from ulak.clock import Clock, Instant


class CredentialRow(NamedTuple):
    """What makes a caller known: a key, a person's password, or a link that logs in once.

    Nothing here is a secret: of a key or a link the hash is stored, of a password a slow one.
    """

    kind: str
    """`key`, `user` or `link`."""
    id: str
    """The public part of a key or a link, the name of a user; unique within its kind."""
    name: str
    """Who the caller is; of a user the same as `id`. A rotated key keeps it."""
    tenant: str | None
    """The only tenant that the caller sees; None sees all."""
    roles: str
    """Separated by spaces, as are scopes."""
    scopes: str
    hash: str
    created_at: Instant
    created_by: str
    expires_at: Instant | None
    revoked_at: Instant | None
    used_at: Instant | None
    """When it was last used, to the minute."""
    version: int
    """Moves with every change but `used_at`; the guard."""


class CredentialStore(Protocol):
    """Keys, people and links, audited."""

    clock: Clock

    def add_credential(self, row: CredentialRow, *, act: str, actor: str, note: str) -> bool:
        """Store a credential; audited, with everything of it but the hash.

        Returns False, and writes nothing, when its kind has this id.
        """

    def change_credential(self, row: CredentialRow, *, act: str, actor: str, note: str) -> bool:
        """Store a credential as given, with the next version; audited, without hashes. When it
        was last used is kept as it is stored.

        Returns False, and writes nothing, when the stored version is not `row.version`: of two
        that change it at once, or spend it, one wins.
        """

    def note_use(self, kind: str, id: str, at: Instant) -> None:
        """Keep when a credential was last used; never backwards, not audited, moves no version."""

    def note_refusal(self, kind: str, id: str, *, act: str, actor: str, note: str) -> None:
        """Keep in the audit that somebody who called themselves so was refused; there may be no
        such credential."""

    def find_credential(self, kind: str, id: str) -> CredentialRow | None:
        """Return a credential, revoked and expired ones too."""

    def credentials(self, kind: str) -> list[CredentialRow]:
        """Return every credential of a kind, by id."""

    def forget_credentials(self, kind: str, *, before: Instant) -> int:
        """Remove the credentials of a kind that expired before then; answer how many."""


KEY: Final = "key"
USER: Final = "user"
LINK: Final = "link"

# What the subject says, and what nobody is shown.
_LEFT_OUT = frozenset({"kind", "id", "hash"})


def credential_subject(row: CredentialRow) -> str:
    return make_subject(row.kind, row.id)


def make_subject(kind: str, id: str) -> str:
    """Return what the audit calls a credential."""
    return f"credential/{kind}/{id}"


def credential_details(row: CredentialRow, before: CredentialRow | None) -> str:
    """Write what a credential is now and what it was before, without its hash."""
    was = None if before is None else _facts(before)
    return json.dumps({**_facts(row), "before": was}, separators=(",", ":"))


def changed_credential(row: CredentialRow, stored: CredentialRow | None) -> CredentialRow | None:
    """Return what is to be stored when this row is given, None when its guard refuses it.

    A use that was noted meanwhile stays: it moves no version, so the guard does not see it.
    """
    if stored is None or stored.version != row.version:
        return None
    return row._replace(used_at=stored.used_at, version=row.version + 1)


def _facts(row: CredentialRow) -> dict[str, Any]:
    return {name: value for name, value in row._asdict().items() if name not in _LEFT_OUT}
