"""The examples of chapters 1 to 4 do what their pages say: what is shown as right is the engine's, mistakes show."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from types import ModuleType

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from nanocourse.exercises import answers
from nanoinfer import LLM
from nanoinfer.cache.none import NoCache
from nanoinfer.engine.sampling import threshold
from nanoinfer.kernels import paged_attention_torch
from nanoinfer.kernels.available import has_triton
from nanoinfer.model.batch import Batch
from nanoinfer.model.config import PRESETS, ModelConfig
from nanoinfer.model.weights import random_model
from tests.book.chapter_pages import FOLDERS, checkout, module, shown

pytestmark = checkout
triton = pytest.mark.skipif(not has_triton(), reason="there are no wheels of Triton here")


class Keep(NoCache):
    """Keeps what each layer's attention gets and gives. By two plain products, which torch counts on every device."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[torch.Tensor, ...]] = {}

    def attend(self, plan: Batch, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        heads = [plan.padded(x).transpose(1, 2) for x in (q, k, v)]  # (B, H, T, D)
        scores = heads[0] @ heads[1].mT / q.shape[-1] ** 0.5
        later = torch.ones_like(scores, dtype=torch.bool).triu(1)
        y = plan.packed((scores.masked_fill(later, -torch.inf).softmax(-1) @ heads[2]).transpose(1, 2))
        self.seen[layer] = q, k, v, y
        return y


class TestChapter1:
    @pytest.fixture
    def running(self) -> ModuleType:
        return module(1, "running")

    def test_attention_that_is_shown_is_the_models(self, running: ModuleType) -> None:
        cache = Keep()
        with torch.inference_mode():
            running.model()(running.packed(running.rows()[0]), cache)
        _, _, v, y = cache.seen[running.LAYER]
        weights = running.watched().weights[running.HEAD]  # (T, T)
        assert torch.allclose(weights @ v[:, running.HEAD], y[:, running.HEAD])
        assert float(weights.triu(1).abs().max()) == 0

    def test_candidates_are_the_samplers_own(self, running: ModuleType) -> None:
        scores = running.logits(running.batch()[0])[1:2, 1] / running.TEMPERATURE
        lowest = threshold(scores, torch.tensor([running.TOP_K]), torch.tensor([running.TOP_P]))
        kept = {int(i) for i in (scores >= lowest)[0].nonzero()[:, 0]}
        assert {line.token_id for line in running.candidates() if line.kept} == kept

    def test_every_mistake_changes_the_text_and_leaves_no_trace(self, running: ModuleType) -> None:
        right = running.greedy_ids("The fox", 6)
        wrong = [
            {"reads": running.NoMask()}, {"reads": running.OwnValue()}, {"reads": running.HiddenSelf()},
            {"ops": running.StreamNormalised()}, {"positions": lambda T: torch.zeros(T, dtype=torch.int64)},
            {"positions": lambda T: torch.arange(1, T + 1)}, {"seen": 1},
        ]  # fmt: skip
        for mistake in wrong:
            assert running.greedy_ids("The fox", 6, **mistake) != right, mistake
        assert running.greedy_ids("The fox", 6) == right

    def test_operations_are_what_torch_counts_and_the_exercise_has(self, running: ModuleType) -> None:
        cost, config = module(1, "cost"), ModelConfig(n_layer=2, n_head=2, n_embd=16, n_positions=32, vocab_size=128)
        batch = running.packed(*([*range(row, row + 20)] for row in range(3)))
        with FlopCounterMode(display=False) as counter, torch.inference_mode():
            random_model(config, seed=0)(batch, Keep())
        assert counter.get_total_flops() == cost.step_flops(config, 20, 3)
        theirs = answers.reference("1.7")({"n_layer": 2, "n_embd": 16, "vocab_size": 128}, 20, 2)
        assert (theirs["flops"], theirs["launches"]) == (cost.step_flops(config, 20), cost.operations(config))


class TestChapter2:
    @pytest.fixture
    def running(self) -> ModuleType:
        return module(2, "running")

    @pytest.mark.parametrize("both_ways", [False, True])
    def test_the_past_does_not_change(self, running: ModuleType, both_ways: bool) -> None:
        """Nothing old in a causal model; where all read all, everything from layer 1 on."""
        ids = running.text_ids(0, 1)
        before, after = (running.states(text, both_ways) for text in (ids[:-1], ids))
        for layer, (old, new) in enumerate(zip(before, after, strict=True)):
            for one, other in zip(old, new, strict=True):
                same = torch.allclose(one, other[:-1], atol=1e-9)
                assert same == (not both_ways or layer == 0), layer

    @pytest.mark.parametrize("hidden, own", [(False, False), (True, False), (False, True), (True, True)])
    def test_left_padding_needs_both(self, running: ModuleType, hidden: bool, own: bool) -> None:
        padded = running.left_padded(hidden, own)
        assert torch.allclose(padded, running.one.probs(1), atol=1e-4) == (hidden and own)

    def test_mistakes_change_the_row_that_they_are_shown_on(self, running: ModuleType) -> None:
        """But for the one that the text calls invisible; and none leaves a trace."""
        right = running.continued()
        for exercise, name in (
            ("2.2", "column-is-slot"), ("2.2", "offset-counted-twice"), ("2.3", "triangle-at-the-top-left"),
            ("2.3", "itself-hidden"),
        ):  # fmt: skip
            assert running.continued(id=exercise, name=name)[0] != right[0], name
        assert running.continued(id="2.4", name="padded-length") == right
        assert running.continued() == right

    def test_bytes_are_the_engines(self) -> None:
        for name in ("gpt2", "gpt2-xl"):
            expected = 512 * 1024 * PRESETS[name].kv_numbers * 2
            assert module(2, "cost").cache_bytes(PRESETS[name], 512, 1024) == expected


KERNELS = """
import sys
from pathlib import Path
import torch
from nanobook.examples import load
from nanoinfer.kernels import paged_attention_torch
small = load(Path(sys.argv[1]) / "small_kernel.py")
generator = torch.Generator().manual_seed(0)
for lengths, H, D, block, scale in (([7, 4, 0, 9], 2, 16, 4, 5), ([33, 1], 1, 32, 16, 200)):
    pools = torch.full((2, 14, H, block, D), float("nan"))
    width = -(-max(lengths) // block) + 1
    order = (torch.randperm(13, generator=generator) + 1).tolist()
    tables = torch.zeros(len(lengths), width, dtype=torch.int32)
    for row, length in enumerate(lengths):
        for at in range(-(-length // block)):
            tables[row, at] = order.pop()
            real = min(block, length - at * block)
            pools[:, tables[row, at], :, :real] = torch.randn(2, H, real, D, generator=generator)
    q = torch.randn(len(lengths), H, D, generator=generator) * scale
    asked = (q, *pools, tables, torch.tensor(lengths))
    out, right = small.attend(*asked), paged_attention_torch.attend_pages(*asked, tables)
    assert bool(out.isfinite().all()) and torch.allclose(out, right, atol=1e-5), (out - right).abs().max()
    wrong = small.attend(q, *pools, tables.flip(0), torch.tensor(lengths))
    assert not torch.allclose(wrong, right, atol=1e-2)
print("right")
"""


@triton
class TestKernelsOfChapter3:
    def test_they_are_right_in_the_interpreter(self) -> None:
        environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-W", "ignore", "-c", KERNELS, str(FOLDERS[3])]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.stdout == "right\n", done.stderr[-2000:]

    def test_the_smallest_prints_what_a_softmax_gives(self) -> None:
        for line in shown(3, "smallest")[1:]:
            *_, first, second, third, fourth = line.split()
            assert (first, second) == (third, fourth)

    @pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="interpreted kernels cannot be compiled")
    def test_they_compile(self) -> None:
        from nanocourse.exercises.kernels import compiled

        attend, types = module(3, "small_kernel").attend_kernel, module(3, "launch_attend").TYPES
        assert compiled(attend, types, {"H": 12, "D": 64, "PAGE": 16}) == "it compiles"

    @pytest.mark.gpu
    def test_small_kernel_equals_the_reference_on_a_gpu(self) -> None:
        generator = torch.Generator().manual_seed(0)
        pools = torch.randn(2, 14, 2, 16, 64, generator=generator).cuda()
        tables = (torch.randperm(13, generator=generator) + 1)[:12].view(3, 4).int().cuda()
        q, lengths = torch.randn(3, 2, 64, generator=generator).cuda(), torch.tensor([64, 33, 1]).cuda()
        out = module(3, "small_kernel").attend(q, *pools, tables, lengths)
        right = paged_attention_torch.attend_pages(q, *pools, tables, lengths, tables)
        torch.testing.assert_close(out, right, rtol=1e-4, atol=1e-4)


class TestChapter4:
    def test_the_right_texts_are_the_oracles(self) -> None:
        running = module(4, "running")
        oracle = running.told(LLM(running.model(), engine="naive"))
        assert module(4).right()[1] == oracle
        assert running.told(running.llm("dense-graph", read_multiple=16)) == oracle

    def test_a_new_tensor_is_not_read(self) -> None:
        """A replay reads the old one, which has the answer of the step before; what is copied into it is read."""
        rows = [re.findall(r'"([^"]+)"', line) for line in shown(4, "addresses")[1:]]
        assert all(fed == copied != read for fed, read, _, copied, _ in rows)
        assert [read for _, read, _, _, _ in rows[1:]] == [answer for _, _, answer, _, _ in rows[:-1]]

    def test_a_result_that_is_kept_changes(self) -> None:
        (first, copied), (second, still) = (re.findall(r'"([^"]+)"', line) for line in shown(4, "kept"))
        assert first == copied == still != second

    def test_a_padding_row_writes_to_the_null_block(self) -> None:
        """At position 0; live rows write to blocks of their own."""
        places = [re.findall(r'"[^"]*" +(\d+) +(\d+)', line)[0] for line in shown(4, "nobody")[1:]]
        assert places.pop() == ("0", "0")
        assert all(int(slot) >= 16 for _, slot in places)
