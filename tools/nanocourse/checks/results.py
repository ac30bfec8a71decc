"""The result of checking one exercise, as shown to the learner, written as JSON and used for grading.

Frozen records of JSON types. There is no result without a receipt, and only `ExerciseResult.status` says "passed",
after looking at the receipt.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

SCHEMA, SCHEMA_VERSION = "nanoinfer.course.result", 1

Status = Literal["passed", "failed", "hung", "crashed", "refused", "not begun", "not run"]


@dataclass(frozen=True)
class Failure:
    """Why a check failed, on the smallest input found that shows it.

    inputs: name and value of each argument, as text; what is said of all has no name. where: the first place that
    differs, in words; empty if the whole value differs. shrunk: whether the input is smaller than the check's own.
    again: the input's name, see `replay`.
    """

    inputs: tuple[tuple[str, str], ...]
    where: str
    expected: str
    got: str
    shrunk: bool = False
    again: str = ""


@dataclass(frozen=True)
class CheckResult:
    """One check. says: what it requires. cases: how many inputs were run."""

    name: str
    says: str
    status: Status
    cases: int
    failure: Failure | None = None
    note: str = ""


@dataclass(frozen=True)
class Receipt:
    """What was run to get the result.

    files: the learner's files that were read, with their SHA-256. registered, collected, run: checks that the exercise
    has, that were prepared, and that finished. lines_run of lines: in the functions of the learner's file.
    reference_parts: functions of the package that ran in place of the learner's own.
    """

    files: tuple[tuple[str, str], ...]
    registered: int
    collected: int
    run: int
    lines_run: int
    lines: int
    reference_parts: tuple[str, ...]
    device: str
    seed: str
    edition: str = ""

    @property
    def own(self) -> str:
        """The learner's number, by which some of their inputs are theirs alone; empty if they have none."""
        return self.seed.partition("/")[2]


@dataclass(frozen=True)
class ExerciseResult:
    """One exercise. mistake: name and sentence of the known wrong answer that it matches, or is only close to."""

    id: str
    title: str
    file: str  # the learner's, by name
    checks: tuple[CheckResult, ...]
    receipt: Receipt
    problem: str = ""  # why nothing could be run
    mistake: tuple[str, str] | None = None
    close: bool = False
    printed: str = ""  # by the learner's code
    on_input: bool = False  # whether that was on the input of the first failure

    @property
    def status(self) -> Status:
        """`passed` only if all registered checks ran and passed and at least one line of the learner's was executed."""
        states = [check.status for check in self.checks]
        if "refused" in states:
            return "refused"
        if states and all(state == "not begun" for state in states):
            return "not begun"
        for state in ("failed", "hung", "crashed", "not begun"):
            if state in states:
                return "failed" if state == "not begun" else state  # type: ignore[return-value]
        whole = 0 < self.receipt.registered == self.receipt.collected == self.receipt.run == len(self.checks)
        if self.problem or not whole or self.receipt.lines_run == 0 or "not run" in states:
            return "not run"
        return "passed"

    def to_json(self) -> dict[str, Any]:
        """The whole record, with its status."""
        return {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, "status": self.status, **asdict(self)}
