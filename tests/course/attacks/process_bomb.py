"""1.1: as many processes as it gets, each with memory of its own."""

import os
import time


def attention(q, k, v, positions):
    for _ in range(24):
        try:
            if os.fork() == 0:
                held = bytearray(1 << 20)
                time.sleep(3.0)
                os._exit(len(held) and 0)
        except OSError as error:
            return f"processes: {error.strerror}"
    time.sleep(2.0)
    return "24 processes: DONE"
