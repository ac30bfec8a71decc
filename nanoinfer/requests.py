"""What is asked of the engine and what comes back: plain records, checked when they are made. Chapter 1.

Nothing here imports torch, so a wrong argument is refused in milliseconds, before a model is loaded.
"""

from __future__ import annotations

import gc
import json
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from nanoinfer.text.stop import TextStream

FinishReason = Literal["stop", "length"]

MAX_SEED = 2**63 - 1
SAMPLES_LIMIT = 128
TOP_LOGPROBS = 20  # of one token at most
COLDEST = 1e-5  # logits over a smaller temperature could leave float32


class Bounds(NamedTuple):
    """The numbers that a field may be, low and high included, and the machine type that holds them in the engine."""

    held: Literal["int32", "int64", "float32"]
    low: float
    high: float
    allowed: str = ""  # of a float32, in words

    def check(self, name: str, value: Any) -> None:
        """Raise ValueError unless the value is within the bounds, both as it is given and as it is held."""
        if self.held == "float32":
            check_float(name, value, self.allowed, lambda x: self.low <= x <= self.high and self.low <= held(x))
        else:
            check_int(name, value, int(self.low), int(self.high))


def held(value: float) -> float:
    """Return the float32 that is nearest to a number."""
    nearest: float = _FLOAT32.unpack(_FLOAT32.pack(value))[0]
    return nearest


_FLOAT32 = Struct("=f")
LARGEST = held(3.4028234e38)  # of float32's finite numbers
SMALLEST = 2.0**-126  # of float32's normal numbers
BOUNDS = {
    "max_tokens": Bounds("int64", 0, 2**63 - 1),
    "temperature": Bounds("float32", 0, LARGEST, f"a number from 0 to {LARGEST:.7g}"),
    "top_k": Bounds("int32", 0, 2**31 - 1),
    "top_p": Bounds("float32", SMALLEST, 1, f"from {SMALLEST:.3g} to 1"),
    "seed": Bounds("int64", 0, MAX_SEED),
    "n": Bounds("int64", 1, SAMPLES_LIMIT),
    "presence_penalty": Bounds("float32", -2, 2, "a number from -2 to 2"),
    "frequency_penalty": Bounds("float32", -2, 2, "a number from -2 to 2"),
    "logprobs": Bounds("int64", 0, TOP_LOGPROBS),
    "prompt_logprobs": Bounds("int64", 0, TOP_LOGPROBS),
    "stop_token_ids": Bounds("int64", 0, 2**63 - 1),
}
OPTIONAL = ("seed", "logprobs", "prompt_logprobs")
BYTES = (bytes, bytearray, memoryview)  # sequences of ints, but of no token ids


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is chosen, and when a row ends. Names follow vLLM.

    max_tokens: new tokens at most; the model's context may end a row earlier. 0 only with prompt_logprobs.
    temperature: divides the logits; 0 is greedy (the highest logit, no randomness), and below 1e-5 it becomes 0.
    top_k: keep the k highest logits and all that tie with the k-th; 0 keeps all.
    top_p: of what top_k kept, the fewest most probable tokens that reach this probability; 1.0 keeps all.
    seed: fixes this row's random numbers; None draws one from the LLM's own seed, and the result records it.
    stop: strings that end the row; the text ends before the first of them.
    stop_token_ids: token ids that end the row, besides end-of-text.
    ignore_eos: go on past end-of-text.
    n: samples of the prompt, 1 to 128, each with a seed of its own; of a greedy row all are the same.
    presence_penalty: from -2 to 2, taken off the logit of each token that the row has generated.
    frequency_penalty: from -2 to 2, taken off as often as the row has generated the token. Both act before
    temperature, on greedy rows too, and leave the prompt's tokens alone.
    logprobs: of each new token, and of the 0 to 20 most probable in its place: log_softmax of the model's own logits,
    before penalties, temperature and filters. None asks for none.
    prompt_logprobs: the same of every prompt token but the first, which nothing precedes.

    ValueError, naming the argument, its value and what is allowed, for anything else.
    """

    max_tokens: int = 128
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        for name, bounds in BOUNDS.items():
            value = getattr(self, name)
            if name != "stop_token_ids" and not (value is None and name in OPTIONAL):
                bounds.check(name, value)
        if self.max_tokens == 0 and self.prompt_logprobs is None:
            raise ValueError("max_tokens must be at least 1 where no prompt_logprobs are asked for, not 0")
        if self.temperature < COLDEST:
            object.__setattr__(self, "temperature", 0.0)
        if type(self.ignore_eos) is not bool:
            raise ValueError(f"ignore_eos must be True or False, not {self.ignore_eos!r}")
        self._check_stops()

    def _check_stops(self) -> None:
        """What may end a row; lists become tuples, so that a frozen record cannot change under a running row."""
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        elif not isinstance(self.stop, Sequence):
            raise ValueError(f"stop must be a string or a list of strings, not {self.stop!r}")
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise ValueError(f"stop must hold strings of at least one character, not {text!r}")
        if isinstance(self.stop_token_ids, (str, *BYTES)) or not isinstance(self.stop_token_ids, Sequence):
            raise ValueError(f"stop_token_ids must be a list of token ids, not {self.stop_token_ids!r}")
        for token_id in self.stop_token_ids:
            BOUNDS["stop_token_ids"].check("stop_token_ids", token_id)
        object.__setattr__(self, "stop", tuple(self.stop))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def filters(self) -> bool:
        """Whether top_k or top_p may drop a token: a greedy row takes the highest logit under any filter."""
        return not self.greedy and (self.top_k > 0 or self.top_p < 1)

    @property
    def scores(self) -> bool:
        """Whether its tokens are chosen by what it has generated, or are to come with logprobs."""
        return self.penalises or self.logprobs is not None

    @property
    def penalises(self) -> bool:
        """Whether what the row has generated changes its logits."""
        return self.presence_penalty != 0 or self.frequency_penalty != 0


@contextmanager
def uncollected() -> Iterator[None]:
    """Without Python's garbage collector, which would look at all that is alive, over and over, for nothing: records of
    thousands of requests are no garbage. After Mercurial's `util.nogc`.
    """
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def check_int(name: str, value: Any, low: int, high: int | None = None) -> None:
    """ValueError unless `value` is an int (no bool) in [low, high]."""
    if type(value) is not int or value < low or (high is not None and value > high):
        allowed = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise ValueError(f"{name} must be a whole number {allowed}, not {value!r}")


def check_float(name: str, value: Any, allowed: str, inside: Callable[[float], bool]) -> None:
    """ValueError unless `value` is a number for which `inside` holds; NaN is inside nothing."""
    if type(value) not in (int, float) or not inside(value):
        raise ValueError(f"{name} must be {allowed}, not {value!r}")


@dataclass(frozen=True)
class Request:
    """One prompt on its way through the engine."""

    index: int  # its place among the prompts of the call
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    seed: int  # params.seed, or the one drawn for it
    limit: int  # new tokens at most: max_tokens, which may be 0, or fewer where the context ends first
    stop_ids: frozenset[int]
    sample: int = 0  # which of the prompt's params.n samples
    text: TextStream | None = None  # is given each token, where stop strings are looked for or text is streamed

    def __getstate__(self) -> dict[str, Any]:
        """To another process a prompt goes as bytes: pickle takes twice as long for as many ints."""
        return vars(self) | {"prompt_token_ids": array("I", self.prompt_token_ids).tobytes()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, prompt_token_ids=tuple(memoryview(state["prompt_token_ids"]).cast("I")))


@dataclass(frozen=True)
class Metrics:
    """Times of one row in seconds, by the host's clock at the moment its tokens reached the host.

    ttft_s: from the call to the first token, waiting for a free row included; to its end for a row without tokens.
    itl_s: from each token to the next (inter-token latency), so one fewer than there are tokens.
    """

    ttft_s: float
    itl_s: tuple[float, ...]

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
class Completion:
    """What came of one prompt, or of one of its samples.

    token_ids holds the stop token, if one ended the row; text does not.
    finish_reason: "stop" (end-of-text, a stop token or a stop string) or "length" (max_tokens or the context).
    logprobs: one for each of token_ids; prompt_logprobs: for each prompt token, None for the first. None unasked.
    """

    index: int
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    seed: int
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
