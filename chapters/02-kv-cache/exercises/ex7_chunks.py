"""Exercise 2.7: prompts of different lengths go through the model in chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from nanocourse.exercises.cases import Call, Case, call
from nanocourse.exercises.exercise import IMPORTS, Check, Function, Spec
from nanocourse.exercises.swap import replaced
from nanocourse.exercises.toy_model import Toy
from nanoinfer.model.batch import Step


def prefill(
    forward: Callable[[list[int], Tensor, Tensor, Tensor], Tensor], prompts: list[list[int]], chunk: int
) -> Tensor:
    """Logits (B, V) after the last token of each of B prompts, float32, which go through the model in chunks.

    forward: one step over a cache. It takes rows (which of the prompts: b numbers from 0 to B - 1, in any order), token
    ids (b, t) int64, their positions (b, t) int64, and the column of each row's last real token (b,) int64; columns
    behind it are padding, and their ids are not looked at. It writes the real tokens' keys and values to the slots of
    their positions, lets each query read its row's slots up to its own position, and returns (b, V): the logits at each
    row's last real token.
    prompts: token ids of each, at least one, in any lengths. chunk: columns of a step at most.
    """
    found = {}
    for start in range(0, max(map(len, prompts)), chunk):
        rows = [row for row, prompt in enumerate(prompts) if len(prompt) > start]
        parts = [prompts[row][start : start + chunk] for row in rows]
        T = max(map(len, parts))
        ids = torch.tensor([part + [0] * (T - len(part)) for part in parts])
        positions = torch.arange(start, start + T).expand(len(rows), T)
        last = torch.tensor([len(part) - 1 for part in parts])
        logits = forward(rows, ids, positions, last)  # (b, V)
        found |= {row: logits[at] for at, row in enumerate(rows)}
    return torch.stack([found[row] for row in range(len(prompts))])


@contextmanager
def swap(mine: Function) -> Iterator[None]:
    """Engine._prefill runs it over newly admitted rows, and samples from what it returns."""

    @torch.inference_mode()
    def prefill(self: Any, admitted: list[Any]) -> None:
        self.memory.grow([row.length for row in self.rows])
        slots = slice(admitted[0].slot, admitted[-1].slot + 1)
        self.state.admit(slots, [row.request for row in admitted])
        prompts = [list(row.request.prompt_token_ids) for row in admitted]

        def forward(rows: list[int], ids: Tensor, positions: Tensor, last: Tensor) -> Tensor:
            which = torch.tensor([admitted[row].slot for row in rows])
            there = (part.to(self.device) for part in (ids, positions, last, which))
            step = Step(*there, longest=int(positions.max()) + 1)
            self.stats.prefill_steps += 1
            return self.runner.model(self.memory.begin(step), self.memory)

        logits = mine(forward, prompts, self.prefill_chunk or max(map(len, prompts)))
        rows = self.state.at(slots)
        rows.token.copy_(self._sampler(admitted)(logits.to(self.device).float(), rows))
        rows.position.copy_(torch.tensor([len(prompt) for prompt in prompts]))
        rows.step.fill_(1)
        self.stats.requests += len(admitted)
        self.stats.prompt_tokens += sum(map(len, prompts))
        self._launched(admitted, self.state.token[slots])

    with replaced("nanoinfer.engine.engine:Engine._prefill", prefill):
        yield


class Cached:
    """A toy model over a cache, for B rows: what a query may read is what was written at positions up to its own."""

    def __init__(self, seed: int, vocabulary: int, rows: int) -> None:
        self.toy = Toy(seed, vocabulary, 64)
        self.texts: list[dict[int, int]] = [{} for _ in range(rows)]  # token ids by position
        self.passes: list[list[int]] = []  # real tokens of each row, pass by pass

    def forward(self, rows: list[int], ids: Tensor, positions: Tensor, last: Tensor) -> Tensor:
        """ValueError for what an engine could not take either."""
        shapes = {tuple(ids.shape), tuple(positions.shape)}
        if len(shapes) > 1 or ids.dim() != 2 or tuple(last.shape) != (len(ids),) or len(rows) != len(ids):
            raise ValueError("rows, ids, positions and last do not fit each other")
        if not all(0 <= end < ids.shape[1] for end in last.tolist()):
            raise ValueError(f"last must be from 0 to {ids.shape[1] - 1}")
        found = []
        for at, (row, end) in enumerate(zip(rows, last.tolist(), strict=True)):
            text, here = self.texts[row], positions[at, : end + 1].tolist()
            text.update(zip(here, ids[at, : end + 1].tolist(), strict=True))
            found.append(self.toy.logits([text.get(position, 0) for position in range(here[-1] + 1)])[-1])
        self.passes.append(sorted((last + 1).tolist()))
        return torch.stack(found)


def _example() -> Call:
    def forward(rows: list[int], ids: Tensor, positions: Tensor, last: Tensor) -> Tensor:
        """one step; the highest logit is that of the row's last real token's own number"""
        return torch.eye(4)[[int(ids[at, end]) for at, end in enumerate(last.tolist())]]

    return call(forward, [[3, 1, 2], [0, 3]], 2)


EXERCISE = Spec(
    title="Prefill in chunks",
    reference=prefill,
    task=(
        "A long prompt in one step needs much memory, and everybody else waits for it. So prompts go through the\n"
        "model in chunks: the first `chunk` tokens of every prompt, then the next ones of those that go on, and so\n"
        "forth. All rows that have tokens left share a step."
    ),
    invariants=(
        "the result does not depend on `chunk`, but for rounding",
        "each token goes through the model once, in the order of its text",
        "there are as many steps as the longest prompt has chunks, and a prompt that has ended is in no further one",
        "positions go on from chunk to chunk",
    ),
    lines=9,
    example=_example,
    section="A long prompt, in chunks",
    axes=("row", "id"),
    tolerance=1e-4,
    imports=IMPORTS,
    swap=swap,
    refuse=("nanoinfer.engine.engine:Engine._prefill", "nanoinfer.engine.engine:Engine._prompt_step"),
    hints=(
        "Invariant: write down the positions of all steps of one row, one behind the other. They are 0, 1, 2, ...\n"
        "without a gap, without a repetition, and end at its length minus one.",
        "Place: one loop, over where chunks begin. Within it the rows that still have tokens there are picked, and it\n"
        "is their own numbers that `forward` wants, not how many they are. A part may be shorter than the chunk; the\n"
        "step is as wide as its longest part. A row's logits are those of the last step that it was in: keep what\n"
        "comes, by row, and let later ones take the place of earlier ones.",
        "Pseudocode:\n"
        "  for each beginning 0, chunk, 2 * chunk, ... below the longest prompt's length:\n"
        "      the rows whose prompt goes beyond it, and the part of each from there on, `chunk` tokens at most\n"
        "      fill the parts up on the right to the longest of them\n"
        "      positions count on from the beginning, and a row's last real column follows from its part\n"
        "      one step; remember each row's logits under its own number\n"
        "  put the rows' logits one below the other, in the prompts' order",
    ),
)


def _call(case: Case, prompts: list[list[int]], chunk: int) -> Call:
    cached = Cached(int(case.ints("model", 0, 10**6, 1)), 12, len(prompts))
    return call(cached.forward, prompts, chunk, observe=lambda: {"tokens of each row, pass by pass": cached.passes})


def _prompt(case: Case, name: str, length: int) -> list[int]:
    tokens: list[int] = case.ints(name, 1, 11, length).tolist()
    return tokens


def one_prompt(case: Case) -> Call:
    """A chunk reads all chunks before it: the same logits come out as from the whole prompt."""
    chunk = case.size("chunk", 1, 3)
    length = chunk * case.size("whole chunks", 1, 3) + case.size("rest", 0, chunk - 1)
    return _call(case, [_prompt(case, "prompt", length)], chunk)


def ragged(case: Case) -> Call:
    """A row whose prompt has ended is in no further step, and keeps the logits behind its own last token."""
    chunk = case.size("chunk", 2, 3)
    lengths = [case.size("short", 1, chunk), 2 * chunk + case.size("long", 1, chunk - 1), chunk + 1]
    order = case.permutation("order", 3).tolist()
    return _call(case, [_prompt(case, f"prompt {at}", lengths[at]) for at in order], chunk)


CHECKS = (Check(one_prompt, 5), Check(ragged, 4))
