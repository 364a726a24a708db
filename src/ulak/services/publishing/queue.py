"""The queue of the saga, beside the posts or in another store.

Beside the posts a task is a job that is written in the transaction of the change it follows. In
another store it is first a row of the posts' database: a job of the flow `relay`, which sends it to
the queue under the id of its event. Rows of one post are sent in order.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from datetime import timedelta
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from ulak import Backoff, Dedup, Engine, Flow, Job, JobNotFound, Lifecycle, Limit, Run, Until
from ulak.kit.clock import now
from ulak.services.publishing.events import make_event_id, make_payload, step

if TYPE_CHECKING:
    from ulak.services.publishing.articles import Article
    from ulak.services.publishing.tasks import Tasks

RELAY: Final = "relay"
RELAY_QUEUE: Final = "publishing-relay"
CLEANUP: Final = "publishing-relay-cleanup"
KEPT: Final = timedelta(days=7)
"""How long a row is kept after it was sent."""
A_BATCH: Final = 500
# A queue that is away is tried for as long as it takes, and soon after it is back.
FOREVER: Final = Backoff(1_000_000, first=timedelta(seconds=0.2), longest=timedelta(seconds=15))
REDRIVE: Final = "redrive"
REDRIVEN: Final = "dead-letters:redriven"
"""The owner of every dead letter that was put back: so they are found by an index."""


class Queue:
    """Writes the tasks of posts, in the transactions that change the posts. `engine` is that of the
    queue: the same one where they are one store."""

    def __init__(self, posts: Engine, engine: Engine, tasks: Tasks) -> None:
        self.posts, self.engine, self.tasks = posts, engine, tasks
        self.is_same = posts is engine
        self._relay = _make_relay()

    def declare(self) -> None:
        """Declare the relay and its clean-up, if the queue is another store than the posts'."""
        if self.is_same:
            return
        cleanup = Flow.steps(CLEANUP, clean_up, queue=RELAY_QUEUE)
        self.posts.add(self._relay)
        self.posts.add(cleanup)
        self.posts.schedules.add(CLEANUP, cleanup, {}, every=timedelta(hours=1))
        self.posts.resource(Queue)(lambda: nullcontext(self))

    def put(self, connection: Any, task: str, post: Article, **about: Any) -> None:
        """Write a task of a post in an open transaction of the posts' database; an event that is
        there already stays the only one. `about` goes on to `make_payload`."""
        payload = make_payload(task, post, now(self.posts), **about)
        with step("queue.put"):
            if self.is_same:
                self.engine.submit(*self._address(task, payload), connection=connection)
            else:
                row = {"task": task, "payload": payload, "post_id": post.id}
                key = payload["event_id"]
                self.posts.submit(self._relay, row, dedup_key=key, connection=connection)

    def find(self, task: str, post: Article) -> Job | None:
        """Return the job of a task for the present step of a post: while it is on its way the row
        of the relay, else the job in the queue, or None. Not inside a transaction."""
        if post.publication_id is None:
            return None
        key = make_event_id(task, post)
        if not self.is_same:
            row = self.posts.find(RELAY, key)
            if row is not None and not row.is_final:
                return row
        return self.engine.find(task, key)

    def put_back(self, id: str, round: int, actor: str, *, connection: Any = None) -> None:
        """Put a dead letter back, once: at once, or with an open transaction of the posts'
        database. `TransitionNotAllowed`, `StaleJob`: it is no dead letter any more."""
        if connection is None or self.is_same:
            with step("queue.put-back"):
                self.engine.owners.add(id, REDRIVEN, connection=connection)
                self.engine.retry(id, actor=actor, note=REDRIVE, connection=connection)
            return
        # In no line with the rows of its post: while a post is in ERROR, it has none.
        row = {REDRIVE: id, "round": round, "actor": actor, "post_id": id}
        with step("queue.relay-back"):
            key = f"{REDRIVE}:{id}:{round}"
            self.posts.submit(self._relay, row, dedup_key=key, connection=connection)

    async def send(self, row: dict[str, Any]) -> None:
        """Send a row of the relay; to send it twice changes nothing."""
        if REDRIVE not in row:
            flow, payload = self._address(row["task"], row["payload"])
            with step("relay.send"):
                await self.engine.aio.submit(flow, payload, dedup_key=payload["event_id"])
            return
        with step("relay.find"), suppress(JobNotFound):  # the sweep starts what is gone
            job = await self.engine.aio.get(row[REDRIVE])
            if job.role == "failed" and job.round == row["round"]:
                with step("relay.own"):
                    await self.engine.aio.owners.add(job.id, REDRIVEN)
                with step("relay.retry"):
                    await self.engine.aio.retry(job.id, actor=row["actor"], note=REDRIVE)

    def _address(self, task: str, payload: dict[str, Any]) -> tuple[Flow[Any], dict[str, Any]]:
        """Return the flow of a task and its payload; of one that nobody knows, with its name."""
        flow = self.tasks.find(task)
        return flow, payload if flow.name == task else payload | {"task": task}


def clean_up(run: Run[Any]) -> None:
    """Remove what was sent seven days ago, in batches."""
    posts = run.resource(Queue).posts
    for of in ((RELAY, "sent"), (CLEANUP, "done")):
        while posts.retention.prune(ended_before=run.now - KEPT, of=of, limit=A_BATCH) == A_BATCH:
            run.checkpoint()


def _make_relay() -> Flow[Any]:
    """Return the flow of the rows. One of each post is being sent at a time, through retries and
    lost workers too: so they are sent in order."""
    lifecycle = Lifecycle("waiting", {"waiting": ["sending"], "sending": ["sent"]}, done="sent")
    inbox = Dedup(until=Until.FORGOTTEN, keep=KEPT)
    flow: Flow[Any] = Flow(RELAY, lifecycle, queue=RELAY_QUEUE, retry=FOREVER, dedup=inbox)
    in_order = Limit(1, key=itemgetter("post_id"), of="state")

    @flow.stage("waiting", during="sending", to="sent", limit=in_order, timeout=60)
    async def relay(run: Run[Any]) -> None:
        await run.resource(Queue).send(run.payload)

    return flow
