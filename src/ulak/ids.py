"""Identities: UUIDv7 in sixteen bytes inside, text at the edge.

A UUIDv7 begins with its time, so new rows land at the end of every index. Where knowing an id
is itself the permission to read (a capability), a UUIDv4 is used: it tells nothing.
"""

from __future__ import annotations

import itertools
import os
import random
import uuid
from collections.abc import Callable

from ulak.clock import Instant
from ulak.errors import BadInput

RandomBytes = Callable[[int], bytes]

# Ids that order and tell apart, but guard nothing, are drawn from a generator of our own: asking
# the system for each gives up the interpreter lock, which cost a third of a drain. It is seeded by
# the system, untouched by a program's random.seed(), and seeded again in a forked child.
_dice = random.Random()  # noqa: S311 - these ids are not secrets; unguessable_id asks the system
os.register_at_fork(after_in_child=_dice.seed)

_VERSION_7 = 0x7 << 76
_VERSION_4 = 0x4 << 76
_VARIANT = 0x2 << 62
_LOW_62 = (1 << 62) - 1
_BOTH_MARKS_OUT = ~((0xF << 76) | (0x3 << 62))


def time_ordered_id(now: Instant, random_bytes: RandomBytes | None = None) -> bytes:
    """Make a UUIDv7 for this instant; the sub-millisecond part keeps ids of one moment in order."""
    millis, rest = divmod(now, 1000)
    if random_bytes is None:
        low = _dice.getrandbits(62)
    else:
        low = int.from_bytes(random_bytes(8), "big") & _LOW_62
    # 1000 microseconds spread over the 12 bits that RFC 9562 leaves for a finer clock.
    return ((millis << 80) | _VERSION_7 | ((rest * 4096 // 1000) << 64) | _VARIANT | low).to_bytes(
        16, "big"
    )


def first_id(moment: Instant) -> bytes:
    """Return the least id that `time_ordered_id` makes for this instant, or later."""
    return time_ordered_id(max(moment, 0), bytes)


def find_range(prefix: str) -> tuple[bytes, bytes]:
    """Return the least and the greatest id that begin with a text, with or without hyphens. Raises
    `BadInput`: no id begins with it."""
    digits = prefix.replace("-", "").lower()
    if not 1 <= len(digits) <= 32 or not set(digits) <= set("0123456789abcdef"):
        raise BadInput(
            f"no job id begins with {prefix!r}; give its first characters, as in 0192e4a0-5b6c"
        )
    return bytes.fromhex(digits.ljust(32, "0")), bytes.fromhex(digits.ljust(32, "f"))


def is_time_ordered(identity: bytes) -> bool:
    """Tell whether an id begins with the time at which it was made."""
    return identity[6] >> 4 == 7


class CommitIds:
    """Makes identities of writes: a random start that nobody else has, then a count. May be asked
    from several threads at once: the count moves in one step of the interpreter, which a generator
    would not."""

    def __init__(self) -> None:
        self._start = os.urandom(10)
        self._count = itertools.count()

    def __call__(self) -> bytes:
        return self._start + next(self._count).to_bytes(6, "big")


def unguessable_id(random_bytes: RandomBytes = os.urandom) -> bytes:
    """Make a UUIDv4, for ids that are capabilities."""
    bits = int.from_bytes(random_bytes(16), "big") & _BOTH_MARKS_OUT
    return (bits | _VERSION_4 | _VARIANT).to_bytes(16, "big")


def to_text(identity: bytes) -> str:
    text = identity.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def from_text(text: str) -> bytes:
    """Read an id as people write it. Raises `BadInput`: it is not a UUID."""
    try:
        return uuid.UUID(text).bytes
    except (ValueError, AttributeError, TypeError):
        raise BadInput(
            f"{text!r} is not a job id; an id looks like 0192e4a0-5b6c-7d10-8a4e-0f2b6c9d1e33"
        ) from None
