"""Tries, in a process confined as workers are, what a hostile submission would try first.

A layer counts as present if its effect was seen, not because a call returned zero. Run as a script, it reads the policy
from standard input and writes one JSON object; no student's code is near it.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

LIMIT_S = 60.0
NETWORK = "/proc/self/ns/net"


def run(policy: Any, forbidden: list[str], prefix: Sequence[str] = ()) -> Any:
    """The layers seen at work and the missing ones, as `confine.Confined`. prefix: a command that runs a worker."""
    from nanocourse.grade.isolation.confine import Confined, to_start_at_all

    job = {"policy": asdict(policy), "forbidden": forbidden, "parent": os.getpid(), "network": os.readlink(NETWORK)}
    root = str(Path(__file__).resolve().parents[3])
    done = subprocess.run(
        [*prefix, sys.executable, "-I", __file__, root], input=json.dumps(job), capture_output=True, text=True,
        timeout=LIMIT_S, check=False, start_new_session=True, env=to_start_at_all(),
    )  # fmt: skip
    try:
        told = json.loads(done.stdout)
        return Confined(list(told["present"]), dict(told["missing"]))
    except (ValueError, KeyError, TypeError):
        return Confined([], {"confinement": (done.stderr.strip().splitlines() or ["the probe said nothing"])[-1][:300]})


def main() -> None:
    """Confine this process, then try what must fail."""
    from nanocourse.grade.isolation import confine

    job = json.loads(sys.stdin.read())
    wanted = confine.Policy.of(job["policy"])
    done = confine.confine(wanted, {0, 1, 2})
    for layer, attempts in _attempts(job, wanted).items():
        for what, attempt in attempts.items():
            if layer in done.present and not _fails(attempt):
                done.present.remove(layer)
                done.missing[layer] = f"{what} was possible all the same"
    _hidden(job["forbidden"], done)
    print(json.dumps({"present": done.present, "missing": done.missing}))


def _attempts(job: dict[str, Any], wanted: Any) -> dict[str, dict[str, Callable[[], object]]]:
    """What each layer must make impossible."""
    return {
        "bubblewrap": {
            "a signal to the grader": lambda: os.kill(job["parent"], 0),
            "using its network": lambda: None if os.readlink(NETWORK) == job["network"] else _no(),
        },
        "landlock": {
            "listing /": lambda: os.listdir("/"),
            "another program": lambda: os.execv("/proc/self/exe", ["x"]) if not wanted.starting else _no(),
            "reading the grader's environment": lambda: Path(f"/proc/{job['parent']}/environ").read_bytes(),
            "writing beside the scratch folder": lambda: Path(wanted.scratch).with_name("probe").touch(),
        },
        "user": {"becoming root again": lambda: os.setresuid(0, 0, 0)},
        "limits": {"a file beyond the limit": lambda: _write(wanted.file_size + 1)},
    }


def _hidden(forbidden: list[str], done: Any) -> None:
    """Secret, results, chapters and packages must be unreadable, by whichever layer."""
    read = [path for path in forbidden if not _fails(lambda path=path: Path(path).read_bytes())]  # type: ignore[misc]
    if read:
        done.missing["hidden files"] = f"{read[0]} can be read" + (f", and {len(read) - 1} more" * (len(read) > 1))
    else:
        done.present.append("hidden files")


def _fails(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except (OSError, MemoryError):
        return True
    return False


def _no() -> None:
    raise OSError(errno.EPERM, "not tried")


def _write(size: int) -> None:
    """Write a file of this size in the working folder, then remove it."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with open("probe", "wb") as file:
            file.truncate(size)
    finally:
        os.unlink("probe")


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    main()
