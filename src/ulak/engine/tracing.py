"""Traces: every stage of a job is a child of the span of its submit, in whichever process.

The context of a submit is stored with the payload, as a W3C traceparent. Nothing here knows a
tracing library; `ulak.tracing_otel` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from ulak.core.job import JobRow
from ulak.core.outcome import Hold, Outcome, Raised, RetryLater
from ulak.core.run import Run
from ulak.ids import to_text

if TYPE_CHECKING:
    from ulak.engine.active_run import ActiveRun

Kind = Literal["server", "producer", "consumer", "internal"]
Function = Callable[[Run[Any]], Any]

SUBMIT: Final = "ulak.submit"
STAGE: Final = "ulak.stage"

FLOW: Final = "ulak.flow"
STATE: Final = "ulak.state"
JOB_ID: Final = "ulak.job.id"
ATTEMPT: Final = "ulak.attempt"
OUTCOME: Final = "ulak.outcome"


class Span(Protocol):
    """One piece of work while it is done."""

    def note(self, name: str, value: str | int) -> None:
        """Add a fact."""

    def rename(self, name: str) -> None:
        """Give it its final name."""

    def fail(self, why: str) -> None:
        """Say that it failed, although nothing is raised."""


class Tracing(Protocol):
    """Where an engine's spans go. May be used from any thread."""

    def span(
        self, name: str, kind: Kind, *, parent: str | None = None
    ) -> AbstractContextManager[Span]:
        """Begin a span for as long as the block lasts; what the block raises is recorded.

        Args:
            name: What is done.
            kind: Which side of a message, or of a request, it is; internal when it is neither.
            parent: The traceparent it belongs to; without one, whatever the caller is in.
        """

    def current(self) -> str | None:
        """Return the traceparent of the span that the caller is in."""


class NoSpan(AbstractContextManager["NoSpan"]):
    """What is done where nobody traces."""

    def note(self, name: str, value: str | int) -> None: ...
    def rename(self, name: str) -> None: ...
    def fail(self, why: str) -> None: ...
    def __exit__(self, *_: object) -> None: ...


NO_SPAN: Final = NoSpan()


def submitting(tracing: Tracing | None) -> AbstractContextManager[Span]:
    return NO_SPAN if tracing is None else tracing.span(SUBMIT, "producer")


def describe_submit(span: Span, row: JobRow) -> None:
    """Say which job was submitted, or was there already."""
    if span is not NO_SPAN:
        span.note(FLOW, row.flow)
        span.note(JOB_ID, to_text(row.id))


@contextmanager
def running(tracing: Tracing, run: ActiveRun) -> Iterator[Span]:
    """Begin the span of a run, as a child of the submit of its job."""
    with tracing.span(STAGE, "consumer", parent=run.payload_bytes.trace) as span:
        span.note(FLOW, run.row.flow)
        span.note(STATE, run.row.state)
        span.note(JOB_ID, to_text(run.row.id))
        span.note(ATTEMPT, run.row.attempt + 1)
        try:
            yield span
        except Exception:
            span.note(OUTCOME, "raised")
            raise


def traced(tracing: Tracing, run: ActiveRun, function: Function) -> Function:
    """Return a stage's function with a span around it; async when the stage is."""

    async def traced_async(given: Run[Any]) -> Any:
        with running(tracing, run) as span:
            returned = await function(given)
            span.note(OUTCOME, _outcome(returned))
            return returned

    def traced_plain(given: Run[Any]) -> Any:
        with running(tracing, run) as span:
            returned = function(given)
            span.note(OUTCOME, _outcome(returned))
            return returned

    return traced_async if run.where == "loop" else traced_plain


def traced_child(tracing: Tracing, run: ActiveRun, work: Callable[[], Outcome]) -> Outcome:
    """Run a stage in a process of its own, with a span around it."""
    with running(tracing, run) as span:
        outcome = work()
        span.note(OUTCOME, type(outcome).__name__.lower())
        if isinstance(outcome, Raised):
            span.fail(outcome.message)
        return outcome


def _outcome(returned: object) -> str:
    """Name what a stage returned; what it raises, the span records by itself."""
    if isinstance(returned, Hold):
        return "hold"
    return "retry-later" if isinstance(returned, RetryLater) else "finished"
