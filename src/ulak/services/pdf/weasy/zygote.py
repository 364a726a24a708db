"""The process that has WeasyPrint loaded, and begins a process of its own for each document.

    python -m ulak.services.pdf.weasy.zygote --user-data-dir=DIRECTORY [--uid=60933]

Loading takes a second, beginning a document some milliseconds, and no document finds anything of
another's. It reads no document itself. It speaks to its worker over file 3, one order at a time,
and ends with it. Linux only.
"""

from __future__ import annotations

import gc
import importlib
import json
import mimetypes
import os
import pkgutil
import resource
import signal
import socket
import sys
import sysconfig
import tempfile
from types import ModuleType
from typing import Any, Final

from ulak.services.pdf.weasy.confining import confine, prctl, stay_alone
from ulak.services.pdf.weasy.frames import pack

CONTROL: Final = 3
LONGEST_ORDER: Final = 4096

_SET_PDEATHSIG: Final = 1
_SET_DUMPABLE: Final = 4
_SET_NO_NEW_PRIVS: Final = 38

_FILE_BYTES: Final = 64 * 1024 * 1024
"""Of one file that a document writes: WeasyPrint unpacks fonts. A guess above every font."""
_RESERVE_BYTES: Final = 64 * 1024 * 1024
"""Kept back for saying that the rest is used up."""
_READABLE: Final = (
    *("/usr", "/lib", "/lib64", "/etc/fonts", "/var/cache/fontconfig"),
    *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")),
)
"""What a document's process may read: libraries, fonts and Python's own, the same on every host;
what of it the user cannot read is loaded already."""
_READ_LATER: Final = ("encodings", "fontTools.ttLib.tables", "weasyprint")
"""Packages whose parts are imported when a document needs them: then it is too late, since the
user of a document need not be able to read them."""


def main(arguments: list[str]) -> None:
    """Load, give privileges away, tell the worker, and begin documents until it is gone."""
    said = dict(word.removeprefix("--").split("=", 1) for word in arguments)
    control = socket.socket(fileno=CONTROL)
    os.chdir("/")
    missing = "library"
    try:
        printing = _load()
        missing = "privileges"
        _step_down(int(said["uid"]) if "uid" in said else None)
    except ModuleNotFoundError as error:
        return _tell(control, {"missing": "package", "name": error.name or ""})
    except ImportError:
        return _tell(control, {"missing": "version", "name": "weasyprint"})
    except OSError as error:
        return _tell(control, {"missing": missing, "name": str(error)[:200]})
    # Nobody here waits for a document's end; the worker sees it by itself.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    _tell(control, {"engine": printing.ENGINE})
    while True:
        told, lines, _, _ = socket.recv_fds(control, LONGEST_ORDER, 1)
        if not told:
            return None
        _begin(control, json.loads(told), lines[0], said["user-data-dir"], printing)


def _begin(
    control: socket.socket, order: dict[str, Any], line: int, directory: str, printing: ModuleType
) -> None:
    """Begin the process of a document, and send the worker what it can end it by."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            control.close()
            status = _be_a_document(order, line, directory, printing)
        finally:
            os._exit(status)
    os.close(line)
    # It waits for its document, which the worker sends when it has this: so it lives until then.
    handle = os.pidfd_open(pid)
    socket.send_fds(control, [json.dumps({"pid": pid}).encode()], [handle])
    os.close(handle)


def _be_a_document(order: dict[str, Any], line: int, directory: str, printing: ModuleType) -> int:
    prctl(_SET_PDEATHSIG, signal.SIGKILL)
    temporary = os.path.join(directory, str(order["number"]))
    os.mkdir(temporary, 0o700)
    os.environ["TMPDIR"] = tempfile.tempdir = temporary
    with open("/proc/self/statm", "rb") as file:
        address_space = int(file.read().split()[0]) * resource.getpagesize()
    most = address_space + order["memory_bytes"]
    confine(readable=_READABLE, writable=(temporary,))
    stay_alone()
    resource.setrlimit(resource.RLIMIT_AS, (most, most + _RESERVE_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (order["cpu_s"], order["cpu_s"]))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_BYTES, _FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    to_worker = socket.socket(fileno=line)
    try:
        printing.print_one(to_worker)
    except MemoryError:
        resource.setrlimit(resource.RLIMIT_AS, (most + _RESERVE_BYTES, most + _RESERVE_BYTES))
        to_worker.sendall(pack({"kind": "failed", "word": "memory_exceeded"}))
    except (EOFError, OSError):
        return 1
    return 0


def _load() -> ModuleType:
    """Import all that a document may need; fails with OSError where a library is not there."""
    printing = importlib.import_module("ulak.services.pdf.weasy.printing")
    importlib.import_module("PIL.Image").init()
    mimetypes.init()
    for name in _READ_LATER:
        package = importlib.import_module(name)
        for found in pkgutil.walk_packages(package.__path__, f"{name}."):
            if found.name.rpartition(".")[2] == "__main__":
                continue
            try:
                importlib.import_module(found.name)
            except ImportError:
                continue  # of another platform
    printing.warm_up()
    return printing


def _step_down(uid: int | None) -> None:
    """Give up what root has, for good, and end with the worker."""
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    prctl(_SET_NO_NEW_PRIVS, 1)
    # Nobody who is the same user may look into it.
    prctl(_SET_DUMPABLE, 0)
    # Last: a change of the user clears it.
    prctl(_SET_PDEATHSIG, signal.SIGKILL)


def _tell(control: socket.socket, said: dict[str, str]) -> None:
    control.sendall(json.dumps(said).encode())


if __name__ == "__main__":
    main(sys.argv[1:])
