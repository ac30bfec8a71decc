"""What the text of chapter 3 shows: each function prints one block of it, and NUMBERS gives its single numbers."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from nanobench.report.values import size
from nanobook.examples import load, print_blocks
from nanobook.running import interpreted, output, show, show_fault, word
from nanocourse.exercises import answers
from nanoinfer import LLM, SamplingParams
from nanoinfer.cache import paged
from nanoinfer.cache.blocks import BlockManager
from nanoinfer.model.batch import Batch
from nanoinfer.model.config import PRESETS
from nanoinfer.verify import verify_tokens

here = Path(__file__).parent
run, measured = load(here / "running.py"), load(here / "measured.py")
split_times, byte_times, ragged_times = measured.split_times, measured.byte_times, measured.ragged_times
kv_usage_table, fixed_pool_table = measured.kv_usage_table, measured.fixed_pool_table
GPT2 = PRESETS["gpt2"]
TOKEN = GPT2.kv_numbers * 2  # bytes of keys and values of one token, in bfloat16


def small_file() -> None:
    """What small.py prints."""
    print(output(here / "small.py"), end="")


programs, masked, sums, both = (
    partial(interpreted, here / "first_kernel.py", name) for name in ("programs", "masks", "sums", "both")
)
smallest = partial(interpreted, here / "small_kernel.py")


def room() -> None:
    """Four rows in a dense cache for gpt2: what each holds, and what is kept for it."""
    print(f"{'row':4}{'tokens':>8}{'slots':>8}{'empty':>8}{'bytes without a token':>24}")
    for row, length in enumerate(run.RAGGED):
        empty = GPT2.n_positions - length
        print(f"{row:<4}{length:>8}{GPT2.n_positions:>8}{empty / GPT2.n_positions:>8.0%}{size(empty * TOKEN):>24}")
    whole = len(run.RAGGED) * GPT2.n_positions * TOKEN
    print(f"taken: {size(whole)}, of which {1 - sum(run.RAGGED) * TOKEN / whole:.0%} hold no token")


def tables() -> None:
    """The running example's tables, and the tokens in each block."""
    held = run.pool()
    for row, (table, text) in enumerate(zip(held.tables, held.texts, strict=True)):
        print(f"row {row}   table {', '.join(map(str, table))}")
        for at, block in enumerate(table):
            words = " ".join(word(i) for i in text[at * run.BLOCK : (at + 1) * run.BLOCK])
            print(f"        block {block:<3} {words}")
    print(f"free    {', '.join(map(str, sorted(held.cache.blocks.free)))}")


def slots() -> None:
    """From a position to a slot, for some tokens of row 0."""
    held = run.pool()
    print(f"blocks of {run.BLOCK} tokens, table {', '.join(map(str, held.tables[0]))}")
    print("position  token      which of its blocks  block  place  slot")
    for at in (2, 3, 4, 5, 8):
        block = held.tables[0][at // run.BLOCK]
        place = at % run.BLOCK
        name, slot = word(held.texts[0][at]), block * run.BLOCK + place
        print(f"{at:>8}  {name:10} {at // run.BLOCK:>19}  {block:>5}  {place:>5}  {slot:>4}")


def neighbours() -> None:
    """The text with every token written behind the slot of the row's first."""
    right, wrong = run.continued(), run.continued(("3.2", "neighbours"))
    print("blocks of 16 tokens, as in the engine")
    show("by the table", right[1])
    show("as if contiguous", wrong[1])


def growing() -> None:
    """Blocks of 16 by the length of the text, newest token included."""
    grow = answers.reference("3.1")
    print("blocks of 16 tokens, as in the engine")
    print("tokens written  length with the newest  blocks before grow  blocks after grow")
    for written in (15, 16, 17, 31, 32, 33):
        owned = [list(range(-(-written // 16)))]
        after, _ = grow(owned, [written + 1], [99], 16)
        print(f"{written:>14}  {written + 1:>22}  {len(owned[0]):>18}  {len(after[0]):>17}")


def late_by_one() -> None:
    """Row 1 where the newest token is not counted."""
    right, wrong = run.continued(), run.continued(("3.1", "newest-left-out"))
    for row in (1, 0):
        show(f"row {row}", right[row])
        show("newest not counted", wrong[row])


def proof() -> None:
    """The paged engine's tokens held against the oracle, and those of an engine that writes to neighbors' slots."""
    oracle, params = LLM(run.model(), engine="naive").forward_logits, SamplingParams(max_tokens=24, **run.GREEDY)
    print(f"{'paged':24}{verify_tokens(oracle, run.completed(), params)}")
    show_fault("to a neighbor's slot", oracle, run.completed(("3.2", "neighbours")), params)


def reservations() -> None:
    """Eight free blocks and two requests: what is left for a next one."""
    blocks = BlockManager(8, 16, max_batch=4)

    def line(what: str) -> None:
        free, most = len(blocks.free), 0
        while blocks.reserve(2, most + 1):
            blocks.release(2)
            most += 1
        told = f"up to {most} tokens" if most else "waits"
        print(f"{what:44}{free:>5} free  {sum(blocks.reserved)} of them reserved   next request: {told}")

    line("no row is running")
    blocks.reserve(0, 70)
    blocks.grow(0, 20)
    line("row 0 may reach 70 tokens, and has 20")
    blocks.reserve(1, 40)
    blocks.grow(1, 10)
    line("row 1 may reach 40 tokens, and has 10")
    blocks.grow(0, 40)
    blocks.grow(1, 30)
    line("both have grown by 20")
    blocks.release(0)
    line("row 0 ended at 40 tokens, by a stop token")


def block_sizes() -> None:
    """The waste of the four rows by the block size, keys and values and table apart."""
    spread = answers.reference("3.3")
    print(f"{'block':>6}{'blocks':>8}{'keys and values without a token':>34}{'table':>11}{'pieces of row 3':>17}")
    for block in (1, 4, 16, 64, 256, 1024):
        _, whole = spread(list(run.RAGGED), GPT2.n_positions, block, TOKEN)
        table = 4 * (len(run.RAGGED) + 1) * -(-GPT2.n_positions // block)
        blocks = 1 + sum(-(-n // block) for n in run.RAGGED)
        print(f"{block:>6}{blocks:>8}{size(whole - table):>34}{size(table):>11}{-(-run.RAGGED[3] // block):>17}")


def gathered() -> None:
    """Bytes that move where a step copies its rows' pages side by side first, for one layer of gpt2."""
    layer = TOKEN // GPT2.n_layer
    read, widest = sum(run.RAGGED) * layer, len(run.RAGGED) * -(-max(run.RAGGED) // 16) * 16 * layer
    print(f"the tokens' keys and values              {size(read):>8}")
    print(f"gathered up to the longest row: read     {size(widest):>8}")
    print(f"                                written  {size(widest):>8}")
    print(f"                                read     {size(widest):>8}   {3 * widest / read:.1f} times the first line")


def online() -> None:
    """One head of row 2, page by page: the three numbers that are kept, and what a plain softmax gives."""
    q, keys, values = run.head_of(run.ROW)
    scores, channel = (keys @ q / math.sqrt(len(q))).tolist(), values[:, 0].tolist()
    top, total, acc = -math.inf, 0.0, 0.0
    for at in range(0, len(scores), run.BLOCK):
        page, held = scores[at : at + run.BLOCK], channel[at : at + run.BLOCK]
        shown = [" ".join(f"{number:5.2f}" for number in numbers) for numbers in (page, held)]
        print(f"page {at // run.BLOCK}: scores {shown[0]}   values {shown[1]}")
        higher = max(top, *page)
        rescale = math.exp(top - higher)
        weights = [math.exp(s - higher) for s in page]
        print(
            f"        maximum {top:5.2f} -> {higher:5.2f}   what is kept is multiplied by "
            f"exp({top - higher:.2f}) = {rescale:.3f}"
        )
        total = total * rescale + sum(weights)
        acc = acc * rescale + sum(w * v for w, v in zip(weights, held, strict=True))
        top = higher
        print(f"        sum {total:.3f}   weighted values {acc:.3f}")
    plain = torch.tensor(scores, dtype=torch.float64).softmax(0) @ torch.tensor(channel, dtype=torch.float64)
    print(f"result  {acc:.3f} / {total:.3f} = {acc / total:.3f}   softmax over all at once: {float(plain):.3f}")


def not_rescaled() -> None:
    """The same sums where nothing is rescaled, and where a page's mean is taken."""
    q, keys, values = run.head_of(run.ROW)
    scores, channel = keys @ q / math.sqrt(len(q)), values[:, 0]
    total = acc = torch.zeros((), dtype=torch.float64)
    means = []
    for page, held in zip(scores.split(run.BLOCK), channel.split(run.BLOCK), strict=True):
        weights = (page - page.max()).exp()
        total, acc = total + weights.sum(), acc + weights @ held
        means.append(float(page.softmax(0) @ held))
    print(f"right                     {float(scores.softmax(0) @ channel):6.3f}")
    print(f"partial sums just added   {float(acc / total):6.3f}")
    print(f"mean of the pages         {sum(means) / len(means):6.3f}   of {', '.join(f'{m:.3f}' for m in means)}")
    large = torch.tensor([90.0, 91.0])
    shifted = " and ".join(f"{e:.3f}" for e in (large - 91).exp().tolist())
    print(f"exp of scores 90 and 91   {large.exp().tolist()} in float32; relative to the highest {shifted}")


def masks() -> None:
    """A page of which one slot is written, attended to in four ways."""
    scores, values = torch.tensor([1.0, 0.4, 2.0, -1.0]), torch.tensor([3.0, float("nan"), 7.0, 5.0])
    inside = torch.arange(4) < 1
    ways = {
        "no mask": scores.softmax(0) @ values,
        "score 0, value 0": torch.where(inside, scores, 0.0).softmax(0) @ torch.where(inside, values, 0.0),
        "score -inf": torch.where(inside, scores, -torch.inf).softmax(0) @ values,
        "score -inf, value 0": torch.where(inside, scores, -torch.inf).softmax(0) @ torch.where(inside, values, 0.0),
    }
    print("slot 0, a token's: score 1, value 3; slots 1 to 3, of no token: scores 0.4, 2, -1, values NaN, 7, 5.")
    print("In place of the last three:")
    for name, result in ways.items():
        print(f"{name:22}{float(result):6.2f}")


def joined() -> None:
    """Row 2's head in two parts, as two programs find them, and three ways to join."""
    q, keys, values = run.head_of(run.ROW)
    scores, channel = keys @ q / math.sqrt(len(q)), values[:, 0]
    parts, cut = [], run.BLOCK
    for s, v in ((scores[:cut], channel[:cut]), (scores[cut:], channel[cut:])):
        weights = (s - s.max()).exp()
        parts.append((float(s.max()), float(weights.sum()), float(weights @ v), len(s)))
    for at, (top, total, acc, count) in enumerate(parts):
        sums = f"maximum {top:.2f}   sum {total:.3f}   weighted values {acc:.3f}"
        name = f"part {at}, {('page 0', 'pages 1, 2')[at]}: {count} tokens"
        print(f"{name:28} {sums}   alone {acc / total:.3f}")
    highest = max(top for top, *_ in parts)
    shares = [math.exp(top - highest) for top, *_ in parts]
    acc, total = (sum(s * p[i] for s, p in zip(shares, parts, strict=True)) for i in (2, 1))
    told = ", ".join(f"{s:.3f}" for s in shares)
    print(f"scaled by exp(maximum - {highest:.2f}) = {told}, then added: {acc / total:.3f}")
    print(f"averaged: {sum(p[2] / p[1] for p in parts) / 2:.3f}   weighed by their tokens: "
          f"{sum(p[3] * p[2] / p[1] for p in parts) / len(scores):.3f}")  # fmt: skip


def limits() -> None:
    """The three limits of the number of splits."""
    told = {
        "SPLIT_TOKENS": (paged.SPLIT_TOKENS, "tokens of a part at least: a tile"),
        "MAX_SPLITS": (paged.MAX_SPLITS, "parts of a context at most"),
        "PROGRAMS": (
            paged.PROGRAMS,
            "of a launch at most; more than fit above: a short walk spends more of its time waiting",
        ),
    }
    for name, (number, says) in told.items():
        print(f"{name:12}{number:>6}  {says}")


def widths() -> None:
    """How often a kernel would be compiled over a text, if a number that grows with it were a constant."""
    text = range(1, 1025)
    ways = {
        "its length": len(set(text)),
        "blocks of the longest row": len({-(-n // 16) for n in text}),
        "the same, rounded up to a power of two": len({1 << (-(-n // 16) - 1).bit_length() for n in text}),
        "blocks of the whole context": 1,
    }
    print("a text grows to 1024 tokens; versions of the kernel, if this is a compile-time constant:")
    for name, count in ways.items():
        print(f"{name:42}{count:>5}")


def rectangles() -> None:
    """A step of prompts as a rectangle; and one of a piece beside rows that decode, its pages gathered, for a layer."""

    def line(what: str, tokens: int, places: int) -> None:
        print(f"{what:36} {tokens:,} tokens; as a rectangle {places:,} ({places / tokens:.1f} times)")

    line("31 prompts of 10 tokens, one of 900:", 31 * 10 + 900, 32 * 900)
    line("31 rows that decode, a piece of 64:", 31 + 64, 32 * 64)
    contexts, layer = [40] * 31 + [900], TOKEN // GPT2.n_layer
    held, gathered = sum(contexts) * layer, len(contexts) * -(-max(contexts) // 16) * 16 * layer
    moved = f"{size(3 * gathered)} ({3 * gathered / held:.0f} times)"
    print("the same, where 31 rows hold 40 tokens, and the piece ends at 900, in one layer of gpt2, bfloat16:")
    print(f"keys and values {size(held)}; gathered up to the longest row, and then read: {moved}")


def work() -> None:
    """The work list of a step: a prompt of 40 tokens, a piece of 20 behind 90, and a row that decodes behind 299."""
    from nanoinfer.kernels.ragged_attention import tile_of, work_list  # here: there is no Triton for macOS and Windows

    chunks = ((0, 0, 40), (1, 90, 20), (2, 299, 1))  # row, tokens before, tokens
    work: Any = [(SimpleNamespace(tokens=[0] * (start + n), row=row), start, n) for row, start, n in chunks]
    batch, tokens, rows = Batch.of(work, torch.device("cpu")), sum(n for *_, n in chunks), len(chunks)
    print("tile  row  tokens of the step  their positions  reads")
    for tile, (first, count) in enumerate(work_list(batch).tolist()):
        if not count:
            print(f"{tile:>4}    -")
            continue
        last = first + count - 1
        at, end = int(batch.positions[first]), int(batch.positions[last])
        spans = f"{f'{first} to {last}' if count > 1 else first:>18}  {f'{at} to {end}' if count > 1 else at:>15}"
        print(f"{tile:>4}  {int(batch.row[first]):>3}  {spans}  its row's first {end + 1}")
    size_of = tile_of(tokens, rows)
    print(f"at most {tokens} / {size_of}, rounded up, + {rows} = {-(-tokens // size_of) + rows} tiles")


NUMBERS = measured.NUMBERS


if __name__ == "__main__":
    print_blocks(Path(__file__))
