"""Passwords are hashed slowly, and an unknown person takes as long as a known one."""

import sys

import pytest

from ulak.auth import hash_password, is_password, passwords
from ulak.errors import BadInput, NotSupported


def test_a_password_is_stored_as_argon2id_with_a_salt():
    one, two = passwords.hash_password("correct horse"), passwords.hash_password("correct horse")
    assert one.startswith("$argon2id$")
    assert one != two
    assert passwords.is_password("correct horse", one)
    assert not passwords.is_password("correct house", one)
    assert not passwords.is_password("correct horse", "nonsense")


def test_letters_that_were_put_together_differently_are_the_same_password():
    assert passwords.is_password(
        "c\u0327ag\u0306ri parola", passwords.hash_password("çağri parola")
    )


def test_nobodys_hash_costs_what_everybodys_costs(monkeypatch):
    monkeypatch.undo()
    terms = passwords.hash_password("correct horse").split("$")[1:4]
    assert passwords.NOBODYS.split("$")[1:4] == terms == ["argon2id", "v=19", "m=65536,t=3,p=4"]
    assert not passwords.is_password("nobody has this password", None)
    assert passwords.is_password("nobody has this password", passwords.NOBODYS)


@pytest.mark.parametrize(
    "password", ["", "seven77", "x" * 1025, "tab\tin the middle", "\ud800" * 9]
)
def test_a_password_that_cannot_be_one_is_refused_and_not_repeated(password):
    with pytest.raises(BadInput) as refused:
        passwords.hash_password(password)
    assert not password or password not in str(refused.value)


def test_a_service_says_how_long_its_passwords_are():
    stored = hash_password("sixsix", shortest=6, longest=10)
    assert is_password("sixsix", stored)
    for password in ("short", "eleven char"):
        with pytest.raises(BadInput, match="write 6 to 10"):
            hash_password(password, shortest=6, longest=10)


def test_strange_passwords_are_wrong_and_nothing_worse():
    stored = passwords.hash_password("correct horse")
    for password in ("", "\x00", "\ud800", "x" * 5000):
        assert not passwords.is_password(password, stored)


def test_without_argon2_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "argon2", None)
    for act in (
        lambda: passwords.hash_password("correct horse"),
        lambda: passwords.is_password("x", None),
    ):
        with pytest.raises(NotSupported, match=r"ulak\[web\]"):
            act()
