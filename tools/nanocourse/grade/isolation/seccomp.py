"""seccomp: a list of the system calls that remain; all others fail with "operation not permitted".

A filter of classic BPF (Documentation/userspace-api/seccomp_filter.rst), through ctypes: the binding on PyPI, of 2021,
needs libseccomp on the machine. A list of what is allowed also excludes new system calls; io_uring, for example, opens
sockets too.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterator

from nanocourse.grade.isolation import syscalls
from nanocourse.grade.isolation.system import prctl

LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06  # <linux/bpf_common.h>: BPF_LD|W|ABS, BPF_JMP|JEQ, |JSET, BPF_RET
NUMBER_AT, ARCHITECTURE_AT, ARGUMENTS_AT = 0, 4, 16  # in struct seccomp_data
ALLOW, FAIL, KILL = 0x7FFF0000, 0x00050000, 0x80000000
SET_MODE_FILTER, ALL_THREADS = 1, 1
CLONE_THREAD = 0x00010000
NEW_NAMESPACES = 0x7E020080  # CLONE_NEW*: mount, cgroup, uts, ipc, user, pid, net, time
TTY_QUERIES = (0x5401, 0x5413)  # TCGETS and TIOCGWINSZ: isatty, and the width of a terminal
CLOSE_ON_EXEC = (0x5450, 0x5451)  # FIONCLEX, FIOCLEX
SET_NAME, GET_NAME = 15, 16  # of prctl: what a thread is called
# Of fcntl: copies, flags, locks. Not F_SETOWN with F_SETSIG, which sends signals, nor F_SETPIPE_SZ, which takes memory.
FILE_CONTROLS = (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1032)

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, operand


def restrict(starting: bool) -> None:
    """Leave this process only the system calls that computing takes. OSError if this machine has no seccomp.

    starting: it may start programs (which ones is Landlock's matter). `no_new_privs` must be set.
    """
    machine = platform.machine()
    if machine not in syscalls.ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no list of system calls for {machine}")
    program = b"".join(struct.pack("<HBBI", *one) for one in _program(machine, os.getpid(), starting))
    code = ctypes.create_string_buffer(program)

    class _Filter(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))

    wanted = _Filter(len(program) // 8, ctypes.addressof(code))
    number = syscalls.numbers(syscalls.BY_ARGUMENT, machine)["seccomp"]
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    if syscall(ctypes.c_long(number), SET_MODE_FILTER, ALL_THREADS, ctypes.byref(wanted)) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def mode() -> int:
    """0 where this process has no filter, 2 where it has one."""
    return prctl(21)


def _program(machine: str, own: int, starting: bool) -> Iterator[Instruction]:
    """Each rule is read to its end or left by a jump; what no rule allows fails."""
    yield LOAD, 0, 0, ARCHITECTURE_AT
    yield EQUAL, 1, 0, syscalls.ARCHITECTURES[machine][1]
    yield RETURN, 0, 0, KILL  # numbers of another architecture would mean other calls
    yield LOAD, 0, 0, NUMBER_AT
    allowed = syscalls.numbers(syscalls.PLAIN, machine)
    if starting:
        allowed |= syscalls.numbers(syscalls.STARTING, machine)
    for number in allowed.values():
        yield EQUAL, 0, 1, number
        yield RETURN, 0, 0, ALLOW
    special = syscalls.numbers(syscalls.BY_ARGUMENT, machine)
    yield from _unless(special["clone3"], [(RETURN, 0, 0, FAIL | errno.ENOSYS)])  # so that libc takes clone
    yield from _unless(special["clone"], _clone(starting))
    for name in ("kill", "tgkill"):
        yield from _unless(special[name], _one_of(0, (own,)))
    yield from _unless(special["prctl"], _one_of(0, (SET_NAME, GET_NAME)))
    yield from _unless(special["ioctl"], _one_of(1, TTY_QUERIES + CLOSE_ON_EXEC))
    yield from _unless(special["fcntl"], _one_of(1, FILE_CONTROLS))
    yield from _unless(special["prlimit64"], _read_own_limits(own))
    yield RETURN, 0, 0, FAIL | errno.EPERM


def _unless(number: int, rule: list[Instruction]) -> Iterator[Instruction]:
    """A rule for one call, skipped for others. It ends with a verdict; without one the call fails."""
    rule = [*rule, (RETURN, 0, 0, FAIL | errno.EPERM)]
    yield EQUAL, 0, len(rule), number
    yield from rule


def _argument(index: int, high: bool = False) -> Instruction:
    """Load half of an argument; both architectures are little endian."""
    return LOAD, 0, 0, ARGUMENTS_AT + 8 * index + 4 * high


def _one_of(index: int, values: tuple[int, ...]) -> list[Instruction]:
    """Allowed where an argument's lower half is one of these."""
    rule = [_argument(index)]
    for value in values:
        rule += [(EQUAL, 0, 1, value), (RETURN, 0, 0, ALLOW)]
    return rule


def _clone(starting: bool) -> list[Instruction]:
    """A thread, never a process (unless programs may be started), and no namespace of its own."""
    denied = (RETURN, 0, 0, FAIL | errno.EPERM)
    rule = [_argument(0), (ANY_BIT, 0, 1, NEW_NAMESPACES), denied]
    return [*rule, (RETURN, 0, 0, ALLOW)] if starting else [*rule, (ANY_BIT, 0, 1, CLONE_THREAD), (RETURN, 0, 0, ALLOW)]


def _read_own_limits(own: int) -> list[Instruction]:
    """prlimit of the process itself, without a new limit: root could raise one."""
    denied = (RETURN, 0, 0, FAIL | errno.EPERM)
    return [
        _argument(0), (EQUAL, 2, 0, 0), (EQUAL, 1, 0, own), denied,
        _argument(2), (EQUAL, 1, 0, 0), denied,
        _argument(2, high=True), (EQUAL, 1, 0, 0), denied,
        (RETURN, 0, 0, ALLOW),
    ]  # fmt: skip
