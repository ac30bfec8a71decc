"""Rows into the records that users get: made in the thread of who reads them, the engine's has no time for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nanoinfer.requests import Completion, Logprobs, Metrics, Piece
from nanoinfer.text.stop import TextStream
from nanoinfer.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from nanoinfer.engine.queue import Queued as Row


def _of_prompt(row: Row) -> tuple[Logprobs | None, ...] | None:
    prompt = _records(row.prompt_logprobs, row.request.params.prompt_logprobs)
    return prompt if prompt is None else (None, *prompt)


def _records(values: Sequence[Sequence[float]], top: int | None) -> tuple[Logprobs, ...] | None:
    """Logprobs with the `top` most probable; None where none were asked for."""
    return None if top is None else tuple(Logprobs.of_host(each, top) for each in values)


class RowReader:
    """Pieces of a row that the engine's thread goes on with meanwhile, and what came of it.

    The row itself is the queue: a reader who comes late finds all of its tokens there, and nothing else is kept. The
    text is not the engine's own, which may be in another process.
    """

    def __init__(self, row: Row, tokenizer: Tokenizer) -> None:
        self._row, self._read, self._begun = row, 0, False
        self._stream = TextStream(tokenizer, row.request.params.stop)

    @property
    def unread(self) -> int:
        """Tokens that have come and were not read."""
        return len(self._row.token_ids) - self._read

    def piece(self, tokens: int) -> Piece:
        """The next `tokens` tokens, which the engine has told of, as one piece. There must be any, or it has ended."""
        row, request, begin = self._row, self._row.request, self._read
        reason = row.finish_reason  # ahead of the tokens: where it is set, all of them are there
        ids, text = self._take(tokens)
        done = None
        if reason and not self.unread:
            text += self._stream.finish()
            done = self.completion()
        if done and not self._begun:  # all of it at once
            logprobs, prompt = done.logprobs, done.prompt_logprobs
        else:
            logprobs = _records(row.logprobs[begin : self._read], request.params.logprobs)
            prompt = None if self._begun else _of_prompt(row)
        self._begun = True
        return Piece(request.index, ids, text, reason if done else None, done, request.sample, logprobs, prompt)

    def _take(self, tokens: int) -> tuple[tuple[int, ...], str]:
        """The next tokens, and their text; a stop token has none."""
        ids = tuple(self._row.token_ids[self._read : self._read + tokens])
        self._read += len(ids)
        return ids, self._stream.extend(ids[:-1] if ids and ids[-1] in self._row.request.stop_ids else ids)

    def completion(self) -> Completion:
        """What came of the row, which has ended."""
        row, request = self._row, self._row.request
        assert row.finish_reason is not None
        self._take(self.unread)
        self._stream.finish()
        return Completion(
            index=request.index,
            prompt_token_ids=request.prompt_token_ids,
            token_ids=tuple(row.token_ids),
            text=self._stream.text,
            finish_reason=row.finish_reason,
            seed=request.seed,
            metrics=Metrics.of(row),
            sample=request.sample,
            logprobs=_records(row.logprobs, request.params.logprobs),
            prompt_logprobs=_of_prompt(row),
        )
