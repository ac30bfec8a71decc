"""Beside an attack: makes its attempts one after the other, and tells what came of each."""

import ctypes
import os
import subprocess

REFUSED = (OSError, ValueError, MemoryError, RuntimeError, ImportError, AttributeError, subprocess.SubprocessError)


def call(name, *args):
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*args) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def told(tries):
    found = []
    for name, act in tries.items():
        try:
            act()
            found.append(f"{name}: DONE")
        except REFUSED as error:
            found.append(f"{name}: {getattr(error, 'strerror', None) or type(error).__name__}")
    return "; ".join(found)
