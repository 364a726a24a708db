"""A service of another package: everything that it brings works, and ulak was not touched for it.

`acme_letters` beside this file is the package. It uses names that docs/reference/ has, and no
others.
"""

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

import ulak
import ulak.web
from tests.architecture.contract import private_names
from tests.conformance.stores import make_schema
from ulak.auth.identity import Identity
from ulak.auth.principal import OPERATOR, SERVICE, VIEWER, Principal
from ulak.cli import main
from ulak.engine.ports import WorkerSettings
from ulak.service import attach, get_service
from ulak.settings import Settings
from ulak.testing import faults

HERE = Path(__file__).parent
PACKAGE = HERE / "acme_letters"
SECRET = "a-secret-of-these-tests-and-of-nothing-else"  # noqa: S105 - it guards nothing
MOST_LINES = 250
AMPLE_S = 120
ADA = Principal("ada", tenant=None, roles=frozenset({OPERATOR}))


def eventually(holds: Callable[[], object]) -> None:
    """Wait until something holds; fail when it does not in time."""
    deadline = time.monotonic() + AMPLE_S
    while not holds():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.005)


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install the package for the length of a test."""
    about = tmp_path / "site" / "acme_letters-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-letters\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[ulak.services]\nletters = acme_letters:service\n")
    monkeypatch.setattr(sys, "path", [str(HERE), str(about.parent), *sys.path])
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "acme_letters"]:
        del sys.modules[name]


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'letters.db'}"
        return
    with request.getfixturevalue("databases").lend(make_schema) as url:
        yield url


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run the command line; return its exit code, and what it wrote on stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("ULAK_")]:
        monkeypatch.delenv(name)

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return call


class Site:
    """One process that serves letters, and what callers ask of it."""

    def __init__(self, url: str) -> None:
        service = get_service("letters")
        self.engine = ulak.connect(url)
        attach(service, self.engine, Settings())
        _, self.office = self.engine.kernel.attached["letters"]
        self.identity = Identity(self.engine.open().store, secret=SECRET)
        self.app = ulak.web.app(self.engine, identity=self.identity, services=[service])

    def key(self, role: str, tenant: str | None = None, scopes: tuple[str, ...] = ()) -> str:
        made = self.identity.create_key(
            f"{role}-{tenant or 'all'}", roles=[role], tenant=tenant, scopes=scopes, actor="ada"
        )
        return made.text

    def ask(self, method: str, path: str, credential: str = "", **options: Any) -> httpx.Response:
        headers = options.pop("headers", {})
        if credential:
            headers["Authorization"] = f"Token {credential}"

        async def one() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://ulak") as client:
                return await client.request(method, path, headers=headers, **options)

        return asyncio.run(one())

    def write(self, key: str, to: str = "ada") -> str:
        answer = self.ask("POST", "/letters", key, json={"to": to})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["letter"])


@pytest.fixture
def site(url: str) -> Iterator[Site]:
    made = Site(url)
    yield made
    made.engine.close()


@pytest.mark.shows("E-69")
def test_the_package_is_small_and_uses_documented_names_alone() -> None:
    files = [path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".sql")]
    assert sum(len(path.read_text().splitlines()) for path in files) <= MOST_LINES
    assert private_names(PACKAGE) == set()


@pytest.mark.shows("E-69")
def test_a_scope_of_a_service_is_asked_for_and_given_like_any_other(site: Site) -> None:
    service, viewer = site.key(SERVICE), site.key(VIEWER)
    site.write(service)
    refused = site.ask("POST", "/letters", viewer, json={"to": "ada"})
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert "may not write letters: that takes service or operator or admin" in refused.text
    assert "letters:write" in site.ask("GET", "/auth/me", service).json()["scopes"]
    assert "letters:write" not in site.ask("GET", "/auth/me", viewer).json()["scopes"]
    narrowed = site.key(OPERATOR, scopes=("jobs:read",))
    assert site.ask("POST", "/letters", narrowed, json={"to": "ada"}).status_code == 403
    admin = site.key("admin")
    wanted = {"name": "writer", "roles": ["service"], "scopes": ["letters:write"]}
    made = site.ask("POST", "/keys", admin, json=wanted)
    assert (made.status_code, made.json()["scopes"]) == (201, ["letters:write"])
    site.write(made.json()["key"])
    assert site.ask("GET", "/jobs", made.json()["key"]).status_code == 403
    wrong = site.ask("POST", "/keys", admin, json=wanted | {"scopes": ["parcels:write"]})
    assert wrong.status_code == 422
    assert "there is no scope 'parcels:write'" in wrong.json()["detail"]
    document = site.app.openapi()
    operation = document["paths"]["/letters"]["post"]
    assert "Needs `letters:write`: to write letters." in operation["description"]
    assert "to" in str(operation["requestBody"])
    named = document["components"]["schemas"]["NewKey"]["properties"]["scopes"]["items"]["enum"]
    assert {"letters:write", "jobs:read"} <= set(named)


@pytest.mark.shows("E-69")
def test_errors_of_a_service_have_its_codes_statuses_members_and_envelope(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, foreign = site.key(SERVICE, "acme"), site.key(SERVICE, "globex")
    letter = site.write(key)
    for who, which in ((key, "none"), (foreign, letter)):
        absent = site.ask("DELETE", f"/letters/{which}", who)
        assert (absent.status_code, absent.json()["code"]) == (404, "letter-not-found")
        assert absent.headers["content-type"] == "application/problem+json"
        assert absent.json()["error"] == {
            "name": "LETTER-NOT-FOUND", "text": f"there is no letter {which}"
        }  # fmt: skip
    with site.engine.working():
        site.engine.wait(site.engine.jobs()[0].id, timeout=AMPLE_S)
    posted = site.ask("DELETE", f"/letters/{letter}", key)
    assert posted.status_code == 409
    told = posted.json()
    assert (told["code"], told["letter"], told["to"]) == ("already-posted", letter, "ada")
    assert (told["status"], told["retryable"], told["ok"]) == (409, False, False)
    monkeypatch.setattr(site.office, "_most_waiting", 0)
    full = site.ask("POST", "/letters", key, json={"to": "bob"})
    assert (full.status_code, full.headers["retry-after"]) == (429, "30")
    assert (full.json()["code"], full.json()["retry_after_seconds"]) == ("office-full", 30)
    assert full.json()["retryable"] is True
    flows = [job.flow for job in site.engine.jobs()]
    assert flows.count("letters") == 1  # the refused one left nothing


@pytest.mark.shows("E-69")
def test_the_envelope_is_on_every_error_of_the_service_and_on_no_other(site: Site) -> None:
    key = site.key(SERVICE)
    bodies = (b'{"to": "ada", "to": "bob"}', b'{"to": NaN}', b"{", b'{"to": 1}', b'{"from": "x"}')
    for body in bodies:
        wrong = site.ask("POST", "/letters", key, content=body)
        assert (wrong.status_code, wrong.json()["error"]["name"]) == (422, "BAD-INPUT"), wrong.text
        assert wrong.json()["errors"][0]["parameter"] in ("body", "to", "from")
    unknown = site.ask("POST", "/letters", content=b"{")  # who calls is asked before what is sent
    assert (unknown.status_code, unknown.json()["error"]["name"]) == (401, "UNAUTHENTICATED")
    no_method = site.ask("PUT", "/letters", key)
    assert (no_method.status_code, no_method.json()["ok"]) == (405, False)
    assert "error" not in site.ask("GET", "/jobs/none", key).json()


@pytest.mark.shows("E-69")
def test_a_route_may_know_users_of_its_own_who_come_by_token_only(site: Site) -> None:
    key, admin = site.key(SERVICE, "acme"), site.key("admin")
    path = f"/clerk/letters/{site.write(key)}"
    clerk = site.office.hire("carla")
    read = site.ask("GET", path, clerk)
    assert read.json() == {"to": "ada", "state": "written", "reader": "clerk:carla"}
    ways: list[dict[str, str]] = [
        {}, {"Authorization": f"Bearer {clerk}"}, {"Authorization": f"Token {admin}"},
        {"X-Admin-Key": admin}, {"X-Admin-Key": clerk}, {"Cookie": f"ulak_session={clerk}"},
    ]  # fmt: skip
    for headers in ways:
        refused = site.ask("GET", path, headers=headers)
        assert refused.status_code == 401, headers
        assert refused.headers["www-authenticate"].startswith('Token realm="ulak"')
        assert refused.json()["error"]["name"] == "UNAUTHENTICATED"
    # A clerk is nobody on other routes, of the service or of the platform.
    assert site.ask("POST", "/letters", clerk, json={"to": "x"}).status_code == 401
    assert site.ask("GET", "/jobs", clerk).status_code == 401
    security = site.app.openapi()["paths"]["/clerk/letters/{letter}"]["get"]["security"]
    assert security == [{"token": ["letters:read"]}]
    # They are asked for even where nobody else is.
    site.app = ulak.web.app(site.engine, identity=None, services=[get_service("letters")])
    assert site.ask("GET", path).status_code == 401
    assert site.ask("GET", path, clerk).status_code == 200
    assert site.ask("GET", "/jobs").status_code == 200


@pytest.mark.shows("E-69")
def test_a_metric_of_a_service_is_scraped_with_the_rest(site: Site) -> None:
    site.write(site.key(SERVICE))
    text = site.ask("GET", "/metrics", site.key("admin")).text
    assert "letters_waiting 1.0" in text
    assert "ulak_store_up 1.0" in text


@pytest.mark.shows("E-69")
def test_its_commands_settings_and_scopes_are_those_of_the_command_line(
    run: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ULAK_SERVICE", "letters")
    monkeypatch.setenv("ULAK_STORE", f"sqlite:///{tmp_path / 'letters.db'}")
    token = run("letters", "hire", "carla")[1].strip()
    site = Site(f"sqlite:///{tmp_path / 'letters.db'}")
    assert site.office.find_clerk(token).name == "clerk:carla"
    letter = site.write(site.key(SERVICE))
    site.engine.close()
    assert json.loads(run("letters", "list", "--json")[1]) == [
        {"letter": letter, "to": "ada", "posted": "-"}
    ]
    assert letter in run("letters", "list")[1]
    code, _, told = run("keys", "create", "post", "--role", "service", "--scope", "letters:write")
    assert code == 0, told
    code, _, told = run("keys", "create", "other", "--role", "service", "--scope", "parcels:write")
    assert code == 1
    assert "letters:write" in told
    monkeypatch.setenv("LETTERS_MOST_WAITING", "7654")
    _, doctor, _ = run("doctor")
    assert "LETTERS_MOST_WAITING" in doctor
    assert "7654" in doctor
    monkeypatch.setenv("LETTERS_MOST_WAITING", "many")
    code, _, told = run("letters", "list")
    assert (code, told.count("\n")) == (1, 1)
    assert "LETTERS_MOST_WAITING" in told


class Hook(HTTPServer):
    """A server that keeps what it is told; the first request fails."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Listener)
        self.told: list[dict[str, str]] = []
        self.failures = 1

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/ended"


class Listener(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        hook: Any = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        fails, hook.failures = hook.failures > 0, hook.failures - 1
        if not fails:
            hook.told.append(body)
        self.send_response(503 if fails else 204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def hook() -> Iterator[Hook]:
    with Hook() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.shows("E-70")
def test_a_message_of_the_service_comes_to_its_handler(site: Site) -> None:
    letter = site.write(site.key(SERVICE))
    filed = "SELECT filed FROM {schema}.acme_letters"
    with site.engine.working():
        eventually(lambda: site.office.tables.read(filed) == [(1,)])
        eventually(lambda: site.engine.outbox.counts() == [])
    (delivery,) = site.engine.outbox.deliveries(handler="letters-archive")
    assert (delivery.state, delivery.answer) == ("sent", f"filed {letter}")
    assert site.engine.outbox.handlers() == {"letters-archive": "letter.posted"}
    assert site.engine.inspect.verify() == []


@pytest.mark.shows("E-72")
def test_a_webhook_is_told_of_each_end_and_tried_again_when_it_fails(
    site: Site, hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site.office, "webhook", hook.url)
    key = site.key(SERVICE)
    posted, withdrawn = site.write(key), site.write(key)
    jobs = {letter: site.office.read(letter, ADA)[0] for letter in (posted, withdrawn)}
    assert site.ask("DELETE", f"/letters/{withdrawn}", key).status_code == 204
    with site.engine.working():
        eventually(lambda: len(hook.told) == 2)
    assert sorted(hook.told, key=lambda told: told["state"]) == [
        {"job": jobs[withdrawn], "state": "cancelled"}, {"job": jobs[posted], "state": "posted"},
    ]  # fmt: skip
    ended = [job for job in site.engine.jobs() if job.flow == "letters-webhooks"]
    assert len(ended) == 2
    assert hook.failures < 0, "one request has failed"


def post_letters(folder: str, url: str) -> None:
    """The life of a child that posts what waits, unless it is killed."""
    sys.path.insert(0, folder)
    engine = ulak.connect(url)
    from acme_letters import service

    attach(service, engine, Settings())
    # Short, since its end is waited for: nobody renews the lease of a process that was killed.
    with engine, engine.working(WorkerSettings(lease=timedelta(seconds=2))):
        for job in engine.jobs():
            engine.wait(job.id, timeout=AMPLE_S)


@pytest.mark.shows("E-69")
def test_a_process_is_killed_at_a_point_that_the_service_declares(tmp_path: Path) -> None:
    from acme_letters import STAMPED

    url = f"sqlite:///{tmp_path / 'letters.db'}"
    site = Site(url)
    letter = site.write(site.key(SERVICE))
    (job,) = site.engine.jobs()
    with pytest.raises(ValueError, match=r"'letters\.stamped' is no point"):
        faults.run(post_letters, HERE, url, kill_at="letters.stamped")
    crashed = faults.run(post_letters, HERE, url, kill_at=STAMPED, timeout_s=AMPLE_S)
    assert crashed.killed, crashed.errors
    # What the stage wrote before its death is not there.
    assert site.office.tables.read("SELECT posted_at FROM {schema}.acme_letters") == [(None,)]
    with site.engine.working():
        assert site.engine.wait(job.id, timeout=AMPLE_S).state == "posted"
    posted = site.ask("DELETE", f"/letters/{letter}", site.key(OPERATOR))
    assert posted.status_code == 409
    assert list(site.engine.inspect.verify()) == []
    site.engine.close()
