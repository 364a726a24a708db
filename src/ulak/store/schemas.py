"""Schemas: which releases may run on one, and views of deliveries, jobs and trails for services."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

NAMED: Final = re.compile(r"^-- oldest: ([0-9]+)$", re.MULTILINE)


def find_oldest(script: Callable[[int], str], version: int) -> int:
    """Return the oldest schema whose release may run on a database at `version`.

    Every file up to there has been run, so the strictest of them decides.
    """
    named = {number: NAMED.search(script(number)) for number in range(1, version + 1)}
    return max(number if found is None else int(found[1]) for number, found in named.items())


def too_old(place: str, schema: int, *, oldest: int, newest: int) -> str:
    """Return the sentence that refuses a release which must not run on a schema."""
    return (
        f"{place} at schema {schema}, this ulak knows {newest}, and only releases that know "
        f"{oldest} or later may run on it: a newer release has run `ulak migrate` on it; install "
        "that release"
    )


_READ: Final = """
SELECT position, key, {data} AS data, at, state, tries, not_before, give_up_at, sent_at,
    {answer} AS answer, error
FROM {schema}.deliveries WHERE handler = '{handler}';
"""
# A place in the line is found when messages are taken, as for a caller's own transaction.
_WRITE: Final = """
    INSERT INTO {table}handlers (name, topic) VALUES ('{handler}', '{topic}')
    ON CONFLICT (name) DO NOTHING;
    INSERT INTO {table}deliveries (
        job_id, seq, n, key, topic, data, at, handler, state, tries, not_before, give_up_at,
        sent_at, error, open, head
    ) VALUES (
        {id}, 0, 0, NEW.key, '{topic}', {written}, NEW.at, '{handler}', NEW.state, NEW.tries,
        NEW.not_before, NEW.give_up_at, NEW.sent_at, NEW.error,
        CASE WHEN NEW.state IN ('pending', 'dead', 'refused') THEN 1 ELSE 0 END,
        CASE WHEN NEW.state = 'pending' THEN -1 ELSE 0 END
    );
"""
_SQLITE: Final = f"""
CREATE VIEW IF NOT EXISTS {{view}} AS {_READ}
CREATE TRIGGER IF NOT EXISTS {{view}}_takes INSTEAD OF INSERT ON {{view}} BEGIN {_WRITE} END;
"""
_POSTGRESQL: Final = f"""
CREATE OR REPLACE VIEW ulak.{{view}} AS {_READ}
CREATE OR REPLACE FUNCTION ulak.{{view}}_takes() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN {_WRITE} RETURN NEW; END
$$;
DROP TRIGGER IF EXISTS {{view}}_takes ON ulak.{{view}};
CREATE TRIGGER {{view}}_takes INSTEAD OF INSERT ON ulak.{{view}}
FOR EACH ROW EXECUTE FUNCTION ulak.{{view}}_takes();
"""

_JOBS: Final = """
SELECT j.id AS key, {job_id} AS job_id, j.tenant, j.state, j.role, j.code, j.dedup_key,
    {data} AS payload, j.round, j.seq, j.not_before, j.created_at, j.changed_at, j.submitter,
    {not_before} AS not_before_text, {created} AS created_text, {changed} AS changed_text
FROM {schema}.jobs AS j JOIN {schema}.payloads AS p ON p.job_id = j.id{month}
WHERE j.flow = '{flow}';
"""
_TRAIL: Final = """
SELECT j.id AS key, {job_id} AS job_id, p.seq, p.kind, p.from_state, p.to_state, p.actor, p.code,
    p.message, p.details, p.round, p.at, {at} AS at_text
FROM {schema}.jobs AS j JOIN {schema}.events AS p ON p.job_id = j.id{month}
WHERE j.flow = '{flow}';
"""
_PARTS: Final = " || '-' || ".join(
    f"substr(hex(j.id), {begin}, {length})"
    for begin, length in ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))
)


def make_script(dialect: str, *, view: str, handler: str, topic: str) -> str:
    """Return the statements that make a view of the deliveries of `handler`, if there is none yet.

    What is inserted there gets `topic`; `dialect` is `sqlite` or `postgresql`.
    """
    named = {"view": view, "handler": handler, "topic": topic}
    if dialect == "sqlite":
        return _SQLITE.format(
            **named, schema="main", table="", data="CAST(data AS TEXT)",
            answer="CAST(answer AS TEXT)", id="randomblob(16)", written="CAST(NEW.data AS BLOB)",
        )  # fmt: skip
    return _POSTGRESQL.format(
        **named, schema="ulak", table="ulak.", data="convert_from(data, 'UTF8')",
        answer="convert_from(answer, 'UTF8')", id="gen_random_uuid()",
        written="convert_to(NEW.data, 'UTF8')",
    )  # fmt: skip


def make_job_script(dialect: str, *, view: str, flow: str) -> str:
    """Return the statement that makes a view of the jobs of a flow, if there is none yet."""
    return _make_view(_JOBS, dialect, view, flow)


def make_trail_script(dialect: str, *, view: str, flow: str) -> str:
    """Return the statement that makes a view of the trails of a flow, if there is none yet."""
    return _make_view(_TRAIL, dialect, view, flow)


_TIMES: Final = {
    "not_before": "j.not_before", "created": "j.created_at", "changed": "j.changed_at",
    "at": "p.at",
}  # fmt: skip
_TIME: Final = {
    "sqlite": "strftime('%Y-%m-%dT%H:%M:%fZ', {} / 1000 / 1e3, 'unixepoch')",
    "postgresql": "to_char(to_timestamp({} / 1e6) AT TIME ZONE 'UTC', "
    '\'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"\')',
}


def _make_view(select: str, dialect: str, view: str, flow: str) -> str:
    times = {name: _TIME[dialect].format(column) for name, column in _TIMES.items()}
    if dialect == "sqlite":
        return f"CREATE VIEW IF NOT EXISTS {view} AS" + select.format(
            flow=flow, schema="main", month="", data="CAST(p.data AS TEXT)",
            job_id=f"lower({_PARTS})", **times,
        )  # fmt: skip
    return f"CREATE OR REPLACE VIEW ulak.{view} AS" + select.format(
        flow=flow, schema="ulak", month=" AND p.month = j.month",
        data="convert_from(p.data, 'UTF8')", job_id="j.id::text", **times,
    )  # fmt: skip
