"""Exercises whose answer is a Triton kernel: run in Triton's interpreter, and compiled for GPUs that are not present.

The learner writes the kernel; a file of the chapter, its *launcher*, launches it: `attend` as the engine does, `launch`
between guard zones for the checks; `TYPES` are its parameters' types, and `fault` finds what no run would show. Triton
decides at import whether it interprets, so a worker does one or the other for as long as it lives.
"""

from __future__ import annotations

import ast
import linecache
import os
import platform
import sys
import warnings
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from nanocourse.exercises.chapters import run_file
from nanocourse.exercises.exercise import COMPILES, Exercise, Function
from nanoinfer.kernels.available import has_triton

CAPABILITIES = (75, 80, 90)
INTERPRET = "TRITON_INTERPRET"


def why_not(exercise: Exercise) -> str:
    """Why the exercise cannot be checked on this machine; empty if it can."""
    if exercise.spec.kernel is None or has_triton():
        return ""
    return f"it needs Triton, which has no wheel for {platform.system()}: check it on Linux, in WSL2 or on Colab"


def in_worker(kernel: Any, launcher: ModuleType, compiling: bool) -> Function:
    """What a worker calls: the kernel launched between guard zones, or compiled for constants."""
    if compiling:
        return partial(compiled, kernel, launcher.TYPES, fault=launcher.fault)
    warnings.filterwarnings("ignore", category=RuntimeWarning)  # the interpreter's, where NaN turns up in its arrays
    return partial(launcher.launch, kernel)


def in_engine(exercise: Exercise, load: Callable[[], Any]) -> Function:
    """A kernel as the engine may call it, a function of the oracle's signature. load: runs its file and returns it."""
    assert exercise.spec.kernel is not None
    interpret()
    return partial(run_file(exercise.spec.kernel.launcher, "nanoinfer_launcher").attend, load())


def interpret() -> bool:
    """Without a GPU, make this process interpret every kernel from now on. Returns whether that is new.

    ValueError if Triton has been imported already without it.
    """
    import torch

    if torch.cuda.is_available() or os.environ.get(INTERPRET) == "1":
        return False
    if "triton" in sys.modules:
        raise ValueError(f"without a GPU a kernel runs where {INTERPRET}=1 stands before Triton is imported")
    os.environ[INTERPRET] = "1"
    return True


def from_source(source: str, name: str, title: str) -> Any:
    """A kernel from source that is in no file. Triton reads sources by line, so they are put where it looks."""
    file = f"<{title}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    space: dict[str, Any] = {"__name__": "answer"}
    exec(compile(source, file, "exec", dont_inherit=True), space)
    return space[name]


def compiled(
    kernel: Any, types: dict[str, str], constants: dict[str, int], fault: Callable[..., str] = lambda *args: ""
) -> str:
    """COMPILES if the kernel compiles for all CAPABILITIES; otherwise the compiler's message for the first that fails.

    For the last one it is compiled a second time, with a constant 1 for every i32 argument, as a launch with 1 does.
    fault: what it finds wrong in Triton's IR of the kernel, given the constants.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    not_begun(kernel.fn)
    ones = {name: 1 for name, kind in types.items() if kind == "i32"}  # at a launch, a 1 is a constant to Triton
    for capability, given in [*((one, constants) for one in CAPABILITIES), (CAPABILITIES[-1], constants | ones)]:
        try:
            source = ASTSource(kernel, signature=types | dict.fromkeys(given, "constexpr"), constexprs=given)
            form = triton.compile(source, target=GPUTarget("cuda", capability, 32)).asm["ttir"]
        except Exception as error:
            return f"compute capability {capability / 10}: {said(error)}"
        if told := fault(form, constants):
            return told
    return COMPILES


def not_begun(function: Any) -> None:
    """Raise what the untouched stub would raise if it ran."""
    for node in ast.walk(ast.parse("".join(linecache.getlines(function.__code__.co_filename)))):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and len(node.exc.args) == 1:
            told = node.exc.args[0]
            if isinstance(node.exc.func, ast.Name) and isinstance(told, ast.Constant):
                raise NotImplementedError(told.value)


def said(error: BaseException) -> str:
    """A compiler's error in one line: the construct and the root cause."""
    node, lines = getattr(error, "node", None), []
    root: BaseException = error
    while root.__cause__ is not None:
        root = root.__cause__
        node = getattr(root, "node", None) or node
    reason = getattr(root, "error_message", None) or str(root) or type(root).__name__
    if node is not None:
        lines.append(f"`{ast.unparse(node).splitlines()[0]}`")
    return ": ".join([*lines, " ".join(str(reason).split())])
