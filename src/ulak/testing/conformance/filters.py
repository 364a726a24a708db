"""Filters: jobs are found by time, by how their id begins and by dedup key."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

import pytest

from ulak.clock import to_datetime
from ulak.core.bounds import short_key
from ulak.core.intake import Submission, begin
from ulak.core.job import JobRow, Payload
from ulak.core.outcome import Cancel, Held
from ulak.ids import time_ordered_id, to_text, unguessable_id
from ulak.store.protocol import JobFilter
from ulak.testing.conformance.desk import Desk, Suite
from ulak.testing.conformance.flows import LINE, SINGLE

A_PAGE = 3
LATER = datetime(9999, 12, 31, tzinfo=UTC)


class TestFilters(Suite):
    """A list has exactly the jobs that were meant, newest id first, page by page."""

    @pytest.mark.shows("E-75")
    @pytest.mark.parametrize("ids", ["ordered", "unguessable", "both"])
    @pytest.mark.parametrize("role", [None, "cancelled", "ready"])
    def test_jobs_are_found_by_when_they_were_submitted(
        self, desk: Desk, ids: str, role: str | None
    ) -> None:
        jobs: list[JobRow] = []
        for n in range(9):
            is_ordered = ids == "ordered" or (ids == "both" and n % 2 == 0)
            jobs.append(_submit(desk, is_ordered=is_ordered))
            desk.turn(microseconds=700)
        desk.write(*[desk.act(row, Cancel("ada")) for row in jobs[::3]])
        dates = [to_datetime(row.created_at) for row in jobs]
        wanted = {row.id for row in desk.jobs() if role in (None, row.role)}
        for since, before in ((None, 4), (2, None), (2, 7), (4, 4), (0, 9)):
            where = JobFilter(
                role=role,
                submitted_since=None if since is None else dates[since],
                submitted_before=None if before is None else [*dates, LATER][before],
            )
            found = {row.id for row in jobs[since:before]} & wanted
            assert _pages(desk, where) == sorted(found, reverse=True), where
            assert desk.store.count_jobs(where) == len(found)

    @pytest.mark.shows("E-75")
    @pytest.mark.parametrize("role", [None, "done", "cancelled", "held", "ready"])
    def test_jobs_are_found_by_when_they_last_changed(self, desk: Desk, role: str | None) -> None:
        desk.hire("w", lease=timedelta(days=1))
        for n in range(10):
            row = desk.submit(SINGLE, after=timedelta(days=1) if n % 5 == 4 else None)
            desk.turn(minutes=1)
            if n % 5 < 3:
                leased = desk.lease(SINGLE)
                assert leased.id == row.id
                outcome = Held("odd", "look") if n % 5 == 1 else None
                desk.write(desk.end(leased, outcome, flow=SINGLE))
            elif n % 5 == 3:
                desk.write(desk.act(row, Cancel("ada"), flow=SINGLE))
            desk.turn(minutes=1)
        jobs = [row for row in desk.jobs() if role in (None, row.role)]
        dates = sorted({row.changed_at for row in desk.jobs()})
        for since, before in ((None, 5), (3, None), (2, 7), (5, 5)):
            where = JobFilter(
                role=role,
                changed_since=None if since is None else to_datetime(dates[since]),
                changed_before=None if before is None else to_datetime(dates[before]),
            )
            least = dates[0] if since is None else dates[since]
            end = dates[-1] + 1 if before is None else dates[before]
            found = {row.id for row in jobs if least <= row.changed_at < end}
            assert _pages(desk, where) == sorted(found, reverse=True), where
            assert desk.store.count_jobs(where) == len(found)

    @pytest.mark.shows("E-75")
    def test_jobs_are_found_by_how_their_id_begins(self, desk: Desk) -> None:
        jobs = [_submit(desk, is_ordered=n > 40) for n in range(50)]
        for n in (1, 2, 8, 9, 12, 13, 36):
            prefix = to_text(jobs[-1].id)[:n]
            found = {row.id for row in jobs if to_text(row.id).startswith(prefix)}
            for text in (prefix, prefix.replace("-", ""), prefix.upper()):
                where = JobFilter(id_prefix=text)
                assert _pages(desk, where) == sorted(found, reverse=True), text
                assert desk.store.count_jobs(where) == len(found)
        others = JobFilter(id_prefix=to_text(jobs[-1].id)[:1], role="held")
        assert _pages(desk, others) == []

    @pytest.mark.shows("E-75")
    @pytest.mark.parametrize("key", ["order 4711", "x" * 500, "ü€/%_"])
    def test_jobs_are_found_by_a_dedup_key_that_they_hold_or_held(
        self, desk: Desk, key: str
    ) -> None:
        rows = []
        for _ in range(2):
            rows.append(desk.submit(dedup_key=short_key(key)))
            desk.write(desk.act(rows[-1], Cancel("ada")))
        rows.append(desk.submit(dedup_key=short_key(key)))
        foreign = desk.submit(tenant="acme", dedup_key=short_key(key))
        desk.submit(dedup_key="another")
        desk.submit()
        ids = [row.id for row in (*rows, foreign)][::-1]
        assert _pages(desk, JobFilter(dedup_key=key)) == ids
        assert _pages(desk, JobFilter(dedup_key=key, tenant="")) == ids[1:]
        assert _pages(desk, JobFilter(dedup_key=key, tenant="", role="cancelled")) == ids[2:]
        assert _pages(desk, JobFilter(dedup_key="none")) == []
        assert desk.store.count_jobs(JobFilter(dedup_key=key)) == 4


def _submit(desk: Desk, *, is_ordered: bool) -> JobRow:
    """Store a job with an id that begins with the time, or that tells nothing."""
    job_id = time_ordered_id(desk.now) if is_ordered else unguessable_id()
    job = begin(
        LINE, Payload(b"null", 1), Submission(), desk.now, job_id=job_id, commit_id=os.urandom(16)
    )
    desk.store.add([job])
    return job.row


def _pages(desk: Desk, where: JobFilter) -> list[bytes]:
    """Read a list page by page."""
    found: list[bytes] = []
    after: bytes | None = None
    while page := desk.store.list_jobs(where, after=after, limit=A_PAGE):
        found += [row.id for row in page]
        after = page[-1].id
    return found
