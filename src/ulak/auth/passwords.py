"""Passwords of people, hashed slowly with argon2id."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Final

from ulak.errors import BadInput, NotSupported

if TYPE_CHECKING:
    from argon2 import PasswordHasher

SHORTEST: Final = 8
LONGEST: Final = 1024

# Of a password that nobody has, with the terms of every other: to verify it takes as long.
NOBODYS: Final = (
    "$argon2id$v=19$m=65536,t=3,p=4$QQJvgt7HwN3p7Diuvn3YEA"
    "$LJavh8UyINAonwazl/5ZC6lFO6/JA56JJNic0wEMG1A"
)


def hash_password(password: str, *, shortest: int = SHORTEST, longest: int = LONGEST) -> str:
    """Return what is stored of a password: an argon2id hash with a salt of its own. It takes 64 MiB
    and a core for a moment, so call it on a thread. Raises `BadInput`: the password is too short or
    too long, or nobody could type it; `NotSupported`: argon2-cffi is not installed."""
    normal = _normal(password)
    if not shortest <= len(password) <= longest:
        raise BadInput(
            f"the password has {len(password)} characters; write {shortest} to {longest}"
        )
    if not password.isprintable():
        raise BadInput("the password holds a character that cannot be typed; choose another")
    return _hasher().hash(normal)


def is_password(password: str, stored: str | None) -> bool:
    """Tell whether a hash that is stored is that of this password. With None, for a person whom
    nobody knows, it takes as long and is never so. It takes 64 MiB and a core for a moment: call it
    on a thread, and bound how many do so at once. Raises `NotSupported`: argon2-cffi is not
    installed."""
    hasher = _hasher()
    from argon2.exceptions import InvalidHashError, VerificationError

    try:
        hasher.verify(NOBODYS if stored is None else stored, _normal(password))
    except (VerificationError, InvalidHashError):
        return False
    return stored is not None


def _normal(password: str) -> bytes:
    """Write a password the same way, whichever keyboard has put its letters together."""
    return unicodedata.normalize("NFKC", password).encode("utf-8", "surrogatepass")


def _hasher() -> PasswordHasher:
    try:
        from argon2 import PasswordHasher
        from argon2.profiles import RFC_9106_LOW_MEMORY
    except ImportError as error:
        raise NotSupported(
            f"passwords need argon2-cffi, which is not installed ({error}); pip install 'ulak[web]'"
        ) from None
    return PasswordHasher.from_parameters(RFC_9106_LOW_MEMORY)
