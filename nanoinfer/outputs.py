"""Rows into the records that users get: made in the thread of who reads them, the engine's has no time for it."""

from __future__ import annotations

from collections.abc import Sequence

from nanoinfer.engine.logprobs import of_host
from nanoinfer.engine.scheduler import Row
from nanoinfer.requests import Completion, Logprobs, Piece
from nanoinfer.text.stop import TextStream
from nanoinfer.text.tokenizer import Tokenizer


def completion(row: Row, tokenizer: Tokenizer, text: str | None = None) -> Completion:
    """What came of a finished row. text: where it is known already."""
    request, ids = row.request, row.token_ids
    assert row.finish_reason is not None
    if text is None and request.text is not None:
        request.text.finish()
        text = request.text.text
    elif text is None:
        text = tokenizer.decode(ids[:-1] if ids and ids[-1] in request.stop_ids else ids)
    prompt = _records(row.prompt_logprobs, request.params.prompt_logprobs)
    return Completion(
        index=request.index,
        prompt_token_ids=request.prompt_token_ids,
        token_ids=tuple(ids),
        text=text,
        finish_reason=row.finish_reason,
        seed=request.seed,
        metrics=row.metrics(),
        sample=request.sample,
        logprobs=_records(row.logprobs, request.params.logprobs),
        prompt_logprobs=prompt if prompt is None else (None, *prompt),
    )


def _records(values: Sequence[Sequence[float]], top: int | None) -> tuple[Logprobs, ...] | None:
    """Logprobs with the `top` most probable; None where none were asked for."""
    return None if top is None else tuple(of_host(each, top) for each in values)


class RowReader:
    """Pieces of a row that the engine's thread goes on with meanwhile.

    The row itself is the queue: a reader who comes late finds all of its tokens there, and nothing else is kept.
    """

    def __init__(self, row: Row, tokenizer: Tokenizer) -> None:
        self._row, self._tokenizer, self._read = row, tokenizer, 0
        self._stream = TextStream(tokenizer, row.request.params.stop)

    def piece(self, tokens: int) -> Piece:
        """The next `tokens` tokens, which the engine has told of, as one piece. The row must not be cancelled."""
        row, request, stream = self._row, self._row.request, self._stream
        reason = row.finish_reason  # ahead of the tokens: where it is set, all of them are there
        ids = tuple(row.token_ids[self._read : self._read + tokens])
        logprobs = _records(row.logprobs[self._read : self._read + tokens], request.params.logprobs)
        self._read += len(ids)
        text = "".join([stream.push(token) for token in ids if token not in request.stop_ids])
        if reason is None or self._read < len(row.token_ids):
            return Piece(request.index, ids, text, sample=request.sample, logprobs=logprobs)
        text += stream.finish()
        return Piece(request.index, ids, text, reason, self.completion(stream.text), request.sample, logprobs)

    def completion(self, text: str | None = None) -> Completion:
        """What came of the row, which has ended."""
        return completion(self._row, self._tokenizer, text)
