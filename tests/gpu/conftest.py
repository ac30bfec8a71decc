"""Shared by tests on GPUs: the small model there, the engines that replay, and machines with two GPUs."""

from __future__ import annotations

import pytest
import torch

from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import random_model
from tests.conftest import SMALL, STD

GRAPHS = [(engine, fused) for engine in ("dense-graph", "paged-graph") for fused in (False, True)]
EAGER: list[tuple[str, bool | None]] = [("dense", None), ("paged", None)]
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs")


@pytest.fixture(scope="module")
def model() -> GPT2:
    return random_model(SMALL, seed=1, std=STD, device="cuda")
