"""Operators' stops, which keep new jobs out."""

from __future__ import annotations

from ulak.core.admission import StopRow
from ulak.store import flow_control as control
from ulak.store.sql import audit
from ulak.store.sql.session import Session, Transaction, columns, put

STOPS = f"SELECT {columns(StopRow)} FROM ulak.stops ORDER BY flow, tenant"
STOP = f"""
    SELECT {columns(StopRow)} FROM ulak.stops WHERE flow = %s::text AND tenant = %s::text FOR UPDATE
"""
PUT_STOP = put("stops", StopRow, "flow, tenant")
END_STOP = "DELETE FROM ulak.stops WHERE flow = %s::text AND tenant = %s::text"


def stop_accepting(t: Transaction, stop: StopRow) -> StopRow | None:
    """Begin a stop; return the one that it replaces."""
    before = _find(t, stop.flow, stop.tenant)
    t.db.execute(PUT_STOP, tuple(stop))
    subject = control.stop_subject(stop.flow, stop.tenant)
    details = control.stop_details(stop, before)
    audit.note(t, stop.actor, control.STOPPED, subject, stop.note, details)
    return before


def accept(t: Transaction, flow: str, tenant: str, *, actor: str, note: str) -> StopRow | None:
    """End a stop; return it, or None when there is none."""
    before = _find(t, flow, tenant)
    if before is not None:
        t.db.execute(END_STOP, (flow, tenant))
        subject, details = control.stop_subject(flow, tenant), control.stop_details(None, before)
        audit.note(t, actor, control.ACCEPTED, subject, note, details)
    return before


def every(db: Session) -> list[StopRow]:
    return [StopRow(*row) for row in db.rows(STOPS)]


def _find(t: Transaction, flow: str, tenant: str) -> StopRow | None:
    row = t.db.row(STOP, (flow, tenant))
    return None if row is None else StopRow(*row)
