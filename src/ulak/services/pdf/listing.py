"""The jobs that somebody has asked for, the latest first, page by page.

A job's id tells nothing about when it was made, so a list goes by time: of a job that one has made
by when it was created, of one that was there already by when one asked for it.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from ulak import Engine, JobFilter
from ulak.errors import BadInput, JobNotFound
from ulak.kit.clock import Instant, to_instant
from ulak.kit.ids import from_text
from ulak.services.pdf.flow import FLOW, STATUSES
from ulak.services.pdf.jobs import PdfJobStore
from ulak.services.pdf.model import PdfJob, PdfJobStatus
from ulak.services.pdf.schema import SCHEMA
from ulak.tables import Tables

# So many places of a list are read at once; most pages are smaller.
A_STRETCH: Final = 100


class Place(NamedTuple):
    """Where a job stands in a list: the later, the nearer to its beginning."""

    at: Instant
    job_id: str

    def __str__(self) -> str:
        return f"{self.at}.{self.job_id}"

    @classmethod
    def read(cls, text: str) -> Place:
        """Read a place as a list has written it.

        Raises:
            BadInput: no list has written this.
        """
        found = _PLACE.fullmatch(text)
        if found is None:
            raise BadInput("take it from the `next` of the page before")
        return cls(int(found[1]), found[2])


_PLACE: Final = re.compile(
    r"([0-9]{1,18})\.([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})", re.ASCII
)
_BEGINNING: Final = Place(2**62, "ffffffff-ffff-ffff-ffff-ffffffffffff")


class Listed(NamedTuple):
    """A job and where it stands."""

    place: Place
    job: PdfJob


@dataclass(frozen=True, slots=True)
class Whose:
    """Whose jobs a list has."""

    _: KW_ONLY
    tenant: str | None
    """Of this tenant; None for every one."""
    owner: str | None
    """Made by this principal, or asked for again; None for whoever it was."""


class Made(Protocol):
    """Answers the jobs that somebody has made."""

    def made(self, whose: Whose, states: Sequence[str], *, after: Place, limit: int) -> list[Place]:
        """Return so many places that follow another one."""


class Listing:
    """Lists jobs; `made` says where those are that somebody has made."""

    def __init__(self, jobs: PdfJobStore, made: Made | None = None) -> None:
        self._jobs = jobs
        self._made = made_of(jobs.engine) if made is None else made

    def page(
        self,
        whose: Whose,
        *,
        status: PdfJobStatus | None = None,
        after: Place | None = None,
        limit: int,
    ) -> list[Listed]:
        """Return the jobs that follow a place, as they stand now.

        What moves while it is read is in the page only if it fits when it is looked at.

        Raises:
            StoreError: the store does not answer.
        """
        start = _BEGINNING if after is None else after
        states = [state for state, means in STATUSES.items() if status in (None, means)]
        made = _walk(lambda at, n: self._made.made(whose, states, after=at, limit=n), start)
        added: Iterator[Place] = iter(())
        if (owner := whose.owner) is not None:
            read = self._jobs.tables.owned_by
            added = _walk(
                lambda place, n: [Place(*row) for row in read(owner, before=place, limit=n)], start
            )
        found: list[Listed] = []
        for place in heapq.merge(made, added, reverse=True):
            job = self._find(place.job_id, whose)
            if job is not None and status in (None, job.status):
                found.append(Listed(place, job))
                if len(found) == limit:
                    break
        return found

    def _find(self, job_id: str, whose: Whose) -> PdfJob | None:
        try:
            return self._jobs.get_job(job_id, tenant=whose.tenant)
        except JobNotFound:
            return None  # pruned since, or an owner's namesake in another tenant


def made_of(engine: Engine) -> Made:
    """Return where the jobs of an engine are: in its database, or in this process."""
    if engine.store.features.open_transactions:
        return SqlMade(Tables(engine, SCHEMA))
    return MemoryMade(engine)


class SqlMade:
    """Jobs by the engine's own table, which everybody may read.

    The engine has no index for this question and the service makes none on a table that is not
    its own: a page looks at every job of the store. Clean-up keeps those of the service few.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._is_uuid = tables.database.name == "postgresql"

    def made(self, whose: Whose, states: Sequence[str], *, after: Place, limit: int) -> list[Place]:
        """Return so many places that follow another one."""
        terms: list[str] = []
        values: list[object] = []
        for column, value in (("submitter", whose.owner), ("tenant", whose.tenant)):
            if value is not None:
                terms.append(f"AND {column} = ? ")
                values.append(value)
        if len(states) < len(STATUSES):
            terms.append(f"AND state IN ({', '.join('?' * len(states))}) ")
            values += states
        values += [after.at, after.job_id if self._is_uuid else from_text(after.job_id), limit]
        statement = _MADE.format(
            id="CAST(id AS text)" if self._is_uuid else "hex(id)", terms="".join(terms),
            mark="CAST(? AS uuid)" if self._is_uuid else "?",
        )  # fmt: skip
        rows = self._tables.read(statement, *values)
        return [Place(at, str(UUID(job_id))) for at, job_id in rows]


class MemoryMade:
    """Jobs of a store that lives in this process, all of them looked at."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def made(self, whose: Whose, states: Sequence[str], *, after: Place, limit: int) -> list[Place]:
        """Return so many places that follow another one."""
        where = JobFilter(flow=FLOW, tenant=whose.tenant)
        found: list[Place] = []
        last: str | None = None
        while page := self._engine.jobs(where, after=last, limit=1000):
            last = page[-1].id
            found += [
                Place(to_instant(job.created_at), job.id)
                for job in page
                if whose.owner in (None, job.submitter) and job.state in states
            ]
        return heapq.nlargest(limit, (place for place in found if place < after))


def _walk(read: Callable[[Place, int], list[Place]], start: Place) -> Iterator[Place]:
    """Return every place that follows one, stretch by stretch."""
    while stretch := read(start, A_STRETCH):
        yield from stretch
        if len(stretch) < A_STRETCH:
            return
        start = stretch[-1]


_MADE: Final = (
    f"SELECT created_at, {{id}} FROM {{{{schema}}}}.jobs WHERE flow = '{FLOW}' "  # noqa: S608 - made of constants
    "{terms}AND (created_at, id) < (?, {mark}) ORDER BY created_at DESC, id DESC LIMIT ?"
)
