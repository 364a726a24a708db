"""Which jobs a list shows, and by which index a store finds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, fields
from datetime import datetime
from operator import eq, ge, le, lt
from typing import Any, Final, NamedTuple

from ulak.clock import to_instant
from ulak.core.bounds import short_key, storable_key
from ulak.core.job import JobRow
from ulak.core.lifecycle import BUSY, DONE, READY
from ulak.errors import BadInput
from ulak.ids import find_range, first_id

BY_OWNER: Final = "owners_jobs"
BY_KEY: Final = "jobs_keyed"
BY_ID: Final = ""
BY_ROLE: Final = "jobs_remarkable"
BY_END: Final = "jobs_ended"
UNORDERED: Final = "jobs_unordered"
"""The index of jobs whose ids are not in the order of their submits."""

LATEST: Final = (2**63 - 1, b"\xff" * 16)
"""Before this time and id is everything."""

UNREMARKABLE: Final = (DONE, READY, BUSY)

_COMPARE: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": eq, "<": lt, "<=": le, ">=": ge, "begins": str.startswith,
}  # fmt: skip

_TIMES = ("submitted_since", "submitted_before", "changed_since", "changed_before")
_SAME = ("tenant", "flow", "state", "role", "code")


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs a list shows; every condition that is set must hold.

    Times are aware datetimes: `since` is the first moment that counts, `before` the first that
    does not.

    Raises:
        BadInput: a time has no zone, or no id begins with `id_prefix`.
    """

    _: KW_ONLY
    tenant: str | None = None
    flow: str | None = None
    state: str | None = None
    role: str | None = None
    code: str | None = None
    queue: str | None = None
    submitted_since: datetime | None = None
    submitted_before: datetime | None = None
    changed_since: datetime | None = None
    changed_before: datetime | None = None
    id_prefix: str | None = None
    """How an id begins, with or without hyphens."""
    dedup_key: str | None = None
    """Of jobs too that hold it no longer."""
    owner: str | None = None
    """One of those who own it, in a flow with `owners=True`."""

    def __post_init__(self) -> None:
        for name in _TIMES:
            moment = getattr(self, name)
            if moment is not None and (not isinstance(moment, datetime) or moment.tzinfo is None):
                raise BadInput(f"{name}={moment!r} is no time with a zone; pass an aware datetime")
        for name in ("dedup_key", "owner"):
            if text := getattr(self, name):
                storable_key(short_key(text), f"{name}=")
        if self.id_prefix is not None:
            find_range(self.id_prefix)

    @property
    def unserved(self) -> str | None:
        """Say that no index serves this filter, and what would; None when one does.

        Such a list is right all the same: it reads jobs by id until enough of them match.
        """
        conditions = [f.name for f in fields(self) if getattr(self, f.name) is not None]
        if not conditions or _find_index(self) or _has_range(self):
            return None
        named = " and ".join(f"{name}=" for name in conditions)
        return (
            f"no index serves {named}: jobs are read from the newest on until enough of them "
            "match; submitted_since=, id_prefix=, dedup_key=, owner=, a role other than ready, "
            "busy and done, or role=done with changed_since= would narrow it"
        )


class Term(NamedTuple):
    """One comparison: a column, an operator of SQL or one of `begins`, `ordered`, `unordered`."""

    column: str
    operator: str
    value: Any = None


class Part(NamedTuple):
    """Jobs of a filter that are found by one index; no job is in two parts of it."""

    by: str
    """The name of the index; '' is the primary key."""
    terms: tuple[Term, ...]


def find_terms(where: JobFilter) -> list[Term]:
    """Return the comparisons that a filter means, but for the owner."""
    terms = [Term(name, "=", getattr(where, name)) for name in _SAME]
    if where.dedup_key is not None:
        terms.append(Term("dedup_key", "=", short_key(where.dedup_key)))
    if where.queue is not None:
        terms.append(Term("lane", "begins", f"{where.queue}/"))
    for column, since, before in (
        ("created_at", where.submitted_since, where.submitted_before),
        ("changed_at", where.changed_since, where.changed_before),
    ):
        terms.append(Term(column, ">=", since and to_instant(since)))
        terms.append(Term(column, "<", before and to_instant(before)))
    if where.id_prefix is not None:
        least, greatest = find_range(where.id_prefix)
        terms += Term("id", ">=", least), Term("id", "<=", greatest)
    return [term for term in terms if term.value is not None]


def matcher(where: JobFilter) -> Callable[[JobRow], bool]:
    """Return what tells whether a job is one of a filter, but for the owner."""
    terms = find_terms(where)
    return lambda row: all(_COMPARE[t.operator](getattr(row, t.column), t.value) for t in terms)


def find_parts(where: JobFilter, after: bytes | None = None) -> list[Part]:
    """Return how the jobs of a filter are found, those below the id `after`.

    An id that is a UUIDv7 begins with the time of the submit, so that the primary key has those of
    a span together. Other ids tell no time; they have an index of their own.
    """
    index = _find_index(where)
    first = [Term("owner", "=", where.owner), Term(find_id(where), "<", after)]
    terms = (*(term for term in first if term.value is not None), *find_terms(where))
    bounds = [
        Term("id", term.operator, first_id(term.value))
        for term in terms
        if term.column == "created_at"
    ]
    if not bounds or index in (BY_OWNER, BY_KEY) or where.id_prefix is not None:
        return [Part(index, terms)]
    return [
        Part(index, (*terms, *bounds, Term("id", "ordered"))),
        Part(index or UNORDERED, (*terms, Term("id", "unordered"))),
    ]


def find_id(where: JobFilter) -> str:
    """Return the column whose order is that of the ids in the index of a filter."""
    return "id" if where.owner is None else "job_id"


def _find_index(where: JobFilter) -> str:
    if where.owner is not None:
        return BY_OWNER
    if where.dedup_key is not None:
        return BY_KEY
    if where.role is not None and where.role not in UNREMARKABLE:
        return BY_ROLE
    if where.role == DONE and where.changed_since is not None and not _has_range(where):
        return BY_END
    return BY_ID


def _has_range(where: JobFilter) -> bool:
    """Tell whether the primary key narrows it down."""
    return any(
        condition is not None
        for condition in (where.id_prefix, where.submitted_since, where.submitted_before)
    )
