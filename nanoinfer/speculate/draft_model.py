"""A smaller GPT-2 that drafts, with a cache of its own. Chapter 7.

It samples each draft with the noise that the row will use in that place: two models that agree about the logits then
agree about the token. Its cache holds tokens that may be rejected. What is known of it is how far it is right, so that
rolling back is taking a number back, and what comes next is written over the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nanoinfer.cache.captured import CapturedDense
from nanoinfer.engine.mixed import NEWEST, Mixed, Piece, mixed_step
from nanoinfer.engine.samplers import Samplers, cheapest
from nanoinfer.engine.state import BatchState, Begun, Fetch, upload
from nanoinfer.engine.step import Prompts
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.speculate.drafts import agreeing

if TYPE_CHECKING:
    from nanoinfer.speculate.engine import Drafting as Row


class DraftModel:
    """A `Drafter` by a GPT-2 that has the vocabulary of the one that verifies.

    cache: of as many rows as the engine has, empty; its rows are the engine's. It holds the first `learned` tokens of a
    sequence's text, and behind them those `drafted`. max_batched_tokens: of one of its steps. A row whose text is not
    read yet, or longer than the cache's rows, has no drafts.
    """

    def __init__(
        self, model: GPT2, cache: CapturedDense, max_batch: int, samplers: Samplers, max_batched_tokens: int
    ) -> None:
        self.model, self.cache, self.samplers, self.max_batched_tokens = model, cache, samplers, max_batched_tokens
        with torch.inference_mode():
            self.state = BatchState.empty(max_batch, model.device)

    @torch.inference_mode()
    def draft(self, rows: Sequence[Row], limits: Sequence[int]) -> list[list[int]]:
        chunks, wanted = self._unread(rows, limits)
        if not chunks:
            return [[] for _ in rows]
        self.state.admit(
            [Begun(chunk.row, row.request.seed, row.generated, row.params) for row, chunk in chunks.items()]
        )
        sampler = self.samplers[max(cheapest(row.params) for row in chunks)]
        tokens = [self._step(list(chunks.values()), sampler)]  # penalties are not foreseen
        asked = [list(wanted)]
        for n in range(1, max(wanted.values(), default=0)):
            asked.append([row for row in asked[-1] if wanted[row] > n])
            going = [Piece(chunks[row].row, len(row.tokens) + n - 1, (NEWEST,), True) for row in asked[-1]]
            tokens.append(self._step(going, sampler))
        drafts: dict[Row, list[int]] = {row: [] for row in rows}
        for row, token in zip((row for each in asked for row in each), Fetch(torch.cat(tokens)).wait(), strict=True):
            drafts[row].append(token)
        for row in wanted:
            row.drafted = drafts[row][:-1]  # the last one was not fed
        return [drafts[row] for row in rows]

    def _unread(self, rows: Sequence[Row], limits: Sequence[int]) -> tuple[dict[Row, Piece], dict[Row, int]]:
        """What is to be read of each row, within the budget; and how many drafts are wanted of those it completes."""
        chunks: dict[Row, Piece] = {}
        wanted: dict[Row, int] = {}
        budget = self.max_batched_tokens
        for row, limit in zip(rows, limits, strict=True):
            length = len(row.tokens)
            count = min(limit, self.cache.max_len - length + 1)
            if count < 1 or not budget:
                continue
            if not row.learned:
                self.cache.begin(upload([row.row], torch.int64, self.model.device))
            row.learned += agreeing(row.drafted, row.tokens[row.learned : -1])  # the newest token is fed in any case
            row.drafted = []
            text = row.tokens[row.learned :][:budget]
            complete = row.learned + len(text) == length
            chunks[row] = Piece(row.row, row.learned, text, complete)
            row.learned += len(text)
            budget -= len(text)
            if complete:
                wanted[row] = count
        return chunks, wanted

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Rows of the batch are to be known by other numbers."""
        self.cache.move(*upload([sources, targets], torch.int64, self.model.device))

    def _step(self, pieces: list[Piece], sampler: Any) -> Tensor:
        """The tokens that follow complete pieces, one each; of the others, what is of no use."""
        step = Mixed(pieces, [], [])
        packed = upload(step.pack(step.layout, self.state.dummy), torch.int64, self.state.token.device)
        tokens = mixed_step(self.model, self.cache, self.state, Prompts.of_packed(packed, step.layout), sampler)
        return tokens[[n for n, piece in enumerate(pieces) if piece.complete]]
