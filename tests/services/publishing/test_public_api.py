"""What authors and readers ask over HTTP."""

import re
from typing import Any
from uuid import UUID

import httpx
import pytest

from tests.services.publishing.site import MOSTLY_SQLITE, TEXTS, Site, id_of
from ulak.errors import StoreError
from ulak.services.publishing import statuses

ARTICLES = "/api/articles"
INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


def must_refuse(answer: httpx.Response, status: int, code: str, **members: Any) -> dict[str, Any]:
    """Check the envelope of an error, and return it."""
    document: dict[str, Any] = answer.json()
    assert (answer.status_code, document["code"]) == (status, code), answer.text
    assert document["success"] is False
    assert document["message"] == document["detail"] != ""
    assert isinstance(document["errors"], list)
    assert members.items() <= document.items()
    return document


def data_of(answer: httpx.Response, status: int = 200) -> dict[str, Any]:
    """Check the envelope of a success, and return its data."""
    assert answer.status_code == status, answer.text
    document = answer.json()
    assert (document["success"], set(document)) == (True, {"success", "message", "data"})
    data: dict[str, Any] = document["data"]
    return data


def test_an_article_is_written_read_edited_and_deleted(site: Site) -> None:
    ada = site.login()
    made = data_of(site.ask("POST", ARTICLES, ada, json=TEXTS | {"tag_list": ["b", "a"]}), 201)
    article, path = made["article"], f"{ARTICLES}/{made['slug']}"
    assert made["slug"] == article["slug"] == "a-first-post"
    assert (article["status"], article["author_id"]) == ("DRAFT", id_of("ada"))
    assert article["tag_list"] == ["a", "b"]
    assert INSTANT.fullmatch(article["created_at"])
    assert data_of(site.ask("GET", path, ada))["article"] == article
    edited = data_of(site.ask("PUT", path, ada, json={"body": "Another"}))["article"]
    assert (edited["body"], edited["title"], edited["revision"]) == ("Another", TEXTS["title"], 2)
    must_refuse(site.ask("PUT", path, site.login("bob"), json={"body": "x"}), 403, "not_author")
    must_refuse(site.ask("DELETE", path, site.login("bob")), 403, "not_author")
    data_of(site.ask("DELETE", path, ada))
    for method, below in (("GET", ""), ("DELETE", ""), ("POST", "/publish"), ("POST", "/draft")):
        must_refuse(site.ask(method, f"{path}{below}", ada), 404, "not_found")


@pytest.mark.shows("S-13")
def test_publish_answers_202_with_the_publication(site: Site) -> None:
    post, ada = site.write(), site.login()
    path = f"{ARTICLES}/{post.slug}/publish"
    must_refuse(site.ask("POST", path), 401, "not_authenticated")
    must_refuse(site.ask("POST", path, site.login("bob")), 403, "not_author")
    must_refuse(site.ask("POST", f"{ARTICLES}/none/publish", ada), 404, "not_found")
    data = data_of(site.ask("POST", path, ada), 202)
    assert data["status"] == data["article"]["status"] == "PENDING_PUBLISH"
    assert UUID(data["publication_id"]).version == 4
    (task,) = site.jobs(statuses.MODERATE)
    assert task["publication_id"] == data["publication_id"]
    must_refuse(
        site.ask("POST", path, ada), 409, "invalid_status", current_status="PENDING_PUBLISH"
    )
    edit = site.ask("PUT", f"{ARTICLES}/{post.slug}", ada, json={"body": "x"})
    must_refuse(edit, 409, "locked_for_publication", current_status="PENDING_PUBLISH")
    back = data_of(site.ask("POST", f"{ARTICLES}/{post.slug}/draft", ada))
    assert back["status"] == back["article"]["status"] == "DRAFT"
    again = site.ask("POST", f"{ARTICLES}/{post.slug}/draft", ada)
    must_refuse(again, 409, "invalid_status", current_status="DRAFT")


@pytest.mark.shows("S-12")
def test_publish_with_a_key_is_answered_again_as_it_was(site: Site) -> None:
    post, other = site.write(), site.write(title="Another")
    ada, headers = site.login(), {"Idempotency-Key": "publish-1"}
    path = f"{ARTICLES}/{post.slug}/publish"
    first = site.ask("POST", path, ada, headers=headers)
    assert data_of(first, 202)["status"] == "PENDING_PUBLISH"
    assert first.headers["idempotent-replayed"] == "false"
    site.posts.draft(post.slug, id_of("ada"))
    for again in (path, f"{path}/"):
        replayed = site.ask("POST", again, ada, headers=headers)
        assert (replayed.status_code, replayed.content) == (202, first.content)
        assert replayed.headers["idempotent-replayed"] == "true"
    assert len(site.jobs(statuses.MODERATE)) == 1
    assert site.posts.get(post.slug).status == "DRAFT"
    reused = site.ask("POST", f"{ARTICLES}/{other.slug}/publish", ada, headers=headers)
    assert (reused.status_code, reused.json()["code"]) == (422, "idempotency_key_reused")
    assert "success" not in reused.json()
    # A refusal is not remembered: the same key publishes once the post is a draft.
    pending = site.stand("PENDING_PUBLISH", title="Third")
    path, headers = f"{ARTICLES}/{pending.slug}/publish", {"Idempotency-Key": "publish-2"}
    must_refuse(site.ask("POST", path, ada, headers=headers), 409, "invalid_status")
    site.posts.draft(pending.slug, id_of("ada"))
    data_of(site.ask("POST", path, ada, headers=headers), 202)
    # Without a key a repeat is refused.
    must_refuse(site.ask("POST", path, ada), 409, "invalid_status")


@pytest.mark.shows("S-12")
def test_with_one_key_many_requests_at_once_are_one_publication(site: Site) -> None:
    post, ada = site.write(), site.login()
    path = f"{ARTICLES}/{post.slug}/publish"
    headers = {"Idempotency-Key": "publish-1", "Prefer": "wait=30"}
    answers = site.ask_at_once([("POST", path, ada, {"headers": headers})] * 6)
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.content for answer in answers}) == 1
    assert len(site.jobs(statuses.MODERATE)) == 1


@pytest.mark.shows("S-10")
def test_of_an_unpublished_post_others_see_how_it_stands_and_not_what_it_says(site: Site) -> None:
    open_facts = {
        "id", "slug", "title", "status", "preview_url", "published_at", "created_at", "updated_at",
    }  # fmt: skip
    hidden = {"description", "body", "moderation_reason", "error_message"}
    for status in statuses.STATUSES:
        post = site.stand(status, title=f"Now {status}")
        path = f"{ARTICLES}/{post.slug}"
        for reader in ("", site.login("bob")):
            seen = data_of(site.ask("GET", path, reader))["article"]
            assert seen["status"] == status
            if status == statuses.PUBLISHED:
                assert seen["body"] == TEXTS["body"]
                assert not {"moderation_reason", "error_message"} & seen.keys()
            else:
                assert set(seen) == open_facts
        own = data_of(site.ask("GET", path, site.login()))["article"]
        assert open_facts | hidden <= own.keys()
    assert own["error_message"] == "no preview"


@pytest.mark.shows("S-10")
def test_lists_show_what_is_published_and_to_its_author_everything(site: Site) -> None:
    for status in statuses.STATUSES:
        site.stand(status, title=f"Now {status}")
    site.stand(statuses.PUBLISHED, "bob", title="Of Bob")
    site.write("bob", title="Draft of Bob")

    def seen(query: str, reader: str = "") -> tuple[list[str], int]:
        data = data_of(site.ask("GET", f"{ARTICLES}{query}", reader))
        return [article["slug"] for article in data["articles"]], data["count"]

    ada = site.login()
    assert seen("") == seen("", ada) == (["of-bob", "now-published"], 2)
    assert seen("?limit=1&skip=1") == (["now-published"], 2)
    assert seen("?status=DRAFT", ada) == ([], 0)
    assert seen("?status=PUBLISHED") == seen("")
    assert seen(f"?author={id_of('bob')}") == (["of-bob"], 1)
    assert seen("?author=me", ada)[1] == len(statuses.STATUSES)
    assert seen("?author=me&status=ERROR", ada) == (["now-error"], 1)
    must_refuse(site.ask("GET", f"{ARTICLES}?author=me"), 401, "not_authenticated")
    site.posts.edit("of-bob", id_of("bob"), tags=["tales"])
    assert seen("?tag=tales") == (["of-bob"], 1)
    for wrong in ("limit=0", "limit=101", "skip=-1", "skip=99999999999999999999", "status=draft"):
        refused = must_refuse(site.ask("GET", f"{ARTICLES}?{wrong}"), 422, "validation_error")
        assert refused["errors"][0]["field"] == wrong.partition("=")[0]


@pytest.mark.shows("S-8")
@pytest.mark.parametrize("site", MOSTLY_SQLITE, indirect=True)
def test_a_token_must_be_good_wherever_it_is_sent(site: Site) -> None:
    post = site.stand(statuses.PUBLISHED)
    good = site.login()
    wrong = [
        "Bearer", "Bearer none", good.removeprefix("Bearer "), good.replace("Bearer", "Basic"),
        site.login(exp=1), site.login(secret="x" * 40), site.login(user_id=None), f"{good}x",
        site.key(), site.key().replace("Token", "Bearer"), good.replace("Bearer", "Token"),
    ]  # fmt: skip
    routes = [
        ("GET", ARTICLES), ("GET", f"{ARTICLES}/{post.slug}"), ("POST", ARTICLES),
        ("GET", f"{ARTICLES}/{post.slug}/comments"), ("POST", f"{ARTICLES}/{post.slug}/publish"),
        ("PUT", f"{ARTICLES}/{post.slug}"), ("DELETE", f"{ARTICLES}/{post.slug}"),
    ]  # fmt: skip
    asked = [(method, path, credential, {}) for method, path in routes for credential in wrong]
    for answer in site.ask_at_once(asked):
        must_refuse(answer, 401, "not_authenticated")
        assert answer.headers["www-authenticate"].startswith("Bearer")
    assert site.posts.get(post.slug) == post
    no_token = site.ask("POST", ARTICLES, json=TEXTS)
    must_refuse(no_token, 401, "not_authenticated")


@pytest.mark.parametrize("site", MOSTLY_SQLITE, indirect=True)
def test_paths_work_with_and_without_the_final_slash(site: Site) -> None:
    ada = site.login()
    slug = data_of(site.ask("POST", f"{ARTICLES}/", ada, json=TEXTS), 201)["slug"]
    for path in (ARTICLES, f"{ARTICLES}/", f"{ARTICLES}/{slug}/", "/ready/"):
        assert site.ask("GET", path, ada if "api" in path else "").status_code == 200, path
    assert site.ask("POST", f"{ARTICLES}/{slug}/publish/", ada).status_code == 202
    assert site.ask("GET", f"/internal/articles/{site.posts.get(slug).id}/", site.key()).is_success


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (TEXTS | {"title": ""}, "title"),
        (TEXTS | {"title": "x" * 201}, "title"),
        (TEXTS | {"description": "x" * 501}, "description"),
        (TEXTS | {"body": ""}, "body"),
        (TEXTS | {"body": "a\x00b"}, "body"),
        (TEXTS | {"title": 7}, "title"),
        (TEXTS | {"headline": "x"}, "headline"),
        (TEXTS | {"tag_list": ["x" * 101]}, "tag_list.0"),
        (TEXTS | {"tag_list": "x"}, "tag_list"),
        ({"title": "x", "body": "y"}, "description"),
        ([], "body"),
    ],
)
@pytest.mark.parametrize("site", MOSTLY_SQLITE, indirect=True)
def test_a_body_that_cannot_be_used_names_each_field(site: Site, body: Any, field: str) -> None:
    refused = must_refuse(
        site.ask("POST", ARTICLES, site.login(), json=body), 422, "validation_error"
    )
    assert [set(error) for error in refused["errors"]] == [{"field", "message"}]
    assert refused["errors"][0]["field"] == field
    assert site.posts.list()[1] == 0


def test_texts_of_the_longest_lengths_and_of_every_script_are_kept(site: Site) -> None:
    texts = {"title": "ж" * 200, "description": "🙂" * 500, "body": "日本" * 50_000}
    made = data_of(site.ask("POST", ARTICLES, site.login(), json=texts), 201)["article"]
    assert {name: made[name] for name in texts} == texts
    assert len(made["slug"]) == 255
    for path in (f"{ARTICLES}/{'x' * 301}", f"{ARTICLES}/%00", f"{ARTICLES}?tag=%00"):
        must_refuse(site.ask("GET", path), 422, "validation_error")


def test_comments_are_read_by_all_and_deleted_by_who_wrote_them(site: Site) -> None:
    post, draft = site.stand(statuses.PUBLISHED), site.write(title="A draft")
    path, bob = f"{ARTICLES}/{post.slug}/comments", site.login("bob")
    made = data_of(site.ask("POST", path, bob, json={"body": "Well said"}), 201)["comment"]
    assert (made["body"], made["author_id"]) == ("Well said", id_of("bob"))
    assert data_of(site.ask("GET", path)) == {"comments": [made], "count": 1}
    comment = f"{path}/{made['id']}"
    must_refuse(site.ask("POST", path, json={"body": "x"}), 401, "not_authenticated")
    must_refuse(site.ask("DELETE", comment, site.login()), 403, "not_author")
    must_refuse(site.ask("DELETE", f"{path}/none", bob), 404, "not_found")
    data_of(site.ask("DELETE", comment, bob))
    must_refuse(site.ask("DELETE", comment, bob), 404, "not_found")
    path = f"{ARTICLES}/{draft.slug}/comments"
    for method in ("GET", "POST"):
        answer = site.ask(method, path, bob, json={"body": "x"} if method == "POST" else None)
        must_refuse(answer, 409, "invalid_status", current_status="DRAFT")


def test_ready_says_whether_the_database_answers(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert data_of(site.ask("GET", "/ready"))["status"] == "ready"
    assert site.ask("GET", "/health").status_code == 200

    def fail(*_: object) -> None:
        raise StoreError("the database cannot answer: it is gone")

    monkeypatch.setattr(site.posts.tables, "read", fail)
    must_refuse(site.ask("GET", "/ready"), 503, "store_error")
