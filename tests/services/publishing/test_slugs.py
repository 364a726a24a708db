"""Slugs are made of titles, and stay apart and short."""

import re
from itertools import islice

import pytest

from tests.services.publishing.site import Site, id_of
from ulak.services.publishing.articles import LONGEST_SLUG, candidates, make_slug


@pytest.mark.shows("S-9")
@pytest.mark.parametrize(
    ("title", "slug"),
    [
        ("Hello,  World!", "hello-world"),
        ("Привет, мир", "privet-mir"),
        ("Щука, мышь и я", "shchuka-mysh-i-ia"),
        ("İstanbul'da ılık bir gün: ğüşöç", "istanbul-da-ilik-bir-gun-gusoc"),  # noqa: RUF001
        ("  --42--  ", "42"),
        ("!!!", ""),
    ],
)
def test_a_slug_is_lower_case_ascii_with_hyphens(title: str, slug: str) -> None:
    assert make_slug(title) == slug


@pytest.mark.shows("S-9")
def test_what_has_no_letters_gets_a_slug_of_its_own() -> None:
    found = next(candidates("???"))
    assert re.fullmatch(r"post-[0-9a-f]{8}", found)
    assert next(candidates("???")) != found


@pytest.mark.shows("S-9")
def test_candidates_are_numbered_and_never_too_long() -> None:
    assert list(islice(candidates("A post"), 3)) == ["a-post", "a-post-1", "a-post-2"]
    long = list(islice(candidates("щ" * 200), 12))
    assert len(set(long)) == 12
    assert {len(slug) for slug in long} == {LONGEST_SLUG}
    assert long[11].endswith("-11")


@pytest.mark.shows("S-9")
def test_a_slug_that_is_taken_is_numbered(site: Site) -> None:
    assert [site.write(title="Same").slug for _ in range(3)] == ["same", "same-1", "same-2"]
    assert site.write(title="Same-1").slug == "same-1-1"
    site.posts.delete("same-1", id_of("ada"))
    assert site.write(title="Same!").slug == "same-1"


@pytest.mark.shows("S-9")
def test_a_new_title_makes_a_new_slug_until_the_first_publication(site: Site) -> None:
    ada = id_of("ada")
    site.write(title="New name")
    post = site.write(title="Old name")
    assert site.posts.edit(post.slug, ada, title="OLD  name!").slug == "old-name"
    renamed = site.posts.edit(post.slug, ada, title="New name")
    assert (renamed.id, renamed.slug) == (post.id, "new-name-1")
    assert site.write(title="Old name").slug == "old-name"  # which is free again
    rejected = site.stand("REJECTED", title="Third name")
    assert site.posts.edit(rejected.slug, ada, title="Fourth name").slug == "fourth-name"
    published = site.stand("PUBLISHED", title="Fifth name")
    edited = site.posts.edit(published.slug, ada, title="Sixth name")
    assert (edited.title, edited.slug) == ("Sixth name", "fifth-name")
