"""What workers and operators ask over HTTP, and the one check that stands before it."""

from datetime import timedelta
from typing import Any

import httpx
import pytest

from tests.services.publishing.site import MOSTLY_SQLITE, PREVIEW, Site
from tests.services.publishing.test_public_api import data_of, must_refuse
from ulak.auth import SERVICE, VIEWER, Keys
from ulak.services.publishing import statuses
from ulak.services.publishing.articles import Article
from ulak.services.publishing.keys import SCOPES
from ulak.services.publishing.routes import verify_api_key

BODIES: dict[str, dict[str, Any]] = {
    "approve": {},
    "reject": {"reason": "too short"},
    "preview": {"preview_url": PREVIEW},
    "publish": {},
    "error": {"error_message": "no preview"},
}


def pending(site: Site, *, verdict: bool = False, preview: bool = False) -> Article:
    post = site.publish(site.write())
    if verdict:
        site.saga.approve(post.id, post.publication_id, "worker")
    if preview:
        site.saga.store_preview(post.id, post.publication_id, PREVIEW, "worker")
    return post


def must_be(answer: httpx.Response, post: Article, status: str, *, changed: bool) -> None:
    data = data_of(answer)
    assert (data["article_id"], data["status"], data["changed"]) == (post.id, status, changed)


@pytest.mark.shows("S-46")
@pytest.mark.parametrize("site", MOSTLY_SQLITE, indirect=True)
def test_every_internal_route_has_the_one_check_and_a_scope(site: Site) -> None:
    (public, internal, _) = (lines for _, lines in site.lines)
    assert {line.path.split("/")[1] for line in internal} == {"internal"}
    checks = {id(line.authenticate) for line in internal}
    assert len(checks) == 1
    assert type(internal[0].authenticate) is type(verify_api_key(site.engine)) is Keys
    assert {line.schemes for line in internal} == {("Token",)}
    assert {line.scope for line in internal} == set(SCOPES)
    assert not [line.path for line in public if line.path.startswith("/internal")]
    assert not checks & {id(line.authenticate) for line in public}
    # None is served that has no line, or another one.
    served = {(m, r.path) for r in site.lines[1][0].routes for m in r.methods}
    assert served == {(line.method, line.path) for line in internal}
    paths = site.app.openapi()["paths"]
    for path in filter(lambda path: path.startswith(("/api", "/internal")), paths):
        for operation in paths[path].values():
            takes_token = any("token" in way for way in operation.get("security", []))
            assert takes_token == path.startswith("/internal")


@pytest.mark.shows("S-46")
@pytest.mark.parametrize("site", MOSTLY_SQLITE, indirect=True)
def test_without_a_good_key_every_internal_route_answers_the_same(site: Site) -> None:
    post, good = pending(site), site.key().removeprefix("Token ")
    revoked = site.keys.create_key("revoked", roles=[SERVICE], actor="tests")
    site.keys.revoke_key(revoked.key.id, actor="tests")
    expired = site.keys.create_key(
        "expired", roles=[SERVICE], actor="tests", life=timedelta(microseconds=1)
    )
    wrong = [
        "", "Token", "Token none", f"Token {good[:-1]}", f"Token {revoked.text}",
        f"Token {expired.text}", f"Bearer {good}", f"Basic {good}", good, site.login(),
        site.login().replace("Bearer", "Token"),
    ]  # fmt: skip
    asked = [
        (line.method, line.path.replace("{id}", post.id), credential, {})
        for line in site.lines[1][1]
        for credential in wrong
    ]
    bodies = []
    for answer in site.ask_at_once(asked):
        document = must_refuse(answer, 401, "invalid_api_key")
        assert answer.headers["www-authenticate"] == 'Token realm="ulak"'
        assert document.pop("correlation_id")
        bodies.append(document)
    assert all(body == bodies[0] for body in bodies)
    assert site.posts.get_by_id(post.id) == post
    for header in ("X-Admin-Key", "X-API-Key"):
        answer = site.ask("GET", f"/internal/articles/{post.id}", headers={header: good})
        must_refuse(answer, 401, "invalid_api_key")


@pytest.mark.parametrize("site", MOSTLY_SQLITE, indirect=True)
def test_a_good_key_for_another_call_is_refused_by_another_code(site: Site) -> None:
    post = pending(site)
    for line in site.lines[1][1]:
        path = line.path.replace("{id}", post.id)
        others = [scope for scope in SCOPES if scope != line.scope]
        must_refuse(site.ask(line.method, path, site.key(*others)), 403, "insufficient_scope")
        only = site.ask(line.method, path, site.key(line.scope), json={})
        assert only.status_code not in (401, 403), (line, only.text)
    viewer = site.keys.create_key("viewer", roles=[VIEWER], actor="tests").text
    answer = site.ask("GET", f"/internal/articles/{post.id}", f"Token {viewer}")
    must_refuse(answer, 403, "insufficient_scope")


@pytest.mark.parametrize("site", MOSTLY_SQLITE, indirect=True)
def test_the_whole_article_is_read(site: Site) -> None:
    post = site.stand(statuses.REJECTED)
    path = f"/internal/articles/{post.id}"
    article = data_of(site.ask("GET", path, site.key()))["article"]
    same = (
        "id", "slug", "title", "body", "description", "author_id", "revision", "verdict", "status",
        "publication_id", "preview_url", "moderation_reason", "error_message",
    )  # fmt: skip
    for name in same:
        assert article[name] == getattr(post, name), name
    must_refuse(site.ask("GET", "/internal/articles/none", site.key()), 404, "not_found")


@pytest.mark.shows("S-14")
def test_the_steps_lead_to_publication_and_each_puts_the_next_task(site: Site) -> None:
    post = pending(site)
    about = {"publication_id": post.publication_id}
    must_be(site.internal(post, "approve", **about), post, "PENDING_PUBLISH", changed=True)
    assert site.tasks_of(post) == [statuses.MODERATE, statuses.GENERATE_PREVIEW]
    preview = BODIES["preview"] | about
    must_be(site.internal(post, "preview", **preview), post, "PENDING_PUBLISH", changed=True)
    assert site.tasks_of(post)[2:] == [statuses.PUBLISH]
    must_be(site.internal(post, "publish", **about), post, "PUBLISHED", changed=True)
    assert site.tasks_of(post)[3:] == [statuses.NOTIFY]
    found = site.posts.get_by_id(post.id)
    assert (found.preview_url, found.verdict, found.stepped_at) == (PREVIEW, "approve", None)
    assert found.published_at is not None
    assert site.posts.history(post.id)[-1].actor == "key:worker"
    # And again: nothing is changed, and no task is put twice.
    must_be(site.internal(post, "approve", **about), post, "PUBLISHED", changed=False)
    must_be(site.internal(post, "publish", **about), post, "PUBLISHED", changed=False)
    assert site.posts.get_by_id(post.id) == found
    assert site.tasks_of(post) == [*statuses.SAGA_TASKS, statuses.NOTIFY]


def test_a_preview_that_is_stored_already_puts_no_task(site: Site) -> None:
    post = pending(site, verdict=True)
    for changed in (True, False):
        answer = site.internal(post, "preview", preview_url=PREVIEW)
        must_be(answer, post, "PENDING_PUBLISH", changed=changed)
    assert len(site.jobs(statuses.PUBLISH)) == 1
    no_addresses = (
        "ftp://example.com/a.png", "example.com", "https://", "https://x.com/\x00", 7,
        f"https://example.com/{'x' * 500}", "https://exa mple.com", "https://[x",
    )  # fmt: skip
    for wrong in no_addresses:
        answer = site.internal(post, "preview", preview_url=wrong)
        must_refuse(answer, 422, "validation_error")
    assert site.posts.get_by_id(post.id).preview_url == PREVIEW


def test_a_rejection_and_a_failure_keep_their_reasons(site: Site) -> None:
    post = pending(site)
    must_be(site.internal(post, "reject", reason="too short"), post, "REJECTED", changed=True)
    must_be(site.internal(post, "reject", reason="other"), post, "REJECTED", changed=False)
    assert site.posts.get_by_id(post.id).moderation_reason == "too short"
    post = pending(site)
    must_be(site.internal(post, "error", error_message="oh"), post, "ERROR", changed=True)
    must_be(site.internal(post, "error", error_message="other"), post, "ERROR", changed=False)
    assert site.posts.get_by_id(post.id).error_message == "oh"
    must_refuse(site.internal(post, "error", message="x"), 422, "validation_error")


@pytest.mark.parametrize("site", MOSTLY_SQLITE, indirect=True)
def test_a_body_may_be_left_out_and_must_not_have_other_members(site: Site) -> None:
    must_be(site.internal(post := pending(site), "approve"), post, "PENDING_PUBLISH", changed=True)
    must_be(site.internal(post := pending(site), "reject"), post, "REJECTED", changed=True)
    post = pending(site)
    for step in ("approve", "reject", "publish"):
        must_refuse(site.internal(post, step, publication="x"), 422, "validation_error")
    must_refuse(site.internal(post, "publish"), 409, "preview_missing")


@pytest.mark.parametrize(
    ("step", "status", "code"),
    [
        *(("approve", status, "invalid_status") for status in ("DRAFT", "ERROR")),
        ("approve", "REJECTED", "already_rejected"),
        *(("reject", status, "invalid_status") for status in ("DRAFT", "PUBLISHED", "ERROR")),
        *(("preview", s, "invalid_status") for s in ("DRAFT", "PUBLISHED", "REJECTED", "ERROR")),
        *(("publish", status, "invalid_status") for status in ("DRAFT", "REJECTED", "ERROR")),
        *(("error", status, "invalid_status") for status in ("DRAFT", "PUBLISHED", "REJECTED")),
    ],
)
@pytest.mark.parametrize("site", MOSTLY_SQLITE, indirect=True)
def test_a_step_that_comes_elsewhere_is_refused(
    site: Site, step: str, status: str, code: str
) -> None:
    post = site.stand(status)
    must_refuse(site.internal(post, step, **BODIES[step]), 409, code, current_status=status)
    assert site.posts.get_by_id(post.id) == post


@pytest.mark.shows("S-6")
@pytest.mark.parametrize("step", BODIES)
@pytest.mark.parametrize("site", MOSTLY_SQLITE, indirect=True)
def test_a_call_about_another_publication_is_refused(site: Site, step: str) -> None:
    post = pending(site, verdict=step == "publish", preview=step == "publish")
    before = site.posts.get_by_id(post.id)
    body = BODIES[step] | {"publication_id": "00000000-0000-4000-8000-000000000000"}
    must_refuse(site.internal(post, step, **body), 409, "stale_publication")
    assert site.posts.get_by_id(post.id) == before


@pytest.mark.shows("S-16", "R-19")
def test_after_an_approval_comes_no_rejection(site: Site) -> None:
    post = pending(site, verdict=True)
    for body in ({}, {"failed_task": statuses.MODERATE}):
        answer = site.internal(post, "reject", reason="no", **body)
        must_refuse(answer, 409, "already_approved", current_status="PENDING_PUBLISH")
    assert site.posts.get_by_id(post.id).status == "PENDING_PUBLISH"


@pytest.mark.shows("R-19")
def test_a_step_whose_effect_is_stored_is_not_compensated(site: Site) -> None:
    post = pending(site, verdict=True, preview=True)
    for task in (statuses.MODERATE, statuses.GENERATE_PREVIEW):
        body = {"error_message": "gave up", "failed_task": task}
        must_refuse(site.internal(post, "error", **body), 409, "step_done")
    must_be(site.internal(post, "publish"), post, "PUBLISHED", changed=True)
    post = pending(site, verdict=True)
    body = {"error_message": "gave up", "failed_task": statuses.GENERATE_PREVIEW}
    must_be(site.internal(post, "error", **body), post, "ERROR", changed=True)
    assert site.posts.history(post.id)[-1].cause == statuses.DEAD_LETTER


@pytest.mark.shows("S-24")
def test_a_failed_publication_is_resumed_unless_its_author_has_changed_the_post(
    site: Site,
) -> None:
    def resume(post: Article) -> Article:
        with site.posts.tables.writing() as connection:
            about = post.id, str(post.publication_id), post.revision
            return site.saga.resume(connection, *about, "olga")

    post = site.stand(statuses.ERROR)
    resumed = resume(post)
    assert resumed == site.posts.get_by_id(post.id)
    assert (resumed.status, resumed.error_message) == ("PENDING_PUBLISH", None)
    assert resumed.publication_id == post.publication_id
    with pytest.raises(statuses.InvalidStatus):
        resume(post)
    edited = site.stand(statuses.ERROR)
    site.posts.edit(edited.slug, edited.author_id, body="new")
    with pytest.raises(statuses.StalePublication):
        resume(edited)
    site.publish(edited)
    site.saga.fail(edited.id, None, "again", "worker")
    with pytest.raises(statuses.StalePublication):
        resume(edited)
    assert site.posts.get_by_id(edited.id).status == "ERROR"
