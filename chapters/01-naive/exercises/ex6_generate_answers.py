"""Exercise 1.6: wrong answers and where they come from, correct variants, mutants that are none, an edition."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nanocourse.exercises.exercise import Edition, Right, Wrong

Model = Callable[[list[int]], Tensor]
Choose = Callable[[Tensor, int], int]


def newest_only(
    logits_of: Model, prompt: list[int], max_tokens: int, choose: Choose, stop_ids: list[int], context: int
) -> list[int]:
    """The model remembers what it has seen, so after the prompt it needs the newest token alone."""
    new: list[int] = []
    while len(new) < max_tokens and len(prompt) + len(new) < context:
        new.append(choose(logits_of(new[-1:] or prompt)[-1], len(new)))
        if new[-1] in stop_ids:
            break
    return new


def window_slides(
    logits_of: Model, prompt: list[int], max_tokens: int, choose: Choose, stop_ids: list[int], context: int
) -> list[int]:
    """A full context is no end: the oldest token falls out of the window, and generation goes on."""
    text = list(prompt)
    while len(text) - len(prompt) < max_tokens:
        text.append(choose(logits_of(text[-context:])[-1], len(text) - len(prompt)))
        if text[-1] in stop_ids:
            break
    return text[len(prompt) :]


def one_pass_more(
    logits_of: Model, prompt: list[int], max_tokens: int, choose: Choose, stop_ids: list[int], context: int
) -> list[int]:
    """The logits for the next token are prepared at the end of each turn, of the last turn too."""
    text, new = list(prompt), []
    logits = logits_of(text)[-1]
    while len(new) < max_tokens and len(text) < context:
        new.append(choose(logits, len(new)))
        text.append(new[-1])
        logits = logits_of(text)[-1]
        if new[-1] in stop_ids:
            break
    return new


LOOP = "while len(new) < max_tokens and len(text) < context:"
WRONG = (
    Wrong(newest_only, "ml-explore/mlx-examples#273: right with a cache, which this model has not"),
    Wrong(window_slides, "karpathy/nanoGPT, model.py, generate: idx[:, -block_size:]"),
    Wrong(one_pass_more, "the author's own slip: a first pass before the loop, and one at the end of every turn"),
    Wrong.patch(
        "stop-left-out", "A stop token is no part of the result.",
        "        new.append(token)\n        text.append(token)\n        if token in stop_ids:\n            break\n",
        "        if token in stop_ids:\n            break\n        new.append(token)\n        text.append(token)\n",
        "lvyufeng/PocketLLM#133 says why it stays in",
    ),
    Wrong.patch(
        "stop-ignored", "max_tokens is what ends generation.", "if token in stop_ids", "if False",
        "lvyufeng/PocketLLM#133, Lightning-AI/litgpt#812",
    ),
    Wrong.patch(
        "stop-in-the-prompt", "Generation ends when the text has a stop token in it.", "if token in stop_ids",
        "if set(text) & set(stop_ids)",
        "huggingface/transformers#29459: a first draft looked at the whole text for the stop token",
    ),
    Wrong.patch(
        "first-stop-alone", "There is one stop token, the first of the list.", "if token in stop_ids",
        "if token in stop_ids[:1]", "sbryngelson/ANEForge#59, Blaizzy/mlx-vlm#2112",
    ),
    Wrong.patch(
        "one-token-more", "The first token comes with the prompt, and max_tokens more follow.", LOOP,
        LOOP.replace("< max_tokens", "<= max_tokens"), "mstar-project/mstar#99",
    ),
    Wrong.patch(
        "prompt-counts", "max_tokens counts the tokens of the text, the prompt included.", LOOP,
        LOOP.replace("len(new) < max_tokens", "len(text) < max_tokens"),
        "huggingface/transformers: max_length against max_new_tokens",
    ),
    Wrong.patch(
        "prompt-returned", "What comes back is the whole text.", "return new", "return text",
        "huggingface/transformers and nanoGPT: generate returns prompt and continuation",
    ),
    Wrong.patch(
        "first-logits", "The logits that count are the first of those that come back.", "[-1], len(new)",
        "[0], len(new)", "the author's own slip: right as long as the model is handed one token",
    ),
    Wrong.patch(
        "step-from-one", "The first new token is step 1.", "[-1], len(new)", "[-1], len(new) + 1",
        "mstar-project/mstar#99: a count that begins before or after the prompt's own token",
    ),
    Wrong.patch(
        "position-for-step", "The number of the step is the length of the text.", "[-1], len(new)", "[-1], len(text)",
        "vllm-project/vllm#34854 seeds by position; here it is the step",
    ),
    Wrong.patch(
        "last-place-unused", "The last place of the context must stay free.", LOOP,
        LOOP.replace("len(text) < context", "len(text) < context - 1"), "minimaxir/gpt-2-simple#123",
    ),
    Wrong.patch(
        "choose-gets-a-batch", "`choose` takes the logits as a batch of one row.",
        "choose(logits_of(text)[-1], len(new))",
        "choose(logits_of(text)[-1:], len(new))",
        "a try of somebody who saw stub and text alone, which passed",
    ),
    Wrong.patch(
        "window", "The last sixteen tokens are context enough.",
        "logits_of(text)",
        "logits_of(text[-16:])",
        "written to pass all checks that there were, and it did",
    ),
    Wrong.patch(
        "prompt-grown", "The prompt may grow into the text.",
        'text = list(prompt)',
        'text = prompt',
        "written to pass all checks that there were, and it did", unnamed="prompt-returned",
    ),
    Wrong.patch(
        "known-end", "50256 ends every text.",
        'if token in stop_ids',
        'if token in stop_ids or token == 50256',
        "written to pass all checks that there were, and it did", unnamed="stop-in-the-prompt",
    ),
)  # fmt: skip


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


def with_a_tensor(
    logits_of: Model, prompt: list[int], max_tokens: int, choose: Choose, stop_ids: list[int], context: int
) -> list[int]:
    """The text is a tensor of the context's size, filled in place."""
    text = torch.zeros(context, dtype=torch.int64)
    text[: len(prompt)] = torch.tensor(prompt)
    end = len(prompt)
    while end < min(context, len(prompt) + max_tokens):
        text[end] = choose(logits_of(text[:end].tolist())[end - 1], end - len(prompt))
        end += 1
        if bool((text[end - 1] == torch.tensor(stop_ids, dtype=torch.int64)).any()):
            break
    return [int(token) for token in text[len(prompt) : end]]


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


RIGHT = (Right(counted_ahead), Right(with_a_tensor), Right(by_recursion))

EQUIVALENT: dict[str, str] = {}


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


def _with_its_reason(
    new: list[int], logits_of: Model, prompt: list[int], max_tokens: int, choose: Choose, stop_ids: list[int], *_: int
) -> tuple[list[int], str]:
    return new, "stop" if new and new[-1] in stop_ids else "length"


def _same(*args: object) -> tuple[object, ...]:
    return args


EDITIONS = (
    Edition(
        "with-its-reason", 'the result is a pair: the new tokens, and "stop" or "length"', generate, args=_same,
        back=_same, result=_with_its_reason, axes=("of tokens, reason", "new token"),
    ),
)  # fmt: skip
