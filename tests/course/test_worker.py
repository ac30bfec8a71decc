"""The process that runs a learner's code: what it gives back, what it withstands, and what it refuses."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from nanocourse.checks import clock
from nanocourse.checks.runner import refused
from nanocourse.checks.worker import Loaded, Refuse, Worker
from nanocourse.exercises import chapters
from nanocourse.exercises.cases import call
from nanocourse.exercises.outcomes import Crashed, Foreign, Hung, Outcome, Raised, Refused, Returned
from tests.course.learner_files import Keep


@pytest.fixture(scope="module")
def keep() -> Iterator[Keep]:
    kept = Keep()
    yield kept
    kept.end()


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


def test_values_and_tensors_come_back(keep: Keep, tmp_path: Path) -> None:
    outcome = run(keep, tmp_path, "def f(a, b):\n    return {'sum': a + b, 'list': [1, (2.5, None)]}", torch.ones(2), 2)
    assert isinstance(outcome, Returned)
    assert torch.equal(outcome.value["sum"], torch.tensor([3.0, 3.0]))
    assert outcome.value["list"] == [1, (2.5, None)]


def test_a_function_that_was_handed_over_is_run_here(keep: Keep, tmp_path: Path) -> None:
    asked = []

    def ours(x: torch.Tensor) -> torch.Tensor:
        asked.append(os.getpid())
        return x * 2

    outcome = run(keep, tmp_path, "def f(g, x):\n    return g(g(x))", ours, torch.ones(3))
    assert isinstance(outcome, Returned)
    assert torch.equal(outcome.value, torch.full((3,), 4.0))
    assert asked == [os.getpid()] * 2


def test_what_is_remembered_by_tensor_or_by_function_is_stale(keep: Keep, tmp_path: Path) -> None:
    source = """
        known = {}
        def f(x, g):
            known.setdefault((id(x), id(g)), int(x.sum()) + g())
            return known[id(x), id(g)]
    """
    assert run(keep, tmp_path, source, torch.ones(3), lambda: 1) == Returned(4)
    worker = keep.take()
    assert worker.call(call(torch.zeros(3), lambda: 2), 20) == Returned(4)  # what a reader gets who trusts in objects
    assert worker.call(call(torch.zeros(4), lambda: 2), 20) == Returned(2)


def test_what_is_remembered_by_dict_is_stale(keep: Keep, tmp_path: Path) -> None:
    source = """
        known = {}
        def f(x):
            found = known.setdefault(id(x), x["a"])
            x["c"] = 3
            return [found, *sorted(x)]
    """
    assert run(keep, tmp_path, source, {"a": 1, "b": 2}) == Returned([1, "a", "b", "c"])
    worker = keep.take()
    assert worker.call(call({"a": 5, "b": 2}), 20) == Returned([1, "a", "b", "c"])
    assert worker.call(call({"a": 5}), 20) == Returned([5, "a", "c"])


def test_a_tensor_whose_form_was_changed_comes_as_it_should(keep: Keep, tmp_path: Path) -> None:
    source = "def f(x):\n    seen = list(x.shape)\n    x.resize_(1)\n    return seen"
    assert run(keep, tmp_path, source, torch.ones(3)) == Returned([3])
    assert keep.take().call(call(torch.ones(3)), 20) == Returned([3])


@pytest.mark.parametrize("strided", [(), (0,), (1,)])
def test_numbers_lie_end_to_end_or_do_not(keep: Keep, tmp_path: Path, strided: tuple[int, ...]) -> None:
    run(
        keep,
        tmp_path,
        "def f(*xs):\n    return [(x.is_contiguous(), x.clone().is_contiguous(), x.tolist()) for x in xs]",
    )
    numbers = torch.arange(6).view(2, 3)
    whole = [at not in strided for at in range(2)]
    expected = [(one, one, [[0, 1, 2], [3, 4, 5]]) for one in whole]
    assert keep.take().call(replace(call(numbers, numbers), strided=strided), 20) == Returned(expected)


def test_what_such_a_function_raises_reaches_the_learner(keep: Keep, tmp_path: Path) -> None:
    def ours() -> None:
        raise KeyError("no such token")

    outcome = run(
        keep, tmp_path, "def f(g):\n    try:\n        g()\n    except ValueError as e:\n        return str(e)", ours
    )
    assert outcome == Returned("'no such token'")


def test_an_exception_names_the_learners_line(keep: Keep, tmp_path: Path) -> None:
    outcome = run(keep, tmp_path, "import torch\ndef f(x):\n    y = 1\n    return torch.stack(x[y])", [[], []])
    assert isinstance(outcome, Raised)
    assert outcome.kind == "RuntimeError"
    assert outcome.where == "line 4: return torch.stack(x[y])"


@pytest.mark.parametrize("source", ["import sys\ndef f(): sys.exit(3)", "def f(): raise KeyboardInterrupt"])
def test_leaving_is_an_exception_like_others(keep: Keep, tmp_path: Path, source: str) -> None:
    assert isinstance(run(keep, tmp_path, source), Raised)


def test_prints_do_not_break_the_protocol(keep: Keep, tmp_path: Path) -> None:
    source = """
        import os, sys
        def f():
            print("\\x1b[2J seen")
            sys.stdout.write("NIC1")
            os.write(1, b"raw")
            sys.stdout.close()
            return sys.stdin.read()
    """
    assert run(keep, tmp_path, source) == Returned("")
    assert run(keep, tmp_path, "def f():\n    return 1") == Returned(1)  # the closed stream disturbs nobody


def test_a_flood_of_prints_is_cut(tmp_path: Path) -> None:
    with Worker() as worker:
        path = tmp_path / "mine.py"
        path.write_text("def f():\n    for _ in range(200):\n        print('x' * 10000)\n    return 7")
        worker.load(path, "f")
        assert worker.call(call(), 20) == Returned(7)
        assert len(worker.printed()) <= 8000


def test_a_hang_ends_with_its_limit(tmp_path: Path) -> None:
    keep = Keep()
    assert run(keep, tmp_path, "def f():\n    while True: pass", limit=0.5) == Hung(0.5)
    assert not keep.worker.alive
    keep.end()


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's")
@pytest.mark.parametrize(("late_s", "most_s", "looks"), [(0.1, 0.1, 11), (5.0, 0.1, 11), (5.0, math.inf, 1)])
def test_a_look_that_comes_late_is_no_sleep_of_the_workers(
    late_s: float, most_s: float, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine the parent wakes late, and finds a worker asleep that has answered long before."""
    now = [0.0]
    monkeypatch.setattr(clock, "used", lambda pid: (0.0, True))
    monkeypatch.setattr(clock, "time", SimpleNamespace(monotonic=lambda: now[0]))
    asleep = clock.Clock(0, 1.0)
    for _ in range(looks):
        assert asleep.spent <= 1.0
        now[0] += late_s
        ended = asleep.look(most_s)
    assert ended


def test_a_crash_is_told_by_its_signal(tmp_path: Path) -> None:
    keep = Keep()
    assert run(keep, tmp_path, "import os\ndef f(): os.abort()") == Crashed("the process was ended by SIGABRT")
    keep.end()


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
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", parent, str(tmp_path)]
    with subprocess.Popen(command, env=environment) as started, (tmp_path / "pipe").open() as pipe:
        pid = int(pipe.readline())
        started.kill()
        try:
            assert pipe.read() == ""
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_leaving_for_good_is_a_crash(tmp_path: Path) -> None:
    keep = Keep()
    outcome = run(keep, tmp_path, "import os\ndef f(): os._exit(0)")
    assert outcome == Crashed("the process ended with exit code 0")
    keep.end()


def test_foreign_values_and_bounded_replies(keep: Keep, tmp_path: Path) -> None:
    assert run(keep, tmp_path, "def f():\n    return (x for x in [1])") == Returned(Foreign("generator"))
    large = run(keep, tmp_path, "import torch\ndef f():\n    return torch.zeros(30_000_000)")
    assert isinstance(large, Raised)
    assert large.kind == "WireError"


@pytest.mark.parametrize(
    "content",
    [b"\xef\xbb\xbfdef f():\r\n    return 5\r\n", b"# -*- coding: latin-1 -*-\ndef f():\n    return len('\xe4') + 4\n"],
    ids=["BOM and CRLF", "latin-1"],
)
def test_files_as_editors_write_them(keep: Keep, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "mine.py").write_bytes(content)
    assert isinstance(keep.take().load(tmp_path / "mine.py", "f"), Loaded)
    assert keep.take().call(call(), 20) == Returned(5)


@pytest.mark.parametrize("content", [b"", b"def g(): pass", b"f = 5"])
def test_a_file_without_the_function(keep: Keep, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "mine.py").write_bytes(content)
    assert keep.take().load(tmp_path / "mine.py", "f") is None


@pytest.mark.parametrize("content", [b"def f(:", b"def f(): pass\0", b"\xff\xfe", b"raise RuntimeError('at once')"])
def test_a_file_that_does_not_run(keep: Keep, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "mine.py").write_bytes(content)
    assert isinstance(keep.take().load(tmp_path / "mine.py", "f"), Raised)


def test_a_changed_file_is_read_anew(keep: Keep, tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("NUMBER = 1\n")
    source = "from helper import NUMBER\ndef f():\n    return NUMBER"
    assert run(keep, tmp_path, source) == Returned(1)
    (tmp_path / "helper.py").write_text("NUMBER = 2\n")
    assert run(keep, tmp_path, source) == Returned(2)
    assert [Path(file).name for file in keep.take().load(tmp_path / "mine.py", "f").files] == ["helper.py", "mine.py"]  # type: ignore[union-attr]


def test_a_file_beside_the_learners_own_shadows_nothing(keep: Keep, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit\n")
    assert run(keep, tmp_path, "import torch\ndef f():\n    return torch.ones(1).item()") == Returned(1.0)


def test_the_environment_and_the_folder_stay_with_the_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_PARENT", "1")
    monkeypatch.setenv("PYTHONSTARTUP", "x")
    (tmp_path / "json.py").write_text("raise SystemExit\n")
    monkeypatch.chdir(tmp_path)
    keep = Keep()
    source = "import os\ndef f():\n    return sorted(n for n in os.environ if 'SECRET' in n or n.startswith('PYTHON'))"
    assert run(keep, tmp_path, source) == Returned([])
    keep.end()


DIRECT = "from nanoinfer.engine.sampling import threshold\ndef f(*args):\n    return threshold(*args)"
BY_MODULE = "import nanoinfer.engine.sampling as s\ndef f(*args):\n    return getattr(s, 'thres' + 'hold')(*args)"
CAUGHT = """
import nanoinfer.engine.sampling as s
def f(*args):
    try:
        return s.threshold(*args)
    except BaseException:
        return args[0]
"""
INDIRECT = """
import torch
from nanoinfer.engine.sampling import sample_filtered
from nanoinfer.engine.state import BatchState
def f(scores, k, p):
    rows = BatchState.empty(4, torch.device('cpu')).at(slice(0, 1))
    return sample_filtered(scores, rows)
"""
BY_ANSWERS = (
    "from nanocourse.exercises import answers\nright = answers.reference('1.4')\ndef f(*args):\n    return right(*args)"
)
BY_THREAD = """
import threading
from nanoinfer.engine.sampling import threshold
def f(*args):
    found = []
    thread = threading.Thread(target=lambda: found.append(threshold(*args)))
    thread.start()
    thread.join()
    return found
"""
VARIANT = """
from nanocourse.exercises import chapters
right = chapters.exercise('1.4').right[0].answer
def f(*args):
    return right(*args)
"""


@pytest.mark.parametrize(
    "source", [DIRECT, BY_MODULE, CAUGHT, INDIRECT, BY_ANSWERS, BY_THREAD, VARIANT],
    ids=["direct", "by module", "caught", "indirect", "by answers", "by thread", "variant"],
)  # fmt: skip
def test_the_function_that_was_asked_for_is_refused(keep: Keep, tmp_path: Path, source: str) -> None:
    refuse = refused(chapters.exercise("1.4"))
    args = (torch.zeros(1, 4), torch.zeros(1, dtype=torch.int32), torch.ones(1))
    outcome = run(keep, tmp_path, source, *args, refuse=refuse)
    assert isinstance(outcome, Refused)
    assert "threshold" in outcome.name or "own answers" in outcome.name


def test_other_functions_of_the_package_are_named(keep: Keep, tmp_path: Path) -> None:
    source = "import torch\nfrom nanoinfer.engine.sampling import mix\ndef f():\n    return mix(torch.tensor(5))"
    outcome = run(keep, tmp_path, source, refuse=refused(chapters.exercise("1.4")))
    assert isinstance(outcome, Returned)
    assert keep.worker.seen.parts == {"nanoinfer.engine.sampling.mix"}


def test_lines_that_ran_are_told(keep: Keep, tmp_path: Path) -> None:
    source = "def f(x):\n    if x:\n        return 1\n    return helper()\n\ndef helper():\n    return 2\n"
    run(keep, tmp_path, source, True)
    assert keep.worker.seen.lines == {2, 3}
    keep.worker.call(call(False), 20)
    assert keep.worker.seen.lines == {2, 3, 4, 7}
    assert keep.take().load(tmp_path / "mine.py", "f").lines == (2, 3, 4, 7)  # type: ignore[union-attr]
