"""The source of an answer as a learner would have written it: one self-contained file with its imports."""

from __future__ import annotations

import ast
import builtins
import dis
import inspect
import sys
import textwrap
from collections.abc import Sequence
from types import CodeType, ModuleType
from typing import Any

from nanocourse.exercises import kernels
from nanocourse.exercises.exercise import Exercise, Function, Right, Wrong


def answer_source(exercise: Exercise, answer: Wrong | Right) -> str:
    """The whole file of a wrong answer or a correct variant. ValueError if a change does not apply."""
    if isinstance(answer, Right):
        return whole_file(exercise, answer.answer, function_source(answer.answer))
    try:
        source = _changed(function_source(exercise.plain), answer.changes)
    except ValueError as error:
        raise ValueError(f"{exercise.id}, {answer.name}: {error}") from None
    return whole_file(exercise, exercise.plain, source)


def _changed(source: str, changes: Sequence[str]) -> str:
    """A function with one text after another replaced, or with another body."""
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        if not old:
            docstring = ast.parse(source).body[0].body[0]  # type: ignore[attr-defined]
            return "\n".join([*source.splitlines()[: docstring.end_lineno], new, ""])
        begin, _, end = old.partition("…")
        if source.count(begin) != 1:
            raise ValueError(f"{begin!r} stands {source.count(begin)} times in the reference")
        before, _, rest = source.partition(begin)
        source = before + new + rest[rest.index(end) + len(end) :]
    return source


def whole_file(exercise: Exercise, function: Function, source: str) -> str:
    """A learner's file with this source, which is that of `function` or was made from it."""
    if exercise.spec.kernel is None:
        return submission(function, source, exercise.name)
    _, _, body = submission(function, source, exercise.name).partition("\n")
    return "\n".join(["from __future__ import annotations", "", *exercise.imports, body]).replace(
        f"\ndef {exercise.name}(", f"\n@triton.jit\ndef {exercise.name}("
    )


def answer_function(exercise: Exercise, answer: Wrong | Right) -> Function:
    """A wrong answer or a correct variant as a function of this process; a kernel as the engine launches it."""
    if exercise.spec.kernel is not None:
        return _kernel(exercise, answer_source(exercise, answer), answer.name)
    if isinstance(answer, Right):
        return answer.answer
    space: dict[str, Any] = {"__name__": "answer"}
    exec(compile(answer_source(exercise, answer), f"<{exercise.id} {answer.name}>", "exec"), space)
    function: Function = space[exercise.name]
    return function


def reference_function(exercise: Exercise) -> Function:
    """The right answer as a function of this process; a kernel as the engine launches it."""
    if exercise.spec.kernel is None:
        return exercise.function
    return _kernel(exercise, whole_file(exercise, exercise.function, function_source(exercise.function)), "reference")


def _kernel(exercise: Exercise, source: str, name: str) -> Function:
    return kernels.in_engine(exercise, lambda: kernels.from_source(source, exercise.name, f"{exercise.id} {name}"))


def function_source(function: Function) -> str:
    """A function's source, dedented, without decorators."""
    source = textwrap.dedent(inspect.getsource(function))
    (node,) = ast.parse(source).body
    return "\n".join(source.splitlines()[node.lineno - 1 :]) + "\n"


def submission(function: Function, source: str, name: str) -> str:
    """A file with `source` under `name`, preceded by everything that it needs of the function's own module."""
    tree = ast.parse(source)
    (node,) = tree.body
    assert isinstance(node, ast.FunctionDef)
    if node.name != name:
        source = source.replace(f"def {node.name}(", f"def {name}(", 1)
    needs: list[str] = []
    _collect(function, source, needs, set())
    return "\n".join(["from __future__ import annotations", "", *needs, "", "", source])


def _collect(function: Function, source: str, needs: list[str], done: set[str]) -> None:
    """Collect the lines that define the global names a function uses, including helpers of its module."""
    space = function.__globals__  # type: ignore[attr-defined]
    home = space["__name__"]
    for name in sorted(_used(source) - done):
        if name not in space or hasattr(builtins, name):
            continue
        done.add(name)
        value = space[name]
        if isinstance(value, ModuleType):
            needs.append(f"import {value.__name__} as {name}")
        elif home.startswith("nanoinfer."):
            needs.append(f"from {home} import {name}")
        elif inspect.isfunction(value) and value.__module__ == home:
            helper = function_source(value)
            _collect(value, helper, needs, done)
            needs.append(f"\n\n{helper}")
        elif isinstance(value, int | float | str | tuple):
            needs.append(f"{name} = {value!r}")
        elif hasattr(sys.modules.get(value.__module__), value.__name__):
            needs.append(f"from {value.__module__} import {value.__name__} as {name}")
        else:
            raise ValueError(f"{function.__name__} uses {name}, which cannot be put into a file of its own")


def _used(source: str) -> set[str]:
    """Names from outside that a function's source reads, defaults included. Annotations are not evaluated."""
    codes = [compile(source, "<answer>", "exec", annotations.compiler_flag, dont_inherit=True)]
    found = set[str]()
    for code in codes:
        codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
        found |= {one.argval for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return found
