"""The process that runs a learner's code: what it gives back, what it withstands, and what it refuses.

Whatever a function returns, raises or prints is one result, which can be compared, shown and written.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nanocourse.checks import clock
from nanocourse.checks.runner import refused
from nanocourse.checks.worker import Loaded, Refuse
from nanocourse.exercises import chapters, outcomes
from nanocourse.exercises.cases import call
from nanocourse.exercises.outcomes import Crashed, Foreign, Hung, Outcome, Raised, Refused, Returned
from tests.course.attacks.fuzz import values
from tests.course.learner_files import Keep


def run(
    keep: Keep, folder: Path, source: str, *args: object, refuse: Refuse | None = None, limit: float = 20
) -> Outcome:
    """What a file's function `f` makes of these arguments."""
    path = folder / "mine.py"
    path.write_text(textwrap.dedent(source), encoding="utf-8")
    worker = keep.take()
    loaded = worker.load(path, "f", refuse or Refuse())
    assert isinstance(loaded, Loaded), loaded
    return worker.call(call(*args), limit)


def test_a_function_that_was_handed_over_is_run_here(keep: Keep, tmp_path: Path) -> None:
    """And what it raises reaches the learner."""
    asked = []

    def ours(x: float) -> float:
        asked.append(os.getpid())
        if x > 3:
            raise KeyError("no such token")
        return x * 2

    source = "def f(g):\n    try:\n        return g(g(g(1)))\n    except ValueError as e:\n        return str(e)"
    assert run(keep, tmp_path, source, ours) == Returned("'no such token'")
    assert asked == [os.getpid()] * 3


STALE = [
    ("id(x)", "int(x.sum())", torch.ones(3), torch.zeros(3), torch.zeros(4), [3, 3, 0]),
    ("id(x)", "x()", lambda: 1, lambda: 2, None, [1, 1, None]),
    ("id(x)", "x['a']", {"a": 1, "b": 2}, {"a": 5, "b": 2}, {"a": 5}, [1, 1, 5]),
]


@pytest.mark.parametrize("key, value, first, alike, other, expected", STALE, ids=["tensor", "function", "dict"])
def test_what_is_remembered_by_an_object_is_stale(
    keep: Keep, tmp_path: Path, key: str, value: str, first: Any, alike: Any, other: Any, expected: list[Any]
) -> None:
    """What a reader gets who trusts in objects: they come again, with other contents."""
    source = f"known = {{}}\ndef f(x):\n    return known.setdefault({key}, {value} if x is not None else None)"
    assert run(keep, tmp_path, source, first) == Returned(expected[0])
    worker = keep.take()
    assert [worker.call(call(one), 20) for one in (alike, other)] == [Returned(one) for one in expected[1:]]


def test_a_tensor_whose_form_was_changed_comes_as_it_should(keep: Keep, tmp_path: Path) -> None:
    source = "def f(x):\n    seen = list(x.shape)\n    x.resize_(1)\n    return seen"
    assert run(keep, tmp_path, source, torch.ones(3)) == Returned([3])
    assert keep.take().call(call(torch.ones(3)), 20) == Returned([3])


def test_numbers_lie_end_to_end_or_do_not(keep: Keep, tmp_path: Path) -> None:
    source = "def f(*xs):\n    return [(x.is_contiguous(), x.clone().is_contiguous(), x.tolist()) for x in xs]"
    run(keep, tmp_path, source)
    numbers = [[0, 1, 2], [3, 4, 5]]
    asked = replace(call(torch.tensor(numbers), torch.tensor(numbers)), strided=(1,))
    assert keep.take().call(asked, 20) == Returned([(True, True, numbers), (False, False, numbers)])


def test_an_exception_names_the_learners_line(keep: Keep, tmp_path: Path) -> None:
    outcome = run(keep, tmp_path, "import torch\ndef f(x):\n    y = 1\n    return torch.stack(x[y])", [[], []])
    assert isinstance(outcome, Raised)
    assert (outcome.kind, outcome.where) == ("RuntimeError", "line 4: return torch.stack(x[y])")


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        ("sys.exit(3)", Raised), ("return torch.zeros(30_000_000)", Raised),
        ("return (x for x in [1])", Returned(Foreign("generator"))),
        ("os._exit(0)", Crashed("the process ended with exit code 0")),
        ("os.abort()", Crashed("the process was ended by SIGABRT")),
        ("\n    while True: pass", Hung(0.5, "line 3: while True: pass")),
    ],
)  # fmt: skip
def test_any_end_is_one_outcome(keep: Keep, tmp_path: Path, body: str, outcome: Any) -> None:
    found = run(keep, tmp_path, f"import os, sys, torch\ndef f(): {body}", limit=0.5 if "while" in body else 20)
    assert found == outcome or (outcome is Raised and isinstance(found, Raised))
    assert keep.worker.alive == isinstance(found, Raised | Returned)


def test_prints_do_not_break_the_protocol(keep: Keep, tmp_path: Path) -> None:
    source = """
        import os, sys
        def f():
            print("\\x1b[2J seen")
            sys.stdout.write("NIC1")
            os.write(1, b"raw")
            for _ in range(200):
                print("x" * 10000)
            sys.stdout.close()
            return sys.stdin.read()
    """
    assert run(keep, tmp_path, source) == Returned("")
    assert len(keep.worker.printed()) <= 8000
    assert run(keep, tmp_path, "def f():\n    return 1") == Returned(1)  # the closed stream disturbs no other


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's")
def test_a_look_that_comes_late_is_no_sleep_of_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the parent wakes late, and finds a worker asleep that has answered long before."""
    times = itertools.count(0.0, 5.0)
    monkeypatch.setattr(clock, "used", lambda pid: (0.0, True))
    monkeypatch.setattr(clock, "time", SimpleNamespace(monotonic=lambda: next(times)))
    asleep = clock.Clock(0, 1.0)
    assert [asleep.look(0.125) for _ in range(9)] == [False] * 8 + [True]
    assert clock.Clock(0, 1.0).look()


@pytest.mark.skipif(os.name != "posix", reason="a process knows its parent on POSIX")
@pytest.mark.timeout(60)
def test_a_worker_ends_with_its_parent(tmp_path: Path) -> None:
    """The parent is killed while the learner's code loops for ever, and holds a pipe open that ends with it."""
    os.mkfifo(tmp_path / "pipe")
    mine = "import os\ndef f(path):\n    pipe = open(path, 'w')\n    print(os.getpid(), file=pipe, flush=True)\n"
    (tmp_path / "mine.py").write_text(mine + "    while True: pass\n")
    parent = """
import sys
from pathlib import Path
from nanocourse.exercises.cases import call
from nanocourse.checks.worker import Worker
worker = Worker()
worker.load(Path(sys.argv[1]) / "mine.py", "f")
worker.call(call(sys.argv[1] + "/pipe"), 600)
"""
    command = [sys.executable, "-c", parent, str(tmp_path)]
    with subprocess.Popen(command) as started, (tmp_path / "pipe").open() as pipe:
        pid = int(pipe.readline())
        started.kill()
        try:
            assert pipe.read() == ""
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("content", "loaded"),
    [
        (b"\xef\xbb\xbfdef f():\r\n    return 5\r\n", Loaded),
        (b"# -*- coding: latin-1 -*-\ndef f():\n    return len('\xe4') + 4\n", Loaded),
        (b"f = 5", type(None)), (b"def f(:", Raised), (b"def f(): pass\0", Raised), (b"\xff\xfe", Raised),
    ],
)  # fmt: skip
def test_files_as_editors_write_them(keep: Keep, tmp_path: Path, content: bytes, loaded: type) -> None:
    (tmp_path / "mine.py").write_bytes(content)
    assert isinstance(keep.take().load(tmp_path / "mine.py", "f"), loaded)
    if loaded is Loaded:
        assert keep.take().call(call(), 20) == Returned(5)


def test_files_beside_the_learners_own_are_read_anew_and_shadow_nothing(keep: Keep, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit\n")
    source = "import torch\nfrom helper import NUMBER\ndef f():\n    return NUMBER * torch.ones(1).item()"
    for number in (1, 2):
        (tmp_path / "helper.py").write_text(f"NUMBER = {number}\n")
        assert run(keep, tmp_path, source) == Returned(float(number))
    assert [Path(file).name for file in keep.take().load(tmp_path / "mine.py", "f").files] == ["helper.py", "mine.py"]  # type: ignore[union-attr]


# Ways to the function that was asked for, and what each imports.
SAMPLING = "import nanoinfer.engine.sampling as s\nfrom nanoinfer.engine.sampling import *\n"
WAYS = {
    "caught": SAMPLING + "def f(*args):\n    try:\n        s.threshold(*args)\n    except BaseException: return 5",
    "indirect": """
import torch
from nanoinfer.engine.sampling import sample_filtered
from nanoinfer.engine.state import BatchState
def f(scores, k, p):
    return sample_filtered(scores, BatchState.empty(4, torch.device('cpu')).at(slice(0, 1)))
""",
    "by answers": "from nanocourse.exercises import answers\nf = lambda *args: answers.reference('1.4')(*args)",
    "by thread": SAMPLING + """
import threading
def f(*args):
    found = []
    thread = threading.Thread(target=lambda: found.append(threshold(*args)))
    thread.start()
    thread.join()
    return found
""",
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_the_function_that_was_asked_for_is_refused(keep: Keep, tmp_path: Path, way: str) -> None:
    args = (torch.zeros(1, 4), torch.zeros(1, dtype=torch.int32), torch.ones(1))
    outcome = run(keep, tmp_path, WAYS[way], *args, refuse=refused(chapters.exercise("1.4")))
    assert isinstance(outcome, Refused)
    assert "threshold" in outcome.name or "own answers" in outcome.name


def test_other_functions_of_the_package_and_lines_that_ran_are_told(keep: Keep, tmp_path: Path) -> None:
    source = "import torch\nfrom nanoinfer.engine.sampling import mix\ndef f():\n    return mix(torch.tensor(5))"
    assert isinstance(run(keep, tmp_path, source, refuse=refused(chapters.exercise("1.4"))), Returned)
    assert keep.worker.seen.parts == {"nanoinfer.engine.sampling.mix"}
    source = "def f(x):\n    if x:\n        return 1\n    return helper()\n\ndef helper():\n    return 2\n"
    run(keep, tmp_path, source, True)
    assert keep.worker.seen.lines == {2, 3}
    keep.worker.call(call(False), 20)
    assert keep.worker.seen.lines == {2, 3, 4, 7}
    assert keep.take().load(tmp_path / "mine.py", "f").lines == (2, 3, 4, 7)  # type: ignore[union-attr]


EXPECTED = [
    Returned(5), Returned(0.5), Returned(torch.ones(1)), Returned([1, 2]), Returned((1, "a")), Returned({"a": 1}),
    Returned(None), Returned("a"), Returned(True), Returned(torch.ones(3, dtype=torch.int64)), Raised("ValueError", ""),
]  # fmt: skip


def swallowed(got: Outcome) -> None:
    """Compare it with all kinds of results, and write it down as checks and records do."""
    for expected in EXPECTED:
        found = outcomes.difference(expected, got, 1e-4, ("row", "column"), True)
        if found is not None:
            json.dumps(asdict(found), ensure_ascii=False, allow_nan=True).encode()
    for text in (outcomes.told(got), outcomes.show(got.value) if isinstance(got, Returned) else ""):
        assert len(text.encode()) < 20_000


def test_every_value_is_one_result(keep: Keep) -> None:
    """And none of them ends the worker."""
    worker = keep.take()
    assert isinstance(worker.load(Path(values.__file__), "make"), Loaded)
    for number in range(2 * len(values.MAKERS)):
        got = worker.call(call(number), 20.0)
        assert isinstance(got, Returned | Raised), (number, got)
        swallowed(got)
