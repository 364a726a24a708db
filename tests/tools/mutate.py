"""Mutants of `src/ulak`: a test that shows a requirement must fail when the code is wrong.

    python -m tests.tools.mutate --seed 20261 --count 60

Picks lines that tests with a `shows` marker execute, breaks each in one small way in a copy of
the package, and runs the tests of those lines against the copy: the working tree is never
touched. Prints one line per mutant and ends with status 1 when one survives that
`equivalent_mutants.toml` does not list.

Which test executes which line is collected first, by `coverage`, and kept in `--coverage FILE`;
a file that is there is reused. Tests are taken in turns, one of each requirement, until
`--minutes` of CPU time are spent; `--collect TEST...` adds the named ones. Only the test's own
process is seen, and only its call phase: lines of children, of imports and of fixtures get no
mutants. Nor does `ulak.testing`, which is test code; `mutations.py` says what else is left alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue

import pytest

from tests.tools.mutations import KINDS, Mutation, find_mutations, is_fit

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "ulak"
EQUIVALENTS = Path(__file__).with_name("equivalent_mutants.toml")

MOST_OF_A_FILE = 3
MOST_TESTS = 40
# When the known tests have noticed nothing, the other tests of so many of their files run.
MOST_FILES = 5
# By the durations of the coverage pass, without fixtures: servers start once.
MOST_SECONDS = 30.0
TIMEOUT_S = 120

PYTEST = (
    "-q", "--tb=no", "-rfE", "-p", "no:cacheprovider", "-o", f"timeout={TIMEOUT_S}",
    "-p", "pytest_timeout", "-p", "_hypothesis_pytestplugin", "--hypothesis-seed=0",
)  # fmt: skip


# --- which test executes which line ------------------------------------------------


@dataclass(frozen=True, slots=True)
class Executed:
    """What one test executes while it is called."""

    seconds: float
    lines: Mapping[str, Sequence[int]]
    """By file, relative to the root of the repository."""


class Coverage:
    """What every test with an id executes, as a file keeps it."""

    def __init__(self, sources: dict[str, str], tests: dict[str, Executed]) -> None:
        self.sources = sources
        self.tests = tests

    @classmethod
    def read(cls, file: Path) -> Coverage:
        kept = json.loads(file.read_text(encoding="utf-8"))
        tests = {name: Executed(**executed) for name, executed in kept["tests"].items()}
        return cls(kept["sources"], tests)

    def write(self, file: Path) -> None:
        tests = {
            name: {"seconds": executed.seconds, "lines": executed.lines}
            for name, executed in self.tests.items()
        }
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"sources": self.sources, "tests": tests}), encoding="utf-8")

    def merge(self, newer: Coverage) -> None:
        """Take over newer tests; what older ones say of sources that have changed is forgotten."""
        changed = {
            file for file, digest in newer.sources.items() if self.sources.get(file) != digest
        }
        for name, executed in self.tests.items():
            lines = {file: lines for file, lines in executed.lines.items() if file not in changed}
            self.tests[name] = Executed(executed.seconds, lines)
        self.sources |= newer.sources
        self.tests |= newer.tests

    def tests_by_line(self) -> dict[str, dict[int, list[str]]]:
        """Return the tests by file and line, for sources that are as they were."""
        now = digests()
        found: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
        for name, executed in self.tests.items():
            for file, lines in executed.lines.items():
                if self.sources.get(file) == now.get(file):
                    for line in lines:
                        found[file][line].append(name)
        return found

    def changed(self) -> list[str]:
        """Return the files that have changed since; they get no mutants."""
        now = digests()
        return sorted(file for file, digest in self.sources.items() if now.get(file) != digest)


def digests() -> dict[str, str]:
    """Return the digest of every source that may get mutants."""
    return {
        str(file.relative_to(ROOT)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(PACKAGE.rglob("*.py"))
        if "testing" not in file.relative_to(PACKAGE).parts[:1]
    }


class Recorder:
    """Runs the tests that show something, and notes what each executes when it is called.

    Args:
        package: The copy of the package that is imported.
        minutes: How much CPU time to spend, on tests in turns; on all of them when None.
        seed: Of the turns.
    """

    def __init__(self, package: Path, *, minutes: float | None, seed: int) -> None:
        # Here and not above: judging mutants does without it.
        from coverage import Coverage as Tracer

        self._package = package
        self._minutes = minutes
        self._seed = seed
        self._seconds: dict[str, float] = {}
        self._unfit: set[str] = set()
        self._tracer = Tracer(
            data_file=None,
            config_file=False,
            include=[f"{package}/*"],
            omit=[f"{package}/testing/*"],
            messages=False,
        )
        self._tracer.start()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        # Here and not above: pytest refuses to rewrite a plugin that is imported already.
        from tests.shows import ids_of

        shown = {item.nodeid: tuple(ids_of(item)) for item in items if ids_of(item)}
        wanted = list(shown) if self._minutes is None else take_turns(shown, seed=self._seed)
        place = {nodeid: number for number, nodeid in enumerate(wanted)}
        items[:] = sorted(
            (item for item in items if item.nodeid in place), key=lambda item: place[item.nodeid]
        )

    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        if self._minutes is not None and sum(os.times()[:4]) > self._minutes * 60:
            item.session.shouldstop = f"{self._minutes} minutes are spent"

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        self._tracer.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            self._tracer.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self._seconds[report.nodeid] = report.duration
        elif not report.passed:
            self._unfit.add(report.nodeid)

    def coverage(self) -> Coverage:
        """Stop, and return what was seen of the tests that passed."""
        self._tracer.stop()
        data = self._tracer.get_data()
        lines: dict[str, dict[str, list[int]]] = {
            test: {} for test in self._seconds.keys() - self._unfit
        }
        for path in sorted(data.measured_files()):
            file = str(PACKAGE.relative_to(ROOT) / Path(path).relative_to(self._package))
            for line, contexts in sorted(data.contexts_by_lineno(path).items()):
                for test in contexts:
                    if test in lines:
                        lines[test].setdefault(file, []).append(line)
        return Coverage(
            digests(),
            {test: Executed(round(self._seconds[test], 3), lines[test]) for test in sorted(lines)},
        )


def take_turns(shown: Mapping[str, Sequence[str]], *, seed: int) -> list[str]:
    """Order tests so that each requirement has one in turn, and the tests of a turn by file.

    However early the run stops, no requirement has many tests while another has none.
    """
    waiting: dict[str, list[str]] = defaultdict(list)
    for test in random.Random(seed).sample(sorted(shown), len(shown)):  # noqa: S311 - to repeat
        for name in shown[test]:
            waiting[name].append(test)
    taken: dict[str, None] = {}
    while waiting:
        turn: set[str] = set()
        for name in sorted(waiting):
            left = [test for test in waiting.pop(name) if test not in taken and test not in turn]
            turn.update(left[:1])
            if left[1:]:
                waiting[name] = left[1:]
        taken |= dict.fromkeys(sorted(turn))
    return list(taken)


def record(file: str, package: str, minutes: float | None, seed: int, *tests: str) -> None:
    """Run tests under coverage and write what they execute; the child process of `collect`."""
    recorder = Recorder(Path(package), minutes=minutes, seed=seed)
    ended = pytest.main([*PYTEST, *tests], plugins=[recorder])
    if ended in (pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR):
        sys.exit(f"no coverage was collected: pytest ended with {ended!r}")
    recorder.coverage().write(Path(file))


def collect(file: Path, *, minutes: float | None, seed: int, tests: Sequence[str]) -> None:
    """Collect coverage into a file, beside what it holds of other tests.

    The copy of the package is in use here too: a test that fails only because of the copy must
    not count as one that catches mutants.
    """
    with tempfile.TemporaryDirectory(prefix="ulak-mutate-") as scratch:
        package = copy_package(Path(scratch))
        new = Path(scratch) / "coverage.json"
        arguments = [str(new), str(package), minutes, seed, *tests]
        code = f"from tests.tools.mutate import record; record(*{arguments!r})"
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment(package), check=True)
        newer = Coverage.read(new)
    if file.exists():
        kept = Coverage.read(file)
        kept.merge(newer)
        newer = kept
    newer.write(file)


def copy_package(scratch: Path) -> Path:
    """Copy the package into a directory of its own and return where it is."""
    return Path(
        shutil.copytree(
            PACKAGE,
            scratch / PACKAGE.relative_to(ROOT),
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    )


def environment(package: Path) -> dict[str, str]:
    """Return an environment in which this process's children import the copy."""
    return os.environ | {
        "PYTHONPATH": str(package.parent),
        # Only the plugins that are named: others take longer to load than most mutants to judge.
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        # A mutant and its original may have the same size and second: no byte code is kept.
        "PYTHONDONTWRITEBYTECODE": "1",
        # What a mutant breaks is no example for the next honest run.
        "HYPOTHESIS_STORAGE_DIRECTORY": str(package.parent / ".hypothesis"),
    }


# --- picking and judging -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mutation of one file, and the tests that must notice."""

    file: str
    mutation: Mutation
    tests: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What names it while other lines of its file come and go."""
        return (self.file, self.mutation.kind, self.mutation.before, self.mutation.after)

    def __str__(self) -> str:
        change = self.mutation
        return f"{self.file}:{change.line} {change.kind}: {change.before} -> {change.after}"


def pick(coverage: Coverage, *, seed: int, count: int) -> list[Mutant]:
    """Pick mutants by a seed: as many of each kind, at most three of a file, one of a line.

    Each has a rank of its own, by its text: other lines and tests come and go without it.
    """
    sources: dict[str, str] = {}
    ranked: dict[str, list[tuple[str, Mutant]]] = {kind: [] for kind in KINDS}
    tests_by_line = coverage.tests_by_line()
    for file, by_line in tests_by_line.items():
        sources[file] = (ROOT / file).read_text(encoding="utf-8")
        seen: Counter[tuple[str, ...]] = Counter()
        for mutation in find_mutations(sources[file]):
            mutant = Mutant(file, mutation)
            seen[mutant.key] += 1
            if mutation.statement_line in by_line:
                rank = f"{seed} {mutant.key} {seen[mutant.key]}"
                ranked[mutation.kind].append((hashlib.sha256(rank.encode()).hexdigest(), mutant))
    queues = [
        iter([mutant for _, mutant in sorted(ranked[kind], key=lambda pair: pair[0])])
        for kind in KINDS
    ]
    picked: list[Mutant] = []
    of_file: Counter[str] = Counter()
    of_line: set[tuple[str, int]] = set()
    while queues and len(picked) < count:
        queue = queues.pop(0)
        for mutant in queue:
            file, mutation = mutant.file, mutant.mutation
            place = (file, mutation.statement_line)
            if (
                of_file[file] < MOST_OF_A_FILE
                and place not in of_line
                and is_fit(sources[file], mutation)
            ):
                of_file[file] += 1
                of_line.add(place)
                tests = tests_by_line[file][mutation.statement_line]
                picked.append(replace(mutant, tests=choose(tests, coverage.tests)))
                queues.append(queue)
                break
    return picked


def choose(tests: Iterable[str], executed: Mapping[str, Executed]) -> tuple[str, ...]:
    """Choose the tests to run for a line, of as many files as can be, the fastest first."""
    by_file: dict[str, list[str]] = defaultdict(list)
    for test in sorted(tests, key=lambda test: (executed[test].seconds, test)):
        by_file[test.partition("::")[0]].append(test)
    chosen: list[str] = []
    left_s = MOST_SECONDS
    while by_file and len(chosen) < MOST_TESTS:
        for file in sorted(by_file):
            test = by_file[file].pop(0)
            seconds = executed[test].seconds
            if not by_file[file] or seconds > left_s:
                del by_file[file]  # what follows in this file is slower still
            if len(chosen) < MOST_TESTS and (seconds <= left_s or not chosen):
                chosen.append(test)
                left_s -= seconds
    return tuple(sorted(chosen, key=lambda test: (executed[test].seconds, test)))


def read_equivalents(text: str) -> dict[tuple[str, str, str, str], str]:
    """Read the mutants that change nothing, each with its reason.

    Raises:
        ValueError: one of them has no reason.
    """
    found = {}
    for entry in tomllib.loads(text).get("equivalent", []):
        if not entry.get("reason", "").strip():
            raise ValueError(f"{entry['file']}: {entry['before']}: say why it changes nothing")
        key = (entry["file"], entry["kind"], entry["before"], entry["after"])
        found[key] = entry["reason"]
    return found


SURVIVED = "SURVIVED"


class Court:
    """Judges mutants in a copy of the package, which is as it was after each.

    Args:
        scratch: A directory for the copy.
    """

    def __init__(self, scratch: Path) -> None:
        self._package = copy_package(scratch)

    def judge(self, mutant: Mutant) -> str:
        """Return the test that catches a mutant and how it fails, or `SURVIVED`.

        The tests that are known to execute its line are a sample. If they notice nothing, all
        tests of their files run that show something.

        Raises:
            LookupError: the tests cannot be collected, mutant or not.
        """
        verdict = self._judge(mutant, mutant.tests)
        if verdict != SURVIVED:
            return verdict
        files = dict.fromkeys(test.partition("::")[0] for test in mutant.tests)
        return self._judge(mutant, ("-m", "shows", *list(files)[:MOST_FILES]))

    def _judge(self, mutant: Mutant, tests: Sequence[str]) -> str:
        """Judge by these tests. Of a mutant that hangs, they must end in time without it."""
        with self._mutated(mutant):
            status, output = self._run("-x", *tests)
        if status is None:
            if self._run("-x", *tests)[0] != pytest.ExitCode.OK:
                return f"{SURVIVED}: its tests do not pass in {TIMEOUT_S} s without it either"
            return f"caught by the time limit of {TIMEOUT_S} s"
        if status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return SURVIVED
        if status == pytest.ExitCode.TESTS_FAILED:
            first = next(line for line in output.splitlines() if line.startswith(_FAILURES))
            return f"caught by {first.partition(' ')[2]}"
        if self._run("--collect-only", *tests)[0] != pytest.ExitCode.OK:
            raise LookupError(f"{mutant}: its tests cannot be collected any more:\n{output}")
        return "caught when its tests were collected"

    @contextmanager
    def _mutated(self, mutant: Mutant) -> Iterator[None]:
        path = self._package.parents[1] / mutant.file
        original = path.read_text(encoding="utf-8")
        path.write_text(mutant.mutation.apply(original), encoding="utf-8")
        try:
            yield
        finally:
            path.write_text(original, encoding="utf-8")

    def _run(self, *arguments: str) -> tuple[int | None, str]:
        """Return pytest's status, None when it hung, and what it printed."""
        with subprocess.Popen(
            [sys.executable, "-m", "pytest", *PYTEST, *arguments],
            cwd=ROOT, env=environment(self._package), text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ) as process:  # fmt: skip
            try:
                return _finish(process)
            finally:
                # Whatever the tests have started and left ends with them.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


_FAILURES = ("FAILED ", "ERROR ")


def _finish(process: subprocess.Popen[str]) -> tuple[int | None, str]:
    try:
        output, _ = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return None, ""
    return process.returncode, output


def print_at_once(line: str) -> None:
    """Print a line that is read while the next mutant is judged."""
    print(line, flush=True)  # noqa: T201


def judge_all(
    mutants: Sequence[Mutant],
    equivalents: Mapping[tuple[str, str, str, str], str],
    *,
    jobs: int,
    say: Callable[[str], None] = print_at_once,
) -> bool:
    """Judge mutants, say one line of each and a summary; tell whether none survived."""
    verdicts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="ulak-mutate-") as scratch:
        courts: SimpleQueue[Court] = SimpleQueue()
        for number in range(jobs):
            courts.put(Court(Path(scratch) / str(number)))

        def judge(mutant: Mutant) -> str:
            if mutant.key in equivalents:
                return f"equivalent: {equivalents[mutant.key]}"
            court = courts.get()
            try:
                return court.judge(mutant)
            finally:
                courts.put(court)

        with ThreadPoolExecutor(jobs) as threads:
            for mutant, verdict in zip(mutants, threads.map(judge, mutants), strict=True):
                verdicts[verdict.partition(" ")[0].rstrip(":")] += 1
                say(f"{mutant}  {verdict}")
    caught, survived, equal = (verdicts[name] for name in ("caught", SURVIVED, "equivalent"))
    say(f"{caught} caught, {survived} survived, {equal} equivalent of {len(mutants)}")
    return not survived


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.tools.mutate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--seed", type=int, default=1, help="picks tests and mutants")
    add("--count", type=int, default=60, help="how many mutants")
    add("--jobs", type=int, default=1, help="how many to judge at once")
    add("--minutes", type=float, default=15, help="CPU time for the collection of coverage")
    add(
        "--coverage", type=Path, metavar="FILE", default=ROOT / ".coverage-ids" / "coverage.json",
        help="where coverage is kept; collected when it is not there",
    )  # fmt: skip
    add("--collect", nargs="+", metavar="TEST", help="collect coverage of these tests, and end")
    add("--only", action="append", metavar="TEXT", help="judge mutants that have this text only")
    options = parser.parse_args(arguments)
    file: Path = options.coverage
    if options.collect:
        collect(file, minutes=None, seed=options.seed, tests=options.collect)
        return 0
    if not file.exists():
        collect(file, minutes=options.minutes, seed=options.seed, tests=())
    coverage = Coverage.read(file)
    if changed := coverage.changed():
        print_at_once(f"no mutants of {', '.join(changed)}: changed since coverage was collected")
    mutants = pick(coverage, seed=options.seed, count=options.count)
    if options.only:
        mutants = [m for m in mutants if any(text in str(m) for text in options.only)]
    equivalents = read_equivalents(EQUIVALENTS.read_text(encoding="utf-8"))
    return 0 if judge_all(mutants, equivalents, jobs=options.jobs) else 1


if __name__ == "__main__":
    sys.exit(main())
