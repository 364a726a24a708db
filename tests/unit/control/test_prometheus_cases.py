"""ulak answers as Prometheus did, whose answers `tests/tools/prometheus_cases.py` has recorded."""

from collections import Counter

import pytest

from tests.tools import prometheus_cases
from tests.tools.prometheus_cases import Case, agrees, answer, make_cases, read_recorded

RECORDED = read_recorded()


@pytest.mark.shows("A-21", "A-23", "A-24")
@pytest.mark.parametrize(
    ("case", "theirs"), RECORDED, ids=[case.name.replace(" ", "-") for case, _ in RECORDED]
)
def test_ulak_answers_as_prometheus_did(case: Case, theirs: str | None) -> None:
    assert agrees(answer(case), theirs), (answer(case), theirs)


def test_the_recorded_cases_are_those_that_the_tool_makes() -> None:
    assert [repr(case) for case in make_cases()] == [repr(case) for case, _ in RECORDED]


def test_every_kind_of_answer_is_among_them() -> None:
    kinds = Counter(
        (case.function, theirs if theirs in (None, "NaN", "+Inf") else "number")
        for case, theirs in RECORDED
    )
    for function in ("rate", "increase", "histogram_quantile"):
        assert kinds[function, "number"] >= 20
        assert kinds[function, "NaN"] >= 3
        assert kinds[function, "+Inf"] >= 1
    assert kinds["rate", None] >= 1
    assert '"prometheus, version 2.42' in prometheus_cases.RECORDED.read_text()


def test_no_case_rests_on_a_rule_that_changed_since() -> None:
    assert all(case.is_comparable for case, _ in RECORDED)
    edge = Case("", "rate", [({}, [(prometheus_cases.BEGIN_MS, 1.0)])])
    assert not edge.is_comparable


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (1.0, "1", True), (1.0, "1.00000000001", False), (float("nan"), None, True),
        (float("nan"), "NaN", True), (1.0, None, False), (float("inf"), "+Inf", True),
        (0.0, "NaN", False), (float("nan"), "0", False),
    ],
)  # fmt: skip
def test_answers_agree_to_twelve_digits(ours: float, theirs: str | None, expected: bool) -> None:
    assert agrees(ours, theirs) is expected
