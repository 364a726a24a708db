"""Secrets have one form, carry 256 bits, and a slip of the pen is seen without a store."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ulak.auth import secrets
from ulak.errors import Unauthenticated

LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def test_a_secret_has_an_id_and_256_bits_and_a_checksum():
    made = {secrets.new_secret() for _ in range(200)}
    assert len(made) == 200
    for secret in made:
        form = re.fullmatch(r"ulak_([a-z0-9]{8})_([0-9A-Za-z]{49})", secret)
        assert form is not None
        assert secrets.id_of(secret) == form[1]
    assert len(LETTERS) ** 43 > 2**256
    assert set("".join(secret[14:-6] for secret in made)) == set(LETTERS)


@given(st.integers(5, 62), st.sampled_from(LETTERS))
def test_one_wrong_character_is_seen_without_asking_anybody(place, letter):
    body = f"ulak_ab23cd45_{LETTERS[:43]}"
    secret = body + secrets._checksum(body)
    assert secrets.id_of(secret) == "ab23cd45"
    wrong = secret[:place] + letter + secret[place + 1 :]
    if wrong != secret:
        with pytest.raises(Unauthenticated) as refused:
            secrets.id_of(wrong)
        assert refused.value.reason == "malformed"
        assert wrong not in str(refused.value)


@pytest.mark.parametrize(
    "text", ["", "ulak_", "ulak_ab12cd34_", "short", "x" * 31, "x" * 1025, "ş" * 40, "a b" * 20,
             "\x00" * 40, "\ud800" * 40]
)  # fmt: skip
def test_what_cannot_be_a_secret_is_malformed(text):
    with pytest.raises(Unauthenticated) as refused:
        secrets.id_of(text)
    assert refused.value.reason == "malformed"


def test_any_other_text_of_32_characters_can_be_a_key_and_has_an_id():
    text = "s3cret of nobody in particular!!".replace(" ", "-")
    assert len(text) == 32
    assert secrets.is_id(secrets.id_of(text))
    assert secrets.id_of(text) == secrets.id_of(text) != secrets.id_of(text + "x")
    assert secrets.id_of(text) not in secrets.hash_of(text)


def test_the_hash_is_compared_in_constant_time_and_for_nobody_too(monkeypatch):
    secret = secrets.new_secret()
    stored = secrets.hash_of(secret)
    compared = []
    genuine = secrets.compare_digest
    monkeypatch.setattr(
        secrets, "compare_digest", lambda a, b: compared.append((a, b)) or genuine(a, b)
    )
    assert secrets.is_hash_of(secret, stored)
    assert not secrets.is_hash_of(secret, "0" * 64)
    assert not secrets.is_hash_of(secret, None)
    assert [(a, len(b)) for a, b in compared] == [(stored, 64)] * 3
    assert len(stored) == 64
    assert secret not in stored
