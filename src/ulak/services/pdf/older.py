"""What the release before kept in tables of this service, moved to where it lies now.

Each function may be called at any time and by any number of processes: a row is moved once, and
what a process of that release writes later is found the next time. The tables go with a later
release.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from ulak import Engine, JobFilter
from ulak.errors import JobNotFound
from ulak.kit.clock import to_datetime
from ulak.services.pdf.flow import FLOW, walk
from ulak.services.pdf.schema import SCHEMA
from ulak.services.pdf.wanting import Wanted, want
from ulak.tables import Tables

A_BATCH: Final = 100
LOAD_CONTROL: Final = "pdf-load-control"
"""Who stops the flow, as the audit says it."""
SUBMITTERS: Final = "owners"
"""Under this name: when submitters were made owners last."""
LATE: Final = timedelta(minutes=10)
"""So much later than its date a job may be committed, or more, where clocks differ."""


def move_stop(engine: Engine) -> None:
    """Have new jobs refused if load control has said so to the release before.

    Raises:
        StoreError: the store does not answer.
    """
    tables = _find_tables(engine)
    if tables is not None and tables.read(_STOPPED):
        with tables.writing() as connection:
            for retry_after_s, note in tables.execute(connection, _TAKE_STOP):
                engine.flow_control.stop_accepting(
                    FLOW, retry_after=retry_after_s, actor=LOAD_CONTROL, note=note,
                    connection=connection,
                )  # fmt: skip


def move_callbacks(engine: Engine) -> None:
    """Have everybody wait for the end of a job who stands in the table.

    Raises:
        StoreError: the store does not answer.
    """
    tables = _find_tables(engine)
    while tables is not None and (rows := tables.read(_WANTED, A_BATCH)):
        for stored_id, url, root in rows:
            job_id = str(stored_id if isinstance(stored_id, UUID) else UUID(bytes=stored_id))
            try:
                tenant = engine.get(job_id).tenant
            except JobNotFound:
                tenant = None
            with tables.writing() as connection:
                is_ours = tables.execute(connection, _TAKE_WANTED, stored_id, url)
                if is_ours and tenant is not None:
                    wanted = Wanted(job_id, url, root)
                    want(engine, wanted, tenant=tenant, connection=connection)


def move_owner(engine: Engine, job_id: str, owner: str) -> bool:
    """Have one own a job who stands in the table; tell whether that is so.

    Raises:
        StoreError: the store does not answer.
    """
    tables = _find_tables(engine)
    if tables is None or not tables.read(_IS_OWNED, job_id, owner):
        return False
    _move_owner(engine, tables, job_id, owner)
    return True


def move_owners(engine: Engine) -> None:
    """Have everybody own their jobs who stands in the table, or has made one by the release
    before, in which a submitter was no owner.

    Raises:
        StoreError: the store does not answer.
    """
    tables = _find_tables(engine)
    if tables is None:
        return
    while rows := tables.read(_OWNED, A_BATCH):
        for job_id, owner in rows:
            _move_owner(engine, tables, job_id, owner)
    began, known = tables.now, tables.read(_LOOKED_AT, SUBMITTERS)
    since = to_datetime(known[0][0]) - LATE if known else None
    made: defaultdict[str, list[tuple[datetime, str]]] = defaultdict(list)
    every = JobFilter(flow=FLOW, submitted_since=since)
    for job in walk(engine, every):
        if job.submitter:
            made[job.submitter].append((job.created_at, job.id))
    for submitter, jobs in made.items():
        owned = {job.id for job in walk(engine, replace(every, owner=submitter))}
        # In their order, since a list goes by when one became an owner.
        for _, job_id in sorted(jobs):
            if job_id not in owned:
                with suppress(JobNotFound):
                    engine.owners.add(job_id, submitter)
    with tables.writing() as connection:
        tables.execute(connection, _LOOK, SUBMITTERS, began)


def _move_owner(engine: Engine, tables: Tables, job_id: str, owner: str) -> None:
    with tables.writing() as connection:
        tables.execute(connection, _FORGET_OWNER, job_id, owner)
        with suppress(JobNotFound):
            engine.owners.add(job_id, owner, connection=connection)


def _find_tables(engine: Engine) -> Tables | None:
    return Tables(engine, SCHEMA) if engine.store.features.open_transactions else None


_OWNED: Final = "SELECT job_id, owner FROM {schema}.pdf_owners LIMIT ?"
_IS_OWNED: Final = "SELECT 1 FROM {schema}.pdf_owners WHERE job_id = ? AND owner = ?"
_LOOKED_AT: Final = "SELECT at FROM {schema}.pdf_told WHERE name = ?"
_LOOK: Final = (
    "INSERT INTO {schema}.pdf_told (name, text, at) VALUES (?, '', ?) "
    "ON CONFLICT (name) DO UPDATE SET at = excluded.at"
)
_FORGET_OWNER: Final = "DELETE FROM {schema}.pdf_owners WHERE job_id = ? AND owner = ?"
_STOPPED: Final = "SELECT 1 FROM {schema}.pdf_backpressure WHERE active = 1"
_TAKE_STOP: Final = (
    "DELETE FROM {schema}.pdf_backpressure WHERE active = 1 "
    "RETURNING retry_after_seconds, correlation_id"
)
_WANTED: Final = "SELECT job_id, url, root FROM {schema}.pdf_callbacks LIMIT ?"
_TAKE_WANTED: Final = (
    "DELETE FROM {schema}.pdf_callbacks WHERE job_id = ? AND url = ? RETURNING url"
)
