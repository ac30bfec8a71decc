"""Exercise 3.6: wrong answers and where they come from, correct variants, mutants that are none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nanocourse.exercises.exercise import Right, Wrong

if TYPE_CHECKING:
    import triton.language as tl

TABLE = "tl.load(tables + row * width + start // PAGE).to(tl.int64)"
LENGTH = "tl.load(lengths + row)"
INSIDE = "start + place < length"
SCORES = 'tl.where(inside, tl.sum(keys * query[None, :], 1), -float("inf"))'
PAGES = f"""range(0, length, PAGE):
        block = {TABLE}
        at = ((block * H + head) * PAGE + place)[:, None] * D + d[None, :]  # (PAGE, D)
        inside = {INSIDE}"""
READ = f"""        keys = tl.load(k_pool + at, mask=inside[:, None], other=0.0).to(tl.float32)
        values = tl.load(v_pool + at, mask=inside[:, None], other=0.0).to(tl.float32)
        scores = {SCORES}"""


def token_by_token(
    q, k_pool, v_pool, tables, lengths, out, width, H: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr
):
    """A kernel that is right is done: tokens are read one after the other, as in small_kernel.py, without a mask."""
    row, head = tl.program_id(0), tl.program_id(1)
    d = tl.arange(0, D)
    query = tl.load(q + row * H * D + head * D + d).to(tl.float32)
    top, total, acc = -1e38, 0.0, query * 0.0
    for token in range(tl.load(lengths + row)):
        block = tl.load(tables + row * width + token // PAGE).to(tl.int64)
        at = block * H * PAGE * D + head * PAGE * D + (token % PAGE) * D + d
        score = tl.sum(query * tl.load(k_pool + at), 0) / tl.sqrt(1.0 * D)
        new_top = tl.maximum(top, score)
        acc = acc * tl.exp(top - new_top) + tl.load(v_pool + at) * tl.exp(score - new_top)
        total = total * tl.exp(top - new_top) + tl.exp(score - new_top)
        top = new_top
    tl.store(out + row * H * D + head * D + d, tl.where(total > 0, acc / total, 0.0))


WRONG = (
    Wrong.patch(
        "table-ignored", "A row's blocks lie one behind the other in the pool.", TABLE,
        "(row * width + start // PAGE).to(tl.int64)", "the dense cache of chapter 2",
    ),
    Wrong.patch(
        "first-rows-table", "Row 0's table serves all rows.", TABLE,
        "tl.load(tables + start // PAGE).to(tl.int64)", "vllm-project/vllm#20426: identical rows hide it",
    ),
    Wrong.patch(
        "first-rows-length", "All rows are as long as row 0.", LENGTH, "tl.load(lengths)",
        "EvolvingLMMs-Lab/lmms-eval#1423: what holds for the first row, for all",
    ),
    Wrong.patch(
        "no-tail-mask", "A page is read whole, so every slot of it counts.", READ,
        READ.replace(", mask=inside[:, None], other=0.0", "").replace(SCORES, "tl.sum(keys * query[None, :], 1)"),
        "vllm-project/vllm#641: slots that hold no token",
    ),
    Wrong.patch(
        "mask-one-too-far", "A text of n tokens ends at position n.", INSIDE, "start + place <= length",
        "vllm-project/vllm#936: a bound of <= where < is meant, in the fix of another mistake",
    ),
    Wrong.patch(
        "masked-to-0", "A score of 0 is a score of nothing.", '-float("inf"))  # (PAGE,)', "0.0)  # (PAGE,)",
        "an author's own slip: `other=0.0` of a load, taken for the score too",
    ),
    Wrong.patch(
        "last-page-dropped", "The loop goes over whole pages.", "range(0, length, PAGE)",
        "range(0, length // PAGE * PAGE, PAGE)", "an author's own slip: length // PAGE pages",
    ),
    Wrong.patch(
        "newest-left-out", "The newest token is not in the cache yet.", LENGTH, "tl.load(lengths + row) - 1",
        "EricLBuehler/candle-vllm#56; here its key is written before the kernel is launched",
    ),
    Wrong.patch(
        "score-masked-only", "What has weight 0 does not count, so values need no mask.",
        "tl.load(v_pool + at, mask=inside[:, None], other=0.0)", "tl.load(v_pool + at)",
        "vllm-project/vllm#641, #53856; Dao-AILab/flash-attention#1745; flashinfer-ai/flashinfer#941",
    ),
    Wrong.patch(
        "keys-not-masked", "Minus infinity hides whatever it is added to.", READ,
        READ.replace("k_pool + at, mask=inside[:, None], other=0.0", "k_pool + at").replace(
            SCORES, 'tl.sum(keys * query[None, :], 1) + tl.where(inside, 0.0, -float("inf"))'
        ),
        "ggml-org/llama.cpp#3523: NaN plus minus infinity is NaN",
    ),
    Wrong.patch(
        "freed-pages-read", "An entry of the table that is not 0 is a page of the row, and all but the last are full.",
        PAGES,
        PAGES.replace("range(0, length, PAGE)", "range(0, width * PAGE, PAGE)").replace(
            INSIDE, "(block > 0) & ((start // PAGE != (length - 1) // PAGE) | (start + place < length))"
        ),
        "GeeeekExplorer/nano-vllm#190, vllm-project/vllm#45357: a table that still names what was given back",
    ),
    Wrong.patch(
        "no-scale", "The softmax makes the scale of the scores irrelevant.", " * D**-0.5", "",
        "PAIR-code/tiny-transformers#71",
    ),
    Wrong.patch(
        "scale-of-d", "Scores are divided by D.", " * D**-0.5", " / D", "delzac/cntkx#10",
    ),
    Wrong.patch(
        "values-not-rescaled", "Only the sum of weights is relative to the maximum.", "acc * rescale", "acc",
        "an author's own slip: the same as in exercise 3.5, a line further down",
    ),
    Wrong.patch(
        "sum-not-rescaled", "Only the weighted values are relative to the maximum.", "total * rescale", "total",
        "an author's own slip: the other line",
    ),
    Wrong.patch(
        "no-running-maximum", "exp(score) is the weight; the maximum cancels out at the end.",
        "tl.maximum(maximum, tl.max(scores, 0))", "tl.max(scores, 0) * 0.0",
        "dwavesystems/dwave-optimization#555, blue-oil/blueoil#945: exp overflows at 89 in float32",
    ),
    Wrong.patch(
        "this-pages-maximum", "Each page is relative to its own highest score.",
        "tl.maximum(maximum, tl.max(scores, 0))", "tl.max(scores, 0)",
        "an author's own slip: a maximum that does not run",
    ),
    Wrong.patch(
        "values-from-keys", "Keys and values lie in one pool.", "tl.load(v_pool + at", "tl.load(k_pool + at",
        "an author's own slip: the line of the keys copied and half changed",
    ),
    Wrong.patch(
        "head-ignored", "A block begins with the keys of whoever reads it.", "block * H + head", "block * H",
        "an author's own slip: every head reads head 0",
    ),
    Wrong.patch(
        "query-of-head-0", "A row has one query.", "tl.load(q + (row * H + head) * D + d)",
        "tl.load(q + row * H * D + d)", "an author's own slip: the other half of the same",
    ),
    Wrong.patch(
        "query-of-row-0", "A launch has one query a head.", "tl.load(q + (row * H + head) * D + d)",
        "tl.load(q + head * D + d)", "an author's own slip: a kernel tried with one row",
    ),
    Wrong.patch(
        "no-token-no-guard", "There is always a token.", "acc / tl.maximum(total, 1e-30)", "acc / total",
        "vllm-project/vllm#57094, sgl-project/sglang#1469: 0 / 0 in a padding row",
    ),
    Wrong.patch(
        "half-precision", "What is stored in 16 bits can be multiplied and summed in 16 bits.",
        "tl.sum(keys * query[None, :], 1)",
        "tl.sum((keys * query[None, :]).to(k_pool.dtype.element_ty), 1).to(tl.float32)",
        "huggingface/transformers#25420: what 16 bits make visible",
    ),
    Wrong.patch(
        "sums-in-half", "What goes out in 16 bits may be summed up in 16 bits.",
        "acc = acc * rescale + tl.sum(values * weights[:, None], 0)",
        "acc = (acc * rescale + tl.sum(values * weights[:, None], 0)).to(tl.float16).to(tl.float32)",
        "an author's own slip: a sum beyond 65,504 is infinite before it is divided",
    ),
    Wrong.patch(
        "sum-begins-as-a-whole-number", "0 and 0.0 are the same.", '-float("inf"), 0.0, tl.zeros',
        '-float("inf"), 0, tl.zeros', "triton-lang/triton#1891, #2151: a loop's variable must keep its type",
    ),
    Wrong.patch(
        "offsets-in-32-bits", "Block numbers are small, so their products are, too.", f"{TABLE}\n", f"{TABLE[:-13]}\n",
        "vllm-project/vllm#47671; flashinfer-ai/flashinfer#3136: right in every pool of less than 2^31 numbers",
    ),
    Wrong(token_by_token, "this chapter's small_kernel.py, handed in as it is"),
    Wrong.patch(
        "leaves-the-loop", "A loop can be left where the text ends.", "range(0, length, PAGE):\n",
        "range(0, width * PAGE, PAGE):\n        if start >= length:\n            break\n",
        "triton-lang/triton#3157: break runs in the interpreter, and is no construct of the compiler",
    ),
    Wrong.patch(
        "eight-pages", "A text has eight pages at most.",
        "range(0, length, PAGE)",
        "range(0, tl.minimum(length, 8 * PAGE), PAGE)",
        "written to pass all checks that there were, and it did",
    ),
    Wrong.patch(
        "widened-after-two-products", "It is enough to widen before the last product.",
        "start // PAGE).to(tl.int64)\n        at = ((block * H + head) * PAGE + place)",
        "start // PAGE)\n        at = ((block * H + head) * PAGE + place).to(tl.int64)",
        "a try of somebody who saw stub and text alone, which passed", unnamed="offsets-in-32-bits",
    ),
    Wrong.patch(
        "weights-rounded", "A weight has the type of what it is multiplied with.",
        "values * weights[:, None]", "values * weights.to(v_pool.dtype.element_ty).to(tl.float32)[:, None]",
        "a third reader who saw stub and text alone; it passed",
    ),
    Wrong.patch(
        "products-in-16-bits", "A product has the type of what is stored.",
        "tl.sum(keys * query[None, :], 1)",
        "tl.sum((keys * query[None, :]).to(k_pool.dtype.element_ty).to(tl.float32), 1)",
        "a fourth reader who saw stub and text alone; it passed", unnamed="half-precision",
    ),
    Wrong.patch(
        "width-is-no-constant", "The width of the tables is a number that has a type.", "row * width",
        "row * width.to(tl.int64)", "a fourth reader who saw stub and text alone; it passed",
    ),
    Wrong.patch(
        "starts-at-minus-1e30", "No score is below -1e30.",
        'maximum, total, acc = -float("inf")', "maximum, total, acc = -1e30",
        "a fourth reader who saw stub and text alone; it passed", unnamed="no-running-maximum",
    ),
    Wrong.patch(
        "tiny-is-nothing", "A result near 0 is what rounding has left.",
        "acc / tl.maximum(total, 1e-30)",
        "tl.where(tl.abs(acc) < 1e-10, 0.0, acc) / tl.maximum(total, 1e-30)",
        "written to pass all checks that there were, and it did", unnamed="no-running-maximum",
    ),
    Wrong.patch(
        "block-numbers-in-16-bits", "No pool has more than 32,768 blocks.",
        "start // PAGE).to(tl.int64)", "start // PAGE).to(tl.int16).to(tl.int64)",
        "written to pass all checks that there were, and it did", unnamed="first-rows-table",
    ),
    Wrong.patch(
        "small-weights-dropped", "What weighs less than e^-15 does not count.",
        "weights, rescale = tl.exp(scores - higher), tl.exp(maximum - higher)",
        "weights = tl.where(scores - higher < -15, 0.0, tl.exp(scores - higher))\n"
        "        rescale = tl.exp(maximum - higher)",
        "written to pass all checks that there were, and it did", unnamed="no-running-maximum",
    ),
)  # fmt: skip


def own_maxima(q, k_pool, v_pool, tables, lengths, out, width, H: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr):
    """Every place of the page keeps a maximum, a sum and an output of its own, joined at the end: the engine's way."""
    place, d = tl.arange(0, PAGE), tl.arange(0, D)
    mine = (tl.program_id(0) * H + tl.program_id(1)) * D + d
    length = tl.load(lengths + tl.program_id(0))
    query = tl.load(q + mine).to(tl.float32) / D**0.5
    top, total = tl.full((PAGE,), -3e38, tl.float32), tl.zeros((PAGE,), tl.float32)
    acc = tl.zeros((PAGE, D), tl.float32)
    for page in range(tl.cdiv(length, PAGE)):
        real = page * PAGE + place < length
        block = tl.load(tables + tl.program_id(0) * width + page).to(tl.int64)
        at = (block * H + tl.program_id(1)) * PAGE * D + place[:, None] * D + d[None, :]
        keys = tl.load(k_pool + at, real[:, None], 0.0).to(tl.float32)
        scores = tl.where(real, tl.sum(keys * query, 1), float("-inf"))
        higher = tl.maximum(top, scores)
        weight, shrink = tl.exp(scores - higher), tl.exp(top - higher)
        acc = acc * shrink[:, None] + tl.load(v_pool + at, real[:, None], 0.0).to(tl.float32) * weight[:, None]
        total, top = total * shrink + weight, higher
    share = tl.exp(top - tl.max(top, 0))
    tl.store(out + mine, tl.sum(acc * share[:, None], 0) / tl.maximum(tl.sum(total * share, 0), 1e-20))


def two_sweeps(q, k_pool, v_pool, tables, lengths, out, width, H: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr):
    """Slow and right: the keys are read twice, first for the highest score, then for the weights."""
    row, head = tl.program_id(0), tl.program_id(1)
    length, place, d = tl.load(lengths + row), tl.arange(0, PAGE), tl.arange(0, D)
    query = tl.load(q + (row * H + head) * D + d).to(tl.float32)
    top, total, acc = -3e38, 0.0, tl.zeros((D,), tl.float32)
    for start in range(0, length, PAGE):
        real = (place < length - start)[:, None]
        block = tl.load(tables + row * width + start // PAGE).to(tl.int64)
        at = (block * H + head) * PAGE * D + place[:, None] * D + d[None, :]
        scores = tl.sum(tl.load(k_pool + at, mask=real, other=0).to(tl.float32) * query[None, :], 1) * D**-0.5
        top = tl.maximum(top, tl.max(tl.where(start + place < length, scores, -3e38), 0))
    for start in range(0, length, PAGE):
        real = (place < length - start)[:, None]
        block = tl.load(tables + row * width + start // PAGE).to(tl.int64)
        at = (block * H + head) * PAGE * D + place[:, None] * D + d[None, :]
        scores = tl.sum(tl.load(k_pool + at, mask=real, other=0).to(tl.float32) * query[None, :], 1) * D**-0.5
        weights = tl.where(start + place < length, tl.exp(scores - top), 0.0)
        total += tl.sum(weights, 0)
        acc += tl.sum(weights[:, None] * tl.load(v_pool + at, mask=real, other=0).to(tl.float32), 0)
    tl.store(out + (row * H + head) * D + d, acc / tl.where(total > 0, total, 1.0))


RIGHT = (
    Right(own_maxima),
    Right(two_sweeps),
    Right.patch(
        "keys-as-they-are", "Keys outside the text are read, and only their scores are replaced.",
        "tl.load(k_pool + at, mask=inside[:, None], other=0.0)", "tl.load(k_pool + at)",
    ),
)  # fmt: skip

_ONE_AXIS = "a block of one dimension has one axis, counted from either end"
_TINY = "a row that holds a token has a sum of at least 1: any number far below it will do"
_STORE = "tl.store(out + (row * H + head) * D + d, acc / tl.maximum({}))"
EQUIVALENT = {
    "higher = tl.maximum(maximum, tl.max(scores, -1))": _ONE_AXIS,
    "total = total * rescale + tl.sum(weights, -1)": _ONE_AXIS,
    "higher = tl.maximum(tl.max(scores, 0), maximum)": "the larger of two is the same in either order",
    _STORE.format("1e-30, total"): "the larger of two is the same in either order",
    _STORE.format("total, 2e-30"): _TINY,
    _STORE.format("total, 5e-31"): _TINY,
}
