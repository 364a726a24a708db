"""The programs of examples/ run as they are, and print what they have always printed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
DOCS = EXAMPLES.with_name("docs")

ONBOARDING = """\
Ada:
  made ada@example.com
  ordered a laptop
  the submitter may not decide: not-permitted
  welcomed ada@example.com, approved by colleague: as the policy says
  ended as welcomed
Bob:
  made bob@example.com
  ordered a yacht
  the submitter may not decide: not-permitted
  cancelled the yacht
  deleted bob@example.com
  ended as refused
"""

NIGHTLY_REPORT = """\
acme: written, Report(orders=3, total=500, attempts=1)
globex: written, Report(orders=1, total=45, attempts=2)
initech: written, Report(orders=0, total=0, attempts=1)
asked for again, after a restart perhaps:
acme: the same job, nothing new
globex: the same job, nothing new
initech: the same job, nothing new
"""

PIPELINE = """\
2,000 of 2,000 jobs are done, each after two waits of 1 s
in one worker, more than half of them waiting at once: True
4,000 s of waiting in less than 30 s: True
"""


def output_of(name: str) -> str:
    """What an example prints; it must say nothing on stderr and end well."""
    child = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert child.stderr == ""
    assert child.returncode == 0
    return child.stdout


@pytest.mark.shows("E-11", "E-42")
def test_onboarding_approves_one_hire_and_undoes_the_other() -> None:
    assert output_of("onboarding.py") == ONBOARDING


@pytest.mark.shows("E-10", "E-30")
def test_a_nightly_report_is_written_once_per_tenant_and_night() -> None:
    assert output_of("nightly_report.py") == NIGHTLY_REPORT


def test_two_thousand_jobs_wait_at_once_in_one_worker() -> None:
    assert output_of("pipeline.py") == PIPELINE


@pytest.mark.shows("E-77")
def test_long_stages_stop_at_a_checkpoint() -> None:
    """A stage that sees its stop and returns has finished: no page shows that as a pattern."""
    rooms = ("concepts", "how-to", "operations", "reference")
    pages = [*EXAMPLES.glob("*.py"), *(p for room in rooms for p in (DOCS / room).glob("*.md"))]
    texts = {page.name: page.read_text(encoding="utf-8") for page in pages}
    assert {"deploy.md", "nightly_report.py"} <= {
        name for name, text in texts.items() if re.search(r"^ +run\.checkpoint\(\)", text, re.M)
    }
    returns = re.compile(r"if run\.cancelled:\s*(return|break)")
    assert [name for name, text in texts.items() if returns.search(text)] == []


@pytest.mark.parametrize("name", ["onboarding.py", "nightly_report.py", "pipeline.py"])
def test_an_example_is_short_enough_to_be_read(name: str) -> None:
    assert len((EXAMPLES / name).read_text(encoding="utf-8").splitlines()) < 100
