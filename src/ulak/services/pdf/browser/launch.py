"""How a browser is started: as whom, in which namespaces, with which switches and what profile.

The sandbox stays on. There is no way to ask for a browser without one, and switches that would
weaken it are refused.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from ulak.errors import BadInput
from ulak.services.pdf.browser.profiles import Workplace, prepare_workplace
from ulak.services.pdf.ground import Ground, survey

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
    gid: int | None
    """Whom the prefix drops to; None when the worker is unprivileged already."""
    profile: Path
    isolated: bool
    """It has a network namespace of its own, with nothing in it."""
    workplace: Workplace = field(repr=False, compare=False)

    def argv(self, *more: str) -> tuple[str, ...]:
        """Give the whole command, with the driver's own switches.

        Raises:
            BadInput: one of them weakens the sandbox.
        """
        refuse_weakening(more)
        return (
            *self.prefix,
            str(self.executable),
            *self.arguments,
            *more,
            f"--user-data-dir={self.profile}",
        )

    def wrapper(self) -> Path:
        """Write a program that starts the browser so, for drivers that take only a path to one.

        It takes the driver's own arguments, ends with status 64 when one of them weakens the
        sandbox, and passes on the rest with the profile last, since the last one counts. Give the
        driver no arguments of `SWITCHES` again. Removed with the profile.
        """
        patterns = "|".join(f"--{name}|--{name}=*|-{name}|-{name}=*" for name in sorted(REFUSED))
        environment = [f"{name}={value}" for name, value in self.environment.items()]
        command = ["env", "-i", *environment, *self.prefix, str(self.executable), *self.arguments]
        script = (
            "#!/bin/sh\n"
            f'for word in "$@"; do case "$word" in {patterns}) exit 64;; esac; done\n'
            f'exec {shlex.join(command)} "$@" {shlex.quote(f"--user-data-dir={self.profile}")}\n'
        )
        path = self.workplace.directory / "browser"
        path.write_text(script)
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
        arguments: More switches for the browser.
        uid: Whom root's browser drops to; a number that nobody has when None.
        isolated: False leaves the machine's network to the browser, with the same user and the
            same sandbox. It is for the positive control of isolation tests alone, which must
            show that what they look for would be seen.

    Raises:
        BadInput: an argument weakens the sandbox.
        PermanentPdfError: no browser can be run here; the message says how to mend it.
        OSError: the profile cannot be made.
    """
    refuse_weakening(arguments)
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
        gid=ground.uid,
        profile=workplace.profile,
        isolated=has_namespace,
        workplace=workplace,
    )


def refuse_weakening(arguments: Sequence[str]) -> None:
    """Let pass what leaves the sandbox as it is.

    Raises:
        BadInput: a switch weakens it, or opens the browser to others.
    """
    for argument in arguments:
        # The browser takes one dash as well as two.
        name = argument.strip().lstrip("-").partition("=")[0].lower()
        if name in REFUSED:
            raise BadInput(f'the switch "{name}" weakens the browser\'s sandbox and is refused')


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
