"""1.1: as many threads as it gets."""

import threading
import time


def attention(q, k, v, positions):
    for _ in range(1000):
        try:
            threading.Thread(target=time.sleep, args=(3.0,), daemon=True).start()
        except RuntimeError as error:
            return f"threads: {error}"
    return "1000 threads: DONE"
