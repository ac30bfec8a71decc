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
from nanoinfer.model.batch import Batch, Chunk, Layout, pack, unpack
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.requests import Request, SamplingParams
from tests.conftest import SMALL, prompts_of

CPU = torch.device("cpu")
PROMPTS = prompts_of([7, 16, 1])
CHUNKS = [Chunk(row, 0, prompt) for row, prompt in enumerate(PROMPTS)]
ROWS = 4  # and the dummy row


class Rows:
    """Three live rows of four, their prompts run in one pass with a padding row."""

    def __init__(self, model: GPT2, kind: str) -> None:
        self.model, self.cache = model, cache_of(kind)
        with torch.inference_mode():
            self.state = BatchState.empty(ROWS, CPU)
            requests = [
                Request(i, tuple(p), SamplingParams(temperature=0), i, 9, frozenset()) for i, p in enumerate(PROMPTS)
            ]
            self.cache.clear(self.state.admit(range(3), requests))
        grow(self.cache, *map(len, PROMPTS))
        prefill_step(model, self.cache, self.state, padded(self.cache, CHUNKS), greedy)
        self.texts = [list(prompt) for prompt in PROMPTS]
        self.note()

    def note(self) -> None:
        for text, token in zip(self.texts, self.state.token.tolist(), strict=False):
            text.append(token)

    @torch.inference_mode()
    def begin(self, *rows: int) -> None:
        """These rows are free, and begin texts of their own."""
        for row in rows:
            self.state.free(slice(row, row + 1))
            if self.cache.blocks:
                self.cache.blocks.release(row)
                assert self.cache.blocks.reserve(row, 40)
        self.cache.clear(torch.tensor(rows))

    def decode(self, batch: int) -> torch.Tensor:
        grow(self.cache, *map(len, self.texts))
        tokens = decode_step(self.model, self.cache, self.state, batch, 40, greedy)
        self.note()
        return tokens


def cache_of(kind: str) -> Any:
    if kind == "dense":
        return DenseCache(SMALL, ROWS, 40, CPU, torch.float32)
    cache = PagedCache(SMALL, ROWS, 40, 13, 16, CPU, torch.float32)
    assert all(cache.blocks.reserve(row, 40) for row in range(ROWS))
    return cache


@torch.inference_mode()
def grow(cache: Any, *lengths: int) -> None:
    """Blocks for texts of these lengths, where the cache has blocks."""
    for row, length in enumerate(lengths if cache.blocks else ()):
        cache.blocks.grow(row, length)
    cache.update()


def padded(cache: Any, chunks: list[Chunk]) -> Batch:
    """As a captured step has them: one row too many, each as long as the longest, or eight tokens too many in all."""
    rows, columns = cache.captured([], chunks)
    layout = cache.layout(rows + 1, columns + 8 if cache.blocks else columns)
    return unpack(pack([], chunks, layout, ROWS), layout)


def exact(chunks: list[Chunk], going: list[int] | None = None) -> Batch:
    layout = Layout.of(going or [], chunks, 40)
    return unpack(pack(going or [], chunks, layout, ROWS), layout)


@pytest.fixture(params=["dense", "paged"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def best(model: GPT2, text: list[int]) -> int:
    return int(forward_logits(model, torch.tensor([text]))[0, -1].argmax())


def test_prefill_writes_the_first_tokens(small_model: GPT2, kind: str) -> None:
    batch = Rows(small_model, kind)
    assert batch.state.token[:3].tolist() == [best(small_model, prompt) for prompt in PROMPTS]
    assert batch.state.position.tolist()[:4] == [7, 16, 1, 0]
    assert batch.state.step.tolist()[:4] == [1, 1, 1, 0]
    assert batch.state.live.tolist()[:4] == [1, 1, 1, 0]
    assert batch.state.row.tolist() == [0, 1, 2, 4, 4]


def test_a_prompt_that_goes_on_changes_nothing(small_model: GPT2, kind: str) -> None:
    """However many chunks came before, it is token 0 that is chosen, and until then the row is padding."""
    batch, cache = Rows(small_model, kind), cache_of(kind)
    steps: list[int] = []

    def sampler(logits: torch.Tensor, rows: BatchState) -> torch.Tensor:
        steps.extend(rows.step.tolist())
        return logits.argmax(-1)

    grow(cache, 0, 16)
    with torch.inference_mode():
        cache.clear(torch.arange(ROWS))
        state = BatchState.empty(ROWS, CPU)
    for start in (0, 5, 10, 15):
        assert not state.integers[:6].any()
        assert state.row.tolist() == [ROWS] * (ROWS + 1)
        chunk = Chunk(1, start, PROMPTS[1][start : start + 5], complete=start == 15)
        tokens = prefill_step(small_model, cache, state, exact([chunk]), sampler)
    assert steps == [0]
    assert tokens.tolist() == [int(batch.state.token[1])]
    assert state.integers[:4, 1].tolist() == [int(batch.state.token[1]), 16, 1, 1]
    assert state.row.tolist() == [4, 1, 4, 4, 4]
    assert not state.integers[:6, [0, 2, 3]].any()


def test_prompts_and_decode_rows_share_a_step(small_model: GPT2, kind: str) -> None:
    """Row 0 goes on by its newest token, row 2 by the third piece of a prompt, and row 3 begins; row 1 has no part."""
    batch, prompt = Rows(small_model, kind), prompts_of([9], seed=3)[0]
    others = batch.state.integers[:, 1].clone()
    batch.begin(2, 3)
    grow(batch.cache, 8, 16, 9, 5)
    for chunk in (Chunk(2, 0, prompt[:3], False), Chunk(2, 3, prompt[3:6], False)):
        prefill_step(small_model, batch.cache, batch.state, exact([chunk]), greedy)
    chunks = [Chunk(2, 6, prompt[6:]), Chunk(3, 0, prompt[:5], False)]
    tokens = prefill_step(small_model, batch.cache, batch.state, exact(chunks, [0]), greedy)
    assert tokens.tolist() == [best(small_model, batch.texts[0]), best(small_model, prompt)]
    assert batch.state.token.tolist()[:4:2] == tokens.tolist()
    assert batch.state.integers[1:4, [0, 2, 3]].T.tolist() == [[8, 2, 1], [9, 1, 1], [0, 0, 0]]
    assert torch.equal(batch.state.integers[:, 1], others)


@pytest.mark.parametrize("rows", [3, 4])
def test_decode_advances_live_rows_alone(small_model: GPT2, kind: str, rows: int) -> None:
    """Alone, or with a padding row, which stays at position 0 of a text of its own."""
    batch = Rows(small_model, kind)
    for step in range(1, 21):
        expected = [best(small_model, text) for text in batch.texts]
        assert batch.decode(rows)[:3].tolist() == expected
        assert batch.state.position.tolist()[:4] == [7 + step, 16 + step, 1 + step, 0]
        assert batch.state.step.tolist()[:4] == [1 + step] * 3 + [0]
        assert batch.state.token.tolist()[3] == 0


def test_a_step_sees_its_first_rows_alone(small_model: GPT2, kind: str) -> None:
    batch = Rows(small_model, kind)
    before = batch.state.integers.clone()
    expected = [best(small_model, text) for text in batch.texts]
    assert decode_step(small_model, batch.cache, batch.state, 2, 40, greedy).tolist() == expected[:2]
    assert torch.equal(batch.state.integers[:, 2:], before[:, 2:])


def test_all_but_three_numbers_is_read_from_the_state(small_model: GPT2, kind: str) -> None:
    """Another token, position or seed there is seen by the next call: nothing is kept elsewhere."""
    batch, other = Rows(small_model, kind), Rows(small_model, kind)
    with torch.inference_mode():
        other.state.token[0] = 5
        other.texts[0][-1] = 5
    assert other.decode(3).tolist() == [best(small_model, t) for t in ([*PROMPTS[0], 5], *batch.texts[1:])]


def test_the_dummy_row_takes_what_padding_writes(small_model: GPT2) -> None:
    """G01 in prefill, with a padding row and padded columns: live slots change, and one of that row, and no other."""
    cache = cache_of("dense")
    cache.k.fill_(7.0)
    prefill_step(small_model, cache, BatchState.empty(ROWS, CPU), padded(cache, CHUNKS), greedy)
    changed = (cache.k != 7).amax((0, 3, 4))  # (rows, slots)
    assert [int(row.sum()) for row in changed] == [7, 16, 1, 0, 1]
    assert bool(changed[ROWS, 0])


def test_the_null_block_takes_what_padding_writes(small_model: GPT2) -> None:
    """The same in pages: one slot of the null block, and not the last slot of the pool."""
    batch = Rows(small_model, "paged")
    batch.cache.k.fill_(7.0)
    prefill_step(small_model, batch.cache, batch.state, padded(batch.cache, CHUNKS), greedy)
    changed = (batch.cache.k != 7).amax((0, 2, 4))  # (blocks, slots)
    assert int(changed.sum()) == 7 + 16 + 1 + 1
    assert changed[0].tolist() == [True] + [False] * 15
    assert not changed[-1].any()


def test_a_row_in_the_middle_of_its_prompt_is_padding_to_a_decode_step(small_model: GPT2, kind: str) -> None:
    """It stands between two rows that go on: nothing of what is its own changes, and their tokens are right."""
    batch, prompt = Rows(small_model, kind), prompts_of([9], seed=3)[0]
    batch.begin(1)
    grow(batch.cache, 7, 9)
    prefill_step(small_model, batch.cache, batch.state, exact([Chunk(1, 0, prompt[:6], False)]), greedy)

    def of_row() -> torch.Tensor:
        return batch.cache.k[:, batch.cache.blocks.owned[1][0] if batch.cache.blocks else 1].clone()

    state, keys = batch.state.at(torch.tensor([1])), of_row()
    expected = [best(small_model, batch.texts[row]) for row in (0, 2)]
    assert batch.decode(3)[::2].tolist() == expected
    assert torch.equal(batch.state.integers[:, 1:2], state.integers)
    assert torch.equal(of_row().view(torch.int32), keys.view(torch.int32))
    tokens = prefill_step(small_model, batch.cache, batch.state, exact([Chunk(1, 6, prompt[6:])]), greedy)
    assert tokens.tolist() == [best(small_model, prompt)]


def test_eager_runner(small_model: GPT2, kind: str) -> None:
    """It calls the steps."""
    batch = Rows(small_model, kind)
    runner = EagerRunner(small_model, batch.cache, batch.state)
    grow(batch.cache, *map(len, batch.texts))
    expected = [best(small_model, text) for text in batch.texts]
    assert runner.decode(3, 40, greedy).tolist() == expected
    tokens = runner.prefill([], CHUNKS, greedy)
    assert tokens.tolist() == batch.state.token[:3].tolist() == [best(small_model, prompt) for prompt in PROMPTS]


def test_a_prefill_runs_as_many_tokens_as_there_are(
    small_model: GPT2, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is padded where nothing is captured."""
    batch, ran = Rows(small_model, kind), []
    forward = GPT2.hidden
    monkeypatch.setattr(
        GPT2, "hidden", lambda self, b, attend: ran.append(len(b.token_ids)) or forward(self, b, attend)
    )
    EagerRunner(small_model, batch.cache, batch.state).prefill([], CHUNKS, greedy)
    assert ran == [7 + 16 + 1]
