"""Completions as OpenAI's API writes them: one JSON object, or server-sent events."""

from __future__ import annotations

import codecs
import time
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from nanoinfer import requests
from nanoinfer.requests import Completion, Piece, to_json
from nanoinfer.serve.fields import CompletionRequest
from nanoinfer.text.tokenizer import Tokenizer

DONE = b"data: [DONE]\n\n"


class Usage(BaseModel):
    """How many tokens: each prompt once, however many samples it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Logprobs(BaseModel):
    """One entry a token in each list; nothing precedes a prompt's first token, so it has no logprob."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class Choice(BaseModel):
    """One sample of one prompt, or a piece of it."""

    index: int
    text: str
    logprobs: Logprobs | None
    finish_reason: str | None
    prompt_token_ids: Sequence[int] = ()
    token_ids: Sequence[int] = ()


class CompletionResponse(BaseModel):
    """A whole answer, or one event of a stream. What is not set is left out of the JSON."""

    id: str
    object: str
    created: int
    model: str
    choices: list[Choice]
    usage: Usage | None = None


class Answer:
    """The answer to one request, whole or in events."""

    def __init__(self, asked: CompletionRequest, name: str, tokenizer: Tokenizer) -> None:
        self.asked, self._tokenizer = asked, tokenizer
        usage: Any = {"usage": None} if asked.include_usage or not asked.stream else {}
        self._response = CompletionResponse(
            id=name, object="text_completion", created=int(time.time()), model=asked.model, choices=[], **usage
        )
        self._places: dict[int, Place] = {}  # of the choices that have logprobs
        self._begun: set[int] = set()

    def whole(self, completions: Sequence[Completion]) -> bytes:
        """The one JSON object."""
        for one in completions:
            choice = self._choice(one, one.prompt_token_ids)
            if self.asked.return_token_ids:
                choice.prompt_token_ids = one.prompt_token_ids
            self._response.choices.append(choice)
        self._response.usage = _usage(completions)
        return to_json(self._response.model_dump(exclude_unset=True)).encode()

    def event(self, piece: Piece, prompt: Sequence[int]) -> bytes:
        """The event of a piece; empty where it says nothing. prompt: the ids of its row's prompt."""
        choice = self._choice(piece, prompt)
        if not (choice.text or choice.logprobs or choice.finish_reason or self.asked.return_token_ids):
            return b""
        return self._event([choice])

    def last_events(self, completions: Sequence[Completion]) -> bytes:
        """What follows the last piece: the end mark, and before it the usage where that is asked for."""
        if not self.asked.include_usage:
            return DONE
        self._response.usage = _usage(completions)
        return self._event([]) + DONE

    def _event(self, choices: list[Choice]) -> bytes:
        self._response.choices = choices
        return b"data: %s\n\n" % self._response.model_dump_json(exclude_unset=True, ensure_ascii=True).encode()

    def _choice(self, one: Completion | Piece, prompt: Sequence[int]) -> Choice:
        index = one.index * self.asked.params.n + one.sample
        echoed = prompt if self.asked.echo and index not in self._begun else ()
        self._begun.add(index)
        text = self._tokenizer.decode(echoed) + one.text if echoed else one.text
        logprobs = None
        if self.asked.params.logprobs is not None:
            logprobs = Logprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
            place = self._places.setdefault(index, Place(self._tokenizer))
            if echoed:
                place.add(logprobs, echoed, one.prompt_logprobs or ())
                place.cut()
            place.add(logprobs, one.token_ids, one.logprobs or ())
        choice = Choice(index=index, text=text, logprobs=logprobs, finish_reason=one.finish_reason)
        if self.asked.return_token_ids:
            choice.token_ids = one.token_ids
        return choice


def _usage(completions: Sequence[Completion]) -> Usage:
    prompt = sum(len(one.prompt_token_ids) for one in completions if one.sample == 0)
    new = sum(len(one.token_ids) for one in completions)
    return Usage(prompt_tokens=prompt, completion_tokens=new, total_tokens=prompt + new)


class Place:
    """How far a choice's text has come, in characters: where each of its tokens begins."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._at = tokenizer, 0
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, to: Logprobs, ids: Sequence[int], values: Sequence[requests.Logprobs | None]) -> None:
        """Append these tokens to the lists."""
        for token, value in zip(ids, values, strict=True):
            raw = self._tokenizer.token_bytes(token)
            if raw and not 0x80 <= raw[0] < 0xC0:  # it does not go on with a character that has begun
                self.cut()
            likeliest = dict([*value.top, (value.token_id, value.logprob)]) if value else {}
            top = {token_text(self._tokenizer, each): logprob for each, logprob in likeliest.items()}
            to.tokens.append(token_text(self._tokenizer, token))
            to.token_logprobs.append(value and value.logprob)
            to.top_logprobs.append(top or None)
            to.text_offset.append(self._at)
            self._at += len(self._utf8.decode(raw))

    def cut(self) -> None:
        """End a character that has begun and does not go on: what half a character leaves is one of its own."""
        self._at += len(self._utf8.decode(b"", final=True))
        self._utf8.reset()


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """A token's text; its bytes, as OpenAI writes them, where they are no text: two tokens never look alike."""
    raw = tokenizer.token_bytes(token_id)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
