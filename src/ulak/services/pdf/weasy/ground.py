"""What this machine offers WeasyPrint: the package, its libraries, an unprivileged user, a network
namespace with nothing in it.

Nothing is remembered: a machine that was mended is found so at the next start.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from importlib.util import find_spec
from typing import Final

from ulak.services.pdf import ground
from ulak.services.pdf.ground import NAMESPACES, NO_SETPRIV, Weakness
from ulak.services.pdf.model import PdfErrorCode, PermanentPdfError
from ulak.services.pdf.weasy.confining import can_confine
from ulak.services.pdf.weasy.faults import ENGINE, cure, lack

UNPRIVILEGED: Final = ground.UNPRIVILEGED + 1
"""The user and group that root's documents drop to: another one than the browser's, since
processes of one user may signal each other."""

LIBRARIES: Final = (
    "libgobject-2.0.so.0",
    "libpango-1.0.so.0",
    "libharfbuzz.so.0",
    "libharfbuzz-subset.so.0",
    "libfontconfig.so.1",
    "libpangoft2-1.0.so.0",
)
"""What WeasyPrint loads when it is imported."""


@dataclass(frozen=True, slots=True)
class Ground:
    """How processes of WeasyPrint are started here."""

    _: KW_ONLY
    uid: int | None
    """The user they drop to; None when this process is unprivileged already."""
    prefix: tuple[str, ...]
    """Put before the program; each part executes the next."""


def survey() -> Ground:
    """Look at how WeasyPrint can be started here; takes some milliseconds, and blocks.

    Raises:
        PermanentPdfError: there is no `setpriv`; the message says how to mend it.
    """
    if shutil.which("setpriv") is None:
        raise PermanentPdfError(
            f"{NO_SETPRIV}; install util-linux",
            code=PdfErrorCode.UNSUPPORTED_PLATFORM, detail=ENGINE,
        )  # fmt: skip
    return Ground(
        uid=UNPRIVILEGED if os.geteuid() == 0 else None,
        # Nothing that it starts has more privileges; and it ends with the thread that starts it.
        prefix=("setpriv", "--pdeathsig=KILL", "--no-new-privs", "--", *_namespace()),
    )


def weaknesses() -> list[Weakness]:
    """Tell what is missing here, the worst first; nothing is started and nothing raised."""
    return sorted(_weaknesses(), key=lambda weakness: not weakness.is_fatal)


def _weaknesses() -> Iterator[Weakness]:
    if find_spec("weasyprint") is None:
        yield Weakness(
            ENGINE, lack("package"), cure=cure("package"), is_fatal=True
        )  # fmt: skip
    if not all(_loads(name) for name in LIBRARIES):
        yield Weakness("libraries", lack("library"), cure=cure("library"), is_fatal=True)
    if shutil.which("setpriv") is None:
        yield Weakness("user", NO_SETPRIV, cure="install util-linux", is_fatal=True)
    if not _namespace():
        yield Weakness(
            "network_namespace",
            "WeasyPrint has the machine's network, though nothing of it uses one",
            cure=NAMESPACES,
        )
    if not can_confine():
        yield Weakness(
            "files",
            "WeasyPrint could read what everybody on this machine may read",
            cure="run a kernel of 5.13 or newer with Landlock switched on (lsm=landlock,...)",
        )
    yield from ground.missing_fonts()


def _namespace() -> tuple[str, ...]:
    """Return what begins a network namespace here, () when nothing does."""
    if os.geteuid() == 0:
        # Not in a user namespace: there would be no other user in it to drop to.
        return ("unshare", "-n", "--") if ground.has_network_namespaces() else ()
    if ground.has_user_namespaces(None):
        return ("unshare", "-U", "-n", "--map-current-user", "--")
    return ()


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
