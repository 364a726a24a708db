"""What this machine offers a browser: the program, an unprivileged user, namespaces, fonts.

Nothing is remembered: a machine that was mended is found so at the next start.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from glob import glob
from pathlib import Path
from typing import Final

from ulak.services.pdf.model import PdfErrorCode, PermanentPdfError

# Not `nobody`, which is shared with whatever else runs as it: processes of one user may signal and
# trace each other. Distributions leave 60578 to 61183 unused.
# Not `nobody`, which is shared with whatever else runs as it: processes of one user may signal and
# trace each other. Distributions leave 60578 to 61183 unused.
UNPRIVILEGED: Final = 60932
"""The user and group that a browser of root's drops to: a number that nobody has."""

_KNOWN: Final = ("/usr/lib/chromium/chromium-headless-shell", "/usr/lib/chromium/chromium")
_DOWNLOADS: Final = (
    "chromium_headless_shell-*/chrome-*/*headless*shell",
    "chromium-*/chrome-linux*/chrome",
)
_NAMES: Final = (
    "chromium-headless-shell",
    "chrome-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
)
_FONTS: Final = ("/usr/share/fonts", "/usr/local/share/fonts")
_FONT_FILES: Final = frozenset({".ttf", ".otf", ".ttc"})
PINNED: Final = tuple(f"Liberation{family}-Regular.ttf" for family in ("Sans", "Serif", "Mono"))
"""The fonts that every machine has, so that a document breaks its lines at the same places."""
_INSTALL: Final = "install a browser, as `apt-get install chromium-headless-shell`"
NO_SETPRIV: Final = "there is no `setpriv`, which takes privileges away and ends orphans"
NAMESPACES: Final = (
    "allow user namespaces: sysctl user.max_user_namespaces above 0, "
    "kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0; in a "
    "container, a seccomp profile that permits unshare and clone"
)


@dataclass(frozen=True, slots=True)
class Weakness:
    """Something that is missing here, what it takes away, and how to mend it."""

    name: str
    """A stable word: browser, user_namespaces, network_namespace, setuid_helper, user or fonts."""
    message: str
    _: KW_ONLY
    cure: str
    is_fatal: bool = False
    """Nothing can be rendered until it is mended."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What there is to start a browser on."""

    executable: Path
    _: KW_ONLY
    uid: int | None
    """The user it drops to; None when this process is unprivileged already."""
    user_namespaces: bool
    network_namespace: bool
    helper: Path | None
    """Chromium's setuid helper, which stands in for user namespaces."""


Executable = str | os.PathLike[str] | None
"""Where a browser is, or what it is called on the path; None looks for one."""


def survey(executable: Executable = None, *, uid: int | None = None) -> Ground:
    """Look at what a browser can be started with here: that one, or one that is found.

    Of root's processes it drops to the user `uid`.

    Raises:
        PermanentPdfError: there is no browser that may be executed, no unprivileged user to run
            it as, or nothing that its sandbox can be made of; the message says how to mend it.
    """
    drop = _find_user(uid)
    if drop == 0:
        raise _unsupported("a browser is never run as root; give another uid")
    program = find_browser(executable, uid=drop)
    if program is None:
        raise _unsupported(f"there is no browser that can be executed; {_INSTALL}")
    if shutil.which("setpriv") is None:
        raise _unsupported(f"{NO_SETPRIV}; install util-linux")
    ground = Ground(
        program, uid=drop, user_namespaces=has_user_namespaces(drop),
        network_namespace=has_network_namespaces(), helper=_helper_of(program),
    )  # fmt: skip
    if not ground.user_namespaces and ground.helper is None:
        raise _unsupported(
            f"the browser's sandbox needs user namespaces or a setuid helper; {NAMESPACES}; "
            "or install the helper, as `apt-get install chromium-sandbox`"
        )
    return ground


def weaknesses(executable: Executable = None, *, uid: int | None = None) -> list[Weakness]:
    """Tell what is missing here, the worst first; nothing is started and nothing raised."""
    return sorted(_weaknesses(executable, uid), key=lambda weakness: not weakness.is_fatal)


def find_browser(executable: Executable = None, *, uid: int | None = None) -> Path | None:
    """Find the browser that `uid` can execute: the one that was named, else Debian's, Playwright's,
    one on the path.

    Scripts that call a browser come last: their process is not the browser's, so that a signal to
    it misses.
    """
    if executable is not None:
        named = shutil.which(executable)
        found = [Path(named)] if named else []
    else:
        found = [Path(known) for known in _KNOWN] + list(_downloads())
        found += [Path(path) for name in _NAMES if (path := shutil.which(name))]
    usable = [path for path in found if is_reachable(path, uid=uid)]
    for program in usable:
        with program.open("rb") as file:
            if file.read(2) != b"#!":
                return program
    return next(iter(usable), None)


def is_reachable(path: Path, *, uid: int | None) -> bool:
    """Tell whether a user may execute a file, or enter a directory, with all that lead to it."""
    if uid is None:
        return os.access(path, os.X_OK)
    resolved = path.resolve()
    try:
        for step in (resolved, *resolved.parents):
            found = step.stat()
            if not found.st_mode & (stat.S_IXUSR if found.st_uid == uid else stat.S_IXOTH):
                return False
    except OSError:
        return False
    return True


def has_user_namespaces(uid: int | None) -> bool:
    """Tell whether that user (None: this one) may make a user and a network namespace."""
    drop = ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--no-new-privs")
    namespaces = ("unshare", "-U", "-n", "--map-current-user", "--", "true")
    return _succeeds(*(drop if uid is not None else ()), *namespaces)


def has_network_namespaces() -> bool:
    """Tell whether this process is root's and may make a network namespace."""
    return os.geteuid() == 0 and _succeeds("unshare", "-n", "--", "true")


def missing_fonts() -> Iterator[Weakness]:
    """Tell which fonts are missing here, whatever renders."""
    fonts = {
        path.name for root in _FONTS for path in Path(root).rglob("*") if path.suffix in _FONT_FILES
    }
    if not fonts:
        told = "there are no fonts, so text without a font of its own prints as boxes"
        cure = "install fonts, as `apt-get install fonts-liberation fonts-dejavu-core`"
        yield Weakness("fonts", told, cure=cure)
    elif missing := [name for name in PINNED if name not in fonts]:
        told = f"there is no {', '.join(missing)}: documents look different from elsewhere"
        yield Weakness("fonts", told, cure="install it, as `apt-get install fonts-liberation`")


def _weaknesses(executable: Executable, uid: int | None) -> Iterator[Weakness]:
    drop = _find_user(uid)
    program = find_browser(executable, uid=drop)
    if program is None:
        yield Weakness("browser", "no browser can be executed here", cure=_INSTALL, is_fatal=True)
    if shutil.which("setpriv") is None:
        yield Weakness("user", NO_SETPRIV, cure="install util-linux", is_fatal=True)
    if not has_user_namespaces(drop):
        helper = program and _helper_of(program)
        rests = "the sandbox rests on the setuid helper alone"
        told = rests if helper else "the browser's sandbox cannot be made"
        yield Weakness("user_namespaces", told, cure=NAMESPACES, is_fatal=not helper)
        if not helper:
            told = "nothing stands in for the missing user namespaces"
            cure = "install the helper, as `apt-get install chromium-sandbox`"
            yield Weakness("setuid_helper", told, cure=cure)
        if not has_network_namespaces():
            told = "the browser can reach the network if its own switches fail"
            yield Weakness("network_namespace", told, cure=NAMESPACES)
    yield from missing_fonts()


def _find_user(uid: int | None) -> int | None:
    """Return the user that a browser drops to, None when this process is unprivileged already."""
    if os.geteuid() != 0:
        return None
    return UNPRIVILEGED if uid is None else uid


def _downloads() -> Iterator[Path]:
    # Where Playwright puts its browsers unless told otherwise; the newest has the largest number.
    # What may not be read, or a user without a home, has none.
    for pattern in _DOWNLOADS:
        found = glob(os.path.expanduser(f"~/.cache/ms-playwright/{pattern}"))
        yield from (Path(path) for path in sorted(found, reverse=True))


def _helper_of(program: Path) -> Path | None:
    for name in ("chrome-sandbox", "chrome_sandbox"):
        helper = program.resolve().parent / name
        try:
            found = helper.stat()
        except OSError:
            continue
        if found.st_uid == 0 and found.st_mode & stat.S_ISUID and found.st_mode & stat.S_IXOTH:
            return helper
    return None


def _succeeds(*command: str) -> bool:
    try:
        done = subprocess.run(  # noqa: S603 - a command of our own
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _unsupported(message: str) -> PermanentPdfError:
    return PermanentPdfError(message, code=PdfErrorCode.UNSUPPORTED_PLATFORM)
