"""The remote service, asked over HTTP: one answer or one fault for each question, in time."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import threading
import weakref
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ulak.errors import BadInput, NotSupported
from ulak.services.contracts.outbox.settings import RemoteSettings

if TYPE_CHECKING:
    import httpx

TRANSITION: Final = "/v1/contract/transition"
CAN_TRANSITION: Final = "/v1/contract/can-transition"
VERSIONS: Final = "/v1/contract"

# Far above what a contract service answers; whoever sends more is somebody else.
LARGEST_ANSWER: Final = 1024 * 1024
# For how long a connection that is idle may be used: many servers close theirs after five seconds.
KEPT: Final = timedelta(seconds=2)

PASSING_STATUSES: Final = frozenset(
    {
        HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.REQUEST_TIMEOUT,
        HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS,
    }
)  # fmt: skip
"""Statuses below 500 that say nothing about the event itself: a key that is set anew, a pause."""
FOREIGN: Final = "no answer of the remote, which says ok or repeats the key; see HOS_BASE_URL"


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back from the remote."""

    status: int
    _: KW_ONLY
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def document(self) -> Mapping[str, Any]:
        """The body, if it is a JSON object; else an empty one."""
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


class Fault(NamedTuple):
    """No answer came, and why."""

    why: str


class Remote:
    """Where the remote is and how it is asked; may be used by many threads at once. `transport`
    carries the requests, by default over the network. Raises `BadInput` when the address or the
    key is not set, `NotSupported` when the extra is not installed."""

    def __init__(
        self, settings: RemoteSettings, *, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        if settings.lacking:
            raise BadInput(f"there is no remote to ask; set {' and '.join(settings.lacking)}")
        try:
            import httpx  # noqa: F401 - said here, and not in the middle of a round
        except ModuleNotFoundError as error:
            raise NotSupported(
                f"asking a remote needs the contracts extra ({error.name} is missing); "
                "pip install 'ulak[contracts]'"
            ) from error
        self.settings = settings
        self._transport = transport
        # Reading the authorities takes longer than a request does, so it is done once.
        self._tls = ssl.create_default_context()
        # By process: a forked child must not talk on the connections of its parent.
        self._idle: dict[int, list[_Line]] = {}
        weakref.finalize(self, _close, self._idle).atexit = False

    def ask(
        self, path: str, body: bytes | None = None, *, headers: dict[str, str] | None = None
    ) -> Reply | Fault:
        """Post a body, or read where there is none, and wait for the answer; not on an event loop.

        A request that found nobody is repeated at once, as often as is set. Only what is safe to
        repeat is asked: every change carries its key.
        """
        idle = self._idle.setdefault(os.getpid(), [])
        try:
            line = idle.pop()
        except IndexError:
            line = _Line(asyncio.Runner(loop_factory=asyncio.new_event_loop), self._make_client())
        for _ in range(max(1, 1 + self.settings.retries)):
            answer = line.loop.run(self._ask(line.client, path, body, headers))
            if not _found_nobody(answer):
                break
        idle.append(line)
        return answer

    def _make_client(self) -> httpx.AsyncClient:
        import httpx

        return httpx.AsyncClient(
            base_url=self.settings.base_url,
            transport=self._transport,
            verify=self._tls,
            timeout=self.settings.timeout.total_seconds(),
            limits=httpx.Limits(keepalive_expiry=KEPT.total_seconds()),
            headers={
                "Authorization": f"Token {self.settings.api_key}",
                "Accept": "application/json",
                "Accept-Encoding": "identity",  # answers are small, and nothing swells up
                "Content-Type": "application/json",
            },
        )

    async def _ask(
        self,
        client: httpx.AsyncClient,
        path: str,
        body: bytes | None,
        headers: dict[str, str] | None,
    ) -> Reply | Fault:
        import httpx

        method, timeout_s = "GET" if body is None else "POST", self.settings.timeout.total_seconds()
        try:
            # The client's own timeout is one of each step: an answer that comes byte by byte
            # would never be too late.
            async with (
                asyncio.timeout(timeout_s),
                client.stream(method, path, content=body, headers=headers) as response,
            ):
                content = bytearray()
                async for chunk in response.aiter_bytes():
                    content += chunk
                    if len(content) > LARGEST_ANSWER:
                        return Fault(f"the answer is larger than {LARGEST_ANSWER} bytes")
                headers = dict(response.headers)
                return Reply(response.status_code, body=bytes(content), headers=headers)
        except (TimeoutError, httpx.TimeoutException):
            return Fault(f"no answer within {timeout_s:g} s")
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            return Fault(f"{type(error).__name__}: {error}")


class _Line(NamedTuple):
    """A client and its event loop, for one request at a time; its connection is kept."""

    loop: asyncio.Runner
    client: httpx.AsyncClient


def _close(idle: dict[int, list[_Line]]) -> None:
    def close() -> None:
        for line in idle.get(os.getpid(), ()):
            line.loop.run(line.client.aclose())
            line.loop.close()

    # On a thread: whatever is collected may be so on one whose event loop is running.
    threading.Thread(target=close, name="ulak-remote-close", daemon=True).start()


def _found_nobody(answer: Reply | Fault) -> bool:
    """Whether a gateway, or nobody at all, has answered; who names a time is to be heard."""
    if isinstance(answer, Fault):
        return True
    is_down = HTTPStatus.BAD_GATEWAY <= answer.status <= HTTPStatus.GATEWAY_TIMEOUT
    return is_down and "retry-after" not in answer.headers


def is_of_the_remote(reply: Reply, key: str, *, verdict: str = "ok") -> bool:
    """Tell whether an answer is the remote's and no login page or proxy: it has the member of
    a verdict, repeats the key ('' for none), or is a refusal that says why in a word."""
    document = reply.document
    if isinstance(document.get(verdict), bool):
        return True
    if key and key in (document.get("idempotency_key"), reply.headers.get("idempotency-key")):
        return True
    is_refusal = reply.status >= HTTPStatus.BAD_REQUEST
    return is_refusal and any(isinstance(document.get(word), str) for word in ("code", "reason"))


def is_passing(status: int) -> bool:
    """Whether a status says nothing about what was sent: a redirect is an address that is wrong."""
    is_redirect = HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST
    return is_redirect or status in PASSING_STATUSES or status >= HTTPStatus.INTERNAL_SERVER_ERROR
