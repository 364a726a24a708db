"""Secrets that programs carry: API keys and the codes of links.

A secret is `ulak_<id>_<secret>`: eight characters by which it is found, 43 characters drawn from
62, which is 256 bits, and six characters of checksum. Whatever else has 32 characters or more
can be a key too; its id is derived from its hash. Stored is the SHA-256 of the whole: what is
random cannot be guessed, so a slow hash would protect nothing and cost every request.
"""

from __future__ import annotations

import re
import zlib
from hashlib import sha256
from hmac import compare_digest
from secrets import choice
from typing import Final

from ulak.errors import Unauthenticated

PREFIX: Final = "ulak_"
SHORTEST: Final = 32
"""How many characters a key of another form has at least."""
LONGEST: Final = 1024

# Without those that are taken for each other when an id is read aloud.
_ID_LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"
_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
ID_LENGTH: Final = 8
_BODY_LENGTH, _CHECKSUM_LENGTH = 43, 6

_ID = re.compile(rf"[a-z0-9]{{{ID_LENGTH}}}")
_FORM = re.compile(
    rf"(ulak_([a-z0-9]{{{ID_LENGTH}}})_[0-9A-Za-z]{{{_BODY_LENGTH}}})"
    rf"([0-9A-Za-z]{{{_CHECKSUM_LENGTH}}})"
)
_PLAIN = re.compile(rf"[!-~]{{{SHORTEST},{LONGEST}}}")

# Compared with where there is no such id, so that an answer takes as long as for one there is.
_NOBODYS = "0" * 64


def new_secret() -> str:
    drawn = "".join(choice(_LETTERS) for _ in range(_BODY_LENGTH))
    body = f"{PREFIX}{''.join(choice(_ID_LETTERS) for _ in range(ID_LENGTH))}_{drawn}"
    return body + _checksum(body)


def id_of(secret: str) -> str:
    """Return the public part of a secret, without asking whether anybody has it. Raises
    `Unauthenticated`: it cannot be a secret: too short, or mistyped. It is not repeated."""
    if not secret.startswith(PREFIX):
        if not _PLAIN.fullmatch(secret):
            raise Unauthenticated(
                f"a key is ulak_ID_SECRET, or {SHORTEST} to {LONGEST} plain characters",
                reason="malformed",
            )
        # Of the hash of the hash: an id is shown, and tells nothing of what is stored.
        digest = sha256(hash_of(secret).encode()).digest()
        return "".join(_ID_LETTERS[byte % len(_ID_LETTERS)] for byte in digest[:ID_LENGTH])
    form = _FORM.fullmatch(secret)
    if form is None or not compare_digest(form[3], _checksum(form[1])):
        raise Unauthenticated(
            "this is no whole key: a character is missing or mistyped", reason="malformed"
        )
    return form[2]


def hash_of(secret: str) -> str:
    """Return what is stored of a secret."""
    return sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def is_hash_of(secret: str, stored: str | None) -> bool:
    """Tell whether this is the hash of a secret, in a time that tells nothing else. With None, for
    an id that nobody has, it takes as long and is never so."""
    is_same = compare_digest(hash_of(secret), _NOBODYS if stored is None else stored)
    return is_same and stored is not None


def is_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def _checksum(body: str) -> str:
    """Return six letters for a text; they find slips of the pen and protect nothing."""
    number, letters = zlib.crc32(body.encode()), ""
    for _ in range(_CHECKSUM_LENGTH):
        number, digit = divmod(number, len(_LETTERS))
        letters = _LETTERS[digit] + letters
    return letters
