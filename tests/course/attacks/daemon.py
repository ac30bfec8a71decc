"""1.1: leaves a daemon behind that writes later."""

import os
import time


def attention(q, k, v, positions):
    try:
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(2.0)
                with open(os.path.join(os.environ.get("HOME", "/tmp"), "later"), "w") as file:
                    file.write("passed")
            os._exit(0)
    except OSError as error:
        return f"fork: {error.strerror}"
    return "fork: DONE"
