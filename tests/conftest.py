"""Shared by all tests: small models on which mistakes show, and the marks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test may reach a network, by any library

import torch

from nanoinfer import LLM
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.files import save_model
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import random_model

# Odd sizes on purpose: a vocabulary that is padded, a head size of its own, a context that is no power of two.
SMALL = ModelConfig(n_layer=3, n_head=4, n_embd=48, n_positions=100, vocab_size=211)
# Five heads for two ranks, and a vocabulary that does not divide either.
UNEVEN = ModelConfig(n_layer=2, n_head=5, n_embd=60, n_positions=120, vocab_size=211)
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # the workers share the processors

STD = 0.25  # of the weights: at GPT-2's own 0.02 attention hardly matters, and proofs prove little


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked gpu are skipped by name where there is no CUDA GPU; long ones have time on a busy machine too."""
    for item in items:
        if any(item.get_closest_marker(mark) for mark in ("strength", "long", "readme", "notebook")):
            item.add_marker(pytest.mark.timeout(2400))
    if not torch.cuda.is_available():
        skip = pytest.mark.skip(reason="needs a CUDA GPU")
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(skip)


@pytest.fixture(scope="session")
def small_model() -> GPT2:
    return random_model(SMALL, seed=1, std=STD)


@pytest.fixture(scope="session")
def plain(small_model: GPT2) -> LLM:
    """The oracle of engines that draft: it runs the same requests without any."""
    return LLM(small_model, engine="naive")


@pytest.fixture(scope="session")
def whole() -> GPT2:
    """What several ranks hold together."""
    return random_model(UNEVEN, seed=3, std=STD)


@pytest.fixture(scope="session")
def whole_folder(whole: GPT2, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole")
    save_model(whole, path)
    return path


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)], scope="session")
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.fixture
def no_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each capture of the stand-in collects garbage, which takes long in a process that has loaded so much."""
    if not torch.cuda.is_available():
        monkeypatch.setattr("nanoinfer.engine.graphs.gc", SimpleNamespace(collect=lambda: 0))


def prompts_of(lengths: list[int], vocab_size: int = SMALL.vocab_size, seed: int = 0) -> list[list[int]]:
    """Random prompts of the given lengths."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, vocab_size, (length,), generator=generator).tolist() for length in lengths]


def changed(owner: Any, name: str, change: Callable[..., Any]) -> Callable[[pytest.MonkeyPatch], None]:
    """A mutant: `change` is called in place of a method, with the method as its first argument."""
    original = getattr(owner, name)

    def mutate(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(owner, name, lambda *args: change(original, *args))

    return mutate


def passed_in_the_interpreter(file: str, *options: str) -> int:
    """How many tests of this file pass in a process of their own, whose kernels Triton's interpreter runs."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    environment.pop("PYTEST_XDIST_WORKER", None)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", file, *options]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-3000:]
    return int(result.stdout.rsplit(" passed", 1)[0].split()[-1])
