"""The functions in Lua, as one script: each verb is one call of it."""

from __future__ import annotations

from functools import cache
from hashlib import sha1
from importlib.resources import files

from ulak.core.job import FIRST_MUTABLE, JobRow
from ulak.store.batches import SUSPECT_LAPSES
from ulak.store.flow_control import MOST_UNPARKED, TURN

MOST_CHANGED = 100
"""So many jobs are changed in one call: nobody else is served meanwhile."""
MOST_LEASED = 10_000
MOST_LOOKED_AT = 500

# In the order in which they use each other.
FILES = (
    "base", "slots", "buckets", "intake", "outbox", "commits", "claims", "upkeep", "control",
    "main",
)  # fmt: skip


@cache
def make_script(channel: str) -> tuple[str, str]:
    """Return the script of a store that rings on this channel, and its digest."""
    numbers = {
        "FIRST_MUTABLE": FIRST_MUTABLE, "MOST_CHANGED": MOST_CHANGED, "MOST_LEASED": MOST_LEASED,
        "MOST_LOOKED_AT": MOST_LOOKED_AT, "MOST_UNPARKED": MOST_UNPARKED,
        "SUSPECT_LAPSES": SUSPECT_LAPSES, "TURN": TURN,
    }  # fmt: skip
    places = ", ".join(f"{name} = {n}" for n, name in enumerate(JobRow._fields, 1))
    names = ", ".join(f"'{name}'" for name in JobRow._fields)
    head = [f"local C, COLUMNS = {{{places}}}, {{{names}}}", f"local CHANNEL = '{channel}'"]
    head += [f"local {name} = {number}" for name, number in numbers.items()]
    here = files(__package__)
    script = "\n".join([*head, *((here / f"{name}.lua").read_text() for name in FILES)])
    return script, sha1(script.encode(), usedforsecurity=False).hexdigest()
