"""Posts as authors write them and readers find them."""

from dataclasses import replace

import pytest

from tests.services.publishing.site import Site, id_of
from ulak.services.publishing import statuses
from ulak.services.publishing.articles import Article

ADA, BOB = id_of("ada"), id_of("bob")


@pytest.mark.shows("S-5")
def test_a_new_post_is_a_draft_of_which_nobody_is_told(site: Site) -> None:
    post = site.write(title="Hello")
    assert site.posts.get("hello") == post
    assert (post.status, post.revision, post.publication_id) == ("DRAFT", 1, None)
    assert post.created_at == post.updated_at > 0
    assert site.posts.history(post.id) == []
    assert site.engine.jobs() == []


def test_tags_are_kept_once_in_order_and_replaced(site: Site) -> None:
    texts = {"title": "Tagged", "description": "d", "body": "b"}
    post = site.posts.create(ADA, tags=["b", "a", "b"], **texts)
    assert site.posts.get(post.slug).tags == post.tags == ("a", "b")
    assert site.posts.edit(post.slug, ADA, body="c").tags == ("a", "b")
    assert site.posts.edit(post.slug, ADA, tags=["z"]).tags == ("z",)
    assert site.posts.get(post.slug).tags == ("z",)
    assert site.posts.edit(post.slug, ADA, tags=[]).tags == ()


def test_each_edit_is_a_revision(site: Site) -> None:
    post = site.write()
    edited = site.posts.edit(post.slug, ADA, body="Another text", description="Another")
    assert (edited.title, edited.body) == (post.title, "Another text")
    assert (edited.description, edited.revision) == ("Another", 2)
    assert site.posts.get(edited.slug) == edited


@pytest.mark.shows("S-11")
@pytest.mark.parametrize("status", [statuses.REJECTED, statuses.ERROR])
def test_an_edit_of_a_post_that_was_refused_makes_it_a_draft_again(site: Site, status: str) -> None:
    post = site.stand(status)
    publication = post.publication_id
    assert post.moderation_reason or post.error_message
    edited = site.posts.edit(post.slug, ADA, body="A better text")
    assert edited == site.posts.get(post.slug)
    assert (edited.status, edited.publication_id, edited.preview_url) == ("DRAFT", None, None)
    assert (edited.moderation_reason, edited.error_message, edited.verdict) == (None,) * 3
    last = site.posts.history(post.id)[-1]
    assert (last.from_status, last.to_status, last.cause) == (status, "DRAFT", statuses.BY_EDIT)
    assert (last.publication_id, last.actor) == (publication, ADA)


@pytest.mark.shows("S-11")
def test_an_edit_of_a_published_post_tells_nobody_again(site: Site) -> None:
    post = site.stand(statuses.PUBLISHED)
    edited = site.posts.edit(post.slug, ADA, body="A better text")
    assert edited == replace(post, body="A better text", revision=2, updated_at=edited.updated_at)
    assert len(site.jobs(statuses.NOTIFY)) == 1
    assert site.posts.history(post.id)[-1].to_status == "PUBLISHED"


@pytest.mark.shows("S-6", "S-13")
def test_each_publication_has_an_id_and_the_revision_of_its_text(site: Site) -> None:
    post = site.stand(statuses.REJECTED)
    site.posts.edit(post.slug, ADA, body="A better text")
    again = site.publish(post)
    assert again.publication_id not in (None, post.publication_id)
    assert (again.status, again.revision, again.verdict) == ("PENDING_PUBLISH", 2, None)
    assert again == site.posts.get(post.slug)
    first, second = site.jobs(statuses.MODERATE)
    assert (first["publication_id"], first["revision"]) == (post.publication_id, 1)
    assert (second["publication_id"], second["revision"]) == (again.publication_id, 2)
    assert second["post_id"] == post.id
    assert second["author_id"] == second["requested_by"] == ADA


@pytest.mark.shows("S-13", "S-14")
def test_the_status_the_history_and_the_task_are_one_commit(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    post, put = site.write(), site.queue.put

    def put_and_fail(*arguments: object, **options: object) -> None:
        put(*arguments, **options)  # type: ignore[arg-type]
        raise OSError("the process ends here")

    monkeypatch.setattr(site.queue, "put", put_and_fail)
    with pytest.raises(OSError, match="ends here"):
        site.publish(post)
    assert site.posts.get(post.slug) == post
    assert site.posts.history(post.id) == []
    assert site.engine.jobs() == []
    monkeypatch.undo()
    pending = site.publish(post)
    monkeypatch.setattr(site.queue, "put", put_and_fail)
    with pytest.raises(OSError, match="ends here"):
        site.saga.approve(post.id, pending.publication_id, "worker")
    assert site.posts.get(post.slug) == pending
    assert site.tasks_of(post) == [statuses.MODERATE]


@pytest.mark.shows("S-7")
def test_the_history_tells_how_a_post_came_to_its_status_and_outlives_it(site: Site) -> None:
    post = site.stand(statuses.ERROR)
    with site.posts.tables.writing() as connection:
        resumed = site.saga.resume(connection, post.id, str(post.publication_id), 1, "olga")
    site.saga.reject(post.id, None, "no", "moderation", failed_task=statuses.MODERATE)
    site.posts.delete(post.slug, ADA)
    found = site.posts.history(post.id)
    assert [(m.from_status, m.to_status, m.cause, m.actor) for m in found] == [
        ("DRAFT", "PENDING_PUBLISH", statuses.BY_AUTHOR, ADA),
        ("PENDING_PUBLISH", "ERROR", statuses.BY_ERROR, "preview"),
        ("ERROR", "PENDING_PUBLISH", statuses.RESUMED, "olga"),
        ("PENDING_PUBLISH", "REJECTED", statuses.DEAD_LETTER, "moderation"),
    ]
    assert {m.publication_id for m in found} == {resumed.publication_id}
    assert [m.at for m in found] == sorted(m.at for m in found)


def test_others_do_not_change_a_post(site: Site) -> None:
    post = site.write()
    for change in (
        lambda: site.posts.edit(post.slug, BOB, body="mine"),
        lambda: site.posts.delete(post.slug, BOB),
        lambda: site.posts.publish(post.slug, BOB),
        lambda: site.posts.draft(post.slug, BOB),
    ):
        with pytest.raises(statuses.NotAuthor):
            change()
    assert site.posts.get(post.slug) == post


def test_a_deleted_post_is_gone_with_its_tags_and_comments(site: Site) -> None:
    post = site.stand(statuses.PUBLISHED)
    site.posts.edit(post.slug, ADA, tags=["a"])
    site.posts.comment(post.slug, BOB, "Well said")
    site.posts.delete(post.slug, ADA)
    with pytest.raises(statuses.PostNotFound):
        site.posts.get(post.slug)
    for table in ("articles", "tags", "comments"):
        count = f"SELECT count(*) FROM {{schema}}.publishing_{table}"  # noqa: S608 - of ours
        assert site.posts.tables.read(count) == [(0,)], table


def test_lists_are_paged_filtered_and_begin_with_the_newest(site: Site) -> None:
    posts = [site.write("bob" if n == 2 else "ada", title=f"Post {n}") for n in range(5)]
    site.posts.edit("post-1", ADA, tags=["even", "odd"])
    site.posts.edit("post-3", ADA, tags=["odd"])
    site.publish(posts[4])

    def slugs(**conditions: object) -> tuple[list[str], int]:
        found, count = site.posts.list(**conditions)  # type: ignore[arg-type]
        return [post.slug for post in found], count

    assert slugs() == ([f"post-{n}" for n in (4, 3, 2, 1, 0)], 5)
    assert slugs(skip=1, limit=2) == (["post-3", "post-2"], 5)
    assert slugs(skip=9) == ([], 5)
    assert slugs(author_id=BOB) == (["post-2"], 1)
    assert slugs(tag="odd") == (["post-3", "post-1"], 2)
    assert slugs(tag="odd", author_id=BOB) == ([], 0)
    assert slugs(status="PENDING_PUBLISH") == (["post-4"], 1)
    found, _ = site.posts.list(tag="even")
    assert found[0].tags == ("even", "odd")


def test_comments_stand_below_published_posts_only(site: Site) -> None:
    post, draft = site.stand(statuses.PUBLISHED), site.write(title="A draft")
    first = site.posts.comment(post.slug, BOB, "Well said")
    second = site.posts.comment(post.slug, ADA, "Thanks")
    assert site.posts.comments(post.slug) == [first, second]
    assert site.posts.comments(post.slug, skip=1, limit=1) == [second]
    with pytest.raises(statuses.NotAuthor):
        site.posts.uncomment(post.slug, first.id, ADA)
    with pytest.raises(statuses.PostNotFound):
        site.posts.uncomment(draft.slug, first.id, BOB)
    site.posts.uncomment(post.slug, first.id, BOB)
    assert site.posts.comments(post.slug) == [second]
    for refused in (
        lambda: site.posts.comment(draft.slug, BOB, "Early"),
        lambda: site.posts.comments(draft.slug),
    ):
        with pytest.raises(statuses.InvalidStatus):
            refused()


@pytest.mark.shows("S-4")
def test_a_row_that_was_changed_since_it_was_read_is_not_overwritten(site: Site) -> None:
    read = site.write()
    pending = site.publish(read)
    stale: list[Article] = [read, replace(pending, publication_id="another")]
    for post in stale:
        with (
            pytest.raises(statuses.InvalidStatus, match="changed meanwhile"),
            site.posts.tables.writing() as connection,
        ):
            site.posts.update(connection, post, body="overwritten")
    assert site.posts.get(read.slug) == pending
