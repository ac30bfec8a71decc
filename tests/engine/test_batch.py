"""What packing a step costs. What is packed is proven by tokens, in test_rungs.py and test_graphs.py."""

from __future__ import annotations

import pytest
import torch

from nanoinfer.model.batch import Chunk, Layout, pack, unpack


def test_no_tensor_is_made_of_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 256 prompts of up to 1,000 tokens that took the host 106 ms: numbers go into arrays, and these are tensors."""
    prompts = [tuple(range(length)) for length in (1000, 1, 40, 999) * 64]
    chunks = [Chunk(slot, 0, prompt) for slot, prompt in enumerate(prompts)]
    layout = Layout(257, 2**18, 256, 2**18, 1000)
    for name in ("tensor", "as_tensor", "asarray", "stack", "cat", "full"):
        monkeypatch.setattr(torch, name, lambda *_, **__: pytest.fail("a tensor of a list"))
    unpack(pack([], chunks, layout, 256), layout)
