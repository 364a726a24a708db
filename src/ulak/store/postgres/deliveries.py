"""The statements that messages and events share: how deliveries are posted, and come forward."""

from __future__ import annotations

from collections.abc import Sequence

from ulak.core.job import Message
from ulak.store.postgres.values import Array, Blobs, Ids, Numbers, Texts

HOLD_KEYS = """
    SELECT pg_advisory_xact_lock(hash) FROM (
        SELECT DISTINCT hashtextextended('ulak ' || key, 0) AS hash
        FROM unnest(%s::text[]) AS k (key) ORDER BY hash
    ) AS hashes
"""
RAISE_HEADS = """
    UPDATE ulak.deliveries SET head = 1 WHERE head <> 1 AND state = 'pending' AND position IN (
        SELECT (
            SELECT min(position) FROM ulak.deliveries
            WHERE handler = l.handler AND key = l.key AND open = 1
        ) FROM unnest(%s::text[], %s::text[]) AS l (handler, key)
    )
"""


def posting(wanted: str, *, ranked: bool) -> str:
    """Write the statement that posts deliveries of messages.

    Args:
        wanted: Joins the messages `m` with the handlers `h` that get them.
        ranked: Whether their keys are held. If not, their places are found when they are taken.
    """
    head = """(m.is_first AND NOT EXISTS (
        SELECT FROM ulak.deliveries AS d
        WHERE d.handler = m.handler AND d.key = m.key AND d.open = 1
    ))::integer"""
    return f"""
        INSERT INTO ulak.deliveries (
            job_id, seq, n, key, topic, data, at, handler, not_before, give_up_at, head
        )
        SELECT m.job_id, m.seq, m.n, m.key, m.topic, m.data, m.at, m.handler, m.at,
            m.at + m.give_up_us, {head if ranked else -1}
        FROM (
            SELECT m.*, coalesce(h.name, '') AS handler, h.give_up_us,
                row_number() OVER (PARTITION BY h.name, m.key ORDER BY line) = 1 AS is_first
            FROM unnest(
                %s::uuid[], %s::bigint[], %s::bigint[], %s::text[], %s::text[], %s::bytea[],
                %s::bigint[]
            ) WITH ORDINALITY AS m (job_id, seq, n, key, topic, data, at, line)
            {wanted}
        ) AS m
        ORDER BY m.line, m.handler
    """


def bind(messages: Sequence[Message]) -> tuple[Array, ...]:
    """Return the values of such a statement."""
    ids, seqs, numbers, keys, topics, data, dates = zip(*messages, strict=True)
    return (
        Ids(ids), Numbers(seqs), Numbers(numbers), Texts(keys), Texts(topics), Blobs(data),
        Numbers(dates),
    )  # fmt: skip
