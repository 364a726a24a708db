"""How a browser is started: as whom, in which namespaces, with which switches and what profile.

The sandbox stays on. There is no way to ask for a browser without one, and switches that would
weaken it are refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shlex
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from io import FileIO
from pathlib import Path
from types import MappingProxyType
from typing import Final

from ulak.errors import BadInput
from ulak.services.pdf.browser.process import find_processes
from ulak.services.pdf.ground import Ground, is_reachable, survey
from ulak.services.pdf.model import PdfErrorCode, PermanentPdfError

PREFIX: Final = "ulak-browser-"
_LOCK: Final = "owner"

REFUSED: Final = frozenset(
    {
        "no-sandbox",
        "disable-sandbox",
        "disable-setuid-sandbox",
        "disable-namespace-sandbox",
        "disable-seccomp-filter-sandbox",
        "disable-gpu-sandbox",
        "allow-sandbox-debugging",
        "no-zygote",
        "no-zygote-sandbox",
        "no-unsandboxed-zygote",
        "single-process",
        "in-process-gpu",
        "renderer-cmd-prefix",
        "utility-cmd-prefix",
        "gpu-launcher",
        "browser-subprocess-path",
        "disable-web-security",
        "allow-file-access-from-files",
        "remote-debugging-port",
        "remote-debugging-address",
        "load-extension",
    }
)
"""Switches that take the sandbox away, put something between it and its processes, or open the
browser to others than its driver."""

SWITCHES: Final = (
    "--headless",
    "--disable-gpu",
    "--hide-scrollbars",
    "--mute-audio",
    # Containers often have 64 MB of /dev/shm, and a page that needs more would crash.
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-breakpad",
    "--disable-crash-reporter",
    "--password-store=basic",
    "--use-mock-keychain",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-domain-reliability",
    "--disable-sync",
    "--no-pings",
    "--disable-default-apps",
    "--no-first-run",
    "--disable-client-side-phishing-detection",
    "--deny-permission-prompts",
    # Pages that nobody looks at are slowed down otherwise.
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    # The same bytes whatever the machine's display settings are.
    "--font-render-hinting=none",
    "--force-color-profile=srgb",
    (
        "--disable-features=Translate,OptimizationHints,MediaRouter,DialMediaRouteProvider,"
        "InterestFeedContentSuggestions,CertificateTransparencyComponentUpdater,"
        "AutofillServerCommunication"
    ),
)

_NO_ROUTES: Final = (
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--proxy-server=http://127.0.0.1:9",
    "--proxy-bypass-list=<-loopback>",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
)
"""Second best where there is no network namespace: the browser's own switches (0007)."""


@dataclass(frozen=True, slots=True)
class Workplace:
    """A directory of this process's, with the browser's profile in it.

    Whoever holds the lock on the file `owner` in it owns it, for as long as it lives, however it
    ends; so a directory whose lock can be taken is nobody's any more. Numbers of processes would
    not do: containers that share a directory do not share them.

    There is a moment when a directory is made and not yet locked. A sweep that comes then takes it,
    and its maker, who finds that out with the lock in hand, makes another; so there is no moment at
    which a maker could die and leave something that no sweep would take.
    """

    directory: Path
    lock: FileIO

    @property
    def profile(self) -> Path:
        """What the browser may write to, and nothing else is."""
        return self.directory / "profile"

    @property
    def environment(self) -> dict[str, str]:
        """What every program in it has as its environment, and nothing of the worker's own."""
        return {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.profile),
            "TMPDIR": str(self.profile),
            "LANG": "C.UTF-8",
            "TZ": "UTC",
        }

    def remove(self) -> None:
        """Take it away with all that is in it; may be called twice."""
        _remove(self.directory)
        self.lock.close()


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything that starts one browser. Whoever starts it calls `remove` when it has ended."""

    executable: Path
    _: KW_ONLY
    prefix: tuple[str, ...]
    """Put before the browser; each part executes the next, so that the first process's number is
    the browser's in the end. Drops privileges, and has the kernel end the browser with the thread
    that started it."""
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    """All of it: nothing of the worker's own environment reaches the browser."""
    uid: int | None
    """Whom the prefix drops to; None when the worker is unprivileged already."""
    isolated: bool
    """It has a network namespace of its own, with nothing in it."""
    workplace: Workplace = field(repr=False, compare=False)

    @property
    def profile(self) -> Path:
        """The directory that the browser may write to."""
        return self.workplace.profile

    def argv(self, *more: str) -> tuple[str, ...]:
        """Return the whole command, with the driver's own switches; raises BadInput."""
        _refuse_weakening(more)
        program = (str(self.executable), *self.arguments, *more)
        return (*self.prefix, *program, f"--user-data-dir={self.profile}")

    def wrapper(self) -> Path:
        """Write a program that starts the browser so, for drivers that take only a path to one.

        It ends with status 64 when an argument of the driver's weakens the sandbox, and passes on
        the rest with the profile last, since the last one counts. Removed with the profile.
        """
        patterns = "|".join(f"--{name}|--{name}=*|-{name}|-{name}=*" for name in sorted(REFUSED))
        environment = [f"{name}={value}" for name, value in self.environment.items()]
        *command, profile = self.argv()
        start = ("env", "-i", *environment, *command)
        path = self.workplace.directory / "browser"
        path.write_text(
            "#!/bin/sh\n"
            f'for word in "$@"; do case "$word" in {patterns}) exit 64;; esac; done\n'
            f'exec {shlex.join(start)} "$@" {shlex.quote(profile)}\n'
        )
        path.chmod(0o700)
        return path

    def remove(self) -> None:
        """Take the profile away; may be called twice. The browser must have ended."""
        self.workplace.remove()


def prepare(
    executable: str | os.PathLike[str] | None = None,
    *,
    directory: str | os.PathLike[str] | None = None,
    arguments: Sequence[str] = (),
    uid: int | None = None,
    isolated: bool = True,
) -> Launch:
    """Make ready to start a browser here, as safely as this machine can.

    Root's browser drops to an unprivileged user. Where user namespaces work it gets a network
    namespace with nothing in it; where they do not, the setuid helper keeps its sandbox, and root
    can still give it the network namespace. Profiles that dead workers left are removed first.
    Takes some milliseconds, and blocks: call it in a thread.

    Args:
        executable: The browser; None looks for one.
        directory: Where the profile is put; the directory for temporary files when None.
        uid: Whom root's browser drops to; a number that nobody has when None.
        isolated: False leaves the machine's network to the browser. It is for the positive control
            of isolation tests alone, which must show that what they look for would be seen.

    Raises:
        BadInput: an argument weakens the sandbox.
        PermanentPdfError: no browser can be run here; the message says how to mend it.
        OSError: the profile cannot be made.
    """
    _refuse_weakening(arguments)
    ground = survey(executable, uid=uid)
    workplace = prepare_workplace(directory, uid=ground.uid, owner="the browser")
    has_namespace = isolated and (ground.user_namespaces or ground.network_namespace)
    routes = () if has_namespace or not isolated else _NO_ROUTES
    return Launch(
        ground.executable,
        prefix=_prefix_on(ground, has_namespace=has_namespace),
        arguments=(*SWITCHES, *routes, *arguments),
        environment=_environment_in(workplace, ground),
        uid=ground.uid,
        isolated=has_namespace,
        workplace=workplace,
    )


def _refuse_weakening(arguments: Sequence[str]) -> None:
    for argument in arguments:
        # The browser takes one dash as well as two.
        name = argument.strip().lstrip("-").partition("=")[0].lower()
        if name in REFUSED:
            raise BadInput(f'the switch "{name}" weakens the browser\'s sandbox and is refused')


def prepare_workplace(
    directory: str | os.PathLike[str] | None, *, uid: int | None, owner: str, detail: str = ""
) -> Workplace:
    """Sweep what dead workers left, and make a directory for a program of a user's.

    Args:
        uid: The program's user; None when it is this one.
        owner: The program, as an error names it.

    Raises:
        PermanentPdfError: the user cannot enter the directory.
        OSError: it cannot be made.
    """
    parent = _parent(directory)
    if not is_reachable(parent, uid=uid):
        raise PermanentPdfError(
            f"{owner}'s user {uid} cannot enter {parent}; choose another directory",
            code=PdfErrorCode.UNSUPPORTED_PLATFORM,
            detail=detail,
        )
    sweep(parent)
    return make_workplace(parent, uid=uid)


def make_workplace(parent: Path, *, uid: int | None) -> Workplace:
    """Make a directory in `parent` whose profile belongs to a user (None: this one)."""
    place = None
    while place is None:  # A sweep takes it only if it comes in the very moment.
        place = _own(Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent)), fcntl.LOCK_EX)
    # Others may pass through, for the profile is somebody else's, and list nothing.
    place.directory.chmod(0o711)
    place.profile.mkdir(mode=0o700)
    if uid is not None:
        os.chown(place.profile, uid, uid)
    return place


def sweep(directory: str | os.PathLike[str] | None = None) -> int:
    """Remove the directories whose owners have died, with browsers left in them; return how many.

    Blocks for some milliseconds: call it in a thread.
    """
    return sum(_sweep(left) for left in _parent(directory).glob(f"{PREFIX}*"))


def _prefix_on(ground: Ground, *, has_namespace: bool) -> tuple[str, ...]:
    # The signal comes last of what setpriv sets: a change of user would clear it. Making a user
    # namespace does not, and neither does executing the browser, which is not setuid.
    drop = ["setpriv", "--pdeathsig=KILL"]
    if ground.uid is not None:
        drop += [f"--reuid={ground.uid}", f"--regid={ground.uid}", "--clear-groups"]
    if not ground.user_namespaces:
        outer = ("unshare", "-n", "--") if has_namespace else ()
        return (*outer, *drop, "--")
    # Without new privileges the setuid helper could not work; here it is not needed.
    drop += ["--no-new-privs", "--"]
    inner = ("unshare", "-U", "-n", "--map-current-user", "--") if has_namespace else ()
    return (*drop, *inner)


def _environment_in(workplace: Workplace, ground: Ground) -> Mapping[str, str]:
    environment = {**workplace.environment, "DBUS_SESSION_BUS_ADDRESS": "disabled:"}
    if ground.helper is not None and not ground.user_namespaces:
        environment["CHROME_DEVEL_SANDBOX"] = str(ground.helper)
    return MappingProxyType(environment)


def _parent(directory: str | os.PathLike[str] | None) -> Path:
    # Python's own way to find it writes a file there, which a kill in that moment would leave.
    return Path(directory or os.environ.get("TMPDIR") or "/tmp").absolute()  # noqa: S108


def _own(directory: Path, how: int) -> Workplace | None:
    """Take a directory's lock; None if somebody has it, or has taken the directory away."""
    try:
        lock = FileIO(str(directory / _LOCK), "a")
    except FileNotFoundError:
        return None
    with contextlib.ExitStack() as undo:
        undo.callback(lock.close)
        with contextlib.suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(lock, how)
            if os.path.samestat(os.fstat(lock.fileno()), (directory / _LOCK).stat()):
                undo.pop_all()
                return Workplace(directory, lock)
    return None


def _sweep(directory: Path) -> bool:
    place = None
    with contextlib.suppress(OSError):
        if directory.stat().st_uid == os.geteuid():
            place = _own(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if place is None:
        return False
    with place.lock:
        # A browser dies with its worker by the kernel's hand; should one still be dying, or have
        # been missed, it must not write into what is being removed.
        for pid, _ in find_processes(f"--user-data-dir={directory}/"):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        # All at once out of its maker's sight, who would make a lock where there is none.
        try:
            aside = directory.rename(directory.with_name(f"{PREFIX}{secrets.token_hex(8)}"))
        except OSError:
            return False
        _remove(aside)
    return True


def _remove(directory: Path) -> None:
    # What still dies may write once more between the listing and the removal.
    for _ in range(20):
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            return
        time.sleep(0.01)
