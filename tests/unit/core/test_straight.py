"""The short way says what the long way says, for every job that it is taken for."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ulak.core.decide import RunFacts, decide, is_plain
from ulak.core.flow import Flow
from ulak.core.intake import Submission, begin
from ulak.core.job import JobRow, Payload
from ulak.core.lifecycle import Lifecycle
from ulak.core.outcome import Finished, Left
from ulak.core.policy import Dedup, Limit

NOW = 1_794_710_270_113_245


async def nothing(run: object) -> None:
    """A stage."""


def flow(**options: Any) -> Flow[Any]:
    table = {"a": ["b"], "b": ["c", "held"], "c": ["during"], "during": ["done"]}
    made: Flow[Any] = Flow("f", Lifecycle("a", table), **options)
    made.stage("a")(nothing)
    made.stage("b", to="c")(nothing)
    made.stage("c", during="during", limit=Limit(2))(nothing)
    return made


FLOWS = [flow(), flow(proofs=True), flow(dedup=Dedup()), Flow.steps("g", ("a", nothing))]

leased = st.fixed_dictionaries(
    {
        "state": st.sampled_from(["a", "b", "during"]),
        "attempt": st.integers(0, 5),
        "lapses": st.integers(0, 3),
        "lapsed": st.integers(0, 1),
        "round": st.integers(1, 4),
        "seq": st.integers(1, 99),
        "version": st.integers(1, 99),
        "token": st.integers(1, 99),
        "has_results": st.integers(0, 1),
        "requests": st.integers(0, 2),
        "dedup_key": st.none() | st.just("key"),
    }
)


@given(
    chosen=st.sampled_from(FLOWS),
    columns=leased,
    later=st.integers(0, 10**9),
    expires=st.none() | st.just(timedelta(hours=1)),
    keep=st.none() | st.booleans(),
)
def test_both_ways_lead_to_the_same_change(
    chosen: Flow[Any],
    columns: dict[str, Any],
    later: int,
    expires: timedelta | None,
    keep: bool | None,
) -> None:
    job = _job(chosen, columns, expires)
    facts = RunFacts("worker", NOW + 1, None if keep is None else lambda place: keep)
    short, long = (
        decide(chosen, job, outcome, NOW + later, facts=facts, commit_id=b"c" * 16)
        for outcome in (Finished(), Finished(left=Left()))
    )
    assert short == long


def _job(chosen: Flow[Any], columns: dict[str, Any], expires: timedelta | None) -> JobRow:
    new = begin(
        chosen, Payload(b"null", 1), Submission(expires=expires), NOW, job_id=b"j" * 16,
        commit_id=b"s" * 16,
    )  # fmt: skip
    if columns["state"] not in chosen.table.places:
        columns = columns | {"state": "a"}
    place = chosen.table.places[columns["state"]]
    return new.row._replace(
        role=place.role, lane=place.lane, slot=place.slot, leased_by="worker", leased_at=NOW,
        stood=1, **columns,
    )  # fmt: skip


def test_the_short_way_is_taken_where_nothing_else_is_to_be_done() -> None:
    assert set(flow().table.straight) == {"a"}, "b leads to a limited stage, the rest too"
    assert set(Flow.steps("g", ("a", nothing), ("b", nothing)).table.straight) == {"a", "b"}
    undone: Flow[Any] = Flow("u", Lifecycle("a", {"a": ["done"]}))
    undone.stage("a")(nothing).undo(nothing)
    assert not undone.table.straight
    assert not flow(proofs=True).table.straight


@pytest.mark.parametrize(
    ("outcome", "plain"),
    [
        (Finished(), True),
        (Finished(left=Left(result=b"1")), False),
        (Finished(to="b"), False),
        (Finished(after=timedelta(1)), False),
    ],
)
def test_only_a_run_that_just_finished_goes_the_short_way(outcome: Finished, plain: bool) -> None:
    assert is_plain(outcome) is plain
