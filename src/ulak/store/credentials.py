"""What every store shares about credentials: their lines of audit, which never hold a hash."""

from __future__ import annotations

import json
from typing import Any, Final

from ulak.store.protocol import CredentialRow

KEY: Final = "key"
USER: Final = "user"
LINK: Final = "link"

# What the subject says, and what nobody is shown.
_LEFT_OUT = frozenset({"kind", "id", "hash"})


def subject_of(row: CredentialRow) -> str:
    """Return the subject of a line of audit about a credential."""
    return f"credential/{row.kind}/{row.id}"


def details_of(row: CredentialRow, before: CredentialRow | None) -> str:
    """Write what a credential is now and what it was before, without its hash."""
    was = None if before is None else _facts(before)
    return json.dumps({**_facts(row), "before": was}, separators=(",", ":"))


def changed(row: CredentialRow, stored: CredentialRow | None) -> CredentialRow | None:
    """Return what is to be stored when this row is given, None when its guard refuses it.

    A use that was noted meanwhile stays: it moves no version, so the guard does not see it.
    """
    if stored is None or stored.version != row.version:
        return None
    return row._replace(used_at=stored.used_at, version=row.version + 1)


def _facts(row: CredentialRow) -> dict[str, Any]:
    return {name: value for name, value in row._asdict().items() if name not in _LEFT_OUT}
