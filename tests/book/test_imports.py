"""Promise 1: the import graph is the syllabus; and what an import may cost."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import nanoinfer
from nanobook.structure import CHAPTER, OUTSIDE, imports_of

PACKAGE = Path(nanoinfer.__file__).parent


def test_every_module_has_a_chapter() -> None:
    modules = {path.stem for path in PACKAGE.glob("*.py")} | {
        p.name for p in PACKAGE.iterdir() if (p / "__init__.py").is_file()
    }
    assert modules - OUTSIDE == set(CHAPTER)


@pytest.mark.parametrize("module", sorted(set(CHAPTER)))
def test_imports_follow_the_syllabus(module: str) -> None:
    for imported in imports_of(PACKAGE / f"{module}.py"):
        assert imported in CHAPTER, f"{module} imports {imported}, which is no part of a chapter"
        assert CHAPTER[imported] <= CHAPTER[module], f"{module} imports {imported} of a later chapter"


def test_no_cycles() -> None:
    graph = {module: imports_of(PACKAGE / f"{module}.py") & set(CHAPTER) for module in CHAPTER}
    while graph:
        ready = {module for module, needed in graph.items() if not needed & graph.keys()}
        assert ready, f"these import each other in a circle: {sorted(graph)}"
        graph = {module: needed for module, needed in graph.items() if module not in ready}


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


HEAVY = "{'torch', 'triton', 'transformers', 'tiktoken', 'numpy', 'huggingface_hub', 'safetensors', 'rich', 'typer'}"


def test_import_loads_nothing_heavy() -> None:
    assert run(f"import sys, nanoinfer; print({HEAVY} & set(sys.modules))").strip() == "set()"


def test_names_of_the_front_door_load_no_torch() -> None:
    code = (
        f"import sys; from nanoinfer import LLM, SamplingParams, Completion, Piece; print({HEAVY} & set(sys.modules))"
    )
    assert run(code).strip() == "set()"


def test_refused_arguments_load_no_torch() -> None:
    code = """
import sys
from nanoinfer import LLM
try:
    LLM(engine="no such engine")
except ValueError:
    print("torch" in sys.modules)
"""
    assert run(code).strip() == "False"


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'LMM'"):
        nanoinfer.LMM  # noqa: B018
    assert set(nanoinfer.__all__) <= set(dir(nanoinfer))
    assert all(getattr(nanoinfer, name) for name in nanoinfer.__all__)


def test_every_module_opens_with_a_docstring() -> None:
    for path in PACKAGE.rglob("*.py"):
        doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        assert doc, path
        assert len(doc.splitlines()) <= 8, path
