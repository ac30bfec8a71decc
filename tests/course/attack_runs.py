"""Runs the hostile submissions of `attacks` in a worker confined as for grading, or with a layer switched off."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from nanocourse.checks.worker import Loaded
from nanocourse.exercises import chapters
from nanocourse.exercises.exercise import Exercise
from nanocourse.exercises.outcomes import Outcome, Returned, told
from nanocourse.grade.assignment import Assignment, Limits, Part
from nanocourse.grade.grade_submission import grade_submission
from nanocourse.grade.graded_worker import GradedWorker, Pool
from nanocourse.grade.hidden_inputs import judged, questions
from nanocourse.grade.isolation import system
from nanocourse.grade.isolation.confine import LAYERS
from nanocourse.grade.record import GradeRecord, Isolation
from nanocourse.grade.workspace import Workspace

ATTACKS = Path(__file__).with_name("attacks")
SECRET = "5e" * 32
BESIDE = (ATTACKS / "beside" / "attempts.py").read_bytes()
# A worker that nobody can use after them.
SPOILS = ("daemon", "patched_torch", "rewrites_worker", "thread_bomb", "memory_bomb")
LIMITS = Limits(submission_s=60.0, check_s=5.0)

# Attack -> how it must end, and what sees to that. See `test_isolation.ENDS`.
TABLE = {
    "daemon": ("cut off", "bubblewrap: it ends with its worker"), "sockets": ("apart", "bubblewrap"),
    "signals": ("apart", "bubblewrap"), "privileges": ("unreadable", "landlock, limits"),
    "memory_bomb": ("refused", "limits"), "thread_bomb": ("refused", "limits"),
    "process_bomb": ("crashed", "the grader's eye on what a worker starts"),
    "programs": ("unreadable", "landlock"), "reads_memory": ("unreadable", "landlock"),
    "frame_walk": ("refused", "a process of its own"), "grader_by_proc": ("unreadable", "landlock"),
    "reads_checks": ("unreadable", "landlock"), "writes_results": ("unreadable", "landlock"),
    "in_place": ("wrong", "the worker has copies"), "not_a_number": ("wrong", "NaN equals NaN alone"),
    "torch_function": ("wrong", "raw bytes: objects do not cross"),
    "patched_torch": ("wrong", "the grader compares, in its own process"),
    "disk_bomb": ("crashed", "the grader's eye on the scratch folder; limits for one file"),
    "hides_files": ("crashed", "the grader's eye; limits for removed files"),
    "floods": ("crashed", "bounds of messages, four of which wait; a reply names its question"),
    "forged_reply": ("crashed", "bounds and types of messages"), "oversized": ("crashed", "bounds of messages"),
    "leaves": ("crashed", "no message says passed; the end of a worker is no result"),
    "lent_abuse": ("crashed", "bounds of what lent functions take"),
    "rewrites_worker": ("crashed", "nothing a worker says counts"),
    "hangs": ("hung", "time limit, SIGKILL"), "deaf": ("hung", "time limit, SIGKILL"),
    "prints_inputs": ("dropped", "output and messages are dropped"),
    "always_raises": ("graded", "no points for what an answer without work gets"),
    "counts_calls": ("graded", "secret order of the calls"),
    "remembers": ("graded", "eight sets of inputs, in mixed order"),
}  # fmt: skip
CALLS = {"floods": 2}


@dataclass(frozen=True)
class Run:
    """What came of one attack."""

    outcome: Outcome
    status: str

    @property
    def says(self) -> str:
        """What the attack tells of its attempts, or how it ended."""
        returned = isinstance(self.outcome, Returned) and isinstance(self.outcome.value, str)
        return str(self.outcome.value) if returned else told(self.outcome)  # type: ignore[union-attr]

    @property
    def done(self) -> list[str]:
        """Attempts that were not refused."""
        return [part for part in self.says.split("; ") if "DONE" in part]


def names() -> list[str]:
    return sorted(path.stem for path in ATTACKS.glob("*.py"))


def exercise_of(name: str) -> Exercise:
    """The exercise that an attack's first line names."""
    doc = ast.get_docstring(ast.parse((ATTACKS / f"{name}.py").read_text())) or ""
    return chapters.exercise(doc.partition(":")[0])


class AttackRunner:
    """Runs attacks in a workspace, one worker after the other; the same one as long as it lives."""

    def __init__(self, workspace: Workspace, pool: Pool, isolation: Isolation) -> None:
        self.workspace, self.pool, self.isolation = workspace, pool, isolation
        self._worker: GradedWorker | None = None
        self._of = ""

    @classmethod
    @contextmanager
    def within(cls, layers: tuple[str, ...] = LAYERS, hidden: tuple[Path, ...] = ()) -> Iterator[AttackRunner]:
        """One confined by these layers. hidden: further files that no worker may read."""
        with (
            system.guarded() as missing,
            Workspace(hidden, LIMITS, layers) as workspace,
            closing(Pool(workspace.prefix, spares=False)) as pool,
        ):
            yield cls(workspace, pool, workspace.isolation(missing))

    def run(self, name: str, calls: int = 1, limit_s: float = 3.0) -> Run:
        """Hand an attack's file to a worker and call its function; the last call's outcome."""
        exercise = exercise_of(name)
        path = self.workspace.stage(exercise, (ATTACKS / f"{name}.py").read_bytes(), {"attempts.py": BESIDE})
        if self._of != exercise.id:
            self.renew()  # a worker can read the files of one exercise alone
        self._of = exercise.id
        worker = self._load(exercise, path)
        for question in questions(exercise, SECRET, name, 1)[:calls]:
            worker = worker if worker.alive else self._load(exercise, path)
            outcome = worker.call(question.call(exercise), limit_s)
        if name in SPOILS:
            self.renew()
        status = judged(exercise, question, outcome)
        return Run(outcome, status)

    def _load(self, exercise: Exercise, path: Path) -> GradedWorker:
        """The worker, which has read the file; a new one where the last has ended."""
        if self._worker is None or not self._worker.alive:
            self._worker, _ = self.pool.take(self.workspace.for_exercise(exercise, path))
        loaded = self._worker.load(path, exercise.name, traced=False)
        assert isinstance(loaded, Loaded), loaded
        return self._worker

    def renew(self) -> None:
        """Whoever comes next gets a new worker."""
        self.pool.clear()


def graded(folder: Path, id: str, seeds: int = 8) -> GradeRecord:
    """The record of a submission with one exercise worth 10 points."""
    assignment = Assignment(int(id.partition(".")[0]), "Attack", (Part(id),), seeds=seeds, limits=LIMITS)
    return grade_submission(folder, assignment, SECRET, folder.name, patience=10.0)
