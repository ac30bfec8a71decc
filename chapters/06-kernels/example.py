"""What the text of chapter 6 shows: each function prints one block of it, and NUMBERS gives its single numbers."""

from __future__ import annotations

from collections import Counter
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F

from nanobench.report.values import seconds, share
from nanobook.examples import load, print_blocks
from nanobook.running import interpreted
from nanocourse.exercises.chapters import run_folder
from nanoinfer.cache.captured import CapturedPaged
from nanoinfer.cache.none import forward_logits
from nanoinfer.engine.samplers import greedy
from nanoinfer.engine.state import BatchState
from nanoinfer.labs.one_kernel import phases
from nanoinfer.labs.one_kernel.shape import Packed, Shape, pack
from nanoinfer.model.config import PRESETS, ModelConfig
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import random_model

here = Path(__file__).parent
measured, small = load(here / "measured.py"), load(here / "small.py")
races = run_folder(here / "races")
hundred, gaps, nodes, exchanges = measured.hundred, measured.gaps, measured.nodes, measured.exchanges
steps, generated, timed = measured.steps, measured.generated, measured.timed
GPT2_SMALL = PRESETS["gpt2"]
PROGRAMS = 132  # multiprocessors of an H200
MAX_LEN, PAGE, BYTES = 1024, 16, 2
ROWS = (1, 2, 4, 8, 16, 64, 256)


smallest, proof = partial(interpreted, here / "small_kernel.py"), partial(interpreted, here / "running.py")


def intensity() -> None:
    """What a step does with one matrix of gpt2, by rows: bytes that it reads, and operations on each of them."""
    K, N = GPT2_SMALL.n_embd, GPT2_SMALL.inner
    print(f"{'rows':>5}{'weight bytes':>14}{'row bytes':>12}{'operations':>16}{'per byte':>10}")
    for rows in ROWS:
        weights, moved, operations = K * N * BYTES, rows * (K + N) * BYTES, 2 * rows * K * N
        print(f"{rows:>5}{weights:>14,}{moved:>12,}{operations:>16,}{operations / (weights + moved):>10.1f}")


@cache
def tiny() -> GPT2:
    """Two layers, with weights on which a mistake shows."""
    return random_model(ModelConfig(n_layer=2, n_head=4, n_embd=128, n_positions=64, vocab_size=301), 3, std=0.1)


@cache
def forward(head_size: int = 32) -> Any:
    """A `FusedForward`, made on the CPU: it can be asked, and not launched."""
    from nanoinfer.kernels.fused_forward import FusedForward

    made = tiny()
    if head_size != made.config.head_size:
        made = random_model(ModelConfig(2, 2, 2 * head_size, n_positions=64, vocab_size=301), 3)
    cache = CapturedPaged(made.config, 1, 64, 7, PAGE, torch.device("cpu"), made.dtype)
    return FusedForward(made, cache, BatchState.empty(16, torch.device("cpu")))


def kernels() -> None:
    """Launches of a step of `fused`, of a model with two layers, in order."""
    made, names = forward(), list[str]()

    def launch(kernel: Any, grid: tuple[int, ...], *given: Any, **constants: Any) -> None:
        names.append(f"{kernel.fn.__name__}")

    from nanoinfer.kernels import sampling

    with patch.object(made, "launch", launch):
        made.decode(1, 16, sampling.sample)
    layer = names[1:6]
    assert names == [names[0], *layer, *layer, *names[11:]]
    print(f"{names[0]}\n")
    for name, what in zip(layer, DOES, strict=True):
        print(f"{name:16}{what}")
    print("\n" + "\n".join(names[11:]))
    print(f"\n{fused_kernels()} kernels a step for {GPT2_SMALL.n_layer} layers")
    assert len(names) - 2 * len(layer) == fused_kernels() - len(layer) * GPT2_SMALL.n_layer


DOES = (
    "LayerNorm, the matrix of queries, keys and values; keys and values into their page",
    "attention over the pages, and the join of its parts",
    "the projection, added to the stream",
    "LayerNorm, the matrix up, GELU",
    "the matrix down, added to the stream",
)


def fused_kernels() -> int:
    """Kernels of a step of `fused`: the embedding, five a layer, the head, and the choice."""
    return 3 + 5 * GPT2_SMALL.n_layer


def plans() -> None:
    """How a step of one row is cut: programs of each matrix of gpt2, and the bytes of weights that each reads."""
    print(f"{'':12}{'outputs':>8}{'inputs':>8}{'columns a program':>19}{'programs':>10}{'bytes each':>12}{'warps':>7}")
    for name, cut, N, K in _matrices(1):
        programs = -(-N // cut.columns)
        print(f"{name:12}{N:>8}{K:>8}{cut.columns:>19}{programs:>10}{cut.columns * K * BYTES:>12,}{cut.warps:>7}")


def _matrices(rows: int) -> list[tuple[str, Any, int, int]]:
    """Of a layer, at so many rows: name, cut, outputs, inputs."""
    from nanoinfer.kernels.fused_forward import PLANS

    plan, C, inner = next(PLANS[most] for most in PLANS if most >= rows), GPT2_SMALL.n_embd, GPT2_SMALL.inner
    return [
        ("qkv", plan.qkv, 3 * C, C), ("projection", plan.proj, C, C), ("up", plan.up, inner, C),
        ("down", plan.down, C, inner),
    ]  # fmt: skip


def reread() -> None:
    """By rows: what a layer's programs read of weights and of rows, each program counted; and what a step takes."""
    print(f"{'rows':>5}{'weights':>12}{'rows, by all programs':>23}{'contexts':>11}{'fused':>9}{'op by op':>10}")
    for rows in (1, 4, 8, 16):
        weights = sum(N * K * BYTES for _, _, N, K in _matrices(rows))
        again = sum(-(-N // cut.columns) * rows * K * BYTES for _, cut, N, K in _matrices(rows))
        fused, plain = (seconds(measured.way(rows, name)) for name in ("fused", "op by op"))
        print(f"{rows:>5}{weights:>12,}{again:>23,}{seconds(contexts(rows)):>11}{fused:>9}{plain:>10}")


def contexts(rows: int) -> float:
    """Seconds that keys and values of so many texts, each half as long as the limit, take at the speed of a copy."""
    length = 2 * GPT2_SMALL.n_layer * GPT2_SMALL.n_embd * BYTES * (MAX_LEN // 2)
    return float(rows * length / measured.report("-texts").copy_bytes_per_s)


def budget() -> None:
    """A token in one kernel, and what its exchanges would take if each took what one takes alone."""
    for name, taken in (
        ("one kernel, a token", measured.token("one kernel")),
        ("the same, and nobody waits", measured.token("one kernel, nobody waits")),
        (f"{exchanges_a_token()} exchanges of section 3", exchanged()),
    ):
        print(f"{name:32}{seconds(taken):>10}")


def exchanges_a_token() -> int:
    """Waits of the one kernel, the head's left out."""
    from nanoinfer.labs.one_kernel.persistent import WAITS

    return len(WAITS) * GPT2_SMALL.n_layer


def exchanged() -> float:
    """Seconds of these, if each took what an exchange among all programs takes alone."""
    return float(exchanges_a_token() * measured.exchange("words"))


def refused() -> None:
    """What `FusedForward` says of steps."""
    for rows, head_size in ((1, 32), (16, 32), (17, 32), (1, 256)):
        why = forward(head_size).why_not(rows, greedy)
        print(f"{rows:>3} rows, heads of {head_size:<5}{'served' if why is None else why}")


@cache
def found(name: str, layers: int) -> tuple[int, int, list[str]]:
    """A search of small.py, run once."""
    result: tuple[int, int, list[str]] = small.search(*small.grid(getattr(small, name)(), layers))
    return result


def searched() -> None:
    """The three right ways to tell each other: points, and interleavings."""
    print(f"{'':10}{'points':>8}{'interleavings':>24}{'that end right':>24}")
    for name in ("Flags", "Barrier", "Words"):
        points, ended, lost = found(name, 2)
        assert not lost
        print(f"{name:10}{points:>8}{ended:>24,}{'all':>24}")


def no_fence() -> None:
    """The shortest interleaving that loses, without the fence."""
    print(*found("NoFence", 1)[2], sep="\n")


def used_again() -> None:
    """The end of the shortest interleaving that loses, of a barrier that is set back by who comes last."""
    race = races("catalogue").LIES["reset-by-last"]
    lost = race.tell(race.wrong)
    meets = next(at for at, line in enumerate(lost) if line.startswith("1: add counter"))
    print(*(line for line in lost[meets:] if "data" not in line), sep="\n")


def one_word() -> None:
    """A value in its word, and a sum in its: by bits."""
    value, stamp = 0.75, 41
    bits = int(torch.tensor(value).view(torch.int32))
    word = stamp << 32 | bits
    print(f"stamped   0x{word:016x}   {stamp} in the upper half, the bits of {value} in the lower one")
    words = [int(phases.fixed(torch.tensor(each))) + (1 << 56) for each in (0.75, -2.0, 0.5)]
    for count in range(1, 4):
        total = sum(words[:count])
        value = (total - (count << 56)) / 2**30
        print(f"counted   0x{total:016x}   {(total + (1 << 55)) >> 56} have come, and their sum is {value:g}")


@cache
def shape() -> Shape:
    """How gpt2 is cut on a GPU of that many multiprocessors."""
    return Shape.of(GPT2_SMALL, PROGRAMS, MAX_LEN, PAGE, BYTES)


@cache
def packed() -> tuple[Shape, Packed]:
    """The tiny model, cut for few programs."""
    S = Shape.of(tiny().config, 12, 64, PAGE, 4)
    return S, pack(tiny(), S)


def cut() -> None:
    """What a program of gpt2 has of each matrix."""
    S = shape()
    print(f"{S.G} programs: {S.H} heads, {S.P} programs each\n")
    print(f"{'':12}{'cut by':10}{'a program has':>30}{'needs':>26}{'gives':>24}")
    rows = (
        ("qkv", "outputs", f"{S.RQ} of {3 * S.D} outputs of its head", "the stream", f"{S.RQ} stamped words"),
        ("projection", "inputs", f"{S.D} inputs, {S.RJ} of {S.C} outputs", "its head's attention", "a share of each"),
        ("up", "outputs", f"{S.RF} of {GPT2_SMALL.inner} outputs", "the stream", "nothing"),
        ("down", "inputs", f"the same {S.RF} inputs", "its own", f"a share of all {S.C}"),
    )
    for name, by, has, needs, gives in rows:
        print(f"{name:12}{by:10}{has:>30}{needs:>26}{gives:>24}")
    print(f"\n{S.G - -(-GPT2_SMALL.inner // S.RF)} programs have no part of up and down")


def by_hand() -> None:
    """An MLP of the tiny model, whole, and cut by outputs and then by inputs; in float64."""
    layer = tiny().layers[0]
    up, down = layer.c_fc[0].double(), layer.mlp_proj[0].double()
    x = torch.randn(up.shape[0], generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    whole = F.gelu(x @ up, approximate="tanh") @ down
    shares = [F.gelu(x @ u, approximate="tanh") @ d for u, d in zip(up.chunk(4, 1), down.chunk(4, 0), strict=True)]
    print(f"whole            {numbers(whole)}")
    for at, part in enumerate(shares):
        print(f"program {at}        {numbers(part)}")
    print(f"their sum        {numbers(torch.stack(shares).sum(0))}")


def numbers(x: torch.Tensor) -> str:
    """The first six."""
    return " ".join(f"{value:8.4f}" for value in x[:6].tolist()) + "  ..."


def in_parts() -> None:
    """Attention of one head over nine tokens, whole and in three parts: output, maximum, sum of weights."""
    random = torch.Generator().manual_seed(4)
    query, keys, values = (torch.randn(*size, 4, generator=random, dtype=torch.float64) for size in ((), (9,), (9,)))
    out = torch.softmax(keys @ query * 4**-0.5, 0) @ values
    cut = [phases.part(query, keys[at : at + 3], values[at : at + 3]) for at in (0, 3, 6)]
    print(f"{'':10}{'not yet divided':40}{'highest score':>14}{'sum of weights':>16}")
    for at, (part, top, total) in enumerate(cut):
        print(f"{f'part {at}':10}{_four(part):40}{float(top):>14.4f}{float(total):>16.4f}")
    print(f"{'joined':10}{_four(phases.join(cut))}\n{'whole':10}{_four(out)}")


def _four(x: torch.Tensor) -> str:
    return " ".join(f"{value:8.4f}" for value in x.tolist())


def ring() -> None:
    """What a program of gpt2 reads in a layer, in order, and what of it lies in shared memory at once."""
    S = shape()
    tile = S.NC * 2048 * BYTES
    print(f"a tile: 8 rows of {S.NC * 256} numbers, {tile:,} bytes")
    for name, tiles in (("queries, keys, values", S.TQ), ("up", S.TF), ("down", S.TF)):
        print(f"{name:26}{tiles} tiles  {tiles * tile:>8,} bytes")
    print(f"{'projection, not there':26}{'':9}{S.RJ * S.D * BYTES:>8,} bytes")
    print(f"{'in shared memory at once':26}{S.TILES} tiles  {S.TILES * tile:>8,} bytes")
    print(f"{'and of the head':26}{S.STAGES} tiles  {S.STAGES * tile:>8,} bytes")


def folded() -> None:
    """A row of a matrix times LayerNorm of x, as it is written and as the kernel computes it."""
    random = torch.Generator().manual_seed(6)
    x, gain, shift, row = (torch.randn(128, generator=random, dtype=torch.float64) for _ in range(4))
    plain = F.layer_norm(x, (128,), gain, shift) @ row
    deviation = (x.var(unbiased=False) + 1e-5).sqrt()
    product, of_gain, of_shift = (gain * x) @ row, gain @ row, shift @ row
    print(f"LayerNorm(x) . row                    {plain:.6f}")
    print(f"(gain * x) . row                      {product:.6f}   without the mean")
    print(f"mean, deviation                       {float(x.mean()):.6f}  {float(deviation):.6f}")
    print(f"gain . row, shift . row               {of_gain:.6f}  {of_shift:.6f}   of the weights alone")
    print(
        f"put together                          {product / deviation - x.mean() / deviation * of_gain + of_shift:.6f}"
    )


def orders() -> None:
    """The sum of the same shares in three orders, in float32 and in fixed point."""
    values = torch.randn(PROGRAMS, generator=torch.Generator().manual_seed(1)) * 100
    print(f"{'order':12}{'float32':>18}{'fixed point':>26}")
    for name, order in (
        ("as they are", torch.arange(PROGRAMS)), ("backwards", torch.arange(PROGRAMS).flip(0)),
        ("by size", values.abs().argsort()),
    ):  # fmt: skip
        total = torch.tensor(0.0)
        for value in values[order]:
            total = total + value
        print(f"{name:12}{float(total):>18.9f}{int(phases.fixed(values)[order].sum()):>26,}")


def one_resident() -> None:
    """Two programs where one can run at a time."""
    print(*small.search(*small.grid(small.Words(), 1), resident=1)[2], sep="\n")


def phased() -> None:
    """The phases over all programs, token by token, against the model: the largest difference of any logit."""
    S, weights = packed()
    ids = torch.randint(301, (23,), generator=torch.Generator().manual_seed(5))
    expected = forward_logits(tiny(), ids[None])[0]
    cache = [[torch.zeros(0, S.H, S.D)] * 2 for _ in range(S.L)]
    worst, same = 0.0, Counter[bool]()
    for position, token in enumerate(ids):
        x = tiny().wte.weight[token] + tiny().wpe.weight[position]
        for index in range(S.L):
            x, k, v = phases.layer(x, index, weights, *cache[index], S)
            cache[index] = [torch.cat([old, new[None]]) for old, new in zip(cache[index], (k, v), strict=True)]
        logits = tiny().head(F.layer_norm(x, x.shape, weights.gains[-2], weights.gains[-1], S.EPS))
        worst = max(worst, float((logits - expected[position]).abs().max() / expected[position].abs().max()))
        same[bool(logits.argmax() == expected[position].argmax())] += 1
    print(f"{S.G} programs, {len(ids)} tokens: the model's own choice {same[True]} times")
    print(f"logits differ by less than 1e-4 of the largest: {worst < 1e-4}")


NUMBERS = {
    **measured.NUMBERS,
    "half": lambda: str(MAX_LEN // 2),
    "more contexts": lambda: seconds(contexts(16) - contexts(1)),
    "count all": lambda: str(shape().G + 1),
    "count heads": lambda: str(shape().H + 1),
    "exchanged": lambda: share(exchanged() / measured.token("one kernel")),
}


if __name__ == "__main__":
    print_blocks(Path(__file__))
