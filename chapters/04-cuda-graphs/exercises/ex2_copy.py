"""Exercise 4.2: the inputs of a recorded step overwritten by those of the next one."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from nanocourse.exercises import Call, Case, Check, Function, Places, Spec, beside, call
from nanoinfer.engine.graphs import GraphEngine
from nanoinfer.engine.state import upload
from nanoinfer.engine.step import Layout, Prefill

scenes = beside(__file__, "scenes.py")
places = beside(__file__, "places.py")


def copy_from(static: dict[str, Tensor], new: dict[str, Tensor], nobody: int) -> None:
    """Let a recorded prefill find the tokens `new` in its inputs `static`, at its next replay.

    Both have six int64 tensors. token_ids, positions, row (N,): the tokens of all rows, end to end. starts (B + 1,):
    where each row's tokens begin, one at least, and N. logits_at, logits_row (K,): after which tokens one is chosen,
    the last one of a row each, and for which row. static: the tensors that were recorded, or parts of larger ones, with
    room for as many tokens and choices or more, for one row more at least, and with any numbers in them; at most 100
    rows and 5,000 tokens. What is left of them is padding: token 0 at position 0 of row `nobody`, all
    of it in static's last row. Rows between have no tokens, and begin where the padding does. Choices that are left are
    made after the token in place 0, for row `nobody`. Keep no reference to `new`.
    """
    tokens = len(new["token_ids"])
    padding = {"token_ids": 0, "positions": 0, "row": nobody, "starts": tokens, "logits_at": 0, "logits_row": nobody}
    for name, value in padding.items():
        static[name].fill_(value)
        static[name][: len(new[name])] = new[name]
    static["starts"][-1] = len(static["token_ids"])


def swap(mine: Function) -> Places:
    """A captured prefill over pages gets its tokens by it; one of the dense cache has other padding."""
    plain = GraphEngine.bring

    def bring(self: Any, prefill: Prefill, layout: Layout, packed: Tensor) -> None:
        if layout.rectangle:
            plain(self, prefill, layout, packed)
        else:
            dummy, exact = self.state.dummy, prefill.layout
            new = upload(prefill.pack(exact, dummy), torch.int64, packed.device)
            mine(_inputs(packed, layout), _inputs(new, exact), dummy)

    return places.RECORDED | {"nanoinfer.engine.graphs:GraphEngine.bring": bring}


def _inputs(packed: Tensor, layout: Layout) -> dict[str, Tensor]:
    return dict(zip(scenes.INPUTS, packed.split(layout.sizes), strict=True))


def _new(chunks: list[tuple[int, int, list[int], bool]]) -> dict[str, Tensor]:
    """Chunks (row, position of the first token, token ids, whether a token follows), packed."""
    starts = [0, *accumulate(len(ids) for _, _, ids, _ in chunks)]
    chosen = [(end - 1, row) for end, (row, _, _, follows) in zip(starts[1:], chunks, strict=True) if follows]
    tokens = [(token, start + at, row) for row, start, ids, _ in chunks for at, token in enumerate(ids)]
    each = [*zip(*tokens, strict=True), starts, [place for place, _ in chosen], [row for _, row in chosen]]
    return {name: torch.tensor(values, dtype=torch.int64) for name, values in zip(scenes.INPUTS, each, strict=True)}


EXERCISE = Spec(
    reference=copy_from,
    lines=7,
    example=lambda: call(2, 6, 9, [_new([(1, 0, [5, 6, 7], True)])]),
    section="Why the address matters",
    axes=("batch", "number"),
    tolerance=1e-9,
    imports=("import torch", "from torch import Tensor"),
    swap=swap,
    pure=False,  # what it is handed is written to
    scene=scenes.fed,
)


def _chunks(case: Case, name: str, rows: int, tokens: int, ends: tuple[int, int] = (0, 1)) -> dict[str, Tensor]:
    """Pieces of `rows` prompts, of `tokens` tokens in all; some go on, some end here, in rows of any order.

    ends: 0 and 1 where pieces may go on and end; twice the same where all do the one or the other.
    """
    cuts = [0, *sorted((case.permutation(f"{name} cuts", tokens - 1)[: rows - 1] + 1).tolist()), tokens]
    ids, starts = case.ints(f"{name} ids", 0, 60, tokens).tolist(), case.ints(f"{name} starts", 0, 20, rows).tolist()
    complete, row = case.ints(f"{name} complete", *ends, rows).tolist(), case.permutation(f"{name} rows", 99).tolist()
    return _new(
        [(row[n], starts[n], ids[cuts[n] : cuts[n + 1]], bool(complete[n])) for n in range(rows)]
    )  # fmt: skip


def fewer_rows(case: Case) -> Call:
    """A batch of fewer pieces than the last one leaves none of that one's rows behind, nor chooses for them."""
    rows = case.size("rows", 2, 5)
    tokens = rows + case.size("more", 1, 4)
    first, left = _chunks(case, "first", rows, tokens), case.size("left", 1, rows - 1)
    return call(rows, tokens + case.size("room", 0, 2), 99, [first, _chunks(case, "second", left, tokens)])


def fewer_tokens(case: Case) -> Call:
    """Shorter pieces than the last ones leave none of their tokens behind, and longer ones are whole again."""
    rows = case.size("rows", 1, 3)
    tokens = rows + case.size("more", 2, 5)
    counts = tokens, case.size("left", rows, tokens - 1), tokens
    return call(rows, tokens, 99, [_chunks(case, f"batch {n}", rows, count) for n, count in enumerate(counts)])


def any_batches(case: Case) -> Call:
    """Two recordings, nothing chosen, one token, many, large numbers, equal ids, names in any order, any leftovers."""
    kind = case.turn((
        "two recordings", "no choice", "one token", "many", "leftovers", "choices", "large", "same ids", "no choice",
    ))  # fmt: skip
    rows, tokens = (99, 5000) if kind == "many" else (4, 12)
    first, last = _chunks(case, "first", rows, tokens, (1, 1)), _chunks(case, "last", 1, 2, (1, 1))
    if kind == "two recordings":
        small = [_chunks(case, f"small {n}", 2, 3) for n in range(2)]
        return call(rows, tokens, -2, [first, *small, last, last], 2)
    if kind == "choices":
        return call(rows, tokens, 99, [first, last, first], 1, tokens + 3)
    if kind == "large":
        for name in ("token_ids", "positions", "row", "logits_row"):
            first[name] += 2**53 + 1
        return call(rows, tokens, 2**40 + 9, [first, last, dict(reversed(_chunks(case, "second", 2, 9).items()))])
    if kind == "same ids":  # of other rows, at other positions; and nobody has a lower number than anybody
        others = {name: tensor + 7 * (name in ("positions", "row", "logits_row")) for name, tensor in first.items()}
        ends = {"starts": 2, "logits_at": 1, "logits_row": 1}
        begun = {name: tensor[: ends.get(name, int(first["starts"][1]))] for name, tensor in first.items()}
        moved = others | {"positions": first["positions"]}
        batches = [
            {n: one[n] + 9 * (n in ("row", "logits_row")) for n in one} for one in (last, first, moved, others, begun)
        ]
        batches = [batches[at] for at in (0, 1, 2, 3, 1, 4)]
        return call(rows, tokens, 0, batches)
    if kind == "leftovers":
        sizes = [(1, 2), (1, 2), (2, 9), (2, 9)]
        batches = [first, *(_chunks(case, f"batch {n}", *size) for n, size in enumerate(sizes))]
        return call(rows, tokens + 5, 99, batches * 3, 1, rows + 5, True)
    size = {"no choice": (3, 9, (0, 0)), "one token": (1, 1), "many": (98, 4500)}.get(kind, (2, 9))
    return call(rows, tokens, 99, [first, _chunks(case, "second", *size), last])


CHECKS = (Check(fewer_rows, 4), Check(fewer_tokens, 3), Check(any_batches, 9, wide=True))
