"""Mutants are small, of four kinds, picked by a seed, and never in the working tree."""

import hashlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools import mutate
from tests.tools.mutate import Coverage, Executed, Mutant
from tests.tools.mutations import find_mutations, is_fit

REPOSITORY = Path(__file__).parents[2]

SOURCE = '''
"""A docstring with 1 number."""
import logging
from typing import TYPE_CHECKING, cast

log = logging.getLogger("sample")
LIMIT = 3

def act(self, items: "list[int]", name="x") -> int:
    """Return 1."""
    if not items:
        raise ValueError("no items 1")
    while self.wanted:
        self.count += 1
    kept: "str" = "word"
    log.info("said", extra={"n": 2})
    found = [n for n in items if n > 2]
    self.state = cast("str", kept) if found else f"{1}"
    self.tell("a sentence to read")
    assert items, 5
    if TYPE_CHECKING:
        self.hidden = 6
    return len(found)

def absent():
    raise NotImplementedError

class Sample:
    limit = 4

    def __repr__(self):
        return "sample"

    async def wait(self):
        await self.tell(True)
'''


def found(kind: str) -> list[str]:
    return [
        f"{change.line}: {change.before} -> {change.after}"
        for change in find_mutations(SOURCE)
        if change.kind == kind
    ]


def test_a_condition_is_negated() -> None:
    assert found("negate") == [
        "11: if not items: -> if items:",
        "13: while self.wanted: -> while not (self.wanted):",
        "17: found = [n for n in items if n > 2] -> found = [n for n in items if not (n > 2)]",
        (
            '18: self.state = cast("str", kept) if found else f"{1}" -> '
            'self.state = cast("str", kept) if not (found) else f"{1}"'
        ),
    ]


def test_a_statement_is_dropped_unless_it_logs_or_sets_a_local_name() -> None:
    assert found("drop") == [
        '12: raise ValueError("no items 1") -> pass',
        "14: self.count += 1 -> pass",
        '18: self.state = cast("str", kept) if found else f"{1}" -> pass',
        '19: self.tell("a sentence to read") -> pass',
        "35: await self.tell(True) -> pass",
    ]


def test_a_constant_is_swapped_unless_it_is_a_type_or_a_sentence() -> None:
    assert found("constant") == [
        "14: self.count += 1 -> self.count += 2",
        '15: kept: "str" = "word" -> kept: "str" = "mutant"',
        "17: found = [n for n in items if n > 2] -> found = [n for n in items if n > 3]",
        "35: await self.tell(True) -> await self.tell(False)",
    ]


def test_a_function_returns_early_or_nothing() -> None:
    assert found("return") == [
        "14: self.count += 1 -> return",
        '15: kept: "str" = "word" -> return',
        "17: found = [n for n in items if n > 2] -> return",
        '18: self.state = cast("str", kept) if found else f"{1}" -> return',
        '19: self.tell("a sentence to read") -> return',
        "23: return len(found) -> return None",
    ]


def test_every_mutation_of_the_sample_compiles_and_differs() -> None:
    assert all(is_fit(SOURCE, change) for change in find_mutations(SOURCE))


def test_a_mutation_that_does_not_compile_or_changes_nothing_is_not_fit() -> None:
    first = find_mutations("def f():\n    g(1)\n")[0]
    assert is_fit("def f():\n    g(1)\n", first)
    assert not is_fit("def f():\n    pass\n", first)
    assert not is_fit("def f():\n g(((1)))\n", first)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of two files, with tests that notice what one of them does."""
    package = tmp_path / "src" / "sample"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "sums.py").write_text(
        "def add(a, b):\n"
        "    if a is None:\n"
        "        return b\n"
        "    unused = 1\n"
        "    total = a + b\n"
        "    return total\n"
    )
    (package / "tales.py").write_text(
        "def tell():\n    a = 1\n    b = 2\n    c = 3\n    return a\n"
    )
    (tmp_path / "test_sums.py").write_text(
        "import pytest\n"
        "from sample.sums import add\n"
        "def test_adds(): assert add(1, 2) == 3\n"
        "@pytest.mark.shows('E-1')\n"
        "def test_takes_none(): assert add(None, 2) == 2\n"
    )
    (tmp_path / "test_tales.py").write_text(
        "from sample.tales import tell\ndef test_tells(): assert tell() == 1\n"
    )
    monkeypatch.setattr(mutate, "ROOT", tmp_path)
    monkeypatch.setattr(mutate, "PACKAGE", package)
    return tmp_path


@pytest.fixture
def coverage(tree: Path) -> Coverage:
    return Coverage(
        mutate.digests(),
        {
            "test_sums.py::test_adds": Executed(0.2, {"src/sample/sums.py": [2, 4, 5, 6]}),
            "test_sums.py::test_takes_none": Executed(0.1, {"src/sample/sums.py": [2, 3]}),
            "test_tales.py::test_tells": Executed(0.1, {"src/sample/tales.py": [2, 3, 4, 5]}),
        },
    )


def keys(mutants: list[Mutant]) -> list[tuple[str, str, str, str]]:
    return [mutant.key for mutant in mutants]


def test_the_same_seed_picks_the_same_mutants_and_another_seed_others(coverage: Coverage) -> None:
    picked = keys(mutate.pick(coverage, seed=1, count=4))
    assert keys(mutate.pick(coverage, seed=1, count=4)) == picked
    assert {tuple(keys(mutate.pick(coverage, seed=seed, count=4))) for seed in range(9)} != {
        tuple(picked)
    }


def test_a_file_has_three_mutants_at_most_and_a_line_one(coverage: Coverage) -> None:
    picked = mutate.pick(coverage, seed=1, count=60)
    assert sorted(mutant.file for mutant in picked) == (
        ["src/sample/sums.py"] * 3 + ["src/sample/tales.py"] * 3
    )
    assert len({(mutant.file, mutant.mutation.line) for mutant in picked}) == len(picked)


def test_a_mutant_has_the_tests_that_execute_its_line_the_fastest_first(
    coverage: Coverage,
) -> None:
    for mutant in mutate.pick(coverage, seed=1, count=60):
        if mutant.mutation.line == 2 and mutant.file.endswith("sums.py"):
            assert mutant.tests == ("test_sums.py::test_takes_none", "test_sums.py::test_adds")
            break
    else:
        pytest.fail("seed 1 no longer picks the line that both tests execute")


def test_requirements_take_turns_when_coverage_is_collected() -> None:
    shown = {f"a.py::{n}": ("E-1",) for n in range(9)} | {"b.py::1": ("E-2",), "b.py::2": ("E-2",)}
    turns = mutate.take_turns(shown, seed=1)
    assert sorted(turns) == sorted(shown)
    assert [test[0] for test in turns] == list("abab") + ["a"] * 7
    assert mutate.take_turns(shown, seed=2) != turns


def test_tests_are_chosen_of_every_file_and_within_the_time() -> None:
    executed = {f"a.py::{n}": Executed(0.1, {}) for n in range(100)} | {
        "b.py::slow": Executed(9.0, {}),
        "c.py::endless": Executed(60.0, {}),
    }
    chosen = mutate.choose(executed, executed)
    assert len(chosen) == mutate.MOST_TESTS
    assert chosen[-1] == "b.py::slow"
    assert mutate.choose(["c.py::endless"], executed) == ("c.py::endless",)


def test_a_line_of_a_source_that_has_changed_gets_no_mutant(tree: Path, coverage: Coverage) -> None:
    with (tree / "src/sample/sums.py").open("a") as file:
        file.write("# later\n")
    assert coverage.changed() == ["src/sample/sums.py"]
    picked = mutate.pick(coverage, seed=1, count=60)
    assert {mutant.file for mutant in picked} == {"src/sample/tales.py"}


def test_newer_coverage_replaces_what_was_said_of_changed_sources(coverage: Coverage) -> None:
    newer = Coverage(
        coverage.sources | {"src/sample/sums.py": "changed"},
        {"test_new.py::test_it": Executed(0.1, {"src/sample/sums.py": [1]})},
    )
    coverage.merge(newer)
    assert coverage.tests["test_sums.py::test_adds"].lines == {}
    assert coverage.tests["test_tales.py::test_tells"].lines != {}
    assert "test_new.py::test_it" in coverage.tests


def test_mutants_are_judged_in_a_copy_and_survivors_fail(tree: Path, coverage: Coverage) -> None:
    before = digest(tree)
    source = (tree / "src/sample/sums.py").read_text()
    mutants = [
        Mutant("src/sample/sums.py", change, tuple(coverage.tests)[:2])
        for change in find_mutations(source)
        if change.after in ("if not (a is None):", "unused = 2")
    ]
    said: list[str] = []
    assert mutate.judge_all(mutants, {}, jobs=1, say=said.append) is False
    assert re.fullmatch(
        r"src/sample/sums.py:2 negate: .*  caught by test_sums.py::\w+ - .*", said[0]
    )
    assert said[1] == "src/sample/sums.py:4 constant: unused = 1 -> unused = 2  SURVIVED"
    assert said[2] == "1 caught, 1 survived, 0 equivalent of 2"
    assert digest(tree) == before


def test_the_other_tests_of_a_file_run_when_the_known_ones_notice_nothing(tree: Path) -> None:
    source = (tree / "src/sample/sums.py").read_text()
    (change,) = [c for c in find_mutations(source) if c.before == "return b"]
    mutant = Mutant("src/sample/sums.py", change, ("test_sums.py::test_adds",))
    verdict = mutate.Court(tree / "court").judge(mutant)
    assert verdict.startswith("caught by test_sums.py::test_takes_none")


@pytest.mark.parametrize(
    ("without_it", "verdict"),
    [(pytest.ExitCode.OK, "caught by the time limit"), (None, "SURVIVED: its tests do not pass")],
)
def test_a_mutant_that_hangs_is_caught_if_its_tests_end_without_it(
    without_it: int | None, verdict: str, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (tree / "src/sample/sums.py").read_text()
    court = mutate.Court(tree / "court")
    sources: list[str] = []

    def run(*arguments: str) -> tuple[int | None, str]:
        sources.append((tree / "court/src/sample/sums.py").read_text())
        return (None if sources[-1] != source else without_it), ""

    monkeypatch.setattr(court, "_run", run)
    change = find_mutations(source)[0]
    assert court.judge(Mutant("src/sample/sums.py", change)).startswith(verdict)
    assert sources == [change.apply(source), source]


def test_a_listed_equivalent_is_not_run_and_does_not_fail(tree: Path, coverage: Coverage) -> None:
    change = next(c for c in find_mutations((tree / "src/sample/sums.py").read_text())
                  if c.after == "unused = 2")  # fmt: skip
    listed = mutate.read_equivalents(
        '[[equivalent]]\nfile = "src/sample/sums.py"\nkind = "constant"\n'
        'before = "unused = 1"\nafter = "unused = 2"\nreason = "nobody reads it"\n'
    )
    said: list[str] = []
    mutant = Mutant("src/sample/sums.py", change, ("test_absent.py",))
    assert mutate.judge_all([mutant], listed, jobs=1, say=said.append) is True
    assert said[0].endswith("equivalent: nobody reads it")
    assert said[1] == "0 caught, 0 survived, 1 equivalent of 1"


def test_an_equivalent_without_a_reason_is_refused() -> None:
    entry = '[[equivalent]]\nfile = "f"\nkind = "drop"\nbefore = "b"\nafter = "a"\nreason = " "\n'
    with pytest.raises(ValueError, match="say why"):
        mutate.read_equivalents(entry)


def test_every_listed_equivalent_is_a_mutation_of_the_source_as_it_is() -> None:
    listed = mutate.read_equivalents(mutate.EQUIVALENTS.read_text(encoding="utf-8"))
    real = {
        Mutant(file, change).key
        for file in {file for file, *_ in listed}
        for change in find_mutations((mutate.ROOT / file).read_text(encoding="utf-8"))
    }
    assert set(listed) - real == set()


RECORD = """
import sys
from pathlib import Path
from tests.tools import mutate

tree = Path(sys.argv[1])
mutate.ROOT, mutate.PACKAGE = tree, tree / "src" / "sample"
mutate.record(str(tree / "coverage.json"), str(mutate.PACKAGE), None, 1, str(tree))
"""


def test_only_what_a_test_with_an_id_executes_when_it_is_called_is_collected(tree: Path) -> None:
    (tree / "test_sums.py").write_text(
        "import pytest\n"
        "from sample.sums import add\n"
        "from sample.tales import tell\n"
        "@pytest.fixture\n"
        "def told(): return tell()\n"
        "shows = pytest.mark.shows\n"
        "@shows('E-1')\n"
        "def test_takes_none(told): assert add(None, 2) == 2\n"
        "@shows('E-1')\n"
        "def test_fails(): assert add(1, 2) == 4\n"
        "def test_without_an_id(): assert add(1, 2) == 3\n"
    )
    (tree / "pytest.ini").write_text("[pytest]\nmarkers =\n    shows(*ids)\n")
    subprocess.run(
        [sys.executable, "-c", RECORD, str(tree)],
        cwd=REPOSITORY,
        env=mutate.environment(tree / "src" / "sample"),
        check=True,
        stdout=subprocess.DEVNULL,
    )
    collected = Coverage.read(tree / "coverage.json")
    assert {name.partition("::")[2]: test.lines for name, test in collected.tests.items()} == {
        "test_takes_none": {"src/sample/sums.py": [2, 3]}
    }


def test_tests_of_the_repository_can_be_run_with_the_plugins_that_are_named_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *mutate.PYTEST, "--collect-only", __file__],
        cwd=REPOSITORY, env=mutate.environment(mutate.PACKAGE), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_collection_that_could_not_run_its_tests_fails(tree: Path) -> None:
    (tree / "conftest.py").write_text("def pytest_nobody_knows_this(): ...\n")
    done = subprocess.run(
        [sys.executable, "-c", RECORD, str(tree)],
        cwd=REPOSITORY, env=mutate.environment(tree / "src" / "sample"), capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "no coverage was collected" in done.stderr


def digest(tree: Path) -> str:
    files = sorted(path for path in tree.rglob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
