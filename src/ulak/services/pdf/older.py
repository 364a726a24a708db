"""What the release before kept in tables of this service, moved to where it lies now.

Each function may be called at any time and by any number of processes: a row is moved once, and
what a process of that release writes later is found the next time. The tables go with a later
release.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final
from uuid import UUID

from ulak import Engine
from ulak.errors import JobNotFound
from ulak.services.pdf.flow import FLOW
from ulak.services.pdf.schema import SCHEMA
from ulak.services.pdf.wanting import Wanted, want
from ulak.tables import Tables

A_BATCH: Final = 100
LOAD_CONTROL: Final = "pdf-load-control"
"""Who stops the flow, as the audit says it."""


def move_stop(engine: Engine) -> None:
    """Have new jobs refused if load control has said so to the release before.

    Raises:
        StoreError: the store does not answer.
    """
    if not engine.store.features.open_transactions:
        return
    tables = Tables(engine, SCHEMA)
    if tables.read(_STOPPED):
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
    if not engine.store.features.open_transactions:
        return
    tables = Tables(engine, SCHEMA)
    while rows := tables.read(_WANTED, A_BATCH):
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


def move_owners(engine: Engine) -> None:
    """Have the owners that stand in the table own their jobs.

    Raises:
        StoreError: the store does not answer.
    """
    if not engine.store.features.open_transactions:
        return
    tables = Tables(engine, SCHEMA)
    while rows := tables.read(_OWNED, A_BATCH):
        for job_id, owner in rows:
            with tables.writing() as connection:
                tables.execute(connection, _FORGET_OWNER, job_id, owner)
                with suppress(JobNotFound):
                    engine.owners.add(job_id, owner, connection=connection)


_OWNED: Final = "SELECT job_id, owner FROM {schema}.pdf_owners LIMIT ?"
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
