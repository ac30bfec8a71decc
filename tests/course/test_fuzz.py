"""Whatever a student's function returns, raises or prints is one result, which can be compared, shown and written."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from nanocourse.checks.worker import Loaded
from nanocourse.exercises.cases import call
from nanocourse.exercises.outcomes import Crashed, Hung, Outcome, Raised, Refused, Returned, difference, show, told
from tests.course.learner_files import Keep

VALUES = int(os.environ.get("NANOINFER_FUZZ", "300"))  # 100000 takes some minutes
SOURCE = Path(__file__).parent / "attacks" / "fuzz" / "values.py"
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
    texts = [told(got), show(got.value) if isinstance(got, Returned) else ""]
    assert all(len(text) < 10_000 for text in texts)
    for text in texts:
        text.encode()


@pytest.mark.timeout(7200)
def test_every_value_is_one_result(tmp_path: Path, keep: Keep) -> None:
    path = tmp_path / "mine.py"
    path.write_bytes(SOURCE.read_bytes())
    kinds, begun = dict[str, int](), 0
    for number in range(VALUES):
        fresh = number == 0 or not keep.worker.alive
        worker = keep.take()
        if fresh:
            assert isinstance(worker.load(path, "make"), Loaded)
        got = worker.call(call(number), 20.0)
        assert isinstance(got, Returned | Raised | Hung | Crashed | Refused)
        kinds[type(got).__name__] = kinds.get(type(got).__name__, 0) + 1
        swallowed(got)
        begun += not worker.alive
    print(f"{VALUES} values: {kinds}, {begun} workers ended")
    assert kinds["Returned"] > VALUES / 3
    assert kinds["Raised"] > VALUES / 20


ONCE = {
    "overflow": "return 10**40", "digits": "return 10 ** 10**6", "in a list": "return [10**40] * 3",
    "prints": "print('x' * 10**8)", "in an error": "raise ValueError(10**5000)",
    "surrogate": "return '\\ud800' * 10", "key": "return {'\\ud800': 1}",
    "str": "class E(Exception):\n        def __str__(self): raise SystemExit\n    raise E",
    "iter": "class L(list):\n        def __iter__(self):\n            while True: yield 1\n    return L()",
    "recursive": "l = []\n    l += [l, l]\n    return l",
}  # fmt: skip


@pytest.mark.parametrize("name", ONCE)
def test_what_once_ended_everything(name: str, keep: Keep, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(f"def f():\n    {ONCE[name]}\n", encoding="utf-8")
    worker = keep.take()
    assert isinstance(worker.load(path, "f"), Loaded)
    got = worker.call(call(), 20.0)
    swallowed(got)
    assert not isinstance(got, Hung | Crashed)
