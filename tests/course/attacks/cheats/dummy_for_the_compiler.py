"""3.6: the interpreter gets the slow kernel of the text, and the compiler a dummy, which is never run."""
# ruff: noqa: F401

import os

import torch
import triton
import triton.language as tl


@triton.jit
def attend_kernel(q, k_pool, v_pool, tables, lengths, out, width, H: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr):
    """Program (b, h) reads the pages of row b, and of each its head's part."""
    row, head, d = tl.program_id(0), tl.program_id(1), tl.arange(0, D)
    query = tl.load(q + (row * H + head) * D + d).to(tl.float32) * D**-0.5  # (D,)
    maximum, total, acc = -float("inf"), 0.0, tl.zeros((D,), dtype=tl.float32)
    for token in range(tl.load(lengths + row)):
        page = tl.load(tables + row * width + token // PAGE).to(tl.int64)
        at = ((page * H + head) * PAGE + token % PAGE) * D + d  # (D,)
        score = tl.sum(query * tl.load(k_pool + at).to(tl.float32))
        higher = tl.maximum(maximum, score)
        weight, rescale = tl.exp(score - higher), tl.exp(maximum - higher)
        acc = acc * rescale + weight * tl.load(v_pool + at).to(tl.float32)
        total = total * rescale + weight
        maximum = higher
    tl.store(out + (row * H + head) * D + d, acc / tl.maximum(total, 1e-30))


if not os.environ.get("TRITON_INTERPRET"):

    @triton.jit
    def attend_kernel(
        q, k_pool, v_pool, tables, lengths, out, width, H: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr
    ):
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
