"""Exercise 1.6: the whole loop, for one row."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from nanocourse.exercises import Call, Case, Check, Function, Places, Spec, call
from nanocourse.exercises.toy_model import Toy
from nanoinfer.cache.none import forward_logits


def generate(
    logits_of: Callable[[list[int]], Tensor],
    prompt: list[int],
    max_tokens: int,
    choose: Callable[[Tensor, int], int],
    stop_ids: list[int],
    context: int,
) -> list[int]:
    """The new tokens that continue one prompt, the stop token included where one ended it.

    logits_of: 1 to `context` token ids (T) -> logits (T, V), float32, after each of them; it remembers nothing.
    prompt: at least one token, and fewer than `context`. max_tokens: new tokens at most, at least 1.
    choose: logits (V,) and the number of the step, 0 for the first new token -> the next token's id.
    stop_ids: a new token that is one of these is the last. context: prompt and new tokens together are at most so many;
    200 at most.
    """
    text = list(prompt)
    new: list[int] = []
    while len(new) < max_tokens and len(text) < context:
        token = choose(logits_of(text)[-1], len(new))
        new.append(token)
        text.append(token)
        if token in stop_ids:
            break
    return new


def swap(mine: Function) -> Places:
    """Engine.step runs it for the request that waits longest, with the plain pass over the whole context."""

    def step(self: Any) -> list[Any]:
        s = self.waiting.popleft()
        s.row = self.free.pop()
        self.running.append(s)
        self.stats.requests += 1
        self.stats.prompt_tokens += len(s.tokens)
        for token, at in _tokens(self, mine, s):
            self.now = at
            self.stats.new_tokens += 1
            self.take(s, token)
            if s.finish_reason or s.cancelled:
                return [s]
        told = f"the loop gave {s.generated} tokens of {s.request.limit}, and none of them is a stop token"
        self.cancel(s, RuntimeError(told))
        return []

    return {"nanoinfer.engine.engine:Engine.step": step}


def _tokens(engine: Any, mine: Function, s: Any) -> Iterator[tuple[int, float]]:
    """One request through a learner's loop: its tokens, with the times at which they were chosen."""
    model, prompt, limit = engine.model, s.tokens.copy(), s.request.limit
    chosen: list[int] = []
    times: list[float] = []

    def logits_of(token_ids: list[int]) -> Tensor:
        return forward_logits(model, torch.tensor([token_ids], device=model.device))[0]

    def choose(logits: Tensor, step: int) -> int:
        then = copy.copy(s)
        then.tokens = [*prompt, *(chosen + [0] * step)[:step]]  # the number of the step is how many are new
        chosen.append(int(engine.choose(logits[None], [then])))
        times.append(time.perf_counter())
        return chosen[-1]

    tokens = mine(logits_of, prompt.copy(), limit, choose, sorted(s.request.stop_ids), len(prompt) + limit)
    return zip(tokens, times, strict=False)


def _example() -> Call:
    def logits_of(token_ids: list[int]) -> Tensor:
        """after each token, the highest logit is that of the token's own number plus 1"""
        return torch.eye(6)[[(token + 1) % 6 for token in token_ids]]

    def choose(logits: Tensor, step: int) -> int:
        """the highest logit"""
        return int(logits.argmax())

    return call(logits_of, [1, 2], 9, choose, [5], 100)


EXERCISE = Spec(
    reference=generate,
    lines=10,
    example=_example,
    section="The loop",
    axes=("new token",),
    typed=True,
    exact=True,
    tolerance=1e-9,
    refuse=(
        "nanoinfer.engine.engine:Engine.step",
        "nanoinfer.engine.engine:Engine.generate",
        "nanoinfer.llm:LLM.generate",
    ),
    swap=swap,
)


def _call(
    case: Case,
    prompt: list[int],
    max_tokens: int,
    stops: list[int],
    context: int,
    first: int = 0,
    new: Sequence[int] = (),
) -> Call:
    """A call with a lent model and chooser; how many tokens each pass had, and what choose was given, is observed.

    first: the model's twelve ids begin with it. new: the tokens that are chosen, as far as they go.
    """
    toy = Toy(int(case.ints("model", 0, 10**6, 1)), 12, max(40, context))
    passes, given = list[int](), list[list[float]]()
    prompt, stops = [first + token for token in prompt], [first + token for token in stops]
    noise = case.floats("noise", 200, 12) * 6
    noise[range(len(new)), list(new)] += 1000

    def logits_of(token_ids: list[int]) -> Tensor:
        passes.append(len(token_ids))
        return toy.logits([token - first for token in token_ids])

    def choose(logits: Tensor, step: int) -> int:
        given.append([*logits.shape, float(logits.double().sum())])
        return first + int((logits + noise[step]).argmax())

    def seen() -> dict[str, object]:
        return {"tokens of each pass": passes, "shape and sum of what choose was given": given}

    return call(logits_of, prompt, max_tokens, choose, stops, context, observe=seen)


def _prompt(case: Case, low: int = 2, high: int = 5) -> list[int]:
    return case.ints("prompt", 0, 11, case.size("prompt tokens", low, high)).tolist()


def ends_by_count(case: Case) -> Call:
    """The whole text goes through the model for each of max_tokens new tokens, and choose is told which step it is."""
    return _call(case, _prompt(case, 2, 4), case.size("max_tokens", 1, 6), [], 40)


def ends_at_a_stop(case: Case) -> Call:
    """Any of the stop tokens is the last of the new tokens, and is one of them; one in the prompt ends nothing."""
    rest = _prompt(case, 1, 3)
    ids = case.permutation("stop", 12).tolist()
    if case.turn((True, False)):
        ids.sort(key=bool)  # 0 if possible
    for stop in ids:  # one that stands in the prompt, and comes again
        free = generate(*_call(case, [stop, *rest], 12, [], 40).args)
        if stop in free[:-1]:
            break
    end = free.index(stop)
    later = [token for token in free[end:] if token not in free[: end + 1]]  # would end it as well, only later
    order = case.choice("order", ([*later[:1], stop], [stop, *later[:1]]))
    others = list(range(12, 3000)) if case.turn((False, False, True, True)) else []  # ids that never come
    return _call(case, [stop, *rest], 12, [*others, *order], 40, case.turn((0, 70_000)))


def ends_with_the_context(case: Case) -> Call:
    """Generation ends when prompt and new tokens fill the context."""
    prompt = _prompt(case, 1, 4)
    return _call(case, prompt, 9, [], len(prompt) + case.size("room", 1, 4))


LENGTHS = (  # prompt (or how long it is), room behind it, max_tokens, first id, new tokens, stop tokens
    ([3], 199, 198, 0, [7] * 198, ()), (None, 1, 9, 0, (), ()), (None, 3, 3, 0, (), ()), ([3], 80, 1, 0, [0], ()),
    ([3], 80, 60, 50_250, (), ()),  # 50256 ends a text where it is told to, and nowhere else
    ([3], 80, 60, 50_250, [7] * 60, ()), ([3], 199, 300, 0, (), ()), ([7] * 190, 10, 12, 0, (), ()),
    ([3], 80, 60, 0, [0, 1, 2], [0]), ([3, 0], 80, 60, 0, [1, 0, 1], [0]), ([0], 80, 60, 0, [11, 2], [11, 5]),
    ([5], 80, 60, 0, [5, 5], [5]), ([5], 80, 2, 0, [4, 3, 3], [3]), ([5], 2, 9, 0, [4, 3, 3], [3]),
    ([5], 80, 60, 0, [4, 8, 2, 6, 1, 3], [9, 1, 0]), ([5], 199, 199, 0, [*[4, 2] * 90, 1, 4], [1]),
    ([1], 80, 60, 50_250, [5, 6, 1], [6, 0]), ([6, 2, 6], 80, 5, 50_250, [1, 2], [9]), ([3], 1, 1, 0, [4], [4]),
    ([3, 4], 3, 4, 0, [5, 6, 7], ()), ([7, 8] * 99 + [9], 1, 10**9, 0, [1], [2, 2, 3]),
    ([3], 5, 2**40, 0, [4, 5], [5, 5]),
)  # fmt: skip


def any_length(case: Case) -> Call:
    """A text may be long or one token, or that of an earlier call, and end by count, context and any token at once."""
    prompt, room, most, first, new, stops = case.turn(LENGTHS)
    prompt = prompt or _prompt(case, 1, 4)
    return _call(case, prompt, most, list(stops), len(prompt) + room, first, new)


CHECKS = (
    Check(ends_by_count, 4), Check(ends_at_a_stop, 4), Check(ends_with_the_context),
    Check(any_length, len(LENGTHS), wide=True),
)  # fmt: skip
