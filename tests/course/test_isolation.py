"""Hostile submissions are refused or have no effect, each by the layer that is named; and the layers themselves."""

from __future__ import annotations

import ctypes
import errno
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nanocourse.checks.worker import Loaded
from nanocourse.exercises import chapters
from nanocourse.exercises.cases import call
from nanocourse.exercises.outcomes import Changed, Crashed, Hung, Raised, Returned
from nanocourse.grade.assignment import Limits
from nanocourse.grade.confined_server import OPEN
from nanocourse.grade.isolation import landlock, policy, probe, syscalls, system
from nanocourse.grade.isolation.confine import LAYERS, PACKAGES, Policy
from tests.course.attack_runs import ATTACKS, AttackRunner, graded, names
from tests.course.attack_table import CALLS, STOPPED_BY

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the layers are Linux's")


def has_landlock() -> bool:
    try:
        return landlock.version() > 0
    except OSError:
        return False


needs_landlock = pytest.mark.skipif(not has_landlock(), reason="this kernel has no Landlock")
FORBIDDEN = os.strerror(errno.EPERM)


@pytest.fixture(scope="module")
def attacker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackRunner]:
    secret = tmp_path_factory.mktemp("hidden") / "secret.txt"
    secret.write_text("5e" * 32)
    with AttackRunner(hidden=(secret,)) as made:
        yield made


def test_every_attack_has_its_layer_named() -> None:
    assert set(STOPPED_BY) == set(names())


def test_layers_were_seen_at_work(attacker: AttackRunner) -> None:
    """On a kernel without Landlock the others hold, and the receipt says what is missing."""
    expected = {"unreadable grader", "subreaper", "limits", "seccomp", "ends with its parent", "unreadable worker"}
    if platform.machine() in syscalls.ARCHITECTURES:
        assert expected <= set(attacker.isolation.present), attacker.isolation
    assert ("landlock" in attacker.isolation.present) == has_landlock()
    assert ("hidden files" in attacker.isolation.present) or not has_landlock()
    assert set(attacker.isolation.present).isdisjoint(name for name, _ in attacker.isolation.missing)


# Attacks that must not get a single attempt through, by whichever layer.
REFUSED = [
    "daemon", "fork_bomb", "frame_walk", "memory_bomb", "privileges", "programs", "reads_memory", "signals", "sockets",
    "thread_bomb",
]  # fmt: skip
BY_FILES = ["grader_by_proc", "reads_checks", "writes_results"]


@pytest.mark.parametrize("name", REFUSED + [pytest.param(name, marks=needs_landlock) for name in BY_FILES])
def test_no_attempt_gets_through(attacker: AttackRunner, name: str) -> None:
    run = attacker.run(name)
    assert isinstance(run.outcome, Returned), run.says
    assert run.done == []
    assert ":" in run.says
    assert run.status == "failed"


@pytest.mark.parametrize("name", ["daemon", "programs", "reads_memory", "sockets", "fork_bomb"])
def test_seccomp_says_no(attacker: AttackRunner, name: str) -> None:
    """The error is seccomp's own, not that of a layer behind it."""
    assert set(re.findall(r": ([^;]+)", attacker.run(name).says)) == {FORBIDDEN}


@pytest.mark.parametrize("name", ["in_place", "not_a_number", "says_equal", "torch_function", "patched_torch"])
def test_the_grader_compares_by_itself(attacker: AttackRunner, name: str) -> None:
    """Or says that the inputs are no longer what they were."""
    run = attacker.run(name)
    assert isinstance(run.outcome, Returned | Changed)
    assert run.status == "failed"


@pytest.mark.parametrize(
    "name", ["leaves", "rewrites_worker", "forged_reply", "oversized", "disk_bomb", "lent_abuse", "floods"]
)
def test_what_breaks_the_worker_is_a_crash(attacker: AttackRunner, name: str) -> None:
    run = attacker.run(name, CALLS.get(name, 1))
    assert isinstance(run.outcome, Crashed)
    assert run.status == "crashed"


def test_a_hang_that_ignores_signals_ends(attacker: AttackRunner) -> None:
    run = attacker.run("hangs", limit_s=0.5)
    assert run.outcome == Hung(0.5)
    assert run.status == "hung"


def test_a_grader_that_cannot_write_does_not_wait_for_ever(attacker: AttackRunner) -> None:
    assert attacker.run("deaf", limit_s=0.5).status in ("hung", "crashed")


def test_the_environment_is_empty_and_no_descriptor_was_left(attacker: AttackRunner) -> None:
    os.environ["NANOINFER_TEST_SECRET"] = "x"
    held = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(held, True)
    source = b"""
import os
def attention():
    opened = []
    for fd in range(64):
        try:
            os.fstat(fd)
            opened.append(fd)
        except OSError:
            pass
    return sorted(os.environ), opened
"""
    try:
        names, opened = value(attacker, source)
    finally:
        del os.environ["NANOINFER_TEST_SECRET"]
        os.close(held)
    assert not {"PATH", "NANOINFER_TEST_SECRET", "PYTHONPATH", "USER"} & set(names)
    assert opened == [0, 1, 2, 3, 4]  # nothing, what it prints (twice), and the two pipes


def test_no_answer_is_in_the_workers_memory(attacker: AttackRunner) -> None:
    """Of the packages it holds its own machinery, and what is open to all; no engine, no answers, no chapter."""
    source = b"""
import gc, types
def attention():
    functions = (one for one in gc.get_objects() if isinstance(one, types.FunctionType))
    return sorted({one.__module__ for one in functions if (one.__module__ or "").startswith("nano")})
"""
    found = set(value(attacker, source))
    machinery = ["cases", "chapters", "exercise", "kernel_source", "kernels", "outcomes", "scene"]
    known = {f"nanocourse.exercises.{name}" for name in machinery} | {
        "nanocourse.checks.server",
        "nanocourse.checks.wire",
    }
    assert known <= found  # it does see what is there
    others = found - known - {"nanoinfer", "nanoinfer.model.config", "nanoinfer.devices"}
    assert all(name == "nanocourse.grade.confined_server" or ".isolation." in name for name in others), others


@needs_landlock
@pytest.mark.parametrize("package", PACKAGES)
def test_no_package_can_be_imported_or_read(attacker: AttackRunner, package: str) -> None:
    """With the finder that says so, and without it. Beside other packages names of files may be seen, no more."""
    (folder,) = map(Path, importlib.util.find_spec(package).submodule_search_locations)  # type: ignore[arg-type, union-attr]
    modules = [f"{package}.{path.stem}" for path in folder.glob("[a-z]*.py")] + [
        f"{package}.{path.parent.name}.{path.stem}" for path in folder.glob("*/[a-z]*.py")
    ]
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
    for path in {[str(path) for path in folder.rglob("*.py")]}:
        try:
            done.append(open(path).read(1) + path)
        except OSError:
            pass
    return done
"""
    assert value(attacker, source.encode()) == []


def test_modules_that_are_lent_are_imported_by_their_nested_names(attacker: AttackRunner) -> None:
    source = b"""
import nanoinfer.model.config
from nanoinfer.engine.sampling import random_bits
from nanoinfer.model import config
from nanoinfer.model.config import ModelConfig
def gumbel():
    assert nanoinfer.model.config is config
    return [random_bits.__module__, ModelConfig(1, 2, 8).n_embd, hasattr(nanoinfer.engine.sampling, "gumbel")]
"""
    assert value(attacker, source, "1.5") == ["nanoinfer.engine.sampling", 8, False]


def value(attacker: AttackRunner, source: bytes, id: str = "1.1"):  # type: ignore[no-untyped-def]  # noqa: ANN201
    """What the exercise's function in this source returns when a graded worker calls it without arguments."""
    exercise = chapters.exercise(id)
    path = attacker.workspace.stage(exercise, source, {})
    attacker.renew()
    worker, _ = attacker.pool.take(attacker.workspace.setting(exercise, path))
    assert isinstance(worker.load(path, exercise.name), Loaded)
    outcome = worker.call(call(), 5.0)
    assert isinstance(outcome, Returned), outcome
    return outcome.value


def test_every_package_of_the_distribution_is_hidden() -> None:
    declared = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    (packages,) = re.findall(r"^packages = \[(.*)\]", declared, re.M)
    assert {Path(one).name for one in re.findall(r'"([^"]+)"', packages)} == set(PACKAGES)


@pytest.mark.parametrize(
    ("layer", "name", "sign"),
    [
        ("seccomp", "sockets", "DONE"), ("limits", "thread_bomb", "DONE"),
        pytest.param("landlock", "grader_by_proc", "cmdline: DONE", marks=needs_landlock),
    ],
)  # fmt: skip
def test_without_its_layer_an_attempt_gets_further(layer: str, name: str, sign: str) -> None:
    """So it was that layer. What is behind it still holds: nothing here gets a point."""
    with AttackRunner(tuple(one for one in LAYERS if one != layer)) as attacker:
        assert layer in dict(attacker.isolation.missing)
        run = attacker.run(name)
        assert sign in run.says
        assert run.status == "failed"
        if layer == "landlock":  # it scopes signals too, so here they are seccomp's alone
            assert attacker.run("signals").done == []


def test_without_seccomp_a_daemon_is_ended_with_its_worker() -> None:
    """The subreaper inherits what was orphaned, and kills it before it writes."""
    with AttackRunner(tuple(one for one in LAYERS if one != "seccomp")) as attacker:
        assert attacker.run("daemon").done == ["fork: DONE"]
        assert attacker.renew() >= 1
        assert not list(attacker.workspace.folder.rglob("later"))
        assert system.children() <= attacker.pool.known


@needs_landlock
def test_files_that_shadow_libraries_are_never_imported() -> None:
    record = graded(ATTACKS / "shadows", "1.1", seeds=2)
    assert record.points == record.of == 10
    assert record.complete


@pytest.mark.parametrize(("name", "id"), [("always_raises", "1.8"), ("counts_calls", "1.8"), ("prints_inputs", "1.1")])
def test_no_points_without_work(tmp_path: Path, name: str, id: str) -> None:
    source = (ATTACKS / f"{name}.py").read_bytes()
    (tmp_path / chapters.exercise(id).file).write_bytes(source)
    record = graded(tmp_path, id)
    assert record.points == 0
    assert "HIDDEN" not in str(record.to_json())
    passed = [check.name for check in record.exercises[0].checks if check.status == "passed"]
    assert (record.exercises[0].note != "") == (name == "always_raises") == bool(passed)


def test_a_memory_of_earlier_calls_is_no_answer(tmp_path: Path) -> None:
    (tmp_path / "ex1_attention.py").write_bytes((ATTACKS / "remembers.py").read_bytes())
    """It is right where a shape comes for the first time, and inputs are so many that shapes come again."""
    record = graded(tmp_path, "1.1")
    assert [c.name for c in record.exercises[0].checks if c.status == "passed"] in ([], ["in-order"])


AS_ANOTHER = """
import os
from tests.course.attack_runs import AttackRunner
with AttackRunner() as attacker:
    print(attacker.isolation.told())
    for name in ("privileges", "signals", "grader_by_proc", "writes_results"):
        print(name, attacker.run(name).done)
    print(attacker.workspace.user, os.getuid())
"""


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only root can be both")
@pytest.mark.parametrize("user", [0, 12345], ids=["root", "an ordinary user"])
def test_as_root_and_as_an_ordinary_user(open_python: tuple[str, dict[str, str]], user: int) -> None:
    """As root the worker becomes another user, and no layer is missing; as an ordinary user none is either."""
    python, environment = open_python
    done = subprocess.run(
        [python, "-c", AS_ANOTHER], cwd="/", env=environment, user=user, group=user, extra_groups=[],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told, *runs, users = done.stdout.splitlines()
    assert told.startswith("isolated by")
    assert ("missing" in told) == (not has_landlock())
    assert (", user," in told) == (user == 0)
    if has_landlock():
        assert all(run.endswith(" []") for run in runs)
    worker, grader = users.split()
    assert (worker == "None") == (user != 0)
    assert int(grader) == user


@pytest.fixture(scope="module")
def open_python() -> Iterator[tuple[str, dict[str, str]]]:
    """This Python where other users can run it: one below /root is linked, file by file, to where it can be entered."""
    root, site = Path(__file__).parents[2], sysconfig.get_path("purelib")
    if any(not path.stat().st_mode & 0o005 for place in (root, Path(site)) for path in (place, *place.parents)):
        pytest.skip("this checkout, or what it needs, cannot be read by another user")
    own = [str(root), str(root / "bench"), str(root / "tools")]
    environment = {"PYTHONPATH": os.pathsep.join([site, *own]), "OMP_NUM_THREADS": "1", "HOME": "/nonexistent"}
    if not policy.why_no_user(12345):
        yield sys.executable, environment
        return
    base = Path(tempfile.mkdtemp())  # pytest's own folders cannot be entered by others
    base.chmod(0o755)
    from_, lib = Path(sys.base_prefix), f"lib/python{sys.version_info.major}.{sys.version_info.minor}"
    left_out = shutil.ignore_patterns("site-packages", "test", "tests", "config-*", "idlelib", "lib2to3", "*.a")
    shutil.copytree(from_ / lib, base / lib, copy_function=_link, ignore=left_out)
    for shared in from_.glob("lib/libpython*.so*"):
        _link(str(shared), str(base / "lib" / shared.name))
    (base / "bin").mkdir()
    python = base / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    _link(os.path.realpath(sys.executable), str(python))
    yield str(python), environment | {"LD_LIBRARY_PATH": str(base / "lib")}
    shutil.rmtree(base)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def test_a_hole_is_seen_by_the_probe(attacker: AttackRunner, tmp_path: Path) -> None:
    """A layer whose effect is not seen is missing, whatever its call returned."""
    (tmp_path / "secret").write_text("x")
    wanted = attacker.workspace.policy()
    told = probe.run(replace(wanted, read=(*wanted.read, "/"), starting=True), [str(tmp_path / "secret")])
    if has_landlock():
        assert told.missing["landlock"] == "listing / was possible all the same"
    if wanted.user is None:
        assert "secret can be read" in told.missing["hidden files"]


def test_what_cannot_be_probed_is_missing(tmp_path: Path) -> None:
    told = probe.run(Policy(scratch=str(tmp_path / "not there")), [])
    assert told.present == []
    assert "confinement" in told.missing


def test_hidden_places_are_left_out_of_what_can_be_read(tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    (site / "torch").mkdir(parents=True)
    (site / "nanoinfer" / "inner").mkdir(parents=True)
    (site / "six.py").touch()
    read: list[str] = []
    listed: list[str] = []
    policy._allow(site, (site / "nanoinfer",), read, listed)
    assert read == [str(site / "six.py"), str(site / "torch")]
    assert listed == [str(site)]


def test_the_packages_and_the_chapters_are_hidden() -> None:
    sources = policy.own_sources()
    for package in PACKAGES:
        assert Path(importlib.import_module(package).__file__ or "").resolve().parent in sources
    assert chapters.root().resolve() in sources
    read = [Path(path) for path in policy.Machine.survey((), Limits()).read]
    for source in sources:
        # In a clone the environment may lie within it: its libraries are no sources.
        within = [place for place in policy.libraries() if source in place.parents]
        for path in read:
            if not any(path == place or place in path.parents for place in within):
                assert source not in (path, *path.parents)
            assert path not in source.parents


def test_numbers_of_system_calls_are_the_kernels() -> None:
    headers = {
        "x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h",
        "aarch64": "/usr/include/asm-generic/unistd.h",
    }
    tables = syscalls.PLAIN + syscalls.BY_ARGUMENT + syscalls.STARTING
    compared = 0
    for machine, header in headers.items():
        if not Path(header).is_file():
            continue
        found = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", Path(header).read_text()))
        for name, number in syscalls.numbers(tables, machine).items():
            compared += 1
            assert int(found.get(name, found.get({"newfstatat": "fstatat"}.get(name, ""), -1))) == number, (
                machine,
                name,
            )
    if not compared:
        pytest.skip("no kernel headers here")


def test_dangerous_calls_are_on_no_list() -> None:
    allowed = set(syscalls.numbers(syscalls.PLAIN, "x86_64"))
    dangerous = (
        "socket connect ptrace execve fork io_uring_setup bpf mount unshare setns memfd_create keyctl symlink link"
    )
    assert allowed.isdisjoint([*dangerous.split(), "pidfd_open", "tkill", "chmod", "chown", "setuid", "userfaultfd"])


def test_another_architectures_calls_kill() -> None:
    """On x86-64 `int 0x80` would reach calls by the numbers of i386. The filter's first rule ends the process."""
    from nanocourse.grade.isolation import seccomp

    program = list(seccomp._program("x86_64", 1, starting=False))
    assert program[:4] == [(0x20, 0, 0, 4), (0x15, 1, 0, 0xC000003E), (0x06, 0, 0, 0x80000000), (0x20, 0, 0, 0)]
    assert program[-1] == (0x06, 0, 0, 0x00050000 | errno.EPERM)
    jumps = [(at + 1 + jump, one) for at, one in enumerate(program) for jump in one[1:3] if one[0] != 0x06]
    assert all(to < len(program) for to, _ in jumps)


def test_a_machine_without_landlock_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(number: int, *args: object) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(landlock, "_call", absent)
    with pytest.raises(OSError, match="not implemented"):
        landlock.restrict([], [], [], [])


@pytest.mark.parametrize(("version", "files", "size"), [(1, 13, 8), (3, 15, 8), (4, 15, 16), (6, 16, 24), (7, 16, 24)])
def test_an_older_landlock_is_asked_for_what_it_knows(
    monkeypatch: pytest.MonkeyPatch, version: int, files: int, size: int
) -> None:
    asked: list[tuple[int, ...]] = []

    def old(number: int, *args: object) -> int:
        if number == landlock.CREATE_RULESET and args[0] is not None:
            asked.append((ctypes.cast(args[0], ctypes.POINTER(landlock._Ruleset)).contents.files, int(args[1])))  # type: ignore[call-overload]
            return os.open("/dev/null", os.O_RDONLY)
        return version

    monkeypatch.setattr(landlock, "_call", old)
    landlock.restrict([], [], [], [])
    assert asked == [((1 << files) - 1, size)]


def test_the_grader_is_as_it_was_afterwards() -> None:
    code = (
        "from nanocourse.grade.isolation import system as s\n"
        "before = s.prctl(s.GET_DUMPABLE)\n"
        "with s.guarded() as missing:\n    print(missing, s.prctl(s.GET_DUMPABLE))\n"
        "print(s.prctl(s.GET_DUMPABLE) == before)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "tools")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.split("\n")[:2] == ["{} 0", "True"]


def test_exceptions_cross_without_their_values(attacker: AttackRunner) -> None:
    run = attacker.run("prints_inputs")
    assert isinstance(run.outcome, Raised)
    assert len(run.outcome.kind) <= 200
    assert attacker._worker is not None
    assert attacker._worker.printed() == ""
