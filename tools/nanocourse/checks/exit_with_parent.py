"""Exit when the parent process does, on every system that has threads."""

from __future__ import annotations

import os
import threading
import time


def exit_with_parent() -> None:
    """Watch the parent: if it is killed, it cannot end a worker whose learner's code loops for ever."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
