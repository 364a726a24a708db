"""Sends events, and decides by the answers of the remote what becomes of each.

The engine says which event is next, when it is tried again and when it is given up; any number of
processes may send.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import Any, Final, Literal

from ulak import Backoff, Engine, Message, Refused, RetryLater
from ulak.kit import read_retry_after
from ulak.kit.clock import Instant, micros, to_instant
from ulak.services.contracts.ledger import HANDLER, SCHEMA, TOPIC
from ulak.services.contracts.outbox.remote import (
    FOREIGN,
    TRANSITION,
    Fault,
    Remote,
    Reply,
    is_of_the_remote,
    is_passing,
)
from ulak.services.contracts.outbox.settings import LONGEST_RETRY
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
    is rejected or dead stops its subject. Raises `FlowError`: it is declared already."""
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
        """Tell the remote of one change. Raises `Refused` when the remote has rejected it or
        will never take it, `RetryLater` when it is to be sent again."""
        payload, key = message.data["payload"], message.data["idempotency_key"]
        event, document = (message.data["tenant_id"], key), json.loads(payload)
        self._begin(message, event)
        begun = time.monotonic()
        reply = self._remote.ask(TRANSITION, payload.encode(), headers={"Idempotency-Key": key})
        took = timedelta(seconds=time.monotonic() - begun)
        now = self._tables.now
        outcome = judge(reply, document, now=now)
        status, body = None, None
        if isinstance(reply, Reply):
            # As text that a database takes.
            status, body = reply.status, reply.body.decode("utf-8", "replace")
            body = body.replace("\x00", "\N{REPLACEMENT CHARACTER}")
        with self._tables.writing() as connection:
            self._tables.execute(
                connection, _END, now, micros(took), now if outcome.is_failure else None, status,
                body, outcome.drift, now, *event,
            )  # fmt: skip
        self._end(message, outcome)

    def _begin(self, message: Message, event: tuple[str, str]) -> None:
        """Write down that a request is about to be made, unless that is too late: an event that
        was never tried is sent however late, since nobody can have forgotten its key."""
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


def _may_be_known_there(under_way: int, attempted_at: int | None, acts: str) -> bool:
    """Whether the remote may have heard of an event, and no operator sends it all the same."""
    is_forced = "forced" in (json.loads(acts) or [{}])[-1]
    return not is_forced and bool(under_way or attempted_at is not None)


Verdict = Literal["sent", "rejected", "dead", "retry"]

SHORTEST_WAIT: Final = timedelta(seconds=1)
"""How long an execution that is under way is left alone at least."""
# Beyond this a wait is no number that anybody means, and no date that can be told.
_LONGEST_WAIT: Final = timedelta(days=366)
_LONGEST_QUOTE: Final = 200

IN_PROGRESS: Final = "idempotency_in_progress"
SUBJECT_NOT_FOUND: Final = "subject_not_found"
PASSING: Final = frozenset(
    {SUBJECT_NOT_FOUND, "idempotency_lease_lost", "idempotency_store_unavailable"}
)
"""Codes and reasons that another attempt, later and with the same key, may find gone."""
LASTING: Final = frozenset(
    {
        "idempotency_key_reused", "idempotency_response_not_stored", "idempotency_key_required",
        "idempotency_key_invalid", "idempotency_key_conflict",
    }
)  # fmt: skip
COMPARED: Final = ("from", "to", "contract_version")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is done with the event, and why."""

    verdict: Verdict
    _: KW_ONLY
    why: str = ""
    wait: timedelta = timedelta()
    """How long the next attempt must wait at least, of a retry."""
    is_counted: bool = True
    drift: str | None = None
    """In what the remote differs; None when it does not, or has not judged."""

    @property
    def is_failure(self) -> bool:
        """Whether the remote has not judged the event although it should have."""
        return self.verdict == "dead" or (self.verdict == "retry" and self.is_counted)


def judge(reply: Reply | Fault, payload: Mapping[str, Any], *, now: Instant) -> Outcome:
    """Decide what becomes of an event, by what the answer says before by its status."""
    if isinstance(reply, Fault):
        return Outcome("retry", why=reply.why)
    document = reply.document
    why = _quote(reply, document)
    wait = timedelta(seconds=seconds_of(reply.headers.get("retry-after"), now))
    said = {word for word in (document.get("code"), document.get("reason")) if type(word) is str}
    if IN_PROGRESS in said:
        # What was not judged does not count.
        return Outcome("retry", why=why, wait=max(SHORTEST_WAIT, wait), is_counted=False)
    if said & LASTING:
        return Outcome("dead", why=why)
    if said & PASSING or is_passing(reply.status):
        return Outcome("retry", why=why, wait=wait)
    if document.get("ok") is False:
        return Outcome("rejected", why=why, drift=why)
    if reply.status == HTTPStatus.CONFLICT:  # with whom it does not say; conflicts pass
        return Outcome("retry", why=why, wait=wait)
    if not HTTPStatus.OK <= reply.status < HTTPStatus.MULTIPLE_CHOICES:
        return Outcome("dead", why=why)
    if is_of_the_remote(reply, payload["idempotency_key"]):
        return Outcome("sent", drift=_compare(payload, document))
    # A login page, a proxy, another program: nobody there has judged the event.
    why = f"{why}: {FOREIGN}"
    return Outcome("retry", why=why, wait=wait, drift=why)


def seconds_of(retry_after: str | None, now: Instant) -> float:
    """Return what `Retry-After` says; 0 when it says nothing usable."""
    wait = read_retry_after(retry_after, now, longest=_LONGEST_WAIT)
    return 0.0 if wait is None else wait.total_seconds()


def _compare(payload: Mapping[str, Any], answer: Mapping[str, Any]) -> str | None:
    """Say in what an acceptance differs, of the members that both know: a remote that stood
    elsewhere has come to the same status by another way, and one with another contract version may
    not do so the next time."""
    local = {**payload, "contract_version": payload.get("meta", {}).get("local_contract_version")}
    differences = [
        f"{name} is {answer[name]!r} there and {local[name]!r} here"
        for name in COMPARED
        if name in answer and local.get(name) is not None and answer[name] != local[name]
    ]
    return "; ".join(differences) or None


def _quote(reply: Reply, document: Mapping[str, Any]) -> str:
    """Say in a line what was answered."""
    words = [document.get(name) for name in ("reason", "code", "detail")]
    said = ": ".join(dict.fromkeys(word for word in words if isinstance(word, str) and word))
    text = f"HTTP {reply.status}" + (f": {said}" if said else "")
    # A body is anybody's: lone surrogates, which no database takes, and lines without end.
    text = " ".join(text.encode("utf-8", "replace").decode().replace("\x00", " ").split())
    return text if len(text) <= _LONGEST_QUOTE else text[: _LONGEST_QUOTE - 3] + "..."
