"""What importing the engine costs: nothing heavy is loaded before a model is made."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import nanoinfer


def test_the_front_door_loads_nothing_heavy() -> None:
    """Neither its names nor a refused argument."""
    code = """
import sys
from nanoinfer import LLM, SamplingParams, Completion, Piece
try:
    LLM(engine="no such engine")
except ValueError:
    heavy = "torch triton transformers tiktoken numpy huggingface_hub safetensors rich typer".split()
    print([name for name in heavy if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'LMM'"):
        nanoinfer.LMM  # noqa: B018
    assert set(nanoinfer.__all__) <= set(dir(nanoinfer))
    assert all(getattr(nanoinfer, name) for name in nanoinfer.__all__)


def test_every_module_opens_with_a_docstring() -> None:
    for path in Path(nanoinfer.__file__).parent.rglob("*.py"):
        doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        assert doc, path
        assert len(doc.splitlines()) <= 8, path
