"""Drafts from the command line: figures, steps that are shown, and a person who guesses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from nanoinfer import LLM, SamplingParams
from tests.cli.commands import Result

PROMPT = "The dog and the cat and the dog and"
GREEDY = ("--greedy", "--device", "cpu")
DRAFTS = ("--speculate", "lookup", "--all-drafts")


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(device="cpu")


@pytest.mark.parametrize("who", ["lookup", "small"])
def test_texts_are_those_without_drafts(who: str, invoke: Any) -> None:
    options = ["generate", PROMPT, "-n", "40", "--seed", "3", "--temperature", "0.4", "--device", "cpu"]
    drafted = invoke(*options, "--speculate", who, "--draft-tokens", "3", "--all-drafts")
    assert drafted.out == invoke(*options).out
    accepted, _, brought = drafted.err.partition(" drafts accepted")[0].rpartition(", ")[2].split()
    if who == "small":  # with the model's own noise it is never wrong
        assert accepted == brought
        assert "3.90 tokens a step" in drafted.err  # 39 in 10 steps
    else:
        assert 0 < int(accepted) <= int(brought)


# Steps that are shown


def test_steps_are_set_apart(llm: LLM, invoke: Any) -> None:
    params = SamplingParams(40, temperature=0, seed=1)
    drafted = LLM(llm.model, speculate="lookup", adaptive_drafts=False)
    expected = drafted.generate(PROMPT, params)[0].text
    shown = invoke("generate", PROMPT, "-n", "40", *GREEDY, *DRAFTS, "--show-steps").out
    assert shown.startswith(f"{PROMPT}|")
    assert shown.removesuffix("\n").replace("|", "") == PROMPT + expected
    assert shown.count("|") == 1 + drafted.stats.decode_steps < 40


# A person who guesses


@pytest.fixture
def guess(invoke: Any) -> Any:
    """Type lines into a shell in which a person drafts, with the small model."""

    def type_lines(*typed: str, options: Sequence[str] = ("--greedy", "-n", "8")) -> Result:
        data = "".join(f"{line}\n" for line in typed).encode("utf-8", "surrogateescape")
        return invoke("shell", "--device", "cpu", "-m", "small", "--draft", "me", *options, stdin=data)

    return type_lines


@pytest.fixture(scope="module")
def tokens(llm: LLM) -> list[str]:
    """The first eight that the model itself writes."""
    done = llm.generate(PROMPT, SamplingParams(8, temperature=0, seed=1))[0]
    return [llm.tokenizer.decode([token]) for token in done.token_ids]


def test_right_and_wrong_guesses_are_marked(guess: Any, llm: LLM, tokens: list[str]) -> None:
    one, two, three, four, five, six, *_ = tokens
    result = guess(PROMPT, f"{two}{three} zebra".strip(), "", "")
    begin = PROMPT + one
    assert result.code == 0
    assert result.out.splitlines() == [
        f"{PROMPT}<{one}>",
        f"{begin}[{two}][{three}]<{four}>",
        f"{begin}{two}{three}{four}<{five}>",
        f"{begin}{two}{three}{four}{five}<{six}>",
    ]
    brought = len(llm.tokenizer.encode(" zebra")) + 2
    _, first, *later = result.err.splitlines()
    assert first.startswith(f"2 of {brought} right, not ")
    so_far = "so far 2 right, 1 wrong, alpha 0.67"
    assert first.endswith(f"; {so_far}, 3.00 tokens a step")
    assert later == [f"{so_far}, {speed} tokens a step" for speed in ("2.00", "1.67")]


@pytest.mark.parametrize("options", [("--seed", "5"), ("--greedy", "--engine", "paged")])
def test_any_guesses_give_the_model_s_own_text(guess: Any, llm: LLM, options: tuple[str, ...]) -> None:
    sampling = {"temperature": 0} if "--greedy" in options else {"temperature": 0.8, "top_k": 40}
    expected = llm.generate(PROMPT, SamplingParams(7, seed=5, **sampling))[0].text
    guesses = ["the", ", and", "cat dog fox", "", "\u4e2d", "a b c d e f g h"]  # none of which is right
    result = guess(PROMPT, *guesses, options=("-n", "7", *options))
    assert result.out.translate(str.maketrans("", "", "[]<>")).endswith(f"\n{PROMPT}{expected}\n")
    assert "the text has ended (length)" in result.err


def test_a_guess_that_is_right_to_the_end(guess: Any, tokens: list[str]) -> None:
    """It may be longer than what is left: the last token is the model's own."""
    result = guess(PROMPT, "".join(tokens[1:]).strip() + " and more")
    assert result.out.splitlines()[-1].count("[") == 6
    said = "6 of 6 right; the text has ended (length); so far 6 right, 0 wrong, alpha 1.00, 7.00 tokens a step\n"
    assert result.err.endswith(said)


def test_what_cannot_be_a_guess_changes_nothing(guess: Any, tokens: list[str]) -> None:
    options = ("--greedy", "-n", "8", "--draft-tokens", "2")
    result = guess(PROMPT, "one two three", "a\udcff", "/top-k -1", "", options=options)
    assert result.out.splitlines()[1:] == [f"{PROMPT}{tokens[0]}<{tokens[1]}>"]
    _, long, surrogate, command = result.err.splitlines()
    assert long == "a guess may have 2 tokens (--draft-tokens), not 3"
    assert surrogate.startswith("a guess must be text that UTF-8 can hold")
    assert command.startswith("/top-k must be")


def test_a_text_can_be_left_and_gone_on_with(guess: Any, tokens: list[str]) -> None:
    """The one row of the engine is free each time."""
    result = guess(PROMPT, "", "/more", "/end", "/more", "/engine naive", PROMPT, "/quit", options=("--greedy", "-q"))
    one, two, three, four, *_ = tokens
    first = f"{PROMPT}<{one}>"
    assert result.err == "engine naive\n"
    assert result.out.splitlines() == [first, f"{PROMPT}{one}<{two}>", f"<{three}>", f"<{four}>", first]
