"""What is asked of the engine and what comes back: plain records, checked when they are made. Chapter 1.

Nothing here imports torch, so a wrong argument is refused in milliseconds, before a model is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, ClassVar, Literal, NamedTuple

FinishReason = Literal["stop", "length"]

MAX_SEED = 2**63 - 1
COLDEST = 1e-5  # logits over a smaller temperature could leave float32
BYTES = (bytes, bytearray, memoryview)  # sequences of ints, but of no token ids


class Bounds(NamedTuple):
    """The numbers that a field may be, low and high included, and the machine type that holds them in the engine."""

    held: Literal["int32", "int64", "float32"]
    low: float
    high: float
    allowed: str = ""  # of a float32, in words

    def check(self, name: str, value: Any) -> None:
        """Raise ValueError unless the value is within the bounds, both as it is given and as it is held."""
        if self.held == "float32":
            if type(value) not in (int, float) or not self.low <= value <= self.high or held(value) < self.low:
                raise ValueError(f"{name} must be {self.allowed}, not {value!r}")
        else:
            check_int(name, value, int(self.low), int(self.high))


def held(value: float) -> float:
    """Return the float32 that is nearest to a number."""
    nearest: float = _FLOAT32.unpack(_FLOAT32.pack(value))[0]
    return nearest


_FLOAT32 = Struct("=f")
LARGEST = held(3.4028234e38)  # of float32's finite numbers
SMALLEST = 2.0**-126  # of float32's normal numbers


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is chosen, and when a sequence ends. Names follow vLLM.

    max_tokens: new tokens at most; the model's context may end a sequence earlier.
    temperature: divides the logits; 0 is greedy (the highest logit, no randomness), and below 1e-5 it becomes 0.
    top_k: keep the k highest logits and all that tie with the k-th; 0 keeps all.
    top_p: of what top_k kept, the fewest most probable tokens that reach this probability; 1.0 keeps all.
    seed: fixes the random numbers; None draws a seed, and the result records it.
    stop: strings that end the sequence; the text ends before the first of them.
    stop_token_ids: token ids that end the sequence, besides end-of-text.
    ignore_eos: go on past end-of-text.

    ValueError, naming the argument, its value and what is allowed, for anything else.
    """

    bounds: ClassVar[Mapping[str, Bounds]] = {
        "max_tokens": Bounds("int64", 1, 2**63 - 1),
        "temperature": Bounds("float32", 0, LARGEST, f"a number from 0 to {LARGEST:.7g}"),
        "top_k": Bounds("int32", 0, 2**31 - 1),
        "top_p": Bounds("float32", SMALLEST, 1, f"from {SMALLEST:.3g} to 1"),
        "seed": Bounds("int64", 0, MAX_SEED),
        "stop_token_ids": Bounds("int64", 0, 2**63 - 1),
    }

    max_tokens: int = 128
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        for name, bounds in self.bounds.items():
            value, default = getattr(self, name), getattr(type(self), name)
            if name != "stop_token_ids" and not (value is None and default is None):
                bounds.check(name, value)
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
            self.bounds["stop_token_ids"].check("stop_token_ids", token_id)
        object.__setattr__(self, "stop", tuple(self.stop))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


def check_int(name: str, value: Any, low: int, high: int) -> None:
    """ValueError unless `value` is an int (no bool) in [low, high]."""
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{name} must be a whole number from {low} to {high}, not {value!r}")


@dataclass(frozen=True)
class Request:
    """One prompt on its way through the engine."""

    index: int  # its place among the prompts of the call
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    seed: int  # params.seed, or the one drawn for it
    limit: int  # new tokens at most: max_tokens, or fewer where the context ends first
    stop_ids: frozenset[int]


@dataclass(frozen=True)
class Completion:
    """What came of one prompt.

    token_ids holds the stop token, if one ended the sequence; text does not.
    finish_reason: "stop" (end-of-text, a stop token or a stop string) or "length" (max_tokens or the context).
    """

    index: int
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    seed: int
