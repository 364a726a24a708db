"""The steps of an attempt: their times, their spans, and what a span is never told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ulak.services.pdf.document import BREAKDOWN, Steps, in_milliseconds
from ulak.services.pdf.model import PdfErrorCode, pdf_error


class Clock:
    """A clock that is turned by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Recorder:
    """A tracing that remembers, of spans that are open and of those that have ended."""

    def __init__(self, current: str | None = "00-aa-bb-01") -> None:
        self._current = current
        self.open: list[str] = []
        self.ended: list[tuple[str, str | None]] = []

    @contextmanager
    def span(self, name: str, kind: str, *, parent: str | None = None) -> Iterator[Any]:
        assert (kind, parent) == ("internal", None)
        noted = _Noted()
        self.open.append(name)
        yield noted
        self.open.remove(name)
        self.ended.append((name, noted.why))

    def current(self) -> str | None:
        return self._current


class _Noted:
    why: str | None = None

    def fail(self, why: str) -> None:
        self.why = why


def test_each_step_ends_where_the_next_begins() -> None:
    clock = Clock()
    with Steps(monotonic=clock) as steps:
        steps.begin("launch")
        clock.now += 2
        steps.begin("launch")
        clock.now += 1
        steps.begin("load")
        clock.now += 4
        steps.begin("launch")
        clock.now += 5
        steps.end()
        clock.now += 6
        steps.begin("print")
        clock.now += 7
    assert steps.took == {"launch": 8, "load": 4, "print": 7}


@pytest.mark.shows("P-60")
def test_each_step_has_a_span_of_its_name_and_one_at_a_time() -> None:
    tracing = Recorder()
    with Steps(tracing) as steps:
        steps.begin("load")
        assert tracing.open == ["pdf.load"]
        steps.begin("print")
        assert tracing.open == ["pdf.print"]
    assert tracing.open == []
    assert tracing.ended == [("pdf.load", None), ("pdf.print", None)]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("Grace Hopper"), "ValueError"),
        (pdf_error("Grace Hopper", code=PdfErrorCode.UNKNOWN), "UNKNOWN"),
        (
            pdf_error("Grace", code=PdfErrorCode.TEMPLATE_ERROR, detail="page_range"),
            "TEMPLATE_ERROR (page_range)",
        ),
    ],
)
def test_a_step_that_fails_tells_its_span_what_and_nothing_of_the_document(
    error: Exception, told: str
) -> None:
    tracing = Recorder()

    def fail() -> None:
        with Steps(tracing) as steps:
            steps.begin("template")
            steps.begin("load")
            raise error

    with pytest.raises(type(error)):
        fail()
    assert tracing.ended == [("pdf.template", None), ("pdf.load", told)]


def test_outside_of_a_trace_there_are_no_spans() -> None:
    tracing = Recorder(current=None)
    with Steps(tracing) as steps:
        steps.begin("load")
    assert tracing.ended == []
    assert list(steps.took) == ["load"]


def test_timings_are_told_to_the_millisecond_in_the_order_of_the_steps() -> None:
    told = in_milliseconds({"total": 1.23456, "store": 0.0004, "queue": 7, "load": 0.0015})
    assert list(told.items()) == [("queue", 7.0), ("load", 0.002), ("store", 0.0), ("total", 1.235)]
    assert set(told) - {"total"} < set(BREAKDOWN)


@pytest.mark.parametrize("noted", [None, [], "x", {"load": True}, {"load": -1}, {"load": "1"}])
def test_what_is_no_time_is_not_told(noted: object) -> None:
    assert in_milliseconds(noted) == {}
