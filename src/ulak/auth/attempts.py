"""Checks of passwords: bounded, slower with each failure, and not for guessers alone."""

from __future__ import annotations

import asyncio
import ipaddress
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from contextvars import copy_context
from datetime import timedelta
from functools import partial
from typing import Final, NamedTuple, TypeVar

from ulak.clock import SECOND, Clock, Instant, micros
from ulak.errors import Overloaded

# Each takes 64 MiB and a core for a moment: more at once would starve everybody else.
PLACES: Final = 6
FOR_SUSPECTS: Final = PLACES // 3
"""So many places may be taken after a recent failure; two thirds are left for the others."""
MOST_WAITING: Final = 32
MOST_STRANGERS_WAITING: Final = MOST_WAITING // 3
"""No stranger waits when so many wait already: the rest is left for logins."""
PATIENCE_S: Final = 4.0
FIRST_DELAY_S: Final = 1
LONGEST_DELAY_S: Final = 300
FORGOTTEN: Final = micros(timedelta(minutes=10))
"""A failure is recent for so long."""
# A guess: what attackers of many addresses leave, in a few megabytes.
MOST_REMEMBERED: Final = 20_000

T = TypeVar("T")

_Key = tuple[str, ...]
"""A user and a network, or a network alone."""


class _Failures(NamedTuple):
    """How often a user or a network has failed of late."""

    number: int
    last_at: Instant

    @property
    def delayed_until(self) -> Instant:
        doubled = FIRST_DELAY_S << min(self.number - 1, 20)
        return self.last_at + min(doubled, LONGEST_DELAY_S) * SECOND


class Attempts:
    """Tries of passwords in one process.

    After a failure the same user at the same address is let try again after a second, then two,
    four, up to five minutes; so is the address with any user. Meanwhile nothing is checked.
    `PLACES` checks run at once. A third of the places at most is taken by strangers, and by users
    and addresses that have failed within ten minutes: guessers do not keep others out.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._failures: OrderedDict[_Key, _Failures] = OrderedDict()
        self._taken = {True: 0, False: 0}
        """Places, by whether their holder has failed of late."""
        self._waiting = 0
        # One more than can wait, so that one too many is refused at once.
        self._threads = ThreadPoolExecutor(PLACES + MOST_WAITING + 1, "ulak-logins")

    async def on_thread(self, log_in: Callable[[], T]) -> T:
        """Call a function that checks a password, on threads for nothing else: requests that wait
        for a place hold up no others."""
        call = partial(copy_context().run, log_in)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def check(self, user: str, address: str, is_right: Callable[[], bool]) -> bool:
        """Return whether a password is right, by `is_right`, which is called in one of the places.
        It may wait for some seconds: call it on a thread. Raises `Overloaded`: the password was not
        checked, since the user or the address must wait, or too many others do."""
        network = _find_network(address)
        pair = user, network
        keys: tuple[_Key, ...] = (pair, (network,))
        with self._hold_place(keys):
            found = is_right()
            with self._changed:
                if found:
                    self._failures.pop(pair, None)
                else:
                    self._note_failure(keys)
        return found

    def place(self) -> AbstractContextManager[None]:
        """Hold a place for a block that hashes the password of a stranger, such as a registration.
        It is one of those for suspects. It may wait for some seconds: call it on a thread. Raises
        `Overloaded`: too many others wait."""
        return self._hold_place(())

    @contextmanager
    def _hold_place(self, keys: tuple[_Key, ...]) -> Iterator[None]:
        with self._changed:
            is_suspect = self._take_place(keys)
        try:
            yield
        finally:
            with self._changed:
                self._taken[is_suspect] -= 1
                self._changed.notify_all()

    def _take_place(self, keys: tuple[_Key, ...]) -> bool:
        """Take a place when there is one; return whether it is one of those for suspects."""
        if self._waiting >= (MOST_WAITING if keys else MOST_STRANGERS_WAITING):
            raise _refusal("too many people log in at this moment", 1)
        self._waiting += 1
        is_suspect = False

        def may_begin() -> bool:
            nonlocal is_suspect
            # Anew at each look: another try of the same user may have failed meanwhile.
            is_suspect = not keys or self._is_suspect(keys)
            free = PLACES - sum(self._taken.values())
            return free > 0 and (not is_suspect or self._taken[True] < FOR_SUSPECTS)

        try:
            if not self._changed.wait_for(may_begin, PATIENCE_S):
                raise _refusal("too many people log in at this moment", 1)
        finally:
            self._waiting -= 1
        self._taken[is_suspect] += 1
        return is_suspect

    def _is_suspect(self, keys: tuple[_Key, ...]) -> bool:
        """Return whether one of these has failed of late. Raises `Overloaded`: it must wait."""
        now = self._clock.now()
        found = [self._failures[key] for key in keys if key in self._failures]
        recent = [each for each in found if now < each.last_at + FORGOTTEN]
        left = max((each.delayed_until - now for each in recent), default=0)
        if left > 0:
            raise _refusal("too many wrong passwords", -(-left // SECOND))
        return bool(recent)

    def _note_failure(self, keys: tuple[_Key, ...]) -> None:
        now = self._clock.now()
        for key in keys:
            before = self._failures.pop(key, None)
            is_recent = before is not None and now < before.last_at + FORGOTTEN
            self._failures[key] = _Failures(before.number + 1 if before and is_recent else 1, now)
        while len(self._failures) > MOST_REMEMBERED:
            self._failures.popitem(last=False)


def _refusal(why: str, seconds: int) -> Overloaded:
    return Overloaded(f"{why}; try again in {seconds} s", retry_after=timedelta(seconds=seconds))


def _find_network(address: str) -> str:
    """Return the network that one person has: an address, of IPv6 the network of 64 bits."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)
