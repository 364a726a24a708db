"""What a document's process gives up for good: files, other processes, new privileges.

Files by Landlock. The process reads fonts and libraries, so that it cannot be left without files;
the rest that everybody on the host may read is none of its business. Kernels since 5.13 have it;
where there is none, nothing is given up, and the caller is told so.

Other processes by a filter of system calls: it begins no other, and becomes no other program, so
whoever ends it has ended all of it. Threads are let through, for Pango looks for fonts by them.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterable
from errno import EINVAL, ENOSYS, EPERM
from typing import Any, Final

_CREATE_RULESET: Final = 444
_ADD_RULE: Final = 445
_RESTRICT_SELF: Final = 446

_READ: Final = 1 << 2 | 1 << 3
_WRITE: Final = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8
_TRUNCATE: Final = 1 << 14
# For each version of the interface, how many of the rights to files it knows.
_KNOWN: Final = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
_CONNECT_AND_BIND: Final = 3
_SOCKETS_AND_SIGNALS: Final = 3
_PATH_BENEATH: Final = 1

_SET_SECCOMP: Final = 22
_FILTER: Final = 2

_ALLOW: Final = 0x7FFF0000
_REFUSE: Final = 0x00050000
"""With the error that the caller sees in its lower half."""
_LOAD: Final = 0x20
_RETURN: Final = 0x06
_IS: Final = 0x15
_IS_AT_LEAST: Final = 0x35
_HAS: Final = 0x45
_NUMBER: Final = 0
_MACHINE: Final = 4
_FLAGS: Final = 16
"""Where a call's number, its machine and its first argument stand."""
_THREAD: Final = 0x00010000
_OTHER_NUMBERS: Final = 0x40000000
"""From here on are those of a second interface that x86-64 has."""
_CLONE3: Final = 435

# By machine: its mark; `clone`; and what begins a process or executes a program, clone apart.
_MACHINES: Final = {
    "x86_64": (0xC000003E, 56, (57, 58, 59, 322)),
    "aarch64": (0xC00000B7, 220, (221, 281)),
}


class _Ruleset(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("files", "network", "scoped"))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("directory", ctypes.c_int32))


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_uint16),
        ("then", ctypes.c_uint8),
        ("otherwise", ctypes.c_uint8),
        ("value", ctypes.c_uint32),
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("first", ctypes.POINTER(_Instruction)))


def confine(*, readable: Iterable[str], writable: Iterable[str]) -> bool:
    """Leave this process, and all that it starts, nothing but these directories and their like.

    Executing programs, TCP and, on newer kernels, signals to other processes are given up as well.
    It must have given up new privileges before. Return False where the kernel cannot do it: then
    nothing has changed.

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
    rules = _checked(libc.syscall(_CREATE_RULESET, ctypes.byref(wanted), ctypes.c_size_t(size), 0))
    try:
        for allowed, directories in ((_READ, readable), (_READ | _WRITE | _TRUNCATE, writable)):
            for directory in filter(os.path.isdir, directories):
                _allow(libc, rules, directory, allowed & handled)
        _checked(libc.syscall(_RESTRICT_SELF, rules, 0))
    finally:
        os.close(rules)
    return True


def can_confine() -> bool:
    return _version(ctypes.CDLL(None)) >= 1


def stay_alone() -> bool:
    """Have this process begin no other from now on, and execute nothing; for good.

    It must have given up new privileges before. Return False on machines of another kind, and where
    the kernel has no such filters: then nothing has changed.

    Raises:
        OSError: it has them, and refuses.
    """
    known = _MACHINES.get(platform.machine())
    if known is None:
        return False
    mark, clone, others = known
    refuse = _Instruction(_RETURN, 0, 0, _REFUSE | EPERM)
    steps = [
        _Instruction(_LOAD, 0, 0, _MACHINE),
        _Instruction(_IS, 1, 0, mark),
        refuse,
        _Instruction(_LOAD, 0, 0, _NUMBER),
        _Instruction(_IS_AT_LEAST, 0, 1, _OTHER_NUMBERS),
        refuse,
        # Its flags lie where a filter cannot look; without it `clone` is tried.
        _Instruction(_IS, 0, 1, _CLONE3),
        _Instruction(_RETURN, 0, 0, _REFUSE | ENOSYS),
    ]
    for number in others:
        steps += [_Instruction(_IS, 0, 1, number), refuse]
    steps += [
        _Instruction(_IS, 0, 3, clone),
        _Instruction(_LOAD, 0, 0, _FLAGS),
        _Instruction(_HAS, 1, 0, _THREAD),
        refuse,
        _Instruction(_RETURN, 0, 0, _ALLOW),
    ]
    program = _Program(len(steps), (_Instruction * len(steps))(*steps))
    try:
        prctl(_SET_SECCOMP, _FILTER, ctypes.byref(program))
    except OSError as error:
        if error.errno == EINVAL:
            return False
        raise
    return True


def prctl(what: int, *values: Any) -> None:
    """Have the kernel change something of this process."""
    libc = ctypes.CDLL(None, use_errno=True)
    # All five must be there: the kernel looks at those that are not used too.
    if libc.prctl(what, *values, *(0,) * (4 - len(values))) != 0:
        raise _error()


def _version(libc: ctypes.CDLL) -> int:
    """Return the version of the interface; below 1 when there is none."""
    version: int = libc.syscall(_CREATE_RULESET, None, 0, 1)
    return version


def _allow(libc: ctypes.CDLL, rules: int, directory: str, allowed: int) -> None:
    file = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        rule = _Beneath(allowed, file)
        _checked(libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, ctypes.byref(rule), 0))
    finally:
        os.close(file)


def _checked(answer: int) -> int:
    if answer < 0:
        raise _error()
    return answer


def _error() -> OSError:
    return OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
