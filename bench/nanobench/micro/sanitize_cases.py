"""Every kernel once, at small shapes and odd ones: what `python -m bench sanitize` runs under compute-sanitizer.

Each case also compares the result with plain PyTorch. To add a kernel, write a function of the device and put it into
CASES. PLANTED has the overrun that memcheck must catch.

    compute-sanitizer --tool memcheck python -m nanobench.micro.sanitize_cases NAME ...
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from nanoinfer.cache.captured import CapturedPaged
from nanoinfer.engine import sampling
from nanoinfer.engine.state import BatchState
from nanoinfer.engine.step import Chunk, Layout, Prefill, Prompts, decode_step
from nanoinfer.kernels import paged_attention_torch, ragged_attention_torch
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.ops import TorchOps
from nanoinfer.model.weights import random_model

PAGE = 16
VOCAB = 1031  # a prime: no tile ends where it does


def _random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """On the host, where the reference runs too: only the kernels in question run on the GPU, and little else."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def _pages(rows: int, longest: int, size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Pools of keys and of values for so many rows, two heads each, and tables of their pages; the first is of none."""
    width = -(-longest // PAGE)
    tables = 1 + torch.randperm(rows * width, generator=torch.Generator().manual_seed(0)).view(rows, width).int()
    k_pool, v_pool = _random(2, 1 + rows * width, 2, PAGE, size, dtype=dtype)
    return k_pool, v_pool, tables


def _there(device: str, *tensors: Tensor) -> Any:
    """Copies on the GPU, where each has an allocation of its own with padding behind it."""
    return [tensor.to(device, copy=True) for tensor in tensors]


def _same(got: Tensor, expected: Tensor) -> None:
    close = 1e-4 if got.dtype == torch.float32 else 2e-2
    torch.testing.assert_close(got.cpu(), expected, rtol=close, atol=close)


def write(device: str, heads: int = 3, size: int = 16, overrun: int = 0) -> None:
    """Keys and values of five tokens into three pages; heads times size is no power of two."""
    from nanoinfer.kernels import paged_attention as paged_kernels

    k, v = _random(2, 5, heads, size)
    slots = torch.tensor([0, 17, 31, 40, 3 * PAGE - 1 + overrun])  # the last slot, or past it
    k_pool, v_pool = torch.zeros(2, 3, heads, PAGE, size)
    k_there, v_there = _there(device, k_pool, v_pool)
    paged_kernels.write_pages(k.to(device), v.to(device), k_there, v_there, slots.to(device))
    if not overrun:
        paged_attention_torch.write_pages(k, v, k_pool, v_pool, slots)
        torch.testing.assert_close((k_there.cpu(), v_there.cpu()), (k_pool, v_pool))


def attend(device: str, splits: int, size: int = 64, dtype: torch.dtype = torch.float32) -> None:
    """Rows of no token, of one, of a page and one more, and of several tiles."""
    from nanoinfer.kernels import paged_attention as paged_kernels

    lengths = torch.tensor([0, 1, PAGE + 1, 150])
    q, done = _random(4, 2, size, dtype=dtype), torch.zeros(8, dtype=torch.int32)
    arguments = (q, *_pages(4, 150, size, dtype), lengths, done)
    there: Any = (*_there(device, *arguments), splits)
    for _ in range(2):  # the counters must be ready for the next launch
        got = paged_kernels.attend_pages(*there)
    _same(got, paged_attention_torch.attend_pages(*arguments, splits))


def ragged(device: str, prompt: int = 70, size: int = 64, dtype: torch.dtype = torch.float32) -> None:
    """A row that goes on, a prompt, a piece of one after two pages, a row without tokens, and padding."""
    from nanoinfer.kernels import ragged_attention as ragged_kernels

    chunks = [Chunk(2, 149, [0]), Chunk(0, 0, [0] * prompt), Chunk(3, 2 * PAGE + 1, [0] * 17)]
    layout = Layout(rows=5, tokens=prompt + 25, longest=prompt, past=149)
    packed = Prefill(chunks).pack(layout, dummy=4)
    k_pool, v_pool, tables = _pages(4, max(150, prompt), size, dtype)
    tables = torch.cat([tables, torch.zeros_like(tables[:1])])  # the dummy row's: the null block
    q, batch = _random(layout.tokens, 2, size, dtype=dtype), Prompts.of_packed(packed, layout)
    there, work = Prompts.of_packed(packed.to(device), layout), ragged_kernels.work_list(batch).to(device)
    given: Any = (*_there(device, q, k_pool, v_pool, tables), there, work)
    got = ragged_kernels.attend_ragged(*given)
    _same(got, ragged_attention_torch.attend_ragged(q, k_pool, v_pool, tables, batch, None))


def fused(device: str, rows: int, width: int = 96) -> None:
    """One sublayer by the fused kernels and by plain operations; the width is no power of two."""
    from nanoinfer.kernels.fused import FusedOps

    matrices = _random(width, 4 * width), _random(4 * width), _random(4 * width, width)
    given, found = (*_random(2, rows, width), *matrices, *_random(2, width)), []
    for ops, place in ((FusedOps(), device), (TorchOps(), "cpu")):
        x, h, into, biases, out, weight, shift = _there(place, *given)
        update = ops.linear_update(ops.linear_gelu(h, into, biases), out, shift)
        found.append([t.cpu() for t in ops.add_norm(x, update, weight, shift, 1e-5)])
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-3)


def few_rows(device: str, rows: int, streamed: bool = False) -> None:
    """A whole step of chapter 6, rows at different positions, and of chapter 4 by plain PyTorch: the same logits."""
    from nanoinfer.kernels.streamed import fused_forwards

    config, found = ModelConfig(n_layer=2, n_head=3, n_embd=48, n_positions=72, vocab_size=131), []
    for place, plain in (("cpu", True), (device, False)):
        where, each = torch.device(place), -(-config.n_positions // PAGE)
        model = random_model(config, 1, std=0.2, device=where)
        cache = CapturedPaged(config, rows, config.n_positions, rows * each, PAGE, where, torch.float32)
        cache.tables[:rows] = 1 + torch.randperm(rows * each, generator=torch.Generator().manual_seed(0)).view(
            rows, each
        )
        for pool in (cache.k, cache.v):
            pool.copy_(_random(*pool.shape))
        state = BatchState.empty(rows, where)
        state.integers[:, :rows] = torch.tensor([[n, n * 7 % 72, 0, 1, n, 0, n] for n in range(rows)]).t()

        def keep(logits: Tensor, state: BatchState) -> Tensor:
            found.append(logits.cpu().clone())
            return logits.argmax(-1)

        if plain:
            decode_step(model, cache, state, rows, config.n_positions, keep)
        else:
            fused_forwards(model, cache, state)[streamed].decode(rows, config.n_positions, keep)
    torch.testing.assert_close(found[0][:rows], found[1][:rows], rtol=1e-3, atol=1e-3)


def sample(device: str, dtype: torch.dtype = torch.float32) -> None:
    """Greedy rows, and rows of every filter."""
    from nanoinfer.kernels import sampling as sampling_kernels

    logits = _random(6, VOCAB, dtype=dtype)
    rows: Any = BatchState.empty(6, torch.device("cpu")).at(slice(0, 6))
    rows.seed.copy_(torch.arange(6))
    rows.temperature.copy_(torch.tensor([0.0, 1.0, 0.7, 1.0, 0.8, 1.2]))
    rows.top_k.copy_(torch.tensor([0, 0, 50, 0, 50, 1]))
    rows.top_p.copy_(torch.tensor([1.0, 1.0, 1.0, 0.9, 0.95, 1.0]))
    on_device, moved = logits.to(device), BatchState(rows.integers.to(device), rows.floats.to(device))
    tokens = sampling_kernels.sample(on_device, moved).cpu()
    torch.testing.assert_close(tokens, sampling.sample_filtered(logits.float(), rows))


def reduce(device: str, rows: int, parts: int, width: int = 200) -> None:
    """The last of two ranks: what the other would send lies in its inbox, and both inboxes are here."""
    from nanoinfer.kernels.reduce_norm import reduce_norm

    x, other, term = _random(rows, width), _random(1, rows, width)[0], _random(parts, rows, width)
    weight, bias = _random(width), _random(1, width)[0]
    inboxes = [torch.full((2, 2, rows, width), -0.0, device=device) for _ in range(2)]
    inboxes[1][0, 0] = other.to(device)
    lost = torch.zeros(1, dtype=torch.int32, device=device)
    addresses = torch.tensor([each.data_ptr() for each in (*inboxes, lost)], device=device)
    box = SimpleNamespace(addresses=addresses, rank=1, size=2, rows=rows, processors=2)
    got = reduce_norm(x.to(device), term.to(device), weight.to(device), bias.to(device), 1e-5, box, 0)
    expected = TorchOps().add_norm(x, other + term.sum(0), weight, bias, 1e-5)
    torch.testing.assert_close(tuple(each.cpu() for each in got), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(inboxes[0][0, 1].cpu(), term.sum(0), rtol=1e-4, atol=1e-4)


CASES: dict[str, Callable[[str], None]] = {
    "write": write,
    "write large heads": lambda device: write(device, heads=2, size=128),
    "attend": lambda device: attend(device, 1),
    "attend splits": lambda device: attend(device, 4),
    "attend head size 80": lambda device: attend(device, 2, size=80),
    "attend bfloat16": lambda device: attend(device, 4, dtype=torch.bfloat16),
    "ragged": ragged,
    "ragged large tiles": lambda device: ragged(device, prompt=520, size=32),
    "ragged head size 80": lambda device: ragged(device, size=80),
    # Triton's interpreter, in which every case runs first, multiplies no matrices of bfloat16.
    "ragged float16": lambda device: ragged(device, dtype=torch.float16),
    "fused one row": lambda device: fused(device, 1),
    "fused 33 rows": lambda device: fused(device, 33),
    "few rows": lambda device: few_rows(device, 3),
    "streamed 9 rows": lambda device: few_rows(device, 9, streamed=True),
    "streamed 18 rows": lambda device: few_rows(device, 18, streamed=True),
    "reduce one row": lambda device: reduce(device, 1, 4),
    "reduce 9 rows": lambda device: reduce(device, 9, 1),
    "sample": sample,
    "sample bfloat16": lambda device: sample(device, torch.bfloat16),
}
PLANTED: dict[str, Callable[[str], None]] = {"planted overrun": lambda device: write(device, overrun=1)}


def main(names: Sequence[str], device: str = "cuda") -> None:
    """Run the named cases, one after the other; all of CASES for none."""
    for name in names or CASES:
        {**CASES, **PLANTED}[name](device)
        if device == "cuda":
            torch.cuda.synchronize()
        print(f"ran: {name}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
