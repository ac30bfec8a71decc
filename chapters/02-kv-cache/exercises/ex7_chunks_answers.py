"""Exercise 2.7: wrong answers and where they come from, correct variants, mutants that are none."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nanocourse.exercises.exercise import Right, Wrong

Forward = Callable[[list[int], Tensor, Tensor, Tensor], Tensor]


def row_after_row(forward: Forward, prompts: list[list[int]], chunk: int) -> Tensor:
    """Prompts of different lengths cannot share a step."""
    found = []
    for row, prompt in enumerate(prompts):
        for start in range(0, len(prompt), chunk):
            part = torch.tensor([prompt[start : start + chunk]])
            positions = torch.arange(start, start + part.shape[1])[None]
            logits = forward([row], part, positions, torch.tensor([part.shape[1] - 1]))
        found.append(logits[0])
    return torch.stack(found)


def all_rows_to_the_end(forward: Forward, prompts: list[list[int]], chunk: int) -> Tensor:
    """Every row is in every step, with padding where its prompt has ended, and the last step's logits count."""
    longest = max(map(len, prompts))
    for start in range(0, longest, chunk):
        parts = [prompt[start : start + chunk] or [0] for prompt in prompts]
        T = max(map(len, parts))
        ids = torch.tensor([part + [0] * (T - len(part)) for part in parts])
        last = torch.tensor([len(part) - 1 for part in parts])
        logits = forward(list(range(len(prompts))), ids, torch.arange(start, start + T).expand(len(parts), T), last)
    return logits


def one_token_a_step(forward: Forward, prompts: list[list[int]], chunk: int) -> Tensor:
    """After the first chunk a cached model takes one token at a time."""
    found: dict[int, Tensor] = {}
    begins = [0, *range(chunk, max(map(len, prompts)))]
    for start in begins:
        rows = [row for row, prompt in enumerate(prompts) if len(prompt) > start]
        parts = [prompts[row][start : start + (1 if start else chunk)] for row in rows]
        T = max(map(len, parts))
        ids = torch.tensor([part + [0] * (T - len(part)) for part in parts])
        last = torch.tensor([len(part) - 1 for part in parts])
        logits = forward(rows, ids, torch.arange(start, start + T).expand(len(rows), T), last)
        found |= {row: logits[at] for at, row in enumerate(rows)}
    return torch.stack([found[row] for row in range(len(prompts))])


RANGE = "range(0, max(map(len, prompts)), chunk)"
LAST = "torch.tensor([len(part) - 1 for part in parts])"
POSITIONS = "torch.arange(start, start + T).expand(len(rows), T)"
PARTS = "prompts[row][start : start + chunk]"
STEP = "logits = forward(rows, ids, positions, last)"
FOUND = "found |= {row: logits[at] for at, row in enumerate(rows)}"
WRONG = (
    Wrong.patch(
        "chunk-by-itself", "A chunk is a text of its own, and begins at position 0.", POSITIONS,
        "torch.arange(T).expand(len(rows), T)", "huggingface/transformers#43082, huggingface/candle#3743",
    ),
    Wrong.patch(
        "padded-column", "The logits that count are the last column's.", LAST, "torch.full((len(rows),), T - 1)",
        "huggingface/transformers#3167; mlx-node/mlx-node#47: logits cut at the wrong place",
    ),
    Wrong.patch(
        "first-chunks-logits", "A row's first token is chosen after its first chunk.", FOUND,
        "found = {row: logits[at] for at, row in enumerate(rows)} | found",
        "vllm-project/vllm#4139: tokens are sampled from unfinished prompts",
    ),
    Wrong(all_rows_to_the_end, "tenstorrent/tt-xla#5830: idle rows get a token of the padding"),
    Wrong(row_after_row, "right tokens, and the batch is lost: as many steps as all prompts have chunks together"),
    Wrong.patch(
        "rows-renumbered", "The rows of a step are numbered from 0.", STEP,
        STEP.replace("rows", "list(range(len(rows)))"),
        "tenstorrent/tt-metal#52808: slots against the order in the chunk",
    ),
    Wrong.patch(
        "rest-dropped", "A prompt is a number of whole chunks.", RANGE,
        "range(0, max(chunk, max(map(len, prompts)) // chunk * chunk), chunk)",
        "an author's own slip: the division that rounds down",
    ),
    Wrong.patch(
        "shortest-prompt", "All prompts end when the first one does.", "max(map(len, prompts)), chunk",
        "min(map(len, prompts)), chunk", "an author's own slip, hidden as long as prompts are equally long",
    ),
    Wrong.patch(
        "one-token-again", "A chunk begins with the last token of the one before.", PARTS,
        "prompts[row][max(0, start - 1) : start + chunk]", "skyzh/tiny-llm#46: an offset that does not fit its tokens",
    ),
    Wrong.patch(
        "one-pass", "Chunks change nothing in the result, so they are left out.", "found = {}",
        "found, chunk = {}, max(chunk, max(map(len, prompts)))",
        "true of the result; the memory for a whole prompt is needed all the same",
    ),
    Wrong(one_token_a_step, "huggingface/candle#3743: whole prompts and single tokens, and nothing between"),
    Wrong.patch(
        "one-step-more", "The end of the prompt must be reached, so the end of the range is too.", RANGE,
        RANGE.replace(", chunk)", " + 1, chunk)"), "an author's own slip: an empty step where the last chunk is full",
    ),
    Wrong.patch(
        "longest-first", "The step's rows come in the order of their lengths, and so do the results.",
        "[found[row] for row in range(len(prompts))]",
        "[found[row] for row in sorted(range(len(prompts)), key=lambda row: -len(prompts[row]))]",
        "fartashf/vsepp#36, pytorch/pytorch#4927: sorted for packing, and never put back",
    ),
)  # fmt: skip


def whole_table(forward: Forward, prompts: list[list[int]], chunk: int) -> Tensor:
    """One padded table of all prompts, cut into strips; rows are picked by tensors."""
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    table = torch.full((len(prompts), int(lengths.max())), 7)
    for row, prompt in enumerate(prompts):
        table[row, : len(prompt)] = torch.tensor(prompt)
    out: Tensor | None = None
    for start in range(0, table.shape[1], chunk):
        rows = (lengths > start).nonzero()[:, 0]
        ends = (lengths[rows] - start).clamp(max=chunk)
        strip = table[rows, start : start + int(ends.max())]
        logits = forward(rows.tolist(), strip, torch.arange(start, start + strip.shape[1]).expand_as(strip), ends - 1)
        out = logits.new_zeros(len(prompts), logits.shape[1]) if out is None else out
        out[rows] = logits
    assert out is not None
    return out


def until_nothing_is_left(forward: Forward, prompts: list[list[int]], chunk: int) -> Tensor:
    """The prompts are eaten up from the front; the longest rows come first in each step; padded to the whole chunk."""
    left, logits = {row: (0, list(prompt)) for row, prompt in enumerate(prompts)}, [torch.empty(0)] * len(prompts)
    while left:
        rows = sorted(left, key=lambda row: -len(left[row][1]))
        ids = [(left[row][1] + [3] * chunk)[:chunk] for row in rows]
        positions = [[left[row][0] + at for at in range(chunk)] for row in rows]
        ends = [min(chunk, len(left[row][1])) - 1 for row in rows]
        told = forward(rows, torch.tensor(ids), torch.tensor(positions), torch.tensor(ends))
        for row, own in zip(rows, told, strict=True):
            logits[row] = own
            at, rest = left.pop(row)
            if len(rest) > chunk:
                left[row] = (at + chunk, rest[chunk:])
    return torch.stack(logits)


def by_recursion(forward: Forward, prompts: list[list[int]], chunk: int) -> Tensor:
    """One step, then the same for the rest; float64."""

    def rest(start: int, rows: list[int]) -> dict[int, Tensor]:
        if not rows:
            return {}
        parts = [torch.tensor(prompts[row][start : start + chunk]) for row in rows]
        ids = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)
        positions = start + torch.arange(ids.shape[1]).repeat(len(rows), 1)
        told = forward(rows, ids, positions, torch.tensor([len(part) for part in parts]) - 1).double()
        own = dict(zip(rows, told, strict=True))
        return own | rest(start + chunk, [row for row in rows if len(prompts[row]) > start + chunk])

    found = rest(0, list(range(len(prompts))))
    return torch.stack([found[row] for row in sorted(found)])


RIGHT = (Right(whole_table), Right(until_nothing_is_left), Right(by_recursion))

_PADDING = "ids of padded columns are not looked at"
EQUIVALENT = {
    "ids = torch.tensor([part + [-1] * (T - len(part)) for part in parts])": _PADDING,
    "ids = torch.tensor([part + [1] * (T - len(part)) for part in parts])": _PADDING,
}
