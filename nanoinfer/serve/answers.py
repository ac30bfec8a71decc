"""Completions as OpenAI's API writes them: one JSON object, or server-sent events."""

from __future__ import annotations

import codecs
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from pydantic_core import to_json

from nanoinfer.requests import Completion, Logprobs, Piece
from nanoinfer.serve.fields import CompletionRequest
from nanoinfer.text.tokenizer import Tokenizer

DONE = b"data: [DONE]\n\n"
_json = partial(to_json, inf_nan_mode="null", ensure_ascii=True)  # some clients end a line at U+2028, too


class Answer:
    """The answer to one request, whole or in events. What all its events share is encoded once."""

    def __init__(self, asked: CompletionRequest, name: str, tokenizer: Tokenizer) -> None:
        self.asked, self._tokenizer = asked, tokenizer
        self._first = {"id": name, "object": "text_completion", "created": int(time.time()), "model": asked.model}
        self._head = b'data: %s,"choices":[' % _json(self._first)[:-1]
        self._tail = b'],"usage":null}\n\n' if asked.include_usage else b"]}\n\n"
        self._places: dict[int, Place] = {}  # of the choices that have begun

    def whole(self, completions: Sequence[Completion], usage: dict[str, int]) -> bytes:
        """Return the one JSON object."""
        choices = [self._choice(one, one.prompt_token_ids) for one in completions]
        return _json({**self._first, "choices": choices, "usage": usage})

    def event(self, piece: Piece, prompt: Sequence[int]) -> bytes:
        """Return the event of a piece; empty where it says nothing. prompt: the ids of its row's prompt."""
        choice = self._choice(piece, prompt)
        if not (choice["text"] or choice["logprobs"] or piece.finish_reason or self.asked.return_token_ids):
            return b""
        return self._head + _json(choice) + self._tail

    def last_events(self, usage: dict[str, int]) -> bytes:
        """Return what follows the last piece: the end mark, and before it the usage where that is asked for."""
        if not self.asked.include_usage:
            return DONE
        return b"data: %s\n\n" % _json({**self._first, "choices": [], "usage": usage}) + DONE

    def _choice(self, one: Completion | Piece, prompt: Sequence[int]) -> dict[str, Any]:
        index, text, logprobs = one.index * self.asked.params.n + one.sample, one.text, None
        place = self._places.get(index)
        echoed = prompt if self.asked.echo and place is None else ()
        if place is None:
            place = self._places[index] = Place(self._tokenizer)
        if echoed:
            text = self._tokenizer.decode(echoed) + text
        if self.asked.params.logprobs is not None:
            logprobs = place.logprobs(echoed, one.prompt_logprobs, one.token_ids, one.logprobs)
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": one.finish_reason}
        ids = ("token_ids", "prompt_token_ids") if self.asked.return_token_ids else ()
        return choice | {name: getattr(one, name) for name in ids if hasattr(one, name)}


class Place:
    """How far a choice's text has come, in characters: where each of its tokens begins."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._at = tokenizer, 0
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def logprobs(self, echoed: Sequence[int], of_prompt: Any, ids: Sequence[int], of_ids: Any) -> dict[str, list[Any]]:
        """Return the lists of these tokens; nothing precedes a prompt's first, so it has no logprob."""
        found: dict[str, list[Any]] = {name: [] for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}
        if echoed:
            self._add(found, echoed, of_prompt)
            self._cut()
        self._add(found, ids, of_ids)
        return found

    def _add(self, found: dict[str, list[Any]], ids: Sequence[int], values: Sequence[Logprobs | None] | None) -> None:
        for token, value in zip(ids, values or (), strict=True):
            raw = self._tokenizer.token_bytes(token)
            if raw and not 0x80 <= raw[0] < 0xC0:  # it does not go on with a character that has begun
                self._cut()
            likeliest = dict([*value.top, (value.token_id, value.logprob)]) if value else {}
            top = {token_text(self._tokenizer, each): logprob for each, logprob in likeliest.items()}
            found["tokens"].append(token_text(self._tokenizer, token))
            found["token_logprobs"].append(value and value.logprob)
            found["top_logprobs"].append(top or None)
            found["text_offset"].append(self._at)
            self._at += len(self._utf8.decode(raw))

    def _cut(self) -> None:
        """End a character that has begun and does not go on: what half a character leaves is one of its own."""
        self._at += len(self._utf8.decode(b"", final=True))
        self._utf8.reset()


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """Return a token's text; its bytes, as OpenAI writes them, where they are no text: two tokens never look alike."""
    raw = tokenizer.token_bytes(token_id)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
