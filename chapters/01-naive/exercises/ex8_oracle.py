"""Exercise 1.8: the test of an engine against the oracle, marked both ways: right engines pass it, wrong ones fail."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nanocourse.exercises.cases import Call, Case, call
from nanocourse.exercises.exercise import Check, Spec
from nanocourse.exercises.toy_model import NearTies, Toy

VOCAB, CONTEXT = 24, 16


def check_engine(
    generate: Callable[[list[list[int]], int], list[list[int]]],
    logits_of: Callable[[list[int]], Tensor],
    vocab_size: int,
    context: int,
) -> None:
    """Raise AssertionError if the engine is wrong; return None if it is right.

    generate: the engine, greedy: prompts and max_tokens -> the new tokens of each prompt. Each prompt gets max_tokens
    of them, or as many as fit where prompt and new tokens together fill the context. A call's prompts are one batch.
    logits_of: the oracle: 1 to `context` token ids (T) -> logits (T, vocab_size), float32, after each of them.
    A token is right if its logit, by the oracle on the row's own text, is within 1e-4 * max(1, largest |logit|) of the
    highest: an engine adds in another order, and may part from the oracle where two tokens all but tie.
    """
    generator = torch.Generator().manual_seed(0)
    for max_tokens in (3, context):  # the second call meets what the first has left behind
        prompts = [torch.randint(vocab_size, (n,), generator=generator).tolist() for n in range(1, 6)]
        rows = generate(prompts, max_tokens)
        assert len(rows) == len(prompts)
        for prompt, new in zip(prompts, rows, strict=True):
            assert len(new) == min(max_tokens, context - len(prompt))
            logits = logits_of([*prompt, *new[:-1]])[len(prompt) - 1 :]  # (len(new), vocab_size)
            chosen = logits.gather(1, torch.tensor(new, device=logits.device)[:, None])[:, 0]
            allowed = 1e-4 * logits.abs().amax(-1).clamp(min=1)
            assert bool((logits.amax(-1) - chosen <= allowed).all())


class Engine:
    """A greedy engine over a toy model, right but where `wrong` says so: there it takes the least likely token.

    wrong: the engine, the text so far, how many of its tokens are the prompt, lengths of all prompts -> yes or no.
    """

    def __init__(self, toy: Toy, wrong: Callable[..., bool] = lambda *place: False) -> None:
        self.toy, self.wrong, self.calls = toy, wrong, 0

    def __call__(self, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        rows = [self._row(prompt, max_tokens, list(map(len, prompts))) for prompt in prompts]
        self.calls += 1
        return rows

    def _row(self, prompt: list[int], max_tokens: int, lengths: list[int]) -> list[int]:
        text = list(prompt)
        while len(text) < min(len(prompt) + max_tokens, self.toy.context):
            logits = self.toy.logits(text)[-1]
            wrong = self.wrong(self, text, len(prompt), lengths)
            text.append(int(logits.argmin()) if wrong else self.choose(logits))
        return text[len(prompt) :]

    def choose(self, logits: Tensor) -> int:
        """The highest; of the near-tied ids 0 and 1 the other one, as happens if sums are taken in another order."""
        best, second = logits.topk(2).indices.tolist()
        near = float(logits[best] - logits[second]) < 2e-4 * max(1.0, float(logits.abs().max()))
        return second if near and {best, second} == {0, 1} else best


def _call(case: Case, engine: Callable[[Toy], Callable[..., list[list[int]]]]) -> Call:
    toy = Toy(int(case.ints("model", 0, 10**6, 1)), VOCAB, CONTEXT)
    return call(engine(toy), toy.logits, VOCAB, CONTEXT)


def _wrong(case: Case, wrong: Callable[..., bool]) -> Call:
    return _call(case, lambda toy: Engine(toy, wrong))


def _near_tie(case: Case, apart: float) -> Call:
    scale = case.choice("scale", (0.1, 1.0))
    toy = NearTies(int(case.ints("model", 0, 10**6, 1)), VOCAB, CONTEXT, scale, apart)
    return call(Engine(toy), toy.logits, VOCAB, CONTEXT)


def near_ties(case: Case) -> Call:
    """A right engine passes that now and then takes the other of two tokens within the tolerance."""
    return _near_tie(case, 0.7)


def beyond_the_tolerance(case: Case) -> Call:
    """An engine fails that takes a token whose logit is below the highest by more than the tolerance."""
    return _near_tie(case, 1.4)


def padded_rows(case: Case) -> Call:
    """An engine fails that is wrong in the rows that are shorter than the longest."""
    return _wrong(case, lambda engine, text, prompt, lengths: prompt < max(lengths))


def second_token(case: Case) -> Call:
    """An engine fails whose second new token alone is wrong, the first that a decode step makes."""
    return _wrong(case, lambda engine, text, prompt, lengths: len(text) == prompt + 1)


def second_call(case: Case) -> Call:
    """An engine fails that is right in its first call and wrong in those after it."""
    return _wrong(case, lambda engine, text, prompt, lengths: engine.calls > 0)


def end_of_the_context(case: Case) -> Call:
    """An engine fails that is wrong only at the last position of the context."""
    return _wrong(case, lambda engine, text, prompt, lengths: len(text) == CONTEXT - 1)


def too_few_tokens(case: Case) -> Call:
    """An engine fails that stops one token early where more than two are asked for."""

    def engine(toy: Toy) -> Callable[..., list[list[int]]]:
        return lambda prompts, n: [row[: max(2, len(row) - 1)] for row in Engine(toy)(prompts, n)]

    return _call(case, engine)


def _example() -> Call:
    def generate(prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        """the engine under test"""
        return Engine(Toy(0, VOCAB, CONTEXT))(prompts, max_tokens)

    def logits_of(token_ids: list[int]) -> Tensor:
        """the oracle"""
        return Toy(0, VOCAB, CONTEXT).logits(token_ids)

    return call(generate, logits_of, VOCAB, CONTEXT)


EXERCISE = Spec(
    title="The oracle's test",
    reference=check_engine,
    task=(
        "Write the test that a new engine must pass. It is marked both ways: right engines must pass it, and "
        "engines with\n"
        "one mistake each must fail it, with an AssertionError."
    ),
    invariants=(
        "fluent text proves nothing, and neither does an engine that agrees with itself",
        "each token is judged on the text that its own row has produced, so one near-tie does not condemn the rest",
        "a mistake may be in one row, in one place, or in the second call alone",
    ),
    lines=12,
    example=_example,
    section='What "equal tokens" means',
    refuse=("nanoinfer.verify:verify_tokens",),
    verdicts=True,
    hints=(
        "Invariant: an engine is right if every token it chose is (all but) the oracle's own choice after the same "
        "text.\n"
        "So what has to vary is the situation: lengths of prompts, place in the batch, place in the context, call.",
        "Place: most mistakes escape because of the prompts, not because of the comparison. Which rows exist only "
        "in a\n"
        "ragged batch? When is the last position of the context reached? What is different about a second call?",
        "Pseudocode:\n"
        "  twice, with fresh random prompts of several lengths, one of a single token; once for few tokens, once to "
        "the end:\n"
        "      run the engine; are there as many rows as prompts, and as many tokens as there should be?\n"
        "      for each row: the oracle's logits after prompt and after each new token but the last\n"
        "      at each place, is the chosen token's logit within the tolerance of the highest?",
    ),
)


CHECKS = (
    Check(near_ties, 4), Check(beyond_the_tolerance, 4), Check(padded_rows), Check(second_token), Check(second_call),
    Check(end_of_the_context), Check(too_few_tokens),
)  # fmt: skip
