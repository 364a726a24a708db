"""The relay: rows of the posts' database on their way to a queue in another one."""

import statistics
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.services.publishing.plant import (
    Plant,
    live_author,
    live_relay,
    open_like,
    place,
    planted,
)
from tests.services.publishing.shared import Served
from tests.services.publishing.site import AMPLE_S, TEXTS, eventually
from ulak import JobFilter, StoreError, WorkerSettings
from ulak.services.publishing import queue as queues
from ulak.services.publishing import statuses
from ulak.services.publishing.articles import Article
from ulak.services.publishing.events import step
from ulak.services.publishing.queue import CLEANUP, RELAY, RELAY_QUEUE, Queue
from ulak.services.publishing.settings import PublishingSettings
from ulak.services.publishing.statuses import MODERATE, PENDING_PUBLISH, PUBLISHED
from ulak.services.publishing.tasks import make_tasks
from ulak.testing import Harness, faults
from ulak.testing.servers import Postgres

RELAYS = WorkerSettings(queues=frozenset({RELAY_QUEUE}), lease=timedelta(seconds=1))


@pytest.fixture
def plant(served_apart: Served) -> Iterator[Plant]:
    with served_apart.plant() as made:
        yield made


def rows(plant: Plant) -> list[Any]:
    """Return the rows of the relay, the first first."""
    return plant.posts_engine.jobs(JobFilter(flow=RELAY), limit=1000)[::-1]


def put(plant: Plant, post: Article, sweeps: int) -> str:
    """Put another event of a post, as a sweep does; return its id."""
    swept = replace(post, sweeps=sweeps)
    with plant.posts.tables.writing() as connection:
        plant.queue.put(connection, MODERATE, swept, requested_by="sweep")
    job = plant.queue.find(MODERATE, swept)
    assert job is not None
    found: dict[str, Any] = plant.posts_engine.inspect.payload(job.id)
    return str(found["payload"]["event_id"])


@pytest.mark.shows("S-13", "S-26")
def test_a_task_is_a_row_of_the_posts_until_a_relay_sends_it(plant: Plant) -> None:
    draft = plant.posts.create(str(uuid4()), **TEXTS)

    def be_cut_off() -> None:
        with plant.posts.tables.writing() as connection:
            plant.posts.publish(draft.slug, draft.author_id, connection=connection)
            raise RuntimeError("the request was cut off")

    with pytest.raises(RuntimeError):
        be_cut_off()
    assert rows(plant) == []
    post = plant.posts.publish(draft.slug, draft.author_id)
    (row,) = rows(plant)
    assert (row.role, plant.jobs(MODERATE)) == ("ready", [])
    assert plant.queue.find(MODERATE, post) == row
    with plant.relaying():
        eventually(lambda: plant.jobs(MODERATE))
        plant.posts_engine.wait(row.id, timeout=AMPLE_S)
    assert plant.posts_engine.get(row.id).state == "sent"
    (job,) = plant.jobs(MODERATE)
    assert plant.queue.find(MODERATE, post) == job
    sent = plant.engine.inspect.payload(job.id)
    assert sent == plant.posts_engine.inspect.payload(row.id)["payload"]
    assert sent["enqueued_at"].endswith("Z")


@pytest.mark.shows("S-26", "R-10")
def test_a_row_whose_relay_was_killed_before_it_sent_is_sent_by_another(plant: Plant) -> None:
    post = plant.publish()
    before, _ = step.points("relay.send")
    crashed = faults.run(live_relay, *place(plant), kill_at=before)
    assert crashed.killed, crashed.errors
    assert plant.jobs(MODERATE) == []
    with plant.running():
        assert plant.wait(post) == [PUBLISHED]
    assert plant.posts_engine.get(rows(plant)[0].id).attempt == 0


@pytest.mark.shows("S-27")
def test_a_row_whose_relay_was_killed_after_it_sent_is_sent_again_and_is_one_task(
    plant: Plant,
) -> None:
    post = plant.publish()
    _, after = step.points("relay.send")
    crashed = faults.run(live_relay, *place(plant), kill_at=after)
    assert crashed.killed, crashed.errors
    (sent,) = plant.jobs(MODERATE)
    (row,) = rows(plant)
    assert row.role != "done"
    with plant.relaying():
        plant.posts_engine.wait(row.id, timeout=AMPLE_S)
    assert [job.id for job in plant.jobs(MODERATE)] == [sent.id]
    with plant.running():
        assert plant.wait(post) == [PUBLISHED]


@pytest.mark.shows("R-10", "S-13")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_backend_that_is_killed_around_its_commit_leaves_a_draft_or_a_saga_that_goes_on(
    plant: Plant, when: str
) -> None:
    draft = plant.posts.create(str(uuid4()), **TEXTS)
    point = "transaction.inside" if when == "before" else "transaction.after"
    about = draft.slug, draft.author_id, *place(plant)
    crashed = faults.run(live_author, *about, kill_at=point)
    assert crashed.killed, crashed.errors
    assert plant.jobs(MODERATE) == []
    if when == "before":
        assert (plant.find(draft).status, rows(plant)) == (statuses.DRAFT, [])
        return
    assert plant.find(draft).status == PENDING_PUBLISH
    with plant.running():
        assert plant.wait(draft) == [PUBLISHED]


@pytest.mark.shows("S-26")
def test_several_relays_send_each_row_once_and_those_of_a_post_in_order(plant: Plant) -> None:
    posts = [plant.publish(f"Post {number}") for number in range(12)]
    events = {post.id: [put(plant, post, sweeps) for sweeps in (1, 2, 3)] for post in posts}
    others = [open_like(plant.url, plant.queue_url or "", *place(plant)[2:]) for _ in range(2)]
    sent: list[str] = []
    for each in (plant, *others):
        real = each.engine.aio.submit

        async def submit(flow: Any, about: Any, real: Any = real, **options: Any) -> Any:
            sent.append(about["event_id"])
            # The first attempt of every other one finds the queue away: the next must wait for it.
            if sent.count(about["event_id"]) == 1 and len(set(sent)) % 2:
                raise StoreError("the queue is away")
            return await real(flow, about, **options)

        each.engine.aio.submit = submit  # type: ignore[method-assign]
    with ExitStack() as stack:
        for each in (plant, *others):
            stack.enter_context(each.posts_engine.working(RELAYS))
        eventually(lambda: len(plant.jobs(MODERATE)) == 48 and _are_sent(plant))
    for other in others:
        other.close()
    assert all(count >= 1 for count in Counter(sent).values())
    done = {job.id: plant.engine.inspect.payload(job.id) for job in plant.jobs(MODERATE)}
    for post in posts:
        # In the order of their arrival in the queue, which ids of jobs have.
        arrived = [p["event_id"] for _, p in sorted(done.items()) if p["post_id"] == post.id]
        assert arrived[1:] == events[post.id]


# test_queue_on_redis.py shows it of a hundred sagas, each part a process of its own.
@pytest.mark.sampled
@pytest.mark.shows("S-28")
def test_while_the_queue_is_down_posts_are_published_and_on_its_return_every_saga_ends(
    tmp_path: Path,
) -> None:
    with Postgres() as server, planted(f"sqlite:///{tmp_path / 'p.db'}", server.url()) as plant:
        first = plant.publish("Before")
        with plant.running():
            assert plant.wait(first) == [PUBLISHED]
            server.kill()
            posts = [plant.publish(f"Down {number}") for number in range(8)]
            waiting = rows(plant)[-1]
            eventually(lambda: plant.posts_engine.get(waiting.id).state == "sending")
            assert {plant.find(post).status for post in posts} == {PENDING_PUBLISH}
            server.start()
            assert plant.wait(*posts) == [PUBLISHED] * 8
        assert {row.state for row in rows(plant)} == {"sent"}


@pytest.mark.shows("S-28")
def test_a_queue_that_is_down_for_an_hour_gets_its_rows_soon_after_it_is_back(
    tmp_path: Path,
) -> None:
    posts, queue = Harness(path=tmp_path / "posts.db"), Harness()
    made = Queue(posts.engine, queue.engine, make_tasks(PublishingSettings()))
    for flow in made.tasks.saga:
        queue.engine.add(flow)
    queue.engine.add(made.tasks.dlq)
    made.declare()
    real = queue.engine.aio.submit

    async def away(*_: Any, **__: Any) -> Any:
        raise StoreError("the queue is away")

    queue.engine.aio.submit = away  # type: ignore[method-assign]
    post = Article(str(uuid4()), "s", "t", "d", "b", str(uuid4()), publication_id=str(uuid4()))
    with posts.engine.transaction() as connection:
        made.put(connection, MODERATE, post, requested_by="ada")
    posts.advance(minutes=3)
    posts.clock.advance(timedelta(hours=1))
    posts.run_until_idle()
    row = made.find(MODERATE, post)
    assert row is not None
    assert (row.flow, row.role) == (RELAY, "busy")
    queue.engine.aio.submit = real  # type: ignore[method-assign]
    posts.advance(seconds=17)
    sent = made.find(MODERATE, post)
    assert sent is not None
    assert sent.flow == MODERATE
    posts.close()
    queue.close()


@pytest.mark.shows("S-29")
def test_sent_rows_are_removed_after_seven_days_in_batches(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "A_BATCH", 2)
    is_file = url.startswith("sqlite")
    at: dict[str, Any] = {"path": url.removeprefix("sqlite:///")} if is_file else {"url": url}
    posts, queue = Harness(**at), Harness()
    made = Queue(posts.engine, queue.engine, make_tasks(PublishingSettings()))
    for flow in (*made.tasks.saga, made.tasks.dlq):
        queue.engine.add(flow)
    made.declare()

    def send(number: int) -> None:
        for _ in range(number):
            about = str(uuid4()), "s", "t", "d", "b", str(uuid4())
            post = Article(*about, publication_id=str(uuid4()))
            with posts.engine.transaction() as connection:
                made.put(connection, MODERATE, post, requested_by="ada")
        posts.run_until_idle()

    def count() -> int:
        return len(posts.engine.jobs(JobFilter(flow=RELAY), limit=1000))

    send(5)
    posts.clock.advance(timedelta(days=6))
    send(3)
    assert count() == 8
    posts.clock.advance(timedelta(days=1, hours=2))
    posts.run_until_idle()
    assert count() == 3
    # The clean-up leaves nothing behind for ever either.
    posts.clock.advance(timedelta(days=9))
    posts.run_until_idle()
    assert count() == 0
    assert len(posts.engine.jobs(JobFilter(flow=CLEANUP), limit=1000)) <= 3
    posts.close()
    queue.close()


@pytest.mark.shows("S-30")
def test_a_row_is_sent_as_soon_as_it_is_committed_by_a_wake_up_and_not_by_a_look(
    plant: Plant,
) -> None:
    backend = open_like(plant.url, plant.queue_url or "", *place(plant)[2:])
    # Whoever only looked would look once in an hour.
    waits = WorkerSettings(queues=frozenset({RELAY_QUEUE}), poll=timedelta(hours=1))
    latencies: list[float] = []
    with plant.posts_engine.working(waits):
        for number in range(40):
            post = backend.publish(f"Post {number}")
            begun = time.monotonic()
            eventually(lambda post=post: _is_sent(plant, post))
            latencies.append(time.monotonic() - begun)
    backend.close()
    # A neighbour on the machine may hold up some of them; a look would take an hour.
    assert statistics.median(latencies) < 0.2, sorted(latencies)


def _are_sent(plant: Plant) -> bool:
    return all(row.state == "sent" for row in rows(plant))


def _is_sent(plant: Plant, post: Article) -> bool:
    job = plant.queue.find(MODERATE, post)
    return job is not None and job.flow == MODERATE


def test_a_redrive_that_is_relayed_twice_is_one(plant: Plant) -> None:
    plant.backend.rule = lambda step: (422, "validation_error") if step == "preview" else None
    post = plant.publish()
    with plant.running():
        assert plant.wait(post) == [statuses.ERROR]
    plant.backend.rule = lambda step: None
    (letter,) = plant.letters()
    plant.dead_letters.redrive(letter["id"], resume=True, actor="ada")
    _, after = step.points("relay.retry")
    crashed = faults.run(live_relay, *place(plant), kill_at=after)
    assert crashed.killed, crashed.errors
    with plant.running():
        assert plant.wait(post) == [PUBLISHED]
    assert plant.engine.get(letter["id"]).round == 2


def test_beside_the_posts_there_is_no_relay(url: str) -> None:
    with planted(url) as plant:
        post = plant.publish()
        (job,) = plant.jobs(MODERATE)
        assert plant.queue.find(MODERATE, post) == job
        assert {flow.name for flow in plant.engine.inspect.flows}.isdisjoint({RELAY, CLEANUP})
