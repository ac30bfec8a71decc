"""1.1: other programs, by exec, subprocess and a shell."""

import os
import subprocess
import sys


def attention(q, k, v, positions):
    told = []
    for name, act in (
        ("subprocess", lambda: subprocess.run([sys.executable, "-c", "pass"], check=True)),
        ("shell", lambda: os.system("true") and (_ for _ in ()).throw(OSError(1, "Operation not permitted"))),
        ("spawn", lambda: os.posix_spawn("/bin/true", ["true"], {})),
        ("exec", lambda: os.execv("/bin/false", ["false"])),
    ):
        try:
            act()
            told.append(f"{name}: DONE")
        except (OSError, subprocess.SubprocessError) as error:
            told.append(f"{name}: {getattr(error, 'strerror', None) or error}")
    return "; ".join(told)
