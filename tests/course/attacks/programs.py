"""1.1: other programs, by exec, subprocess and a shell."""

import os
import subprocess
import sys

from attempts import told


def shell():
    if os.system("true") != 0:  # it has no error of its own
        raise PermissionError(1, os.strerror(1))


def attention(q, k, v, positions):
    return told({
        "subprocess": lambda: subprocess.run([sys.executable, "-c", "pass"], check=True),
        "shell": shell,
        "spawn": lambda: os.posix_spawn("/bin/true", ["true"], {}),
        "exec": lambda: os.execv("/bin/false", ["false"]),
    })  # fmt: skip
