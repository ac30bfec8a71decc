"""Chapter 7's text: small.py is right, the examples and figures show what the text says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from types import ModuleType

import pytest
import torch

from nanobook.examples import EXAMPLE, load
from nanoinfer import LLM, SamplingParams
from nanoinfer.engine.sampling import gumbel
from nanoinfer.speculate import step as step_module
from nanoinfer.text.tokenizer import gpt2_tokenizer
from tests.book.chapter_pages import (
    blocks_can_be_made,
    ends_with_a_question,
    exercises_have_their_sections,
    has_ten_questions,
    is_short_and_stands_alone,
    linked_names_exist,
    links_lead_somewhere,
    numbered_sections,
    pictures_have_words,
    without_code,
    words,
)

ROOT = Path(__file__).parents[2]
CHAPTER = ROOT / "chapters" / "07-speculation"
RESULTS = ROOT / "bench" / "results"

pytestmark = pytest.mark.skipif(not (CHAPTER / "README.md").is_file(), reason="not a checkout")


@pytest.fixture(scope="module")
def small() -> ModuleType:
    return load(CHAPTER / "small.py")


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return load(CHAPTER / EXAMPLE)


@pytest.fixture(scope="module")
def running() -> ModuleType:
    return load(CHAPTER / "running.py")


@pytest.fixture(scope="module")
def measured() -> ModuleType:
    return load(CHAPTER / "measured.py")


@pytest.fixture(scope="module")
def text() -> str:
    return (CHAPTER / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def sections(text: str) -> dict[str, str]:
    return numbered_sections(without_code(text))


def shown(name: str) -> list[str]:
    """A block as it stands in the page; that it is what the example prints is held by test_check_text.py."""
    page = (CHAPTER / "README.md").read_text(encoding="utf-8")
    found = re.search(rf'\[\[\[cog printed\("{name}"\) \]\]\]-->\n```text\n(.*?)\n```', page, re.S)
    assert found, name
    return found[1].split("\n")


def flat(parts: Sequence[Sequence[int]]) -> list[int]:
    return [token for part in parts for token in part]


def told(name: str) -> dict[str, str]:
    """Texts of a block by their labels, each as one line."""
    found: dict[str, str] = {}
    last = ""
    for line in shown(name):
        label, part = line[:24].strip(), line[24:]
        if label and part.startswith('"'):
            found[label], last = part, label
        elif not label:
            found[last] += " " + part
    return found


def numbers(name: str, line: int) -> list[float]:
    """The numbers of a line of a block, without their units; a percentage as it is written."""
    return [float(one.replace(",", "")) for one in re.findall(r"\d[\d,]*(?:\.\d+)?", shown(name)[line])]


class TestSmall:
    def test_is_short_and_stands_alone(self) -> None:
        is_short_and_stands_alone(CHAPTER / "small.py")

    def test_greedy_tokens_are_the_engines(self, small: ModuleType) -> None:
        prompt = "Once upon a time there was a fox. Once upon"
        with LLM(engine="naive", device="cpu", dtype="float32") as llm:
            (alone,) = llm.generate([prompt], SamplingParams(max_tokens=40, temperature=0, ignore_eos=True))
        for k in (0, 1, 4, 7):
            parts = small.generate(gpt2_tokenizer().encode(prompt), 40, k, 0.0)
            assert flat(parts) == [*alone.prompt_token_ids, *alone.token_ids]

    @pytest.mark.parametrize("heat", [0.0, 0.5, 1.0])
    def test_any_drafts_give_the_same_tokens(
        self, small: ModuleType, monkeypatch: pytest.MonkeyPatch, heat: float
    ) -> None:
        """Right ones, wrong ones, and as many as there may be: not as many as one more."""
        ids = gpt2_tokenizer().encode("The fox")
        plain = flat(small.generate(ids, 30, 0, heat))
        drafted: dict[int, int] = {}
        for wrong_at in range(5):

            def guess(text: Sequence[int], most: int, wrong_at: int = wrong_at) -> list[int]:
                known = list(plain[len(text) : len(text) + most])
                assert len(text) + most < len(plain)
                return [*known[:wrong_at], *[0] * (len(known) - wrong_at)]

            monkeypatch.setattr(small, "guess", guess)
            parts = small.generate(ids, 30, 4, heat)
            assert flat(parts) == plain
            drafted[wrong_at] = len(parts) - 1
        assert drafted == {0: 30, 1: 15, 2: 10, 3: 8, 4: 6}

    def test_a_guess_is_what_followed_last(self, small: ModuleType) -> None:
        assert small.guess([1, 2, 7, 1, 2, 8, 9, 1, 2], 2) == [8, 9]
        assert small.guess([1, 2, 7, 1, 2], 9) == [7, 1, 2]
        assert small.guess([1, 2, 3], 4) == small.guess([1], 4) == []
        assert small.guess([5, 5, 5], 4) == [5]

    def test_runs_as_a_program(self) -> None:
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(CHAPTER / "small.py")]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        assert done.stdout.count("the same text: True") == 2
        assert "| he was very fond of| the fox, and he|" in done.stdout


class TestRunning:
    """The loop that the text breaks is the engine's own rule."""

    @pytest.mark.parametrize("heat", [0.0, 0.8])
    def test_tokens_are_the_engines(self, example: ModuleType, running: ModuleType, heat: float) -> None:
        made = example.text(heat=heat)
        with running.llm("naive") as llm:
            params = SamplingParams(temperature=heat, max_tokens=example.NEW, seed=running.SEED, ignore_eos=True)
            (done,) = llm.generate([running.FOX], params)
        assert tuple(made.ids) == (*done.prompt_token_ids, *done.token_ids)
        assert made.ids == example.text("Plain", heat).ids
        assert len(made.steps) < len(example.text("Plain", heat).steps)

    def test_each_mistake_changes_the_text(self, example: ModuleType, running: ModuleType) -> None:
        heat = running.HEAT
        assert example.text("NoiseOfTheStep", heat).ids != example.text(heat=heat).ids
        assert example.text("NoiseOfTheStep").ids == example.text().ids  # greedy text has no noise
        assert example.text("RejectedKept").ids != example.text().ids
        stop = (example.inside(),)
        assert len(example.text("LastAlone", stops=stop).ids) > len(example.text(stops=stop).ids)

    def test_a_shallow_model_is_the_model_without_its_last_layers(self, running: ModuleType) -> None:
        ours, theirs = running.shallow(8).state_dict(), running.model().state_dict()
        assert {name.split(".")[1] for name in ours if name.startswith("h.")} == set(map(str, range(8)))
        assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


class TestExamples:
    def test_the_heart_is_the_engines(self, example: ModuleType) -> None:
        """The block's columns, computed by the lines that the text excerpts."""
        source = Path(str(step_module.__file__)).read_text(encoding="utf-8")
        assert "accepted = (chosen[:, :k] == runs.drafts).cumprod(1).sum(1)" in source
        assert [line.split()[-1] for line in shown("heart")[1:]] == ["19", "23", "39"]
        assert shown("heart")[3].split()[7:10] == ["0", "0", "1"]  # -1 equals -1
        assert step_module.NONE == -1

    def test_with_drafts_the_text_is_the_same(self) -> None:
        found = told("same")
        assert found["no drafts"] == found["drafts"] != found["noise of the step"]

    def test_chi_square_tells_right_rules_from_the_wrong_one(self, example: ModuleType) -> None:
        rules = {name.strip(): tokens for name, (tokens, _) in example.rules().items()}
        wrong = rules.pop("and once rejected, from p")
        assert example.statistic(wrong) > 1000
        assert all(example.statistic(tokens) < example.LIMIT for tokens in rules.values())
        assert f"{example.LIMIT}" in (CHAPTER / "README.md").read_text(encoding="utf-8")
        assert f"{example.DRAWS:,}" in (CHAPTER / "README.md").read_text(encoding="utf-8")

    def test_shared_noise_agrees_as_often_as_the_formula_says(self, example: ModuleType) -> None:
        p, q = example.pair()
        _, accepted = example.rules()["equal, the same noise"]
        assert float(accepted.double().mean()) == pytest.approx(example.shared(p, q), abs=0.004)
        _, taken = example.rules()["textbook rejection sampling"]
        assert float(taken.double().mean()) == pytest.approx(example.textbook(p, q), abs=0.004)
        brute = sum(1 / float(torch.maximum(p / p[i], q / q[i]).sum()) for i in range(8))
        assert example.shared(p, q) == pytest.approx(brute)

    def test_over_the_whole_vocabulary_too(self, example: ModuleType, running: ModuleType) -> None:
        """Each place's probability, against draws by the engine's own noise."""
        p, q = example.pairs(8)[40]
        steps = torch.arange(300)
        noise = gumbel(torch.full_like(steps, 9), steps, len(p)).double()
        alike = ((p.log() + noise).argmax(-1) == (q.log() + noise).argmax(-1)).double().mean()
        assert float(alike) == pytest.approx(example.shared(p, q), abs=0.08)

    def test_the_price_is_small_and_never_above_the_bound(self, example: ModuleType) -> None:
        for layers in (11, 8):
            for p, q in example.pairs(layers):
                best, alike = example.textbook(p, q), example.shared(p, q)
                assert best / (2 - best) - 1e-9 <= alike <= best + 1e-9
        for line in (1, 2, 3):
            best, alike, own, bound = numbers("price", line)[-4:]
            assert best - 0.05 < alike < best
            assert own < bound < alike
        assert len(set(numbers("price", 4))) == 1

    def test_whoever_drafts_the_tokens_are_the_same(self, example: ModuleType, running: ModuleType) -> None:
        by = [example.drafted(who, example.STORY, running.HEAT) for who in ("lookup", "itself", "11", "8")]
        assert len({tokens for tokens, *_ in by}) == 1
        assert by[1][1] == by[1][2]  # the model itself is always right
        share = [accepted / brought for _, brought, accepted, *_ in by]
        assert by[1][-1] == 1 > by[2][-1] > share[2]  # alpha does not count what follows a wrong draft
        assert share[1] > share[2] > share[3] > share[0]

    def test_slots(self) -> None:
        for line in range(1, len(shown("places"))):
            before, fed, first, last, right, then = map(int, re.findall(r"\d+", shown("places")[line]))
            assert (first, last, then) == (before, before + fed - 1, before + 1 + right)
            assert right < fed

    def test_a_stop_in_the_middle(self) -> None:
        found = told("stops")
        assert (
            found["asked of each token"][:-1] == found["of a step's last one"][: len(found["asked of each token"]) - 1]
        )
        assert len(found["of a step's last one"]) > 1.5 * len(found["asked of each token"])

    def test_the_guesser_changes_no_word(self, running: ModuleType) -> None:
        last = [line for line in shown("guesses") if line.startswith("The fox")][-1]
        with running.llm() as llm:
            (done,) = llm.generate(["The fox"], SamplingParams(temperature=0, max_tokens=14, ignore_eos=True))
        assert f"The fox{done.text}" == re.sub(r"[\[\]<>]", "", last)


@pytest.mark.skipif(not (RESULTS / "h200-speculation.json").is_file(), reason="no results")
class TestMeasured:
    """Sentences of the text about figures, held to the results file: a later run must show the same."""

    def test_what_is_missing_names_its_command(
        self, measured: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        measured.report.cache_clear()
        monkeypatch.setattr(measured, "RESULTS", tmp_path)
        with pytest.raises(ValueError, match=r"no results file h200-speculation\.json: `python -m bench speculation"):
            measured.report()

    def test_every_number_is_one(self, example: ModuleType) -> None:
        for name, number in example.measured.NUMBERS.items():
            assert re.fullmatch(r"\d[\d,]*(\.\d+)? ?(%|×)?", number()), name

    def test_texts_that_repeat_themselves_gain_and_others_hardly_lose(self, measured: ModuleType) -> None:
        repeating, story = (measured.written(kind, 0.0) for kind in ("repeating", "story"))
        assert [one.rows for one in repeating] == [1, 4, 16, 64]
        assert min(one.gain for one in repeating[:2]) > 2
        assert min(one.gain for one in repeating) > 1.3
        assert story[0].gain > 2
        worst = min(measured.texts_report().cases, key=lambda one: one.gain)
        assert worst.gain > 0.97
        assert worst.tokens_a_step == 1
        assert (max(worst.drafted.samples) - min(worst.drafted.samples)) / worst.drafted.median > 1 - worst.gain
        peers = {one.text: one for one in measured.texts_report().cases if one.system == "transformers"}
        assert set(peers) == {"repeating", "story"}
        assert 2 < peers["repeating"].gain < repeating[0].gain

    def test_there_is_room_at_one_row_of_a_large_model(self, measured: ModuleType) -> None:
        assert measured.step_cost(measured.XL, 1, 8) < 1.4
        assert measured.step_cost(measured.XL, 64, 8) > 1.5 * measured.step_cost(measured.XL, 1, 8)
        assert measured.step_cost(measured.GPT2, 64, 8) > measured.step_cost(measured.GPT2, 1, 8)

    def test_the_formula_holds_for_one_row(self, measured: ModuleType) -> None:
        for one in measured.cases(measured.XL):
            if one.rows == 1:
                scatter = stdev(measured.simulated(one.alpha, one.draft_tokens, False, texts=200))
                assert abs(one.tokens_a_step - one.formula) < 2 * scatter
            if one.rows == 64:
                assert one.tokens_a_step < one.formula

    def test_tokens_are_the_same(self, measured: ModuleType) -> None:
        assert all(one.same_share == 1.0 for one in measured.report().cases)

    def test_more_drafts_lose_with_many_rows(self, measured: ModuleType) -> None:
        few, many = measured.rows_measured()[0], measured.rows_measured()[-1]
        assert measured.case(measured.XL, 1, 0.8, 4).gain > 2.5
        for model in (measured.XL, measured.GPT2):
            assert measured.case(model, few, 0.6, 8).gain > measured.case(model, few, 0.6, 2).gain
            assert measured.case(model, many, 0.6, 8).gain < measured.case(model, many, 0.6, 2).gain
            for alpha, k in measured._corners(measured.alphas_measured()):
                gains = [measured.case(model, rows, alpha, k).gain for rows in measured.rows_measured()]
                assert gains[0] > 1.2 * gains[-1]
        for rows in measured.rows_measured():
            assert measured.case(measured.GPT2, rows, 0.8, 4).gain < measured.case(measured.XL, rows, 0.8, 4).gain

    def test_the_price_of_a_draft_gives_away_more_than_the_trials(self, measured: ModuleType) -> None:
        ceiling = sum(0.6**n for n in range(1 + measured.most_at(0.6)))
        alone = fmean(measured.simulated(0.6, 8, True))
        tried, always = (measured.case(measured.XL, 1, 0.6, 8, adapts).tokens_a_step for adapts in (True, False))
        assert tried < alone < ceiling < always
        assert always - alone > 2 * (alone - tried)

    def test_look_ups_in_a_sampled_story_are_below_what_pays(
        self, example: ModuleType, measured: ModuleType, running: ModuleType
    ) -> None:
        alpha = example.drafted("lookup", example.STORY, running.HEAT)[-1]
        even = measured.break_even(measured.step_cost(measured.GPT2, 64, 2))
        assert 1 + even + even**2 == pytest.approx(measured.step_cost(measured.GPT2, 64, 2))
        assert alpha < even / 2

    def test_adaptation_is_never_far_below_plain_and_too_careful(self, measured: ModuleType) -> None:
        assert min(one.gain for one in measured.report().cases if one.adaptive) > 0.97
        for rows, overlap in ((64, True), (1, False)):  # the runs of both
            fewer, always = (measured.case(measured.XL, rows, 0.6, 8, adapts).drafted for adapts in (True, False))
            assert (max(fewer.samples) > min(always.samples)) == overlap


class TestNotebook:
    def test_verifies_by_hand_and_breaks_it(self) -> None:
        pytest.importorskip("jupytext")
        from nanobook.notebooks import made

        cells = [
            cell.source for cell in made(ROOT / "notebooks" / "07-speculation.py").cells if cell.cell_type == "code"
        ]
        broken = [source for source in cells if 'guess = "..."' in source]
        assert len(broken) >= 3
        assert all(re.search(r"run\.(NoiseOfTheStep|RejectedKept|LastAlone)\(", source) for source in broken)
        assert any('results("h200-speculation")' in source for source in cells)


class TestPage:
    def test_length(self, text: str) -> None:
        assert 3000 <= words(text) <= 6000

    def test_two_sittings(self, text: str) -> None:
        assert re.findall(r"^# (.+)$", without_code(text), re.M)[1:] == [
            "First sitting: guess, and check in one pass",
            "Second sitting: what it brings, and what it costs",
        ]

    def test_each_section_shows_and_asks(self, sections: dict[str, str]) -> None:
        """Something printed, drawn or measured comes before any code; and a question at the end, but for the last."""
        assert [int(title.split(".")[0]) for title in sections] == list(range(1, len(sections) + 1))
        for title, body in list(sections.items())[:-1]:
            first = re.search(r"\[\[\[cog (\w+)|\| what ", body)
            assert first, title
            assert first[1] in ("printed", "figure", None), title
            ends_with_a_question(title, body)

    def test_sections_say_where_the_code_is(self, sections: dict[str, str]) -> None:
        without = {re.sub(r"^\d+\. ", "", title) for title, body in sections.items() if "In the engine:" not in body}
        assert without == {
            "The whole of it in one file", "Rejection sampling keeps the distribution", "Where this is elsewhere"
        }  # fmt: skip

    def test_every_exercise_has_its_section(self, text: str, sections: dict[str, str]) -> None:
        exercises_have_their_sections(7, text, sections)

    def test_the_running_example_is_the_one_that_is_named(self, text: str, running: ModuleType) -> None:
        assert text.count(running.FOX) == 1  # in the second command
        assert " ".join(text.split()).count(running.FOX) == 2

    def test_links_lead_somewhere(self, text: str) -> None:
        links_lead_somewhere(CHAPTER, text)

    def test_names_in_links_exist(self, text: str) -> None:
        linked_names_exist(text, least=18)

    def test_pictures_have_words(self, text: str) -> None:
        pictures_have_words(text)

    def test_every_printed_block_and_excerpt_can_be_made(self, text: str, example: ModuleType) -> None:
        blocks_can_be_made(CHAPTER / "README.md", text, example)

    def test_ten_questions(self) -> None:
        has_ten_questions(CHAPTER)
