"""Logging in, keys, users and the audit over HTTP."""

from datetime import timedelta

import httpx
import pytest

import ulak
import ulak.web
from ulak.auth.identity import Identity
from ulak.auth.principal import Principal
from ulak.auth.secrets import new_secret
from ulak.clock import ManualClock
from ulak.store.memory import MemoryStore
from ulak.web.access import ACCESS

SECRET = "a secret of tests that is long enough"  # noqa: S105 - guards nothing
PASSWORD = "correct horse battery staple"  # noqa: S105 - guards nothing
ROLES = ("admin", "operator", "viewer", "service")


class Site:
    """A served installation, with a key for each role."""

    def __init__(self, ask) -> None:
        self.clock = ManualClock()
        self.engine = ulak.Engine(MemoryStore(self.clock))
        self.identity = Identity(self.engine.open().store, secret=SECRET)
        self.app = ulak.web.app(self.engine, identity=self.identity)
        self.keys = {role: self.key(role) for role in ROLES}
        self._ask = ask

    def key(self, role: str, **options) -> str:
        return self.identity.create_key(role, roles=[role], actor="test", **options).text

    def ask(self, method: str, path: str, by: str | None = "admin", **options) -> httpx.Response:
        """Ask with the key of a role, or with a credential."""
        headers = options.pop("headers", {})
        if by is not None:
            headers["Authorization"] = f"Bearer {self.keys.get(by, by)}"
        return self._ask(self.app, path, method=method, headers=headers, **options)

    def turn(self, **span: float) -> None:
        self.clock.advance(timedelta(**span))


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Hash with little memory: what is tested is who is let in, not how long it takes."""
    from argon2 import Parameters, Type, profiles

    cheap = Parameters(Type.ID, 19, 16, 32, time_cost=1, memory_cost=8, parallelism=1)
    monkeypatch.setattr(profiles, "RFC_9106_LOW_MEMORY", cheap)


@pytest.fixture
def site(ask):
    made = Site(ask)
    yield made
    made.engine.close()


def is_problem(answer, status: int, code: str) -> bool:
    return (
        answer.status_code == status
        and answer.headers["content-type"] == "application/problem+json"
        and answer.json()["code"] == code
    )


# --- who may --------------------------------------------------------------------

IDENTITY_ROUTES = sorted(
    line for line in ACCESS if line[1].split("/")[1] in ("keys", "users", "audit")
)


@pytest.mark.parametrize(("method", "path"), IDENTITY_ROUTES)
def test_identity_is_for_admins_of_the_whole_installation(site, method, path):
    where = path.format(id="zz99zz99", name="nobody")
    assert is_problem(site.ask(method, where, None), 401, "unauthenticated")
    assert is_problem(site.ask(method, where, "x" * 40), 401, "unauthenticated")
    tenants = site.key("admin", tenant="acme")
    allowed = {"admin", "operator"} if path == "/audit" else {"admin"}
    for by in (*ROLES, tenants):
        answer = site.ask(
            method, where, by, json={"password": PASSWORD} if "pass" in path else None
        )
        if by in allowed:
            assert answer.status_code in (200, 404, 422), by
        else:
            assert is_problem(answer, 403, "forbidden"), by


def test_without_an_identity_nobody_is_known_and_the_audit_is_there_all_the_same(engine, ask):
    app = ulak.web.app(engine, identity=None)
    for method, path in IDENTITY_ROUTES:
        status = 200 if path == "/audit" else 404
        assert ask(app, path, method=method).status_code == status, path
    assert ask(app, "/auth/login", method="POST", json={}).status_code == 404
    engine.flow_control.set_weight("acme", 2, actor="ada", note="they pay")
    (line,) = ask(app, "/audit").json()["items"]
    assert (line["actor"], line["subject"], line["note"]) == ("ada", "acme", "they pay")


def test_a_caller_learns_who_it_is_and_what_it_may_do(site):
    me = site.ask("GET", "/auth/me", "service").json()
    assert (me["name"], me["tenant"], me["roles"]) == ("key:service", None, ["service"])
    assert me["scopes"] == [
        "jobs:read", "jobs:submit", "jobs:signal", "metrics:read"
    ]  # fmt: skip
    assert me["credential"].startswith("key/")
    narrow = site.key("admin", tenant="acme", scopes=["jobs:read"])
    assert site.ask("GET", "/auth/me", narrow).json()["scopes"] == ["jobs:read"]
    assert site.ask("GET", "/auth/me", None).status_code == 401


# --- logging in -----------------------------------------------------------------


def add_user(site, name="ada", role="operator", **more) -> None:
    body = {"name": name, "password": PASSWORD, "roles": [role], **more}
    assert site.ask("POST", "/users", json=body).status_code == 201


def log_in(site, name="ada", password=PASSWORD) -> httpx.Response:
    return site.ask("POST", "/auth/login", None, json={"name": name, "password": password})


@pytest.mark.shows("C-85")
def test_a_person_logs_in_and_may_what_the_role_allows_until_the_token_expires(site):
    add_user(site)
    assert is_problem(log_in(site, "ada", "wrong"), 401, "unauthenticated")
    site.turn(seconds=1)
    assert is_problem(log_in(site, name="bob"), 401, "unauthenticated")
    site.turn(seconds=2)
    answer = log_in(site)
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    document = answer.json()
    token = document.pop("token")
    assert document == {"token_type": "bearer", "expires_at": "2026-01-02T00:00:03.000000Z"}
    assert site.ask("GET", "/auth/me", token).json()["name"] == "ada"
    assert site.ask("GET", "/jobs", token).status_code == 200
    assert is_problem(site.ask("GET", "/keys", token), 403, "forbidden")
    assert is_problem(site.ask("GET", "/jobs", token[:-3]), 401, "unauthenticated")
    assert is_problem(site.ask("GET", "/jobs", None), 401, "unauthenticated")
    site.turn(hours=24)
    assert is_problem(site.ask("GET", "/jobs", token), 401, "unauthenticated")


@pytest.mark.parametrize(
    "body",
    [None, {}, [], {"name": "ada"}, {"name": 7, "password": "x"}, {"name": "ada", "password": None},
     {"name": "x" * 65, "password": "x"}, {"name": "ada", "password": "p4ss" * 999},
     {"name": "ada", "password": "p4ss", "more": 1}],
)  # fmt: skip
def test_a_login_that_cannot_be_read_is_422_and_not_repeated(site, body):
    answer = site.ask("POST", "/auth/login", None, json=body)
    assert is_problem(answer, 422, "bad-input")
    assert "p4ss" not in answer.text


def test_a_link_logs_a_browser_in_once_and_leads_to_the_docs(site):
    code = site.identity.make_link(Principal("root", tenant=None, roles=frozenset({"admin"})))
    answer = site.ask("GET", f"/auth/link?code={code}", None)
    assert answer.status_code == 200
    assert 'content="0; url=/docs"' in answer.text
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert code not in answer.text
    cookie = answer.headers["set-cookie"].lower()
    assert cookie.startswith("ulak_session=eyj")
    assert {"httponly", "samesite=strict", "path=/", "max-age=86400"} <= set(cookie.split("; "))
    assert "secure" not in cookie
    token = answer.cookies["ulak_session"]
    browser = {"Cookie": f"ulak_session={token}"}
    assert site.ask("GET", "/auth/me", None, headers=browser).json()["name"] == "root"
    again = site.ask("GET", f"/auth/link?code={code}", None)
    assert is_problem(again, 401, "unauthenticated")
    assert code not in again.text
    assert "set-cookie" not in again.headers


BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


def dead_links(site) -> dict[str, str]:
    """For each way in which a link is over, its code."""
    root = Principal("root", tenant=None, roles=frozenset({"admin"}))
    spent = site.identity.make_link(root)
    assert site.ask("GET", f"/auth/link?code={spent}", None).status_code == 200
    expired = site.identity.make_link(root)
    site.turn(minutes=10)
    forgotten = new_secret()
    return {
        "was used already": spent,
        "has expired": expired,
        "is not known here, or has expired": forgotten,
        "is not whole": expired[:-3],
    }


def test_a_dead_link_names_the_command_that_prints_another(site):
    for why, code in dead_links(site).items():
        answer = site.ask("GET", f"/auth/link?code={code}", None)
        assert is_problem(answer, 401, "unauthenticated"), why
        assert answer.json()["detail"] == f"this link {why}; `ulak link` prints another"


def test_a_browser_that_opens_a_dead_link_gets_a_page_with_the_command(site):
    for why, code in dead_links(site).items():
        answer = site.ask("GET", f"/auth/link?code={code}", None, headers=dict(BROWSER))
        assert answer.status_code == 401
        assert answer.headers["content-type"].startswith("text/html")
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert answer.headers["cache-control"] == "no-store"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert f"This link {why}; <code>ulak link</code> prints another:" in answer.text
        assert "<pre>ulak link --address http://ulak</pre>" in answer.text
        assert code not in answer.text
        assert "set-cookie" not in answer.headers


def test_the_document_says_that_a_dead_link_is_a_problem_or_a_page(site):
    responses = site.app.openapi()["paths"]["/auth/link"]["get"]["responses"]
    assert set(responses["401"]["content"]) == {"application/problem+json", "text/html"}


def test_the_cookie_is_secure_over_https_and_stays_below_a_mount(site, ask):
    from fastapi import FastAPI

    outer = FastAPI()
    outer.mount("/ulak", site.app)
    code = site.identity.make_link(Principal("root", tenant=None, roles=frozenset({"admin"})))
    answer = ask(outer, f"https://ulak/ulak/auth/link?code={code}")
    assert 'href="/ulak/docs"' in answer.text
    assert {"secure", "path=/ulak"} <= set(answer.headers["set-cookie"].lower().split("; "))


@pytest.mark.parametrize("query", ["", "?code=", "?code=nonsense", "?code=" + "x" * 1025])
def test_a_link_that_is_none_is_refused(site, query):
    assert site.ask("GET", f"/auth/link{query}", None).status_code in (401, 422)


def test_another_site_cannot_act_with_a_browsers_login_and_a_logout_forgets_it(site):
    code = site.identity.make_link(Principal("root", tenant=None, roles=frozenset({"admin"})))
    token = site.ask("GET", f"/auth/link?code={code}", None).cookies["ulak_session"]
    browser = {"Cookie": f"ulak_session={token}"}
    id = site.ask("GET", "/keys").json()["items"][0]["id"]
    for headers, status in [
        ({}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Origin": "http://evil"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Origin": "http://ulak"}, 200),
    ]:
        answer = site.ask("POST", f"/keys/{id}/revoke", None, headers={**browser, **headers})
        assert answer.status_code == status, headers
    out = site.ask("POST", "/auth/logout", None, headers=browser)
    assert out.status_code == 204
    assert 'ulak_session=""' in out.headers["set-cookie"]
    assert "max-age=0" in out.headers["set-cookie"].lower()


# --- keys -----------------------------------------------------------------------


@pytest.mark.shows("S-34")
def test_a_key_is_made_shown_once_rotated_and_revoked(site):
    body = {"name": "ci", "roles": ["service"], "tenant": "acme", "expires_in_seconds": 3600}
    made = site.ask("POST", "/keys", json=body)
    assert made.status_code == 201
    assert made.headers["cache-control"] == "no-store"
    document = made.json()
    key, id = document["key"], document["id"]
    assert key.startswith(document["prefix"])
    assert (document["principal"], document["created_by"]) == ("key:ci", "key:admin")
    assert document["expires_at"] == "2026-01-01T01:00:00.000000Z"
    assert site.ask("GET", "/auth/me", key).json()["tenant"] == "acme"
    rotated = site.ask("POST", f"/keys/{id}/rotate", json={"overlap_seconds": 60})
    assert rotated.headers["cache-control"] == "no-store"
    new = rotated.json()["key"]
    assert rotated.json()["name"] == "ci"
    for good in (key, new):
        assert site.ask("GET", "/auth/me", good).status_code == 200
    site.turn(seconds=60)
    assert is_problem(site.ask("GET", "/auth/me", key), 401, "unauthenticated")
    revoked = site.ask("POST", f"/keys/{rotated.json()['id']}/revoke", json={"note": "leaked"})
    assert (revoked.status_code, revoked.json()["state"]) == (200, "revoked")
    site.turn(seconds=5)
    assert is_problem(site.ask("GET", "/auth/me", new), 401, "unauthenticated")
    listed = site.ask("GET", "/keys")
    states = {found["id"]: found["state"] for found in listed.json()["items"]}
    assert states[id] == "expired"
    assert states[rotated.json()["id"]] == "revoked"
    for secret in (key, new, *site.keys.values()):
        assert secret[14:] not in listed.text


@pytest.mark.parametrize(
    "body",
    [{}, {"name": "ci"}, {"name": "CI", "roles": ["service"]}, {"name": "ci", "roles": ["boss"]},
     {"name": "ci", "roles": []}, {"name": "ci", "roles": ["viewer"], "scopes": ["jobs:act"]},
     {"name": "ci", "roles": ["viewer"], "expires_in_seconds": 0},
     {"name": "ci", "roles": ["viewer"], "expires_in_seconds": 10**30},
     {"name": "ci", "roles": ["viewer"], "tenant": "\x00"},
     {"name": "ci", "roles": ["viewer"], "role": "admin"}],
)  # fmt: skip
def test_a_key_that_cannot_be_is_422(site, body):
    assert is_problem(site.ask("POST", "/keys", json=body), 422, "bad-input")


@pytest.mark.parametrize("id", ["zz99zz99", "x", "%00", "%F0%9F%92%A9", "ulak_zz99zz99"])
@pytest.mark.parametrize("act", ["rotate", "revoke"])
def test_a_key_that_is_not_there_is_404(site, id, act):
    assert is_problem(site.ask("POST", f"/keys/{id}/{act}"), 404, "not-found")


def test_an_admin_with_few_scopes_cannot_give_itself_more(site):
    narrow = site.key("admin", scopes=["identity:manage"])
    body = {"name": "mine", "roles": ["admin"]}
    assert is_problem(site.ask("POST", "/keys", narrow, json=body), 403, "forbidden")
    admin = site.ask("GET", "/auth/me").json()["credential"].removeprefix("key/")
    assert is_problem(site.ask("POST", f"/keys/{admin}/rotate", narrow), 403, "forbidden")
    user = {**body, "password": PASSWORD}
    assert is_problem(site.ask("POST", "/users", narrow, json=user), 403, "forbidden")
    add_user(site, "ada", "admin")
    answer = site.ask("POST", "/users/ada/password", narrow, json={"password": PASSWORD})
    assert is_problem(answer, 403, "forbidden")


# --- users and the audit ----------------------------------------------------------


def test_a_user_is_made_given_another_password_and_disabled(site):
    add_user(site)
    token = log_in(site).json()["token"]
    assert site.ask("GET", "/auth/me", token).status_code == 200
    changed = site.ask("POST", "/users/ada/password", json={"password": "another " + PASSWORD})
    assert changed.status_code == 200
    assert PASSWORD not in changed.text
    site.turn(seconds=5)
    assert is_problem(site.ask("GET", "/auth/me", token), 401, "unauthenticated")
    token = log_in(site, password="another " + PASSWORD).json()["token"]
    assert site.ask("GET", "/auth/me", token).status_code == 200
    disabled = site.ask("POST", "/users/ada/disable")
    assert disabled.json()["state"] == "revoked"
    site.turn(seconds=5)
    assert is_problem(site.ask("GET", "/auth/me", token), 401, "unauthenticated")
    (ada,) = site.ask("GET", "/users").json()["items"]
    assert (ada["name"], ada["principal"], ada["state"]) == ("ada", "ada", "revoked")
    again = {"name": "ada", "password": PASSWORD, "roles": ["viewer"]}
    assert is_problem(site.ask("POST", "/users", json=again), 422, "bad-input")
    for act in ("password", "disable"):
        body = {"password": PASSWORD} if act == "password" else None
        assert is_problem(site.ask("POST", f"/users/bob/{act}", json=body), 404, "not-found")


def test_the_audit_names_who_did_what_and_pages(site):
    add_user(site, note="she is new")
    site.ask("POST", "/users/ada/disable", json={"note": "she left"})
    lines = site.ask("GET", "/audit?subject=credential/user/ada", "operator").json()
    assert lines["next"] is None
    assert [(line["actor"], line["act"], line["note"]) for line in lines["items"]] == [
        ("key:admin", "disabled", "she left"), ("key:admin", "created", "she is new"),
    ]  # fmt: skip
    assert lines["items"][0]["details"]["before"]["revoked_at"] is None
    seen, after = [], ""
    while after is not None:
        page = site.ask("GET", f"/audit?limit=2{after}").json()
        seen += [line["position"] for line in page["items"]]
        after = None if page["next"] is None else f"&after={page['next']}"
    assert seen == list(range(len(ROLES) + 2, 0, -1))


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "after=-1", "after=x", "colour=red"])
def test_an_audit_query_that_cannot_be_used_is_422(site, query):
    assert is_problem(site.ask("GET", f"/audit?{query}"), 422, "bad-input")
