"""1.1: reads the grader's memory, environment and command line through /proc."""

import os

from attempts import told


def attention(q, k, v, positions):
    names = ("environ", "mem", "maps", "fd", "cmdline", "cwd", "root")
    tries = {name: lambda name=name: open(f"/proc/{os.getppid()}/{name}", "rb").read(16) for name in names}  # noqa: SIM115
    secrets = [name for name in os.environ if "SECRET" in name or "NANOINFER" in name]
    return told(tries) + f"; environment: {'DONE' if secrets else 'empty'}"
