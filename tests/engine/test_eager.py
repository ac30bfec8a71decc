"""The two steps by themselves, and the runner that calls them: what they read, advance and leave alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nanoinfer.cache.dense import DenseCache
from nanoinfer.cache.naive import forward_logits
from nanoinfer.cache.paged import PagedCache
from nanoinfer.engine.eager import EagerRunner
from nanoinfer.engine.sampling import greedy
from nanoinfer.engine.state import BatchState
from nanoinfer.engine.step import decode_step, prefill_step
from nanoinfer.model.batch import Step
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.requests import Request, SamplingParams
from tests.conftest import SMALL, prompts_of

CPU = torch.device("cpu")
PROMPTS = prompts_of([7, 16, 1])
ROWS = 4  # and the spare one


class Batch:
    """Three live rows of four, their prompts run in one pass with a padding row."""

    def __init__(self, model: GPT2, kind: str) -> None:
        self.model, self.memory = model, _memory(kind)
        with torch.inference_mode():
            self.state = BatchState.empty(ROWS, CPU)
            requests = [
                Request(i, tuple(p), SamplingParams(temperature=0), i, 9, frozenset()) for i, p in enumerate(PROMPTS)
            ]
            self.state.admit(slice(0, 3), requests)
            for row in range(3):
                self.memory.admit(row, 40)
            self.memory.grow([len(prompt) for prompt in PROMPTS])
        prefill_step(model, self.memory, self.state, prompt_step(PROMPTS, 0), greedy)
        self.texts = [list(prompt) for prompt in PROMPTS]
        self.note()

    def note(self) -> None:
        for text, token in zip(self.texts, self.state.token.tolist(), strict=False):
            text.append(token)

    def decode(self, batch: int) -> torch.Tensor:
        with torch.inference_mode():
            self.memory.grow([len(text) for text in self.texts])
        tokens = decode_step(self.model, self.memory, self.state, batch, 40, greedy)
        self.note()
        return tokens


def _memory(kind: str) -> Any:
    if kind == "dense":
        return DenseCache(SMALL, ROWS, 40, CPU, torch.float32)
    return PagedCache(SMALL, ROWS, 40, 13, 16, CPU, torch.float32)


def prompt_step(parts: list[list[int]], start: int, rows: list[int] | None = None) -> Step:
    """Parts of prompts that begin at `start`, and one padding row."""
    T = max(map(len, parts))
    ids = torch.tensor([*[part + [0] * (T - len(part)) for part in parts], [0] * T])
    last = torch.tensor([*[len(part) - 1 for part in parts], -1])
    where = torch.tensor([*(rows or range(len(parts))), ROWS])
    positions = torch.arange(start, start + T).expand(len(ids), T)
    return Step(ids, positions, last, where, longest=start + T, fresh=start == 0)


@pytest.fixture(params=["dense", "paged"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def best(model: GPT2, text: list[int]) -> int:
    return int(forward_logits(model, torch.tensor([text]))[0, -1].argmax())


def test_prefill_writes_the_first_tokens(small_model: GPT2, kind: str) -> None:
    batch = Batch(small_model, kind)
    assert batch.state.token[:3].tolist() == [best(small_model, prompt) for prompt in PROMPTS]
    assert batch.state.position.tolist()[:4] == [7, 16, 1, 0]
    assert batch.state.step.tolist()[:4] == [1, 1, 1, 0]
    assert batch.state.live.tolist() == [1, 1, 1, 0, 0]


def test_a_chunk_that_goes_on_writes_over_the_one_before(small_model: GPT2, kind: str) -> None:
    """However many chunks came before, it is token 0 that is chosen, and the row stands at the prompt's end."""
    batch, memory = Batch(small_model, kind), _memory(kind)
    steps: list[int] = []

    def sampler(logits: torch.Tensor, rows: BatchState) -> torch.Tensor:
        steps.extend(rows.step.tolist())
        return logits.argmax(-1)

    with torch.inference_mode():
        memory.admit(1, 40)
        memory.grow([0, 16])
        state = BatchState.empty(ROWS, CPU)
    for start in (0, 5, 10, 15):
        part = PROMPTS[1][start : start + 5]
        prefill_step(small_model, memory, state, prompt_step([part], start, rows=[1]), sampler)
        assert int(state.position[1]) == start + len(part)
    assert steps == [0] * 8
    assert state.integers[:3, 1].tolist() == [int(batch.state.token[1]), 16, 1]
    assert not state.integers[:, [0, 2, 3]].any()


@pytest.mark.parametrize("rows", [3, 4])
def test_decode_advances_live_rows_alone(small_model: GPT2, kind: str, rows: int) -> None:
    """Alone, or with a padding row, which stays at position 0 of a text of its own."""
    batch = Batch(small_model, kind)
    for step in range(1, 21):
        expected = [best(small_model, text) for text in batch.texts]
        assert batch.decode(rows)[:3].tolist() == expected
        assert batch.state.position.tolist()[:4] == [7 + step, 16 + step, 1 + step, 0]
        assert batch.state.step.tolist()[:4] == [1 + step] * 3 + [0]
        assert batch.state.token.tolist()[3] == 0


def test_a_step_sees_its_first_rows_alone(small_model: GPT2, kind: str) -> None:
    batch = Batch(small_model, kind)
    before = batch.state.integers.clone()
    expected = [best(small_model, text) for text in batch.texts]
    assert decode_step(small_model, batch.memory, batch.state, 2, 40, greedy).tolist() == expected[:2]
    assert torch.equal(batch.state.integers[:, 2:], before[:, 2:])


def test_all_but_three_numbers_is_read_from_the_state(small_model: GPT2, kind: str) -> None:
    """Another token, position or seed there is seen by the next call: nothing is kept elsewhere."""
    batch, other = Batch(small_model, kind), Batch(small_model, kind)
    with torch.inference_mode():
        other.state.token[0] = 5
        other.texts[0][-1] = 5
    assert other.decode(3).tolist() == [best(small_model, t) for t in ([*PROMPTS[0], 5], *batch.texts[1:])]


def test_the_spare_row_takes_what_padding_writes(small_model: GPT2) -> None:
    """G01 in prefill, with a padding row and padded columns: live slots change, and that row, and nothing else."""
    memory = DenseCache(SMALL, ROWS, 40, CPU, torch.float32)
    memory.k.fill_(7.0)
    state = BatchState.empty(ROWS, CPU)
    prefill_step(small_model, memory, state, prompt_step(PROMPTS, 0), greedy)
    changed = (memory.k != 7).amax((0, 3, 4))  # (rows, slots)
    assert [int(row.sum()) for row in changed[:ROWS]] == [7, 16, 1, 0]
    assert bool(changed[ROWS].any())


def test_the_null_block_takes_what_padding_writes(small_model: GPT2) -> None:
    """The same in pages: one slot of the null block, and not the last slot of the pool."""
    batch = Batch(small_model, "paged")
    batch.memory.k.fill_(7.0)
    prefill_step(small_model, batch.memory, batch.state, prompt_step(PROMPTS, 0), greedy)
    changed = (batch.memory.k != 7).amax((0, 2, 4))  # (blocks, slots)
    assert int(changed.sum()) == 7 + 16 + 1 + 1
    assert changed[0].tolist() == [True] + [False] * 15
    assert not changed[-1].any()


def test_eager_runner(small_model: GPT2, kind: str) -> None:
    """It calls the steps."""
    batch = Batch(small_model, kind)
    runner = EagerRunner(small_model, batch.memory, batch.state)
    expected = [best(small_model, text) for text in batch.texts]
    assert runner.decode(3, 40, greedy).tolist() == expected
    runner.prefill(prompt_step(PROMPTS, 0), greedy)
    assert batch.state.token[:3].tolist() == [best(small_model, prompt) for prompt in PROMPTS]
