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
from ulak.services.pdf.model import PdfErrorCode, PermanentPdfError, TransientPdfError, not_started
from ulak.services.pdf.weasy.confining import can_confine

ENGINE: Final = "weasyprint"
"""The detail of errors that are this engine's and no document's, by which readiness knows them."""
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
_INSTALL: Final = "pip install 'ulak[weasyprint]'"
_INSTALL_LIBRARIES: Final = (
    "apt-get install libpango-1.0-0 libpangoft2-1.0-0 libharfbuzz-subset0 fonts-liberation"
)
_LACKS: Final = {
    "library": ("a library that WeasyPrint needs is not installed", _INSTALL_LIBRARIES),
    "version": ("the WeasyPrint that is installed is too old", _INSTALL),
    "package": ("templates of the engine weasyprint need {name}, which is not installed", _INSTALL),
}
"""What may be missing, as the process that loads WeasyPrint says it: what that is, and the cure."""


@dataclass(frozen=True, slots=True)
class Ground:
    """How processes of WeasyPrint are started here."""

    _: KW_ONLY
    uid: int | None
    """The user they drop to; None when this process is unprivileged already."""
    prefix: tuple[str, ...]
    """Put before the program; each part executes the next."""


def survey() -> Ground:
    """Look at how WeasyPrint can be started here; takes some milliseconds, and blocks."""
    if shutil.which("setpriv") is None:
        raise _unsupported(f"{NO_SETPRIV}; install util-linux")
    return Ground(
        uid=UNPRIVILEGED if os.geteuid() == 0 else None,
        # Nothing that it starts has more privileges; and it ends with the thread that starts it.
        prefix=("setpriv", "--pdeathsig=KILL", "--no-new-privs", "--", *_namespace()),
    )


def missing(what: str, name: str) -> PermanentPdfError:
    """Make the error of a machine that lacks something; it says how to mend it."""
    lack, cure = _LACKS.get(what, _LACKS["package"])
    return _unsupported(f"{lack.format(name=name or ENGINE)}; {cure}")


def lost(why: str) -> TransientPdfError:
    """Make the error of an engine that does not start, and may the next time."""
    return not_started(f"WeasyPrint did not start: {why}", detail=ENGINE)


def weaknesses() -> list[Weakness]:
    """Tell what is missing here, the worst first; nothing is started and nothing raised."""
    return sorted(_weaknesses(), key=lambda weakness: not weakness.is_fatal)


def _weaknesses() -> Iterator[Weakness]:
    if find_spec("weasyprint") is None:
        lack, cure = _LACKS["package"]
        yield Weakness(ENGINE, lack.format(name=ENGINE), cure=cure, is_fatal=True)
    if not all(_loads(name) for name in LIBRARIES):
        lack, cure = _LACKS["library"]
        yield Weakness("libraries", lack, cure=cure, is_fatal=True)
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
        return bool(ctypes.CDLL(library))
    except OSError:
        return False


def _unsupported(message: str) -> PermanentPdfError:
    return PermanentPdfError(message, code=PdfErrorCode.UNSUPPORTED_PLATFORM, detail=ENGINE)
