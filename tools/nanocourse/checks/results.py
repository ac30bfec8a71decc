"""What a check leaves behind: one record for the learner's screen, and for whatever grades him.

Plain frozen records of JSON's own types; `to_json` gives the whole. A result without a receipt does not exist, and
"passed" is said in one place, `ExerciseResult.status`, which looks at the receipt.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

SCHEMA, SCHEMA_VERSION = "nanoinfer.course.result", 1

Status = Literal["passed", "failed", "hung", "crashed", "refused", "not begun", "not run"]


@dataclass(frozen=True)
class Failure:
    """Why a check failed, on the smallest input found that shows it.

    inputs: name and value of each argument, as text. where: the first place that differs, in words; empty where the
    whole does. shrunk: whether a smaller input than the check's own was found.
    """

    inputs: tuple[tuple[str, str], ...]
    where: str
    expected: str
    got: str
    shrunk: bool = False


@dataclass(frozen=True)
class CheckResult:
    """One check. says: what it holds. cases: how many of its inputs were run."""

    name: str
    says: str
    status: Status
    cases: int
    failure: Failure | None = None
    note: str = ""


@dataclass(frozen=True)
class Receipt:
    """What was run to come to the result.

    files: the learner's files that were read, by SHA-256. registered, collected, run: checks that the exercise has,
    that were prepared, that came to an end. lines_run of lines: of the functions in the learner's file.
    reference_parts: what came from the package in place of the learner's own parts.
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


@dataclass(frozen=True)
class ExerciseResult:
    """One exercise. mistake: name and sentence of the known wrong answer that it equals, once that was looked for."""

    id: str
    title: str
    file: str  # the learner's, by name
    checks: tuple[CheckResult, ...]
    receipt: Receipt
    problem: str = ""  # why nothing could be run
    mistake: tuple[str, str] | None = None
    mistake_sought: bool = False
    printed: str = ""  # by the learner's code

    @property
    def status(self) -> Status:
        """`passed` only where all registered checks ran, all passed, and lines of the learner's were executed."""
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
