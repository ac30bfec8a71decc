"""Which requests are sent, and when: made before a run, from a seed or a trace, and the same for every target."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError, model_validator

from nanobench.core.records import Record
from nanobench.load.drive import Ask
from nanobench.micro.queue_load import drawn, ids


class Mix(Record):
    """What requests are made of: lengths in tokens, both uniform, or those of a trace."""

    requests: int
    prompt: tuple[int, int] = (16, 512)
    new: tuple[int, int] = (16, 256)
    seed: int = 7
    vocab: int = 50257  # ids are drawn from 0 to vocab - 1
    shared_share: float = 0.0  # of the requests, that begin with a system prompt
    shared_tokens: int = 128  # of a system prompt; the request's own prompt follows
    shared_prompts: int = 1  # system prompts, each as probable as the others
    trace: str | None = None  # the file's name


class TraceLine(BaseModel):
    """A line of a trace; other fields are left alone."""

    model_config = ConfigDict(frozen=True, strict=True)

    arrival_s: float | None = Field(None, ge=0, allow_inf_nan=False)  # after the start
    prompt_tokens: PositiveInt | None = None  # then ids are drawn
    prompt: list[NonNegativeInt] | None = Field(None, min_length=1)  # the ids themselves
    max_tokens: PositiveInt
    prefix: str | int | None = None  # requests of the same prefix begin with the same tokens,
    prefix_tokens: PositiveInt | None = None  # so many of prompt_tokens

    @model_validator(mode="after")
    def _fits(self) -> TraceLine:
        if (self.prompt is None) == (self.prompt_tokens is None):
            raise ValueError("either prompt_tokens or prompt must be given")
        if (self.prefix is None) != (self.prefix_tokens is None):
            raise ValueError("prefix and prefix_tokens must be given together")
        if self.prefix_tokens is not None and self.prefix_tokens > (self.prompt_tokens or 0):
            raise ValueError("prefix_tokens must be at most prompt_tokens")
        return self


def read_trace(path: Path) -> list[TraceLine]:
    """The requests of a JSONL file, by arrival. ValueError, with the line's number, for what is none."""
    lines = []
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if text.strip():
            try:
                lines.append(TraceLine.model_validate_json(text))
            except ValidationError as error:
                first = error.errors()[0]
                where = ".".join(map(str, first["loc"]))
                raise ValueError(f"{path}, line {number}: {where + ': ' if where else ''}{first['msg']}") from None
    if not lines:
        raise ValueError(f"{path} holds no requests")
    if len({line.arrival_s is None for line in lines}) > 1:
        raise ValueError(f"{path}: some lines have arrival_s, others have none")
    return sorted(lines, key=lambda line: line.arrival_s or 0.0)


@dataclass(frozen=True)
class Source:
    """Makes the requests of a run."""

    mix: Mix
    trace: tuple[TraceLine, ...] = ()

    @classmethod
    def of(cls, mix: Mix, trace: Path | None) -> Source:
        """ValueError for lengths that make no sense, and for a bad trace."""
        for name, (low, high) in (("prompt", mix.prompt), ("new", mix.new)):
            if not 1 <= low <= high:
                raise ValueError(f"{name} must be LOW,HIGH with 1 <= LOW <= HIGH, not {low},{high}")
        if not 0 <= mix.shared_share <= 1:
            raise ValueError(f"shared-share must be from 0 to 1, not {mix.shared_share:g}")
        if trace is None:
            return cls(mix)
        lines = tuple(read_trace(trace))
        return cls(mix.model_copy(update={"trace": trace.name, "requests": len(lines)}), lines)

    def asks(self, due: Sequence[float], turn: int = 0) -> tuple[Ask, ...]:
        """A request for each time of the table. turn: of the run; each has the same lengths and other ids."""
        prompts, new = self._of_trace(turn) if self.trace else self._drawn(len(due), turn)
        return tuple(
            Ask(number, then, tuple(prompt), tokens)
            for number, (then, prompt, tokens) in enumerate(zip(due, prompts, new, strict=True))
        )

    def _drawn(self, count: int, turn: int) -> tuple[list[list[int]], list[int]]:
        mix = self.mix
        prompts, new = drawn(count, mix.prompt, mix.new, mix.vocab, mix.seed, turn)
        draws = random.Random(f"{mix.seed} {turn} shared")
        systems = [ids(draws, mix.shared_tokens, mix.vocab) for _ in range(mix.shared_prompts)]
        who = random.Random(f"{mix.seed} who shares")
        return [who.choice(systems) + own if who.random() < mix.shared_share else own for own in prompts], new

    def _of_trace(self, turn: int) -> tuple[list[list[int]], list[int]]:
        mix, prompts = self.mix, []
        for number, line in enumerate(self.trace):
            if line.prompt is not None:
                prompts.append(line.prompt)
                continue
            shared, whole = line.prefix_tokens or 0, line.prompt_tokens or 0
            # One long draw for each prefix: requests may share fewer of its tokens, or more.
            begin = ids(random.Random(f"{mix.seed} {turn} prefix {line.prefix!r}"), shared, mix.vocab)
            prompts.append(begin + ids(random.Random(f"{mix.seed} {turn} {number}"), whole - shared, mix.vocab))
        return prompts, [line.max_tokens for line in self.trace]


def poisson(rate: float, count: int, seed: int, group: int = 1) -> list[float]:
    """Times of so many arrivals, the first of groups of `group` at once, at `rate` a second over all.

    The arrivals of a Poisson process, given how many there are: uniform, sorted. With another rate the same pattern is
    stretched.
    """
    draws = random.Random(f"{seed} arrivals")
    groups = -(-count // group)
    begun = sorted(draws.random() for _ in range(groups))
    return [begun[number // group] * count / rate for number in range(count)]
