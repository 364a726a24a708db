"""Sends events: asks the remote and writes down what it said. The engine says which event is next,
when it is tried again and when it is given up; any number of processes may send."""

from __future__ import annotations

import json
import logging
import time
from datetime import timedelta
from typing import Any, Final

from ulak import Backoff, Engine, Message, Refused, RetryLater
from ulak.kit.clock import micros, to_instant
from ulak.services.contracts.ledger import HANDLER, SCHEMA, TOPIC
from ulak.services.contracts.outbox.outcomes import LONGEST_RETRY, Outcome, Reply, judge
from ulak.services.contracts.outbox.remote import TRANSITION, Remote
from ulak.tables import Tables

log = logging.getLogger("ulak.contracts.outbox")

MOST_ATTEMPTS: Final = 20
RETRY: Final = Backoff(
    MOST_ATTEMPTS - 1, first=timedelta(seconds=4), longest=timedelta(hours=1), jitter="full"
)

_KNOWN: Final = """
SELECT under_way, attempted_at, acts FROM {schema}.hos_outbox_attempts
WHERE tenant_id = ? AND idempotency_key = ?
"""
_BEGIN: Final = """
INSERT INTO {schema}.hos_outbox_attempts (tenant_id, idempotency_key, under_way, updated_at)
VALUES (?, ?, 1, ?) ON CONFLICT (tenant_id, idempotency_key)
DO UPDATE SET under_way = 1, updated_at = excluded.updated_at
"""
_END: Final = """
UPDATE {schema}.hos_outbox_attempts SET under_way = 0, attempted_at = ?, duration_us = ?,
    failed_at = COALESCE(?, failed_at), response_status = ?, response_json = ?,
    drift = COALESCE(?, drift), updated_at = ?
WHERE tenant_id = ? AND idempotency_key = ?
"""
# What was said of an event goes with the event, which the engine keeps for seven days. Drift is
# counted for ever.
_OLD: Final = """
SELECT 1 FROM {schema}.hos_outbox_attempts WHERE attempted_at < ? AND drift IS NULL LIMIT 1
"""
_PRUNE: Final = """
DELETE FROM {schema}.hos_outbox_attempts WHERE attempted_at < ? AND drift IS NULL
AND (tenant_id, idempotency_key) NOT IN (
    SELECT tenant_id, idempotency_key FROM {schema}.hos_outbox_events WHERE tenant_id IS NOT NULL
)
"""
_A_DAY: Final = micros(timedelta(days=1))
_KEPT_DAYS: Final = 8


def declare(engine: Engine, remote: Remote, *, retry: Backoff = RETRY) -> None:
    """Have the workers of an engine tell a remote of changes, in order per subject. An event that
    is rejected or dead stops its subject.

    Raises:
        FlowError: it is declared already.
    """
    sender = Sender(engine, remote, retry)
    engine.on(TOPIC, name=HANDLER, retry=retry, give_up=LONGEST_RETRY, block=True)(sender)


class Sender:
    """The handler of events. Every attempt sends the same bytes under the same key."""

    def __init__(self, engine: Engine, remote: Remote, retry: Backoff) -> None:
        self._tables = Tables(engine, SCHEMA)
        self._remote = remote
        self._retry = retry
        self._pruned_on = 0

    def __call__(self, message: Message) -> None:
        """Tell the remote of one change.

        Raises:
            Refused: the remote has rejected it, or will never take it.
            RetryLater: it is to be sent again.
        """
        payload, event = json.loads(message.data["payload"]), _name(message)
        self._begin(message, event)
        begun = time.monotonic()
        reply = self._remote.ask(
            TRANSITION, message.data["payload"].encode(), headers={"Idempotency-Key": event[1]}
        )
        took = timedelta(seconds=time.monotonic() - begun)
        now = self._tables.now
        outcome = judge(reply, payload, now=now)
        status, body = (
            (reply.status, _text(reply.body)) if isinstance(reply, Reply) else (None, None)
        )
        with self._tables.writing() as connection:
            self._tables.execute(
                connection, _END, now, micros(took), now if outcome.is_failure else None, status,
                body, outcome.drift, now, *event,
            )  # fmt: skip
        self._end(message, outcome)

    def _begin(self, message: Message, event: tuple[str, str]) -> None:
        """Write down that a request is about to be made, unless that is too late.

        An event that was never tried is sent however late: nobody can have forgotten its key.
        """
        with self._tables.writing() as connection:
            known = self._tables.execute(connection, _KNOWN, *event)
            now = self._tables.now
            forgotten_at = to_instant(message.at) + micros(self._remote.settings.ttl)
            if known and now >= forgotten_at and _may_be_known_there(*known[0]):
                raise Refused("no dispatcher ran before the remote may have forgotten the key of "
                              "an earlier attempt", dead=True)  # fmt: skip
            self._tables.execute(connection, _BEGIN, *event, now)
            self._prune(connection, now // _A_DAY)

    def _prune(self, connection: Any, today: int) -> None:
        """Remove once a day, of all processes together, what was said of events that are gone."""
        if self._pruned_on != today:
            self._pruned_on = today
            before = (today - _KEPT_DAYS) * _A_DAY
            if self._tables.execute(connection, _OLD, before):
                self._tables.execute(connection, _PRUNE, before)

    def _end(self, message: Message, outcome: Outcome) -> None:
        """Tell the engine what becomes of the event."""
        if outcome.drift is not None:
            log.warning(
                "drift: the remote judges otherwise",
                extra={
                    "tenant": message.data["tenant_id"], "aggregate": message.data["aggregate"],
                    "key": message.data["idempotency_key"], "verdict": outcome.verdict,
                    "drift": outcome.drift,
                },
            )  # fmt: skip
        if outcome.verdict in ("rejected", "dead"):
            raise Refused(outcome.why, dead=outcome.verdict == "dead")
        if outcome.verdict == "retry":
            wait = outcome.wait
            if outcome.is_counted:
                drawn = self._retry.delay_us(message.tries + 1, message.id.encode())
                wait = max(wait, timedelta(microseconds=drawn or 0))
            raise RetryLater(wait, spend_attempt=outcome.is_counted, why=outcome.why)


def _name(message: Message) -> tuple[str, str]:
    return message.data["tenant_id"], message.data["idempotency_key"]


def _may_be_known_there(under_way: int, attempted_at: int | None, acts: str) -> bool:
    """Whether the remote may have heard of an event, and no operator sends it all the same."""
    done: list[dict[str, Any]] = json.loads(acts)
    is_forced = bool(done) and "forced" in done[-1]
    return not is_forced and bool(under_way or attempted_at is not None)


def _text(body: bytes) -> str:
    """Write an answer as text that a database takes."""
    return body.decode("utf-8", "replace").replace("\x00", "\N{REPLACEMENT CHARACTER}")
