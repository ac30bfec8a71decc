"""1.1: one large file, then many small ones, wherever it may write. It stops at 256 MiB."""

import os
import signal


def attention(q, k, v, positions):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    told = "large: DONE"
    try:
        with open("large", "wb") as file:
            for _ in range(64):
                file.write(bytes(1 << 20))
    except OSError as error:
        told = f"large: {error.strerror}"
    os.unlink("large")
    for number in range(256):
        with open(f"small{number}", "wb") as file:
            file.write(bytes(1 << 20))
    import time

    time.sleep(1.0)
    return f"{told}; 256 MiB: DONE"
