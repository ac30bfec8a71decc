"""Prompt lookup: what followed the last time that the text went like this. Chapter 7.

No model: texts that repeat themselves, as summaries, edits and code do, are drafted by their own n-grams. They lie on
the device, where a step writes the tokens that it chose and the next one finds them, whenever the host hears of these.
Idea: A. Saxena 2023, "Prompt Lookup Decoding" (github.com/apoorvumang/prompt-lookup-decoding); Yang et al. 2023,
"Inference with Reference: Lossless Acceleration of Large Language Models", section 3.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nanoinfer.engine.state import upload
from nanoinfer.kernels import paged_attention_torch
from nanoinfer.kernels.available import kernels_for
from nanoinfer.speculate.drafts import NONE, agreeing

if TYPE_CHECKING:
    from nanoinfer.speculate.engine import Drafting as Row

LONGEST = 3  # tokens of an n-gram that is looked for; then shorter ones


def look_up(texts: Tensor, rows: Tensor, positions: Tensor, k: int, longest: int = LONGEST) -> Tensor:
    """The k tokens (B, k) that followed the longest n-gram that a text ends with, where it stood last; else NONE.

    After its end the text is taken to go on as it has since then. texts (N, T) int64. rows, positions (B,) int64:
    which of the texts, and where its newest token stands.
    """
    text, end = texts[rows], positions[:, None]  # (B, T), (B, 1)
    T = text.shape[1]
    at, length = torch.arange(T, device=text.device), torch.zeros_like(text)
    same = at < end  # an n-gram that ends here; at the text's own end nothing has followed it
    for n in range(longest):
        last = text.gather(1, (end - n).clamp(min=0))
        same = same & (at >= n) & (text.roll(n, 1) == last)
        length += same
    best = (length * T + at).amax(1, keepdim=True)  # (B, 1) the longest, of these the last
    since = best % T  # (B, 1)
    places = since + 1 + torch.arange(k, device=text.device) % (end - since).clamp(min=1)  # (B, k)
    return torch.where(best >= T, text.gather(1, places.clamp(max=T - 1)), NONE)


def characters(row: Row) -> str:
    """The row's prompt and new tokens, each a character: a string's own search finds what stood before.

    As chr() of each token, in a third of the time: a prompt's are many, and the next step waits.
    """
    new = array("I", row.tokens[len(row.characters) :])
    row.characters += new.tobytes().decode(f"utf-32-{sys.byteorder[0]}e", "surrogatepass")
    return row.characters


def followed(text: str, lengths: Sequence[int]) -> str:
    """What stands after the place where the text's end stood last: its last n tokens, of the first n that did."""
    for n in lengths:
        if n < len(text) and (at := text.rfind(text[-n:], 0, -1)) >= 0:
            return text[at + n :]
    return ""


class Repeats:
    """A `Drafter` of what followed in the row's own text, prompt and new tokens, found by the host."""

    def draft(self, rows: Sequence[Row], limits: Sequence[int]) -> list[list[int]]:
        pairs = zip(rows, limits, strict=True)
        return [self.follow(characters(row), limit) if limit else [] for row, limit in pairs]

    def foreseen(self, row: Row, most: int) -> int:
        text = characters(row)
        return agreeing(self.follow(text[:-most], most), map(ord, text[-most:]))

    def follow(self, text: str, limit: int) -> list[int]:
        """What follows a text in which each token is a character; it goes round."""
        return list(map(ord, (followed(text, range(LONGEST, 0, -1)) * limit)[:limit]))


class PromptLookup(Repeats):
    """As `Repeats`, and within a captured step, which finds the same on the device.

    texts: (max_batch + 1, ...) of rows and of the dummy row, with room for what a step may choose at a text's end.
    """

    def __init__(self, max_batch: int, max_len: int, draft_tokens: int, device: torch.device) -> None:
        width = max_len + draft_tokens + 1
        self.texts = torch.zeros(max_batch + 1, width, dtype=torch.int64, device=device)
        self._look_up: Callable[[Tensor, Tensor, Tensor, int], Tensor] = look_up
        if kernels_for(device) is not paged_attention_torch:
            from nanoinfer.kernels import lookup

            self._look_up = partial(lookup.look_up, longest=LONGEST, none=NONE)

    def propose(self, rows: Tensor, positions: Tensor, k: int) -> Tensor:
        """Drafts (B, k) of rows (B,) of the batch state, whose newest tokens stand at positions (B,); NONE for none."""
        return self._look_up(self.texts, rows, positions, k)

    def note(self, rows: Tensor, places: Tensor, tokens: Tensor) -> None:
        """A step has chosen these tokens (B, k + 1) for these places of texts; of the dummy row what is of no use."""
        self.texts[rows, places] = tokens

    def learn(self, rows: Sequence[Row]) -> None:
        """These rows have the tokens that the host knows, of which `learned` are on the device. No step in flight
        drafts; before one does, all are known.
        """
        places: list[Tensor] = []
        tokens, width = array("q"), self.texts.shape[1]
        for row in rows:
            if text := self.text(row)[row.learned :]:
                begin = row.row * width + row.learned
                places.append(torch.arange(begin, begin + len(text)))
                tokens.extend(text)
                row.learned += len(text)
        if tokens:
            packed = torch.stack([torch.cat(places), torch.frombuffer(tokens, dtype=torch.int64)])
            self.texts.view(-1).index_copy_(0, *upload(packed, torch.int64, self.texts.device))

    def text(self, row: Row) -> Sequence[int]:
        """What is put on the device of a row."""
        return row.tokens

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Rows of the batch are to be known by other numbers."""
        source, target = upload([sources, targets], torch.int64, self.texts.device)
        self.texts[target] = self.texts[source]
