"""What a filter means, by which index it is found, and what it says when there is none."""

from datetime import UTC, datetime

import pytest

from ulak import BadInput, JobFilter
from ulak.clock import to_instant
from ulak.ids import find_range, first_id, time_ordered_id
from ulak.store.protocol.filters import Term, find_parts

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
LATER = datetime(2026, 1, 31, 13, tzinfo=UTC)


@pytest.mark.shows("E-75")
@pytest.mark.parametrize(
    ("where", "indexes"),
    [
        (JobFilter(), [""]),
        (JobFilter(owner="ada", role="failed", submitted_since=NOON), ["owners_jobs"]),
        (JobFilter(dedup_key="k", role="failed", changed_since=NOON), ["jobs_keyed"]),
        (JobFilter(id_prefix="01", flow="f"), [""]),
        (JobFilter(role="failed", changed_since=NOON), ["jobs_remarkable"]),
        (JobFilter(role="done", changed_since=NOON), ["jobs_ended"]),
        (JobFilter(submitted_since=NOON), ["", "jobs_unordered"]),
        (JobFilter(submitted_before=NOON, role="held"), ["jobs_remarkable"] * 2),
        (JobFilter(submitted_before=NOON, role="done", changed_since=NOON), ["", "jobs_unordered"]),
    ],
)  # fmt: skip
def test_a_filter_that_an_index_serves_says_nothing(where: JobFilter, indexes: list[str]) -> None:
    assert [part.by for part in find_parts(where)] == indexes
    assert where.unserved is None


@pytest.mark.shows("E-75")
@pytest.mark.parametrize(
    ("where", "named"),
    [
        (JobFilter(flow="f", state="s"), "flow= and state="),
        (JobFilter(tenant="t"), "tenant="),
        (JobFilter(code="c"), "code="),
        (JobFilter(queue="q"), "queue="),
        (JobFilter(role="ready"), "role="),
        (JobFilter(changed_since=NOON), "changed_since="),
        (JobFilter(role="done", changed_before=NOON), "role= and changed_before="),
    ],
)
def test_a_filter_that_no_index_serves_says_so(where: JobFilter, named: str) -> None:
    assert where.unserved is not None
    assert where.unserved.startswith(f"no index serves {named}: ")
    assert "submitted_since=" in where.unserved


@pytest.mark.shows("E-75")
@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        ({"submitted_since": datetime(2026, 1, 31)}, "is no time with a zone"),  # noqa: DTZ001 - that is the point
        ({"changed_before": "2026-01-31"}, "is no time with a zone"),
        ({"id_prefix": "0192e4aX"}, "no job id begins with '0192e4aX'"),
        ({"id_prefix": ""}, "no job id begins with ''"),
        ({"id_prefix": "0" * 33}, "no job id begins with"),
        ({"owner": "a\x00b"}, "a character that no store can keep"),
        ({"dedup_key": "\ud800"}, "a character that no store can keep"),
    ],
)
def test_a_condition_that_cannot_be_used_is_refused(bad: dict[str, object], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        JobFilter(**bad)  # type: ignore[arg-type] # some are not of the type


@pytest.mark.shows("E-75")
def test_a_time_of_submission_bounds_the_ids_that_begin_with_it() -> None:
    since, before = to_instant(NOON), to_instant(LATER)
    ordered, unordered = find_parts(JobFilter(submitted_since=NOON, submitted_before=LATER))
    assert Term("id", ">=", first_id(since)) in ordered.terms
    assert Term("id", "<", first_id(before)) in ordered.terms
    assert {term.column for term in unordered.terms if term.value is not None} == {"created_at"}
    for _ in range(100):
        assert first_id(since) <= time_ordered_id(since) < first_id(since + 1)


def test_an_id_that_begins_so_lies_between_the_two_ends() -> None:
    least, greatest = find_range("0192E4a0-5")
    assert (least.hex(), greatest.hex()) == ("0192e4a05" + "0" * 23, "0192e4a05" + "f" * 23)
