"""The rehearsal on a bare Debian says what it needs before it changes anything."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def rehearse(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Start it as a user who is not root, with a directory of its own for temporary files."""
    (directory / "bin").mkdir()
    (directory / "bin" / "id").write_text("#!/bin/sh\necho 1000\n")
    (directory / "bin" / "id").chmod(0o755)
    (directory / "tmp").mkdir()
    path = f"{directory / 'bin'}:{os.environ['PATH']}"
    return subprocess.run(
        ["/bin/bash", "scripts/rehearse.sh", *options],
        cwd=ROOT,
        env={**os.environ, "PATH": path, "TMPDIR": str(directory / "tmp")},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ((), "this needs root, for debootstrap, mount and chroot; try sudo"),
        (("--only", "lint"), "there are --only run, --only test and --cache DIRECTORY"),
        (("--cache",), "there are --only run, --only test and --cache DIRECTORY"),
        (("--cache", "scripts/cache"), "the cache may not be in the repository"),
    ],
    ids=["no-root", "another-command", "no-directory", "in-the-repository"],
)
def test_what_cannot_be_done_is_said_at_once_and_nothing_is_left(
    options: tuple[str, ...], complaint: str, tmp_path: Path
) -> None:
    done = rehearse(tmp_path, *options)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("rehearse: ")
    assert complaint in done.stderr
    assert list((tmp_path / "tmp").iterdir()) == []
