"""Chapter 2's text: small.py gives the engine's tokens, the examples show what is said, the page keeps its form."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from nanobook.examples import load, printed
from nanoinfer import LLM, SamplingParams
from nanoinfer.cache.dense import DenseCache
from nanoinfer.model.config import PRESETS
from nanoinfer.text.tokenizer import gpt2_tokenizer
from tests.book.chapter_pages import (
    ends_with_a_question,
    has_ten_questions,
    is_short_and_stands_alone,
    linked_names_exist,
    links_lead_somewhere,
    numbered_sections,
    pictures_have_words,
    words,
)

ROOT = Path(__file__).parents[2]
CHAPTER = ROOT / "chapters" / "02-kv-cache"
PROMPTS = ("Once upon a time", "The fox", "Where are you going?", " ")

pytestmark = pytest.mark.skipif(not (CHAPTER / "README.md").is_file(), reason="not a checkout")


@pytest.fixture(scope="module")
def small() -> ModuleType:
    return load(CHAPTER / "small.py")


@pytest.fixture(scope="module")
def weights(small: ModuleType) -> tuple[dict[str, torch.Tensor], dict[str, int]]:
    loaded: tuple[dict[str, torch.Tensor], dict[str, int]] = small.load(small.DATA / "small")
    return loaded


@pytest.fixture(scope="module")
def running() -> ModuleType:
    return load(CHAPTER / "running.py")


@pytest.fixture(scope="module")
def text() -> str:
    return (CHAPTER / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def sections(text: str) -> dict[str, str]:
    return numbered_sections(text)


class TestSmall:
    def test_is_short_and_stands_alone(self) -> None:
        is_short_and_stands_alone(CHAPTER / "small.py")

    @pytest.mark.parametrize("engine", ["naive", "dense"])
    def test_tokens_are_the_engines(self, small: ModuleType, weights: Any, engine: str) -> None:
        llm, params = LLM(engine=engine, device="cpu"), SamplingParams(max_tokens=24, temperature=0)
        for told in llm.generate(list(PROMPTS), params):
            prompt = list(told.prompt_token_ids)
            assert small.generate(prompt, 24, *weights) == [*prompt, *told.token_ids]

    def test_one_step_or_several_give_the_same_logits(self, small: ModuleType, weights: Any) -> None:
        """Whole, in chunks, and token by token; and what stands in slots behind makes no difference."""
        w, shape = weights
        ids = gpt2_tokenizer().encode("The old fox looked up at the tree and said")
        theirs = LLM(engine="naive", device="cpu").forward_logits([ids])[0, -1]
        for chunk in (len(ids), 3, 1):
            size = (2, shape["n_layer"], shape["n_head"], len(ids) + 5, shape["n_embd"] // shape["n_head"])
            cache = torch.full(size, 1e4)
            for at in range(0, len(ids), chunk):
                logits = small.step(ids[at : at + chunk], at, cache, w)
            assert torch.allclose(logits, theirs, atol=2e-4)

    def test_each_token_goes_through_once(self, small: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        fed: list[tuple[list[int], int]] = []

        def step(new: list[int], at: int, cache: torch.Tensor, w: object) -> torch.Tensor:
            fed.append((new, at))
            return (torch.arange(50257) == 7 + len(fed)).int()

        monkeypatch.setattr(small, "step", step)
        shape = {"n_layer": 1, "n_head": 1, "n_embd": 2}
        assert small.generate([1, 2, 3], 3, {}, shape) == [1, 2, 3, 8, 9, 10]
        assert fed == [([1, 2, 3], 0), ([8], 3), ([9], 4)]

    def test_stops_behind_end_of_text(self, small: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        after = iter([5, small.END, 6])
        monkeypatch.setattr(small, "step", lambda new, at, cache, w: (torch.arange(50257) == next(after)).int())
        assert small.generate([1], 9, {}, {"n_layer": 1, "n_head": 1, "n_embd": 2}) == [1, 5, small.END]

    def test_runs_as_a_program(self) -> None:
        command = [sys.executable, str(CHAPTER / "small.py"), "The", "fox"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.startswith("The fox was a very good dog")


class TestRunningExample:
    def test_the_past_does_not_change(self, running: ModuleType) -> None:
        """What section 1 says: nothing old in a causal model; where all read all, everything from layer 1 on."""
        ids = running.text_ids(0, 1)
        for both_ways in (False, True):
            before, after = (running.states(text, both_ways) for text in (ids[:-1], ids))
            for layer, (old, new) in enumerate(zip(before, after, strict=True)):
                for one, other in zip(old, new, strict=True):
                    same = torch.allclose(one, other[:-1], atol=1e-9)
                    assert same == (not both_ways or layer == 0), (both_ways, layer)

    def test_left_padding_needs_both(self, running: ModuleType) -> None:
        right = running.one.probs(1)
        assert torch.allclose(running.left_padded(True, True), right, atol=1e-6)
        for hidden, own in ((False, False), (True, False), (False, True)):
            assert not torch.allclose(running.left_padded(hidden, own), right, atol=1e-3), (hidden, own)

    def test_chunks_give_the_same_logits(self, running: ModuleType) -> None:
        ids = running.encode("Once upon a time there was a king")
        whole = running.one.logits(torch.tensor([ids]))[0, -1]
        for chunk in (1, 3, len(ids)):
            assert torch.allclose(running.in_chunks(running.new_cache(1, len(ids)), ids, chunk), whole, atol=1e-6)

    def test_mistakes_that_the_text_shows(self, running: ModuleType) -> None:
        """Each changes the text of the row that it is shown on, but for the one that the text calls invisible."""
        right = running.continued()
        for id, name, row in (
            ("2.2", "column-is-slot", 0), ("2.2", "offset-counted-twice", 0), ("2.3", "triangle-at-the-top-left", 0),
            ("2.3", "itself-hidden", 0),
        ):  # fmt: skip
            assert running.continued(id=id, name=name)[row] != right[row], name
        assert running.continued(id="2.4", name="padded-length") == right
        assert running.continued() == right  # no mistake leaves a trace

    def test_padding_at_position_0_overwrites_the_first_token(self, running: ModuleType) -> None:
        sound = running.decoded_beside().k
        behind, first = (
            running.decoded_beside(at, "2.2", "padding-stored").k for at in (2, 0)
        )  # into row 0, behind its text and at position 0
        assert torch.equal(behind[:, 0, :2], sound[:, 0, :2])
        assert not torch.equal(first[:, 0, 0], sound[:, 0, 0])
        assert torch.equal(first[0, 0, 0], sound[0, 2, 0])  # in layer 0, which has read nothing yet
        assert torch.equal(sound[:, 0, 2:], torch.zeros_like(sound[:, 0, 2:]))  # by the dummy row, no slot is touched

    def test_blocks_print_the_same_twice(self) -> None:
        for name in ("same_again", "what_changes", "top_left", "padded_on_the_left", "dummy_row", "hidden_slots"):
            assert printed(CHAPTER / "example.py", name) == printed(CHAPTER / "example.py", name)


class TestCost:
    def test_bytes_are_the_engines(self) -> None:
        cost = load(CHAPTER / "cost.py")
        for name in ("gpt2", "gpt2-xl"):
            config = PRESETS[name]
            assert cost.cache_bytes(config, 512, 1024) == DenseCache.bytes(config, 511, 1024, torch.bfloat16)
        assert cost.NUMBERS["token"]() == "36,864"

    def test_a_missing_results_file_is_said_by_its_name(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        cost = load(CHAPTER / "cost.py")
        monkeypatch.setattr(cost, "RESULTS", tmp_path)
        with pytest.raises(ValueError, match=r"no results file h200-attention\.json"):
            cost.NUMBERS["prefill none"]()


class TestDrawings:
    def test_masks_are_the_engines_own(self) -> None:
        drawings = load(CHAPTER / "drawings.py")
        assert drawings.visible([3, 4]) == [[True] * 4 + [False] * 2, [True] * 5 + [False]]

    def test_all_have_words_and_numbers(self) -> None:
        for drawing in load(CHAPTER / "drawings.py").drawings():
            assert drawing.name.startswith("02-kv-cache/")
            assert len(drawing.alt) > 60
            assert drawing.rows
            assert all(len(row) == len(drawing.header) for row in drawing.rows)


class TestPage:
    def test_length(self, text: str) -> None:
        assert 2500 <= words(text) <= 4000

    def test_each_section_shows_and_asks(self, sections: dict[str, str]) -> None:
        """Something printed, drawn or measured comes before any code; and a question at the end, but for the last."""
        assert [int(title.split(".")[0]) for title in sections] == list(range(1, len(sections) + 1))
        for title, body in list(sections.items())[:-1]:
            first = re.search(r"\[\[\[cog (\w+)|<!--(=)", body)
            assert first, title
            assert first[1] in ("printed", "figure", "table", None), title
            ends_with_a_question(title, body)

    def test_every_picture_has_words(self, text: str) -> None:
        pictures_have_words(text)

    def test_links_lead_somewhere(self, text: str) -> None:
        links_lead_somewhere(CHAPTER, text)

    def test_names_in_the_table_exist(self, text: str) -> None:
        """`runner.decode_step` or `DenseCache.write`, linked to a file: that file has it."""
        linked_names_exist(text, least=7)

    def test_ten_questions(self) -> None:
        has_ten_questions(CHAPTER)
