"""Rows into the records that users get: made in the thread of who reads them, the engine's has no time for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nanoinfer.requests import Completion, Logprobs, Metrics, Piece
from nanoinfer.text.stop import TextStream
from nanoinfer.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from nanoinfer.engine.queue import Queued as Row


def completion(row: Row, tokenizer: Tokenizer, text: str | None = None) -> Completion:
    """What came of a finished row. text: where it is known already."""
    request, ids = row.request, row.token_ids
    assert row.finish_reason is not None
    if text is None:
        kept = ids[:-1] if ids and ids[-1] in request.stop_ids else ids
        text = _cut(kept, tokenizer, request.params.stop) if request.params.stop else tokenizer.decode(kept)
    return Completion(
        index=request.index,
        prompt_token_ids=request.prompt_token_ids,
        token_ids=tuple(ids),
        text=text,
        finish_reason=row.finish_reason,
        seed=request.seed,
        metrics=Metrics.of(row),
        sample=request.sample,
        logprobs=_records(row.logprobs, request.params.logprobs),
        prompt_logprobs=_of_prompt(row),
    )


def _cut(token_ids: Sequence[int], tokenizer: Tokenizer, stop: Sequence[str]) -> str:
    """Text of the tokens up to a stop string. Not the engine's own stream of it, which may be in another process."""
    stream = TextStream(tokenizer, stop)
    stream.extend(token_ids)
    stream.finish()
    return stream.text


def _of_prompt(row: Row) -> tuple[Logprobs | None, ...] | None:
    prompt = _records(row.prompt_logprobs, row.request.params.prompt_logprobs)
    return prompt if prompt is None else (None, *prompt)


def _records(values: Sequence[Sequence[float]], top: int | None) -> tuple[Logprobs, ...] | None:
    """Logprobs with the `top` most probable; None where none were asked for."""
    return None if top is None else tuple(Logprobs.of_host(each, top) for each in values)


class RowReader:
    """Pieces of a row that the engine's thread goes on with meanwhile.

    The row itself is the queue: a reader who comes late finds all of its tokens there, and nothing else is kept.
    """

    def __init__(self, row: Row, tokenizer: Tokenizer) -> None:
        self._row, self._tokenizer, self._read, self._begun = row, tokenizer, 0, False
        self._stream = TextStream(tokenizer, row.request.params.stop)

    @property
    def unread(self) -> int:
        """Tokens that have come and were not read."""
        return len(self._row.token_ids) - self._read

    def piece(self, tokens: int) -> Piece:
        """The next `tokens` tokens, which the engine has told of, as one piece. There must be any, or it has ended."""
        row, request, stream = self._row, self._row.request, self._stream
        reason = row.finish_reason  # ahead of the tokens: where it is set, all of them are there
        ids = tuple(row.token_ids[self._read : self._read + tokens])
        logprobs = _records(row.logprobs[self._read : self._read + tokens], request.params.logprobs)
        prompt = None if self._begun else _of_prompt(row)
        self._read, self._begun = self._read + len(ids), True
        text = stream.extend(ids[:-1] if ids and ids[-1] in request.stop_ids else ids)  # which ends it
        if reason is None or self._read < len(row.token_ids):
            return Piece(request.index, ids, text, None, None, request.sample, logprobs, prompt)
        text += stream.finish()
        return Piece(request.index, ids, text, reason, self.completion(stream.text), request.sample, logprobs, prompt)

    def completion(self, text: str | None = None) -> Completion:
        """What came of the row, which has ended."""
        return completion(self._row, self._tokenizer, text)
