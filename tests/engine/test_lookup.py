"""Drafts that a row's own text brings, and those of a coin, of which it is known how often they are right."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nanoinfer import LLM, SamplingParams
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.speculate.coin import CoinDrafter
from nanoinfer.speculate.engine import Drafting
from nanoinfer.speculate.lookup import PromptLookup, look_up
from tests.conftest import prompts_of
from tests.engine.drafting import FREE, seen, speculating


def found(text: Sequence[int], limit: int, longest: int = 3) -> list[int]:
    """What `look_up` finds behind a text, of several that lie in one tensor."""
    texts = torch.full((3, len(text) + 5), 7)
    texts[1, : len(text)] = torch.tensor(text, dtype=torch.int64)
    drafts = look_up(texts, torch.tensor([1]), torch.tensor([len(text) - 1]), limit, longest)
    assert drafts.shape == (1, limit)
    return drafts[0].tolist() if (drafts >= 0).any() else []  # type: ignore[no-any-return]


@given(st.lists(st.integers(0, 2), min_size=1, max_size=30), st.integers(1, 4), st.integers(1, 6))
def test_as_a_search_finds_it(text: list[int], longest: int, limit: int) -> None:
    expected: list[int] = []
    for n in range(min(longest, len(text)), 0, -1):
        ends = [end for end in range(n, len(text)) if text[end - n : end] == text[-n:]]
        if ends:
            expected = (text[ends[-1] :] * limit)[:limit]
            break
    assert found(text, limit, longest) == expected


@settings(suppress_health_check=[HealthCheck.differing_executors], deadline=None)
@given(st.lists(st.integers(0, 2), min_size=2, max_size=30), st.integers(1, 6), st.data())
def test_the_host_foresees_what_the_device_finds(plain: LLM, text: list[int], most: int, data: st.DataObject) -> None:
    """Whether tokens come one by one or many at once; of a row that has more than `most` new ones."""
    prompt = data.draw(st.integers(1, len(text) - 1))
    (request,) = plain.requests([text[:prompt]], SamplingParams())
    lookup, row = PromptLookup(1, 40, most, torch.device("cpu")), Drafting(request)
    for token in text[prompt:]:
        row.tokens.append(token)
        if len(row.token_ids) > most and data.draw(st.booleans()):
            guess = found(row.tokens[:-most], most)
            right = [a == b for a, b in zip(guess, row.tokens[-most:], strict=False)]
            assert lookup.foreseen(row, most) == [*right, False].index(False)


def test_the_kernel_finds_the_same() -> None:
    """In Triton's interpreter: texts of several tiles, and of one token; padding of the dummy row."""
    program = """
        import torch
        from nanoinfer.kernels import lookup
        from nanoinfer.speculate.lookup import LONGEST, NONE, look_up
        lookup.TILE = 16
        generator = torch.Generator().manual_seed(1)
        for symbols in (2, 5, 50):
            texts = torch.randint(symbols, (40, 70), generator=generator)
            rows = torch.randperm(40, generator=generator)
            positions = torch.randint(64, (40,), generator=generator)
            positions[:4] = torch.tensor([0, 1, 2, 63])
            for k in (1, 3, 6):
                expected = look_up(texts, rows, positions, k)
                assert torch.equal(lookup.look_up(texts, rows, positions, k, LONGEST, NONE), expected)
                assert (expected >= 0).any()
    """
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], check=True, env={**os.environ, "TRITON_INTERPRET": "1"}
    )


@pytest.mark.parametrize("alpha", [0.3, 0.7])
def test_the_share_of_accepted_drafts(small_model: GPT2, plain: LLM, alpha: float) -> None:
    """Each draft behind right ones is right with probability alpha; and the tokens are the same."""
    params = [SamplingParams(seed=n, max_tokens=80, **FREE) for n in range(12)]
    expected = plain.generate(prompts_of([3] * 12), params)
    coin = CoinDrafter(4, 100, 1, torch.device("cpu"))
    coin.begin({c.seed: c.token_ids for c in expected}, alpha)
    llm = speculating(small_model, coin, draft_tokens=1, engine="dense", max_batch=4)
    assert seen(llm.generate(prompts_of([3] * 12), params)) == seen(expected)
    assert llm.stats.draft_tokens > 400
    assert llm.stats.accepted_tokens / llm.stats.draft_tokens == pytest.approx(alpha, abs=0.06)
