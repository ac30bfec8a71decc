"""Exercise 3.6: decode attention over a row's pages, a page at a time, as a Triton kernel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nanocourse.exercises import Call, Case, Check, Function, Kernel, Places, Spec, call
from nanoinfer.kernels import paged_attention_torch

if TYPE_CHECKING:  # Triton is not imported here: there are no wheels of it for macOS and Windows
    import triton.language as tl

LAUNCHER = Path(__file__).parents[1] / "launch_attend.py"


def attend_kernel(q, k_pool, v_pool, tables, lengths, out, width, H: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr):
    """Program (b, h) attends from row b's query, head h, to the first lengths[b] tokens of row b's pages.

    Pointers: q and out to (B, H, D); k_pool and v_pool to (pages, H, PAGE, D), of any floating types; tables to
    (B, width) int32, the pages of each row in the order of its text, and entries behind its text may name any page;
    lengths to (B,) int64. A pointer is read by tl.load, not by an index. D and PAGE are powers of two. Slots that no
    token was written to may hold anything, NaN too. A pool may hold more than 2^31 numbers. Scores are products over
    sqrt(D). Arithmetic is in float32. A row of length 0 gives zeros.
    """
    row, head = tl.program_id(0), tl.program_id(1)
    length = tl.load(lengths + row)
    d, place = tl.arange(0, D), tl.arange(0, PAGE)
    query = tl.load(q + (row * H + head) * D + d).to(tl.float32) * D**-0.5  # (D,)
    maximum, total, acc = -float("inf"), 0.0, tl.zeros((D,), dtype=tl.float32)
    for start in range(0, length, PAGE):
        block = tl.load(tables + row * width + start // PAGE).to(tl.int64)
        at = ((block * H + head) * PAGE + place)[:, None] * D + d[None, :]  # (PAGE, D)
        inside = start + place < length  # (PAGE,)
        keys = tl.load(k_pool + at, mask=inside[:, None], other=0.0).to(tl.float32)
        values = tl.load(v_pool + at, mask=inside[:, None], other=0.0).to(tl.float32)
        scores = tl.where(inside, tl.sum(keys * query[None, :], 1), -float("inf"))  # (PAGE,)
        higher = tl.maximum(maximum, tl.max(scores, 0))
        weights, rescale = tl.exp(scores - higher), tl.exp(maximum - higher)
        acc = acc * rescale + tl.sum(values * weights[:, None], 0)
        total = total * rescale + tl.sum(weights, 0)
        maximum = higher
    tl.store(out + (row * H + head) * D + d, acc / tl.maximum(total, 1e-30))


def attend(q: Tensor, k_pool: Tensor, v_pool: Tensor, tables: Tensor, lengths: Tensor) -> Tensor:
    """What a launch of the kernel must give, by the reference in PyTorch: q (B, H, D) -> (B, H, D)."""
    return paged_attention_torch.attend_pages(q, k_pool, v_pool, tables, lengths, tables)


def swap(mine: Function) -> Places:
    """Every decode step's attention launches it, unsplit. It comes bound to its launcher, a function like `attend`."""

    def attend_pages(
        q: Tensor, k: Tensor, v: Tensor, tables: Tensor, lengths: Tensor, done: Any, splits: int = 1
    ) -> Any:
        return mine(q, k, v, tables, lengths)

    return {"nanoinfer.kernels.paged_attention:attend_pages": attend_pages}


def _example() -> Call:
    pool = torch.arange(1.0, 9.0).view(4, 1, 2, 1)
    return call(torch.zeros(1, 1, 1), pool, pool * 10, torch.tensor([[2, 3]], dtype=torch.int32), torch.tensor([3]))


EXERCISE = Spec(
    reference=attend_kernel,
    lines=18,
    example=_example,
    section="A page at a time",
    axes=("row", "head", "channel"),
    tolerance=2e-4,
    imports=("import triton", "import triton.language as tl"),
    swap=swap,
    kernel=Kernel(attend, LAUNCHER),
)


def _case(
    case: Case, lengths: list[int], heads: int, block: int, width: int, *, size: int = 0, free: float = torch.nan
) -> Call:
    """Rows of these lengths, in blocks in no order. No slot without a token is clean, and unused entries name blocks.

    Free blocks hold NaN, or `free`. Ends of last blocks hold, by row, NaN in the keys, in the values, or neither.
    """
    size = size or 1 << case.size("doublings of the head size", 0, 2)
    B, used = len(lengths), [-(-length // block) for length in lengths]
    dirt = [((torch.nan, 7.0), (3.0, torch.nan), (4.0, -5.0))[at] for at in case.permutation("dirt", 3).tolist()]
    blocks = 2 + B * width
    order = (case.permutation("blocks", blocks - 1) + 1).tolist()
    pools = torch.full((2, blocks, heads, block, size), free)
    tables = torch.tensor([order.pop() for _ in range(B * width)], dtype=torch.int32).view(B, width)
    for row, length in enumerate(lengths):
        contents = case.floats(f"row {row}", 2, heads, used[row] * block, size) + 0.3 * row
        for at in range(used[row]):
            real = min(block, length - at * block)
            pools[:, tables[row, at]] = torch.tensor(dirt[row % 3])[:, None, None, None]
            pools[:, tables[row, at], :, :real] = contents[:, :, at * block : at * block + real]
    q = case.floats("q", B, heads, size) * 2
    return call(q, pools[0].clone(), pools[1].clone(), tables, torch.tensor(lengths))


def around_a_page(case: Case) -> Call:
    """Texts that end just before, at and just behind the end of a page: every token counts, and no slot behind them."""
    block, pages = 2 << case.size("doublings of the block", 0, 1), case.size("pages", 1, 2)
    lengths = [block * pages + more for more in (-1, 0, 1)]
    lengths = [lengths[at] for at in case.permutation("order", 3).tolist()]
    return _case(case, [*lengths, block * pages - 2 or 1][: case.size("rows", 1, 8)], 1, block, pages + 2)


def rows_and_heads(case: Case) -> Call:
    """Each program reads its own row's pages and its own head's part of them."""
    rows, heads = case.size("rows", 1, 2), case.size("heads", 1, 2)
    return _case(case, [4] * rows, heads, 4, 1, size=case.choice("head size", (4, 16)))


def large_scores(case: Case) -> Call:
    """Scores in the hundreds, of either sign, scores that fall from page to page, and one huge key in the last slot."""
    rows, n = case.size("rows", 1, 4), 4
    asked = _case(case, [n] * rows, 1, 2, 2, free=1.0)
    q, k_pool, _, tables, _ = asked.args
    q.abs_().add_(1)
    kinds = ([200.0] * n, [-200.0] * n, [60.0, 60.0, -60.0, -60.0], [0.0, 0.0, 0.0, 300.0])
    for row, kind in enumerate(case.sample("kinds", kinds, rows)):
        for token, level in enumerate(kind):
            k_pool[tables[row, token // 2], 0, token % 2] += 2 * level / q[row, 0].square().sum() * q[row, 0]
    return asked


def short_and_full_rows(case: Case) -> Call:
    """A row of length 0 gives zeros, one of length 1 its only value, and one that fills its table all tokens."""
    block, width = 2 << case.size("doublings of the block", 0, 1), case.size("width", 1, 2)
    lengths = [0, 1, block * width]
    return _case(case, [lengths[at] for at in case.permutation("order", 3).tolist()], 1, block, width)


def half_precision(case: Case) -> Call:
    """Scores and values near 60,000; float16 ends at 65,504. What it stores is multiplied and summed in float32."""
    pages, size, sign = case.size("pages", 1, 2), 16, case.choice("sign", (1.0, -1.0))
    q, k_pool, v_pool, tables, lengths = _case(case, [4 * pages], 1, 4, 2, size=size).args
    q[:], q[..., 0] = 128 * sign, 4.0  # times 125, 15 times, over sqrt(16): 60,000, exact in float32
    used = tables[0, :pages]
    k_pool[used] = 125.0
    k_pool[used, :, :, 0] = case.ints("levels", 0, 3, pages, 1, 4).float()
    v_pool[used] = 60_000.0 - 4_000 * case.floats("values", pages, 1, 4, size).abs()
    v_pool *= case.ints("signs", 0, 1, size) * 2 - 1
    return call(case.turn((q.half(), q)), k_pool.half(), v_pool.half(), tables, lengths)


KINDS = (torch.bfloat16, torch.float16)


def _narrow(case: Case, kind: torch.dtype) -> Call:
    """A query and values in 16 bits, and float32 keys: two scores that tie as long as the query is not rounded."""
    q, keys = torch.zeros(1, 1, 8), torch.zeros(2, 1, 2, 8)
    q[..., 0], q[..., 1] = (250.0, 225.0) if kind == torch.bfloat16 else (1000.0, 900.0)
    keys[1, 0, 1, 0], keys[1, 0, 1, 1] = 9.0, -10.0
    values = torch.zeros(2, 1, 2, 8)
    values[1, 0, 1] = case.ints("values", 1, 4, 8) * 2.0
    return call(q.to(kind), keys, values.to(kind), torch.ones(1, 1).int(), torch.tensor([2]))


def _narrow_values(case: Case) -> Call:
    """Values in 16 bits, and float32 beside them: a weight is not rounded to what it is multiplied with."""
    q, keys, values = torch.zeros(1, 1, 2), torch.zeros(2, 1, 2, 2), torch.zeros(2, 1, 2, 2)
    q[..., 0], keys[1, 0, 1, 0] = 2.0**0.5, -1.0  # scores 0 and -1
    values[1, 0, 1] = 1000.0 * case.ints("values", 1, 4, 2)
    return call(q, keys, values.bfloat16(), torch.ones(1, 1).int(), torch.tensor([2]))


def _products(case: Case) -> Call:
    """Keys in float16, and products with the query beyond what that holds: they cancel out, and scores are small."""
    q, keys = torch.zeros(1, 1, 16), torch.zeros(2, 1, 4, 16)
    q[..., :2], q[..., 2] = 2048.0, 4.0
    keys[1, 0, :, 0], keys[1, 0, :, 1], keys[1, 0, :, 2] = 250.0, -250.0, case.permutation("levels", 4).float()
    return call(q, keys.half(), case.floats("values", 2, 1, 4, 16), torch.ones(1, 1).int(), torch.tensor([4]))


def _extremes(case: Case) -> Call:
    """Scores near -10^38, where no stand-in for minus infinity is, two near 10^38, and a small weight that counts."""
    q, keys, values, tables, lengths = _case(case, [1, 2, 2], 1, 2, 1, size=1).args
    q[:, 0, 0] = torch.tensor([-1e19, 1e19, 1.0])
    keys[tables[:, 0], 0, :, 0] = torch.tensor([[1e19, torch.nan], [1e19, 5e18], [0.0, -80.0]])
    values[tables[2, 0], 0, :, 0] = torch.tensor([1.0, 1e36])
    return call(q, keys, values, tables, lengths)


def any_text(case: Case) -> Call:  # noqa: PLR0911  one for each kind
    """Texts of forty pages, many heads, many rows, and slots of no token that hold anything infinite or huge."""
    kind = case.turn(("long", "many rows", "infinite", "huge", "low", "extremes", "narrow values", *KINDS, "products",
                      "many heads", "far blocks", "rises a little"))  # fmt: skip
    if kind == "narrow values":
        return _narrow_values(case)
    if kind == "products":
        return _products(case)
    if kind == "many heads":
        return _case(case, [3], 18, 2, 2, size=1)
    if kind == "extremes":
        return _extremes(case)
    if kind == "far blocks":
        pool = case.floats("pool", 2, 70_000, 1, 2, 1)
        return call(torch.ones(1, 1, 1), pool[0], pool[1], torch.tensor([[69_999, 40_000]]).int(), torch.tensor([3]))
    if kind == "rises a little":  # from page to page, which adds up
        asked = _case(case, [2 * 20], 1, 2, 20, size=1)
        asked.args[0].fill_(1.0)
        asked.args[1][asked.args[3][0].long()] = torch.arange(20.0).view(20, 1, 1, 1) * 9e-4
        return asked
    if kind in KINDS:
        return _narrow(case, kind)
    if kind == "long":
        return _case(case, [2 * 40 - 1], 2, 2, 40, size=2)
    if kind == "many rows":
        return _case(case, case.ints("lengths", 0, 4, 20).tolist(), 1, 2, 2, size=1)
    asked = _case(case, [1, 3, 4], 1, 4, 1, size=2, free=torch.inf)
    q, k_pool, v_pool, tables, lengths = asked.args
    for row, length in enumerate(lengths.tolist()):
        k_pool[tables[row], :, length:] = torch.inf if kind == "infinite" else 1e30
        v_pool[tables[row], :, length:] = -torch.inf if kind == "infinite" else 3e38
        if kind == "low":  # scores of -20,000 and less: what is hidden by -10,000 would weigh more
            k_pool[tables[row], :, :length] = -20_000.0 * q[row, 0].sign() / q[row, 0].abs().clamp(min=0.1)
    return asked


def tiny_values(case: Case) -> Call:
    """Values may be small: what they are small beside is not there."""
    q, keys, values, *rest = _case(case, [3, 2], 1, 2, 2, size=2).args
    return call(q, keys, values * 1e-30, *rest)


def compiles(case: Case) -> Call:
    """The compiler takes it too, for three generations of GPUs; a page is loaded at once, by offsets of 64 bits."""
    return call({"H": 12, "D": case.choice("D", (64, 32)), "PAGE": 16}, compiles=True)


CHECKS = (
    Check(rows_and_heads), Check(around_a_page, 4), Check(large_scores, 3), Check(short_and_full_rows, 3),
    Check(half_precision, 4, tolerance=1e-3),  # of two neighbours in 16 bits either may be the nearer
    Check(any_text, 13, wide=True), Check(tiny_values, 1, wide=True, tolerance=1e-34), Check(compiles, 1),
)  # fmt: skip
