"""Notifications of a publication: a delivery for each subscriber, and a push for each delivery.

A delivery is claimed with a lease before it is sent. So a subscriber gets a push once, unless a
worker dies after the push and before its commit: the lease runs out then, and the push is sent
again with the same `Idempotency-Key`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from asyncio import FIRST_COMPLETED
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import cache, partial
from time import monotonic
from typing import Any, Final, Literal, NamedTuple

import httpx

from ulak import Backoff, RetryLater
from ulak.errors import UlakError
from ulak.kit import read_retry_after
from ulak.kit.clock import SECOND, Instant, micros
from ulak.services.publishing.backend import LONGEST_RETRY_AFTER, make_client
from ulak.services.publishing.events import step
from ulak.services.publishing.settings import PublishingSettings
from ulak.services.publishing.users import Users
from ulak.tables import Row

log = logging.getLogger("ulak.publishing")

PAGE: Final = 1000
"""How many deliveries one transaction of the fan-out writes."""
MAX_RETRIES: Final = 3
TURN_S: Final = 300.0
"""For so long one run begins pushes; the rest is another run's."""
PATIENCE: Final = timedelta(days=1)
"""For so long a receiver may answer 429 with `Retry-After` before that counts as a failure."""
LARGEST_ANSWER: Final = 64 * 1024
TOO_MANY: Final = 429
PASSING: Final = frozenset({408, 425, TOO_MANY})
"""Statuses from 400 to 499 after which the same push may be taken."""

_BEGIN: Final = """
    INSERT INTO {schema}.publishing_fan_outs (article_id, author_id, started_at)
    VALUES (?, ?, ?) ON CONFLICT DO NOTHING
"""
_IS_FINISHED: Final = """
    SELECT finished_at IS NOT NULL FROM {schema}.publishing_fan_outs WHERE article_id = ?
"""
# After the last one that has a delivery, so that a fan-out that was broken off goes on there.
_FAN_OUT: Final = """
    INSERT INTO {schema}.publishing_notifications (
        article_id, subscriber_id, author_id, status, attempts, not_before, created_at, updated_at
    )
    SELECT f.article_id, s.subscriber_id, s.author_id, 'pending', 0, f.started_at, f.started_at,
        f.started_at
    FROM {schema}.publishing_fan_outs f JOIN {schema}.publishing_subscribers s
        ON s.author_id = f.author_id AND s.created_at <= f.started_at
    WHERE f.article_id = ? AND s.subscriber_id > coalesce(
        (SELECT max(subscriber_id) FROM {schema}.publishing_notifications WHERE article_id = ?), ''
    )
    ORDER BY s.subscriber_id LIMIT ? RETURNING 1
"""
_FINISH: Final = "UPDATE {schema}.publishing_fan_outs SET finished_at = ? WHERE article_id = ?"
# Those that another worker is about to claim are passed over.
_DUE: Final = """
    SELECT subscriber_id, attempts, created_at, coalesce(lease_until, 0)
    FROM {schema}.publishing_notifications
    WHERE article_id = ? AND not_before IS NOT NULL AND not_before <= ? AND attempts < ?
    ORDER BY subscriber_id LIMIT ?{for_update}{skip_locked}
"""
# The lock makes an unsubscribe or a deactivation come wholly before the claim, or after it.
_SUBSCRIBED: Final = """
    SELECT u.is_active, u.subscription_key
    FROM {schema}.publishing_subscribers s JOIN {schema}.publishing_users u
        ON u.id = s.subscriber_id
    WHERE s.author_id = ? AND s.subscriber_id = ?{for_update}
"""
# Not if its lease ran out and another worker has claimed it since.
_SET: Final = """
    UPDATE {schema}.publishing_notifications
    SET status = ?, attempts = ?, last_error = ?, lease_until = ?, not_before = ?, updated_at = ?
    WHERE article_id = ? AND subscriber_id = ? AND coalesce(lease_until, 0) = ?
"""
_STAND: Final = """
    SELECT count(*), min(CASE WHEN attempts < ? THEN not_before END),
        max(CASE WHEN attempts < ? THEN not_before END), max(last_error)
    FROM {schema}.publishing_notifications WHERE article_id = ? AND not_before IS NOT NULL
"""


class DeliveriesFailed(UlakError):
    """Some deliveries have failed in every try, and no other is left to wait for."""

    code = "deliveries-failed"


class _Work(NamedTuple):
    """One run of the task; `allowed` is how often a delivery may fail in all rounds until now."""

    article_id: str
    author_id: str
    content: bytes
    allowed: int


class _Delivery(NamedTuple):
    """A claimed delivery."""

    id: str
    attempts: int
    created_at: Instant
    lease: Instant
    key: str


class _Reply(NamedTuple):
    """What became of a push."""

    delivery: _Delivery
    why: str
    status: int = 0
    retry_after: timedelta | None = None

    @property
    def meaning(self) -> Literal["sent", "failed", "wait", "retry"]:
        """Whether it is final, or to be repeated; a redirect is an address that is wrong."""
        if 200 <= self.status < 300:
            return "sent"
        if 400 <= self.status < 500 and self.status not in PASSING:
            return "failed"
        return "wait" if self.status == TOO_MANY and self.retry_after is not None else "retry"


class Notifications:
    """Delivers notifications to the subscribers of an author."""

    def __init__(self, users: Users, settings: PublishingSettings) -> None:
        self._users, self._tables, self._settings = users, users.tables, settings
        # Reading the authorities takes longer than a push does, so it is done once.
        self._tls = cache(ssl.create_default_context)
        said = settings.notify_max_retries
        self._retries = MAX_RETRIES if said is None else said
        self._backoff = Backoff(
            self._retries, first=settings.retry_base, longest=settings.retry_max,
            jitter=0.0 if settings.retry_jitter is False else "full",
        )  # fmt: skip
        # Longer than a push may take, so that none is claimed twice by workers that live.
        shortest = timedelta(seconds=3 * settings.push_timeout_s)
        self._lease_us = micros(max(settings.visibility, shortest))

    async def run(
        self, article: Mapping[str, Any], *, round: int = 1, attempt: int = 1,
        stop: Callable[[], bool] = lambda: False,
    ) -> RetryLater | None:  # fmt: skip
        """Deliver what is due of a published article: to those who were subscribers when this was
        first called for it.

        Returns None when every delivery is final. Else it returns when the next one is due; that
        spends a try of the task if one has failed and a try is left. Each delivery counts its own
        failures: `NOTIFY_MAX_RETRIES` and one in each round of the task. Once `stop()` is true,
        nothing more is begun.

        Raises:
            DeliveriesFailed: only those are left that have failed as often as they may.
            StoreError: the users' database cannot answer now.
        """
        id, author_id, title = (article[name] for name in ("id", "author_id", "title"))
        message = self._settings.notify_message.format(author_id=author_id, title=title)
        content = json.dumps({"message": message}, ensure_ascii=False).encode()
        work = _Work(id, author_id, content, (self._retries + 1) * round)
        with step("notify.fan-out"):
            wait, has_failed = await asyncio.to_thread(self._fan_out, work), False
        if wait is not None:
            has_failed = await self._deliver(work, stop)
            with step("notify.judge"):
                wait = await asyncio.to_thread(self._judge, work)
        if wait is None:
            return None
        spends = has_failed and attempt <= self._retries
        return RetryLater(wait, spend_attempt=spends, why="deliveries are to be tried again")

    def _fan_out(self, work: _Work) -> timedelta | None:
        """Write a delivery for each subscriber, unless it was done; return as `_judge`."""
        id, found = work.article_id, self._tables.read(_IS_FINISHED, work.article_id)
        is_finished = bool(found and found[0][0])
        while not is_finished:
            with step("notify.page"), self._tables.writing() as connection:
                now, lock = self._tables.now, _IS_FINISHED + "{for_update}"
                self._tables.execute(connection, _BEGIN, id, work.author_id, now)
                is_finished = bool(self._tables.execute(connection, lock, id)[0][0])
                if not is_finished:
                    page = self._tables.execute(connection, _FAN_OUT, id, id, PAGE)
                    is_finished = len(page) < PAGE
                    if is_finished:
                        self._tables.execute(connection, _FINISH, now, id)
        return self._judge(work)

    def _judge(self, work: _Work) -> timedelta | None:
        """Return when the next delivery is due, None when all are final; raises as `run`."""
        values = (work.allowed, work.allowed, work.article_id)
        ((total, first, last, why),) = self._tables.read(_STAND, *values)
        if first is not None:
            # Up to a second later, so that those of one moment come in one run.
            now = self._tables.now
            return timedelta(microseconds=max(first - now, min(last - now, SECOND), 0))
        if total:
            raise DeliveriesFailed(
                f"{total} of the subscribers of article {work.article_id} got no notification in "
                f"{self._retries + 1} tries each; {why}; redrive when the push service answers"
            )
        return None

    async def _deliver(self, work: _Work, stop: Callable[[], bool]) -> bool:
        """Send what is due, so many at once as the settings say; tell whether any has failed."""
        sending: set[asyncio.Task[_Reply]] = set()
        done: set[asyncio.Task[_Reply]] = set()
        has_failed, until = False, monotonic() + TURN_S
        async with make_client(self._settings.push_timeout_s, verify=self._tls()) as client:
            try:
                while True:
                    replies = [task.result() for task in done]
                    has_failed |= any(reply.meaning == "retry" for reply in replies)
                    free = self._settings.notify_concurrency - len(sending)
                    if stop() or monotonic() > until:
                        free = 0
                    with step("notify.turn"):
                        claimed = await asyncio.to_thread(self._take, work, replies, free)
                    for delivery in claimed or ():
                        sending.add(asyncio.create_task(self._push(client, work, delivery)))
                    if not sending and claimed is None:
                        return has_failed
                    done = set()
                    if sending:
                        with step("notify.wait"):
                            done, sending = await asyncio.wait(sending, return_when=FIRST_COMPLETED)
            finally:
                for task in sending:
                    task.cancel()
                with step("notify.end"):
                    await asyncio.gather(*sending, return_exceptions=True)

    async def _push(self, client: httpx.AsyncClient, work: _Work, delivery: _Delivery) -> _Reply:
        headers = {
            "Authorization": f"Bearer {delivery.key}",
            "Content-Type": "application/json",
            "Idempotency-Key": f"{work.article_id}:{delivery.id}",
        }
        url, timeout_s = self._settings.push_service_url, self._settings.push_timeout_s
        options: Any = {"content": work.content, "headers": headers}
        # What a receiver writes is read, so that the connection serves again, and not kept: it may
        # repeat the key.
        try:
            with step("notify.push"):
                async with asyncio.timeout(timeout_s), client.stream("POST", url, **options) as got:
                    async for chunk in got.aiter_raw(LARGEST_ANSWER):
                        if len(chunk) == LARGEST_ANSWER:
                            break
        except (TimeoutError, httpx.TimeoutException):
            return _Reply(delivery, f"no answer within {timeout_s:g} s")
        except (httpx.HTTPError, OSError) as error:
            return _Reply(delivery, f"no answer: {type(error).__name__}")
        header, now = got.headers.get("Retry-After"), self._tables.now
        wait = read_retry_after(header, now, longest=LONGEST_RETRY_AFTER)
        status = got.status_code
        return _Reply(delivery, f"the receiver answered {status}", status, wait)

    def _take(self, work: _Work, replies: Sequence[_Reply], free: int) -> list[_Delivery] | None:
        """Store what came of pushes and claim more, in one transaction; return None when there is
        none to claim."""
        with step("notify.claim"), self._tables.writing() as connection:
            run, now = partial(self._tables.execute, connection), self._tables.now
            for reply in replies:
                of = (now, work.article_id, reply.delivery.id, reply.delivery.lease)
                run(_SET, *self._judge_reply(work, reply, now), *of)
            values = (work.article_id, now, work.allowed, free)
            if not free or not (found := run(_DUE, *values)):
                return None
            claimed, until = [], now + self._lease_us
            for id, attempts, created_at, lease in found:
                key, why = self._read_key(run(_SUBSCRIBED, work.author_id, id))
                of = (now, work.article_id, id, lease)
                if key is None:
                    about = {"article_id": work.article_id, "subscriber_id": id, "why": why}
                    log.warning("a subscriber gets no notification", extra=about)
                    run(_SET, "skipped", attempts, why, None, None, *of)
                else:
                    run(_SET, "processing", attempts, None, until, until, *of)
                    claimed.append(_Delivery(id, attempts, created_at, until, key))
            return claimed

    def _read_key(self, subscribed: Sequence[Row]) -> tuple[str | None, str]:
        """Return the key of a subscriber; None, and why, when nothing is to be sent."""
        for is_active, sealed in subscribed:
            if not is_active:
                return None, "deactivated before its turn"
            if sealed is None:
                return None, "no subscription key is set"
            why = "the key was set under another SECRET_KEY; set it anew"
            return self._users.seal.open(sealed), why
        return None, "unsubscribed before its turn"

    def _judge_reply(self, work: _Work, reply: _Reply, now: Instant) -> tuple[Any, ...]:
        """Return the first columns of `_SET` after a push: the last of them is when it is due."""
        delivery, meaning = reply.delivery, reply.meaning
        attempts = delivery.attempts + 1
        if meaning in ("sent", "failed"):
            return meaning, attempts, None if meaning == "sent" else reply.why, None, None
        wait_us = micros(reply.retry_after or timedelta())
        if meaning == "wait" and now < delivery.created_at + micros(PATIENCE):
            return "pending", delivery.attempts, reply.why, None, now + wait_us
        failures = max(1, self._retries + 1 - (work.allowed - attempts))
        # After the last failure there is no delay: an operator says when it is tried again.
        drawn = self._backoff.delay_us(failures, f"{work.article_id}{delivery.id}".encode()) or 0
        status = "pending" if attempts < work.allowed else "failed"
        return status, attempts, reply.why, None, now + max(wait_us, drawn)
