"""Files that services exchange: written whole, swept by their folder's clock, stable or not."""

import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ulak.artifacts import local
from ulak.kit import files
from ulak.kit.files import (
    TEMPORARY,
    StableFiles,
    is_there,
    list_files,
    open_file,
    read_clock,
    rename_once,
    restoring,
    sha256_of,
    sweep,
    write_atomically,
)

HOUR = timedelta(hours=1)


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def age(path: Path, seconds: float) -> None:
    at = read_clock(path.parent) - int(seconds * 1e9)
    os.utime(path, ns=(at, at))


def test_a_file_is_written_with_its_digest_and_replaces_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "plan.xml"
    for content in (b"one", b"", b"three"):
        digest = write_atomically(path, content)
        assert path.read_bytes() == content
        assert digest == sha256_of(path) == sha256(content).hexdigest()
    assert write_atomically(path, iter([b"in ", b"parts"])) == sha256(b"in parts").hexdigest()
    assert names(tmp_path) == ["plan.xml"]


def test_other_users_may_read_it_as_far_as_the_umask_lets_them(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "plan.xml", b"x")
    finally:
        os.umask(before)
    assert (tmp_path / "plan.xml").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_what_cannot_be_written_leaves_the_file_as_it_was(tmp_path: Path, number: int) -> None:
    write_atomically(tmp_path / "plan.xml", b"old")

    def chunks() -> Iterator[bytes]:
        yield b"new"
        raise OSError(number, "the disk")

    with pytest.raises(OSError, match="the disk"):
        write_atomically(tmp_path / "plan.xml", chunks())
    assert names(tmp_path) == ["plan.xml"]
    assert (tmp_path / "plan.xml").read_bytes() == b"old"
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "no folder" / "plan.xml", b"new")


def test_without_replacing_the_first_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "rules.json"
    write_atomically(path, b"first", replace=False)
    with pytest.raises(FileExistsError):
        write_atomically(path, b"second", replace=False)
    assert path.read_bytes() == b"first"
    assert names(tmp_path) == ["rules.json"]


@pytest.mark.shows("C-36")
def test_a_file_and_its_folder_are_flushed_before_and_after_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    rename, fsync = os.rename, os.fsync

    def note_rename(source: str, target: str, **folders: Any) -> None:
        assert source.endswith(TEMPORARY)
        assert source in names(tmp_path), "a temporary file lies in the folder of its target"
        rename(source, target, **folders)
        steps.append(f"rename to {target}")

    def note_fsync(file: int) -> None:
        fsync(file)
        steps.append(f"flush {Path(os.readlink(f'/proc/self/fd/{file}')).name.lstrip('.')}")

    monkeypatch.setattr(local, "os", SimpleNamespace(**vars(os)))
    monkeypatch.setattr(local.os, "rename", note_rename)
    monkeypatch.setattr(files, "os", local.os)
    monkeypatch.setattr(local.os, "fsync", note_fsync)
    monkeypatch.setattr(files, "token_hex", lambda size: "f00d")
    write_atomically(tmp_path / "plan.xml", b"x")
    assert steps == ["flush f00d.tmp", "rename to plan.xml", f"flush {tmp_path.name}"]


def test_a_share_that_cannot_flush_a_folder_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = errno.EINVAL

    def fail(file: int) -> None:
        raise OSError(number, "fsync")

    monkeypatch.setattr(files, "os", SimpleNamespace(**vars(os)))
    monkeypatch.setattr(files.os, "fsync", fail)
    path, other = tmp_path / "plan.xml", tmp_path / "other.xml"
    write_atomically(path, b"x")
    assert rename_once(path, other)
    number = errno.EIO
    with pytest.raises(OSError, match="fsync"):
        rename_once(other, path)


def test_of_many_that_rename_a_file_one_does(tmp_path: Path) -> None:
    targets = [tmp_path / f"taken by {n}" for n in range(8)]
    for n in range(20):
        source = tmp_path / f"{n}.xml"
        source.touch()
        together = threading.Barrier(len(targets))

        def take(target: Path, source: Path = source, start: Any = together.wait) -> bool:
            start()
            return rename_once(source, target)

        with ThreadPoolExecutor(len(targets)) as takers:
            took = list(takers.map(take, targets))
        assert sum(took) == 1
        assert [path.exists() for path in targets] == took
        targets[took.index(True)].unlink()


def test_what_cannot_be_told_is_not_taken_for_absent(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    assert is_there(tmp_path / "file")
    assert is_there(tmp_path / "dangling")
    assert not is_there(tmp_path / "nothing")
    with pytest.raises(NotADirectoryError):
        is_there(tmp_path / "file" / "below")


WRITER = textwrap.dedent(
    """
    import os, signal, sys
    from pathlib import Path
    from ulak.artifacts import local
    from ulak.kit.files import write_atomically

    path, moment = Path(sys.argv[1]), sys.argv[2]
    die = lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGKILL)

    def chunks():
        yield b"n" * 100_000
        if moment == "inside":
            die()
        yield b"n" * 100_000

    if moment == "before the rename":
        local.os.rename = die
    if moment == "for ever":
        while True:
            write_atomically(path, b"o" * 200_000)
            write_atomically(path, chunks())
    write_atomically(path, chunks())
    """
)


@pytest.mark.shows("C-36")
@pytest.mark.parametrize("moment", ["inside", "before the rename"])
def test_a_writer_that_is_killed_leaves_the_file_and_something_to_sweep(
    tmp_path: Path, moment: str
) -> None:
    path = tmp_path / "order.xlsx"
    write_atomically(path, b"old")
    child = subprocess.run([sys.executable, "-c", WRITER, str(path), moment], check=False)
    assert child.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    [left] = [name for name in names(tmp_path) if name.endswith(TEMPORARY)]
    assert sweep(tmp_path, TEMPORARY, older_than=HOUR) == 0
    age(tmp_path / left, 3601)
    assert sweep(tmp_path, TEMPORARY, older_than=HOUR) == 1
    assert names(tmp_path) == ["order.xlsx"]


@pytest.mark.shows("C-36")
def test_no_reader_sees_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "order.xlsx"
    write_atomically(path, b"o" * 200_000)
    child = subprocess.Popen([sys.executable, "-c", WRITER, str(path), "for ever"])
    try:
        changes, before = 0, b"o"
        while changes < 20:
            content = path.read_bytes()
            assert content in (b"o" * 200_000, b"n" * 200_000)
            changes += content[:1] != before
            before = content[:1]
            assert child.poll() is None
    finally:
        child.kill()
        child.wait()


def test_links_pipes_and_folders_are_not_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with open_file(tmp_path / "file") as file:
        assert file.read() == b"x"
    for name in ("link", "pipe", "folder", "nothing"):
        with pytest.raises(OSError, match=f"{name}|directory"):
            open_file(tmp_path / name)


@pytest.mark.shows("C-36")
def test_only_old_files_with_the_suffix_are_swept(tmp_path: Path) -> None:
    for name, seconds in {
        "old.tmp": 3601, "new.tmp": 3500, "old.xml": 9999, "link.tmp": 0, "old.gone": 3601,
    }.items():  # fmt: skip
        (tmp_path / name).write_bytes(b"x")
        age(tmp_path / name, seconds)
    (tmp_path / "folder.tmp").mkdir()
    os.utime(tmp_path / "folder.tmp", (0, 0))
    assert sweep(tmp_path, ".tmp", older_than=HOUR) == 1
    assert names(tmp_path) == ["folder.tmp", "link.tmp", "new.tmp", "old.gone", "old.xml"]
    assert sweep(tmp_path, ".tmp", ".gone", older_than=HOUR) == 1
    assert names(tmp_path) == ["folder.tmp", "link.tmp", "new.tmp", "old.xml"]
    assert sweep(tmp_path / "nowhere", ".tmp", older_than=HOUR) == 0


def test_files_are_listed_by_their_names_and_neither_links_nor_folders(tmp_path: Path) -> None:
    for name in ("a.xml", "b.xml", "c.txt"):
        (tmp_path / name).write_bytes(b"x")
    os.utime(tmp_path / "a.xml", ns=(7, 7))
    (tmp_path / "link.xml").symlink_to("a.xml")
    (tmp_path / "folder.xml").mkdir()
    found = dict(list_files(tmp_path, lambda name: name.endswith(".xml")))
    assert sorted(found) == ["a.xml", "b.xml"]
    assert found["a.xml"] == 7
    with pytest.raises(FileNotFoundError):
        list_files(tmp_path / "nowhere", lambda name: True)


def test_a_file_is_put_back_when_what_belongs_to_it_fails(tmp_path: Path) -> None:
    def change(path: Path, error: Exception | None) -> None:
        with restoring(path, ValueError, KeyError):
            write_atomically(path, b"after")
            if error is not None:
                raise error

    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_bytes(b"before")
    for path in (old, new):
        with pytest.raises(KeyError):
            change(path, KeyError())
    assert old.read_bytes() == b"before"
    assert names(tmp_path) == ["old.json"]
    with pytest.raises(ZeroDivisionError):  # of this it was not told
        change(old, ZeroDivisionError())
    assert old.read_bytes() == b"after"
    change(new, None)
    assert new.read_bytes() == b"after"


def test_the_age_of_a_file_is_told_by_the_clock_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "new.tmp").write_bytes(b"x")
    (tmp_path / "old.tmp").write_bytes(b"x")
    age(tmp_path / "old.tmp", 3601)
    monkeypatch.setattr("time.time", lambda: 4e9)  # this machine's clock is of another century
    assert sweep(tmp_path, ".tmp", older_than=HOUR) == 1
    assert names(tmp_path) == ["new.tmp"]


def test_a_file_is_stable_when_it_has_not_changed_for_as_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(files, "time", SimpleNamespace(monotonic=lambda: now))
    path, stable = tmp_path / "plan.xml", StableFiles(2)
    assert not stable.is_stable(path)
    path.write_bytes(b"<plan>")
    os.utime(path, (1, 1))  # an old time of change proves nothing: the share may copy times
    assert not stable.is_stable(path)
    now += 1.9
    assert not stable.is_stable(path)
    now += 0.1
    assert stable.is_stable(path)
    now += 1

    for change in (
        lambda: path.write_bytes(b"<plan>more"),
        lambda: os.utime(path, (2, 2)),
        lambda: write_atomically(path, b"<plan>mor2"),
    ):
        change()
        assert not stable.is_stable(path)
        now += 2
        assert stable.is_stable(path)

    path.rename(tmp_path / "away")
    assert not stable.is_stable(path)
    (tmp_path / "away").rename(path)
    now += 2
    assert not stable.is_stable(path), "it was not there in between"


def test_a_file_without_a_wait_is_stable_at_the_first_look(tmp_path: Path) -> None:
    (tmp_path / "plan.xml").write_bytes(b"x")
    assert StableFiles(0).is_stable(tmp_path / "plan.xml")
