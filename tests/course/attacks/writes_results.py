"""1.1: writes results, changes its own file, and leaves something for the next student."""

import os

from attempts import told


def attention(q, k, v, positions):
    here = os.path.abspath(__file__)
    up = [os.path.join(os.path.dirname(here), *[".."] * n, "results.json") for n in range(4)]
    paths = ["/autograder/results/results.json", "/tmp/results.json", "/dev/shm/results.json", here, *up]
    tries = {path: lambda path=path: open(path, "a").write("{}") for path in paths}  # noqa: SIM115
    return told(tries | {"rename": lambda: os.rename(here, here + "x"), "unlink": lambda: os.unlink(here)})
