"""The tasks of the saga: what each does, in which queue, and how often it is tried.

A task is a flow of one stage, named as the specification names the task. Its dedup key is the id of
its event, kept for seven days; so an event that is delivered twice is done once. One that fails for
good stays as the dead letter, and in the same commit a job of the flow `dlq` begins to compensate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from hashlib import sha256
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from ulak import Dedup, Flow, Job, Lifecycle, OnEnd, RetryLater, Run, Until
from ulak.services.publishing import statuses
from ulak.services.publishing.backend import CallRefused
from ulak.services.publishing.dead_letters import compensate
from ulak.services.publishing.events import TaskRefused
from ulak.services.publishing.handling import (
    Handler,
    ModerationPolicy,
    Tools,
    make_backoff,
    read_post,
    task,
)
from ulak.services.publishing.notifications import DeliveriesFailed, Notifications
from ulak.services.publishing.settings import PublishingSettings
from ulak.services.publishing.statuses import PENDING_PUBLISH

if TYPE_CHECKING:
    from ulak.services.publishing.dead_letters import DeadLetters
    from ulak.services.publishing.queue import Queue

STAGE_TIMEOUT: Final = timedelta(seconds=30)
"""So short that a dead letter is compensated within a minute, also where the backend hangs."""
NOTIFY_TIMEOUT: Final = timedelta(minutes=15)
"""As long as any stage: ten thousand subscribers take more than half a minute."""
KEPT: Final = timedelta(days=7)
"""How long an event is known, so that it is not done again."""
PREVIEW_URL: Final = "https://preview.example.com/articles/{}/preview.png"
NOT_APPROVED: Final = "moderation did not approve this post"
UNKNOWN: Final = "post.unknown"
DLQ: Final = "dlq"
# A failed task may be given up by an operator (`discard`): it is expired then.
LIFECYCLE: Final = Lifecycle("queued", {"queued": ["done"], "failed": ["expired"]})


@task(max_retries=3, retry_backoff=True, retry_jitter=True)
async def moderate_post(run: Run[Any]) -> None:
    """Approve or reject a post. The verdict is drawn once: a stored one is said again."""
    event, post = await read_post(run, "moderation.read", PENDING_PUBLISH)
    tools = run.resource(Tools)
    stored = post["verdict"]
    if tools.policy(post) if stored is None else stored == statuses.APPROVED:
        await tools.backend.call("moderation.approve", event)
    else:
        await tools.backend.call("moderation.reject", event, reason=NOT_APPROVED)


@task(max_retries=3, retry_backoff=True, retry_jitter=True)
async def generate_preview(run: Run[Any]) -> None:
    """Store where the preview of a post is, a stored one again: so that publish follows."""
    event, post = await read_post(run, "preview.read", PENDING_PUBLISH)
    url = post["preview_url"] or PREVIEW_URL.format(event.post_id)
    await run.resource(Tools).backend.call("preview.preview", event, preview_url=url)


@task(max_retries=3, retry_backoff=True, retry_jitter=True)
async def publish_post(run: Run[Any]) -> None:
    """Publish a post."""
    event, _ = await read_post(run, "publish.read", PENDING_PUBLISH)
    await run.resource(Tools).backend.call("publish.publish", event)


@task(max_retries=3, retry_backoff=True, retry_jitter=True, setting="notify_max_retries")
async def notify(run: Run[Any]) -> RetryLater | None:
    """Tell the subscribers of the author, once each."""
    _, post = await read_post(run, "notify.read", statuses.PUBLISHED)
    deliver = run.resource(Tools).notifications.run
    return await deliver(post, round=run.round, attempt=run.attempt, stop=lambda: run.cancelled)


@dataclass(frozen=True, slots=True)
class Tasks:
    """The flows of the queue."""

    flows: Mapping[str, Flow[Any]]
    """By the name of the task."""
    unknown: Flow[Any]
    """Of what has any other name: it fails at once, and waits for a release that knows its task."""
    dlq: Flow[Any]

    def find(self, name: str) -> Flow[Any]:
        """Return the flow of a task, `unknown` for a name that this release does not know."""
        return self.flows.get(name, self.unknown)

    @property
    def saga(self) -> tuple[Flow[Any], ...]:
        """Every flow whose failed jobs are dead letters."""
        return (*self.flows.values(), self.unknown)


def make_tasks(settings: PublishingSettings) -> Tasks:
    """Return the flows of the queue, with the queues and the retries of these settings."""
    permanent = (TaskRefused, CallRefused, DeliveriesFailed)

    def make(name: str, queue: str, handler: Handler, key: Any, **options: Any) -> Flow[Any]:
        flow: Flow[Any] = Flow(
            name, LIFECYCLE, queue=queue, permanent=permanent, retries_permanent=True,
            retry=make_backoff(handler, settings), **options,
            dedup=Dedup(key, until=Until.FORGOTTEN, keep=KEPT),
        )  # fmt: skip
        timeout = NOTIFY_TIMEOUT if handler is notify else STAGE_TIMEOUT
        flow.stage("queued", timeout=timeout)(handler)
        return flow

    @task(max_retries=0, setting="")
    async def refuse(run: Run[Any]) -> None:
        """Send a task on if this release knows it, as after an upgrade; else fail for good."""
        name = run.payload["task"]
        if name not in flows:
            known = ", ".join(flows)
            raise TaskRefused("unknown_task", f"no task is called {name!r}; there are {known}")
        run.spawn(flows[name], [run.payload])

    dlq = make(DLQ, settings.dlq_queue, compensate, lambda p: f"{p['dead_letter']}:{p['round']}")
    # Whoever redrives a dead letter becomes an owner of it: so it is found by an index.
    options: Any = {"on_end": OnEnd(dlq, payload=_begin_compensation), "owners": True}
    handlers: Mapping[str, Handler] = {
        statuses.MODERATE: moderate_post, statuses.GENERATE_PREVIEW: generate_preview,
        statuses.PUBLISH: publish_post, statuses.NOTIFY: notify, UNKNOWN: refuse,
    }  # fmt: skip
    flows: dict[str, Flow[Any]] = {}
    for name, handler in handlers.items():
        queue = settings.notifications_queue if handler is notify else settings.saga_queue
        flows[name] = make(name, queue, handler, itemgetter("event_id"), **options)
    return Tasks(flows, flows.pop(UNKNOWN), dlq)


def declare(
    queue: Queue, settings: PublishingSettings, *, dead_letters: DeadLetters,
    notifications: Notifications, policy: ModerationPolicy | None = None,
) -> None:  # fmt: skip
    """Declare every flow, resource and schedule of the saga to its engines; nothing is opened.
    `policy` judges posts, by default `make_policy`."""
    for flow in (queue.tasks.dlq, *queue.tasks.saga):
        queue.engine.add(flow)
    others = (policy or make_policy(settings), dead_letters, notifications)
    now = queue.engine.store.clock.now
    queue.engine.resource(Tools)(partial(Tools.opened, settings, *others, now=now))
    queue.declare()


def make_policy(settings: PublishingSettings) -> ModerationPolicy:
    """Return the policy that approves at random, by the rate and the seed of the settings. Whoever
    judges a publication again comes to the same verdict: it is drawn from the publication's id,
    or, with a seed, from slug and revision."""

    def approves(post: Mapping[str, Any]) -> bool:
        drawn = post["publication_id"]
        if settings.moderation_seed is not None:
            drawn = f"{settings.moderation_seed}:{post['slug']}:{post['revision']}"
        number = int.from_bytes(sha256(drawn.encode()).digest()[:8], "big")
        return number < settings.approve_rate * 2**64

    return approves


def _begin_compensation(job: Job, code: str | None) -> dict[str, Any] | None:
    """Return what the job of `dlq` is told of a task that has failed for good."""
    is_dead = job.state == LIFECYCLE.failed
    return {"dead_letter": job.id, "round": job.round} if is_dead else None
