"""How large the things may be that a job carries beside its payload: the one place that measures.

A payload is measured by its flow (`Flow(max_payload=)`), and a text of the trail is cut.
"""

from __future__ import annotations

from typing import Final

from ulak.errors import BadInput

# Larger ones belong into files: a row that big would slow every claim of its job, and a relay
# takes many messages at once.
LARGEST_DATA: Final = 256 * 1024
LONGEST_KEY: Final = 500
LONGEST_NOTE: Final = 4000
# Of one stage's messages and spawned jobs: a commit that writes for long holds up all others.
MOST_ADDED: Final = 10_000
LARGEST_ADDED: Final = 16 * 1024 * 1024


def find_excess(data: bytes, what: str) -> str | None:
    """Return the sentence for data that is too large to be stored; None if it fits."""
    if len(data) <= LARGEST_DATA:
        return None
    return (
        f"{what} has {len(data):,} bytes, and {LARGEST_DATA:,} may be stored; keep it in a file, "
        "as an artifact for one, and give its key instead"
    )


def must_fit(data: bytes, what: str) -> bytes:
    """Return data that is small enough to be stored, else raise `BadInput`."""
    excess = find_excess(data, what)
    if excess is not None:
        raise BadInput(excess)
    return data


def must_be_few(count: int, size: int) -> None:
    """Raise `BadInput` for more messages and jobs than the move of one stage may bring."""
    if count > MOST_ADDED or size > LARGEST_ADDED:
        raise BadInput(
            f"{count:,} messages and spawned jobs of {size:,} bytes with one move; {MOST_ADDED:,} "
            f"of {LARGEST_ADDED:,} bytes are allowed: divide them among several stages or jobs"
        )


def must_be_short(note: str) -> str:
    """Return a note that is short enough to be stored, else raise `BadInput`."""
    if len(note) > LONGEST_NOTE:
        raise BadInput(f"this note has {len(note):,} characters; {LONGEST_NOTE:,} are allowed")
    return note


def storable_key(key: object, where: str) -> str:
    """Return a key that every store can keep, else raise `BadInput`; `where` names it."""
    if not isinstance(key, str) or not key:
        raise BadInput(f"{where} is {key!r}; it must be a text that is not empty")
    if len(key) > LONGEST_KEY:
        raise BadInput(f"{where} has {len(key)} characters; {LONGEST_KEY} are allowed")
    if "\x00" in key or not is_utf8(key):
        raise BadInput(f"{where} is {key!r}, which holds a character that no store can keep")
    return key


def short_key(key: str) -> str:
    """Return a short dedup key as it is, a longer one as its digest."""
    if len(key) <= 200:
        return key
    import hashlib

    return "sha256:" + hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def is_utf8(text: str) -> bool:
    """Tell whether a text has no unpaired surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
