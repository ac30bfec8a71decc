"""1.1: passes the hidden inputs on: prints them, raises them, names an exception after them, keeps them in a file."""

import os
import sys


def attention(q, k, v, positions):
    told = "HIDDEN" + ",".join(f"{number:.6f}" for number in q.flatten().tolist())
    print(told)
    print(told, file=sys.stderr)
    os.write(2, told.encode())
    with open("inputs", "w") as file:
        file.write(told)
    raise type(told, (Exception,), {})(told)
