"""Exercise 1.5: wrong answers and where they come from, correct variants, mutants that are none, an edition."""

from __future__ import annotations

import torch
from torch import Tensor

from nanocourse.exercises.exercise import Edition, Right, Wrong
from nanoinfer.engine.sampling import random_bits


def one_generator(seed: Tensor, step: Tensor, vocab_size: int) -> Tensor:
    """One random generator, seeded once, serves the whole batch."""
    generator = torch.Generator().manual_seed(int(seed[0]))
    u = torch.rand(len(seed), vocab_size, generator=generator)
    return -(-u.clamp(min=2.0**-32).log()).log()


def generator_a_row(seed: Tensor, step: Tensor, vocab_size: int) -> Tensor:
    """A generator a row, seeded with the row's seed, is a row's own noise."""
    rows = [torch.rand(vocab_size, generator=torch.Generator().manual_seed(int(one))) for one in seed]
    return -(-torch.stack(rows).clamp(min=2.0**-32).log()).log()


def row_in_the_hash(seed: Tensor, step: Tensor, vocab_size: int) -> Tensor:
    """Every cell of the table needs a number of its own, so the cells are counted through."""
    cells = torch.arange(len(seed) * vocab_size, device=seed.device).view(len(seed), vocab_size)
    u = ((random_bits(seed[:, None], step[:, None], cells) | 1).float() * 2.0**-32).clamp(max=1 - 2.0**-24)
    return -(-torch.log1p(-u)).log()


BITS = "random_bits(seed[:, None], step[:, None], ids)"
EXPONENTIAL = "torch.where(u < 2.0**-10, u + 0.5 * u * u, -torch.log(1 - u))"
WRONG = (
    Wrong(one_generator, "vllm-project/vllm#51226: a seed that holds only while its neighbours have seeds too"),
    Wrong(generator_a_row, "warpfront/hipfire#627, sgl-project/sglang-omni#419: the same stream at every step"),
    Wrong.patch(
        "step-ignored", "A row's noise is drawn once, from its seed.", BITS,
        "random_bits(seed[:, None], torch.zeros_like(step)[:, None], ids)", "NVIDIA/Megatron-LM#5697: a frozen offset",
    ),
    Wrong.patch(
        "first-rows-seed", "The batch has one seed, that of its first row.", BITS,
        "random_bits(seed[:1, None], step[:, None], ids)", "Blaizzy/mlx-vlm#1353",
    ),
    Wrong.patch(
        "first-rows-step", "All rows of a batch are at the same step.", BITS,
        "random_bits(seed[:, None], step[:1, None], ids)",
        "openvinotoolkit/openvino.genai#3721: one engine where each request needs its own",
    ),
    Wrong(row_in_the_hash, "nod-ai/AMD-SHARK-Studio#1889: another batch size, other numbers"),
    Wrong.patch(
        "seed-plus-step", "Seed and step may be added: what counts is that the sum changes.", BITS,
        "random_bits((seed + step)[:, None], torch.zeros_like(step)[:, None], ids)",
        "tugot17/tokenomics#10: seeds that follow each other; seed 7 at step 1 is then seed 8 at step 0",
    ),
    Wrong.patch(
        "short-seed", "32 bits of a seed are enough.", BITS,
        "random_bits(seed[:, None] & 0xFFFFFFFF, step[:, None], ids)", "numpy/numpy#4676",
    ),
    Wrong.patch(
        "one-logarithm", "One logarithm makes the noise; the second is a slip of the pen.", "-exponential.log()",
        "exponential", "openai/baselines#172",
    ),
    Wrong.patch(
        "sign", "The sign of the noise does not matter, since it is random.", "-exponential.log()",
        "exponential.log()", "chainer/chainerrl#104",
    ),
    Wrong.patch(
        "uniform", "Any noise will do, as long as it is random.", "-exponential.log()", "u",
        "EderSantana/gumbel#4: is it right to draw from a uniform distribution?",
    ),
    Wrong.patch(
        "plain-logarithm", "float32 is precise enough for 1 - u.", EXPONENTIAL, "-torch.log(1 - u)",
        "what torch.log1p is there for, by its documentation",
    ),
    Wrong.patch(
        "reaches-zero", "A random number is never exactly 0.", "((bits | 1).float()", "(bits.float()",
        "chainer/chainer#1839, HKUDS/SSLRec#26",
    ),
    Wrong.patch(
        "reaches-one", "A fraction below 1 stays below 1 in float32.", ".clamp(max=1 - 2.0**-24)", "",
        "pytorch/pytorch#4517: a uniform number at the end of its range",
    ),
    Wrong.patch(
        "steps-repeat", "Steps are counted anew after sixteen.",
        "step[:, None]",
        "step[:, None] % 16",
        "written to pass all checks that there were, and it did",
    ),
    Wrong.patch(
        "ids-as-bytes", "Ids fit in a byte.",
        "ids = torch.arange(vocab_size, device=seed.device)",
        "ids = torch.arange(vocab_size, device=seed.device).to(torch.uint8).long()",
        "written to pass all checks that there were, and it did",
    ),
    Wrong.patch(
        "ids-in-two-bytes", "Ids fit in 16 bits.",
        "ids = torch.arange(vocab_size, device=seed.device)",
        "ids = torch.arange(vocab_size, device=seed.device) % 2**16",
        "written to pass all checks that there were, and it did",
    ),
    Wrong.patch(
        "sixty-two-bits", "A seed is below 2^62.",
        '    ids = torch.arange',
        '    seed = seed % 2**62\n    ids = torch.arange',
        "written to pass all checks that there were, and it did", unnamed="short-seed",
    ),
    Wrong.patch(
        "torch-seeded", "Setting torch's seed does no harm.",
        '    ids = torch.arange',
        '    torch.manual_seed(int(seed[0]))\n    ids = torch.arange',
        "written to pass all checks that there were, and it did", unnamed="short-seed",
    ),
)  # fmt: skip


def id_by_id(seed: Tensor, step: Tensor, vocab_size: int) -> Tensor:
    """Loops over rows and ids, and Python's own logarithms."""
    from math import log, log1p

    ids, found = torch.arange(vocab_size, device=seed.device), []
    for row in range(len(seed)):
        bits = random_bits(seed[row], step[row], ids).tolist()
        found.append([-log(-log1p(-min(float(one | 1) / 2.0**32, 1 - 2.0**-24))) for one in bits])
    return torch.tensor(found, device=seed.device)


def by_log1p(seed: Tensor, step: Tensor, vocab_size: int) -> Tensor:
    """log1p, which keeps a tiny u, in float32."""
    ids = torch.arange(vocab_size, device=seed.device).expand(len(seed), -1)
    u = ((random_bits(seed.unsqueeze(1), step.unsqueeze(1), ids) | 1) / 2**32).clamp_max(1 - 2.0**-24)
    return -torch.log(-torch.log1p(-u))


def in_double(seed: Tensor, step: Tensor, vocab_size: int) -> Tensor:
    """float64, in place, transposed: ids by rows."""
    ids = torch.arange(vocab_size, device=seed.device)[:, None]
    u = random_bits(seed[None], step[None], ids).bitwise_or_(1).double().mul_(2.0**-32).clamp_(max=1 - 2.0**-24)
    return u.neg_().log1p_().neg_().log_().neg_().T.float()


RIGHT = (Right(id_by_id), Right(by_log1p), Right(in_double))

_WHERE = "exponential = torch.where(u < 2.0 ** (-10), u + 0.5 * u * u, -torch.log(1 - u))"
EQUIVALENT = {
    _WHERE.replace("<", "<="): "at u = 2^-10 itself both branches give the same to rounding",
    _WHERE.replace("-10", "-9"): "up to 2^-9 the series is off by less than u^2 / 3, which float32 hardly holds",
}


def gumbel(seed: Tensor, step: Tensor, ids: Tensor) -> Tensor:
    """Standard Gumbel noise of certain ids: (B, K) float32.

    seed, step (B,) int64: of each row. ids (K,) int64: token ids, different ones in any order; column j of the result
    is the noise of ids[j]. It depends on the row's seed and step and on the id alone.
    """
    bits = random_bits(seed[:, None], step[:, None], ids)
    u = ((bits | 1).float() * 2.0**-32).clamp(max=1 - 2.0**-24)
    return -torch.log(-torch.log1p(-u))


def _ids_backwards(seed: Tensor, step: Tensor, vocab_size: int) -> tuple[Tensor, Tensor, Tensor]:
    return seed, step, torch.arange(vocab_size, device=seed.device).flip(0)


def _size_of_ids(seed: Tensor, step: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, int]:
    return seed, step, len(ids)


EDITIONS = (
    Edition(
        "ids-given", "the noise is wanted of certain ids, in the order in which they are given", gumbel,
        args=_ids_backwards, back=_size_of_ids, result=lambda noise, *args: noise.flip(-1), axes=("row", "column"),
    ),
)  # fmt: skip
