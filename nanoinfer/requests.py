"""Requests of a server: several samples of a prompt, penalties and logprobs, and streams of pieces. Chapter 5."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import sub
from typing import Any, ClassVar, NamedTuple

from nanoinfer import records
from nanoinfer.records import Bounds, FinishReason

SAMPLES_LIMIT = 128
TOP_LOGPROBS = 20  # of one token at most
BOUNDS = {**records.SamplingParams.bounds} | {
    "max_tokens": Bounds("int64", 0, 2**63 - 1),
    "n": Bounds("int64", 1, SAMPLES_LIMIT),
    "presence_penalty": Bounds("float32", -2, 2, "a number from -2 to 2"),
    "frequency_penalty": Bounds("float32", -2, 2, "a number from -2 to 2"),
    "logprobs": Bounds("int64", 0, TOP_LOGPROBS),
    "prompt_logprobs": Bounds("int64", 0, TOP_LOGPROBS),
}


@dataclass(frozen=True)
class SamplingParams(records.SamplingParams):
    """As chapter 1's, and more.

    max_tokens: may be 0 with prompt_logprobs.
    n: samples of the prompt, 1 to 128, each with a seed of its own; of a greedy sequence all are the same.
    presence_penalty: from -2 to 2, taken off the logit of each token that the sequence has generated.
    frequency_penalty: from -2 to 2, taken off as often as the sequence has generated the token. Both act before
    temperature, on greedy sequences too, and leave the prompt's tokens alone.
    logprobs: of each new token, and of the 0 to 20 most probable in its place: log_softmax of the model's own logits,
    before penalties, temperature and filters. None asks for none.
    prompt_logprobs: the same of every prompt token but the first, which nothing precedes.
    """

    bounds: ClassVar[dict[str, Bounds]] = BOUNDS

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_tokens == 0 and self.prompt_logprobs is None:
            raise ValueError("max_tokens must be at least 1 where no prompt_logprobs are asked for, not 0")

    @property
    def scores(self) -> bool:
        """Whether its tokens are chosen by what it has generated, or are to come with logprobs."""
        return self.penalises or self.logprobs is not None

    @property
    def penalises(self) -> bool:
        """Whether what the row has generated changes its logits."""
        return self.presence_penalty != 0 or self.frequency_penalty != 0


@dataclass(frozen=True)
class Request(records.Request):
    """One sample of a prompt on its way through the engine. limit may be 0."""

    params: SamplingParams
    sample: int = 0  # which of the prompt's params.n samples


@dataclass(frozen=True)
class Metrics:
    """Times of one row in seconds, by the host's clock at the moment its tokens reached the host.

    ttft_s: from the call to the first token, waiting for a free row included; to its end for a row without tokens.
    itl_s: from each token to the next (inter-token latency), so one fewer than there are tokens.
    """

    ttft_s: float
    itl_s: tuple[float, ...]

    @classmethod
    def of(cls, row: Any) -> Metrics:
        """Of a row that has ended: when it was asked for, and when each of its tokens came."""
        return cls(ttft_s=row.times[0] - row.asked, itl_s=tuple(map(sub, row.times[1:], row.times)))

    @property
    def total_s(self) -> float:
        """From the call to the last token."""
        return self.ttft_s + sum(self.itl_s)

    @property
    def decode_tokens_per_s(self) -> float:
        """Tokens after the first, a second; 0.0 where there is only one."""
        return len(self.itl_s) / sum(self.itl_s) if self.itl_s else 0.0


class Logprobs(NamedTuple):
    """Logarithms of probabilities in place of one token: log_softmax, in float32, of the model's own logits.

    top: the most probable ids in this place, as (token_id, logprob), the highest first; the token itself may be none of
    them.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()

    @classmethod
    def of_host(cls, values: Sequence[float], top: int) -> Logprobs:
        """Of the numbers that the engine has of a token: ids, its own first, then their logprobs in that order."""
        half = len(values) // 2
        ids, found = [int(value) for value in values[: 1 + min(top, half - 1)]], values[half:]
        return cls(ids[0], found[0], tuple(zip(ids[1:], found[1:], strict=False)))


def to_json(record: Any) -> str:
    """Return a record as JSON. A number that JSON cannot hold, NaN or infinite, becomes null."""
    try:
        return json.dumps(record, allow_nan=False)
    except ValueError:
        return json.dumps(json.loads(json.dumps(record), parse_constant=lambda name: None))


@dataclass(frozen=True)
class Completion(records.Completion):
    """As chapter 1's, of one sample of a prompt.

    logprobs: one for each of token_ids; prompt_logprobs: for each prompt token, None for the first. None unasked.
    """

    metrics: Metrics
    sample: int = 0
    logprobs: tuple[Logprobs, ...] | None = None
    prompt_logprobs: tuple[Logprobs | None, ...] | None = None


@dataclass(frozen=True)
class Piece:
    """New text of a stream: one token's, or that of several tokens for a reader of `AsyncLLM` who comes late.

    index: which prompt of the call; sample: which of its samples. token_ids: none only where max_tokens is 0. text:
    what they made certain, often part of a word and sometimes empty. logprobs: one a token, where they were asked for.
    prompt_logprobs: as in `Completion`, on a row's first piece alone. finish_reason, completion: on its last alone.
    """

    index: int
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason | None = None
    completion: Completion | None = field(default=None, repr=False)
    sample: int = 0
    logprobs: tuple[Logprobs, ...] | None = None
    prompt_logprobs: tuple[Logprobs | None, ...] | None = None

    @property
    def token_id(self) -> int:
        """The newest token."""
        return self.token_ids[-1]
