"""Plans: which file is one, when it is taken, and what is refused."""

import asyncio
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from ulak.kit import threads
from ulak.services.cutting import plans
from ulak.services.cutting.codes import CuttingError, PermanentError
from ulak.services.cutting.plans import Plan, collect_plans, find_plans, read_plan
from ulak.services.cutting.workbook import make_marks

JOB = "018f2b1c-7a51-7cc2-9a55-2f0d35a6f001"
OTHER = "018f2b1c-7a51-7cc2-9a55-2f0d35a6f002"
GOOD = b"<root><ok>true</ok></root>"


@dataclass(frozen=True)
class Batch:
    n: int
    mark: str


ONE = (Batch(0, "GOVDE_BEYAZ_18mm"),)
TWO = (*ONE, Batch(1, "ARKALIK_BEYAZ_3mm"))


def put(folder: Path, name: str, content: bytes = GOOD, *, at: int = 100) -> Path:
    path = folder / name
    path.write_bytes(content)
    os.utime(path, ns=(at, at))
    return path


def find(folder: Path, batches: Any = TWO, not_before_ns: int = 100) -> dict[int, str]:
    found = find_plans(folder, JOB, batches, not_before_ns=not_before_ns)
    return {n: path.name for n, path in found.items()}


def collect(folder: Path, batches: Any = ONE, **options: Any) -> dict[int, Path]:
    options = {"patience_s": 5.0, "stable_s": 0.1, "poll_s": 0.02, "not_before_ns": 0} | options
    return asyncio.run(collect_plans(folder, JOB, batches, **options))


def read(path: Path, stable_s: float = 0.02) -> Plan:
    return asyncio.run(read_plan(path, stable_s=stable_s))


# --- which file -----------------------------------------------------------------------


@pytest.mark.shows("C-46")
@pytest.mark.parametrize(
    "name",
    [
        f"{JOB}_GOVDE_BEYAZ_18mm.xml",
        f"{JOB}_GOVDE_BEYAZ_18mm_r02.xml",
        f"{JOB.upper()}_govde_beyaz_18MM.XML",
        f"plan-{JOB}_GOVDE_BEYAZ_18mm (1).Xml",
        f"GOVDE_BEYAZ_18mm.{JOB}.xml",
    ],
)
def test_a_plan_has_the_id_of_its_job_and_the_mark_of_its_batch(tmp_path: Path, name: str) -> None:
    put(tmp_path, name)
    assert find(tmp_path) == {0: name}


@pytest.mark.shows("C-46", "C-48")
@pytest.mark.parametrize(
    "name",
    [
        f"{JOB}_GOVDE_BEYAZ_18mm.xml.tmp",
        f"{JOB}_GOVDE_BEYAZ_18mm.xlsx",
        f"{JOB}_GOVDE_BEYAZ_18mmxml",
        f"{JOB}.xml",
        f"{JOB}_GOVDE_SIYAH_18mm.xml",
        f"{OTHER}_GOVDE_BEYAZ_18mm.xml",
        f"{JOB[:-1]}_GOVDE_BEYAZ_18mm.xml",
        f"{JOB.replace('-', '')}_GOVDE_BEYAZ_18mm.xml",
        "GOVDE_BEYAZ_18mm.xml",
        "plan.xml",
    ],
)
def test_no_other_file_is_one(tmp_path: Path, name: str) -> None:
    put(tmp_path, name)
    assert find(tmp_path) == {}


@pytest.mark.shows("C-46", "C-51")
def test_each_batch_finds_its_own_plan(tmp_path: Path) -> None:
    marks = make_marks([
        ("GOVDE", "A", "18", "MDF"), ("GOVDE", "A_18mm_A", "18", "MDF"),
        ("GOVDE", "Ç", "18", "MDF"), ("GOVDE", "Ş", "18", "MDF"), ("ARKALIK", "A", "3", "MDF"),
    ])  # fmt: skip
    batches = [Batch(n, mark) for n, mark in enumerate(marks)]
    for batch in batches:
        put(tmp_path, f"OUT {JOB}_{batch.mark}.xml")
    assert find(tmp_path, batches) == {n: f"OUT {JOB}_{mark}.xml" for n, mark in enumerate(marks)}


@pytest.mark.shows("C-48")
def test_a_file_older_than_the_attempt_is_ignored(tmp_path: Path) -> None:
    put(tmp_path, f"{JOB}_GOVDE_BEYAZ_18mm.xml", at=100)
    assert find(tmp_path, not_before_ns=101) == {}
    assert find(tmp_path, not_before_ns=100) != {}


def test_of_two_plans_the_one_that_is_called_as_the_import_file_is_taken_or_the_newest(
    tmp_path: Path,
) -> None:
    put(tmp_path, f"{JOB}_GOVDE_BEYAZ_18mm (1).xml", at=300)
    put(tmp_path, f"{JOB}_GOVDE_BEYAZ_18mm (2).xml", at=200)
    assert find(tmp_path) == {0: f"{JOB}_GOVDE_BEYAZ_18mm (1).xml"}
    put(tmp_path, f"{JOB}_GOVDE_BEYAZ_18mm.xml", at=150)
    assert find(tmp_path) == {0: f"{JOB}_GOVDE_BEYAZ_18mm.xml"}


def test_a_folder_a_link_and_a_pipe_are_no_plans(tmp_path: Path) -> None:
    (tmp_path / f"{JOB}_GOVDE_BEYAZ_18mm.xml").mkdir()
    (tmp_path / f"{JOB}_ARKALIK_BEYAZ_3mm.xml").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / f"{JOB}_ARKALIK_BEYAZ_3mm.2.xml")
    assert find(tmp_path, not_before_ns=0) == {}


# --- when it is taken -----------------------------------------------------------------


def write_slowly(path: Path, pause_s: float) -> subprocess.Popen[bytes]:
    """Start a process that writes a plan byte by byte, as a slow share does."""
    script = textwrap.dedent(
        """
        import sys, time
        with open(sys.argv[1], "wb", buffering=0) as file:
            for byte in b"<root><ok>true</ok></root>":
                file.write(bytes([byte]))
                time.sleep(float(sys.argv[2]))
        """
    )
    return subprocess.Popen([sys.executable, "-c", script, path, str(pause_s)])


@pytest.mark.shows("C-48")
def test_a_plan_is_taken_when_it_has_not_changed_for_as_long(tmp_path: Path) -> None:
    child = write_slowly(tmp_path / f"{JOB}_GOVDE_BEYAZ_18mm.xml", 0.02)
    try:
        [path] = collect(tmp_path, patience_s=20.0, stable_s=0.3).values()
        assert path.read_bytes() == GOOD
        age = time.time() - path.stat().st_mtime
        assert age >= 0.29
    finally:
        child.wait()


@pytest.mark.shows("C-48")
def test_a_file_that_is_there_already_proves_itself_as_well(tmp_path: Path) -> None:
    put(tmp_path, f"{JOB}_GOVDE_BEYAZ_18mm.xml")  # of 1970, by its time of change
    began = time.monotonic()
    collect(tmp_path, stable_s=0.2)
    assert time.monotonic() - began >= 0.2


@pytest.mark.shows("C-47", "C-51")
def test_the_wait_ends_and_names_the_batches_without_a_plan(tmp_path: Path) -> None:
    put(tmp_path, f"{JOB}_GOVDE_BEYAZ_18mm.xml")
    began = time.monotonic()
    with pytest.raises(CuttingError, match="no plan came for ARKALIK_BEYAZ_3mm in") as caught:
        collect(tmp_path, TWO, patience_s=0.3)
    assert caught.value.code == "E_OPTI_XML_TIMEOUT"
    assert not isinstance(caught.value, PermanentError)
    assert 0.3 <= time.monotonic() - began < 2


@pytest.mark.shows("C-47")
def test_a_plan_that_came_in_time_may_prove_that_it_is_stable(tmp_path: Path) -> None:
    # As after a restart: the deadline has passed while nobody looked.
    put(tmp_path, f"{JOB}_GOVDE_BEYAZ_18mm.xml")
    assert collect(tmp_path, patience_s=-5.0, stable_s=0.2)
    with pytest.raises(CuttingError, match="no plan came"):
        collect(tmp_path, TWO, patience_s=-5.0)


@pytest.mark.shows("C-48")
def test_a_file_that_never_stops_changing_is_not_judged(tmp_path: Path) -> None:
    child = write_slowly(tmp_path / f"{JOB}_GOVDE_BEYAZ_18mm.xml", 0.15)
    try:
        while not list(tmp_path.iterdir()):
            time.sleep(0.01)
        with pytest.raises(CuttingError, match="a plan is still being written") as caught:
            collect(tmp_path, patience_s=0.3, stable_s=1.0)
        assert caught.value.code == "E_OPTI_XML_TIMEOUT"
    finally:
        child.kill()
        child.wait()


@pytest.mark.shows("C-51")
def test_all_plans_of_a_job_are_waited_for(tmp_path: Path) -> None:
    first = put(tmp_path, f"{JOB}_GOVDE_BEYAZ_18mm.xml")

    async def wait() -> dict[int, Path]:
        waiting = asyncio.create_task(
            collect_plans(
                tmp_path, JOB, TWO, not_before_ns=0, patience_s=9, stable_s=0.05, poll_s=0.02
            )
        )
        await asyncio.sleep(0.2)
        assert not waiting.done()
        put(tmp_path, f"{JOB}_ARKALIK_BEYAZ_3mm.xml")
        return await waiting

    assert asyncio.run(wait()) == {0: first, 1: tmp_path / f"{JOB}_ARKALIK_BEYAZ_3mm.xml"}


def test_a_folder_that_comes_back_is_read_again(tmp_path: Path) -> None:
    folder = tmp_path / "export"

    async def wait() -> dict[int, Path]:
        waiting = asyncio.create_task(
            collect_plans(
                folder, JOB, ONE, not_before_ns=0, patience_s=9, stable_s=0.05, poll_s=0.02
            )
        )
        await asyncio.sleep(0.1)
        folder.mkdir()
        put(folder, f"{JOB}_GOVDE_BEYAZ_18mm.xml")
        return await waiting

    assert asyncio.run(wait())
    with pytest.raises(CuttingError, match=r"no plan came for .*No such file"):
        collect(tmp_path / "nowhere", patience_s=0.1)


def test_a_folder_that_hangs_ends_the_wait_in_time_and_stops_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "HANGS_S", 0.2)
    monkeypatch.setattr(plans, "find_plans", lambda *args, **kwargs: time.sleep(9))
    ticks = 0

    async def wait() -> None:
        nonlocal ticks
        waiting = asyncio.create_task(
            collect_plans(
                tmp_path, JOB, ONE, not_before_ns=0, patience_s=0.1, stable_s=0, poll_s=0.02
            )
        )
        while not waiting.done():
            ticks += 1
            await asyncio.sleep(0.02)
        await waiting

    with pytest.raises(CuttingError, match="there is no answer"):
        asyncio.run(wait())
    assert ticks > 5


# --- what it holds --------------------------------------------------------------------


@pytest.mark.shows("C-49")
@pytest.mark.parametrize(
    "content",
    [
        GOOD, b"<a><b/></a>", b"\xef\xbb\xbf<a><b/></a>", "<a><b/></a>".encode("utf-16"),
        '<?xml version="1.0" encoding="windows-1254"?><a><b c="ş"/></a>'.encode("cp1254"),
        b"<!-- a comment --><a>text<b/></a><!-- another -->", b"<x:a xmlns:x='u:y'><x:b/></x:a>",
        b"<a>" + b"<b>" * 150 + b"</b>" * 150 + b"</a>",
    ],
)  # fmt: skip
def test_well_formed_xml_with_a_child_is_a_plan(tmp_path: Path, content: bytes) -> None:
    plan = read(put(tmp_path, "plan.xml", content))
    assert plan == Plan(sha256(content).hexdigest(), len(content), None)


ENTITIES = b'<!DOCTYPE a [<!ENTITY b "' + b"b" * 1000 + b'">]><a><c>' + b"&b;" * 1000 + b"</c></a>"
REFUSED = {
    "empty": (b"", "no well-formed XML"),
    "a root that is not closed": (b"<root>", "no well-formed XML"),
    "a root alone": (b"<root/>", "its root has no child"),
    "a root with text": (b"<root>text</root>", "its root has no child"),
    "half": (GOOD[:15], "no well-formed XML"),
    "two roots": (b"<a><b/></a><a><b/></a>", "no well-formed XML"),
    "no XML": (b"PLAN;1;2", "no well-formed XML"),
    "zeros": (bytes(5000), "no well-formed XML"),
    "JSON": (b'{"plan": 1}', "no well-formed XML"),
    "bytes of no encoding": (b"<a><b>\xff\xfe</b></a>", "no well-formed XML"),
    "an unknown encoding": (b'<?xml version="1.0" encoding="x"?><a><b/></a>', "unknown encoding"),
    "a DTD": (b"<!DOCTYPE a><a><b/></a>", "a DTD or an entity"),
    "a DTD elsewhere": (b'<!DOCTYPE a SYSTEM "http://127.0.0.1:9/a.dtd"><a><b/></a>', "a DTD"),
    "an external entity": (
        b'<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a><c>&b;</c></a>', "a DTD"
    ),
    "entities that grow": (ENTITIES, "a DTD"),
    "an undeclared entity": (b"<a><b>&c;</b></a>", "undefined entity"),
    "too deep": (b"<a>" * 100_000, "more than 200 deep"),
}  # fmt: skip


@pytest.mark.shows("C-49")
@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_plan_is_refused_for_good(tmp_path: Path, kind: str) -> None:
    content, why = REFUSED[kind]
    with pytest.raises(PermanentError, match=why) as caught:
        read(put(tmp_path, "plan.xml", content))
    assert caught.value.code == "E_XML_INVALID"
    assert str(caught.value).startswith("plan.xml: ")


@pytest.mark.shows("C-49")
def test_a_plan_has_50_mb_at_most(tmp_path: Path) -> None:
    path = tmp_path / "plan.xml"
    path.write_bytes(b"<a><b>")
    with open(path, "r+b") as file:  # a file with a hole: it takes no space
        file.truncate(60_000_000)
    with pytest.raises(PermanentError):
        read(path)
    filler = b"<b>" + b" " * 999_993 + b"</b>"
    path.write_bytes(b"<a>" + filler * 49 + b"</a>")
    assert read(path).size == 49_000_007
    path.write_bytes(b"<a>" + filler * 50 + b"</a>")
    with pytest.raises(PermanentError, match="larger than 50 MB"):
        read(path)


@pytest.mark.shows("C-48", "C-49")
def test_a_bad_file_is_judged_only_when_it_is_stable(tmp_path: Path) -> None:
    path = tmp_path / "plan.xml"
    child = write_slowly(path, 0.02)
    try:
        while not path.exists():
            time.sleep(0.01)
        assert read(path, stable_s=0.5).sha256 == sha256(GOOD).hexdigest()
    finally:
        child.wait()


@pytest.mark.parametrize(
    "spoil", [Path.unlink, lambda path: (path.unlink(), path.symlink_to("/etc/passwd"))]
)
def test_a_plan_that_is_gone_is_made_again(
    tmp_path: Path, spoil: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "_PATIENCE_S", 0.1)
    path = put(tmp_path, "plan.xml")
    spoil(path)
    with pytest.raises(CuttingError, match=r"has gone|links are never followed") as caught:
        read(path)
    assert caught.value.code == "E_OPTI_XML_TIMEOUT"


def test_a_plan_in_a_folder_that_hangs_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "_PATIENCE_S", 0.1)
    monkeypatch.setattr(threads, "HANGS_S", 0.1)
    monkeypatch.setattr(plans, "_read", lambda path: time.sleep(9))
    with pytest.raises(CuttingError, match="cannot be read: there is no answer") as caught:
        read(put(tmp_path, "plan.xml"))
    assert caught.value.code == "E_OPTI_XML_TIMEOUT"


# --- what it says ---------------------------------------------------------------------

KNOWN = {
    "name": "S1", "algo": "G", "best": "0", "mqBoards": "11.76", "patterns": "2", "cycles": "3",
    "zcuts": "1", "jobTime": "95", "jobCost": "12.5", "mqDrops": "0.8", "diffDrops": "4",
}  # fmt: skip


def solution(**attributes: str) -> str:
    return f"<Solution {' '.join(f'{name}={text!r}' for name, text in attributes.items())}/>"


@pytest.mark.shows("C-50")
@pytest.mark.parametrize(
    ("solutions", "chosen"),
    [
        ([KNOWN], "S1"),
        ([KNOWN, KNOWN | {"name": "S2", "best": "1"}], "S2"),
        ([KNOWN | {"best": "1"}, KNOWN | {"name": "S2", "best": "1"}], "S1"),
        ([{"name": "S0"}, KNOWN | {"best": "true"}], "S0"),
        ([KNOWN, {"name": "S2"}, {"name": "S3", "best": "1"}, {"name": "S4"}], "S3"),
    ],
)
@pytest.mark.parametrize(
    "form", ["<Plan>{}</Plan>", "<a><b><c>{}</c></b></a>", "<p xmlns='u:x'>{}</p>"]
)
def test_the_best_solution_counts_or_else_the_first(
    tmp_path: Path, solutions: list[dict[str, str]], chosen: str, form: str
) -> None:
    content = form.format("".join(solution(**each) for each in solutions)).encode()
    found = read(put(tmp_path, "plan.xml", content)).solution
    assert found == next(each for each in solutions if each["name"] == chosen)


@pytest.mark.shows("C-50")
def test_only_known_attributes_are_kept_and_only_short_ones(tmp_path: Path) -> None:
    content = f"<Plan>{solution(name='x' * 9999, other='y', boards='4')}</Plan>".encode()
    assert read(put(tmp_path, "plan.xml", content)).solution == {"name": "x" * 200, "boards": "4"}
    assert read(put(tmp_path, "plan.xml", b"<Solution best='1'><a/></Solution>")).solution == {
        "best": "1"
    }
