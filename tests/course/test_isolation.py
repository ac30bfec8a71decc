"""Hostile submissions end as the table says, each by the layer that it names; and each layer holds by itself."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nanocourse.checks.worker import Loaded
from nanocourse.exercises import chapters
from nanocourse.exercises.cases import call
from nanocourse.exercises.outcomes import Changed, Crashed, Hung, Raised, Returned
from nanocourse.grade.confined_server import OPEN
from nanocourse.grade.isolation import bubblewrap, landlock, system
from nanocourse.grade.isolation.confine import LAYERS, PACKAGES
from tests.course.attack_runs import CALLS, TABLE, AttackRunner, names

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the layers are Linux's")
LIMITS_S = {"hung": 0.5}


def has_landlock() -> bool:
    try:
        return landlock.version() > 0
    except OSError:
        return False


needs_bubblewrap = pytest.mark.skipif(
    bool(bubblewrap.why_not()) or len(socket.if_nameindex()) < 2, reason="no bubblewrap, or no network to be cut off"
)
needs_landlock = pytest.mark.skipif(not has_landlock(), reason="this kernel has no Landlock")


@pytest.fixture(scope="module")
def attacker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackRunner]:
    secret = tmp_path_factory.mktemp("hidden") / "secret.txt"
    secret.write_text("5e" * 32)
    with AttackRunner.within(hidden=(secret,)) as made:
        yield made


# How an attack may end: the outcome, and the status of its check.
ENDS: dict[str, tuple[Any, set[str]]] = {
    "refused": (Returned, {"failed"}), "unreadable": (Returned, {"failed"}), "apart": (Returned, {"failed"}),
    "wrong": (Returned | Changed, {"failed"}), "crashed": (Crashed, {"crashed"}), "dropped": (Raised, {"failed"}),
    "cut off": (Returned | Crashed, {"failed", "crashed"}),  # by the grader's eye, or when its worker ends
    "hung": (Hung | Crashed, {"hung", "crashed"}),  # a grader that cannot write does not wait for ever either
}  # fmt: skip
ROWS = [
    pytest.param(name, end, marks={"unreadable": needs_landlock, "apart": needs_bubblewrap}.get(end, ()))
    for name, (end, _) in TABLE.items()
    if end in ENDS
]


@pytest.mark.parametrize(("name", "end"), ROWS)
def test_an_attack_ends_as_it_must(attacker: AttackRunner, name: str, end: str) -> None:
    """One that tells of its attempts tells of none that got through; nothing that is printed or raised crosses."""
    run = attacker.run(name, CALLS.get(name, 1), LIMITS_S.get(end, 3.0))
    outcome, statuses = ENDS[end]
    assert isinstance(run.outcome, outcome), run.says
    assert run.status in statuses
    if end in ("refused", "unreadable", "apart"):
        assert ":" in run.says
        assert run.done == []
    if isinstance(run.outcome, Raised):
        assert len(run.outcome.kind) <= 200
    assert attacker._worker is not None
    assert attacker._worker.printed() == ""


def test_every_attack_is_in_the_table() -> None:
    assert set(TABLE) == set(names())
    assert {end for end, _ in TABLE.values()} == {*ENDS, "graded"}


@pytest.mark.parametrize(
    ("layer", "name", "sign"),
    [
        pytest.param("bubblewrap", "sockets", "interfaces: DONE", marks=needs_bubblewrap),
        ("limits", "thread_bomb", "DONE"),
        pytest.param("landlock", "grader_by_proc", "cmdline: DONE", marks=needs_landlock),
    ],
)  # fmt: skip
def test_without_its_layer_an_attempt_gets_further(layer: str, name: str, sign: str) -> None:
    """So it was that layer. What is behind it still holds: nothing here gets a point."""
    with AttackRunner.within(tuple(one for one in LAYERS if one != layer)) as attacker:
        assert layer in dict(attacker.isolation.missing)
        run = attacker.run(name)
        assert sign in run.says
        assert run.status == "failed"
        if layer == "landlock":  # it scopes signals too, so here they are bubblewrap's alone
            assert attacker.run("signals").done == []
        if layer == "bubblewrap":  # a daemon is inherited by the subreaper, and killed before it writes
            assert attacker.run("daemon").done in (["fork: DONE"], [])
            assert attacker.pool.strays >= 1
            assert not list(attacker.workspace.folder.rglob("later"))
            assert system.children() <= attacker.pool.known


def test_layers_were_seen_at_work(attacker: AttackRunner) -> None:
    """On a kernel without Landlock the others hold, and the receipt says what is missing."""
    present = set(attacker.isolation.present)
    expected = {"unreadable grader", "subreaper", "limits", "ends with its parent", "unreadable worker"}
    assert expected <= present, attacker.isolation
    assert ("bubblewrap" in present) == (not bubblewrap.why_not(attacker.workspace.user is not None))
    assert ("landlock" in present) == has_landlock()
    assert ("hidden files" in present) or not has_landlock()
    assert present.isdisjoint(name for name, _ in attacker.isolation.missing)


def value(attacker: AttackRunner, source: str, id: str = "1.1") -> Any:
    """What the exercise's function in this source returns when a graded worker calls it without arguments."""
    exercise = chapters.exercise(id)
    path = attacker.workspace.stage(exercise, source.encode(), {})
    attacker.renew()
    worker, _ = attacker.pool.take(attacker.workspace.for_exercise(exercise, path))
    assert isinstance(worker.load(path, exercise.name), Loaded)
    outcome = worker.call(call(), 5.0)
    assert isinstance(outcome, Returned), outcome
    return outcome.value


def test_a_worker_holds_no_variable_no_descriptor_and_no_answer(
    attacker: AttackRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the packages it holds its own machinery, and what is open to all; no engine, no answers, no chapter."""
    monkeypatch.setenv("NANOINFER_TEST_SECRET", "x")
    held = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(held, True)
    source = """
import gc, os, types
def attention():
    opened = []
    for fd in range(64):
        try:
            os.fstat(fd)
            opened.append(fd)
        except OSError:
            pass
    functions = (one for one in gc.get_objects() if isinstance(one, types.FunctionType))
    modules = sorted({one.__module__ for one in functions if (one.__module__ or "").startswith("nano")})
    return sorted(os.environ), opened, modules
"""
    try:
        variables, opened, modules = value(attacker, source)
    finally:
        os.close(held)
    assert not {"PATH", "NANOINFER_TEST_SECRET", "PYTHONPATH", "USER"} & set(variables)
    assert opened == [0, 1, 2, 3, 4]  # nothing, what it prints (twice), and the two pipes
    machinery = "checks.server checks.wire exercises.cases exercises.chapters exercises.exercise exercises.kernels"
    machinery += (
        " exercises.bank exercises.kernel_source exercises.moved exercises.outcomes exercises.page exercises.scene"
    )
    known = {f"nanocourse.{name}" for name in machinery.split()}
    assert known <= set(modules)  # it does see what is there
    known |= {"nanoinfer", "nanoinfer.model.config", "nanoinfer.kernels", "nanoinfer.kernels.available"}
    others = set(modules) - known
    assert all(name == "nanocourse.grade.confined_server" or ".isolation." in name for name in others), others


@needs_landlock
@pytest.mark.parametrize("package", PACKAGES)
def test_no_package_can_be_imported_or_read(attacker: AttackRunner, package: str) -> None:
    """With the finder that says so, and without it. Beside other packages names of files may be seen, no more."""
    (folder,) = map(Path, importlib.util.find_spec(package).submodule_search_locations)  # type: ignore[arg-type, union-attr]
    files = [str(path) for path in folder.rglob("*.py")]
    modules = {f"{package}.{path.stem}" for path in folder.glob("[a-z]*.py")}
    modules |= {f"{package}.{path.parent.name}.{path.stem}" for path in folder.glob("*/[a-z]*.py")}
    assert len(modules) > 5
    source = f"""
import importlib, sys
def attention():
    done, without = [], [one for one in sys.meta_path if type(one).__name__ != "Absent"]
    assert len(without) == len(sys.meta_path) - 1
    for finders in (sys.meta_path[:], without):
        sys.meta_path[:] = finders
        for name in {sorted({package, *modules} - set(OPEN))}:
            try:
                module = importlib.import_module(name)
                done += [name] * hasattr(module, "__file__")
            except (ImportError, OSError):
                pass
    for path in {files}:
        try:
            done.append(open(path).read(1) + path)
        except OSError:
            pass
    return done
"""
    assert value(attacker, source) == []


AS_ANOTHER = """
import os
from tests.course.attack_runs import AttackRunner
with AttackRunner.within() as attacker:
    print(attacker.isolation.told())
    print([attacker.run(name).done for name in ("privileges", "signals", "grader_by_proc", "writes_results")])
    print(attacker.workspace.user)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be both")
@pytest.mark.parametrize("user", [0, 12345], ids=["root", "an ordinary user"])
def test_as_root_and_as_an_ordinary_user(open_python: Path, user: int) -> None:
    """As root the worker becomes another user, and no layer is missing; as an ordinary user none is either.

    A user may be denied the namespaces that root has.
    """
    found = [*(path for path in sys.path if path.endswith("site-packages")), *(str(ROOT / one) for one in ("", *OWN))]
    environment = {"PYTHONPATH": os.pathsep.join(found), "OMP_NUM_THREADS": "1", "HOME": "/nonexistent"}
    environment["LD_LIBRARY_PATH"] = str(open_python.parents[1] / "lib")
    done = subprocess.run(
        [open_python, "-c", AS_ANOTHER], cwd="/", env=environment, user=user, group=user, extra_groups=[],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told, attempts, other = done.stdout.splitlines()
    assert has_landlock() == ("landlock" not in told.partition("missing")[2])
    assert "missing" not in told or "bubblewrap (" in told or not has_landlock()
    assert (", user," in told) == (other != "None") == (user == 0)
    assert attempts == "[[], [], [], []]" or not has_landlock()


ROOT, OWN = Path(__file__).parents[2], ("bench", "tools")


@pytest.fixture(scope="module")
def open_python() -> Iterator[Path]:
    """This Python where other users can run it: a copy, for one below /root cannot be entered."""
    needed = [ROOT, *(Path(path) for path in sys.path if path.endswith("site-packages"))]
    if any(not path.stat().st_mode & 0o005 for place in needed for path in (place, *place.parents)):
        pytest.skip("this checkout, or what it needs, cannot be read by another user")
    base = Path(tempfile.mkdtemp())  # pytest's own folders cannot be entered by others
    base.chmod(0o755)
    lib = f"lib/python{sys.version_info.major}.{sys.version_info.minor}"
    left_out = shutil.ignore_patterns("site-packages", "test", "tests", "config-*", "idlelib", "lib2to3", "*.a")
    shutil.copytree(Path(sys.base_prefix) / lib, base / lib, ignore=left_out)
    for shared in Path(sys.base_prefix).glob("lib/libpython*.so*"):
        shutil.copy2(shared, base / "lib")
    (base / "bin").mkdir()
    yield Path(shutil.copy2(os.path.realpath(sys.executable), base / "bin"))
    shutil.rmtree(base)
