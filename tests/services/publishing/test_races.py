"""Races of section 11 that are decided in the rows of posts, with real threads and requests."""

from collections import Counter

import pytest

from tests.services.publishing.site import PREVIEW, TEXTS, Site, at_once, id_of
from tests.services.publishing.test_public_api import ARTICLES, must_refuse
from ulak.services.publishing import statuses
from ulak.services.publishing.articles import Article
from ulak.services.publishing.saga import Step
from ulak.services.publishing.statuses import MOVES, Refused

ADA = id_of("ada")
ROUNDS = 8
"""How often a race of two threads is run: either may win."""


def must_replay(site: Site, post: Article) -> str:
    """Follow the history of a post by the table of moves; return the status in which it ends."""
    status = "DRAFT"
    for line in site.posts.history(post.id):
        assert line.from_status == status
        assert line.cause in MOVES[line.from_status, line.to_status]
        assert line.publication_id
        status = line.to_status
    return status


@pytest.mark.shows("R-1")
def test_of_publish_requests_at_once_one_is_accepted(site: Site) -> None:
    for number in range(3):
        post, ada = site.write(title=f"Race {number}"), site.login()
        path = f"{ARTICLES}/{post.slug}/publish"
        answers = site.ask_at_once([("POST", path, ada, {})] * 6)
        assert Counter(a.status_code for a in answers) == {202: 1, 409: 5}
        for answer in answers:
            if answer.status_code == 409:
                must_refuse(answer, 409, "invalid_status", current_status="PENDING_PUBLISH")
        assert site.tasks_of(post) == [statuses.MODERATE]
        assert len(site.posts.history(post.id)) == 1


@pytest.mark.shows("R-1")
def test_of_publish_requests_of_two_processes_one_is_accepted(site: Site, open_site: type) -> None:
    other = open_site()
    for number in range(ROUNDS):
        post = site.write(title=f"Race {number}")
        told = at_once(lambda: site.publish(post), lambda: other.publish(post))  # noqa: B023
        assert sorted(type(each).__name__ for each in told) == ["Article", "InvalidStatus"]
        assert site.tasks_of(post) == [statuses.MODERATE]


@pytest.mark.shows("R-3")
def test_a_rejection_after_publication_is_refused(site: Site) -> None:
    post = site.stand(statuses.PUBLISHED)
    for body in ({}, {"publication_id": post.publication_id, "failed_task": statuses.MODERATE}):
        refused = site.internal(post, "reject", reason="late", **body)
        must_refuse(refused, 409, "invalid_status", current_status="PUBLISHED")
    assert site.posts.get_by_id(post.id) == post


@pytest.mark.shows("R-3")
def test_of_a_rejection_and_a_publication_at_once_one_is_made(site: Site) -> None:
    for number in range(ROUNDS):
        post = site.publish(site.write(title=f"Race {number}"))
        site.saga.store_preview(post.id, None, PREVIEW, "worker")
        told = at_once(
            lambda: site.saga.reject(post.id, None, "no", "one"),  # noqa: B023
            lambda: site.saga.publish(post.id, None, "two"),  # noqa: B023
        )
        assert [type(each) for each in told].count(Step) == 1
        winner = next(each for each in told if isinstance(each, Step))
        assert must_replay(site, post) == winner.article.status
        assert len(site.posts.history(post.id)) == 2
        notified = statuses.NOTIFY in site.tasks_of(post)
        assert notified == (winner.article.status == "PUBLISHED")


@pytest.mark.shows("R-4")
@pytest.mark.parametrize("status", [statuses.REJECTED, statuses.ERROR])
def test_a_publication_after_the_end_is_refused(site: Site, status: str) -> None:
    post = site.stand(status)
    for body in ({}, {"publication_id": post.publication_id}):
        answer = site.internal(post, "publish", **body)
        must_refuse(answer, 409, "invalid_status", current_status=status)
    answer = site.ask("POST", f"{ARTICLES}/{post.slug}/publish", site.login())
    must_refuse(answer, 409, "invalid_status", current_status=status)
    assert site.posts.get_by_id(post.id) == post
    assert statuses.NOTIFY not in site.tasks_of(post)


@pytest.mark.shows("R-6")
def test_an_edit_while_pending_is_refused_and_the_moderated_text_is_published(site: Site) -> None:
    post = site.publish(site.write())
    path, ada = f"{ARTICLES}/{post.slug}", site.login()
    for _ in range(2):
        answer = site.ask("PUT", path, ada, json={"body": "Something else"})
        must_refuse(answer, 409, "locked_for_publication", current_status="PENDING_PUBLISH")
        site.saga.approve(post.id, None, "worker")
    site.saga.store_preview(post.id, None, PREVIEW, "worker")
    published = site.saga.publish(post.id, None, "worker").article
    assert (published.body, published.revision) == (TEXTS["body"], 1)


@pytest.mark.shows("R-6")
def test_an_edit_and_a_publication_at_once_agree_about_the_text(site: Site) -> None:
    for number in range(ROUNDS):
        post = site.write(title=f"Race {number}")
        edited, published = at_once(
            lambda: site.posts.edit(post.slug, ADA, body="Another"),  # noqa: B023
            lambda: site.publish(post),  # noqa: B023
        )
        found = site.posts.get_by_id(post.id)
        assert isinstance(published, Article)
        if isinstance(edited, Article):
            assert (published.body, found.body) == ("Another", "Another")
        else:
            assert isinstance(edited, statuses.LockedForPublication)
            assert found.body == TEXTS["body"]
        (task,) = [t for t in site.jobs(statuses.MODERATE) if t["post_id"] == post.id]
        assert task["revision"] == published.revision == found.revision


@pytest.mark.shows("R-7")
def test_what_comes_of_an_old_publication_has_no_effect_on_the_new_one(site: Site) -> None:
    old = site.publish(site.write())
    site.saga.approve(old.id, old.publication_id, "worker")
    site.posts.draft(old.slug, ADA)
    late = {"publication_id": old.publication_id}
    must_refuse(
        site.internal(old, "preview", preview_url=PREVIEW, **late), 409, "stale_publication"
    )
    site.posts.edit(old.slug, ADA, body="A better text")
    new = site.publish(old)
    for step, body in (
        ("approve", {}), ("reject", {}), ("preview", {"preview_url": PREVIEW}), ("publish", {}),
        ("error", {"error_message": "gave up", "failed_task": statuses.GENERATE_PREVIEW}),
    ):  # fmt: skip
        must_refuse(site.internal(old, step, **body, **late), 409, "stale_publication")
    assert site.posts.get_by_id(old.id) == new
    about = {"publication_id": new.publication_id}
    site.internal(new, "approve", **about)
    site.internal(new, "preview", preview_url=PREVIEW, **about)
    assert site.internal(new, "publish", **about).is_success
    published = site.posts.get_by_id(old.id)
    assert (published.body, published.revision) == ("A better text", 2)
    (told,) = site.jobs(statuses.NOTIFY)
    assert told["publication_id"] == new.publication_id
    assert must_replay(site, new) == "PUBLISHED"


@pytest.mark.shows("R-7")
def test_a_withdrawal_and_a_step_at_once_leave_no_half_of_either(site: Site) -> None:
    for number in range(ROUNDS):
        post = site.publish(site.write(title=f"Race {number}"))
        drafted, approved = at_once(
            lambda: site.posts.draft(post.slug, ADA),  # noqa: B023
            lambda: site.saga.approve(post.id, post.publication_id, "worker"),  # noqa: B023
        )
        assert isinstance(drafted, Article)
        assert isinstance(approved, Step | statuses.StalePublication)
        found = site.posts.get_by_id(post.id)
        assert (found.status, found.verdict, found.publication_id) == ("DRAFT", None, None)
        assert must_replay(site, post) == "DRAFT"


@pytest.mark.shows("R-8")
def test_a_post_that_is_deleted_while_pending_is_not_found_by_its_steps(site: Site) -> None:
    post = site.publish(site.write())
    site.saga.approve(post.id, None, "worker")
    assert site.ask("DELETE", f"{ARTICLES}/{post.slug}", site.login()).is_success
    for step, body in (
        ("approve", {}), ("reject", {}), ("preview", {"preview_url": PREVIEW}), ("publish", {}),
        ("error", {"error_message": "gave up"}),
    ):  # fmt: skip
        must_refuse(site.internal(post, step, **body), 404, "not_found")
    must_refuse(site.ask("GET", f"/internal/articles/{post.id}", site.key()), 404, "not_found")
    assert statuses.NOTIFY not in site.tasks_of(post)
    assert site.saga.sweep() == 0


@pytest.mark.shows("R-8")
def test_a_deletion_and_a_publication_at_once_are_one_after_the_other(site: Site) -> None:
    for number in range(ROUNDS):
        post = site.publish(site.write(title=f"Race {number}"))
        site.saga.store_preview(post.id, None, PREVIEW, "worker")
        deleted, published = at_once(
            lambda: site.posts.delete(post.slug, ADA),  # noqa: B023
            lambda: site.saga.publish(post.id, None, "worker"),  # noqa: B023
        )
        assert deleted is None
        assert isinstance(published, Step | statuses.PostNotFound)
        with pytest.raises(statuses.PostNotFound):
            site.posts.get_by_id(post.id)
        assert (statuses.NOTIFY in site.tasks_of(post)) == isinstance(published, Step)


@pytest.mark.shows("R-14")
@pytest.mark.parametrize("task", statuses.SAGA_TASKS)
def test_of_a_compensation_and_a_late_success_one_is_made(site: Site, task: str) -> None:
    won: Counter[bool] = Counter()
    for number in range(ROUNDS):
        post = site.publish(site.write(title=f"Race {number}"))
        publication = post.publication_id
        if task != statuses.MODERATE:
            site.saga.approve(post.id, publication, "worker")
        if task == statuses.PUBLISH:
            site.saga.store_preview(post.id, publication, PREVIEW, "worker")

        def compensate(id: str = post.id, publication: str | None = publication) -> Step:
            if task == statuses.MODERATE:
                return site.saga.reject(id, publication, "gave up", "dlq", failed_task=task)
            return site.saga.fail(id, publication, "gave up", "dlq", failed_task=task)

        def succeed(id: str = post.id, publication: str | None = publication) -> Step:
            if task == statuses.MODERATE:
                return site.saga.approve(id, publication, "worker")
            if task == statuses.GENERATE_PREVIEW:
                return site.saga.store_preview(id, publication, PREVIEW, "worker")
            return site.saga.publish(id, publication, "worker")

        compensated, succeeded = at_once(compensate, succeed)
        is_over = isinstance(compensated, Step)
        assert is_over != isinstance(succeeded, Step)
        assert isinstance(succeeded if is_over else compensated, Refused)
        won[is_over] += 1
        found = site.posts.get_by_id(post.id)
        assert must_replay(site, post) == found.status
        ended = {statuses.MODERATE: "REJECTED"}.get(task, "ERROR")
        went_on = {statuses.PUBLISH: "PUBLISHED"}.get(task, "PENDING_PUBLISH")
        assert found.status == (ended if is_over else went_on)
        names = (*statuses.SAGA_TASKS, statuses.NOTIFY)
        put = site.tasks_of(post)
        assert put == list(names[: names.index(task) + (1 if is_over else 2)])
    assert won.total() == ROUNDS


@pytest.mark.shows("R-17", "S-9")
def test_posts_with_one_title_at_once_get_slugs_of_their_own(site: Site) -> None:
    ada = site.login()
    answers = site.ask_at_once([("POST", ARTICLES, ada, {"json": TEXTS})] * 8)
    assert {answer.status_code for answer in answers} == {201}
    slugs = {answer.json()["data"]["slug"] for answer in answers}
    assert slugs == {"a-first-post", *(f"a-first-post-{n}" for n in range(1, 8))}
    # And those that come by a new title.
    others = [site.write(title=f"Other {n}") for n in range(4)]
    edits = [
        lambda post=post: site.posts.edit(post.slug, ADA, title="A first post") for post in others
    ]
    more = at_once(*edits, lambda: site.write(title="A first post"))
    assert {post.slug for post in more} == {f"a-first-post-{n}" for n in range(8, 13)}
