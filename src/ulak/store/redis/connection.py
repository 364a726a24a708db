"""How a server is reached: a pool of connections, and errors as the engine knows them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import redis
from redis.exceptions import ConnectionError as Disconnected
from redis.exceptions import ReadOnlyError, RedisError, ResponseError
from redis.exceptions import TimeoutError as TimedOut

from ulak.errors import StoreError, WriteRefused
from ulak.store import without_password
from ulak.store.processes import StoreAway, get_deadline

CONNECT_WITHIN_S: Final = 5.0
# A server that says nothing is away (E-83). A guess: longer than a call of the largest batch.
ANSWER_WITHIN_S: Final = 10.0


class Connection:
    """A pool of connections to the database that a URL names."""

    def __init__(self, url: str) -> None:
        self.place = without_password(url)
        with self._errors():
            self.client: Any = redis.Redis.from_url(
                url,
                protocol=2,
                socket_connect_timeout=CONNECT_WITHIN_S,
                socket_timeout=ANSWER_WITHIN_S,
                socket_keepalive=True,
            )
        self._pool = self.client.connection_pool

    @property
    def database(self) -> int:
        return int(self._pool.connection_kwargs.get("db") or 0)

    def secrets(self) -> list[str]:
        password = self._pool.connection_kwargs.get("password")
        return [password] if password else []

    def do(self, *words: Any) -> Any:
        """Run one command, once: who repeats it knows whether that is safe."""
        deadline = get_deadline()
        within = ANSWER_WITHIN_S if deadline is None else max(deadline - time.monotonic(), 0.0)
        with self._errors():
            connection: Any = self._pool.get_connection()
            is_whole = False
            try:
                connection.send_command(*words)
                if not connection.can_read(timeout=min(within, ANSWER_WITHIN_S)):
                    raise TimedOut("it does not answer")
                try:
                    answer = connection.read_response()
                except ResponseError as error:
                    # A primary that became a replica: its address may lead elsewhere by now.
                    is_whole = not isinstance(error, ReadOnlyError)
                    raise
                is_whole = True
                return answer
            finally:
                if not is_whole:
                    # The answer may still come: nobody may take it for that of the next question.
                    connection.disconnect()
                self._pool.release(connection)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise what goes wrong as errors of stores."""
        try:
            yield
        except (Disconnected, TimedOut, ReadOnlyError, OSError) as error:
            raise StoreAway(f"{self.place}: {error}") from error
        except ResponseError as error:
            if "Function not found" in str(error):
                raise UnknownFunction(f"{self.place}: {error}") from error
            if str(error).startswith("OOM"):
                raise WriteRefused(f"{self.place} has no memory left: {error}") from error
            raise StoreError(f"{self.place}: {error}") from error
        except RedisError as error:
            raise StoreError(f"{self.place}: {error}") from error

    def close(self) -> None:
        self.client.close()


class UnknownFunction(StoreError):
    """The server has never had the library of this release, or has lost it."""
