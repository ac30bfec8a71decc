"""A process that starts another, which starts another: what is left of them when one ends?"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from multiprocessing.connection import Connection
from threading import Thread

from nanoinfer.parallel.processes import spawn

below: list[tuple[subprocess.Popen[bytes], Connection]] = []


def main(connection: Connection | None = None) -> None:
    """Start GENERATIONS more, print the pid, and wait for a signal; HANGS: while Python is locked."""
    left = int(os.environ["GENERATIONS"])
    os.environ["GENERATIONS"] = str(left - 1)
    if left:
        starts = Thread(target=start)
        starts.start()
        starts.join()
    print(os.getpid(), file=sys.stderr, flush=True)
    if connection:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        connection.send("here")
    if os.environ["HANGS"]:
        ctypes.PyDLL(None).pause()  # keeps the interpreter's lock
    signal.pause()


def start() -> None:
    """In a thread that ends once the new process is there, and long before this one does."""
    below.append(spawn("tests.serve.generations"))
    below[0][1].recv()


if __name__ == "__main__":
    main()
