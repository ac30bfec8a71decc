"""The script of a worker process: an isolated Python that runs a learner's code and knows no expected value.

The two pipes to the parent are taken out of the learner's reach before anything else is imported: what his code prints
goes to a pipe of its own, and his standard input is empty.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import warnings


def outlive_nobody() -> None:
    """End with the parent: one that is killed cannot end a worker in which a learner's code loops for ever."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Serve requests until the parent closes the pipe."""
    settings = json.loads(sys.argv[1])
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    sys.dont_write_bytecode = True
    graded = settings.get("graded", False)
    if os.name == "posix" and not graded:  # a graded one has a single thread until it is confined
        outlive_nobody()
    sys.path[:0] = [entry for entry in settings["path"] if entry not in sys.path]
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # it is no dependency of ours
    import torch

    from nanoinfer.course.server import Server

    if graded:
        from nanoinfer.course.grading.serving import GradedServer as Server  # type: ignore[assignment]
    torch.set_num_threads(1)
    Server(requests, replies, settings["device"]).serve()


if __name__ == "__main__":
    main()
