"""`ulak link`: another link to log in, for a person who has a terminal here."""

import re

import pytest

from ulak.auth.identity import Identity
from ulak.errors import Unauthenticated
from ulak.kit.commands.target import user_name
from ulak.store.sqlite import SqliteStore

LINK = re.compile(r"(.+)/auth/link\?code=(\S+)\n")


@pytest.fixture
def identity(shop):
    """What a process that serves the shop would know."""
    store = SqliteStore(shop.folder / "shop.db")
    store.open()
    yield Identity(store, secret="x" * 32)
    store.close()


def test_a_link_stands_alone_on_stdout_and_logs_you_in_as_an_admin_once(shop, identity):
    made = shop.ulak("link")
    assert made.code == 0
    address, code = LINK.fullmatch(made.out).groups()
    assert address == "http://127.0.0.1:8000"
    you = user_name()
    assert made.err == f"note: it logs {you} in as admin, once, within 10 minutes\n"
    principal = identity.spend_link(code).principal
    assert (principal.name, principal.roles, principal.tenant) == (you, {"admin"}, None)
    with pytest.raises(Unauthenticated, match="used already; `ulak link` prints another"):
        identity.spend_link(code)


def test_a_link_is_for_the_person_and_the_roles_that_were_typed_and_the_audit_says_by_whom(
    shop, identity
):
    made = shop.ulak(
        "link", "--name", "ada", "--role", "viewer", "--role", "operator",
        "--address", "https://jobs.example.org/ulak/", "--actor", "root", "--note", "she is new",
        "--json",
    ).document  # fmt: skip
    address, code = LINK.fullmatch(made.pop("link") + "\n").groups()
    assert address == "https://jobs.example.org/ulak"
    assert made == {"name": "ada", "roles": ["viewer", "operator"]}
    (line,) = shop.ulak("audit", "--json").document["audit"]
    assert (line["actor"], line["act"], line["note"]) == ("root", "created", "she is new")
    assert line["subject"].startswith("credential/link/")
    assert code not in str(line)
    principal = identity.spend_link(code).principal
    assert (principal.name, principal.roles) == ("ada", {"viewer", "operator"})


def test_the_address_is_the_one_of_the_settings(shop, monkeypatch):
    monkeypatch.setenv("ULAK_HOST", "::1")
    monkeypatch.setenv("ULAK_PORT", "9000")
    assert shop.ulak("link").out.startswith("http://[::1]:9000/auth/link?code=")
    monkeypatch.setenv("ULAK_PORT", "0")
    answer = shop.ulak("link")
    assert (answer.code, answer.out) == (1, "")
    assert "--address http://127.0.0.1:PORT" in answer.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--role", "boss"), "there is no role 'boss'; there are viewer, service, operator, admin"),
        (("--name", "Ada Lovelace"), "lower-case letters"),
        (("--address", "jobs.example.org"), "write it as http://127.0.0.1:8000"),
        (("--address", "ftp://jobs.example.org"), "write it as http://127.0.0.1:8000"),
        (("--address", "http://jobs.example.org?x=1"), "write it as http://127.0.0.1:8000"),
        (("--address", "http://root:x@jobs.example.org"), "write it as http://127.0.0.1:8000"),
        (("--address", "http://[::1"), "write it as http://127.0.0.1:8000"),
        (("--address", "http://jobs.example.org:99999"), "write it as http://127.0.0.1:8000"),
    ],
)
def test_what_cannot_be_is_said_on_stderr_and_no_link_is_made(shop, arguments, said):
    answer = shop.ulak("link", *arguments)
    assert answer.code != 0
    assert answer.out == ""
    assert said in " ".join(answer.err.replace("│", " ").split())
    assert shop.ulak("audit", "--json").document["audit"] == []


def test_a_store_of_one_process_is_refused(run, tmp_path):
    (tmp_path / "alone.py").write_text('import ulak\nengine = ulak.connect("memory://")\n')
    answer = run("link", "-a", "alone:engine")
    assert (answer.code, answer.out) == (1, "")
    assert "`ulak up` prints one when it starts" in answer.err
