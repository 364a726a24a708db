"""The judge, by itself: any table, any question."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ulak.services.contracts import rules, tables
from ulak.services.contracts.configuration import versions_in_force
from ulak.services.contracts.rules import Asked, Standing, Verdict, birth, judge

VERSION = versions_in_force({}).active
STATUSES = ["pending", "paid", "failed", "confirmed", "checked_in", "completed", "cancelled"]

words = st.sampled_from([*STATUSES, "nonsense"])
kinds = st.sampled_from([*VERSION.tables, "unicorn"])
standings = st.none() | st.builds(Standing, words, st.integers(0, 3))
questions = st.builds(
    Asked, kinds, words, from_=st.none() | words, expected_version=st.none() | st.integers(0, 3)
)


@given(questions, standings)
def test_every_question_is_judged_in_the_one_order(asked: Asked, standing: Standing | None) -> None:
    verdict = judge(VERSION, asked, standing)
    table = VERSION.tables.get(asked.type)
    if table is None:
        assert verdict == Verdict(rules.UNKNOWN_SUBJECT_TYPE)
    elif standing is None:
        assert verdict == Verdict(rules.SUBJECT_NOT_FOUND)
    elif asked.to == standing.status:
        assert verdict == Verdict(None)
    elif asked.from_ not in (None, standing.status):
        assert verdict == Verdict(rules.STALE_STATUS)
    elif asked.expected_version not in (None, standing.version):
        assert verdict == Verdict(rules.STALE_VERSION)
    elif standing.status in table.terminal:
        assert verdict == Verdict(rules.TERMINAL_STATE)
    elif asked.to not in table.moves.get(standing.status, ()):
        assert verdict == Verdict(rules.INVALID_TRANSITION)
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
        verdict = judge(VERSION, Asked(kind, target), Standing(status, version))
        if verdict.changes:
            assert target in table.moves[status]
            assert status not in table.terminal
            status = target


@given(questions)
def test_a_subject_is_born_only_where_the_caller_says_that_it_begins(asked: Asked) -> None:
    born = birth(VERSION, asked)
    if asked.type in VERSION.tables and asked.from_ == "pending":
        assert born == Standing("pending", 0)
    else:
        assert born is None


@pytest.mark.parametrize("status", ["cancelled", "somewhere"])
def test_a_status_that_this_version_does_not_know_leads_nowhere(status: str) -> None:
    table = {"initial": "new", "moves": {"new": ["old"]}, "terminal": ["old"]}
    version = tables.read(json.dumps({"version": "x", "types": {"order": table}}), "x")
    verdict = judge(version, Asked("order", "old"), Standing(status, 1))
    assert verdict == Verdict(rules.INVALID_TRANSITION)
