"""Chapter 1's text: small.py gives the engine's tokens, the examples show what is said, the page keeps its form."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from nanobook.examples import load, number, printed
from nanobook.text.page_blocks import Place, excerpt
from nanoinfer import LLM, SamplingParams
from nanoinfer.cache.naive import FullContext, Plan
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.weights import random_model
from nanoinfer.text.tokenizer import gpt2_tokenizer
from tests.book.chapter_pages import (
    ends_with_a_question,
    exercises_have_their_sections,
    has_ten_questions,
    is_short_and_stands_alone,
    linked_names_exist,
    links_lead_somewhere,
    numbered_sections,
    pictures_have_words,
    words,
)

ROOT = Path(__file__).parents[2]
CHAPTER = ROOT / "chapters" / "01-naive"
PROMPTS = ("Once upon a time", "The fox", "Where are you going?", " ")

pytestmark = pytest.mark.skipif(not (CHAPTER / "README.md").is_file(), reason="not a checkout")


@pytest.fixture(scope="module")
def small() -> ModuleType:
    return load(CHAPTER / "small.py")


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

    def test_tokens_are_the_engines(self, small: ModuleType) -> None:
        weights, shape = small.load(small.DATA / "small")
        llm, params = LLM(engine="naive", device="cpu"), SamplingParams(max_tokens=24, temperature=0)
        for told in llm.generate(list(PROMPTS), params):
            prompt = list(told.prompt_token_ids)
            assert small.generate(prompt, 24, weights, shape) == [*prompt, *told.token_ids]

    def test_logits_are_the_engines(self, small: ModuleType) -> None:
        weights, shape = small.load(small.DATA / "small")
        ids = gpt2_tokenizer().encode("The old fox looked up at the tree and said")
        theirs = LLM(engine="naive", device="cpu").forward_logits([ids])[0, -1]
        assert torch.allclose(small.logits_after(ids, weights, shape), theirs, atol=2e-4)

    def test_stops_behind_end_of_text(self, small: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        after = iter([5, small.END, 6])
        monkeypatch.setattr(small, "logits_after", lambda ids, w, shape: (torch.arange(50257) == next(after)).int())
        assert small.generate([1], 9, {}, {}) == [1, 5, small.END]

    def test_runs_as_a_program(self) -> None:
        command = [sys.executable, str(CHAPTER / "small.py"), "The", "fox"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.startswith("The fox was a very good dog")


class TestRunningExample:
    def test_two_rows_of_three_tokens_and_two(self, running: ModuleType) -> None:
        ids, lengths = running.batch()
        assert tuple(ids.shape) == (2, 3)
        assert lengths == [3, 2]
        fed = running.packed()
        assert fed.token_ids.tolist() == [*ids[0].tolist(), *ids[1, :2].tolist()]
        assert fed.positions.tolist() == [0, 1, 2, 0, 1]

    def test_a_step_of_both_rows_is_each_alone(self, running: ModuleType) -> None:
        """The logits of five tokens end to end, at `logits_at`, are those of each prompt by itself."""
        with torch.inference_mode():
            together = running.model()(running.packed(), FullContext())  # (2, V)
            alone = torch.cat([running.model()(running.packed(row), FullContext()) for row in running.rows()])
        assert torch.allclose(together, alone)

    def test_attention_that_is_shown_is_the_models(self, running: ModuleType) -> None:
        """The weights times the values are what the engine's attention gives in that layer and head."""
        seen = {}

        class Keep(FullContext):
            def attend(self, plan: Plan, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
                y = super().attend(plan, layer, q, k, v)
                seen[layer] = (v[:3], y[:3])  # row 0
                return y

        with torch.inference_mode():
            running.model()(running.packed(), Keep())
        v, y = seen[running.LAYER]
        weights = running.watched().weights[running.HEAD]  # (T, T)
        assert torch.allclose(weights @ v[:, running.HEAD], y[:, running.HEAD])
        assert float(weights.triu(1).abs().max()) == 0

    def test_padding_changes_nothing_but_its_own_column(self, running: ModuleType) -> None:
        one, other = (running.logits(running.batch(padding)[0])[1] for padding in (0, 262))
        assert torch.equal(one[:2], other[:2])
        assert not torch.equal(one[2], other[2])

    def test_candidates_are_the_samplers_own(self, running: ModuleType) -> None:
        """What the table calls kept is what the engine's threshold keeps."""
        from nanoinfer.engine.sampling import threshold

        scores = running.logits(running.batch()[0])[1:2, 1] / running.TEMPERATURE
        lowest = threshold(scores, torch.tensor([running.TOP_K]), torch.tensor([running.TOP_P]))
        kept = {int(i) for i in (scores >= lowest)[0].nonzero()[:, 0]}
        assert {line.token_id for line in running.candidates() if line.kept} == kept

    def test_every_mistake_changes_the_text(self, running: ModuleType) -> None:
        right = running.greedy_ids("The fox", 6)
        wrong = [
            {"reads": running.NoMask()},
            {"reads": running.OwnValue()},
            {"reads": running.HiddenSelf()},
            {"ops": running.StreamNormalised()},
            {"positions": lambda T: torch.zeros(T, dtype=torch.int64)},
            {"positions": lambda T: torch.arange(1, T + 1)},
            {"seen": 1},
        ]
        for mistake in wrong:
            assert running.greedy_ids("The fox", 6, **mistake) != right, mistake
        assert running.greedy_ids("The fox", 6) == right  # no mistake leaves a trace

    def test_blocks_print_the_same_twice(self) -> None:
        for name in ("step", "attention", "gumbel_max", "kept"):
            assert printed(CHAPTER / "example.py", name) == printed(CHAPTER / "example.py", name)


class TestCost:
    @pytest.mark.parametrize("rows, tokens", [(1, 1), (1, 7), (3, 20)])
    def test_operations_are_what_torch_counts(self, running: ModuleType, rows: int, tokens: int) -> None:
        cost = load(CHAPTER / "cost.py")
        config = ModelConfig(n_layer=2, n_head=2, n_embd=16, n_positions=32, vocab_size=128)
        model = random_model(config, seed=0)
        batch = running.packed(*([*range(row, row + tokens)] for row in range(rows)))
        with FlopCounterMode(display=False) as counter, torch.inference_mode():
            model(batch, ByHand())
        assert counter.get_total_flops() == cost.step_flops(config, tokens, rows)

    def test_the_exercise_counts_alike(self) -> None:
        """Exercise 1.7 and the text give the same numbers."""
        from nanocourse.exercises import answers

        cost, config = load(CHAPTER / "cost.py"), ModelConfig(n_layer=3, n_head=2, n_embd=32, vocab_size=640)
        theirs = answers.reference("1.7")({"n_layer": 3, "n_embd": 32, "vocab_size": 640}, 9, 2)
        assert theirs["flops"] == cost.step_flops(config, 9)
        assert theirs["launches"] == cost.operations(config)

    def test_columns_by_counting(self) -> None:
        cost = load(CHAPTER / "cost.py")
        for prompt, new in ((1, 1), (5, 3), (3, 6)):
            assert cost.columns(prompt, new) == sum(prompt + at for at in range(new))
            assert cost.cached_columns(prompt, new) == prompt + new - 1


class ByHand(FullContext):
    """Attention by two plain products, which torch counts on every device."""

    def attend(self, plan: Plan, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (plan.batch.padded(x).transpose(1, 2) for x in (q, k, v))  # (B, H, T, D)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        scores = scores.masked_fill(torch.ones_like(scores).triu(1) > 0, -torch.inf)
        return plan.batch.packed((scores.softmax(-1) @ v).transpose(1, 2))


class TestPage:
    def test_length(self, text: str) -> None:
        assert 1000 <= words(text) <= 4200

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
        """`weights.load_model` or `GPT2.hidden`, linked to a file: that file has it."""
        linked_names_exist(text, least=9)

    def test_exercises_stand_in_their_sections(self, text: str, sections: dict[str, str]) -> None:
        exercises_have_their_sections(1, text, sections)

    def test_ten_questions(self) -> None:
        has_ten_questions(CHAPTER)


class TestExamples:
    """`printed` blocks and chapter numbers refuse what is not there."""

    def test_no_such_function(self) -> None:
        with pytest.raises(ValueError, match="has no function 'nothing'"):
            printed(CHAPTER / "example.py", "nothing")

    def test_a_block_by_its_name(self) -> None:
        command = [sys.executable, str(CHAPTER / "example.py"), "totals"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[:-1] == ["--- totals", *printed(CHAPTER / "example.py", "totals")]
        refused = subprocess.run([*command, "nothing"], capture_output=True, text=True, check=False)
        assert refused.returncode == 1
        assert refused.stderr.startswith("no block is called nothing; there are without_a_model, step,")

    def test_no_such_number(self) -> None:
        with pytest.raises(ValueError, match="has no number 'tokens of gold'"):
            number(CHAPTER / "example.py", ["tokens", "of", "gold"])

    def test_no_such_file(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"there is no 99-none/example\.py"):
            printed(tmp_path / "99-none" / "example.py", "step")

    @pytest.mark.parametrize("begin, found", [("nothing", "no"), ("x = x +", "2")])
    def test_a_part_that_is_not_one_line(self, begin: str, found: str) -> None:
        place = Place(CHAPTER / "README.md", ROOT)
        with pytest.raises(ValueError, match=f"{found} lines start with '{re.escape(begin)}'"):
            excerpt(place, "chapters.01-naive.small:logits_after", begin=begin)

    def test_a_part_of_an_excerpt(self) -> None:
        place = Place(CHAPTER / "README.md", ROOT)
        lines = excerpt(place, "chapters.01-naive.small:logits_after", begin="scores =", end="heads =")
        assert [line.split(" ")[0] for line in lines] == ["```python", "scores", "heads", "```"]

    def test_a_changed_file_is_read_again(self, tmp_path: Path) -> None:
        file = tmp_path / "01-x" / "example.py"
        file.parent.mkdir()
        file.write_text("def say():\n    print('one  ')\n")
        assert printed(file, "say") == ["one"]
        file.write_text("def say():\n    print('one')\n    print('two')\n")
        assert printed(file, "say") == ["one", "two"]
