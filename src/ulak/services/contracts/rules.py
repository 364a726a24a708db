"""The judge: may a subject move to a status? No I/O; every rule of a transition is here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ulak.services.contracts.requests import Transition
from ulak.services.contracts.tables import Version

UNKNOWN_SUBJECT_TYPE: Final = "unknown_subject_type"
SUBJECT_NOT_FOUND: Final = "subject_not_found"
STALE_STATUS: Final = "stale_status"
STALE_VERSION: Final = "stale_version"
TERMINAL_STATE: Final = "terminal_state"
INVALID_TRANSITION: Final = "invalid_transition"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a request."""

    reason: str | None
    """Why it is refused; None when it is not."""
    changes: bool = False
    """Whether the status changes: it does not where the subject stands there already."""


def birth(version: Version, asked: Transition) -> str | None:
    """Return the status in which a subject begins that nobody has heard of.

    None when it must not: an event that overtook the creation of its subject would otherwise
    create it in whatever status it was about.
    """
    table = version.tables.get(asked.type)
    return table.initial if table is not None and asked.from_ == table.initial else None


def judge(version: Version, asked: Transition, status: str | None, number: int = 0) -> Verdict:
    """Judge a request against where the subject stands, its status and how often that has changed;
    `status` is None when there is no subject.

    In this order: an unknown type, no such subject, a target that it has reached already, a
    caller who believes in an older status or version, a terminal status, a move that the table
    does not list.
    """
    table = version.tables.get(asked.type)
    if table is None:
        return Verdict(UNKNOWN_SUBJECT_TYPE)
    if status is None:
        return Verdict(SUBJECT_NOT_FOUND)
    if asked.to == status:
        return Verdict(None)
    if asked.from_ is not None and asked.from_ != status:
        return Verdict(STALE_STATUS)
    if asked.expected_version is not None and asked.expected_version != number:
        return Verdict(STALE_VERSION)
    if status in table.terminal:
        return Verdict(TERMINAL_STATE)
    if not table.allows(status, asked.to):
        return Verdict(INVALID_TRANSITION)
    return Verdict(None, changes=True)
