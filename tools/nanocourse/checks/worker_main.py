"""The script of a worker process: an isolated Python that runs a learner's code and knows no expected value.

Before anything else is imported, the two pipes to the parent are moved out of reach of the learner's code: what it
prints goes to a pipe of its own, and its standard input is empty.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from importlib import import_module
from pathlib import Path


def main() -> None:
    """Serve requests until the parent closes the pipe."""
    settings = json.loads(sys.argv[1])
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    sys.dont_write_bytecode = True
    sys.path[:0] = [entry for entry in settings["path"] if entry not in sys.path]
    if os.name == "posix" and not settings["graded"]:  # a graded one has a single thread until it is confined
        from nanocourse.checks.exit_with_parent import exit_with_parent

        exit_with_parent()
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # it is no dependency of ours
    sys.breakpointhook = no_terminal
    module, _, name = settings["server"].partition(":")
    getattr(import_module(module), name)(requests, replies, settings["device"]).serve()


def import_path() -> list[str]:
    """Where our processes import from: never the current folder, which may hold a student's torch.py."""
    import nanoinfer

    here = {"", str(Path.cwd())}
    own = [str(Path(nanoinfer.__file__).parents[1]), str(Path(__file__).parents[2])]
    return [*own, *(entry for entry in sys.path if entry not in here)]


def no_terminal(*_: object, **__: object) -> None:
    """What `breakpoint()` does here, where nobody could type."""
    raise RuntimeError("no debugger here: print, which the check shows, or run `python -i` on your file and call it")


if __name__ == "__main__":
    main()
