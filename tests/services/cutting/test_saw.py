"""The stand-in for the saw: what it does with files, rightly and wrongly."""

from __future__ import annotations

import json
import threading
import time
from hashlib import sha256
from pathlib import Path

import pytest

from ulak.services.cutting.delivery import FOLDERS
from ulak.services.cutting.saw import LEDGER, Manner, Saw

PLAN = b"<Plan><Part/></Plan>"


def put(saw: Saw, *names: str, content: bytes = PLAN) -> None:
    (saw.folder / "inbox").mkdir(exist_ok=True)
    for name in names:
        (saw.folder / "inbox" / name).write_bytes(content)


def places(saw: Saw, name: str) -> list[str]:
    return [place for place in FOLDERS if (saw.folder / place / name).exists()]


def ledger(saw: Saw) -> list[tuple[str, str]]:
    path = saw.folder / LEDGER
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    assert all(
        line["sha256"] == sha256(PLAN).hexdigest() for line in lines if line["what"] == "cut"
    )
    return [(line["what"], line["name"]) for line in lines]


def test_a_plan_is_moved_into_processed_and_written_down(tmp_path: Path) -> None:
    saw = Saw(tmp_path, Manner())
    saw.look()  # makes the folders
    put(saw, "a.xml", "B.XML")
    put(saw, "c.xml.tmp", "d.xml.withdrawn")
    saw.look()
    assert [places(saw, name) for name in ("a.xml", "B.XML")] == [["processed"]] * 2
    assert [places(saw, name) for name in ("c.xml.tmp", "d.xml.withdrawn")] == [["inbox"]] * 2
    assert ledger(saw) == [("cut", "B.XML"), ("cut", "a.xml")]


@pytest.mark.parametrize(
    "content", [b"", b"<Plan><Part/>", b"<!DOCTYPE a [<!ENTITY b 'c'>]><Plan>&b;</Plan>"]
)
def test_what_is_no_whole_plan_is_never_cut(tmp_path: Path, content: bytes) -> None:
    saw = Saw(tmp_path, Manner())
    put(saw, "a.xml", content=content)
    saw.look()
    assert (places(saw, "a.xml"), ledger(saw)) == (["failed"], [("broken", "a.xml")])


def test_a_share_of_good_plans_is_refused_and_another_seed_refuses_others(tmp_path: Path) -> None:
    refused = []
    for n, seed in enumerate((1, 1, 2)):
        folder = tmp_path / str(n)
        folder.mkdir()
        saw = Saw(folder, Manner(wrong=0.5, seed=seed))
        put(saw, *(f"{k}.xml" for k in range(40)))
        saw.look()
        refused.append({name for what, name in ledger(saw) if what == "refused"})
        assert refused[-1] == {path.name for path in (folder / "failed").iterdir()}
    assert refused[0] == refused[1] != refused[2]
    assert 10 < len(refused[0]) < 30


def test_a_late_answer_comes_late(tmp_path: Path) -> None:
    saw = Saw(tmp_path, Manner(late_s=0.2))
    put(saw, "a.xml")
    saw.look()
    assert places(saw, "a.xml") == ["inbox"]
    time.sleep(0.2)
    saw.look()
    assert places(saw, "a.xml") == ["processed"]


def test_an_answer_that_comes_twice_is_cut_once(tmp_path: Path) -> None:
    saw = Saw(tmp_path, Manner(twice=1.0))
    put(saw, "a.xml")
    saw.look()
    saw.look()
    assert places(saw, "a.xml") == ["processed", "failed"]
    assert ledger(saw) == [("cut", "a.xml")]


def test_a_saw_that_copies_leaves_the_plan_and_cuts_it_once(tmp_path: Path) -> None:
    saw = Saw(tmp_path, Manner(copies=1.0))
    put(saw, "a.xml")
    saw.look()
    saw.look()
    assert places(saw, "a.xml") == ["inbox", "processed"]
    assert ledger(saw) == [("cut", "a.xml")]


def test_a_saw_runs_until_it_is_stopped_and_waits_for_its_folder(tmp_path: Path) -> None:
    told: list[str] = []
    saw = Saw(tmp_path / "osi", Manner(), tell=lambda what, name: told.append(what))
    over = threading.Event()
    thread = threading.Thread(target=lambda: saw.run(over, poll_s=0.01))
    thread.start()
    until(lambda: "waits" in told)
    (tmp_path / "osi").mkdir()
    until(lambda: (tmp_path / "osi" / "inbox").exists())
    put(saw, "a.xml")
    until(lambda: ledger(saw) == [("cut", "a.xml")])
    over.set()
    thread.join(10)
    assert not thread.is_alive()
    assert told[-1] == "cut"


def until(holds: object) -> None:
    deadline = time.monotonic() + 60
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.005)
