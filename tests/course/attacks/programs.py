"""1.1: other programs, by exec, subprocess and a shell."""

import os
import subprocess
import sys

from attempts import call, told


def attention(q, k, v, positions):
    return told({
        "subprocess": lambda: subprocess.run([sys.executable, "-c", "pass"], check=True),
        "shell": lambda: call("system", b"true"),
        "spawn": lambda: os.posix_spawn("/bin/true", ["true"], {}),
        "exec": lambda: os.execv("/bin/false", ["false"]),
    })  # fmt: skip
