"""Prompt lookup: what followed the last time that the text went like this. Chapter 7.

No model, no device: texts that repeat themselves, as summaries, edits and code do, are drafted by their own n-grams.
Idea: A. Saxena 2023, "Prompt Lookup Decoding" (github.com/apoorvumang/prompt-lookup-decoding); Yang et al. 2023,
"Inference with Reference: Lossless Acceleration of Large Language Models", section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from nanoinfer.engine.scheduler import Row

LONGEST = 3  # tokens of an n-gram that is looked for; then shorter ones


class TextIndex:
    """Where each n-gram of one text, of 1 to `longest` tokens, ended last. A new token costs `longest` look-ups."""

    def __init__(self, token_ids: Sequence[int], longest: int = LONGEST) -> None:
        self.token_ids: list[int] = []
        self._ends: list[dict[tuple[int, ...], int]] = [{} for _ in range(longest)]  # by length, less 1
        self.extend(token_ids)

    def extend(self, token_ids: Sequence[int]) -> None:
        """The text goes on. Its very end is not known as an end yet: nothing has followed it."""
        for token in token_ids:
            end, text = len(self.token_ids), self.token_ids
            for n, ends in enumerate(self._ends, start=1):
                if end >= n:
                    ends[tuple(text[end - n :])] = end
            text.append(token)

    def draft(self, limit: int) -> list[int]:
        """Up to `limit` tokens that followed the longest n-gram that the text ends with, where it stood last."""
        text = self.token_ids
        for n in range(min(len(self._ends), len(text)), 0, -1):
            if (end := self._ends[n - 1].get(tuple(text[-n:]))) is not None:
                return text[end : end + limit]
        return []


class PromptLookup:
    """A `Drafter` by the n-grams of each row's own text, prompt and new tokens."""

    def __init__(self, longest: int = LONGEST) -> None:
        self.longest = longest
        self._texts: WeakKeyDictionary[Row, TextIndex] = WeakKeyDictionary()

    def draft(self, rows: Sequence[Row], limits: Sequence[int]) -> list[list[int]]:
        return [self._text(row).draft(limit) if limit else [] for row, limit in zip(rows, limits, strict=True)]

    def _text(self, row: Row) -> TextIndex:
        """The row's index, as far as its tokens have come."""
        prompt = row.request.prompt_token_ids
        if (index := self._texts.get(row)) is None:
            index = self._texts[row] = TextIndex(prompt, self.longest)
        index.extend(row.token_ids[len(index.token_ids) - len(prompt) :])
        return index
