"""Many sagas at once while every call may go wrong, and what came of them.

A tenth of all calls from workers to the backend and to the receiver is broken: the connection is
reset before or after the call was made, the answer is an error before or after it, or it comes
late. Then the faults end, an operator puts notifications back that have failed, and every post, its
history and the ledger of the receiver are looked at.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from bench.publishing.blog import FINAL, Blog, Post
from bench.publishing.doors import Passed, RandomFaults
from ulak.services.publishing import statuses

SHARE: Final = 0.1
AT_ONCE: Final = 16
PATIENCE_S: Final = 900.0
MOST_SHOWN: Final = 20

VARIABLES: Final = {
    # Shorter than in production, so that a storm takes a minute; as many tries as there.
    "RETRY_BASE_SECONDS": "0.1",
    "RETRY_MAX_SECONDS": "2",
    "PUSH_TIMEOUT_SECONDS": "1",
    "TASK_VISIBILITY_SECONDS": "5",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a storm."""

    counts: dict[str, float]
    wrong: Sequence[str]


def rage(blog: Blog, sagas: int, *, seed: int, share: float = SHARE) -> Verdict:
    """Publish so many posts of a running blog while calls are broken; return what came of it."""
    with ThreadPoolExecutor(AT_ONCE) as authors:
        posts = list(authors.map(blog.write, (f"storm {n}" for n in range(sagas))))
        blog.to_backend.rule = RandomFaults(seed, share)
        blog.to_receiver.rule = RandomFaults(seed, share)
        began = time.perf_counter()
        list(authors.map(blog.publish, posts))
        blog.wait_until_at_rest(posts, PATIENCE_S)
        spent = time.perf_counter() - began
    calls = [*blog.to_backend.passed, *blog.to_receiver.passed]
    letters = blog.publishing.dead_letters.list(limit=sagas * 4)
    dead = {letter["post_id"] for letter in letters if letter["task"] == statuses.NOTIFY}
    wrong = [*_before_redrive(blog, dead)]
    for door in (blog.to_backend, blog.to_receiver):
        door.rule = lambda _: None
    for letter in letters:
        if letter["task"] == statuses.NOTIFY:
            blog.publishing.dead_letters.redrive(letter["id"], actor="bench")
    blog.wait_until_at_rest(posts, PATIENCE_S)
    wrong += _after_redrive(blog, posts)
    kinds = Counter(each.fault.kind for each in calls if each.fault is not None)
    return Verdict(
        {
            **Counter(blog.status(post) for post in posts),
            "dead letters": len(letters),
            "calls": len(calls),
            "calls broken": sum(kinds.values()),
            **{f"  {kind}": n for kind, n in sorted(kinds.items())},
            "pushes taken": len(blog.receiver.requests),
            "seconds": round(spent, 1),
        },
        wrong,
    )


def _before_redrive(blog: Blog, dead: Set[str]) -> list[str]:
    """Return which deliveries are not as their calls went. One may be pending where the task of its
    post is dead: it could not read the post in its last try."""
    wrong = []
    tries: dict[str, list[Passed]] = {}
    for passed in blog.to_receiver.passed:
        tries.setdefault(passed.request.key, []).append(passed)
    retries = blog.publishing.settings.notify_max_retries
    allowed = (3 if retries is None else retries) + 1
    for article, subscriber, status, _ in blog.notifications():
        key = f"{article}:{subscriber}"
        made = tries.pop(key, [])
        whole = [each for each in made if each.fault is None]
        if status not in ("sent", "failed") and (status != "pending" or article not in dead):
            wrong.append(f"the delivery {key} is {status}")
        if status == "failed" and (whole or len(made) < allowed):
            wrong.append(f"the delivery {key} was given up after {len(made)} tries")
        if len(whole) > 1 or (whole and whole[-1] is not made[-1]):
            wrong.append(f"the delivery {key} was sent again after it had been taken")
    return wrong + [f"{key} was sent, and no delivery knows of it" for key in tries]


def _after_redrive(blog: Blog, posts: Sequence[Post]) -> list[str]:
    """Return what is wrong with posts and with the ledger of the receiver."""
    wrong = []
    expected: set[str] = set()
    for post in posts:
        status = blog.status(post)
        if status not in FINAL:
            wrong.append(f"{post.id} is {status}")
        if status == statuses.PUBLISHED:
            expected |= blog.expected_keys(post)
        wrong += [f"{post.id}: {what}" for what in blog.replay(post)]
    came, stand = set(blog.receiver.requests), blog.notifications()
    wrong += [f"the push {key} has never come" for key in sorted(expected - came)]
    wrong += [f"the push {key} came for no published post" for key in sorted(came - expected)]
    sent = {f"{article}:{subscriber}" for article, subscriber, status, _ in stand}
    if sent != expected or {row[2] for row in stand} - {"sent"}:
        wrong.append(f"deliveries: {dict(Counter(row[2] for row in stand))} of {len(expected)}")
    wrong += [f"verify: {found}" for found in blog.engine.inspect.verify()]
    return wrong
