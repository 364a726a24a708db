"""The jobs that somebody has asked for, the latest first, page by page.

Of a job that one has made that is when it was created, of one that was there already when one asked
for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, replace
from datetime import timedelta
from itertools import islice
from typing import Final, NamedTuple

from ulak import Engine, JobFilter
from ulak.engine.inspect import Owned
from ulak.errors import BadInput, JobNotFound
from ulak.kit.clock import Instant, now, to_datetime, to_instant
from ulak.services.pdf.flow import FLOW, STATUSES, walk
from ulak.services.pdf.jobs import PdfJobStore
from ulak.services.pdf.model import PdfJob, PdfJobStatus

# So many places of an owner are read at once; most pages are smaller.
A_STRETCH: Final = 100
A_SPAN: Final = timedelta(minutes=1)
"""A job's id tells nothing about when it was made, so jobs of everybody are read by spans of time
and sorted: first those of so long, then of twice as long before, and so on."""
LONGEST_SPAN: Final = timedelta(days=2)
"""Jobs that are older than all of these together are read at once; clean-up leaves few."""
_MOMENT: Final = timedelta(microseconds=1)
_PLACE: Final = re.compile(
    r"([0-9]{1,17})\.([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})", re.ASCII
)


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


def list_jobs(
    jobs: PdfJobStore,
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

    states = [state for state, means in STATUSES.items() if status in (None, means)]

    def read() -> Iterator[Listed]:
        places = _made(jobs.engine, whose.tenant, after)
        if whose.owner is not None:
            places = _owned(jobs.engine, whose.owner, after)
        for place in places:
            try:
                if status is None or jobs.engine.get(place.job_id).state in states:
                    job = jobs.get_job(place.job_id, tenant=whose.tenant)
                    if status in (None, job.status):
                        yield Listed(place, job)
            except JobNotFound:
                continue  # pruned since, of another flow, or an owner's namesake's

    return list(islice(read(), limit))


def _owned(engine: Engine, owner: str, after: Place | None) -> Iterator[Place]:
    """Find what somebody owns, by when they became an owner."""
    before = None if after is None else Owned(to_datetime(after.at), after.job_id)
    while page := engine.owners.jobs(owner, before=before, limit=A_STRETCH):
        yield from (Place(to_instant(one.since), one.job_id) for one in page)
        before = page[-1]


def _made(engine: Engine, tenant: str | None, after: Place | None) -> Iterator[Place]:
    """Find the jobs of a tenant, or of all of them, by when they were made."""
    where = JobFilter(flow=FLOW, tenant=tenant)
    # Of the moment of a place there may be more.
    before = None if after is None else to_datetime(after.at) + _MOMENT
    span = A_SPAN
    while True:
        since = (before or now(engine.open())) - span if span <= LONGEST_SPAN else None
        part = replace(where, submitted_since=since, submitted_before=before)
        found = [Place(to_instant(job.created_at), job.id) for job in walk(engine, part)]
        yield from (p for p in sorted(found, reverse=True) if after is None or p < after)
        if since is None:
            return
        before, span = since, 2 * span
