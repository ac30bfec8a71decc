"""Whatever a student's function returns, raises or prints is one result, which can be compared, shown and written."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import torch

from nanocourse.checks.worker import Loaded
from nanocourse.exercises.cases import call
from nanocourse.exercises.outcomes import Outcome, Raised, Returned, difference, show, told
from tests.course.attacks.fuzz import values
from tests.course.learner_files import Keep

EXPECTED = [
    Returned(5), Returned(0.5), Returned(torch.ones(1)), Returned([1, 2]), Returned((1, "a")), Returned({"a": 1}),
    Returned(None), Returned("a"), Returned(True), Returned(torch.ones(3, dtype=torch.int64)), Raised("ValueError", ""),
]  # fmt: skip


def swallowed(got: Outcome) -> None:
    """Compare it with all kinds of results, and write it down as checks and records do."""
    for expected in EXPECTED:
        found = difference(expected, got, 1e-4, ("row", "column"), True)
        if found is not None:
            json.dumps(asdict(found), ensure_ascii=False, allow_nan=True).encode()
    for text in (told(got), show(got.value) if isinstance(got, Returned) else ""):
        assert len(text.encode()) < 20_000


def test_every_value_is_one_result(keep: Keep) -> None:
    """And none of them ends the worker."""
    worker = keep.take()
    assert isinstance(worker.load(Path(values.__file__), "make"), Loaded)
    for number in range(2 * len(values.MAKERS)):
        got = worker.call(call(number), 20.0)
        assert isinstance(got, Returned | Raised), (number, got)
        swallowed(got)
