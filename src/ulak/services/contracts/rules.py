"""The judge: may a subject move to a status? No I/O; every rule of a transition is here."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Final

from ulak.services.contracts.tables import Version

UNKNOWN_SUBJECT_TYPE: Final = "unknown_subject_type"
SUBJECT_NOT_FOUND: Final = "subject_not_found"
STALE_STATUS: Final = "stale_status"
STALE_VERSION: Final = "stale_version"
TERMINAL_STATE: Final = "terminal_state"
INVALID_TRANSITION: Final = "invalid_transition"


@dataclass(frozen=True, slots=True)
class Asked:
    """What of a request the judge looks at; type and statuses in lower case."""

    type: str
    to: str
    _: KW_ONLY
    from_: str | None = None
    """The status that the caller believes it has; None when nobody said."""
    expected_version: int | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a subject stands."""

    status: str
    version: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a request."""

    reason: str | None
    """Why it is refused; None when it is not."""
    changes: bool = False
    """Whether the status changes: it does not where the subject stands there already."""


def birth(version: Version, asked: Asked) -> Standing | None:
    """Return how a subject begins that nobody has heard of.

    None when it must not: an event that overtook the creation of its subject would otherwise
    create it in whatever status it was about.
    """
    table = version.tables.get(asked.type)
    if table is None or asked.from_ != table.initial:
        return None
    return Standing(table.initial, 0)


def judge(version: Version, asked: Asked, standing: Standing | None) -> Verdict:
    """Judge a request against where the subject stands; `standing` is None when there is none.

    In this order: an unknown type, no such subject, a target that it has reached already, a
    caller who believes in an older status or version, a terminal status, a move that the table
    does not list.
    """
    table = version.tables.get(asked.type)
    if table is None:
        return Verdict(UNKNOWN_SUBJECT_TYPE)
    if standing is None:
        return Verdict(SUBJECT_NOT_FOUND)
    if asked.to == standing.status:
        return Verdict(None)
    if asked.from_ is not None and asked.from_ != standing.status:
        return Verdict(STALE_STATUS)
    if asked.expected_version is not None and asked.expected_version != standing.version:
        return Verdict(STALE_VERSION)
    if standing.status in table.terminal:
        return Verdict(TERMINAL_STATE)
    if not table.allows(standing.status, asked.to):
        return Verdict(INVALID_TRANSITION)
    return Verdict(None, changes=True)
