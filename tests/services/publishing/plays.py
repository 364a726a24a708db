"""Sagas as plays: each is acted on a whole blog, passes points of its own, and has one right end.

`POINTS` says of every point of the saga in which play it is passed, and by which part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import count
from typing import Any, Final

from bench.publishing.blog import (
    BACKEND,
    DLQ_WORKER,
    RELAY,
    SAGA_WORKER,
    WORKER,
    Blog,
    Post,
    wait_until,
)
from bench.publishing.doors import Fault, Request, Rule, write_refusal
from ulak.services.publishing import statuses
from ulak.services.publishing.articles import make_slug
from ulak.services.publishing.tasks import make_policy
from ulak.store import faults

BESIDE, APART = "beside", "apart"

VARIABLES: Final = {
    # Half of all titles are approved; which, `_title` knows beforehand.
    "MODERATION_SEED": "plays",
    "MODERATION_APPROVE_RATE": "0.5",
    # Nobody gives up because a process is away for a while, and nobody waits long.
    "SAGA_MAX_RETRIES": "60",
    "NOTIFY_MAX_RETRIES": "60",
    "RETRY_BASE_SECONDS": "0.1",
    "RETRY_MAX_SECONDS": "1",
    "RETRY_JITTER": "false",
    # What a killed process has taken is free again after a second.
    "TASK_VISIBILITY_SECONDS": "1",
    "SAGA_STUCK_SECONDS": "2",
}
"""Settings under which a play takes a moment."""
PLAYED_ORDERS: Final = {"patience": (0.05, 0.1)}
"""What parts are told beside that: how long they wait after a key was refused, in seconds."""
SHORT_PUSHES: Final = {"PUSH_TIMEOUT_SECONDS": "0.3"}
"""So that a delivery which a killed worker had claimed is free soon."""

REFUSED_BEFORE: Final = Fault(
    "refused-before", forwards=False, answer=write_refusal(400, "validation_error")
)
REFUSED_AFTER: Final = replace(REFUSED_BEFORE, kind="refused-after", forwards=True)
NO_SUCH_KEY: Final = Fault(
    "no-such-key", forwards=False, answer=write_refusal(401, "invalid_api_key")
)


@dataclass(frozen=True, slots=True)
class Played:
    """A play that has ended, with one post."""

    blog: Blog
    post: Post
    ends: str
    """The status in which the post has to be."""

    def wrong(self, *, crashed: bool = False) -> list[str]:
        """Return what is wrong with the end."""
        blog, post = self.blog, self.post
        found = blog.replay(post)
        if blog.status(post) != self.ends:
            found.append(f"it is {blog.status(post)}, and not {self.ends}")
        keys = blog.expected_keys(post) if self.ends == statuses.PUBLISHED else set()
        came = blog.keys_of(post)
        if set(came) != keys:
            found.append(f"the receiver has {sorted(came)}, and not {sorted(keys)}")
        if not crashed and set(came.values()) > {1}:
            found.append(f"some push was sent twice: {came}")
        stand = Counter(row[2] for row in blog.notifications() if row[0] == post.id)
        if stand != Counter({"sent": len(keys)} if keys else {}):
            found.append(f"deliveries: {dict(stand)}")
        return found


Act = Callable[[Blog], Played]


# --- the plays ---------------------------------------------------------------------------


def approve(blog: Blog) -> Played:
    """Moderation approves."""
    return _publish(blog, _write(blog), statuses.PUBLISHED)


def reject(blog: Blog) -> Played:
    """Moderation rejects."""
    return _publish(blog, _write(blog, is_approved=False), statuses.REJECTED)


def fail_moderation(blog: Blog) -> Played:
    """The backend takes no approval, so that the task is a dead letter and the post rejected."""
    post = _write(blog)
    blog.to_backend.rule = _break(blog, post, "moderation", "approve", REFUSED_BEFORE)
    return _publish(blog, post, statuses.REJECTED)


def fail_preview(blog: Blog) -> Played:
    """The backend takes no preview, so that the task is a dead letter and the post in ERROR."""
    post = _write(blog)
    blog.to_backend.rule = _break(blog, post, "preview", "preview", REFUSED_BEFORE)
    return _publish(blog, post, statuses.ERROR)


def lose_publish(blog: Blog) -> Played:
    """The post is published and the worker told that it is not: nothing is compensated."""
    post = _write(blog)
    blog.to_backend.rule = _break(blog, post, "publish", "publish", REFUSED_AFTER)
    return _publish(blog, post, statuses.PUBLISHED)


def resume(blog: Blog) -> Played:
    """A failed preview is put back by an operator, and the post goes on."""
    played = fail_preview(blog)
    blog.to_backend.rule = _no_faults
    return _redrive(blog, played.post, resume=True)


def discard(blog: Blog) -> Played:
    """An operator gives a failed preview up: its post stays in ERROR."""
    played = fail_preview(blog)
    _ask_of_letter(blog, played.post, "DELETE", "", state="discarded")
    return played


def notify_again(blog: Blog) -> Played:
    """Notifications could not even begin; an operator puts the task back."""
    post = _write(blog)
    reads = _break(blog, post, "publish", "read", REFUSED_BEFORE)

    def rule(request: Request) -> Fault | None:
        # The task before it reads with the same key, while the post is pending.
        fault = reads(request)
        return fault if fault and blog.status(post) == statuses.PUBLISHED else None

    blog.to_backend.rule = rule
    _publish(blog, post, statuses.PUBLISHED)
    blog.to_backend.rule = _no_faults
    return _redrive(blog, post, resume=False)


def refuse_key(blog: Blog) -> Played:
    """A key is not known for a moment, as while a new one is being deployed."""
    post = _write(blog)
    breaks = _break(blog, post, "moderation", "read", NO_SUCH_KEY)
    refusals = count()
    blog.to_backend.rule = lambda request: (
        fault if (fault := breaks(request)) and next(refusals) < 1 else None
    )
    return _publish(blog, post, statuses.PUBLISHED)


def sweep(blog: Blog) -> Played:
    """The task of a pending post is lost by an accident; the sweep starts it again."""
    post = _write(blog)
    blog.stop(SAGA_WORKER)
    blog.publish(post)
    queue = blog.publishing.posts.queue

    def find() -> Any:
        found = queue.find(statuses.MODERATE, blog.publishing.posts.get_by_id(post.id))
        return found if found is not None and found.flow == statuses.MODERATE else None

    wait_until(find, "the task has not come to the queue")
    blog.engine.cancel(find().id, actor="accident")
    blog.start(SAGA_WORKER)
    blog.wait_until_at_rest([post])
    return Played(blog, post, statuses.PUBLISHED)


PLAYS: Final[Mapping[str, Act]] = {
    act.__name__: act
    for act in (
        approve, reject, fail_moderation, fail_preview, lose_publish, resume, discard,
        notify_again, refuse_key, sweep,
    )
}  # fmt: skip

_titles = count(1)


def _no_faults(_: Request) -> None:
    return None


def _write(blog: Blog, *, is_approved: bool = True) -> Post:
    """Write a post that moderation will approve, or reject."""
    blog.to_backend.rule = _no_faults
    approves = make_policy(blog.publishing.settings)

    def is_wanted(slug: str) -> bool:
        return approves({"slug": slug, "revision": 1, "publication_id": ""}) == is_approved

    while True:
        title = f"play {next(_titles)}"
        # Where the answer is lost the draft is written again, with a slug of another verdict.
        if is_wanted(make_slug(title)) and is_wanted((post := blog.write(title)).slug):
            return post


def _publish(blog: Blog, post: Post, ends: str) -> Played:
    blog.publish(post)
    blog.wait_until_at_rest([post])
    return Played(blog, post, ends)


def _redrive(blog: Blog, post: Post, *, resume: bool) -> Played:
    body = {"resume": resume}
    _ask_of_letter(blog, post, "POST", "/redrive", state="redriven", json=body)
    blog.wait_until_at_rest([post])
    return Played(blog, post, statuses.PUBLISHED)


def _ask_of_letter(
    blog: Blog, post: Post, method: str, ending: str, *, state: str, **options: Any
) -> None:
    """Have an operator do something with the only dead letter of a post."""
    letters = blog.publishing.dead_letters
    (letter,) = [each for each in letters.list() if each["post_id"] == post.id]
    path, key = f"/internal/dlq/{letter['id']}{ending}", f"Token {blog.keys['dlq']}"
    # Where its answer is lost it is asked again, and may be refused then.
    answer = blog.ask(method, path, key, **options)
    assert answer.status_code in (200, 409), answer.text
    wait_until(lambda: letters.get(letter["id"])["state"] == state, f"it is not {state}")


def _break(blog: Blog, post: Post, worker: str, operation: str, fault: Fault) -> Rule:
    """Return the rule that breaks one kind of call about one post."""
    ending = "" if operation == "read" else f"/{operation}"
    path, key = f"/internal/articles/{post.id}{ending}", f"Token {blog.keys[worker]}"

    def rule(request: Request) -> Fault | None:
        is_it = request.path == path and request.headers.get("authorization") == key
        return fault if is_it else None

    return rule


# --- where a process is killed -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Passing:
    """Where a point is passed."""

    act: Act
    part: str
    _: KW_ONLY
    apart: str = ""
    """The part in which it is passed where the queue is apart, if that is another one."""
    times: int = 1
    """How often it is passed there; the process is killed at each."""
    ways: Sequence[str] = (BESIDE, APART)


@dataclass(frozen=True, slots=True)
class Cell:
    """One crash: a part is killed when it passes a point for the nth time."""

    act: Act
    part: str
    point: str
    nth: int

    def __str__(self) -> str:
        return f"{self.act.__name__}: {self.part} at {self.point}, time {self.nth}"


_APART = {"ways": (APART,)}

POINTS: Final[Mapping[str, Passing]] = {
    "posts.publish": Passing(approve, BACKEND),
    "saga.approve": Passing(approve, BACKEND),
    "saga.store-preview": Passing(approve, BACKEND),
    "saga.publish": Passing(approve, BACKEND),
    "saga.reject": Passing(reject, BACKEND),
    "saga.fail": Passing(fail_preview, BACKEND),
    "dlq.resume": Passing(resume, BACKEND),
    "saga.restart": Passing(sweep, BACKEND, apart=RELAY),
    "queue.put": Passing(approve, BACKEND, times=4),
    "queue.put-back": Passing(notify_again, BACKEND),
    "queue.relay-back": Passing(resume, BACKEND, **_APART),
    "relay.send": Passing(approve, RELAY, times=4, **_APART),
    "relay.find": Passing(resume, RELAY, **_APART),
    "relay.own": Passing(resume, RELAY, **_APART),
    "relay.retry": Passing(resume, RELAY, **_APART),
    "moderation.read": Passing(approve, SAGA_WORKER),
    "moderation.approve": Passing(approve, SAGA_WORKER),
    "moderation.reject": Passing(reject, SAGA_WORKER),
    "preview.read": Passing(approve, SAGA_WORKER),
    "preview.preview": Passing(approve, SAGA_WORKER),
    "publish.read": Passing(approve, SAGA_WORKER),
    "publish.publish": Passing(approve, SAGA_WORKER),
    "refusal.kept": Passing(refuse_key, SAGA_WORKER),
    "notify.read": Passing(approve, WORKER),
    "notify.fan-out": Passing(approve, WORKER),
    "notify.page": Passing(approve, WORKER),
    "notify.turn": Passing(approve, WORKER, times=2),
    "notify.claim": Passing(approve, WORKER, times=2),
    "notify.push": Passing(approve, WORKER, times=2),
    "notify.wait": Passing(approve, WORKER),
    "notify.end": Passing(approve, WORKER),
    "notify.judge": Passing(approve, WORKER),
    "dlq.discard": Passing(discard, BACKEND),
    "dlq.find": Passing(fail_preview, DLQ_WORKER),
    "dlq.error": Passing(fail_preview, DLQ_WORKER),
    "dlq.reject": Passing(fail_moderation, DLQ_WORKER),
    "dlq.publish": Passing(lose_publish, DLQ_WORKER),
}
"""Every step of the saga, and where it is passed."""

COMMITS: Final = (
    *((approve, SAGA_WORKER, "commit", nth) for nth in (1, 2, 3)),
    (approve, WORKER, "commit", 1),
    (fail_preview, DLQ_WORKER, "commit", 1),
    *((approve, BACKEND, "transaction", nth) for nth in (2, 3, 4, 5)),
)
"""The commits of workers, by which a task is over, and those of the backend, by the points of the
stores. The first transaction of the backend writes the draft."""


def both(*names: str) -> Iterator[str]:
    """Return the points before and after each of these steps."""
    for name in names:
        yield f"publishing.{name}.before"
        yield f"publishing.{name}.after"


def cells(way: str) -> list[Cell]:
    """Return every crash of the matrix."""
    found = [
        Cell(passing.act, (way == APART and passing.apart) or passing.part, point, nth)
        for name, passing in POINTS.items()
        if way in passing.ways
        for point in both(name)
        for nth in range(1, passing.times + 1)
    ]
    return found + [
        Cell(act, part, point, nth)
        for act, part, kind, nth in COMMITS
        for point in faults.POINTS[kind]
    ]
