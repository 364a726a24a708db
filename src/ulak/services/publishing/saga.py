"""What the steps of a publication do to a post: the effects behind the internal endpoints.

Each is one transaction: the post is locked and judged, its row and history are written, and the
next task with them, so that no step relies on a worker that lives until it has sent something. To
do a step twice changes nothing; a call about another publication than the present one is refused.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from ulak import Dedup, Engine
from ulak.kit.clock import SECOND, micros, now
from ulak.services.publishing import statuses
from ulak.services.publishing.articles import BY_ID, Article, Posts
from ulak.services.publishing.events import step

log = logging.getLogger("ulak.publishing")

MOST_SWEEPS: Final = 3
"""How often the sweep starts the missing step of one publication before it gives up."""
SWEEP: Final = "publishing-sweep"
A_DAY: Final = timedelta(days=1)
MAY_REPEAT: Final = micros(A_DAY)
"""For how long a repeated publish makes sure of its notification: the inbox remembers longer."""
CARED_FOR: Final = frozenset({"ready", "busy", "waiting", "failed"})
"""The roles of a task that goes on by itself, or waits as a dead letter for an operator. One that
is held counts as lost."""
A_PAGE: Final = 500
_STUCK: Final = (
    "SELECT id, stepped_at FROM {schema}.publishing_articles "
    "WHERE status = 'PENDING_PUBLISH' AND stepped_at <= ? AND (stepped_at, id) > (?, ?) "
    "ORDER BY stepped_at, id LIMIT ?"
)


@dataclass(frozen=True, slots=True)
class Step:
    """A post after a step, and whether this call changed it."""

    article: Article
    changed: bool


class Saga:
    """The steps of publications, and the sweep that finds those which go no further."""

    def __init__(self, posts: Posts, *, stuck_after: timedelta) -> None:
        self.posts, self.tables, self._queue = posts, posts.tables, posts.queue
        self._stuck_after = micros(stuck_after)

    def find(self, id: str) -> Article:
        """Return a post by its id; `PostNotFound` if there is none."""
        return self.posts.get_by_id(id)

    def approve(self, id: str, publication_id: str | None, actor: str) -> Step:
        """Record that moderation approves, and have the preview made. Raises `AlreadyRejected`,
        `InvalidStatus` and, as all steps, `StalePublication` and `PostNotFound`."""
        with step("saga.approve"), self.tables.writing() as connection:
            post = self._lock(connection, id, publication_id)
            if post.verdict == statuses.APPROVED:
                return Step(post, changed=False)
            if post.verdict == statuses.REFUSED:
                why = f"the post {id} was rejected; an approval comes too late"
                raise statuses.AlreadyRejected(why, post.status)
            _must_be_pending(post, "approved")
            post = self.posts.update(connection, post, verdict=statuses.APPROVED)
            self._queue.put(connection, statuses.GENERATE_PREVIEW, post)
        return Step(post, changed=True)

    def reject(
        self, id: str, publication_id: str | None, reason: str, actor: str, *,
        failed_task: str | None = None,
    ) -> Step:  # fmt: skip
        """Reject a post: by the verdict of moderation, or because its task has failed for good.
        Raises `AlreadyApproved`, `InvalidStatus`."""
        with step("saga.reject"), self.tables.writing() as connection:
            post = self._lock(connection, id, publication_id)
            if post.status == statuses.REJECTED:
                return Step(post, changed=False)
            _must_be_pending(post, "rejected")
            if post.verdict == statuses.APPROVED:
                why = f"the post {id} was approved; a rejection comes too late"
                raise statuses.AlreadyApproved(why, post.status)
            cause = statuses.DEAD_LETTER if failed_task else statuses.BY_REJECT
            judged = {"verdict": statuses.REFUSED, "moderation_reason": reason}
            post = self.posts.move(connection, post, statuses.REJECTED, cause, actor, **judged)
        return Step(post, changed=True)

    def store_preview(self, id: str, publication_id: str | None, url: str, actor: str) -> Step:
        """Store where the preview is, and have the post published. Raises `InvalidStatus`."""
        with step("saga.store-preview"), self.tables.writing() as connection:
            post = self._lock(connection, id, publication_id)
            _must_be_pending(post, "given a preview")
            if post.preview_url == url:
                return Step(post, changed=False)
            post = self.posts.update(connection, post, preview_url=url)
            self._queue.put(connection, statuses.PUBLISH, post)
        return Step(post, changed=True)

    def publish(self, id: str, publication_id: str | None, actor: str) -> Step:
        """Publish a post that has its preview, and have its subscribers told. Raises
        `PreviewMissing`, `InvalidStatus`."""
        with step("saga.publish"), self.tables.writing() as connection:
            post = self._lock(connection, id, publication_id)
            if post.status == statuses.PUBLISHED:
                if self.tables.now - (post.published_at or 0) < MAY_REPEAT:
                    # Made sure of, and made only where it was lost: the inbox knows its event.
                    self._queue.put(connection, statuses.NOTIFY, post)
                return Step(post, changed=False)
            _must_be_pending(post, "published")
            if post.preview_url is None:
                why = f"the post {id} has no preview; store one before it is published"
                raise statuses.PreviewMissing(why, post.status)
            to, cause = statuses.PUBLISHED, statuses.BY_PUBLISH
            post = self.posts.move(connection, post, to, cause, actor, published_at=self.tables.now)
            self._queue.put(connection, statuses.NOTIFY, post)
        return Step(post, changed=True)

    def fail(
        self, id: str, publication_id: str | None, message: str, actor: str, *,
        failed_task: str | None = None,
    ) -> Step:  # fmt: skip
        """Say that a step of a publication has failed for good. Raises `InvalidStatus`, and
        `StepDone` when the task that is named has its effect and only its answer was lost."""
        with step("saga.fail"), self.tables.writing() as connection:
            post = self._lock(connection, id, publication_id)
            if post.status == statuses.ERROR:
                return Step(post, changed=False)
            _must_be_pending(post, "marked as failed")
            done = statuses.SAGA_TASKS[: statuses.SAGA_TASKS.index(missing_task(post))]
            if failed_task in done:
                why = f"{failed_task} of the post {id} is done; only its answer was lost"
                raise statuses.StepDone(why, post.status)
            to, cause = statuses.ERROR, statuses.DEAD_LETTER if failed_task else statuses.BY_ERROR
            post = self.posts.move(connection, post, to, cause, actor, error_message=message)
        return Step(post, changed=True)

    def resume(
        self, connection: Any, id: str, publication_id: str, revision: int, actor: str
    ) -> Article:
        """Let a failed publication go on, in the open transaction that puts its task back. Raises
        `StalePublication`: the author has changed or published the post since; `InvalidStatus`."""
        post = self._lock(connection, id, publication_id)
        if post.revision != revision:
            why = f"the post {id} was edited since; its author must publish it again"
            raise statuses.StalePublication(why, post.status)
        if post.status != statuses.ERROR:
            why = f"the post {id} is {post.status}; only one in ERROR can be resumed"
            raise statuses.InvalidStatus(why, post.status)
        to, cause = statuses.PENDING_PUBLISH, statuses.RESUMED
        return self.posts.move(connection, post, to, cause, actor, error_message=None)

    def sweep(self) -> int:
        """Start the missing step of every publication that has gone no further for too long and
        has neither a live task nor a dead letter; return how many were started or given up."""
        before = self.tables.now - self._stuck_after
        found, last = 0, (-1, "")
        while page := self.tables.read(_STUCK, before, *last, A_PAGE):
            found += sum(self._restart(id, stepped_at) for id, stepped_at in page)
            last = page[-1][1], page[-1][0]
        return found

    def declare_sweep(self, engine: Engine, *, queue: str) -> None:
        """Have the workers of an engine sweep, some ten times in the time after which a publication
        counts as stuck, and at least once a minute."""

        @engine.job(name=SWEEP, queue=queue, dedup=Dedup())
        def sweep() -> int:
            engine.retention.prune(ended_before=now(engine) - A_DAY, of=(SWEEP, "done"))
            return self.sweep()

        every = timedelta(seconds=min(60, max(1, self._stuck_after // 10 // SECOND)))
        engine.schedules.add(SWEEP, sweep, every=every)

    def _restart(self, id: str, stepped_at: int) -> bool:
        try:
            # Outside of the transaction: the queue may be another database.
            post = self.posts.get_by_id(id)
            task = missing_task(post)
            job = self._queue.find(task, post)
            if post.stepped_at != stepped_at or (job is not None and job.role in CARED_FOR):
                return False
            with step("saga.restart"), self.tables.writing() as connection:
                post = self.posts.lock(connection, BY_ID, id)
                if post.stepped_at != stepped_at or missing_task(post) != task:
                    return False  # it has gone on meanwhile
                gives_up = post.sweeps >= MOST_SWEEPS
                post = self.posts.update(connection, post, sweeps=post.sweeps + 1)
                if gives_up:
                    why = f"{task} was started {MOST_SWEEPS} times more, in vain"
                    failed = statuses.ERROR, statuses.STUCK, SWEEP
                    post = self.posts.move(connection, post, *failed, error_message=why)
                # Where it gives up, the task fails at once: the dead letter for an operator.
                self._queue.put(connection, task, post, stuck=gives_up)
        except statuses.PostNotFound:
            return False
        facts = id, task, post.status, post.sweeps
        log.warning("the post %s was stuck at %s: it is %s after %s sweeps", *facts)
        return True

    def _lock(self, connection: Any, id: str, publication_id: str | None) -> Article:
        post = self.posts.lock(connection, BY_ID, id)
        if publication_id is not None and publication_id != post.publication_id:
            why = f"{publication_id} is not the present publication of the post {id}"
            raise statuses.StalePublication(why, post.status)
        return post


def missing_task(post: Article) -> str:
    """Return the task that a pending post waits for, from what is stored of it."""
    if post.preview_url is not None:
        return statuses.PUBLISH
    return statuses.GENERATE_PREVIEW if post.verdict == statuses.APPROVED else statuses.MODERATE


def _must_be_pending(post: Article, done: str) -> None:
    if post.status != statuses.PENDING_PUBLISH:
        why = f"the post {post.id} is {post.status}; only one in PENDING_PUBLISH is {done}"
        raise statuses.InvalidStatus(why, post.status)
