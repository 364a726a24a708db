"""Publications that go no further are found, started again, and given up in the end."""

from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace

import pytest

from tests.services.publishing.site import MOSTLY_SQLITE, PREVIEW, Site, eventually
from ulak import JobFilter
from ulak.engine.ports import WorkerSettings
from ulak.kit.clock import micros
from ulak.services.publishing import statuses
from ulak.services.publishing.articles import Article

BACKDATE = "UPDATE {schema}.publishing_articles SET stepped_at = stepped_at - ? WHERE id = ?"


def grow_old(site: Site, post: Article, age: timedelta = timedelta(seconds=901)) -> None:
    """Let the last step of a post have been so long ago."""
    with site.posts.tables.writing() as connection:
        site.posts.tables.execute(connection, BACKDATE, micros(age), post.id)


def lose_tasks(site: Site) -> None:
    """Take every task that waits out of the queue."""
    for job in site.engine.jobs(JobFilter(role="ready")):
        site.engine.cancel(job.id, actor="by mistake")


@pytest.mark.shows("S-25")
@pytest.mark.parametrize("task", statuses.SAGA_TASKS)
def test_the_missing_step_is_started_again_from_what_is_stored(site: Site, task: str) -> None:
    post = site.publish(site.write())
    if task != statuses.MODERATE:
        site.saga.approve(post.id, None, "worker")
    if task == statuses.PUBLISH:
        site.saga.store_preview(post.id, None, PREVIEW, "worker")
    lose_tasks(site)
    grow_old(site, post)
    before = site.jobs(task)
    assert site.saga.sweep() == 1
    *_, again = site.jobs(task)
    assert len(site.jobs(task)) == len(before) + 1
    assert again["publication_id"] == post.publication_id
    assert again["event_id"] not in {each["event_id"] for each in before}
    found = site.posts.get_by_id(post.id)
    assert (found.status, found.sweeps) == ("PENDING_PUBLISH", 1)
    # It has a while again, and a task.
    assert site.saga.sweep() == 0
    grow_old(site, post)
    assert site.saga.sweep() == 0
    assert site.posts.get_by_id(post.id).sweeps == 1


@pytest.mark.shows("S-25")
def test_a_post_is_left_alone_while_its_task_lives_or_is_not_old_enough(site: Site) -> None:
    young, living = site.publish(site.write()), site.publish(site.write())
    for status in (statuses.DRAFT, statuses.REJECTED, statuses.ERROR, statuses.PUBLISHED):
        site.stand(status, title=status)
    grow_old(site, living)
    assert site.saga.sweep() == 0
    lose_tasks(site)
    grow_old(site, young, timedelta(seconds=890))
    assert site.saga.sweep() == 1  # the living one, whose task is lost now
    assert site.posts.get_by_id(young.id).sweeps == 0


@pytest.mark.shows("S-25")
@pytest.mark.parametrize(
    ("role", "started"),
    [
        ("ready", 0), ("busy", 0), ("waiting", 0), ("failed", 0), ("held", 1), ("done", 1),
        ("cancelled", 1), ("expired", 1), (None, 1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("site", MOSTLY_SQLITE, indirect=True)
def test_a_task_that_is_held_or_over_counts_as_lost_and_a_dead_letter_does_not(
    site: Site, monkeypatch: pytest.MonkeyPatch, role: str | None, started: int
) -> None:
    post = site.publish(site.write())
    grow_old(site, post)
    job = None if role is None else SimpleNamespace(role=role)
    monkeypatch.setattr(site.queue, "find", lambda task, post: job)
    assert site.saga.sweep() == started
    assert site.posts.get_by_id(post.id).sweeps == started


@pytest.mark.shows("S-25")
def test_after_three_sweeps_a_post_goes_to_error_with_a_dead_letter(site: Site) -> None:
    post = site.publish(site.write())
    for _ in range(4):
        lose_tasks(site)
        grow_old(site, post)
        assert site.saga.sweep() == 1
    found = site.posts.get_by_id(post.id)
    assert (found.status, found.stepped_at) == ("ERROR", None)
    assert statuses.MODERATE in str(found.error_message)
    last = site.posts.history(post.id)[-1]
    assert (last.cause, last.actor, last.to_status) == (statuses.STUCK, "publishing-sweep", "ERROR")
    first, *again, letter = site.jobs(statuses.MODERATE)
    assert len(again) == 3
    assert letter.get("stuck") is True
    assert not any(each.get("stuck") for each in (first, *again))
    assert len({each["event_id"] for each in (first, *again, letter)}) == 5
    grow_old(site, post)
    assert site.saga.sweep() == 0


@pytest.mark.shows("S-25")
def test_the_dead_letter_of_a_stuck_post_is_there_for_an_operator(site: Site) -> None:
    post = site.publish(site.write())
    for _ in range(4):
        lose_tasks(site)
        grow_old(site, post)
        site.saga.sweep()
    settings = WorkerSettings(queues=[site.settings.saga_queue])
    failed = JobFilter(flow=statuses.MODERATE, role="failed")
    with site.engine.working(settings):
        eventually(lambda: site.engine.jobs(failed))
    (letter,) = site.dead_letters.list()
    assert (letter["post_id"], letter["task"]) == (post.id, statuses.MODERATE)


@pytest.mark.shows("S-25")
def test_of_a_post_that_goes_on_meanwhile_nothing_is_started(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    post, another = site.publish(site.write()), site.publish(site.write())
    for each in (post, another):
        grow_old(site, each)
    lose_tasks(site)
    find: Callable[..., object] = site.queue.find

    def find_late(task: str, stuck: Article) -> object:
        if stuck.id == post.id:
            site.saga.approve(post.id, None, "late")
        else:
            site.posts.delete(another.slug, another.author_id)
        return find(task, stuck)

    monkeypatch.setattr(site.queue, "find", find_late)
    assert site.saga.sweep() == 0
    assert site.tasks_of(post) == [statuses.MODERATE, statuses.GENERATE_PREVIEW]
    assert site.posts.get_by_id(post.id).sweeps == 0


@pytest.mark.shows("S-25")
def test_the_sweep_is_a_schedule_of_a_worker(open_site: Callable[..., Site]) -> None:
    site = open_site(stuck_after=timedelta(seconds=1))
    post = site.publish(site.write())
    lose_tasks(site)
    grow_old(site, post)
    site.saga.declare_sweep(site.engine, queue="publishing-relay")
    with site.engine.working(WorkerSettings(queues=["publishing-relay"])):
        eventually(lambda: site.posts.get_by_id(post.id).sweeps >= 1)
    assert len(site.jobs(statuses.MODERATE)) >= 2
