"""Exercise 1.6: correct variants, mutants that are none, an edition."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from nanocourse.exercises.exercise import edition

Model = Callable[[list[int]], Tensor]
Choose = Callable[[Tensor, int], int]


def counted_ahead(
    logits_of: Model, prompt: list[int], max_tokens: int, choose: Choose, stop_ids: list[int], context: int
) -> list[int]:
    """The number of turns is known ahead; one list, cut at the end."""
    text = prompt[:]
    for step in range(min(max_tokens, context - len(prompt))):
        text += [choose(logits_of(text)[len(text) - 1], step)]
        if text[-1] in set(stop_ids):
            return text[len(prompt) :]
    return text[len(prompt) :]


def by_recursion(
    logits_of: Model, prompt: list[int], max_tokens: int, choose: Choose, stop_ids: list[int], context: int
) -> list[int]:
    """Each token is followed by what the text with it gives; one list grows."""
    text = prompt[:]

    def rest(step: int) -> list[int]:
        if step == max_tokens or len(text) == context:
            return []
        token = choose(logits_of(text)[-1], step)
        text.append(token)
        return [token] if token in stop_ids else [token, *rest(step + 1)]

    return rest(0)


EQUIVALENT: dict[str, str] = {}


def _with_its_reason(
    new: list[int], logits_of: Model, prompt: list[int], max_tokens: int, choose: Choose, stop_ids: list[int], *_: int
) -> tuple[list[int], str]:
    return new, "stop" if new and new[-1] in stop_ids else "length"


@edition(
    "with-its-reason",
    'the result is a pair: the new tokens, and "stop" or "length"',
    result=_with_its_reason,
    axes=("of tokens, reason", "new token"),
)
def generate(
    logits_of: Callable[[list[int]], Tensor],
    prompt: list[int],
    max_tokens: int,
    choose: Callable[[Tensor, int], int],
    stop_ids: list[int],
    context: int,
) -> tuple[list[int], str]:
    """The new tokens that continue one prompt, and why they end: "stop" or "length".

    logits_of: 1 to `context` token ids (T) -> logits (T, V), float32, after each of them; it remembers nothing.
    prompt: at least one token, and fewer than `context`. max_tokens: new tokens at most, at least 1.
    choose: logits (V,) and the number of the step, 0 for the first new token -> the next token's id.
    stop_ids: a new token that is one of these is the last; it is in the result, and the reason is "stop", also where
    there was no room for another one. context: prompt and new tokens together are at most so many.
    """
    new: list[int] = []
    for step in range(min(max_tokens, context - len(prompt))):
        new.append(choose(logits_of([*prompt, *new])[-1], step))
        if new[-1] in stop_ids:
            return new, "stop"
    return new, "length"
