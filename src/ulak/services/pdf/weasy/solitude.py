"""A filter of system calls: a process begins no other, and becomes no other program.

So whoever ends it has ended all of it. Threads are let through, for Pango looks for fonts by them.
"""

from __future__ import annotations

import ctypes
import os
import platform
from errno import EINVAL, ENOSYS, EPERM
from typing import Final

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


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_uint16),
        ("then", ctypes.c_uint8),
        ("otherwise", ctypes.c_uint8),
        ("value", ctypes.c_uint32),
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("first", ctypes.POINTER(_Instruction)))


def stay_alone() -> bool:
    """Have this process begin no other from now on, and execute nothing; for good.

    It must have given up new privileges before.

    Returns:
        False on machines of another kind, and where the kernel has no such filters: then nothing
        has changed.

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
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0) != 0:
        error = ctypes.get_errno()
        if error == EINVAL:
            return False
        raise OSError(error, os.strerror(error))
    return True
