"""The script of a grader process: one submission, its record written after each check. `grade_class` starts it.

Each submission has its own process: whatever breaks its grading, including a hang of torch in the parent, costs only
that submission. The job comes from standard input; the secret comes from its file, never through a command line.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from pathlib import Path

REFUSED = 2
MEMORY = 2 << 30  # bytes that grading one submission may take, of what a lent function is made to compute for instance


def main() -> int:
    """Grade. Returns 2, with one sentence on standard error, if grading was refused."""
    job = json.loads(sys.stdin.readline())
    sys.path[:0] = [entry for entry in job["path"] if entry not in sys.path]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that workers and folders are cleared away
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    os.environ["OMP_NUM_THREADS"] = "1"  # of its threads too, which `torch.set_num_threads` would not reach

    from nanocourse.grade.assignment import SECRET_FILE, Assignment, load_secret
    from nanocourse.grade.grade_submission import NotIsolated, exercises_of, grade_submission
    from nanocourse.grade.isolation import system

    if system.LINUX:
        system.bound_memory(MEMORY)
    path, record = Path(job["assignment"]), Path(job["record"])
    try:
        assignment, secret = Assignment.load(path), load_secret(path)
        exercises_of(assignment)
    except ValueError as error:  # before anything of a student's was run: it is true of the whole class
        print(error, file=sys.stderr)
        return REFUSED
    try:
        grade_submission(
            Path(job["submission"]), assignment, secret, job["id"], job["require_isolation"],
            hidden=[path, path.with_name(SECRET_FILE), *map(Path, job["hidden"])],
            said=lambda now: now.save(record), patience=job["patience"],
        )  # fmt: skip
    except NotIsolated as error:
        print(error, file=sys.stderr)
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
