"""The script of a grader process: one submission, its record written after each check. `grade_class` starts it.

Each submission has its own process: whatever breaks its grading, including a hang of torch in the parent, costs only
that submission. The job comes from standard input; the secret comes from its file, never through a command line.
"""

from __future__ import annotations

import json
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

REFUSED = 2


def main() -> int:
    """Grade. Returns 2, with one sentence on standard error, if grading was refused."""
    job = json.loads(sys.stdin.readline())
    sys.path[:0] = [entry for entry in job["path"] if entry not in sys.path]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that workers and folders are cleared away
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    from nanocourse.grade.grade_submission import NotIsolated

    try:
        _grade(job)
    except (ValueError, NotIsolated) as error:
        print(error, file=sys.stderr)
        return REFUSED
    return 0


def _grade(job: dict[str, Any]) -> None:
    import torch

    from nanocourse.grade.assignment import Assignment, load_secret
    from nanocourse.grade.grade_submission import grade_submission

    torch.set_num_threads(1)
    assignment, secret, record = Path(job["assignment"]), Path(job["secret"]), Path(job["record"])
    grade_submission(
        Path(job["submission"]), Assignment.load(assignment), load_secret(secret), job["id"], job["require_isolation"],
        hidden=[assignment, secret, *map(Path, job["hidden"])], said=lambda now: now.save(record),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
