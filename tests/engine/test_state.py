"""The rows of a batch on the device: who writes what, what stays where it is, and what packing a step costs."""

from __future__ import annotations

import pytest
import torch

from nanoinfer.engine.state import BatchState, Fetch, upload
from nanoinfer.engine.step import Chunk, Layout, Prefill, Prompts


@pytest.fixture
def state(device: torch.device) -> BatchState:
    """Four rows and the dummy row, each number another one: 10 times the quantity, and the row."""
    state = BatchState.empty(4, device)
    state.integers.copy_(10 * torch.arange(7)[:, None] + torch.arange(5))
    state.floats.copy_(100 + 10 * torch.arange(2)[:, None] + torch.arange(5))
    return state


def test_move(state: BatchState) -> None:
    """Everything of a row goes along, and in place; but it writes to its new row, or, still padding, to the dummy."""
    state.live[2] = 0
    before = state.integers.data_ptr(), state.floats.data_ptr()
    rows = torch.tensor([[3, 2], [0, 1]], device=state.token.device)
    state.move(rows[0], rows[1])
    expected = [[10 * line + row for row in (3, 2, 2, 3, 4)] for line in range(6)]
    expected[3] = [33, 0, 0, 33, 34]
    assert state.integers.tolist() == [*expected, [0, 4, 62, 63, 64]]
    assert state.floats.tolist() == [[103, 102, 102, 103, 104], [113, 112, 112, 113, 114]]
    assert (state.integers.data_ptr(), state.floats.data_ptr()) == before


@pytest.mark.gpu
def test_an_upload_waits_for_nothing() -> None:
    """While the GPU is busy, and with an old upload not yet read: neither waits, and neither reads the other's."""
    device = torch.device("cuda")
    busy = torch.randn(4096, 4096, device=device)
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        for _ in range(20):
            busy = (busy @ busy).clamp(-1, 1)
        uploads = [upload([number] * 1000, torch.int64, device) for number in range(50)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(bool((tensor == number).all()) for number, tensor in enumerate(uploads))


def test_fetch_keeps_what_was_there(device: torch.device) -> None:
    """G13: the next step writes over its tokens; the copy was begun before."""
    tokens = torch.arange(4, device=device)
    fetch = Fetch(tokens[:3])
    tokens.fill_(9)
    assert fetch.wait() == [0, 1, 2]
    assert fetch.wait() == [0, 1, 2]


def test_no_tensor_is_made_of_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 256 prompts of up to 1,000 tokens that took the host 106 ms: numbers go into arrays, and these are tensors."""
    prompts = [tuple(range(length)) for length in (1000, 1, 40, 999) * 64]
    prefill = Prefill([Chunk(slot, 0, prompt) for slot, prompt in enumerate(prompts)])
    layout = Layout(257, 2**18, 2**18, 1000)
    for name in ("tensor", "as_tensor", "asarray", "stack", "cat", "full"):
        monkeypatch.setattr(torch, name, lambda *_, **__: pytest.fail("a tensor of a list"))
    Prompts.of_packed(prefill.pack(layout, 256), layout)
