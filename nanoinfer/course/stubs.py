"""Stubs: made from the reference's own signature and docstring, so that they cannot drift from it."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path
from typing import Any

from torch import Tensor

from nanoinfer.course.chapters import Chapter
from nanoinfer.course.exercise import Exercise
from nanoinfer.course.outcomes import Returned, local
from nanoinfer.course.sources import function_source

LICENCE = "SPDX-License-Identifier: MIT-0"


def stub(exercise: Exercise, chapter: Chapter) -> str:
    """The file that a learner begins with."""
    spec = exercise.spec
    task = spec.task if exercise.edition is None else f"{spec.task}\nHere {exercise.edition.says}."
    holds = "\n".join(_item(text) for text in spec.invariants)
    head = (
        f'"""Exercise {exercise.id}: {spec.title}.\n\n{task}\n\nWhat always holds:\n{holds}\n\nAn example:\n\n'
        f"{example(exercise)}\n\nAbout {spec.lines} lines. The text: {chapter.text}, \"{spec.section}\".\n"
        f'Check it with `nanoinfer course check {exercise.id}`; ask for a hint with `nanoinfer course hint '
        f'{exercise.id}`.\n"""\n'
    )
    return f"# {LICENCE}: this file is yours.\n{head}\n{imports(exercise)}\n\n\n{declaration(exercise)}"


def imports(exercise: Exercise) -> str:
    """The imports of a stub: what its signature and most answers need."""
    lines = ["from __future__ import annotations", ""]
    if "Callable" in signature(exercise):
        lines += ["from collections.abc import Callable", ""]
    return "\n".join([*lines, *exercise.spec.imports])


def declaration(exercise: Exercise) -> str:
    """Signature, docstring, and an error that names what is to be done."""
    (node,) = ast.parse(function_source(exercise.function)).body
    assert isinstance(node, ast.FunctionDef)
    doc = textwrap.indent(f'"""{ast.get_docstring(node)}', "    ").rstrip()
    doc += '\n    """' if "\n" in doc else '"""'
    told = f"{exercise.mark} {exercise.name}: {exercise.spec.title[:1].lower()}{exercise.spec.title[1:]}"
    return f"{signature(exercise)}\n{doc}\n    raise NotImplementedError({told!r})\n"


def signature(exercise: Exercise) -> str:
    """The `def` line as the reference has it."""
    (node,) = ast.parse(function_source(exercise.function)).body
    assert isinstance(node, ast.FunctionDef)
    node.body, node.decorator_list = [ast.Pass()], []
    line = ast.unparse(node).split("\n")[0]
    if len(line) <= 120:
        return line
    arguments = [ast.unparse(arg) for arg in node.args.args]
    return f"def {node.name}(\n    {', '.join(arguments)},\n) -> {ast.unparse(node.returns or ast.Constant(None))}:"


def example(exercise: Exercise) -> str:
    """The worked example: inputs, call, and what the reference gives for them now."""
    asked = exercise.example()
    named = exercise.named(asked)
    lines = [f"    {name} = {literal(value)}" for name, value in named.items()]
    outcome = local(exercise.function, asked)
    assert isinstance(outcome, Returned)
    result = f"    {exercise.name}({', '.join(named)})  ->  {literal(outcome.value)}"
    return "\n".join([*lines, result])


def literal(value: Any) -> str:
    """A value as one would write it: numbers with four digits."""
    if isinstance(value, Tensor):
        return f"tensor({literal(value.tolist())})"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        inside = ", ".join(literal(item) for item in value)
        return f"[{inside}]" if isinstance(value, list) else f"({inside})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {literal(item)}" for key, item in value.items()) + "}"
    return (getattr(value, "__doc__", None) or "a function") if callable(value) else repr(value)


def write(exercise: Exercise, chapter: Chapter, folder: Path) -> bool:
    """Write the stub into `folder`; False where the learner's file is there already, which stays as it is."""
    path = folder / exercise.file
    if path.exists():
        return False
    path.write_text(stub(exercise, chapter), encoding="utf-8")
    return True


def _item(text: str) -> str:
    return textwrap.fill(text, 110, initial_indent="- ", subsequent_indent="  ")
