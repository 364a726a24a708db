"""Every pair of statuses: the moves of the table are made, and every other is refused."""

from collections.abc import Callable

import pytest

from tests.services.publishing.site import MOSTLY_SQLITE, PREVIEW, Site, id_of
from ulak.services.publishing import statuses
from ulak.services.publishing.articles import Article
from ulak.services.publishing.statuses import (
    DRAFT,
    ERROR,
    MOVES,
    PENDING_PUBLISH,
    PUBLISHED,
    REJECTED,
    STATUSES,
)

Change = Callable[[Site, Article], object]


def resume(site: Site, post: Article) -> object:
    with site.posts.tables.writing() as connection:
        publication = post.publication_id or ""
        return site.saga.resume(connection, post.id, publication, post.revision, "olga")


def publish(site: Site, post: Article) -> object:
    """Publish, with the preview that it takes where it can be stored."""
    if post.status == PENDING_PUBLISH:
        site.saga.store_preview(post.id, None, PREVIEW, "worker")
    return site.saga.publish(post.id, None, "worker")


CHANGES: dict[str, Change] = {
    "author publishes": lambda site, post: site.publish(post),
    "author returns": lambda site, post: site.posts.draft(post.slug, id_of("ada")),
    "author edits": lambda site, post: site.posts.edit(post.slug, id_of("ada"), body="new"),
    "reject": lambda site, post: site.saga.reject(post.id, None, "no", "worker"),
    "dead letter rejects": lambda site, post: site.saga.reject(
        post.id, None, "no", "worker", failed_task=statuses.MODERATE
    ),
    "publish": publish,
    "error": lambda site, post: site.saga.fail(post.id, None, "no", "worker"),
    "dead letter fails": lambda site, post: site.saga.fail(
        post.id, None, "no", "worker", failed_task=statuses.GENERATE_PREVIEW
    ),
    "resume": resume,
}
MADE = {
    ("author publishes", DRAFT): (PENDING_PUBLISH, statuses.BY_AUTHOR),
    ("author returns", PENDING_PUBLISH): (DRAFT, statuses.RETURNED),
    ("author returns", REJECTED): (DRAFT, statuses.RETURNED),
    ("author returns", ERROR): (DRAFT, statuses.RETURNED),
    ("author edits", REJECTED): (DRAFT, statuses.BY_EDIT),
    ("author edits", ERROR): (DRAFT, statuses.BY_EDIT),
    ("reject", PENDING_PUBLISH): (REJECTED, statuses.BY_REJECT),
    ("dead letter rejects", PENDING_PUBLISH): (REJECTED, statuses.DEAD_LETTER),
    ("publish", PENDING_PUBLISH): (PUBLISHED, statuses.BY_PUBLISH),
    ("error", PENDING_PUBLISH): (ERROR, statuses.BY_ERROR),
    ("dead letter fails", PENDING_PUBLISH): (ERROR, statuses.DEAD_LETTER),
    ("resume", ERROR): (PENDING_PUBLISH, statuses.RESUMED),
}
SAME = {
    ("author edits", DRAFT), ("author edits", PUBLISHED), ("reject", REJECTED),
    ("dead letter rejects", REJECTED), ("publish", PUBLISHED), ("error", ERROR),
    ("dead letter fails", ERROR),
}  # fmt: skip
"""What is done, or is so already, and leaves the status as it is."""


@pytest.mark.shows("S-3")
@pytest.mark.parametrize("status", STATUSES)
def test_a_change_moves_a_post_by_the_table_or_leaves_it(site: Site, status: str) -> None:
    for name, change in CHANGES.items():
        post = site.stand(status, title=name)
        before, tasks = site.posts.history(post.id), site.tasks_of(post)
        if (name, status) in MADE:
            change(site, post)
            to, cause = MADE[name, status]
            moved = site.posts.get_by_id(post.id)
            (line,) = site.posts.history(post.id)[len(before) :]
            assert moved.status == to, name
            assert (line.from_status, line.to_status, line.cause) == (status, to, cause)
            assert line.publication_id == (moved.publication_id or post.publication_id)
            assert cause in MOVES[status, to]
            continue
        if (name, status) in SAME:
            change(site, post)
            assert site.posts.get_by_id(post.id).status == status, name
        else:
            with pytest.raises(statuses.Refused) as refused:
                change(site, post)
            assert refused.value.status == 409
            assert refused.value.members == {"current_status": status}
            assert site.posts.get_by_id(post.id) == post, name
        assert site.posts.history(post.id) == before, name
        assert site.tasks_of(post) == tasks, name


@pytest.mark.shows("S-3")
def test_every_move_of_the_table_is_made_by_each_of_its_causes() -> None:
    made = {(status, *MADE[change, status]) for change, status in MADE}
    swept = {(PENDING_PUBLISH, ERROR, statuses.STUCK)}  # test_sweep.py
    listed = {(*pair, cause) for pair, causes in MOVES.items() for cause in causes}
    assert made | swept == listed


@pytest.mark.parametrize(("to", "cause"), [(DRAFT, statuses.RETURNED), (PUBLISHED, "by-mistake")])
@pytest.mark.parametrize("site", MOSTLY_SQLITE, indirect=True)
def test_a_move_that_is_not_in_the_table_cannot_be_written(site: Site, to: str, cause: str) -> None:
    post = site.stand(PUBLISHED)
    with (
        pytest.raises(ValueError, match="no post goes from PUBLISHED"),
        site.posts.tables.writing() as connection,
    ):
        site.posts.move(connection, post, to, cause, "olga")
    assert site.posts.get_by_id(post.id) == post
