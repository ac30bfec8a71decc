"""Exercise 1.8: wrong answers (tests that prove too little or too much), correct variants, mutants that are none."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Generate = Callable[[list[list[int]], int], list[list[int]]]
Oracle = Callable[[list[int]], Tensor]


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


_OTHER = "another choice of prompts and numbers of tokens, which meets the same situations"
_RANDINT = "prompts = [torch.randint(vocab_size, (n,), generator=generator).tolist() for n in range({})]"
_FOR = "for max_tokens, count in ({}):"
EQUIVALENT = {
    "assert bool((logits.amax(-1) - chosen < allowed).all())": "they differ where a gap equals the tolerance to a bit",
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
