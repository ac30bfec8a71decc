"""The rows of a batch on the device: who writes what, and what stays where it is."""

from __future__ import annotations

import pytest
import torch

from nanoinfer.engine.state import BatchState, Fetch, upload
from nanoinfer.requests import Request, SamplingParams

NAMES = {"token": 0, "position": 1, "step": 2, "live": 3, "seed": 4, "top_k": 5, "row": 6}


@pytest.fixture
def state(device: torch.device) -> BatchState:
    """Four rows and the dummy row, each number another one: 10 times the quantity, and the row."""
    state = BatchState.empty(4, device)
    state.integers.copy_(10 * torch.arange(7)[:, None] + torch.arange(5))
    state.floats.copy_(100 + 10 * torch.arange(2)[:, None] + torch.arange(5))
    return state


def request(index: int, **params: float) -> Request:
    return Request(index, (1, 2, 3), SamplingParams(**params), 2**62 + index, 9, frozenset())  # type: ignore[arg-type]


def test_empty(device: torch.device) -> None:
    state = BatchState.empty(4, device)
    assert state.integers.shape == (7, 5)
    assert state.floats.shape == (2, 5)
    assert (state.integers.dtype, state.floats.dtype) == (torch.int64, torch.float32)
    assert not state.integers[:6].any()
    assert state.row.tolist() == [4] * 5  # where padding writes
    assert state.dummy == 4
    assert not state.floats.any()


def test_each_quantity_has_a_line_of_its_own(state: BatchState) -> None:
    for name, line in NAMES.items():
        assert getattr(state, name).tolist() == [10 * line + row for row in range(5)]
    assert state.temperature.tolist() == [100, 101, 102, 103, 104]
    assert state.top_p.tolist() == [110, 111, 112, 113, 114]


def test_a_slice_of_rows_is_written_through(state: BatchState) -> None:
    """A decode step advances its rows in place; a prefill gets copies, and writes them back itself."""
    rows = state.at(slice(0, 2))
    rows.token.fill_(-1)
    rows.integers[1:3].add_(1000)
    rows.temperature.zero_()
    assert state.token.tolist() == [-1, -1, 2, 3, 4]
    assert state.position.tolist() == [1010, 1011, 12, 13, 14]
    assert state.temperature.tolist() == [0, 0, 102, 103, 104]
    copies = state.at(torch.tensor([3, 0], device=state.token.device))
    assert copies.seed.tolist() == [43, 40]
    copies.seed.zero_()
    assert state.seed.tolist() == [40, 41, 42, 43, 44]


def test_admit(state: BatchState) -> None:
    """Nothing is produced yet, whatever stood there, and until its prompt is read a row is padding; other rows stay."""
    before = state.integers.data_ptr(), state.floats.data_ptr()
    begun = state.admit([1, 2], [request(0, temperature=0.5, top_k=7, top_p=0.25), request(1, temperature=0)])
    assert begun.tolist() == [1, 2]
    assert begun.device == state.token.device
    assert state.integers[:, 1].tolist() == [0, 0, 0, 0, 2**62, 7, 4]
    assert state.integers[:, 2].tolist() == [0, 0, 0, 0, 2**62 + 1, 0, 4]
    assert state.floats[:, 1:3].tolist() == [[0.5, 0.0], [0.25, 1.0]]
    assert state.integers[:, [0, 3, 4]].tolist() == [[10 * line + row for row in (0, 3, 4)] for line in range(7)]
    assert state.floats[:, [0, 3, 4]].tolist() == [[100, 103, 104], [110, 113, 114]]
    assert (state.integers.data_ptr(), state.floats.data_ptr()) == before  # G11: a graph knows them


def test_admit_in_any_order_and_again(state: BatchState) -> None:
    """Gaps that rows have left lie anywhere; and a row that was preempted goes on at its own step."""
    again = [request(0, temperature=2**-30 + 1, top_p=0.1), request(1), request(2)]
    assert state.admit([3, 0, 2], again, [5, 0, 2**40]).tolist() == [3, 0, 2]
    assert state.step.tolist() == [0, 21, 2**40, 5, 24]
    assert state.seed.tolist() == [2**62 + 1, 41, 2**62 + 2, 2**62, 44]
    assert not state.live[[0, 2, 3]].any()
    assert state.row.tolist() == [4, 61, 4, 4, 64]
    assert torch.equal(state.temperature[3], torch.tensor(2**-30 + 1, device=state.token.device))  # as torch rounds it
    assert torch.equal(state.top_p[3], torch.tensor(0.1, device=state.token.device))


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


def test_free(state: BatchState) -> None:
    """A row of nobody is all zeros, so that padding is made of it, and writes to the dummy row."""
    state.free(slice(2, 4))
    assert not state.integers[:6, 2:4].any()
    assert state.row.tolist() == [60, 61, 4, 4, 64]
    assert not state.floats[:, 2:4].any()
    assert state.position.tolist() == [10, 11, 0, 0, 14]


def test_upload(device: torch.device) -> None:
    got = upload([[1, 2**62], [3, 4]], torch.int64, device)
    assert got.device.type == device.type
    assert got.tolist() == [[1, 2**62], [3, 4]]
    assert upload([0.5], torch.float32, device).dtype == torch.float32


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
