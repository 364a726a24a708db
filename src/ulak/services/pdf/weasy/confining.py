"""Landlock: a process gives up, for good, all files but those that it names.

A document's process reads fonts and libraries, so that it cannot be left without files; the rest
that everybody on the host may read is none of its business. Kernels since 5.13 have it; where there
is none, nothing is given up, and the caller is told so.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from typing import Final

_CREATE_RULESET: Final = 444
_ADD_RULE: Final = 445
_RESTRICT_SELF: Final = 446
"""Numbers of the system calls, the same on every machine."""

_READ: Final = 1 << 2 | 1 << 3
"""Read files, and list directories."""
_WRITE: Final = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8
"""Write files; remove directories and files; make them."""
_TRUNCATE: Final = 1 << 14
# For each version of the interface, how many of the rights to files it knows.
_KNOWN: Final = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
_CONNECT_AND_BIND: Final = 3
_SOCKETS_AND_SIGNALS: Final = 3
_PATH_BENEATH: Final = 1


class _Ruleset(ctypes.Structure):
    _fields_ = (
        ("files", ctypes.c_uint64),
        ("network", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("directory", ctypes.c_int32))


def confine(*, readable: Iterable[str], writable: Iterable[str]) -> bool:
    """Leave this process, and all that it starts, nothing but these directories and their like.

    Executing programs, TCP and, on newer kernels, signals to other processes are given up as well.
    It must have given up new privileges before.

    Args:
        readable: Directories to read from; what is not there is left out.
        writable: Directories to read from, write to and remove from.

    Returns:
        False where the kernel cannot do it: then nothing has changed.

    Raises:
        OSError: it can, and refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    version = _version(libc)
    if version < 1:
        return False
    handled = (1 << _KNOWN[min(version, max(_KNOWN))]) - 1
    wanted = _Ruleset(
        handled,
        _CONNECT_AND_BIND if version >= 4 else 0,
        _SOCKETS_AND_SIGNALS if version >= 6 else 0,
    )
    size = 8 if version < 4 else 16 if version < 6 else 24
    rules = _call(libc, _CREATE_RULESET, ctypes.byref(wanted), ctypes.c_size_t(size), 0)
    try:
        for allowed, directories in ((_READ, readable), (_READ | _WRITE | _TRUNCATE, writable)):
            for directory in directories:
                if os.path.isdir(directory):
                    _allow(libc, rules, directory, allowed & handled)
        _call(libc, _RESTRICT_SELF, rules, 0)
    finally:
        os.close(rules)
    return True


def can_confine() -> bool:
    """Tell whether the kernel can do it."""
    return _version(ctypes.CDLL(None)) >= 1


def _version(libc: ctypes.CDLL) -> int:
    """Return the version of the interface; below 1 when there is none."""
    version: int = libc.syscall(_CREATE_RULESET, None, 0, 1)
    return version


def _allow(libc: ctypes.CDLL, rules: int, directory: str, allowed: int) -> None:
    file = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        rule = _Beneath(allowed, file)
        _call(libc, _ADD_RULE, rules, _PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(file)


def _call(libc: ctypes.CDLL, number: int, *arguments: object) -> int:
    answer: int = libc.syscall(number, *arguments)
    if answer < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return answer
