"""A Redis: how it is reached, what its errors mean, the functions in Lua that it runs, and what it
keeps when it is killed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha1
from typing import Any, Final, NamedTuple, cast
from urllib.parse import urlsplit

import redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from ulak.errors import BadInput, StoreError, WriteRefused
from ulak.store import without_password
from ulak.store.processes import StoreAway, get_deadline

SCHEMES: Final = ("redis", "rediss")
# Guesses: far above what a function takes, below what a caller of HTTP waits. A server that hangs
# costs a request twice that at most: it waits for a connection, and then for the answer.
TIMEOUT_S: Final = 5.0
MOST_CONNECTIONS: Final = 20
NO_EVICTION: Final = "noeviction"
_OF_TLS: Final = "ssl_"


@dataclass(frozen=True, slots=True)
class Script:
    """A function in Lua, which Redis runs as one atomic step. It checks everything first and writes
    after: what it wrote before an error would stay."""

    source: str

    @property
    def digest(self) -> str:
        """What Redis knows it by, once it was sent."""
        return sha1(self.source.encode(), usedforsecurity=False).hexdigest()


class UnknownFunction(StoreError):
    """The server has never had the library of this release, or has lost it."""


class Persistence(NamedTuple):
    """What a Redis says that it keeps."""

    appends: bool
    """Whether every write goes to a file (`appendonly`)."""
    flushes: str
    """When that file is flushed: `always`, `everysec`, `no`; '' when it does not say."""
    policy: str
    """What it removes when its memory is full (`maxmemory-policy`)."""

    @property
    def complaints(self) -> list[str]:
        """Why it may forget what it has confirmed, each with what to set; none when it does not."""
        found = []
        if not self.appends:
            found.append("appendonly is no, so a restart forgets: set appendonly yes")
        if self.policy != NO_EVICTION:
            found.append(
                f"maxmemory-policy is {self.policy or 'not known'}, so a full memory forgets: set "
                f"maxmemory-policy {NO_EVICTION}"
            )
        return found

    @property
    def durability(self) -> str:
        """In a sentence, what a power cut may cost."""
        if not self.appends:
            return "everything: Redis appends to no file"
        return {
            "always": "nothing that was answered",
            "everysec": "what was answered in the last second, at worst two (appendfsync everysec)",
            "no": "what the kernel has not flushed, some thirty seconds (appendfsync no)",
        }.get(self.flushes, "not known: Redis does not say how often it flushes")


class RedisServer:
    """One Redis, for any number of threads. Nothing is opened before the first question.

    A connection that was lost is opened anew by the next question. None is repeated: a script may
    have run although its answer was lost. Raises `BadInput`: the address is none.
    """

    def __init__(self, url: str, *, timeout_s: float = TIMEOUT_S) -> None:
        self.address = without_password(url)
        self._timeout_s = timeout_s
        _must_be_an_address(url, self.address)
        try:
            pool = redis.BlockingConnectionPool.from_url(
                url, max_connections=MOST_CONNECTIONS, timeout=timeout_s, protocol=2,
                socket_timeout=timeout_s, socket_connect_timeout=timeout_s,
                socket_keepalive=True, retry=Retry(NoBackoff(), 0),
            )  # fmt: skip
        except (ValueError, TypeError):
            raise BadInput(f"{self.address!r} has an option that cannot be read") from None
        self.client = redis.Redis(connection_pool=pool)
        """For plain commands, inside of `translated`."""

    @property
    def database(self) -> int:
        return int(self.client.connection_pool.connection_kwargs.get("db") or 0)

    @property
    def secrets(self) -> list[str]:
        """What must not be read in a log: the password."""
        password = self.client.connection_pool.connection_kwargs.get("password")
        return [password] if password else []

    def do(self, *words: Any) -> Any:
        """Run one command, once, within the deadline of this thread if it has one: who repeats it
        knows whether that is safe. Raises as `run`."""
        deadline = get_deadline()
        within_s = self._timeout_s
        if deadline is not None:
            within_s = min(within_s, max(deadline - time.monotonic(), 0.0))
        pool: Any = self.client.connection_pool
        with self.translated():
            connection = pool.get_connection()
            is_whole = False
            try:
                connection.send_command(*words)
                if not connection.can_read(timeout=within_s):
                    raise exceptions.TimeoutError("it says nothing")
                try:
                    answer = connection.read_response()
                except exceptions.ResponseError as error:
                    # A primary that became a replica: its address may lead elsewhere by now.
                    is_whole = not isinstance(error, exceptions.ReadOnlyError)
                    raise
                is_whole = True
                return answer
            finally:
                if not is_whole:
                    # The answer may still come: nobody may take it for that of the next question.
                    connection.disconnect()
                pool.release(connection)

    def run(self, script: Script, keys: Sequence[str], arguments: Sequence[str | bytes]) -> Any:
        """Run a function on keys of one slot; its source is sent when Redis does not know it.

        Raises:
            StoreAway: there is no answer; whether it ran is not known.
            StoreError: it was not run, or has failed.
        """
        words = (len(keys), *keys, *arguments)
        with self.translated():
            try:
                return self.client.evalsha(script.digest, *cast(Any, words))
            except exceptions.NoScriptError:
                return self.client.eval(script.source, *cast(Any, words))

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Raise what Redis and its driver raise as `StoreError`; it never names the password."""
        try:
            yield
        except (exceptions.AuthenticationError, exceptions.AuthorizationError) as error:
            raise StoreError(f"{self.address} lets nobody in: {_first_line(error)}") from error
        except (exceptions.ConnectionError, exceptions.TimeoutError, OSError) as error:
            raise StoreAway(f"{self.address} does not answer: {_first_line(error)}") from error
        except exceptions.ReadOnlyError as error:
            raise StoreAway(f"{self.address} takes no writes: {_first_line(error)}") from error
        except exceptions.OutOfMemoryError as error:
            raise WriteRefused(
                f"{self.address} has no memory left: {_first_line(error)}"
            ) from error
        except exceptions.RedisError as error:
            refused = UnknownFunction if "Function not found" in str(error) else StoreError
            raise refused(f"{self.address} has refused: {_first_line(error)}") from error

    def read_persistence(self) -> Persistence:
        """Ask what is kept, by CONFIG, or by INFO where CONFIG is forbidden. Raises `StoreError`:
        neither can be asked."""
        names = ("appendonly", "appendfsync", "maxmemory-policy")
        with self.translated():
            try:
                found = {name: self._config(name) for name in names}
            except exceptions.ResponseError:
                found = dict.fromkeys(names, "")
            if not found["appendonly"] or not found["maxmemory-policy"]:
                told: dict[str, Any] = {**self._info("persistence"), **self._info("memory")}
                found["appendonly"] = "yes" if told.get("aof_enabled") == 1 else "no"
                found["maxmemory-policy"] = str(told.get("maxmemory_policy", ""))
        return Persistence(
            found["appendonly"] == "yes", found["appendfsync"], found["maxmemory-policy"]
        )

    def close(self) -> None:
        """Give every connection back; the next question opens one anew."""
        self.client.connection_pool.disconnect()

    def _config(self, name: str) -> str:
        found = cast(dict[str, str], self.client.config_get(name))
        return str(found.get(name, ""))

    def _info(self, section: str) -> dict[str, Any]:
        return self.client.info(section)


def _must_be_an_address(url: str, shown: str) -> None:
    try:
        parts = urlsplit(url)
        port, number = parts.port, parts.path.removeprefix("/")
        options = [option.partition("=")[0] for option in parts.query.split("&") if option]
    except ValueError:
        parts = None
    if parts is None or parts.scheme not in SCHEMES or not parts.hostname or port == 0:
        raise BadInput(
            f"{shown!r} names no Redis; write redis://:PASSWORD@HOST:6379/0, or rediss:// for TLS, "
            "the password percent-encoded"
        )
    if number and not (number.isascii() and number.isdigit()):
        raise BadInput(f"{shown!r}: {number!r} is no number of a database")
    if wrong := [name for name in options if not name.startswith(_OF_TLS)]:
        raise BadInput(f"{shown!r}: {wrong[0]!r} is no option; those of TLS begin with {_OF_TLS}")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
