"""The steps of an attempt, one after the other: how long each takes, and a span for each."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Final, Self

from ulak.engine.tracing import Span, Tracing
from ulak.services.pdf.model import PdfError

QUEUE: Final = "queue"
"""From when a job was due - accepted, or let on to its next attempt - to its claim."""
TEMPLATE: Final = "template"
LAUNCH: Final = "launch"
"""Waiting for a browser and a page of it; of one that runs already nearly nothing."""
LOAD: Final = "load"
PRINT: Final = "print"
FINISH: Final = "finish"
"""Doing to what was printed what its request wants; of most jobs there is no such step."""
STORE: Final = "store"

BREAKDOWN: Final = (QUEUE, TEMPLATE, LAUNCH, LOAD, PRINT, FINISH, STORE)
"""The steps in their order, as reports and docs name them; a span's name begins with `pdf.`."""


class Steps:
    """Takes the time of steps that follow each other, and traces each while somebody traces.

    A context manager: at its end the step that goes on has ended, and has failed if the block has.
    Begin and end it in one task. Of what was raised a span is told the code or the class alone:
    the message may quote the document.

    Args:
        tracing: Where spans go; where the caller is in no trace there are none.
        monotonic: Tells how long something took, in seconds.
    """

    def __init__(
        self,
        tracing: Tracing | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        is_traced = tracing is not None and tracing.current() is not None
        self._tracing = tracing if is_traced else None
        self._monotonic = monotonic
        self._name = ""
        self._began = 0.0
        self._entered: AbstractContextManager[Span] | None = None
        self._span: Span | None = None
        self.took: dict[str, float] = {}
        """Seconds of every step that has ended; of one that came twice, both together."""

    def begin(self, name: str) -> None:
        """End the step that goes on and begin another; the one that goes on already goes on."""
        if name == self._name:
            return
        self.end()
        self._name, self._began = name, self._monotonic()
        if self._tracing is not None:
            self._entered = self._tracing.span(f"pdf.{name}", "internal")
            self._span = self._entered.__enter__()

    def end(self) -> None:
        """End the step that goes on, if one does."""
        if not self._name:
            return
        spent = self._monotonic() - self._began
        self.took[self._name] = self.took.get(self._name, 0.0) + spent
        self._name = ""
        entered, self._entered, self._span = self._entered, None, None
        if entered is not None:
            entered.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if error is not None and self._span is not None:
            self._span.fail(_word_for(error))
        self.end()


def in_milliseconds(timings: Any) -> dict[str, float]:
    """Write timings as people read them: seconds, to the millisecond, the steps in their order.

    What is no time is left out: they were noted by another process, of another release perhaps.
    """
    if not isinstance(timings, Mapping):
        return {}
    known = [name for name in BREAKDOWN if name in timings]
    others = [name for name in timings if name not in BREAKDOWN]
    return {
        str(name): round(float(timings[name]), 3)
        for name in (*known, *others)
        if _is_time(timings[name])
    }


def _is_time(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= value < float("inf")


def _word_for(error: BaseException) -> str:
    if isinstance(error, PdfError):
        return f"{error.code} ({error.detail})" if error.detail else error.code
    return type(error).__name__
