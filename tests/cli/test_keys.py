"""`ulak keys` and `ulak users`."""

import io
import sys

import pytest

from ulak.auth import secrets
from ulak.auth.identity import Identity
from ulak.errors import Unauthenticated
from ulak.store.sqlite import SqliteStore

PASSWORD = "correct horse battery staple"  # noqa: S105 - guards nothing


class Stdin(io.StringIO):
    """What a program writes to a command."""


@pytest.fixture
def typed(monkeypatch):
    """Write a password to the next command, as a pipe does."""
    return lambda text=PASSWORD: monkeypatch.setattr(sys, "stdin", Stdin(f"{text}\n"))


@pytest.fixture
def identity(shop):
    """What a process that serves the shop would know."""
    store = SqliteStore(shop.folder / "shop.db")
    store.open()
    yield Identity(store, secret="x" * 32)
    store.close()


def who(identity, key):
    try:
        return identity.authenticate(key).name
    except Unauthenticated as refused:
        return refused.reason


@pytest.mark.shows("S-32")
def test_a_key_is_printed_once_alone_on_stdout(shop, identity):
    made = shop.ulak("keys", "create", "ci", "--role", "service", "--actor", "ada")
    assert made.code == 0
    key = made.out.strip()
    assert made.out == f"{key}\n"
    assert who(identity, key) == "key:ci"
    id = secrets.id_of(key)
    assert f"key {id} of ci is good for ever" in made.err
    assert key not in made.err
    listed, document = shop.ulak("keys", "list"), shop.ulak("keys", "list", "--json")
    assert id in listed.out
    assert document.document["keys"][0]["prefix"] == f"ulak_{id}"
    audit = shop.ulak("audit", "--json")
    assert audit.document["audit"][0]["actor"] == "ada"
    for said in (listed, document, audit):
        assert key[14:] not in said.out
        assert secrets.hash_of(key) not in said.out


def test_a_key_has_the_rights_that_were_typed(shop, identity):
    made = shop.ulak(
        "keys", "create", "ci", "--role", "viewer", "--role", "service", "--scope", "jobs:read",
        "--tenant", "", "--expires", "90d", "--json",
    ).document  # fmt: skip
    assert (made["roles"], made["scopes"], made["tenant"]) == (
        ["viewer", "service"], ["jobs:read"], "",
    )  # fmt: skip
    assert made["expires_at"] > made["created_at"]
    principal = identity.authenticate(made["key"])
    assert (principal.tenant, principal.scopes) == ("", {"jobs:read"})


def test_a_key_is_rotated_and_revoked(shop, identity):
    old = shop.ulak("keys", "create", "ci", "--role", "service").out.strip()
    rotated = shop.ulak("keys", "rotate", secrets.id_of(old), "--overlap", "1h")
    new = rotated.out.strip()
    assert "the old one for 1:00:00 more" in rotated.err
    assert {who(identity, old), who(identity, new)} == {"key:ci"}
    assert shop.ulak("keys", "revoke", secrets.id_of(old), "--note", "done").out.endswith(
        "revoked\n"
    )
    assert who(identity, old) == "revoked"
    ended = shop.ulak("keys", "rotate", secrets.id_of(new), "--overlap", "0s", "--json").document
    assert (who(identity, new), who(identity, ended["key"])) == ("expired", "key:ci")
    revoked = shop.ulak("keys", "revoke", ended["id"], "--json").document
    assert revoked["state"] == "revoked"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("create", "CI", "--role", "service"), "lower-case letters"),
        (("create", "ci", "--role", "boss"), "there are viewer, service, operator, admin"),
        (("create", "ci"), "--role"),
        (("create", "ci", "--role", "service", "--expires", "90"), "--expires"),
        (("revoke", "zz99zz99"), "there is no key 'zz99zz99'; `ulak keys list` names them"),
        (("rotate", "zz99zz99"), "there is no key"),
    ],
)
def test_what_cannot_be_is_said_on_stderr(shop, arguments, said):
    answer = shop.ulak("keys", *arguments)
    assert answer.code != 0
    assert answer.out == ""
    assert said in " ".join(answer.err.split())


def test_a_pasted_key_is_not_repeated(shop):
    pasted = secrets.new_secret()
    answer = shop.ulak("keys", "revoke", pasted)
    assert answer.code == 1
    assert pasted[14:] not in answer.err


def test_a_user_is_made_with_a_password_from_stdin_and_never_an_argument(shop, identity, typed):
    typed()
    made = shop.ulak("users", "create", "ada", "--role", "operator", "--tenant", "acme")
    assert made.code == 0
    assert "operator; sees tenant 'acme'" in made.out
    assert identity.login("ada", PASSWORD).principal.tenant == "acme"
    assert "--password" not in shop.run("users", "create", "--help").out
    said = shop.ulak("users", "list")
    assert "ada" in said.out
    document = shop.ulak("users", "list", "--json").document["users"][0]
    assert (document["name"], document["roles"], document["state"]) == (
        "ada",
        ["operator"],
        "active",
    )
    assert "argon2" not in str(document)


def test_a_user_gets_another_password_and_is_disabled(shop, identity, typed):
    typed()
    shop.ulak("users", "create", "ada", "--role", "viewer")
    token = identity.login("ada", PASSWORD).token
    typed("another " + PASSWORD)
    assert "another password" in shop.ulak("users", "password", "ada").out
    assert who(identity, token) == "revoked"
    token = identity.login("ada", "another " + PASSWORD).token
    disabled = shop.ulak("users", "disable", "ada", "--actor", "root", "--json").document
    assert disabled["state"] == "revoked"
    assert who(identity, token) == "revoked"
    assert "disabled" in shop.ulak("users", "list").out
    lines = shop.ulak("audit", "--subject", "credential/user/ada", "--json").document["audit"]
    assert [line["act"] for line in lines] == ["disabled", "password", "created"]
    assert lines[0]["actor"] == "root"


@pytest.mark.parametrize("password", ["", "short"])
def test_a_password_that_is_too_short_makes_no_user(shop, typed, password):
    typed(password)
    answer = shop.ulak("users", "create", "ada", "--role", "viewer")
    assert answer.code == 1
    assert "write 8 to 1024" in answer.err
    assert "no users" in shop.ulak("users", "list").err
    assert "no keys" in shop.ulak("keys", "list").err


def test_at_a_terminal_the_password_is_asked_for_twice(shop, identity, monkeypatch):
    from ulak.cli import identity as commands

    asked = []

    def prompt(question, **how):
        asked.append(how)
        return PASSWORD

    terminal = Stdin()
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stdin", terminal)
    monkeypatch.setattr(commands.typer, "prompt", prompt)
    shop.ulak("users", "create", "ada", "--role", "viewer")
    assert asked == [{"hide_input": True, "confirmation_prompt": True, "err": True}]
    assert identity.login("ada", PASSWORD).principal.name == "ada"
