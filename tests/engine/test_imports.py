"""What importing the engine costs: nothing heavy is loaded before a model is made."""

from __future__ import annotations

import subprocess
import sys

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
