"""Browsers are started as safely as the machine can, or not at all."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

from tests.services.pdf.browser.yard import a_yard
from ulak.errors import BadInput
from ulak.services.pdf import ground
from ulak.services.pdf.browser.launch import PREFIX, REFUSED, make_workplace, prepare, sweep
from ulak.services.pdf.ground import find_browser, weaknesses
from ulak.services.pdf.model import PdfErrorCode, PermanentPdfError

WEAKENING = (
    "--no-sandbox",
    "-no-sandbox",
    " --no-sandbox",
    "--NO-SANDBOX",
    "--no-sandbox=1",
    "--disable-setuid-sandbox",
    "--disable-namespace-sandbox",
    "--disable-seccomp-filter-sandbox",
    "--disable-gpu-sandbox",
    "--no-zygote",
    "--single-process",
    "--renderer-cmd-prefix=gdb",
    "--remote-debugging-port=9222",
)


@pytest.mark.shows("P-32")
@pytest.mark.parametrize("switch", WEAKENING)
def test_a_switch_that_weakens_the_sandbox_is_refused(switch: str) -> None:
    with a_yard() as directory:
        with pytest.raises(BadInput, match="sandbox"):
            prepare(directory=directory, arguments=["--mute-audio", switch])
        launch = prepare(directory=directory)
        with pytest.raises(BadInput, match="sandbox"):
            launch.argv(switch)
        launch.remove()


@pytest.mark.shows("P-32")
def test_no_browser_is_started_with_such_a_switch_of_our_own() -> None:
    with a_yard() as directory:
        launch = prepare(directory=directory)
        names = {word.lstrip("-").partition("=")[0] for word in launch.argv()}
        assert not names & REFUSED
        launch.remove()


@pytest.mark.shows("P-32")
@pytest.mark.parametrize("switch", ["--no-sandbox", "-no-sandbox", "--single-process=1"])
def test_the_program_for_other_drivers_refuses_such_a_switch_too(switch: str) -> None:
    with a_yard() as directory:
        launch = prepare(directory=directory)
        done = subprocess.run([launch.wrapper(), "--version", switch], check=False)
        assert done.returncode == 64
        launch.remove()


@pytest.mark.needs_user_namespaces  # this program has no setuid helper beside it
def test_the_program_for_other_drivers_starts_the_browser_with_nothing_of_our_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ULAK_PRIVATE", "planted")
    with a_yard() as directory:
        program = directory / "shows"
        program.write_text('#!/bin/sh\nenv; echo "args: $*"; id -u\n')
        program.chmod(0o755)
        launch = prepare(program, directory=directory)
        done = subprocess.run([launch.wrapper(), "--x"], capture_output=True, text=True, check=True)
        assert "planted" not in done.stdout
        assert f"--x --user-data-dir={launch.profile}" in done.stdout
        assert done.stdout.split()[-1] != "0"
        launch.remove()
        program.unlink()


@pytest.mark.shows("P-32")
def test_the_profile_belongs_to_the_browsers_user_alone_and_goes_with_the_launch() -> None:
    with a_yard() as directory:
        launch = prepare(directory=directory)
        found = launch.profile.stat()
        assert found.st_uid == (os.geteuid() if launch.uid is None else launch.uid) != 0
        assert stat.S_IMODE(found.st_mode) == 0o700
        launch.remove()
        launch.remove()
        assert not launch.profile.exists()


def test_root_is_never_the_browsers_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(PermanentPdfError, match="never run as root"):
        prepare(uid=0)


def test_the_browser_that_is_found_is_a_program_and_no_script() -> None:
    found = find_browser()
    assert found is not None
    with found.open("rb") as file:
        assert file.read(4) == b"\x7fELF"


def test_without_a_browser_the_platform_is_not_supported_and_the_cure_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ground, "has_user_namespaces", lambda uid: True)
    with pytest.raises(PermanentPdfError, match="install a browser") as refused:
        prepare("/nowhere/chromium")
    assert refused.value.code == PdfErrorCode.UNSUPPORTED_PLATFORM
    assert [w.name for w in weaknesses("/nowhere/chromium") if w.is_fatal] == ["browser"]


def without_namespaces(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the kernel's answer be no, whoever asks."""
    program = directory / "unshare"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")


@pytest.mark.shows("P-32")
def test_with_neither_namespaces_nor_a_helper_no_browser_is_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    without_namespaces(tmp_path, monkeypatch)
    with a_yard() as directory:
        browser = directory / "browser"
        browser.write_bytes(b"\x7fELF")
        browser.chmod(0o755)
        with pytest.raises(PermanentPdfError, match="user namespaces or a setuid helper") as no:
            prepare(browser, directory=directory)
        assert no.value.code == PdfErrorCode.UNSUPPORTED_PLATFORM
        found = {weakness.name: weakness for weakness in weaknesses(browser)}
        assert found["user_namespaces"].is_fatal
        assert "chromium-sandbox" in found["setuid_helper"].cure
        browser.unlink()


@pytest.mark.shows("P-32")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file setuid for root")
def test_without_namespaces_the_setuid_helper_keeps_the_sandbox_and_the_rest_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    without_namespaces(tmp_path, monkeypatch)
    with a_yard() as directory:
        browser, helper = directory / "browser", directory / "chrome-sandbox"
        browser.write_bytes(b"\x7fELF")
        browser.chmod(0o755)
        helper.write_bytes(b"")
        helper.chmod(0o4755)
        launch = prepare(browser, directory=directory)
        assert launch.environment["CHROME_DEVEL_SANDBOX"] == str(helper)
        assert "unshare" not in launch.prefix
        assert "--no-new-privs" not in launch.prefix, "a setuid program would get no privileges"
        assert not launch.isolated
        assert any(word.startswith("--host-resolver-rules") for word in launch.arguments)
        found = {weakness.name for weakness in weaknesses(browser) if not weakness.is_fatal}
        assert found == {"user_namespaces", "network_namespace"}
        launch.remove()
        browser.unlink()
        helper.unlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="who drops no privileges may enter what it made")
def test_a_directory_that_the_browser_cannot_enter_is_refused_before_anything_starts(
    tmp_path: Path,
) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(PermanentPdfError, match="cannot enter"):
        prepare(directory=tmp_path)


OWNER = """
import sys
import tempfile
from pathlib import Path
from typing import Any
from ulak.services.pdf.browser.launch import make_workplace
place = make_workplace(Path(sys.argv[1]), uid=None)
print(place.directory, flush=True)
sys.stdin.read()
"""


@pytest.mark.shows("P-14")
def test_a_profile_is_swept_when_its_owner_was_killed_and_not_before() -> None:
    with a_yard() as directory:
        owner = subprocess.Popen(
            [sys.executable, "-c", OWNER, directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with owner:
            assert owner.stdout is not None
            left = Path(owner.stdout.readline().strip())
            mine = make_workplace(directory, uid=None)
            assert sweep(directory) == 0
            assert left.exists()
            owner.send_signal(signal.SIGKILL)
            owner.wait()
        assert sweep(directory) == 1
        assert not left.exists()
        assert mine.profile.exists()
        mine.remove()


@pytest.mark.shows("P-14")
@pytest.mark.parametrize("lock_was_made", [False, True])
def test_a_profile_is_swept_whose_maker_was_killed_before_it_was_locked(
    *, lock_was_made: bool
) -> None:
    with a_yard() as directory:
        left = directory / f"{PREFIX}left"
        left.mkdir()
        if lock_was_made:
            (left / "owner").touch()
        assert sweep(directory) == 1
        assert os.listdir(directory) == []


@pytest.mark.shows("P-14")
@pytest.mark.parametrize("at", ["mkdtemp", "flock"])
def test_who_finds_its_new_directory_swept_makes_another(
    monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """A sweep comes after the directory was made, or after its lock was opened."""
    swept: list[int] = []

    def followed_by_a_sweep(*args: Any, **options: Any) -> Any:
        if not swept:
            swept.append(0)  # The sweep locks as well.
            if at == "mkdtemp":
                made = original(*args, **options)
                swept[0] = sweep(directory)
                return made
            swept[0] = sweep(directory)
        return original(*args, **options)

    with a_yard() as directory:
        module = tempfile if at == "mkdtemp" else fcntl
        original = getattr(module, at)
        monkeypatch.setattr(module, at, followed_by_a_sweep)
        mine = make_workplace(directory, uid=None)
        assert swept == [1]
        assert os.listdir(directory) == [mine.directory.name]
        assert sweep(directory) == 0
        mine.remove()
        assert os.listdir(directory) == []


@pytest.mark.shows("P-14")
def test_a_sweep_whose_directory_goes_meanwhile_gives_its_lock_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its owner, or another sweep, takes the directory away between the lock and the rename."""
    locks: list[FileIO] = []

    def rename(self: Path, target: Path) -> Path:
        shutil.rmtree(self)
        raise FileNotFoundError(self)

    def flock(lock: FileIO, how: int) -> None:
        locks.append(lock)
        original(lock, how)

    with a_yard() as directory:
        (directory / f"{PREFIX}left").mkdir()
        original = fcntl.flock
        monkeypatch.setattr(fcntl, "flock", flock)
        monkeypatch.setattr(Path, "rename", rename)
        assert sweep(directory) == 0
        assert [lock.closed for lock in locks] == [True]


@pytest.mark.shows("P-14")
def test_a_kill_while_the_place_is_looked_for_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with a_yard() as directory:
        monkeypatch.setattr(tempfile, "gettempdir", lambda: pytest.fail("it writes there to try"))
        monkeypatch.setenv("TMPDIR", str(directory))
        launch = prepare()
        assert launch.profile.is_relative_to(directory)
        launch.remove()
