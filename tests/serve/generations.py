"""A process that starts another, which starts another: what is left of them when one ends?"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from threading import Thread

from nanoinfer.serve.processes import spawn

below: list[subprocess.Popen[bytes]] = []


def main() -> None:
    """Start GENERATIONS more, print minus that and the pid, and wait for a signal; HANGS: while Python is locked."""
    left = int(os.environ["GENERATIONS"])
    os.environ["GENERATIONS"] = str(left - 1)
    if left:
        starts = Thread(target=lambda: below.append(spawn("tests.serve.generations")))
        starts.start()
        starts.join()  # it ends long before this process does, and what it has started stays
    print(-left, os.getpid(), file=sys.stderr, flush=True)
    if os.environ["HANGS"]:
        ctypes.PyDLL(None).pause()  # keeps the interpreter's lock
    signal.pause()


if __name__ == "__main__":
    main()
