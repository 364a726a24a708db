"""Whole sagas in one process: real HTTP, real workers, and what goes wrong between them."""

import os
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.services.publishing.plant import (
    Plant,
    lend_queue,
    live_worker,
    open_like,
    place,
    planted,
)
from tests.services.publishing.shared import Served
from tests.services.publishing.site import eventually
from ulak import JobFilter
from ulak.services.publishing import handling, statuses
from ulak.services.publishing.articles import Article
from ulak.services.publishing.events import step
from ulak.services.publishing.handling import ModerationPolicy, Tools
from ulak.services.publishing.notifications import Notifications
from ulak.services.publishing.statuses import (
    GENERATE_PREVIEW,
    MODERATE,
    NOTIFY,
    PENDING_PUBLISH,
    PUBLISH,
    PUBLISHED,
    REJECTED,
)
from ulak.testing import faults

IN_ORDER = (MODERATE, GENERATE_PREVIEW, PUBLISH, NOTIFY)


@pytest.fixture
def plant(served_both: Served) -> Iterator[Plant]:
    """The queue beside the posts, or in another database."""
    with served_both.plant() as made:
        yield made


@pytest.fixture
def beside(served_beside: Served) -> Iterator[Plant]:
    with served_beside.plant() as made:
        yield made


def deliver_again(plant: Plant, task: str, post: Article, copies: int) -> None:
    """Deliver a task of a post several times more, as a queue may that promises at least once."""
    job = plant.queue.find(task, post)
    assert job is not None
    about = plant.engine.inspect.payload(job.id)
    for number in range(copies):
        flow = plant.tasks.flows[task]
        plant.engine.submit(flow, about, dedup_key=f"{about['event_id']}/{number}")


# --- the ways of a saga -------------------------------------------------------------


@pytest.mark.shows("S-14", "S-1")
def test_an_approved_post_is_published_and_each_subscriber_is_told_once(plant: Plant) -> None:
    author, readers = plant.make_author(3)
    post = plant.publish(author=author)
    with plant.running():
        assert plant.wait(post) == [PUBLISHED]
    found = plant.find(post)
    assert found.preview_url == f"https://preview.example.com/articles/{post.id}/preview.png"
    assert found.published_at is not None
    assert plant.moves(post) == [
        (PENDING_PUBLISH, statuses.BY_AUTHOR), (PUBLISHED, statuses.BY_PUBLISH),
    ]  # fmt: skip
    assert sorted(plant.receiver.keys) == sorted(f"{post.id}:{reader}" for reader in readers)
    assert {task: len(plant.jobs(task)) for task in IN_ORDER} == dict.fromkeys(IN_ORDER, 1)
    assert plant.backend.calls == {"read": 4, "approve": 1, "preview": 1, "publish": 1}
    assert plant.letters() == []
    assert plant.engine.inspect.verify() == []


@pytest.mark.shows("S-16", "S-5")
def test_a_rejected_post_goes_no_further_and_nobody_is_told(served_beside: Served) -> None:
    with served_beside.plant(approve_rate=0.0) as plant:
        author, _ = plant.make_author(1)
        post = plant.publish(author=author)
        with plant.running():
            assert plant.wait(post) == [REJECTED]
        assert plant.find(post).moderation_reason
        assert plant.moves(post)[-1] == (REJECTED, statuses.BY_REJECT)
        assert [plant.jobs(task) for task in IN_ORDER[1:]] == [[], [], []]
        assert plant.receiver.keys == []


@pytest.mark.shows("S-15", "S-14")
def test_many_sagas_end_each_by_its_verdict(plant: Plant) -> None:
    _judge(plant, lambda post: int(post["title"][-1]) % 3 > 0)
    posts = [plant.publish(f"Post {number}") for number in range(20)]
    with plant.running():
        ends = plant.wait(*posts)
    assert ends == [PUBLISHED if n % 10 % 3 else REJECTED for n in range(20)]
    assert len(plant.jobs(NOTIFY)) == ends.count(PUBLISHED)
    assert plant.letters() == []


# --- races --------------------------------------------------------------------------


@pytest.mark.shows("R-2", "S-20")
def test_moderation_that_is_delivered_often_and_in_parallel_has_one_verdict(beside: Plant) -> None:
    plant = beside
    posts = [plant.publish(f"Post {number}") for number in range(10)]
    for post in posts:
        deliver_again(plant, MODERATE, post, copies=3)
    # A policy that never says the same twice, in two workers.
    other = open_like(plant.url, "", *place(plant)[2:])
    for each in (plant, other):
        _judge(each, lambda _: os.urandom(1)[0] < 128)
    with other.running(), plant.running():
        ends = plant.wait(*posts)
    other.close()
    assert set(ends) == {PUBLISHED, REJECTED}
    for post in posts:
        found = plant.find(post)
        approved = found.status == PUBLISHED
        assert found.verdict == (statuses.APPROVED if approved else statuses.REFUSED)
        assert len(plant.moves(post)) == 2
    assert len(plant.jobs(GENERATE_PREVIEW)) == ends.count(PUBLISHED)
    assert plant.letters() == []


def _judge(plant: Plant, policy: ModerationPolicy) -> None:
    """Give the workers another policy."""
    others = (policy, plant.dead_letters, Notifications(plant.users, plant.settings))
    plant.engine.resource(Tools)(partial(Tools.opened, plant.settings, *others))


@pytest.mark.shows("R-5", "S-20")
def test_a_publish_that_is_delivered_often_publishes_once_and_each_reader_is_told_once(
    beside: Plant,
) -> None:
    plant = beside
    author, readers = plant.make_author(2)
    post = plant.publish(author=author)
    about = post.id, post.publication_id
    plant.saga.approve(*about, "moderation")
    plant.saga.store_preview(*about, "https://preview.example.com/1.png", "preview")
    deliver_again(plant, PUBLISH, post, copies=5)
    other = open_like(plant.url, "", *place(plant)[2:])
    with other.running(), plant.running():
        assert plant.wait(post) == [PUBLISHED]
        (notify,) = plant.jobs(NOTIFY)
        deliver_again(plant, NOTIFY, post, copies=5)
        plant.settle()
    other.close()
    assert [move for move, _ in plant.moves(post)] == [PENDING_PUBLISH, PUBLISHED]
    assert len(plant.jobs(NOTIFY)) == 6
    assert plant.queue.find(NOTIFY, post) == plant.engine.get(notify.id)
    assert sorted(plant.receiver.keys) == sorted(f"{post.id}:{reader}" for reader in readers)


@pytest.mark.shows("R-9", "S-19")
@pytest.mark.parametrize(
    "call", ["moderation.approve", "preview.preview", "publish.publish", "dlq.error"]
)
def test_a_worker_killed_between_a_call_and_its_acknowledgement_is_made_up_for(
    beside: Plant, call: str
) -> None:
    plant = beside
    is_dlq = call.startswith("dlq.")
    if is_dlq:
        plant.backend.rule = lambda step: (422, "no") if step == "preview" else None
    post = plant.publish()
    _, after = step.points(call)
    crashed = faults.run(live_worker, *place(plant), kill_at=after)
    assert crashed.killed, crashed.errors
    with plant.running():
        (end,) = plant.wait(post)
    assert end == (statuses.ERROR if is_dlq else PUBLISHED)
    assert [move for move, _ in plant.moves(post)] == [PENDING_PUBLISH, end]
    assert all(len(plant.jobs(task)) <= 1 for task in (*IN_ORDER, "dlq"))
    assert len(plant.letters()) == int(is_dlq)


@pytest.mark.shows("R-15")
def test_a_key_that_is_revoked_in_mid_saga_delays_the_saga_until_another_is_there(
    beside: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SHORTEST_WAIT_S", "LONGEST_WAIT_S"):
        monkeypatch.setattr(handling, name, 0.05)
    plant = beside
    id, old = plant.make_key()
    worker = open_like(plant.url, "", plant.settings.backend_url, old, "http://127.0.0.1:9", "3")
    with worker.running():
        first = plant.publish("With the old key")
        assert plant.wait(first) == [PUBLISHED]
        plant.keys.revoke_key(id, actor="ada")
        # Revocation acts within five seconds.
        eventually(lambda: _is_refused(plant, old))
        post = plant.publish("With the new key")
        eventually(lambda: _has_waited(plant, post))
        assert plant.find(post).status == PENDING_PUBLISH
    worker.close()
    job = plant.queue.find(MODERATE, post)
    assert job is not None
    assert (job.role, job.attempt) == ("ready", 0), "no retry was spent"
    with plant.running():
        assert plant.wait(post) == [PUBLISHED]
    assert plant.letters() == []


def _is_refused(plant: Plant, key: str) -> bool:
    headers = {"Authorization": f"Token {key}"}
    url = f"{plant.settings.backend_url}/internal/dlq"
    return httpx.get(url, headers=headers, trust_env=False).status_code == 401


def _has_waited(plant: Plant, post: Article) -> bool:
    job = plant.queue.find(MODERATE, post)
    trail = [] if job is None else plant.engine.inspect.trail(job.id)
    return len([line for line in trail if line.kind == "retry"]) >= 3


@pytest.mark.shows("R-18", "S-25")
def test_the_sweep_starts_every_saga_anew_whose_tasks_are_gone(
    request: pytest.FixtureRequest, url: str, tmp_path: Path
) -> None:
    with lend_queue(request, url, tmp_path) as lost, planted(url, lost) as plant:
        steps = {
            MODERATE: plant.publish("Unmoderated"), GENERATE_PREVIEW: plant.publish("Unseen"),
            PUBLISH: plant.publish("Unpublished"),
        }  # fmt: skip
        for post in (steps[GENERATE_PREVIEW], steps[PUBLISH]):
            plant.saga.approve(post.id, post.publication_id, "moderation")
        last = steps[PUBLISH]
        plant.saga.store_preview(last.id, last.publication_id, "https://p.example/1", "preview")
        with plant.relaying():
            eventually(lambda: all(plant.jobs(task) for task in IN_ORDER[:3]))
            eventually(lambda: not plant.posts_engine.jobs(JobFilter(role="ready")))
    with (
        lend_queue(request, url, tmp_path) as empty,
        planted(url, empty, stuck_after=timedelta(0)) as plant,
    ):
        assert plant.jobs(MODERATE) == []
        assert plant.saga.sweep() == 3
        assert plant.saga.sweep() == 0, "they are under way again"
        with plant.running():
            assert plant.wait(*steps.values()) == [PUBLISHED] * 3
        assert plant.find(steps[PUBLISH]).preview_url == "https://p.example/1"
        assert len(plant.jobs(MODERATE)) == 1


@pytest.mark.shows("S-25", "S-24")
def test_a_step_that_is_lost_again_and_again_ends_in_error_with_a_dead_letter(
    beside: Plant,
) -> None:
    plant = beside
    post = plant.publish()
    plant.saga._stuck_after = 0
    for _ in range(3):
        job = plant.queue.find(MODERATE, plant.find(post))
        assert job is not None
        plant.engine.cancel(job.id, actor="an accident")
        assert plant.saga.sweep() == 1
    job = plant.queue.find(MODERATE, plant.find(post))
    assert job is not None
    plant.engine.cancel(job.id, actor="an accident")
    assert plant.saga.sweep() == 1
    assert plant.find(post).status == statuses.ERROR
    with plant.running():
        plant.settle()
        (letter,) = plant.letters()
        assert (letter["code"], letter["attempts"]) == ("stuck", 1)
        assert letter["state"] in ("logged", "compensated")
        plant.dead_letters.redrive(letter["id"], resume=True, actor="ada")
        assert plant.wait(post) == [PUBLISHED]


@pytest.mark.shows("R-8")
def test_a_post_that_is_deleted_while_it_is_pending_ends_quietly(plant: Plant) -> None:
    author, _ = plant.make_author(1)
    post = plant.publish(author=author)
    plant.posts.delete(post.slug, author)
    with plant.running():
        plant.settle()
    assert plant.letters() == []
    assert plant.receiver.keys == []
    assert {job.state for job in plant.jobs(MODERATE)} == {"done"}


@pytest.mark.shows("R-7", "S-6")
def test_tasks_of_a_withdrawn_publication_have_no_effect_on_the_next(plant: Plant) -> None:
    old = plant.publish()
    plant.posts.draft(old.slug, old.author_id)
    plant.posts.edit(old.slug, old.author_id, body="another text")
    new = plant.posts.publish(old.slug, old.author_id)
    with plant.running():
        assert plant.wait(new) == [PUBLISHED]
    found = plant.find(new)
    assert (found.publication_id, found.body) == (new.publication_id, "another text")
    assert len(plant.jobs(MODERATE)) == 2
    assert len(plant.jobs(NOTIFY)) == 1
    assert plant.letters() == []
