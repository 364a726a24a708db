"""A real `ulak up` that is told many secrets: none is in what it writes, nor in what it stores."""

import base64
import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import psycopg
import pytest

from tests.cli.test_up import PATIENCE_S, address, greeting, until
from tests.web.discretion import must_be_discreet
from ulak.auth import secrets
from ulak.auth.identity import Identity
from ulak.auth.principal import ADMIN, Principal
from ulak.auth.tokens import SECRETS_FILE
from ulak.testing.secret_scan import Scanner
from ulak.wiring import store_of

SECRET = "signs/every+token of.this story; 7f3a"  # noqa: S105 - guards nothing
ADMIN_KEY = "an-admin/key+of%this;story=9b1c-and-more"
PASSWORD = "correct häuser/battery+staple"  # noqa: S105 - guards nothing
WRONG = "not the right p4ss/word"
STORE_PASSWORD = "s3cret/pa@ss:word"  # noqa: S105 - the server asks for none
CODE = re.compile(r"/auth/link\?code=(\S+)")

PROGRAM = """
import os
import ulak

engine = ulak.connect(os.environ["SHOP_STORE"])


@engine.job
def greet(name: str) -> str:
    return f"hello {name}"
"""


class Site:
    """The process, and whoever asks it; it keeps all that was said and every secret of it."""

    def __init__(self, folder: Path, store: str, env: str) -> None:
        self.folder, self.env = folder, env
        self.store = store.replace("postgres@", f"postgres:{quote(STORE_PASSWORD, safe='')}@")
        self.planted = {"admin key": ADMIN_KEY, "password": PASSWORD, "wrong password": WRONG}
        if store != self.store:
            self.planted["password of the store"] = STORE_PASSWORD
        if env == "production":
            self.planted["secret"] = SECRET
        self.answers = b""

    @contextmanager
    def up(self) -> Iterator[None]:
        """Serve; when it has drained, all that it wrote is in `output`."""
        (self.folder / "shop.py").write_text(PROGRAM, encoding="utf-8")
        told = {
            "SHOP_STORE": self.store, "ULAK_ENV": self.env, "ULAK_ADMIN_KEY": ADMIN_KEY,
            "ULAK_SECRET": SECRET if self.env == "production" else "", "ULAK_DATA": "data",
        }  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, "-m", "ulak", "up", "shop:engine", "--port", "0"],
            cwd=self.folder,
            env={**{k: v for k, v in os.environ.items() if not k.startswith("ULAK_")}, **told},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            self.greeting = greeting(process)
            with httpx.Client(base_url=address(self.greeting), timeout=PATIENCE_S) as self.client:
                yield
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
            process.communicate()
        assert process.returncode == 0, err
        self.output = self.greeting + out + err

    def ask(self, method: str, path: str, by: str | None = ADMIN_KEY, **body: Any) -> Any:
        """Ask; no answer may tell a secret but those that hand one out."""
        headers = {} if by is None else {"Authorization": f"Bearer {by}"}
        options: dict[str, Any] = {"json": body} if body else {}
        answer = self.client.request(method, path, headers=headers, **options)
        must_be_discreet(
            method, path, sent=(headers, body), status=answer.status_code,
            answer=(answer.headers.multi_items(), answer.content),
        )  # fmt: skip
        is_secret = {"key", "token"} & set(answer.json() if method == "POST" else ())
        if not is_secret:
            self.answers += answer.content
        return answer

    def plant(self, name: str, secret: str) -> str:
        self.planted[name] = secret
        return secret

    def scan_stores(self) -> list[str]:
        """Scan the folder, and every table."""
        scanner = Scanner(self.planted)
        found = scanner.scan_folder(self.folder)
        if self.store.startswith("postgres"):
            found += scanner.scan_postgres(self.store)
        return [str(leak) for leak in found]

    def scan_output(self, text: str) -> list[str]:
        return [str(leak) for leak in Scanner(self.planted).scan_bytes(text.encode(), "output")]


@pytest.mark.parametrize(
    ("shared_url", "env"),
    [("sqlite", "production"), ("postgres", "production"), ("sqlite", "dev")],
    indirect=["shared_url"],
)
def test_no_secret_is_in_what_a_process_writes_and_stores(shared_url, tmp_path, env):
    site = Site(tmp_path, shared_url, env)
    with site.up():
        _use_keys(site)
        _log_in(site)
        _spend_a_link(site)
        if site.store.startswith("postgres"):
            _cut_off(site.store)
        _read_everything(site)

    output, kept = site.output, tmp_path / "data" / SECRETS_FILE
    if env == "dev":
        # The one secret that is kept in clear: its owner reads it, and nobody else.
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        site.plant("kept secret", json.loads(kept.read_text())["secret"])
        assert site.scan_stores() == [f"{kept}: kept secret (plain)"]
        # The one secret that is printed: a link, once, and it is spent.
        assert site.scan_output(output) == ["output: link (plain)"]
        output, links = CODE.subn("", output)
        assert links == 1
    else:
        assert not kept.exists()
        assert site.scan_stores() == []
    assert site.scan_output(output) == []
    assert site.scan_output(site.answers.decode()) == []
    assert len(site.planted) >= 9
    if site.store.startswith("postgres"):
        assert '"level": "' in output, "that it was cut off is told, so there was a log to scan"

    # Had one of them leaked, it would have been found.
    lines = [base64.b64encode(f"at {secret}".encode()) for secret in site.planted.values()]
    (tmp_path / "app.log").write_bytes(b"\n".join(lines))
    found = {f"{tmp_path}/app.log: {name} (base64)" for name in site.planted}
    assert found <= set(site.scan_stores())


def _use_keys(site: Site) -> None:
    made = site.ask("POST", "/keys", name="ci", roles=["service"]).json()
    key = site.plant("key", made["key"])
    assert site.ask("GET", "/auth/me", key).status_code == 200
    rotated = site.ask("POST", f"/keys/{made['id']}/rotate", overlap_seconds=0).json()
    new = site.plant("new key", rotated["key"])
    assert site.ask("GET", "/auth/me", new).status_code == 200
    assert site.ask("GET", "/keys", new).status_code == 403
    # Somebody pastes the whole key where its id belongs.
    assert site.ask("POST", f"/keys/{new}/revoke", note="it is over").status_code == 200
    for bad in (key[:-1], f"{new}x", secrets.new_secret(), WRONG):
        assert site.ask("GET", "/jobs", bad).status_code == 401


def _log_in(site: Site) -> None:
    user = {"name": "ada", "roles": ["operator"], "password": PASSWORD}
    assert site.ask("POST", "/users", **user).status_code == 201
    assert site.ask("POST", "/users", **user).status_code == 422
    answer = site.ask("POST", "/auth/login", None, name="ada", password=PASSWORD)
    token = site.plant("token", answer.json()["token"])
    for body in ({"password": WRONG}, {"password": WRONG * 99}, {"password": [WRONG]}):
        answer = site.ask("POST", "/auth/login", None, name="ada", **body)
        assert answer.status_code in (401, 422)
    assert site.ask("GET", "/auth/me", token).json()["name"] == "ada"
    assert (
        site.ask("POST", "/jobs", token, flow="greet", payload={"name": "ada"}).status_code == 201
    )
    assert site.ask("GET", "/jobs", token[:-2]).status_code == 401
    with _identity(site, login_life=timedelta(0)) as short:
        over = site.plant("expired token", short.login("ada", PASSWORD).token)
    assert site.ask("GET", "/jobs", over).status_code == 401
    assert site.ask("POST", "/users/ada/disable", note="she left").status_code == 200


def _spend_a_link(site: Site) -> None:
    printed = CODE.search(site.greeting)
    assert (printed is not None) == (site.env == "dev")
    if printed is None:
        with _identity(site) as identity:
            code = identity.make_link(Principal("root", tenant=None, roles=frozenset({ADMIN})))
    else:
        code = printed[1]
    link = f"/auth/link?code={site.plant('link', code)}"
    answer = site.client.get(link)
    assert answer.status_code == 200
    site.plant("session", answer.cookies["ulak_session"])
    assert site.client.get("/auth/me").status_code == 200
    site.client.cookies.clear()
    assert site.ask("GET", link, None).status_code == 401
    assert site.ask("GET", f"{link[:-1]}", None).status_code == 401


def _cut_off(url: str) -> None:
    """Take the connections of the store from the process, so that it has something to tell."""
    end = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    with psycopg.connect(url) as db:
        assert db.execute(end).rowcount > 0


def _read_everything(site: Site) -> None:
    until(lambda: site.ask("GET", "/health/ready", None).status_code == 200)
    # In every process within five seconds; most of them have gone by.
    for name, reason in (("key", "expired"), ("new key", "revoked"), ("token", "revoked")):
        until(lambda: _refusal(site, site.planted[name]) == reason)  # noqa: B023 - called at once
    until(lambda: site.client.get("/audit", headers={"X-Admin-Key": ADMIN_KEY}).status_code == 200)
    for path in ("/audit", "/keys", "/users", "/jobs", "/workers"):
        assert site.ask("GET", path).status_code == 200
    metrics = site.client.get("/metrics", headers={"X-Admin-Key": ADMIN_KEY})
    assert metrics.status_code == 200
    site.answers += metrics.content


def _refusal(site: Site, credential: str) -> str | None:
    return site.ask("GET", "/auth/me", credential).json().get("reason")


@contextmanager
def _identity(site: Site, **options: Any) -> Iterator[Identity]:
    """What another process of the installation has."""
    secret = SECRET
    if site.env == "dev":
        secret = json.loads((site.folder / "data" / SECRETS_FILE).read_text())["secret"]
    store = store_of(site.store)
    store.open()
    try:
        yield Identity(store, secret=secret, **options)
    finally:
        store.close()
