"""What a job needs to run a stage: its lane, its slot, its bucket and its tokens.

Keys and costs are made once, from the payload, when the job is submitted, and stored with it: a
store never calls a function of the user, and a job needs tomorrow what it needed today.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from ulak.core.flow import Flow, Stage
from ulak.core.job import lane_for
from ulak.core.table import Place
from ulak.errors import BadInput

LONGEST_KEY = 500

SLOT, RATE, COST = "slot", "rate", "cost"
"""What is stored under the name of a stage."""

NO_KEY = ""
"""The key of jobs that were submitted before their flow asked for one; they share it."""


class Needs(NamedTuple):
    """What a claim must have for one run of a stage."""

    lane: str
    slot: str | None
    rate: str | None
    cost: int


def keys_of(flow: Flow[Any], payload: Any) -> str | None:
    """Make the keys and costs of a payload, as `jobs.keys` holds them; None when there are none.

    Raises:
        BadInput: a key is no text that can be stored, or a cost is more than its bucket holds.
    """
    found: dict[str, dict[str, str | int]] = {}
    for stage in flow.declared.stages:
        own: dict[str, str | int] = {}
        if stage.limit is not None and stage.limit.key is not None:
            own[SLOT] = _key(flow, stage, "limit", stage.limit.key, payload)
        if stage.rate is not None and stage.rate.key is not None:
            own[RATE] = _key(flow, stage, "rate", stage.rate.key, payload)
        if stage.rate is not None and not isinstance(stage.rate.cost, int):
            own[COST] = _cost(flow, stage, stage.rate.cost(payload))
        if own:
            found[stage.state] = own
    return json.dumps(found, ensure_ascii=False, separators=(",", ":")) if found else None


def needs_of(place: Place, tenant: str, keys: str | None) -> Needs:
    """Return what a job with these keys needs in a place."""
    lane = lane_for(place.lane, tenant)
    if place.stage is None or not (place.slot or place.rate):
        return Needs(lane, None, None, 0)
    own = {} if keys is None else json.loads(keys).get(place.stage.state, {})
    slot, rate = place.slot, place.rate
    if place.keys_slot:
        slot = f"{slot}/{own.get(SLOT, NO_KEY)}"
    if place.keys_rate:
        rate = f"{rate}/{own.get(RATE, NO_KEY)}"
    cost = place.cost
    if rate is not None and not cost:
        cost = own.get(COST, 1)
    return Needs(lane, slot, rate, cost)


def _key(
    flow: Flow[Any], stage: Stage[Any, Any], what: str, key: Callable[[Any], str], payload: Any
) -> str:
    where = f'{flow.name}: the key of the {what} of "{stage.state}" for this payload'
    return storable_key(key(payload), where)


def storable_key(key: object, where: str) -> str:
    """Return a key that every store can keep.

    Raises:
        BadInput: it is none; `where` says whose it is.
    """
    if not isinstance(key, str) or not key:
        raise BadInput(f"{where} is {key!r}; it must be a text that is not empty")
    if len(key) > LONGEST_KEY:
        raise BadInput(f"{where} has {len(key)} characters; {LONGEST_KEY} are allowed")
    if "\x00" in key or not _is_utf8(key):
        raise BadInput(f"{where} is {key!r}, which holds a character that no store can keep")
    return key


def short_key(key: str) -> str:
    """Keep a dedup key as it is when it is short, else by its digest: keys are compared, not
    read."""
    if len(key) <= 200:
        return key
    import hashlib

    return "sha256:" + hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def _cost(flow: Flow[Any], stage: Stage[Any, Any], cost: object) -> int:
    where = f'{flow.name}: a run of "{stage.state}" costs {cost!r} for this payload'
    if not isinstance(cost, int) or isinstance(cost, bool) or cost < 1:
        raise BadInput(f"{where}; it must be a whole number of tokens, 1 or more")
    burst = 0 if stage.rate is None else stage.rate.terms().burst
    if cost > burst:
        raise BadInput(f"{where}, and its bucket never holds more than {burst}; raise burst=")
    return cost


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
