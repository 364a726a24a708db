"""The judge, by itself: any table, any question."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ulak.services.contracts import requests, tables
from ulak.services.contracts.requests import Transition, Verdict, birth, judge
from ulak.services.contracts.tables import versions_in_force

VERSION = versions_in_force({}).active
STATUSES = ["pending", "paid", "failed", "confirmed", "checked_in", "completed", "cancelled"]

words = st.sampled_from([*STATUSES, "nonsense"])
kinds = st.sampled_from([*VERSION.tables, "unicorn"])
standings = st.just((None, 0)) | st.tuples(words, st.integers(0, 3))
questions = st.builds(
    Transition, st.just("acme"), kinds, st.just("1"), words, key=st.just("k"),
    from_=st.none() | words, expected_version=st.none() | st.integers(0, 3),
)  # fmt: skip


def ask(kind: str, to: str) -> Transition:
    return Transition("acme", kind, "1", to, key="k")


@given(questions, standings)
def test_every_question_is_judged_in_the_one_order(
    asked: Transition, standing: tuple[str | None, int]
) -> None:
    status, number = standing
    verdict = judge(VERSION, asked, status, number)
    table = VERSION.tables.get(asked.type)
    if table is None:
        assert verdict == Verdict(requests.UNKNOWN_SUBJECT_TYPE)
    elif status is None:
        assert verdict == Verdict(requests.SUBJECT_NOT_FOUND)
    elif asked.to == status:
        assert verdict == Verdict(None)
    elif asked.from_ not in (None, status):
        assert verdict == Verdict(requests.STALE_STATUS)
    elif asked.expected_version not in (None, number):
        assert verdict == Verdict(requests.STALE_VERSION)
    elif status in table.terminal:
        assert verdict == Verdict(requests.TERMINAL_STATE)
    elif asked.to not in table.moves.get(status, ()):
        assert verdict == Verdict(requests.INVALID_TRANSITION)
    else:
        assert verdict == Verdict(None, changes=True)


@given(kinds, st.lists(words))
def test_whatever_is_asked_a_subject_only_goes_where_its_table_leads(
    kind: str, targets: list[str]
) -> None:
    if kind not in VERSION.tables:
        return
    table, status = VERSION.tables[kind], "pending"
    for version, target in enumerate(targets):
        verdict = judge(VERSION, ask(kind, target), status, version)
        if verdict.changes:
            assert target in table.moves[status]
            assert status not in table.terminal
            status = target


@given(questions)
def test_a_subject_is_born_only_where_the_caller_says_that_it_begins(asked: Transition) -> None:
    born = birth(VERSION, asked)
    if asked.type in VERSION.tables and asked.from_ == "pending":
        assert born == "pending"
    else:
        assert born is None


@pytest.mark.parametrize("status", ["cancelled", "somewhere"])
def test_a_status_that_this_version_does_not_know_leads_nowhere(status: str) -> None:
    table = {"initial": "new", "moves": {"new": ["old"]}, "terminal": ["old"]}
    version = tables.read(json.dumps({"version": "x", "types": {"order": table}}), "x")
    verdict = judge(version, ask("order", "old"), status, 1)
    assert verdict == Verdict(requests.INVALID_TRANSITION)
