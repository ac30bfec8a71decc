"""Completions as OpenAI's API writes them: one JSON object, or server-sent events.

What does not change from event to event is encoded once; of a token, only its text is.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence
from typing import Any

from nanoinfer.requests import Completion, Logprobs, Piece, to_json
from nanoinfer.serve.fields import Asked
from nanoinfer.text.tokenizer import Tokenizer

DONE = b"data: [DONE]\n\n"


def usage(completions: Sequence[Completion]) -> dict[str, int]:
    """How many tokens: each prompt once, however many samples it has."""
    prompt = sum(len(one.prompt_token_ids) for one in completions if one.sample == 0)
    new = sum(len(one.token_ids) for one in completions)
    return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}


class Answer:
    """The answer to one request, whole or in events."""

    def __init__(self, asked: Asked, name: str, created: int, tokenizer: Tokenizer) -> None:
        self.asked, self._tokenizer = asked, tokenizer
        self._first = {"id": name, "object": "text_completion", "created": created, "model": asked.model}
        self._head = f'data: {json.dumps(self._first)[:-1]}, "choices": [{{"index": '
        self._tail = ', "usage": null}\n\n' if asked.include_usage else "}\n\n"
        self._places: dict[int, Place] = {}  # of the choices that have logprobs
        self._begun: set[int] = set()

    def whole(self, completions: Sequence[Completion]) -> bytes:
        """The one JSON object."""
        choices = []
        for one in completions:
            prompt = one.prompt_token_ids if self.asked.echo else ()
            logprobs = self._logprobs(self._choice(one), one.token_ids, one.logprobs, prompt, one.prompt_logprobs)
            text = self._tokenizer.decode(prompt) + one.text
            choice = {"index": self._choice(one), "text": text, "logprobs": logprobs}
            choice["finish_reason"] = one.finish_reason
            if self.asked.token_ids:
                choice |= {"prompt_token_ids": one.prompt_token_ids, "token_ids": one.token_ids}
            choices.append(choice)
        return to_json({**self._first, "choices": choices, "usage": usage(completions)}).encode()

    def event(self, piece: Piece, prompt: Sequence[int]) -> bytes:
        """The event of a piece; empty where it says nothing. prompt: the ids of its row's prompt."""
        asked, index, text = self.asked, self._choice(piece), piece.text
        echoed: Sequence[int] = ()
        if asked.echo and index not in self._begun:
            self._begun.add(index)
            echoed, text = prompt, self._tokenizer.decode(prompt) + text
        logprobs, more = "null", ""
        if asked.params.logprobs is not None:
            found = self._logprobs(index, piece.token_ids, piece.logprobs, echoed, piece.prompt_logprobs)
            logprobs = to_json(found)
        elif not (text or piece.finish_reason or asked.token_ids):
            return b""
        if asked.token_ids:
            more = f', "token_ids": {[*piece.token_ids]}'
        reason = f'"{piece.finish_reason}"' if piece.finish_reason else "null"
        middle = f'{index}, "text": {json.dumps(text)}, "logprobs": {logprobs}, "finish_reason": {reason}{more}}}]'
        return (self._head + middle + self._tail).encode()

    def usage_event(self, completions: Sequence[Completion]) -> bytes:
        """The last event, where it is asked for."""
        if not self.asked.include_usage:
            return b""
        return f"data: {json.dumps({**self._first, 'choices': [], 'usage': usage(completions)})}\n\n".encode()

    def _choice(self, one: Completion | Piece) -> int:
        return one.index * self.asked.params.n + one.sample

    def _logprobs(
        self,
        index: int,
        ids: Sequence[int],
        values: Sequence[Logprobs] | None,
        prompt: Sequence[int],
        prompt_values: Sequence[Logprobs | None] | None,
    ) -> dict[str, list[Any]] | None:
        if self.asked.params.logprobs is None:
            return None
        place = self._places.setdefault(index, Place(self._tokenizer))
        found: dict[str, list[Any]] = {name: [] for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}
        if prompt:
            place.add(found, prompt, prompt_values or ())
            place.cut()
        place.add(found, ids, values or ())
        return found


class Place:
    """How far a choice's text has come, in characters: where each of its tokens begins."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._at = tokenizer, 0
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, found: dict[str, list[Any]], ids: Sequence[int], values: Sequence[Logprobs | None]) -> None:
        """Append these tokens to the lists; nothing precedes a prompt's first, so it has no logprob."""
        for token, value in zip(ids, values, strict=True):
            raw = self._tokenizer.token_bytes(token)
            if raw and not 0x80 <= raw[0] < 0xC0:  # it does not go on with a character that has begun
                self.cut()
            found["tokens"].append(token_text(self._tokenizer, token))
            found["token_logprobs"].append(value and value.logprob)
            found["top_logprobs"].append(value and self._top(value))
            found["text_offset"].append(self._at)
            self._at += len(self._utf8.decode(raw))

    def cut(self) -> None:
        """End a character that has begun and does not go on: what half a character leaves is one of its own."""
        self._at += len(self._utf8.decode(b"", final=True))
        self._utf8.reset()

    def _top(self, value: Logprobs) -> dict[str, float]:
        likeliest = {token_text(self._tokenizer, token): logprob for token, logprob in value.top}
        return likeliest | {token_text(self._tokenizer, value.token_id): value.logprob}


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """A token's text; its bytes, as OpenAI writes them, where they are no text: two tokens never look alike."""
    raw = tokenizer.token_bytes(token_id)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
