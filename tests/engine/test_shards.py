"""One rank's part of a model: what it holds, that the parts make the whole, and the samplers that join them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nanoinfer.cache.captured import CapturedDense
from nanoinfer.cache.none import forward_logits
from nanoinfer.engine import samplers
from nanoinfer.engine.samplers import SAMPLERS
from nanoinfer.engine.state import BatchState
from nanoinfer.model.config import PRESETS
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.parallel.joined import JoinedSamplers
from nanoinfer.parallel.leader import RankEngine
from nanoinfer.parallel.rank import Rank
from nanoinfer.parallel.shard import Shard
from nanoinfer.parallel.sharded import PartOf, ShardedGPT2
from tests.conftest import UNEVEN, prompts_of
from tests.engine.fake_graphed import Rerun
from tests.engine.threaded_ranks import on_ranks

CPU = torch.device("cpu")


def part(group: Any, whole_folder: Path) -> ShardedGPT2:
    model = PartOf(group).load(whole_folder, CPU, torch.float32)
    assert isinstance(model, ShardedGPT2)
    return model


def test_uneven_heads_of_gpt2_xl() -> None:
    """T04: 25 heads on 2 ranks. The rest divides, and is cut where matrix kernels are fast."""
    parts = [Shard(rank, 2).config(PRESETS["gpt2-xl"]) for rank in range(2)]
    assert [(one.n_head, one.inner) for one in parts] == [(13, 3200), (12, 3200)]
    assert Shard(0, 2).vocab(PRESETS["gpt2-xl"]) == slice(0, 25152)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_the_ranks_together_are_the_model(whole: GPT2, whole_folder: Path, size: int) -> None:
    """T01 to T03: logits of every token, on every rank, by two sums a layer; the same bits everywhere."""
    tokens = torch.tensor(prompts_of([20, 20], UNEVEN.vocab_size))

    def logits(group: Any) -> tuple[Tensor, int]:
        return forward_logits(part(group, whole_folder), tokens), group.sums

    parts = on_ranks(size, logits)
    for got, sums in parts:
        torch.testing.assert_close(got, forward_logits(whole, tokens), rtol=0, atol=1e-4)
        assert torch.equal(got, parts[0][0])
        assert sums == 2 * UNEVEN.n_layer


def test_a_rank_reads_its_slices_alone(monkeypatch: pytest.MonkeyPatch, whole_folder: Path) -> None:
    """Of a tensor that is cut, a file gives a part; nobody holds the whole of it."""
    read: dict[str, int] = {}
    plain = PartOf.cut

    def cut(self: PartOf, name: str, tensor: Any) -> Tensor:
        class Spied:
            def __getitem__(self, index: Any) -> Tensor:
                piece: Tensor = tensor[index]
                read[name] = read.get(name, 0) + piece.numel()
                return piece

        assert not isinstance(tensor, Tensor)
        return plain(self, name, Spied())

    monkeypatch.setattr(PartOf, "cut", cut)
    on_ranks(2, lambda group: part(group, whole_folder))
    for name, shape in UNEVEN.parameter_shapes().items():
        if name.endswith(("c_attn.weight", "c_fc.weight", "c_proj.weight")):
            assert read[name] == torch.Size(shape).numel()  # by both ranks together


def joined(group: Any, logits: Tensor, choose: Callable[[JoinedSamplers, Tensor, BatchState], Tensor]) -> Tensor:
    """What a rank chooses that was given its part of these logits (B, V)."""
    model = ShardedGPT2(UNEVEN, Shard(group.rank, group.size), group, CPU, torch.float32)
    own = logits[:, model.ids]
    own = torch.nn.functional.pad(own, (0, model.width - own.shape[1]), value=-torch.inf)
    return choose(JoinedSamplers(model, SAMPLERS), own, rows_of(len(logits)))


def rows_of(count: int, **columns: float) -> BatchState:
    rows = BatchState.empty(count, CPU).at(slice(0, count))
    rows.seed.copy_(torch.arange(count) * 7919 + 1)
    rows.step.copy_(torch.arange(count))
    rows.top_p.fill_(1.0)
    for name, value in columns.items():
        getattr(rows, name).fill_(value)
    return rows


@pytest.mark.parametrize("size", [2, 3, 4])
def test_no_padding_wins_over_negative_logits(size: int) -> None:
    """T05: the table of embeddings has rows of zeros behind the last id, and a rank has fewer ids than columns."""
    best = torch.tensor([[UNEVEN.vocab_size - 1]])

    def choose(group: Any) -> Tensor:
        model = ShardedGPT2(UNEVEN, Shard(group.rank, group.size), group, CPU, torch.float32)
        with torch.no_grad():
            model.wte.weight.zero_()
            model.wte.weight[: UNEVEN.vocab_size] = -2.0
            model.wte.weight[best[0]] = -1.0
            logits = model.own_logits(torch.ones(1, UNEVEN.n_embd))
            assert bool((model.head(torch.ones(1, UNEVEN.n_embd)) < 0).all())
        joined = JoinedSamplers(model, SAMPLERS)
        return torch.stack([joined.greedy(logits, rows_of(1)), joined.filtered(logits, rows_of(1))])

    for chosen in on_ranks(size, choose):
        assert torch.equal(chosen, best.expand(2, 1))


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("kind", ["greedy", "unfiltered", "filtered"])
def test_samplers_choose_as_on_one_device(kind: str, size: int) -> None:
    """Noise goes by the ids of the whole vocabulary; rows of all kinds side by side. Ties go to the lowest id."""
    logits = (torch.randn(64, UNEVEN.vocab_size, generator=torch.Generator().manual_seed(1)) * 3 - 40).round()

    def rows() -> BatchState:
        rows = rows_of(64, temperature=0.0 if kind == "greedy" else 0.9, top_k=9 if kind == "filtered" else 0)
        rows.temperature[::5] = 0
        return rows

    expected = getattr(SAMPLERS, kind)(logits, rows())
    assert kind == "greedy" or not torch.equal(expected, samplers.greedy(logits, rows()))
    for got in on_ranks(size, lambda group: joined(group, logits, lambda s, own, _: getattr(s, kind)(own, rows()))):
        assert torch.equal(got, expected)


class Refusing(Rerun):
    """A recorder of which one capture fails."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def record(self, step: Any) -> Any:
        if step.args[3] == self.rows:
            raise RuntimeError("no memory")
        return super().record(step)


@pytest.mark.filterwarnings("ignore:decode of 2 rows runs without a graph")
def test_ranks_agree_on_what_is_captured(whole_folder: Path) -> None:
    """One rank's capture fails: that step runs eagerly on all of them, and the others are replayed on all."""

    def captured(group: Any) -> tuple[set[int], set[int], int]:
        model = part(group, whole_folder)
        cache = CapturedDense(model.config, 4, 32, CPU, torch.float32)
        rank, asked = Rank([]), list[bool]()
        rank.group, plain = group, rank.agree

        def agree(ok: bool) -> bool:
            asked.append(ok)
            return plain(ok)

        rank.agree = agree  # type: ignore[method-assign]
        engine = RankEngine(
            model, cache, 4, rank=rank, recorder=Refusing(2 * group.rank), max_rows=4, budget=32,
            samplers=JoinedSamplers(model, SAMPLERS).samplers(4),
        )  # fmt: skip
        engine.shapes = []
        engine.warm_up([engine.samplers.greedy])
        return {key.rows for key in engine.graphs}, {key.rows for key in engine.failed}, len(asked)

    assert on_ranks(2, captured) == [({1, 4}, {2}, 2 * 3)] * 2  # after each first run, and after each capture
