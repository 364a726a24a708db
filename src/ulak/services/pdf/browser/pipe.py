"""The DevTools protocol over a pipe: commands with their answers, events by session.

Nothing here knows what the commands mean. A write never waits for the browser: what the pipe does
not take is kept until it does.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from ulak.services.pdf.browser.driver import BrowserGone
from ulak.services.pdf.browser.launch import Launch
from ulak.services.pdf.browser.process import Process, looked_at, spawn

Params = dict[str, Any]
Listener = Callable[[Params], None]

_AT_ONCE: Final = 1 << 20
_LONGEST: Final = 256 << 20
"""Of one message. Nothing that we ask for is so long; what a page says must not fill our memory."""
_ROOT: Final = ""
GONE: Final = "ulak.gone"
_COMMANDS: Final = 3
_ANSWERS: Final = 4
"""Where Chromium reads commands and writes answers when it is debugged over a pipe."""
_CAPACITY: Final = 1 << 20
"""Of each pipe: what an unprivileged process may ask for. A PDF comes in few reads so."""


class CommandFailed(Exception):
    """The browser refused a command; carries its words, which may hold what a page said."""


class _Refusal(msgspec.Struct):
    message: str = ""


class _Message(msgspec.Struct, rename="camel"):
    id: int = 0
    method: str = ""
    session_id: str = _ROOT
    params: msgspec.Raw = msgspec.Raw(b"{}")
    result: msgspec.Raw = msgspec.Raw(b"{}")
    error: _Refusal | None = None


class _Command(msgspec.Struct, rename="camel", omit_defaults=True):
    id: int
    method: str
    params: Params
    session_id: str = _ROOT


class Pipe:
    """One browser's line. Every call that waits raises `BrowserGone` once it is cut."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands = commands
        self._answers = answers
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, tuple[str, asyncio.Future[Params]]] = {}
        self._listeners: dict[str, Mapping[str, Listener]] = {}
        self._last = 0
        self._out: deque[memoryview] = deque()
        self._in = bytearray()
        self._seen = 0
        self._is_cut = False
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(_Message).decode
        self._read_params = msgspec.json.Decoder(Params).decode
        for end in (commands, answers):
            os.set_blocking(end, False)
        self._loop.add_reader(answers, self._readable)

    def send(self, method: str, session: str = _ROOT, /, **params: Any) -> asyncio.Future[Params]:
        """Send a command now; the future holds its answer.

        The answer may be left alone: what nobody asks for is not complained about.
        """
        future: asyncio.Future[Params] = self._loop.create_future()
        future.add_done_callback(looked_at)
        if self._is_cut:
            future.set_exception(BrowserGone())
            return future
        self._last += 1
        self._waiting[self._last] = (session, future)
        command = _Command(self._last, method, params, session)
        self._write(self._encode(command) + b"\0")
        return future

    def listen(self, session: str, listeners: Mapping[str, Listener]) -> None:
        """Have events of a session told, each by its name; the root session is the empty text.

        Events that nobody listens to are not even read: a page may make any number of them.
        """
        self._listeners[session] = listeners

    def forget(self, session: str) -> None:
        """Take note that a session has ended: what was asked of it is not answered any more."""
        self._listeners.pop(session, None)
        unanswered = [id_ for id_, (asked, _) in self._waiting.items() if asked == session]
        for id_ in unanswered:
            _fail(self._waiting.pop(id_)[1], CommandFailed("the session has ended"))

    def cut(self) -> None:
        """Close the line: a browser whose line is closed ends. May be called twice."""
        if self._is_cut:
            return
        self._is_cut = True
        self._loop.remove_reader(self._answers)
        self._loop.remove_writer(self._commands)
        os.close(self._commands)
        os.close(self._answers)
        self._out.clear()
        waiting, self._waiting = self._waiting, {}
        for _, future in waiting.values():
            _fail(future, BrowserGone())
        sessions, self._listeners = self._listeners, {}
        for listeners in sessions.values():
            if (listener := listeners.get(GONE)) is not None:
                listener({})

    def _write(self, data: bytes) -> None:
        was_empty = not self._out
        self._out.append(memoryview(data))
        if was_empty:
            self._drain()
            if self._out and not self._is_cut:
                self._loop.add_writer(self._commands, self._drain)

    def _drain(self) -> None:
        while self._out:
            head = self._out[0]
            try:
                written = os.write(self._commands, head)
            except BlockingIOError:
                return
            except OSError:
                self.cut()
                return
            if written < len(head):
                self._out[0] = head[written:]
            else:
                self._out.popleft()
        with suppress(OSError, ValueError):
            self._loop.remove_writer(self._commands)

    def _readable(self) -> None:
        try:
            chunk = os.read(self._answers, _AT_ONCE)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            self.cut()
            return
        self._in += chunk
        start = 0
        while (end := self._in.find(b"\0", max(start, self._seen))) >= 0:
            self._take(self._decode(self._in[start:end]))
            start = end + 1
            if self._is_cut:
                return
        del self._in[:start]
        self._seen = len(self._in)
        if self._seen > _LONGEST:
            self.cut()

    def _take(self, message: _Message) -> None:
        if message.id:
            _, future = self._waiting.pop(message.id, (_ROOT, None))
            if future is None or future.done():
                return
            if message.error is not None:
                future.set_exception(CommandFailed(message.error.message))
            else:
                future.set_result(self._read_params(message.result))
            return
        listeners = self._listeners.get(message.session_id)
        if listeners is not None and (listener := listeners.get(message.method)) is not None:
            listener(self._read_params(message.params))


def start_debugged(launch: Launch) -> tuple[Process, Pipe]:
    """Start the browser that was prepared, debugged over a pipe; see `spawn`."""
    its_commands, our_commands = _pipe()
    our_answers, its_answers = _pipe()
    argv = launch.argv("--remote-debugging-pipe", "--no-startup-window")
    try:
        process = spawn(
            argv, launch.environment, files={_COMMANDS: its_commands, _ANSWERS: its_answers}
        )
    except BaseException:
        os.close(our_commands)
        os.close(our_answers)
        raise
    finally:
        os.close(its_commands)
        os.close(its_answers)
    return process, Pipe(our_commands, our_answers)


def _fail(future: asyncio.Future[Params], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _pipe() -> tuple[int, int]:
    ends = os.pipe()
    # A user may have used up what all pipes together may hold; a smaller one works as well.
    with suppress(OSError):
        fcntl.fcntl(ends[0], fcntl.F_SETPIPE_SZ, _CAPACITY)
    return ends
