"""Artifacts in a directory: links, damage, crashes and what they leave."""

import errno
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Semaphore

import pytest

from ulak.artifacts import LocalStorage, local
from ulak.artifacts import local as local_module
from ulak.artifacts.local import TEMPORARY
from ulak.errors import ArtifactError, ArtifactMissing, ArtifactUnreadable, ArtifactWriteFailed

PDF = "application/pdf"
KEY = "pdfs/4711/report.pdf"
DATA = b"%PDF-1.7\n" + bytes(range(256)) * 40 + b"\n%%EOF\n"


@pytest.fixture
def storage(base: Path) -> LocalStorage:
    return LocalStorage(base)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder that artifacts must not reach, with what somebody would like to read."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "report.pdf").write_bytes(b"not yours")
    return folder


def every_call(storage: LocalStorage, key: str = KEY) -> dict[str, Callable[[], object]]:
    return {
        "put": lambda: storage.put_bytes(key, DATA, PDF),
        "get": lambda: storage.get_bytes(key),
        "range": lambda: storage.read_range(key, 0, 4),
        "stat": lambda: storage.stat(key),
        "exists": lambda: storage.exists(key),
        "delete": lambda: storage.delete(key),
    }


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def leftovers(base: Path) -> list[Path]:
    return list(base.rglob(f"{TEMPORARY}*"))


# --- links ----------------------------------------------------------------------------


@pytest.mark.shows("P-23")
@pytest.mark.parametrize("place", ["pdfs", "pdfs/4711", "pdfs/4711/report.pdf"])
@pytest.mark.parametrize("call", ["put", "get", "range", "stat", "exists", "delete"])
def test_a_link_anywhere_on_the_way_is_refused(
    storage: LocalStorage, base: Path, outside: Path, place: str, call: str
) -> None:
    # What stands outside could be read if links were followed.
    LocalStorage(outside).put_bytes(KEY, DATA, PDF)
    before = tree(outside)
    link = base / place
    link.parent.mkdir(parents=True)
    link.symlink_to(outside / place)

    with pytest.raises((ArtifactUnreadable, ArtifactWriteFailed), match="links are never followed"):
        every_call(storage)[call]()
    assert link.is_symlink()
    assert tree(outside) == before
    assert leftovers(outside) == []


@pytest.mark.shows("P-23")
def test_a_link_in_place_of_an_artifact_that_leads_inside_is_refused_too(
    storage: LocalStorage, base: Path
) -> None:
    storage.put_bytes("pdfs/other/report.pdf", DATA, PDF)
    (base / "pdfs/4711").mkdir()
    (base / KEY).symlink_to("../other/report.pdf")
    with pytest.raises(ArtifactUnreadable):
        storage.get_bytes(KEY)


@pytest.mark.shows("P-23")
def test_a_link_that_is_swapped_in_after_the_folder_was_opened_leads_nowhere(
    storage: LocalStorage, base: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.put_bytes("pdfs/4711/first.pdf", DATA, PDF)
    create = local.create_file

    def swap_then_create(name: str, folder: int, mode: int) -> int:
        (base / "pdfs/4711").rename(base / "moved")
        (base / "pdfs/4711").symlink_to(outside)
        return create(name, folder, mode)

    monkeypatch.setattr(local, "create_file", swap_then_create)
    storage.put_bytes(KEY, DATA, PDF)
    assert tree(outside) == {"report.pdf": b"not yours"}
    # It went where the folder is that was opened, not where the path leads now.
    assert (base / "moved" / "report.pdf").exists()


@pytest.mark.shows("P-23")
def test_links_swapped_in_and_out_all_the_time_let_nothing_out(
    storage: LocalStorage, base: Path, outside: Path
) -> None:
    before = tree(outside)
    place, real, called = base / "pdfs/4711", base / "real", Semaphore(0)

    def swap() -> None:
        steps: list[Callable[[], object]] = [
            lambda: shutil.rmtree(real, ignore_errors=True),
            lambda: place.rename(real),
            lambda: place.symlink_to(outside),
            place.unlink,
            lambda: real.rename(place),
        ]
        for _ in range(100):
            for step in steps:
                with suppress(OSError):  # whoever writes makes the folder anew while it is away
                    step()
                called.acquire(timeout=0.1)  # so that each step lasts for the whole of some call

    storage.put_bytes("pdfs/4711/first.pdf", DATA, PDF)
    with ThreadPoolExecutor(1) as pool:
        swapping = pool.submit(swap)
        while not swapping.done():
            for call in every_call(storage).values():
                with suppress(ArtifactError):
                    assert call() != b"not yours"
                called.release()
        swapping.result()
    assert tree(outside) == before


def test_links_are_neither_listed_nor_tidied(
    storage: LocalStorage, base: Path, outside: Path
) -> None:
    storage.put_bytes(KEY, DATA, PDF)
    (outside / f"{TEMPORARY}old").write_bytes(b"x")
    (base / "pdfs/away").symlink_to(outside)
    (base / "pdfs/4711/link.pdf").symlink_to(outside / "report.pdf")
    assert list(storage.list()) == [KEY]
    assert list(storage.list("pdfs/away")) == []
    assert storage.tidy(older_than=datetime.now(UTC) + timedelta(days=1)) == 0
    assert (outside / f"{TEMPORARY}old").exists()


def test_the_directory_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "artifacts").symlink_to(tmp_path / "disk")
    LocalStorage(tmp_path / "artifacts").put_bytes(KEY, DATA, PDF)
    assert (tmp_path / "disk" / KEY).exists()


@pytest.mark.parametrize("call", ["get", "stat", "exists", "put", "delete"])
def test_a_pipe_in_place_of_an_artifact_keeps_nobody_waiting(
    storage: LocalStorage, base: Path, call: str
) -> None:
    (base / "pdfs/4711").mkdir(parents=True)
    os.mkfifo(base / KEY)
    with pytest.raises(ArtifactError):
        every_call(storage)[call]()


@pytest.mark.parametrize("call", ["get", "stat", "exists", "put", "delete"])
def test_a_folder_in_place_of_an_artifact_is_none(
    storage: LocalStorage, base: Path, call: str
) -> None:
    (base / KEY).mkdir(parents=True)
    with pytest.raises(ArtifactError):
        every_call(storage)[call]()
    assert leftovers(base) == []


# --- what lies in the directory ---------------------------------------------------------


@pytest.mark.shows("P-22")
def test_an_artifact_is_a_file_that_begins_with_its_bytes_and_is_private(
    storage: LocalStorage, base: Path
) -> None:
    storage.put_bytes(KEY, DATA, PDF)
    assert (base / KEY).read_bytes().startswith(DATA)
    assert stat.S_IMODE((base / KEY).stat().st_mode) == 0o600
    assert stat.S_IMODE((base / "pdfs").stat().st_mode) == 0o700
    assert leftovers(base) == []


@pytest.mark.shows("P-23")
def test_nothing_has_its_name_before_it_is_on_the_disk(
    storage: LocalStorage, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    did: list[str] = []
    real_sync, real_rename = os.fsync, os.rename

    def sync(fd: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        kind = "file" if path.is_file() else str(path.relative_to(base))
        if kind == "file":
            assert path.name.startswith(TEMPORARY)
            assert path.read_bytes().startswith(DATA)
        did.append(f"sync {kind}")
        real_sync(fd)

    def rename(source: str, target: str, **folders: int) -> None:
        did.append("rename")
        real_rename(source, target, **folders)

    base.mkdir(parents=True)
    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "rename", rename)
    storage.put_bytes(KEY, DATA, PDF)
    assert did == ["sync file", "rename", "sync pdfs/4711", "sync pdfs", "sync ."]


def test_a_deletion_removes_the_folders_that_it_empties(storage: LocalStorage, base: Path) -> None:
    storage.put_bytes(KEY, DATA, PDF)
    storage.put_bytes("pdfs/4712/report.pdf", DATA, PDF)
    storage.delete(KEY)
    assert sorted(p.name for p in (base / "pdfs").iterdir()) == ["4712"]
    storage.delete("pdfs/4712/report.pdf")
    assert list(base.iterdir()) == []


def test_writing_goes_on_while_others_remove_the_empty_folder(storage: LocalStorage) -> None:
    keys = [f"pdfs/4711/{n}.pdf" for n in range(4)]

    def churn(key: str) -> None:
        for _ in range(60):
            storage.put_bytes(key, DATA, PDF)
            assert storage.get_bytes(key) == DATA
            assert storage.delete(key)

    with ThreadPoolExecutor(len(keys)) as pool:
        for done in [pool.submit(churn, key) for key in keys]:
            done.result()
    assert list(storage.list()) == []


def test_a_folder_that_is_removed_before_its_first_file_is_made_again(
    storage: LocalStorage, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, removed = local.create_file, []

    def remove_then_create(name: str, folder: int, mode: int) -> int:
        if not removed:
            removed.append((base / "pdfs/4711").rmdir())
        return create(name, folder, mode)

    monkeypatch.setattr(local, "create_file", remove_then_create)
    storage.put_bytes(KEY, DATA, PDF)
    assert removed
    assert storage.get_bytes(KEY) == DATA


def test_of_many_deletions_one_says_that_there_was_one(storage: LocalStorage) -> None:
    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            storage.put_bytes(KEY, DATA, PDF)
            assert sum(pool.map(lambda _: storage.delete(KEY), range(8))) == 1


def test_a_reading_that_has_begun_is_not_disturbed_by_a_deletion(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.put_bytes(KEY, DATA, PDF)
    found = local_module._found

    def delete_then_find(file: int, ref: str) -> object:
        assert storage.delete(ref)
        return found(file, ref)

    monkeypatch.setattr(local_module, "_found", delete_then_find)
    assert storage.get_bytes(KEY) == DATA


# --- damage -----------------------------------------------------------------------------


@pytest.mark.shows("P-58")
@pytest.mark.parametrize(
    "change",
    {
        "a byte": lambda data: data[:20] + bytes([data[20] ^ 1]) + data[21:],
        "the end": lambda data: data[:-5],
        "the seal": lambda data: data[: data.rindex(b"\n%ulak")],
        "more": lambda data: data + b"x",
        "less": lambda data: data[10:],
        "nothing": lambda data: b"",
        "the digest": lambda data: data.replace(b"sha256=", b"sha256=0", 1)[:-1],
        "zeros": lambda data: bytes(len(data)),
    }.items(),
    ids=lambda pair: pair[0],
)
def test_damage_is_noticed_at_every_reading(
    storage: LocalStorage, base: Path, change: tuple[str, Callable[[bytes], bytes]]
) -> None:
    storage.put_bytes(KEY, DATA, PDF)
    (base / KEY).write_bytes(change[1]((base / KEY).read_bytes()))
    with pytest.raises(ArtifactUnreadable, match="damaged"):
        storage.get_bytes(KEY)
    with pytest.raises(ArtifactUnreadable, match="damaged"):
        storage.read_range(KEY, 0, 4)
    # It can be got rid of, and stored again.
    assert storage.exists(KEY)
    assert storage.delete(KEY)
    storage.put_bytes(KEY, DATA, PDF)
    assert storage.get_bytes(KEY) == DATA


# --- trouble ----------------------------------------------------------------------------


@pytest.mark.shows("P-23")
def test_a_full_disk_leaves_what_was_there(
    storage: LocalStorage, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.put_bytes(KEY, DATA, PDF)

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ArtifactWriteFailed, match="No space left"):
        storage.put_bytes(KEY, b"another", PDF)
    assert storage.get_bytes(KEY) == DATA
    assert leftovers(base) == []


def test_a_file_in_place_of_the_directory_fails_its_check(base: Path) -> None:
    base.parent.mkdir(parents=True)
    base.write_bytes(b"")
    with pytest.raises(ArtifactWriteFailed):
        LocalStorage(base).check()
    with pytest.raises(ArtifactWriteFailed):
        LocalStorage(base).put_bytes(KEY, DATA, PDF)


KILLED = """
import os, signal, sys
from pathlib import Path
from ulak.artifacts import LocalStorage
fsync = os.fsync
def die(fd):
    fsync(fd)
    os.kill(os.getpid(), signal.SIGKILL)
os.fsync = die
LocalStorage(Path(sys.argv[1])).put_bytes(sys.argv[2], b"x" * 100_000, "application/pdf")
"""


@pytest.mark.shows("P-23")
def test_a_writer_killed_before_the_rename_leaves_only_what_tidying_removes(
    storage: LocalStorage, base: Path
) -> None:
    base.mkdir(parents=True)  # a flush of the folders above it would be the first otherwise
    storage.put_bytes(KEY, DATA, PDF)
    for key in (KEY, "pdfs/4712/report.pdf"):
        killed = subprocess.run([sys.executable, "-c", KILLED, str(base), key])
        assert killed.returncode < 0
    assert len(leftovers(base)) == 2
    assert storage.get_bytes(KEY) == DATA
    with pytest.raises(ArtifactMissing):
        storage.get_bytes("pdfs/4712/report.pdf")
    assert list(storage.list()) == [KEY]

    now = datetime.now(UTC)
    assert storage.tidy(older_than=now - timedelta(hours=1)) == 0
    assert len(leftovers(base)) == 2
    assert storage.tidy(older_than=now + timedelta(seconds=10)) == 2
    assert leftovers(base) == []
    assert sorted(p.name for p in (base / "pdfs").iterdir()) == ["4711"]
    assert storage.get_bytes(KEY) == DATA


def test_a_write_whose_file_was_tidied_away_begins_anew(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename, tidied = os.rename, []

    def tidy_then_rename(source: str, target: str, **folders: int) -> None:
        if not tidied:
            tidied.append(storage.tidy(older_than=datetime.now(UTC) + timedelta(days=1)))
        rename(source, target, **folders)

    monkeypatch.setattr(os, "rename", tidy_then_rename)
    storage.put_bytes(KEY, DATA, PDF)
    assert tidied == [1]
    assert storage.get_bytes(KEY) == DATA


def test_the_directory_stays_the_same_when_the_process_goes_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    storage = LocalStorage(Path("artifacts"))
    storage.put_bytes(KEY, DATA, PDF)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert storage.get_bytes(KEY) == DATA
    assert (tmp_path / "artifacts" / KEY).exists()


def test_no_descriptor_is_left_open(storage: LocalStorage) -> None:
    storage.put_bytes(KEY, DATA, PDF)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        storage.put_bytes(KEY, DATA, PDF)
        storage.get_bytes(KEY)
        storage.stat(KEY)
        list(storage.list())
        with pytest.raises(ArtifactMissing):
            storage.get_bytes("pdfs/none/report.pdf")
    assert len(os.listdir("/proc/self/fd")) <= before + 1
