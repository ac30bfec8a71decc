"""What packing a step costs. What is packed is proven by tokens, in test_rungs.py and test_graphs.py."""

from __future__ import annotations

import pytest
import torch

from nanoinfer.engine.step import Chunk, Layout, Prefill, Prompts


def test_no_tensor_is_made_of_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 256 prompts of up to 1,000 tokens that took the host 106 ms: numbers go into arrays, and these are tensors."""
    prompts = [tuple(range(length)) for length in (1000, 1, 40, 999) * 64]
    prefill = Prefill([Chunk(slot, 0, prompt) for slot, prompt in enumerate(prompts)])
    layout = Layout(257, 2**18, 2**18, 1000)
    for name in ("tensor", "as_tensor", "asarray", "stack", "cat", "full"):
        monkeypatch.setattr(torch, name, lambda *_, **__: pytest.fail("a tensor of a list"))
    Prompts.of_packed(prefill.pack(layout, 256), layout)
