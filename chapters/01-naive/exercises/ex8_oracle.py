"""Exercise 1.8: the test of an engine against the oracle, marked both ways: right engines pass it, wrong ones fail."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nanocourse.exercises import Call, Case, Check, Spec, call
from nanocourse.exercises.toy_model import LastOften, NearTies, Toy

VOCAB, CONTEXT = 24, 16


def check_engine(
    generate: Callable[[list[list[int]], int], list[list[int]]],
    logits_of: Callable[[list[int]], Tensor],
    vocab_size: int,
    context: int,
) -> None:
    """Raise AssertionError if the engine is wrong; return None if it is right.

    generate: the engine, greedy: prompts and max_tokens -> the new tokens of each prompt. Each prompt gets max_tokens
    of them, or as many as fit where prompt and new tokens together fill the context. A call's prompts are one batch,
    of which the engine gets a copy; any token may stand in them, 0 too, which a wrong engine may take for padding. It
    gives one list for each, in their order; an engine that gives fewer, or more, is wrong like any other. Tokens are
    ints from 0 to vocab_size - 1: whatever else a wrong engine gives for one, as -1, 2.5 or 3.0, is wrong.
    logits_of: the oracle: 1 to `context` token ids (T) -> logits (T, vocab_size), float32, after each of them.
    A token is right if its logit, by the oracle on the row's own text, is within 1e-4 * max(1, largest |logit|) of the
    highest: an engine adds in another order, and may part from the oracle where two tokens nearly tie.
    """
    generator = torch.Generator().manual_seed(0)
    for max_tokens, count in ((3, 6), (context, 6), (context, 1)):  # a later call meets what others have left behind
        prompts = [torch.randint(vocab_size, (n,), generator=generator).tolist() for n in range(1, 6)]
        prompts.append([2, 0, 1])  # shorter than the one before it, and with id 0
        prompts = prompts[-count:]
        rows = generate(prompts, max_tokens)
        assert len(rows) == len(prompts)
        for prompt, new in zip(prompts, rows, strict=True):
            assert len(new) == min(max_tokens, context - len(prompt))
            assert all(isinstance(token, int) and 0 <= token < vocab_size for token in new)
            logits = logits_of([*prompt, *new[:-1]])[len(prompt) - 1 :]  # (len(new), vocab_size)
            chosen = logits[torch.arange(len(new)), new]
            allowed = 1e-4 * logits.abs().amax(-1).clamp(min=1)
            assert bool((logits.amax(-1) - chosen <= allowed).all())


class Engine:
    """A greedy engine over a toy model, right but where `wrong` says so: there it takes the least likely token.

    wrong: the engine, the text so far, how many of its tokens are the prompt, lengths of all prompts -> yes or no.
    exact: it adds as the oracle does, and never parts from it.
    """

    def __init__(self, toy: Toy, wrong: Callable[..., bool] = lambda *place: False, exact: bool = False) -> None:
        self.toy, self.wrong, self.exact, self.calls, self.row = toy, wrong, exact, 0, 0
        self.known: list[list[int]] = []  # prompts of the calls before this one

    def __call__(self, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        rows = []
        for self.row, prompt in enumerate(prompts):
            rows.append(self._row(prompt, max_tokens, list(map(len, prompts))))
        self.calls, self.known = self.calls + 1, [*self.known, *map(list, prompts)]
        return rows

    def _row(self, prompt: list[int], max_tokens: int, lengths: list[int]) -> list[int]:
        text = list(prompt)
        while len(text) < min(len(prompt) + max_tokens, self.toy.context):
            logits = self.toy.logits(text)[-1]
            wrong = self.wrong(self, text, len(prompt), lengths)
            text.append(int(logits.argmin()) if wrong else self.choose(text, logits))
        return text[len(prompt) :]

    def choose(self, text: list[int], logits: Tensor) -> int:
        """The highest; where ids 0 and 1 nearly tie, id 1, as happens if sums are taken in another order."""
        tied = isinstance(self.toy, NearTies) and sum(text) % 3 == 0
        return 1 if tied and not self.exact else int(logits.argmax())


def _toy(case: Case) -> Toy:
    """An oracle of any kind: whether it has near-ties says nothing about the engine."""
    seed, apart = int(case.ints("model", 0, 10**6, 1)), case.choice("apart", (0.0, 0.7, 0.7, 1.4))
    return NearTies(seed, VOCAB, CONTEXT, 1.0, apart) if apart else Toy(seed, VOCAB, CONTEXT)


def _call(case: Case, engine: Callable[[Toy], Callable[..., list[list[int]]]]) -> Call:
    toy = _toy(case)
    return call(engine(toy), toy.logits, VOCAB, CONTEXT)


def _wrong(case: Case, wrong: Callable[..., bool]) -> Call:
    return _call(case, lambda toy: Engine(toy, wrong, exact=True))


def _near_tie(case: Case, apart: float) -> Call:
    """Logits around 0, far below 1, around 1, near -1000 or 1000, or one at -1000: the largest |logit| is no top."""
    how = case.turn(((0.1, 0.0), (1.0, 0.0), (1.0, -1000.0), (1.0, 1000.0), (1.0, 0.0, -1000.0), (1.0, 0.0, 0.0, 50.0)))
    toy = NearTies(int(case.ints("model", 0, 10**6, 1)), VOCAB, CONTEXT, how[0], apart, *how[1:])
    return call(Engine(toy), toy.logits, VOCAB, CONTEXT)


def near_ties(case: Case) -> Call:
    """A right engine passes, also one that now and then takes the other of two tokens within the tolerance."""
    if case.turn((False,) * 5 + (True,) * 3):  # by any oracle, so that near-ties alone say nothing of the engine
        return _call(case, lambda toy: Engine(toy, exact=True))
    return _near_tie(case, 0.7)


def beyond_the_tolerance(case: Case) -> Call:
    """An engine fails that takes a token whose logit is below the highest by more than the tolerance."""
    return _near_tie(case, 1.4)


def padded_rows(case: Case) -> Call:
    """An engine fails that is wrong in shorter rows or longest ones, in some rows, where 0 is, or in a prompt alone."""
    some = case.turn((
        lambda engine, text, prompt, lengths: prompt < max(lengths),
        lambda engine, text, prompt, lengths: engine.row > 1,
        lambda engine, text, prompt, lengths: prompt == 1,
        lambda engine, text, prompt, lengths: 0 in text[:prompt],
        lambda engine, text, prompt, lengths: len(lengths) == 1,
        lambda engine, text, prompt, lengths: engine.row == 0,
        lambda engine, text, prompt, lengths: engine.row == 1,
        lambda engine, text, prompt, lengths: engine.row == len(lengths) - 1 > 0,
        lambda engine, text, prompt, lengths: prompt == max(lengths) > min(lengths),
    ))  # fmt: skip
    return _wrong(case, some)


def second_token(case: Case) -> Call:
    """An engine fails whose second new token alone is wrong, the first that a decode step makes."""
    return _wrong(case, lambda engine, text, prompt, lengths: len(text) == prompt + 1)


def one_place(case: Case) -> Call:
    """An engine fails that is wrong in one new token of each row, the first, the tenth or another, and in no other."""
    place = case.turn((0, 2, 3, 6, 9, 12))
    return _wrong(case, lambda engine, text, prompt, lengths: len(text) == prompt + place)


def second_call(case: Case) -> Call:
    """An engine fails that is right in its first call and wrong after it, if only for prompts that it has not met."""
    later = case.turn((
        lambda engine, text, prompt, lengths: engine.calls > 0,
        lambda engine, text, prompt, lengths: engine.calls > 0 and text[:prompt] not in engine.known,
    ))  # fmt: skip
    return _wrong(case, later)


def end_of_the_context(case: Case) -> Call:
    """An engine fails that is wrong only at the last position of the context, also if it took a near-tie before."""
    exact, toy = (
        case.turn((True, False, False)),
        NearTies(int(case.ints("ties", 0, 10**6, 1)), VOCAB, CONTEXT, 1.0, 0.7),
    )

    def last(engine: Engine, text: list[int], prompt: int, lengths: list[int]) -> bool:
        return len(text) == CONTEXT - 1

    return _wrong(case, last) if exact else call(Engine(toy, last), toy.logits, VOCAB, CONTEXT)


def too_few_tokens(case: Case) -> Call:
    """An engine fails that stops one token early where more than two are asked for, or goes on by one."""

    def early(rows: list[list[int]], more: list[list[int]]) -> list[list[int]]:
        return [row[: max(2, len(row) - 1)] for row in rows]

    def late(rows: list[list[int]], more: list[list[int]]) -> list[list[int]]:
        return more

    def engine(toy: Toy) -> Callable[..., list[list[int]]]:
        told, made = case.turn((early, late)), Engine(toy, exact=True)
        return lambda prompts, n: told(made(prompts, n), made(prompts, n + 1))

    return _call(case, engine)


def too_few_rows(case: Case) -> Call:
    """An engine fails that gives no list for the first or the last of several prompts, one too many, or sorts them."""

    def by_length(rows: list[list[int]], prompts: list[list[int]]) -> list[list[int]]:
        return [rows[at] for at in sorted(range(len(rows)), key=lambda at: len(prompts[at]))]

    told = case.turn((
        lambda rows, prompts: rows[:-1], lambda rows, prompts: rows[1:], lambda rows, prompts: [*rows, rows[-1]],
        by_length,
    ))  # fmt: skip

    def engine(toy: Toy) -> Callable[..., list[list[int]]]:
        made = Engine(toy, exact=True)
        return lambda prompts, n: told(made(prompts, n), prompts) if len(prompts) > 1 else made(prompts, n)

    return _call(case, engine)


def no_token(case: Case) -> Call:
    """An engine fails that gives -1, which is looked up like the last id, the number behind that one, or a float."""
    toy = LastOften(int(case.ints("model", 0, 10**6, 1)), VOCAB, CONTEXT)
    by = case.turn((-1, VOCAB, VOCAB - 1.0, 2.5))
    engine = Engine(toy, exact=True)

    def generate(prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        return [[by if token == VOCAB - 1 else token for token in row] for row in engine(prompts, max_tokens)]

    return call(generate, toy.logits, VOCAB, CONTEXT)


def _example() -> Call:
    def generate(prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        """the engine under test"""
        return Engine(Toy(0, VOCAB, CONTEXT))(prompts, max_tokens)

    def logits_of(token_ids: list[int]) -> Tensor:
        """the oracle"""
        return Toy(0, VOCAB, CONTEXT).logits(token_ids)

    return call(generate, logits_of, VOCAB, CONTEXT)


EXERCISE = Spec(
    reference=check_engine,
    lines=12,
    example=_example,
    section='What "equal tokens" means',
    refuse=("nanoinfer.verify:verify_tokens",),
    verdicts=True,
)


CHECKS = (
    Check(near_ties, 8), Check(beyond_the_tolerance, 6), Check(padded_rows, 9), Check(second_token),
    Check(one_place, 6, wide=True), Check(second_call), Check(end_of_the_context, 3), Check(too_few_tokens),
    Check(too_few_rows, 4), Check(no_token, 4),
)  # fmt: skip
