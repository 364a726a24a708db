"""What the page about the draft says is shown is shown by something that is there."""

from tests.docs.pages import DOCS, ROOT
from tests.docs.test_roadmap import NAMED

PAGE = (DOCS / "idempotency-draft.md").read_text(encoding="utf-8")
CLAUSES = [line for line in PAGE.splitlines() if line.startswith("| ") and line[2].isdigit()]


def test_every_clause_is_shown_by_a_test_that_is_there() -> None:
    assert len(CLAUSES) > 15
    for clause in CLAUSES:
        named = NAMED.findall(clause.rsplit(" | ", 1)[1])
        # What may be done and is not needs no test.
        assert named or "does not" in clause, clause
        for path, test in named:
            assert test, clause
            assert f"def {test}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path}::{test}"


def test_every_clause_says_how_much_it_asks_for() -> None:
    words = ("MUST", "SHOULD", "MAY", "RECOMMENDED")
    assert all(any(word in clause for word in words) for clause in CLAUSES)
