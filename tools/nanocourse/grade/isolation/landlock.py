"""Landlock: a process gives up, for good, all files except those it names. No root is needed.

Through ctypes, after the kernel's own description (Documentation/userspace-api/landlock.rst,
include/uapi/linux/landlock.h): three system calls without a wrapper in libc. The one binding on PyPI is an alpha
without scopes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterable

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # the same on every architecture
VERSION, PATH_BENEATH = 1, 1
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE = (1 << bit for bit in range(6))
MAKE_DIR, MAKE_REG, MAKE_SYM, REFER, TRUNCATE, IOCTL_DEV = (1 << bit for bit in (7, 8, 12, 13, 14, 15))
# Accesses that a version of the interface knows; what is not handled stays allowed.
FILES_BY_VERSION = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
NET_FROM, NET_TCP = 4, 0b11  # bind and connect
SCOPE_FROM, SCOPES = 6, 0b11  # abstract UNIX sockets, signals
READING = READ_FILE | READ_DIR
WRITING = READING | WRITE_FILE | TRUNCATE | MAKE_REG | MAKE_DIR | REMOVE_FILE | REMOVE_DIR | REFER  # REFER: rename


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"  # Python 3.14 must be told which packing `_pack_` means
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def version() -> int:
    """The interface's version on this kernel. OSError if there is none, or it was not enabled at boot."""
    return _call(CREATE_RULESET, None, 0, VERSION)


def restrict(read: Iterable[str], listed: Iterable[str], execute: Iterable[str], write: Iterable[str]) -> None:
    """This thread, and whatever it starts, loses all files except these and what is beneath them. OSError.

    listed: only names of files can be seen. `no_new_privs` must be set, and no second thread may be running.
    """
    handled = FILES_BY_VERSION[max(known for known in FILES_BY_VERSION if known <= version())]
    ruleset = _create(handled)
    try:
        for paths, allowed in (
            (listed, READ_DIR), (read, READING), (execute, READING | EXECUTE), (write, WRITING),
        ):  # fmt: skip
            for path in paths:
                _allow(ruleset, path, allowed & handled)
        _call(RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _create(handled: int) -> int:
    at = version()
    net = NET_TCP if at >= NET_FROM else 0
    if at >= SCOPE_FROM:
        with contextlib.suppress(OSError):  # a kernel of RHEL 9 reports version 6 and has only one scope
            return _ruleset(_Ruleset(handled, net, SCOPES), 24)
    return _ruleset(_Ruleset(handled, net, 0), 16 if net else 8)


def _ruleset(wanted: _Ruleset, size: int) -> int:
    return _call(CREATE_RULESET, ctypes.byref(wanted), size, 0)


def _allow(ruleset: int, path: str, allowed: int) -> None:
    """Add one rule. A path that does not exist needs none."""
    try:
        there = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not os.path.isdir(path):
            allowed &= EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
        if allowed:
            _call(ADD_RULE, ruleset, PATH_BENEATH, ctypes.byref(_PathBeneath(allowed, there)), 0)
    finally:
        os.close(there)


def _call(number: int, *arguments: object) -> int:
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    made = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    answer: int = syscall(ctypes.c_long(number), *made)
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer
