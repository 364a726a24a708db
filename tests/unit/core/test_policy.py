"""Policies say what is wrong with their own numbers."""

from datetime import timedelta
from typing import Any

import pytest

from ulak import Rate
from ulak.core.change import proof_body
from ulak.core.job import Event


@pytest.mark.parametrize(
    ("per", "wrong"),
    [
        (timedelta(microseconds=1), None),
        (timedelta(), "n, per and burst must be more than nothing"),
        ("a minute", "a Rate with a wrong per=: "),
    ],
)
def test_a_rate_tells_a_span_that_cannot_be(per: Any, wrong: str | None) -> None:
    said = Rate(1, per=per).complaint()
    assert said is None if wrong is None else said is not None and wrong in said


@pytest.mark.shows("E-47")
def test_what_a_proof_stands_for_is_written_the_same_for_ever() -> None:
    event = Event(
        job_id=b"\x01" * 16, seq=3, kind="moved", from_state=None, to_state="done", actor="ada",
        code=None, message=None, details=None, round=1, attempt=1, worker="w", token=2,
        started_at=4, at=5, emitted=0, commit_id=b"c",
    )  # fmt: skip
    fields = ["01" * 16, "3", "moved", "", "done", "ada", "", "", "", "5"]
    assert proof_body(event) == "\x1f".join(fields).encode()
    told = event._replace(from_state="new", code="odd", message="look", details="{}")
    fields[3], fields[6:9] = "new", ["odd", "look", "{}"]
    assert proof_body(told) == "\x1f".join(fields).encode()
