"""Protected requests: what counts of one, an answer that is held back until its record is stored,
and the middleware that protects any ASGI application."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, Literal, NamedTuple

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as Connection

from ulak.clock import Duration, read_micros, seconds
from ulak.errors import IdempotencyError, UlakError
from ulak.idempotency import Answer, Asked, Execution, Guard, Scope
from ulak.idempotency.aio import AsyncGuard
from ulak.idempotency.key import HEADER, REPLAYED, fingerprint, read_key
from ulak.web import problems
from ulak.web.middleware import LARGEST, too_large

Policy = Literal["required", "optional", "off"]
METHODS: Final = ("POST", "PATCH")
EXECUTION: Final = "ulak.idempotency"
"""Where a handler finds its execution in the connection's scope; None when it has no key."""

LONGEST_WAIT_S: Final = 30
_WAIT: Final = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?(\d{1,6})\"?(?:$|[,;\s])")
_KEY: Final = HEADER.lower().encode()
_OURS: Final = frozenset({_KEY, REPLAYED.lower().encode()})
_WITHOUT_BODY: Final = frozenset({204, 304})
# Above this a fingerprint takes longer than a loop should be held up: some ten milliseconds.
LARGE_BYTES: Final = 256 * 1024


class Requested(NamedTuple):
    """What a fingerprint is made of."""

    method: str
    path: str
    query: str
    actor: str
    body: bytes
    media_type: str


Fingerprint = Callable[[Requested], str]
"""Makes of a request the text that must be the same under one key, for a route that knows better;
at most 64 characters, as a SHA-256 in hex."""


@dataclass(frozen=True, slots=True)
class Protection:
    """Which requests are protected, and how; of several lines that fit, the first holds."""

    path: str
    """Such as `/orders/{id}`, below the path at which the application is mounted."""
    scope: Scope
    _: KW_ONLY
    policy: Policy = "required"
    """`required` refuses a request without a key, `optional` lets it through unprotected, and
    `off` protects nothing, also what a later line would."""
    methods: Sequence[str] = METHODS
    in_body: str | None = None
    """The member of a JSON body that may hold the key too."""
    fingerprint: Fingerprint | None = None
    wait: Duration = 0
    """How long a duplicate waits for the first answer, instead of 409; the caller's
    `Prefer: wait=N` wins, and 30 s are the most."""

    def __post_init__(self) -> None:
        read_micros(self.wait, f'the idempotency scope "{self.scope.name}": wait=')

    async def read(
        self, connection: Connection, body: bytes, tenant: str, actor: str
    ) -> Asked | None:
        """Return the request with its key; None when it has none, and needs none. Raises
        `BadKey`: it needs one, or has one that is none."""
        lines, is_required = _key_lines(connection), self.policy == "required"
        key = read_key(lines, self._key_in(body, connection), required=is_required)
        if key is None:
            return None
        requested = Requested(
            connection["method"], connection["path"],
            connection.get("query_string", b"").decode("latin-1"), actor, body,
            _header(connection, b"content-type"),
        )  # fmt: skip
        if len(body) > LARGE_BYTES:
            digest = await asyncio.to_thread(self._digest, requested)
        else:
            digest = self._digest(requested)
        return Asked(self.scope, key, request_hash=digest, tenant=tenant, actor=actor)

    def patience(self, connection: Connection) -> float:
        """Return for how many seconds the caller would wait for another answer."""
        wish = _WAIT.search(_header(connection, b"prefer"))
        return min(seconds(self.wait) if wish is None else int(wish[1]), LONGEST_WAIT_S)

    def _digest(self, requested: Requested) -> str:
        if self.fingerprint is not None:
            return self.fingerprint(requested)
        return fingerprint(**requested._asdict(), fields=self.scope.fingerprint_fields)

    def _key_in(self, body: bytes, connection: Connection) -> Any:
        if self.in_body is None or "json" not in _header(connection, b"content-type"):
            return None
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            return None  # whoever reads the body says what is wrong with it
        return document.get(self.in_body) if isinstance(document, dict) else None


Identify = Callable[[Connection], tuple[str, str] | Awaitable[tuple[str, str]]]
"""Answers the tenant and the actor of a request, or raises `Unauthenticated` or `Forbidden`."""


class Visit:
    """Stands between the server and a handler, for one request.

    A handler that executes is heard to the end before anybody else: what it answers is stored,
    then sent. It never sees its client go away. Whatever else is answered is sent as it comes.
    """

    def __init__(
        self,
        guard: AsyncGuard,
        rule: Protection,
        connection: Connection,
        receive: Receive,
        send: Send,
    ) -> None:
        self.guard = guard
        self.rule = rule
        self.connection = connection
        self.asked: Asked | None = None
        self.identify: Callable[[Request], Any] | None = None
        """Returns the tenant and the actor, if that is to be asked right before the claim."""
        self.is_replay = False
        self.body: bytes | None = None
        lines = _key_lines(connection)
        self._echo = lines[0].encode("latin-1") if len(lines) == 1 and lines[0].strip() else None
        self._receive = receive
        self._client = send
        self._has_answered = False
        self._execution: Execution | None = None
        self._read: list[bytes] = []
        self._size = 0
        self._start: Message | None = None
        self._chunks: list[bytes] = []
        self._ended = asyncio.Event()
        connection[EXECUTION] = None
        connection[problems.EXTRA] = self._marks()
        connection[problems.UNCLAIMED] = self._echo is not None or rule.policy == "required"
        # What bypasses `send` would bypass the record.
        connection["extensions"] = {}

    def begin(self, execution: Execution) -> None:
        """From now on the handler executes."""
        self._execution = self.connection[EXECUTION] = execution
        self.connection[problems.UNCLAIMED] = False
        if self._echo is None:  # it was in the body
            self._echo = execution.row.key.encode()
            self.connection[problems.EXTRA] = self._marks()

    async def abandon(self) -> None:
        """The handler has failed: what it did is taken back, and its key is free."""
        if self._execution is None or self._ended.is_set():
            return
        execution, self._execution = self._execution, None
        self._ended.set()
        await self.guard.abandon(execution)

    async def see_through(self, serving: Awaitable[None]) -> None:
        """Wait until the request is served; what its handler did before it failed is taken back."""
        try:
            await serving
        except Exception as error:
            await self.abandon()
            await self._fail(error)
            raise
        finally:
            await self.abandon()

    async def _fail(self, error: Exception) -> None:
        """Answer what nobody foresaw as the application would, and with what every answer of a
        protected route has: its own answer is written outside of here, and would lack that."""
        app = self.connection.get("app")
        handlers = getattr(app, "exception_handlers", {})
        handler = handlers.get(500) or handlers.get(Exception)
        # Ours has it, and of an application that is debugged the developer wants the stack.
        if self._has_answered or handler is problems.unforeseen or getattr(app, "debug", False):
            return
        request = Request(self.connection)
        if handler is None:
            response: Response = problems.problem(
                request, 500, code=problems.INTERNAL,
                detail="something went wrong that nobody foresaw; nothing is stored of it",
            )  # fmt: skip
        elif inspect.iscoroutinefunction(handler):
            response = await handler(request, error)
        else:
            response = await run_in_threadpool(handler, request, error)
        await self.answer(response)

    async def _send(self, message: Message) -> None:
        self._has_answered = self._has_answered or message["type"] == "http.response.start"
        await self._client(message)

    async def receive(self) -> Message:
        """Hand on what the client sends; of its going away a handler that executes hears last."""
        if self.body is not None and self._execution is not None:
            await self._ended.wait()
        message = await self._receive()
        if message["type"] == "http.request" and self.body is None:
            chunk = message.get("body", b"")
            self._size += len(chunk)
            if self._size > LARGEST:
                raise too_large(LARGEST)
            self._read.append(chunk)
            if not message.get("more_body", False):
                self.body = b"".join(self._read)
                self._read = []
        return message

    async def send(self, message: Message) -> None:
        """Hold the answer of an execution back until all of it is here and stored."""
        kind = message["type"]
        if self._execution is None:
            if kind == "http.response.start":
                message = {**message, "headers": self._marked(message.get("headers", ()))}
            await self._send(message)
        elif self._ended.is_set():
            return  # it was answered
        elif kind == "http.response.start":
            self._start = message
        elif kind == "http.response.body":
            self._chunks.append(message.get("body", b""))
            if not message.get("more_body", False):
                await self._settle(self._execution)

    async def refuse(self, error: IdempotencyError) -> None:
        """Return why nothing was executed, or why it does not count."""
        await self.answer(problems.problem_of(Request(self.connection), error))

    async def answer(self, response: Response) -> None:
        """Return something else than what the handler says."""
        self._execution = None
        await response(self.connection, self._receive, self.send)

    def replayed(self, answer: Answer) -> Response:
        """Return what was answered before, to the byte."""
        self.is_replay = True
        response = Response(answer.body, answer.status)
        raw = [(n.lower().encode("latin-1"), v.encode("latin-1")) for n, v in answer.headers]
        if answer.status not in _WITHOUT_BODY:
            raw.append((b"content-length", str(len(answer.body)).encode()))
        response.raw_headers = raw
        return response

    async def _settle(self, execution: Execution) -> None:
        assert self._start is not None  # noqa: S101 - a body without a start is no ASGI
        body = b"".join(self._chunks)
        headers = list(self._start.get("headers", ()))
        texts = tuple((n.decode("latin-1"), v.decode("latin-1")) for n, v in headers)
        try:
            await self.guard.settle(execution, Answer(self._start["status"], body, texts))
        except IdempotencyError as error:
            await self.refuse(error)
            self._execution = execution  # whatever else the handler sends is dropped
        else:
            await self._send({**self._start, "headers": self._marked(headers)})
            await self._send({"type": "http.response.body", "body": body})
        finally:
            self._ended.set()

    def _marked(self, headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Add what every answer of a protected route has."""
        kept = [(name, value) for name, value in headers if name.lower() not in _OURS]
        marks = [(n.lower().encode(), v.encode("latin-1")) for n, v in self._marks().items()]
        return [*kept, *marks]

    def _marks(self) -> dict[str, str]:
        marks = {REPLAYED: "true" if self.is_replay else "false"}
        if self._echo is not None:
            marks[HEADER] = self._echo.decode("latin-1")
        return marks


class IdempotencyMiddleware:
    """Lets every request with a key have one effect, and answers its repetitions from the record.

    Place it inside of what authenticates: a repetition is answered without the application, so a
    caller without a right must be refused before, or by `identify`. That returns for a connection's
    scope the tenant and the actor, `("", "")` where there are none; it may be async, and may refuse
    by an error of ulak.
    """

    def __init__(
        self, app: ASGIApp, guard: Guard, *, routes: Iterable[Protection], identify: Identify
    ) -> None:
        self._app = app
        self._guard = guard.aio
        self._identify = identify
        self._lines = [
            (compile_path(line.path)[0], frozenset(line.methods), line) for line in routes
        ]

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        rule = self._rule_of(scope) if scope["type"] == "http" else None
        if rule is None:
            await self._app(scope, receive, send)
            return
        visit = Visit(self._guard, rule, scope, receive, send)
        await self._guard.carry_out(visit.see_through(self._serve(visit)))

    def _rule_of(self, scope: Connection) -> Protection | None:
        root = scope.get("root_path", "").rstrip("/")
        path = scope["path"]
        below = path[len(root) :] if root and path.startswith(f"{root}/") else path
        for pattern, methods, rule in self._lines:
            if scope["method"] in methods and pattern.match(below):
                return None if rule.policy == "off" else rule
        return None

    async def _serve(self, visit: Visit) -> None:
        connection, rule = visit.connection, visit.rule
        try:
            who = self._identify(connection)
            tenant, actor = await who if inspect.isawaitable(who) else who
            while visit.body is None:
                if (await visit.receive())["type"] == "http.disconnect":
                    return
            asked = await rule.read(connection, visit.body, tenant, actor)
            begun = None
            if asked is not None:
                begun = await self._guard.begin(asked, wait=rule.patience(connection))
        except UlakError as error:
            await visit.answer(problems.problem_of(Request(connection), error))
            return
        except HTTPException as error:
            await visit.answer(problems.http_problem(Request(connection), error))
            return
        if isinstance(begun, Answer):
            await visit.answer(visit.replayed(begun))
            return
        receive = _again(visit.body, visit.receive)
        if begun is None:
            await self._app(connection, receive, visit.send)
            return
        visit.begin(begun)
        with begun.as_current():
            await self._app(connection, receive, visit.send)


def _key_lines(connection: Connection) -> list[str]:
    return [value.decode("latin-1") for name, value in connection["headers"] if name == _KEY]


def _header(connection: Connection, name: bytes) -> str:
    value: bytes = next((value for found, value in connection["headers"] if found == name), b"")
    return value.decode("latin-1")


def _again(body: bytes, receive: Receive) -> Receive:
    """Hand on a body that was read already, then what else there is to hear."""
    waiting = [body]

    async def again() -> dict[str, object]:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return dict(await receive())

    return again
