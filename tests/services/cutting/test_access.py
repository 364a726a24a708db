"""Logins of the bare address: real passwords, signed tokens, and a secret or no start."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta

import pytest

from tests.services.cutting.desk import Desk
from tests.services.cutting.orders import make_order
from ulak.auth import ADMIN, OPERATOR, VIEWER
from ulak.auth.identity import Identity
from ulak.services.cutting.routes import BARE

SECRET = "s" * 40
A_PASSWORD = "correct horse battery staple"  # noqa: S105 - of people that a test makes


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """One for all tests: passwords take their time."""
    folder = tmp_path_factory.mktemp("access")
    made = Desk(f"sqlite:///{folder / 'cutting.db'}", folder)
    yield made
    made.engine.close()


@pytest.fixture(scope="module")
def identity(desk: Desk) -> Identity:
    """The bare address asks it; there is a user of each role, named so."""
    made = Identity(desk.engine.store, secret=SECRET)
    desk.apps[""] = BARE.make_app(desk.engine, identity=made)
    for role in (ADMIN, OPERATOR, VIEWER):
        made.create_user(role, A_PASSWORD, roles=[role], actor="a test")
    return made


def log_in(desk: Desk, name: str) -> str:
    sent = {"name": name, "password": A_PASSWORD}
    return str(desk.ask("POST", "/auth/login", sent, who="", prefix="")["token"])


@pytest.mark.shows("C-85", "C-86")
def test_a_password_gives_a_token_that_is_worth_a_role(desk: Desk, identity: Identity) -> None:
    token = log_in(desk, VIEWER)
    assert token.count(".") == 2
    assert desk.ask("GET", "/auth/me", who=token, prefix="")["roles"] == [VIEWER]
    assert desk.ask("GET", "/jobs", who=token, prefix="")["total"] == 0
    refused = desk.refuse("POST", "/jobs", make_order(), who=token, prefix="")
    assert refused == (403, "E_FORBIDDEN")
    token = log_in(desk, OPERATOR)
    desk.ask("POST", "/jobs", make_order(), status=201, who=token, prefix="")
    assert desk.refuse("GET", "/config/rules", who=token, prefix="") == (403, "E_FORBIDDEN")
    desk.ask("GET", "/config/rules", who=log_in(desk, ADMIN), prefix="")


@pytest.mark.shows("C-85", "C-86")
def test_whatever_is_no_good_token_is_401(desk: Desk, identity: Identity, monkeypatch) -> None:
    sent = {"name": ADMIN, "password": f"{A_PASSWORD}."}
    token = log_in(desk, ADMIN)
    assert desk.send("POST", "/auth/login", sent, who="", prefix="").status_code == 401
    forged = Identity(desk.engine.store, secret="t" * 40).login(ADMIN, A_PASSWORD).token
    past = Identity(desk.engine.store, secret=SECRET, login_life=timedelta(seconds=0))
    expired = past.login(ADMIN, A_PASSWORD).token
    unsigned = token.rpartition(".")[0] + "."
    # No variable of the environment lets anybody in.
    monkeypatch.setenv("ULAK_ENV", "dev")
    monkeypatch.setenv("NODE_ENV", "development")
    for bad in ("", "any text", forged, expired, unsigned, f"{token}x"):
        assert desk.refuse("GET", "/jobs", who=bad, prefix="") == (401, "E_UNAUTHORIZED"), bad
    for header in ("Bearer", f"Basic {token}", token):
        told = desk.send("GET", "/jobs", who="", prefix="", headers={"Authorization": header})
        assert (told.status_code, told.json()["error"]["code"]) == (401, "E_UNAUTHORIZED")


@pytest.mark.shows("C-85")
@pytest.mark.parametrize(
    ("variables", "said"),
    [({"ULAK_SECRET": "s" * 31}, "32"), ({"ULAK_ENV": "production"}, "ULAK_SECRET is not set")],
)
def test_without_a_good_secret_nothing_is_started(tmp_path, monkeypatch, capsys, variables, said):
    from ulak.cli import main

    monkeypatch.chdir(tmp_path)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        main(["cutting", "serve", "--port", "0"])
    assert ended.value.code == 1
    assert said in capsys.readouterr().err


@pytest.mark.shows("C-85")
def test_a_token_is_good_for_a_day_and_a_disabled_user_gets_none(
    desk: Desk, identity: Identity
) -> None:
    lasts = identity.login(VIEWER, A_PASSWORD).lasts
    assert timedelta(hours=23, minutes=59) < lasts <= timedelta(hours=24)
    identity.disable_user(VIEWER, actor="a test")
    sent = {"name": VIEWER, "password": A_PASSWORD}
    told = desk.send("POST", "/auth/login", sent, who="", prefix="")
    if told.status_code == 429:  # another test was wrong a moment ago, from the same address
        time.sleep(float(told.headers["Retry-After"]))
        told = desk.send("POST", "/auth/login", sent, who="", prefix="")
    assert told.status_code == 401
