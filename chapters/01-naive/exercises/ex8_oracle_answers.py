"""Exercise 1.8: wrong answers (tests that prove too little or too much), correct variants, mutants that are none."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nanocourse.exercises.exercise import Right, Wrong

Generate = Callable[[list[list[int]], int], list[list[int]]]
Oracle = Callable[[list[int]], Tensor]


def fluent(generate: Generate, logits_of: Oracle, vocab_size: int, context: int) -> None:
    """An engine is right if it writes as many tokens as it should, all of them out of the vocabulary."""
    for max_tokens in (3, context):
        for prompt, new in zip(prompts := [[1], [2, 3, 4], [5, 6]], generate(prompts, max_tokens), strict=True):
            assert len(new) == min(max_tokens, context - len(prompt))
            assert all(0 <= token < vocab_size for token in new)


def agrees_with_itself(generate: Generate, logits_of: Oracle, vocab_size: int, context: int) -> None:
    """An engine is right if two calls with the same prompts agree, and the lengths are right."""
    prompts = [[1], [2, 3, 4], [5, 6]]
    first = generate(prompts, context)
    assert first == generate(prompts, context)
    assert [len(new) for new in first] == [context - len(prompt) for prompt in prompts]


def same_text(generate: Generate, logits_of: Oracle, vocab_size: int, context: int) -> None:
    """A right engine writes, token by token, the text that the oracle would write."""
    for max_tokens in (3, context):
        prompts = [[1], [2, 3, 4, 5, 6], [7, 8], [9, 10, 11, 12, 13, 14, 15]]
        for prompt, new in zip(prompts, generate(prompts, max_tokens), strict=True):
            text = list(prompt)
            while len(text) < min(context, len(prompt) + max_tokens):
                text.append(int(logits_of(text)[-1].argmax()))
            assert new == text[len(prompt) :]


PROMPTS = "for n in range(1, 6)]\n        prompts.append([2, 0, 1])  # shorter than the one before it, and with id 0\n"
WITHIN = "assert bool((logits.amax(-1) - chosen <= allowed).all())"
WRONG = (
    Wrong(fluent, "jsbaan/transformer-from-scratch#6: a test that passed with scrambled heads"),
    Wrong(agrees_with_itself, "rajveer43/VeloxQuant-MLX#59: the test had the mistake for its expected value"),
    Wrong(same_text, "huggingface/transformers#37724, vllm-project/vllm#57365"),
    Wrong.patch(
        "one-row", "One prompt shows it as well as many.", PROMPTS, "for n in (5,)]\n",
        "huggingface/transformers#14521, Gen-Verse/LatentMAS#26: right alone, wrong in a ragged batch",
    ),
    Wrong.patch(
        "first-token", "Once the first new token is right, the others follow.", WITHIN,
        "assert bool((logits.amax(-1) - chosen <= allowed)[0])",
        "skyzh/tiny-llm#46: the first step was right, and the positions jumped after it",
    ),
    Wrong.patch(
        "last-token", "The last token depends on all before it: if it is right, they were.", WITHIN,
        "assert bool((logits.amax(-1) - chosen <= allowed)[-1])",
        "ariannamethod/notorch#85: handed its own text, a run looks right again after a wrong token",
    ),
    Wrong.patch(
        "one-call", "An engine that is right once is right again.", "(3, 6), (context, 6), (context, 1)",
        "(context, 6),",
        "rajveer43/VeloxQuant-MLX#59: keys of the first call in the second",
    ),
    Wrong.patch(
        "few-tokens", "A few tokens show it as well as a full context.", "(context, 6), (context, 1)", "(4, 6), (4, 1)",
        "facebookresearch/fairseq#119: out of bounds at the last position alone",
    ),
    Wrong.patch(
        "number-unchecked", "What is not there cannot be wrong: only the tokens that came are judged.",
        "assert len(new) == min(max_tokens, context - len(prompt))", "assert len(new) > 0",
        "mstar-project/mstar#99: one token more or fewer at the end",
    ),
    Wrong.patch(
        "rows-uncounted", "Each prompt has its row: zip finds it.",
        "        assert len(rows) == len(prompts)\n        for prompt, new in zip(prompts, rows, strict=True):",
        "        for prompt, new in zip(prompts, rows):",
        "a try of somebody who saw stub and text alone, which passed",
    ),
    Wrong.patch(
        "loose", "A tolerance of a hundredth is small enough.", "allowed = 1e-4", "allowed = 1e-2",
        "RBLN-SW/vllm-rbln#741: a tolerance for 16 bits, raised until the test passed",
    ),
    Wrong.patch(
        "from-the-highest-logit", "The largest logit is the highest one.",
        "logits.abs().amax(-1).clamp(min=1)",
        "logits.amax(-1).clamp(min=1)",
        "a try of somebody who saw stub and text alone, which passed", unnamed="same-text",
    ),
    Wrong.patch(
        "same-prompts-again", "The second call may repeat the prompts of the first.",
        "    generator = torch.Generator().manual_seed(0)\n"
        "    for max_tokens, count in ((3, 6), (context, 6), (context, 1)):  # a later call meets what others have left"
        " behind\n"
        "        prompts",
        "    for max_tokens, count in ((3, 6), (context, 6), (context, 1)):\n"
        "        generator = torch.Generator().manual_seed(0)\n"
        "        prompts",
        "a try of somebody who saw stub and text alone, which passed",
    ),
    Wrong.patch(
        "any-number", "What comes from an engine is the id of a token.",
        "            assert all(isinstance(token, int) and 0 <= token < vocab_size for token in new)\n", "",
        "written to pass all checks that there were, and it did: Python looks -1 up at the end of a list",
    ),
    Wrong.patch(
        "too-many-is-enough", "An engine that gives too many tokens has given those that were asked for.",
        "assert len(new) == min(max_tokens, context - len(prompt))",
        "assert len(new) >= min(max_tokens, context - len(prompt))\n"
        "            new = new[: context - len(prompt)]",
        "written to pass all checks that there were, and it did", unnamed="number-unchecked",
    ),
    Wrong.patch(
        "prompts-without-0", "An id is an id: prompts of 1 and more will do.",
        "torch.randint(vocab_size, (n,), generator=generator).tolist() for n in range(1, 6)]\n"
        "        prompts.append([2, 0, 1])",
        "torch.randint(1, vocab_size, (n,), generator=generator).tolist() for n in range(1, 6)]\n"
        "        prompts.append([2, 2, 1])",
        "a reader who saw stub and text alone; it passed",
    ),
    Wrong.patch(
        "prompts-by-length", "In what order prompts of several lengths stand does not matter.",
        "        prompts.append([2, 0, 1])", "        prompts.append([2, 0, 1, 2, 3, 4])",
        "written to pass all checks that there were, and it did", unnamed="one-row",
    ),
    Wrong.patch(
        "never-alone", "What is right for several prompts is right for one.", ", (context, 1)", "",
        "a reader who saw stub and text alone; it passed", unnamed="one-row",
    ),
    Wrong.patch(
        "numbers-made-whole", "A number that comes from an engine may be made a whole one.",
        "            assert all(isinstance(token, int)", "            new = [int(token) for token in new]\n"
        "            assert all(isinstance(token, int)",
        "a reader who saw stub and text alone; it passed",
    ),
    Wrong.patch(
        "one-tolerance-a-text", "The largest logit of a text is that of each of its places.",
        "logits.abs().amax(-1)", "logits.abs().amax()", "written to pass all checks that there were, and it did",
        unnamed="loose",
    ),
)  # fmt: skip


def row_by_row(generate: Generate, logits_of: Oracle, vocab_size: int, context: int) -> None:
    """Python loops and a list of complaints; prompts by arithmetic, three calls."""
    complaints = []
    for turn, max_tokens in enumerate((2, context, 5, context)):
        prompts = [
            [i * (3 * i + 5 * n + turn) % vocab_size for i in range(n)] for n in ((6, 1, 3) if turn < 3 else (4,))
        ]
        rows = generate(prompts, max_tokens)
        if len(rows) != len(prompts):
            raise AssertionError(f"{len(rows)} rows for {len(prompts)} prompts")
        for prompt, new in zip(prompts, rows, strict=True):
            if len(new) != min(max_tokens, context - len(prompt)):
                complaints.append("number")
                continue
            for at, token in enumerate(new):
                if not isinstance(token, int) or not 0 <= token < vocab_size:
                    complaints.append("no token")
                    break
                scores = logits_of(prompt + new[:at])[-1].tolist()
                if max(scores) - scores[token] > 1e-4 * max(1.0, *map(abs, scores)):
                    complaints.append(f"token {at}")
    assert not complaints, complaints


def long_first(generate: Generate, logits_of: Oracle, vocab_size: int, context: int) -> None:
    """The full context first, and the same prompts again after others; float64."""
    several = [[4, 8, 15, 16], [23, 1, 2], [7], [3, 0, 3, 3, 0, 3, 3]]
    for prompts, max_tokens in ((several, context), ([[9, 9], [1, 2, 3]], 4), (several, 6), ([[5]], 9)):
        rows = generate(prompts, max_tokens)
        assert len(rows) == len(prompts)
        for prompt, new in zip(prompts, rows, strict=True):
            assert len(prompt) + len(new) == min(context, len(prompt) + max_tokens)
            assert {type(token) for token in new} == {int}
            assert set(new) <= set(range(vocab_size))
            logits = logits_of([*prompt, *new][:-1]).double()[-len(new) :]
            gaps = logits.max(-1).values - logits[torch.arange(len(new)), new]
            if (gaps > 1e-4 * logits.abs().max(-1).values.clamp(min=1)).any():
                raise AssertionError(f"a token is behind by {float(gaps.max()):.3g}")


def up_to_the_first_difference(generate: Generate, logits_of: Oracle, vocab_size: int, context: int) -> None:
    """The oracle's own greedy text is compared; at the first difference the two logits must nearly tie, then go on."""
    for turn, max_tokens in enumerate((1, context, context, 4)):
        prompts = [[n + turn, *range(turn, turn + n)] for n in range(10, -1, -2)][: 1 if turn > 2 else None]
        rows = generate(prompts, max_tokens)
        assert len(rows) == len(prompts), "rows"
        for prompt, new in zip(prompts, rows, strict=True):
            text = list(prompt)
            assert len(new) == min(max_tokens, context - len(text))
            for token in new:
                assert isinstance(token, int)
                assert token in range(vocab_size)
                logits = logits_of(text)[-1]
                best = int(logits.argmax())
                tie = abs(float(logits[best] - logits[token])) <= 1e-4 * max(1.0, float(logits.abs().max()))
                assert token == best or tie
                text.append(token)


RIGHT = (Right(row_by_row), Right(long_first), Right(up_to_the_first_difference))

_OTHER = "another choice of prompts and numbers of tokens, which meets the same situations"
_RANDINT = "prompts = [torch.randint(vocab_size, (n,), generator=generator).tolist() for n in range({})]"
_FOR = "for max_tokens, count in ({}):"
EQUIVALENT = {
    "assert bool((logits.amax(-1) - chosen < allowed).all())": "they differ where a gap equals the tolerance to a bit",
    "assert len(new) == min(context - len(prompt), max_tokens)": "the lower of two is the same in either order",
    "for prompt, new in zip(prompts, rows, strict=False):": "the line before has counted the rows",
    "generator = torch.Generator().manual_seed(-1)": _OTHER,
    "generator = torch.Generator().manual_seed(1)": _OTHER,
    **dict.fromkeys(
        [
            _FOR.format(calls)
            for calls in (
                "(2, 6), (context, 6), (context, 1)",
                "(4, 6), (context, 6), (context, 1)",
                "(3, 5), (context, 6), (context, 1)",
                "(3, 7), (context, 6), (context, 1)",
                "(3, 6), (context, 5), (context, 1)",
                "(3, 6), (context, 7), (context, 1)",
                "(6, 3), (context, 6), (context, 1)",
                "(3, 6), (6, context), (context, 1)",
                "(3, 6), (context, 1), (context, 6)",
                "(context, 6), (3, 6), (context, 1)",
            )
        ],
        _OTHER,
    ),
    _RANDINT.format("0, 6"): "the last six are taken, and the one without tokens is not among them",
    _RANDINT.format("1, 5"): _OTHER,
    "prompts.append([1, 0, 1])": _OTHER,
    "prompts.append([3, 0, 1])": _OTHER,
    "prompts.append([2, 0, 0])": _OTHER,
    "prompts.append([2, 0, 2])": _OTHER,
    "prompts.append([2, 1, 1])": "by this seed 0 stands in another prompt, too",
}
