"""Stubs, made from the reference's signature and docstring, so that they cannot drift apart."""

from __future__ import annotations

import ast
import inspect
import textwrap
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nanocourse.exercises.chapters import Chapter, chapter, read
from nanocourse.exercises.exercise import Exercise
from nanocourse.exercises.outcomes import Returned
from nanocourse.exercises.sources import function_source

WIDTH = 100  # of an example's lines
PURE = "a call leaves its arguments as they were"
RANDOM = ", and torch's random state, too"
HANDED = "what a program is handed stays as it was, also what a yield gives"
LICENCE = "SPDX-License-Identifier: MIT-0"


def stub(exercise: Exercise, chapter: Chapter) -> str:
    """The file that a learner starts from."""
    spec = exercise.spec
    page, _ = read(chapter, spec.section)
    task = spec.task if exercise.edition is None else f"{spec.task}\nHere {exercise.edition.says}."
    holds = "\n".join(_item(text) for text in (*spec.invariants, *[_pure(exercise)] * exercise.pure))
    head = (
        f'"""Exercise {exercise.id}: {spec.title}.\n\n{task}\n\nWhat always holds:\n{holds}\n\nAn example:\n\n'
        f'{example(exercise)}\n\nAbout {spec.lines} lines. The text: {page}, "{spec.section}".\n'
        f"Check it with `nanoinfer course check {exercise.id}`; ask for a hint with `nanoinfer course hint "
        f'{exercise.id}`.\n`print` what you want to see: a check that fails shows what you print on its input.\n"""\n'
    )
    return f"# {LICENCE}\n# This file is yours.\n{head}\n{imports(exercise)}\n\n\n{declaration(exercise)}"


def _pure(exercise: Exercise) -> str:
    return HANDED if exercise.spec.scene else PURE + RANDOM * bool(exercise.imports)


def imports(exercise: Exercise) -> str:
    """The imports of a stub: what its signature and most answers need."""
    lines = ["from __future__ import annotations", ""]
    named = {"Callable": "collections.abc", "Any": "typing"}
    needed = [f"from {module} import {name}" for name, module in named.items() if name in signature(exercise)]
    return "\n".join([*lines, *needed, *[""] * bool(needed), *exercise.imports]).rstrip()


def declaration(exercise: Exercise) -> str:
    """Signature, docstring, and an error that names the task."""
    source = function_source(exercise.function)
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.FunctionDef)
    doc = node.body[0]
    head = "\n".join([*["@triton.jit"] * bool(exercise.spec.kernel), *source.splitlines()[: doc.end_lineno]])
    return f'{head}\n    raise NotImplementedError("{exercise.undone}")\n'


def signature(exercise: Exercise) -> str:
    """The `def` as the reference has it."""
    source = function_source(exercise.function)
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.FunctionDef)
    return "\n".join(source.splitlines()[: node.body[0].lineno - 1])


def example(exercise: Exercise) -> str:
    """The worked example: inputs, call, and what the reference returns now."""
    asked = exercise.example()
    named = exercise.named(asked)
    lines = [line for name, value in named.items() for line in _shown(name, value)]
    outcome = exercise.expected(asked)
    assert isinstance(outcome, Returned)
    called = exercise.spec.scene or exercise.oracle
    lines += [f"{called.__name__}({', '.join(named)})", *_long("  -> ", outcome.value)]
    return textwrap.indent("\n".join(lines), "    ")


def _shown(name: str, value: Any) -> list[str]:
    """One argument of the example; a dict takes several lines."""
    if callable(value):
        return [f"{name}: {inspect.getdoc(value) or 'a function'}"]
    return _long(f"{name} = ", value)


def _long(head: str, value: Any, tail: str = "") -> list[str]:
    """A value after its name; a long dict or list takes several lines."""
    if len(head + literal(value)) <= WIDTH or not isinstance(value, dict | list):
        return [f"{head}{literal(value)}{tail}"]
    if isinstance(value, dict):
        marks, items = "{}", [(f"{key!r}: ", item) for key, item in value.items()]
    else:
        marks, items = "[]", [("", item) for item in value]
    inside = [f"    {line}" for name, item in items for line in _long(name, item, ",")]
    return [f"{head}{marks[0]}", *inside, f"{marks[1]}{tail}"]


def literal(value: Any) -> str:
    """A value as one would write it: numbers with four digits, tensors of zeros or ones by their shape."""
    if isinstance(value, Tensor):
        for number, name in ((0, "zeros"), (1, "ones")):
            if value.numel() > 1 and value.is_floating_point() and bool((value == number).all()):
                return f"torch.{name}({', '.join(map(str, value.shape))})"
        narrow = f", dtype={value.dtype}" if value.dtype == torch.int32 else ""  # what a plain list would not give
        return f"torch.tensor({literal(value.tolist())}{narrow})"
    if isinstance(value, float):
        text = f"{value:.4g}"
        return text if any(mark in text for mark in ".en") else f"{text}.0"
    if isinstance(value, list | tuple):
        inside = ", ".join(literal(item) for item in value)
        return f"[{inside}]" if isinstance(value, list) else f"({inside})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {literal(item)}" for key, item in value.items()) + "}"
    return repr(value)


def untouched(exercise: Exercise, path: Path) -> bool:
    """Whether a file is still the stub."""
    return path.read_bytes() == stub(exercise, chapter(exercise.chapter)).encode()


def write(exercise: Exercise, chapter: Chapter, folder: Path) -> bool:
    """Write the stub into `folder`. Returns False if the learner's file exists already; it is left alone."""
    path = folder / exercise.file
    if path.exists():
        return False
    path.write_text(stub(exercise, chapter), encoding="utf-8")
    return True


def _item(text: str) -> str:
    return textwrap.fill(text, 110, initial_indent="- ", subsequent_indent="  ")
