"""Users register, log in, change their data and subscribe; nobody learns more than they should."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest

import ulak.web
from tests.services.publishing.blog import AMPLE_S, ANOTHER_SECRET, SECRET, Blog, wait_for_a_lock
from tests.services.publishing.shared import Shared
from tests.services.publishing.site import MOSTLY_SQLITE, at_once
from ulak.auth import Attempts, attempts
from ulak.errors import BadInput, Unauthenticated
from ulak.kit.clock import SECOND
from ulak.service import Service, attach
from ulak.services.publishing import bodies, users
from ulak.services.publishing.routes import make_users
from ulak.services.publishing.settings import PublishingSettings
from ulak.services.publishing.users import Logins, Users
from ulak.settings import Settings
from ulak.testing.secret_scan import Scanner

ADA = {"email": "Ada@Example.com", "username": "ada", "password": "a-password-of-adas"}
WRONG, NEW = {"password": "not-her-password"}, {"password": "another-password"}
MINE = ("/api/user", "/api/users/me")
CROWD = 3


class UsersApi(Blog):
    """The users of a blog behind their routes."""

    def __init__(self, url: str, **settings: Any) -> None:
        super().__init__(url, **settings)
        self.logins = Logins(SECRET, timedelta(minutes=30), self.clock)
        service = Service(
            "users", attach=lambda *_: None,
            routes=lambda *_: self.routes(),
        )  # fmt: skip
        attach(service, self.engine, Settings())
        self.app = ulak.web.app(
            self.engine, identity=None, services=[service], platform_routes=False
        )

    def routes(self) -> ulak.web.Routes:
        router, access = make_users(self.users, self.logins)
        return ulak.web.Routes([router], access, envelope=bodies.envelope)

    def ask(self, method: str, path: str, token: str = "", **options: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"} if token else options.pop("headers", {})

        async def one() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://blog") as client:
                return await client.request(method, path, headers=headers, **options)

        return asyncio.run(one())

    def register(self, **changed: Any) -> dict[str, Any]:
        """Register Ada, or somebody else; return the user."""
        return dict(data_of(self.ask("POST", "/api/users", json=ADA | changed), 201)["user"])

    def login(self, **changed: Any) -> httpx.Response:
        who = {name: ADA[name] for name in ("email", "password")} | changed
        return self.ask("POST", "/api/users/login", json=who)

    def enter(self, **changed: Any) -> str:
        """Register; return a token."""
        user = self.register(**changed)
        return self.logins.make(user["id"], user["email"])


def data_of(answer: httpx.Response, status: int = 200) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    document = answer.json()
    assert document["success"] is True
    assert document["message"]
    return dict(document["data"])


def refused(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Hold an answer to the form of every error; return it."""
    document = answer.json()
    assert (answer.status_code, document["code"]) == (status, code), answer.text
    assert document["success"] is False
    assert document["message"] == document["detail"] != ""
    return dict(document)


@pytest.fixture
def open_api(url: str) -> Iterator[Callable[..., UsersApi]]:
    made: list[UsersApi] = []

    def start(**settings: Any) -> UsersApi:
        made.append(UsersApi(url, **settings))
        return made[-1]

    yield start
    for api in made:
        api.close()


@pytest.fixture(scope="module")
def apis(lend_to_all: Callable[[str], str]) -> Iterator[Callable[[str], tuple[UsersApi, Shared]]]:
    """Return the process of all tests on a kind of database, and that database."""
    with ExitStack() as stack:

        @cache
        def find(store: str) -> tuple[UsersApi, Shared]:
            made = UsersApi(lend_to_all(store))
            stack.callback(made.close)
            made.engine.open()
            shared = Shared(made.url)
            shared.keep()
            stack.callback(shared.close)
            return made, shared

        yield find


@pytest.fixture(params=["sqlite", "postgres"])
def api(
    request: pytest.FixtureRequest, apis: Callable[[str], tuple[UsersApi, Shared]]
) -> Iterator[UsersApi]:
    """Return a process, as if it were new."""
    found, shared = apis(request.param)
    found.users.attempts = Attempts(found.clock)
    yield found
    shared.end()


# --- registration and login ---------------------------------------------------------


def test_a_user_registers_logs_in_and_reads_themselves(api: UsersApi) -> None:
    made = api.register(bio="counts", image_url="https://example.com/ada.png")
    assert made["email"] == "Ada@Example.com"
    assert (made["username"], made["bio"], made["is_active"]) == ("ada", "counts", True)
    assert made["has_subscription_key"] is False
    assert not {"password", "password_hash", "subscription_key"} & made.keys()
    entered = api.login(email="aDA@example.COM")  # whatever the case
    data = data_of(entered)
    assert (data["user"], data["token_type"]) == (made, "bearer")
    assert entered.json()["access_token"] == data["access_token"]
    for path in ("/api/user", "/api/users/me", "/api/user/", "/api/users/me/"):
        assert data_of(api.ask("GET", path, data["access_token"]))["user"] == made


def test_an_email_and_a_username_are_of_one_user(api: UsersApi) -> None:
    api.register()
    answer = api.ask("POST", "/api/users/", json=ADA | {"email": "ADA@example.com"})
    refused(answer, 409, "email_taken")
    answer = api.ask("POST", "/api/users", json=ADA | {"email": "other@example.com"})
    assert "ada" in refused(answer, 409, "username_taken")["message"]


def test_of_many_who_register_at_once_one_gets_the_email_and_the_name(
    open_api: Callable[..., UsersApi],
) -> None:
    one, other = open_api(), open_api()
    bodies = [ADA | {"username": f"ada{n}"} for n in range(CROWD)]
    bodies += [ADA | {"email": f"ada{n}@example.com"} for n in range(CROWD)]
    calls = [
        lambda api=api, body=body: api.ask("POST", "/api/users", json=body)
        for api, body in zip([one, other] * CROWD, bodies, strict=True)
    ]
    answers = at_once(*calls)
    assert {answer.status_code for answer in answers} == {201, 409}
    emails = [a for a in answers[:CROWD] if a.status_code == 201]
    names = [a for a in answers[CROWD:] if a.status_code == 201]
    assert (len(emails), len(names)) == (1, 1)
    codes = {a.json()["code"] for a in answers if a.status_code == 409}
    assert codes == {"email_taken", "username_taken"}


@pytest.mark.parametrize("api", ["sqlite"], indirect=True)
def test_registrations_and_new_passwords_take_no_place_from_logins(
    api: UsersApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = api.enter()
    bob = ADA | {"username": "bob", "email": "bob@example.com"}
    monkeypatch.setattr(attempts, "PATIENCE_S", 0.01)
    with ExitStack() as held:
        for _ in range(attempts.FOR_SUSPECTS):
            held.enter_context(api.users.attempts.place())
        refused(api.ask("POST", "/api/users", json=bob), 429, "overloaded")
        refused(api.ask("PUT", "/api/user", token, json=NEW), 429, "overloaded")
        assert api.ask("PUT", "/api/user", token, json={"bio": "no password"}).status_code == 200
        assert api.login().status_code == 200
    assert data_of(api.ask("POST", "/api/users", json=bob), 201)


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_a_registration_waits_for_one_that_is_not_committed(
    open_api: Callable[..., UsersApi], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = open_api(), open_api()
    is_written, real = threading.Event(), one.users._read

    def read(connection: Any, user_id: str) -> users.User:
        is_written.set()
        wait_for_a_lock(url)
        return real(connection, user_id)

    monkeypatch.setattr(one.users, "_read", read)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(one.register)
        assert is_written.wait(AMPLE_S)
        refused(other.ask("POST", "/api/users", json=ADA), 409, "email_taken")
        assert first.result(AMPLE_S)["username"] == "ada"


@pytest.mark.parametrize("api", ["sqlite"], indirect=True)
def test_what_cannot_be_a_user_is_refused_by_its_field(api: UsersApi) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"email": "ada"}, "email"),
        ({"email": "a b@example.com"}, "email"),
        ({"username": "ad"}, "username"),
        ({"username": "a" * 51}, "username"),
        ({"username": "ada!"}, "username"),
        ({"username": "ada\n"}, "username"),
        ({"username": "ада"}, "username"),
        ({"password": "12345"}, "password"),
        ({"password": "p" * 101}, "password"),
        ({"bio": "b" * 501}, "bio"),
        ({"bio": "a\x00b"}, "bio"),
        ({"image_url": "u" * 501}, "image_url"),
        ({"is_active": True}, "is_active"),
    ]
    for changed, field in wrong:
        answer = api.ask("POST", "/api/users", json=ADA | changed)
        document = refused(answer, 422, "validation_error")
        assert [each["field"] for each in document["errors"]] == [field], changed
        assert "password" not in changed or changed["password"] not in answer.text


@pytest.mark.usefixtures("slow_passwords")
def test_a_password_is_kept_as_a_slow_salted_hash(
    open_api: Callable[..., UsersApi], tmp_path: Path, url: str
) -> None:
    api = open_api()
    for name in ("ada", "bob"):
        api.register(username=name, email=f"{name}@example.com")
    statement = "SELECT password_hash FROM {schema}.publishing_users"
    hashes = [hash for (hash,) in api.users.tables.read(statement)]
    assert all(hash.startswith("$argon2id$v=19$m=65536,t=3,") for hash in hashes)
    assert len(set(hashes)) == 2
    scanner = Scanner({"password": ADA["password"]})
    is_sqlite = url.startswith("sqlite")
    assert (scanner.scan_folder(tmp_path) if is_sqlite else scanner.scan_postgres(url)) == []


@pytest.mark.parametrize("api", MOSTLY_SQLITE, indirect=True)
def test_the_shortest_and_the_longest_password_are_taken(api: UsersApi) -> None:
    for name, password in (("short", "123456"), ("long", "ж" * 100)):
        email = f"{name}@example.com"
        api.register(username=name, email=email, password=password)
        assert api.login(email=email, password=password).status_code == 200


@pytest.mark.parametrize("api", MOSTLY_SQLITE, indirect=True)
def test_a_wrong_password_and_an_unknown_email_are_answered_alike_and_as_slowly(
    api: UsersApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.register()
    verified: list[bool] = []
    real = users.is_password

    def count(password: str, stored: str | None) -> bool:
        verified.append(stored is None)
        return real(password, stored)

    monkeypatch.setattr(users, "is_password", count)
    answers = [api.login(**WRONG)]
    api.clock.advance(timedelta(seconds=1))
    answers.append(api.login(email="nobody@example.com"))
    # A hash is computed for either, so that the time tells nothing.
    assert verified == [False, True]
    for answer in answers:
        refused(answer, 401, "bad_credentials")
        assert answer.headers["www-authenticate"] == "Bearer"
    one, other = (answer.json() for answer in answers)
    for document in (one, other):
        document.pop("correlation_id", None)
    assert one == other


# --- tokens -------------------------------------------------------------------------


@pytest.mark.shows("S-8")
@pytest.mark.parametrize("api", MOSTLY_SQLITE, indirect=True)
def test_a_token_says_who_and_for_how_long(api: UsersApi) -> None:
    token = api.enter()
    (who,) = api.users.tables.read("SELECT id, email FROM {schema}.publishing_users")
    claims = jwt.decode(token, options={"verify_signature": False})
    now = api.clock.now() // SECOND
    assert claims == {"sub": who[1], "user_id": who[0], "iat": now, "exp": now + 1800}
    assert jwt.get_unverified_header(token)["alg"] == "HS256"
    principal = api.logins.authenticate(token)
    assert (principal.name, principal.roles) == (who[0], {"user"})
    assert api.logins.recall(token) == principal


@pytest.mark.shows("S-8")
@pytest.mark.parametrize("api", MOSTLY_SQLITE, indirect=True)
def test_a_token_is_good_for_thirty_minutes(api: UsersApi) -> None:
    token = api.enter()
    api.clock.advance(timedelta(minutes=29, seconds=59))
    assert api.ask("GET", "/api/user", token).status_code == 200
    api.clock.advance(timedelta(seconds=1))
    answer = api.ask("GET", "/api/user", token)
    assert "expired" in refused(answer, 401, "not_authenticated")["message"]
    assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.shows("S-8")
@pytest.mark.parametrize("api", ["sqlite"], indirect=True)
def test_only_a_token_of_this_secret_and_this_algorithm_is_good(api: UsersApi) -> None:
    good = api.enter()
    claims = jwt.decode(good, options={"verify_signature": False})
    long_secret = SECRET * 2
    forged = [
        jwt.encode(claims, ANOTHER_SECRET, "HS256"),
        jwt.encode(claims, None, "none"),
        *(_resigned(claims, algorithm) for algorithm in ("HS384", "HS512")),
        jwt.encode({**claims, "exp": "soon"}, SECRET, "HS256"),
        *(
            jwt.encode({k: v for k, v in claims.items() if k != name}, SECRET, "HS256")
            for name in claims
        ),
        good[:-4], f"{good}.x", "a-word", long_secret,
    ]  # fmt: skip
    for token in forged:
        answer = api.ask("GET", "/api/user", token)
        refused(answer, 401, "not_authenticated")
        assert api.logins.recall(token) is None
        with pytest.raises(Unauthenticated):
            api.logins.authenticate(token)
    assert api.ask("GET", "/api/user", good).status_code == 200


def _resigned(claims: dict[str, Any], algorithm: str) -> str:
    """Return a token with the right secret and another algorithm."""
    import hmac

    def part(text: bytes) -> str:
        return base64.urlsafe_b64encode(text).rstrip(b"=").decode()

    head = part(json.dumps({"alg": algorithm, "typ": "JWT"}).encode())
    signed = f"{head}.{part(json.dumps(claims).encode())}"
    digest = {"HS384": "sha384", "HS512": "sha512"}[algorithm]
    return f"{signed}.{part(hmac.digest(SECRET.encode(), signed.encode(), digest))}"


@pytest.mark.shows("S-8")
@pytest.mark.parametrize("api", ["sqlite"], indirect=True)
def test_without_a_token_no_route_of_users_answers(api: UsersApi) -> None:
    token = api.enter()
    routes = [
        ("GET", "/api/user"), ("PUT", "/api/user"), ("GET", "/api/users/me"),
        ("PUT", "/api/users/me"), ("PUT", "/api/users/me/subscription-key"),
        ("POST", "/api/users/subscribe"), ("DELETE", "/api/users/subscribe/somebody"),
    ]  # fmt: skip
    for method, path in routes:
        for headers in ({}, {"Authorization": f"Token {token}"}, {"Authorization": "Bearer"}):
            answer = api.ask(method, path, headers=headers)
            refused(answer, 401, "not_authenticated")
            assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("api", ["sqlite"], indirect=True)
def test_a_token_of_a_user_of_another_system_is_refused(api: UsersApi) -> None:
    api.enter()
    now = api.clock.now() // SECOND
    claims = {"sub": "x@example.com", "user_id": "nobody", "iat": now, "exp": now + 60}
    refused(
        api.ask("GET", "/api/user", jwt.encode(claims, SECRET, "HS256")), 401, "not_authenticated"
    )


# --- a user's own data --------------------------------------------------------------


def test_a_user_changes_what_is_sent_and_nothing_else(api: UsersApi) -> None:
    token = api.enter(bio="counts")
    before = data_of(api.ask("GET", "/api/user", token))["user"]
    api.clock.advance(timedelta(seconds=5))
    changed = api.ask("PUT", "/api/users/me", token, json={"bio": None, "username": "lovelace"})
    after = data_of(changed)["user"]
    assert after["updated_at"] > before["updated_at"]
    expected = {**before, "bio": None, "username": "lovelace", "updated_at": after["updated_at"]}
    assert after == expected
    data_of(api.ask("PUT", "/api/user", token, json={"email": "l@x.io", **NEW}))
    for seconds, changes in ((1, {}), (2, {"email": "l@x.io"})):
        refused(api.login(**changes), 401, "bad_credentials")
        refused(api.login(**changes), 429, "overloaded")
        api.clock.advance(timedelta(seconds=seconds))
    assert data_of(api.login(email="L@x.io", **NEW))["user"]["email"] == "l@x.io"
    for body in ({"username": None}, {"password": "short"}, {"is_active": False}):
        refused(api.ask("PUT", "/api/user", token, json=body), 422, "validation_error")


def test_a_change_to_what_another_user_has_is_refused(api: UsersApi) -> None:
    token = api.enter()
    api.register(username="bob", email="bob@example.com")
    put = lambda **body: api.ask("PUT", "/api/user", token, json=body)  # noqa: E731
    refused(put(email="BOB@example.com"), 409, "email_taken")
    refused(put(username="bob"), 409, "username_taken")
    assert put(email="ADA@example.com", username="ada").status_code == 200  # her own


def test_of_many_who_take_one_name_at_once_one_gets_it(open_api: Callable[..., UsersApi]) -> None:
    one, other = open_api(), open_api()
    tokens = [one.enter(username=f"u{n}00", email=f"u{n}@example.com") for n in range(4)]
    calls = [
        lambda api=api, token=token: api.ask("PUT", "/api/user", token, json={"username": "taken"})
        for api, token in zip([one, other] * 2, tokens, strict=True)
    ]
    answers = at_once(*calls)
    assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409]


def test_a_deactivated_user_is_refused_everywhere(api: UsersApi) -> None:
    token = api.enter()
    user_id = api.logins.authenticate(token).name
    api.users.set_active(user_id, False)
    key = {"subscription_key": "a-key-of-hers"}
    answers = [
        api.login(),
        *(api.ask("GET", path, token) for path in MINE),
        *(api.ask("PUT", path, token, json={"bio": "x"}) for path in MINE),
        api.ask("PUT", "/api/users/me/subscription-key", token, json=key),
        api.ask("POST", "/api/users/subscribe", token, json={"target_user_id": "x"}),
        api.ask("DELETE", "/api/users/subscribe/x", token),
    ]  # fmt: skip
    for answer in answers:
        refused(answer, 403, "inactive_user")
    refused(api.login(**WRONG), 401, "bad_credentials")
    api.users.set_active(user_id, True)
    assert api.ask("GET", "/api/user", token).status_code == 200
    with pytest.raises(users.UserNotFound):
        api.users.set_active("nobody", False)


# --- subscriptions ------------------------------------------------------------------


def test_a_subscription_key_is_sealed_in_the_table(
    open_api: Callable[..., UsersApi], tmp_path: Path, url: str
) -> None:
    api = open_api()
    token = api.enter()
    key = "push-service-key-of-ada"
    path = "/api/users/me/subscription-key"
    answer = api.ask("PUT", path, token, json={"subscription_key": key})
    assert data_of(answer)["user"]["has_subscription_key"] is True
    assert key not in answer.text
    assert key not in api.ask("GET", "/api/user", token).text
    statement = "SELECT subscription_key FROM {schema}.publishing_users"
    ((sealed,),) = api.users.tables.read(statement)
    assert api.users.seal.open(sealed) == key
    assert open_api(secret_key=ANOTHER_SECRET).users.seal.open(sealed) is None
    scanner = Scanner({"key": key})
    is_sqlite = url.startswith("sqlite")
    assert (scanner.scan_folder(tmp_path) if is_sqlite else scanner.scan_postgres(url)) == []
    for wrong in ("short-key", "k" * 256, "a key with spaces", "ключ-подписки", "line\nbreak-key"):
        refused(
            api.ask("PUT", path, token, json={"subscription_key": wrong}), 422, "validation_error"
        )
    for right in ("k" * 10, "k" * 255):
        data_of(api.ask("PUT", path, token, json={"subscription_key": right}))


@pytest.mark.parametrize("api", ["sqlite"], indirect=True)
def test_no_key_is_sealed_without_a_secret(api: UsersApi) -> None:
    api.add("ada")
    without = Users(api.engine, PublishingSettings())
    with pytest.raises(BadInput, match="SECRET_KEY is not set"):
        without.set_key("ada", "a-key-of-hers")


def test_a_user_subscribes_and_unsubscribes_any_number_of_times(api: UsersApi) -> None:
    token = api.enter()
    me = api.logins.authenticate(token).name
    bob = api.register(username="bob", email="bob@example.com")["id"]
    rows = "SELECT author_id, subscriber_id FROM {schema}.publishing_subscribers"
    subscribe = {"target_user_id": bob}
    for path in ("/api/users/subscribe", "/api/users/subscribe/"):
        answer = api.ask("POST", path, token, json=subscribe)
        assert (answer.status_code, answer.content) == (204, b"")
        assert api.users.tables.read(rows) == [(bob, me)]
    for path in (f"/api/users/subscribe/{bob}", f"/api/users/subscribe/{bob}/"):
        answer = api.ask("DELETE", path, token)
        assert (answer.status_code, answer.content) == (204, b"")
        assert api.users.tables.read(rows) == []
    myself = api.ask("POST", "/api/users/subscribe", token, json={"target_user_id": me})
    refused(myself, 400, "cannot_subscribe_to_self")
    nobody = api.ask("POST", "/api/users/subscribe", token, json={"target_user_id": "nobody"})
    refused(nobody, 404, "not_found")
    missing = api.ask("POST", "/api/users/subscribe", token, json={})
    refused(missing, 422, "validation_error")
