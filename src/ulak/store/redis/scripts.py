"""The functions in Lua, as one library of the server: each verb is one call."""

from __future__ import annotations

from functools import cache
from hashlib import sha1
from importlib.resources import files

from ulak.store.batches import SUSPECT_LAPSES
from ulak.store.flow_control import MOST_UNPARKED, TURN
from ulak.store.redis.values import COLUMNS

MOST_CHANGED = 100
"""So many jobs are changed in one call: nobody else is served meanwhile."""
MOST_LEASED = 10_000
MOST_LOOKED_AT = 500
# Of one command. What Lua can pass on is a stack of 8,000.
MOST_WORDS = 2_000

# In the order in which they use each other.
FILES = (
    "base", "slots", "buckets", "intake", "outbox", "commits", "claims", "upkeep", "control",
    "main",
)  # fmt: skip


@cache
def make_library() -> tuple[str, str]:
    """Return the name of the function, and the library that has it. Each release has its own, so
    that the one before goes on beside it."""
    numbers = {
        "MOST_CHANGED": MOST_CHANGED, "MOST_LEASED": MOST_LEASED,
        "MOST_LOOKED_AT": MOST_LOOKED_AT, "MOST_WORDS": MOST_WORDS, "MOST_UNPARKED": MOST_UNPARKED,
        "SUSPECT_LAPSES": SUSPECT_LAPSES, "TURN": TURN,
    }  # fmt: skip
    places = ", ".join(f"{name} = {n}" for n, name in enumerate(COLUMNS, 1))
    names = ", ".join(f"'{name}'" for name in COLUMNS)
    head = [f"local C, COLUMNS = {{{places}}}, {{{names}}}"]
    head += [f"local {name} = {number}" for name, number in numbers.items()]
    here = files(__package__)
    body = "\n".join([*head, *((here / f"{name}.lua").read_text() for name in FILES)])
    name = f"ulak_{sha1(body.encode(), usedforsecurity=False).hexdigest()[:16]}"
    return name, f"#!lua name={name}\nlocal FUNCTION = '{name}'\n{body}"
