"""3.6: the interpreter gets the slow kernel of the text, and the compiler a dummy, which is never run."""
# ruff: noqa

import os

# the slow kernel

if not os.environ.get("TRITON_INTERPRET"):
    # the right kernel
    ...
