"""1.1: fills the disk where nobody sees it: in a folder without a reader, and in files that are removed while open."""

import os
import time


def attention(q, k, v, positions):
    told, kept = [], []
    try:
        for _ in range(200):
            kept.append(open("gone", "wb"))  # noqa: SIM115
            kept[-1].write(bytes(2 << 20))
            kept[-1].flush()
            os.unlink("gone")
        told.append("removed files of 400 MiB: DONE")
    except OSError as error:
        told.append(f"removed files: {error.strerror} after {2 * len(kept)} MiB")
        kept.clear()
    os.mkdir("dark", 0o300)
    for number in range(200):
        with open(f"dark/{number}", "wb") as file:
            file.write(bytes(1 << 20))
    time.sleep(1.0)
    return "; ".join([*told, "dark folder: DONE"])
