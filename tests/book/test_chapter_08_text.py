"""Chapter 8's text: small.py is right, the examples and figures show what the text says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from nanobook.examples import EXAMPLE, load
from nanoinfer import LLM, SamplingParams
from nanoinfer.engine.sampling import SAMPLERS
from nanoinfer.model.config import PRESETS
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
CHAPTER = ROOT / "chapters" / "08-parallel"
RESULTS = ROOT / "bench" / "results" / "h200-ranks.json"
EXERCISES = (CHAPTER / "questions.md").is_file()  # they are there, and the pages beside them

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


def on_ring(small: ModuleType, size: int, run: Any) -> list[Any]:
    """What run(rank) returns on each rank of small.py's ring, which are threads here. One that fails ends all."""
    pipes = [Pipe(duplex=False) for _ in range(size)]
    made = [small.Rank(n, size, pipes[n - 1][0], pipes[n][1]) for n in range(size)]

    def guarded(rank: Any) -> Any:
        try:
            return run(rank)
        except BaseException:
            rank.right.close()
            raise

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(guarded, made))


def shown(name: str) -> list[str]:
    """A block as it stands in the page; that it is what the example prints is held by test_check_text.py."""
    page = (CHAPTER / "README.md").read_text(encoding="utf-8")
    found = re.search(rf'\[\[\[cog printed\("{name}"\) \]\]\]-->\n```text\n(.*?)\n```', page, re.S)
    assert found, name
    return found[1].split("\n")


def told(name: str) -> dict[str, str]:
    """Texts of a block by their labels, each as one line."""
    found: dict[str, str] = {}
    for line in shown(name):
        if label := line[:24].strip():
            found[label] = line[24:]
        else:
            found[[*found][-1]] += " " + line[24:]
    return found


class TestSmall:
    def test_is_short_and_stands_alone(self) -> None:
        is_short_and_stands_alone(CHAPTER / "small.py", lines=80)

    @pytest.mark.parametrize("size", [1, 2, 3, 5])
    def test_tokens_are_the_engines_on_every_rank(self, small: ModuleType, size: int) -> None:
        ids = gpt2_tokenizer().encode("The old king")
        with LLM(engine="naive", device="cpu", dtype="float32") as llm:
            (alone,) = llm.generate([ids], SamplingParams(max_tokens=12, temperature=0, ignore_eos=True))
        for text in on_ring(small, size, lambda rank: rank.generate(ids, 12)):
            assert text == [*ids, *alone.token_ids]

    @pytest.mark.parametrize("size", [1, 2, 3, 4])
    @pytest.mark.parametrize("shape", [(1,), (2, 5), (3, 160)])
    def test_the_sum_is_the_sum_and_has_the_same_bits(
        self, small: ModuleType, size: int, shape: tuple[int, ...]
    ) -> None:
        """With fewer numbers than ranks, too."""
        x = torch.randn(size, *shape, generator=torch.Generator().manual_seed(1))
        sums = on_ring(small, size, lambda rank: (rank.all_reduce(x[rank.rank]), rank.messages))
        for got, messages in sums:
            torch.testing.assert_close(got, x.sum(0))
            assert torch.equal(got, sums[0][0])
            assert messages == 2 * (size - 1)

    @pytest.mark.parametrize("size", [2, 3, 5])
    def test_parts_cover_the_whole_once(self, small: ModuleType, size: int) -> None:
        for count in (small.H, 4 * small.C, small.V):
            parts = on_ring(small, size, lambda rank, count=count: range(count)[rank.share(count)])
            assert [n for part in parts for n in part] == list(range(count))

    @pytest.mark.parametrize("best", [0, 25128, 25129, 50256])
    def test_ties_go_to_the_lowest_id(self, small: ModuleType, best: int) -> None:
        """Across the cut, and with all scores negative."""
        scores = torch.full((small.V,), -9.0)
        scores[best:] = -2.0

        def join(rank: Any) -> int:
            own = rank.share(small.V)
            return int(rank.join(scores[own], own.start))

        assert on_ring(small, 2, join) == [best, best]

    def test_runs_as_a_program(self) -> None:
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, str(CHAPTER / "small.py")], capture_output=True, text=True, check=True, env=environment
        )
        for rank, heads in enumerate(("[0, 1, 2]", "[3, 4]")):
            assert f"rank {rank}: heads {heads}, 2000 messages, 'Once upon a time, the king" in done.stdout


class TestRunning:
    """The ranks that the text breaks have the engine's tokens."""

    @pytest.mark.parametrize("heat", [0.0, 0.8])
    def test_tokens_are_those_of_one_device(self, running: ModuleType, heat: float) -> None:
        params = SamplingParams(temperature=heat, max_tokens=running.NEW, seed=running.SEED, ignore_eos=True)
        with LLM(running.four.model(), engine="naive") as llm:
            (done,) = llm.generate([running.PROMPT], params)
        assert running.texts(running.Part, heat) == [running.PROMPT + done.text] * 2

    def test_each_mistake_changes_the_text_and_the_ranks_agree(self, running: ModuleType) -> None:
        for part in (running.BiasEverywhere, running.ResidualReduced, running.CutStraight):
            wrong = running.texts(part)
            assert wrong[0] == wrong[1] != running.texts()[0]

    def test_noise_by_own_numbers(self, running: ModuleType) -> None:
        """Ids of the first rank are its own numbers: a text of these alone shows nothing."""
        right, wrong = (running.texts(running.Part, 1.2, kind) for kind in (running.JoinedSamplers, running.OwnNumbers))
        assert right != wrong

    def test_greedy_rows_do_not_ask_for_noise(self, running: ModuleType) -> None:
        assert running.texts(running.Part, 0.0, running.OwnNumbers) == running.texts()
        assert SAMPLERS is running.SAMPLERS


class TestExamples:
    def test_two_ranks_have_one_ranks_sum(self, example: ModuleType) -> None:
        lines = shown("paper")
        assert lines[3].split()[-4:] == lines[-1].split()[-4:]
        assert shown("wrong_way")[-1].split()[2:6] == lines[1].split()[-4:]
        assert shown("wrong_way")[-1].split()[6:] != lines[2].split()[1:5]

    def test_a_rank_reads_about_half(self, measured: ModuleType) -> None:
        one, two = (measured.step_bytes(PRESETS["gpt2-xl"], size, 1, 512) for size in (1, 2))
        config = PRESETS["gpt2-xl"]
        positions = 2 * config.n_positions * config.n_embd  # of which a step reads a line a token
        assert sum(one.values()) == 2 * config.parameters - positions + 512 * 2 * config.kv_numbers
        assert 0.5 < sum(two.values()) / sum(one.values()) < 0.52
        both = [measured.Shard(rank, 2).config(config).kv_numbers for rank in range(2)]
        assert sum(both) == config.kv_numbers

    def test_texts_with_a_mistake(self) -> None:
        found = told("layer")
        assert len(set(found.values())) == 3
        assert told("straight")["cut in each third"] == found["two ranks"]
        assert shown("own_numbers") == [
            "temperature 0.8: the same text: True", "temperature 1.2: the same text: False"
        ]  # fmt: skip

    def test_heads_of_gpt2_xl(self) -> None:
        _, first, second = shown("heads")
        assert first.split()[2:5] == ["0", "to", "12"]
        assert second.split()[2:5] == ["13", "to", "24"]

    def test_who_wins(self) -> None:
        lines = shown("joined")[1:]
        assert [int(line.split()[-1]) for line in lines] == [25157, 25151, 50256, 50257]
        assert "47 rows of zeros" in lines[-1]

    def test_each_message_is_one_of_the_ring(self, example: ModuleType) -> None:
        steps, ended = example.run.ring([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0], [100.0, 200.0, 300.0]])
        assert len(steps) == 4
        assert ended == [[111.0, 222.0, 333.0]] * 3
        assert all({one.sender for one in step} == {0, 1, 2} for step in steps)

    def test_orders_are_plain_and_few(self) -> None:
        lines = [line.split()[0] for line in shown("orders")]
        assert lines == ["place", "run", "run", "place"]
        assert shown("orders")[2].count("its newest token") == 2

    def test_ranks_end_together(self) -> None:
        assert shown("killed")[1:] == ["RuntimeError: rank 1 has ended: killed by SIGKILL", "still running: False"]

    def test_ranks_capture_the_same(self) -> None:
        assert [line.split(": ")[1] for line in shown("captured")] == ["captured for [1, 4] rows, not for [2]"] * 2

    def test_one_buffer_is_overwritten_and_two_are_not(self, example: ModuleType) -> None:
        quick, late = example.one_shot(5, 1)
        assert quick == [11, 22, 33, 44, 55]
        assert late[:-1] == [12, 23, 34, 45]
        assert example.one_shot(5, 2) == [quick, quick]

    def test_known_beginnings_count_and_do_not_rule(self) -> None:
        lines = [line.split() for line in shown("routed")[1:]]
        goes = [line[-1] for line in lines]
        assert [where for line, where in zip(lines, goes, strict=True) if line[0] == "shared"] == ["A"] * 3
        assert int(lines[3][1]) > int(lines[3][2])  # and A had more rows
        assert goes.count("B") == 3

    def test_a_row_goes_on_with_the_same_tokens(self) -> None:
        found = told("moved")
        assert found["goes on elsewhere"] == found["nobody dies"] != found["the rest as a prompt"]

    def test_a_batch_goes_on(self) -> None:
        lines = shown("resumed")
        again = lines.index("the same command again")
        assert sum(".tmp" in line for line in lines[:again]) == 1
        assert [line.split()[1] for line in lines[again + 1 : -2]] == ["2", "2", "1"]
        assert lines[-1] == "shards of 3 give the same bytes: True"


@pytest.mark.skipif(not RESULTS.is_file(), reason="no results")
class TestMeasured:
    """Sentences of the text about figures, held to the results file: a later run must show the same."""

    def test_what_is_missing_names_its_command(
        self, measured: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        measured.report.cache_clear()
        monkeypatch.setattr(measured, "RESULTS", tmp_path)
        with pytest.raises(ValueError, match=r"no results file h200-ranks\.json: `python -m bench ranks"):
            measured.report()

    def test_every_number_is_one(self, example: ModuleType) -> None:
        for name, number in example.NUMBERS.items():
            assert re.fullmatch(r"\d[\d,]*(\.\d+)? ?(%|×|µs|ms)?", number()), name

    def test_a_sum_costs_its_meeting_and_not_its_bytes(self, measured: ModuleType) -> None:
        few, *_, many = measured.reduce_rows()
        assert many / few > 100
        for kind in ("nccl and norm", "in one kernel"):
            assert measured.sum_s(kind, many) < 3 * measured.sum_s(kind, few)
        for rows in measured.reduce_rows():
            assert measured.sum_s("in one kernel", rows) < 0.8 * measured.sum_s("nccl and norm", rows)
        assert measured.reduce_s("nccl", few) > 1.5 * measured.sum_s("nccl and norm", few)  # the text says so

    def test_two_gpus_gain_with_rows_and_never_twice(self, measured: ModuleType) -> None:
        for model in (measured.LARGE, measured.XL):
            gains = [measured.gain(model, rows) for rows in measured.rows_measured(model)]
            assert 1 < gains[0] < 1.15
            assert gains[-1] > 1.3
            assert all(1 < one < 2 for one in gains)

    def test_what_was_measured_is_near_the_formulas_lower_end(self, measured: ModuleType) -> None:
        for model in (measured.LARGE, measured.XL):
            for rows in measured.rows_measured(model):
                low, high = (measured.predicted(model, rows, all_halves) for all_halves in (False, True))
                assert 0.95 * low < measured.gain(model, rows) < (low + high) / 2

    def test_sums_are_the_smaller_part_of_what_keeps_two_from_half(self, measured: ModuleType) -> None:
        """Sections 7, 9 and 15; by bytes alone NCCL's sums lose and those in one kernel do not."""
        for model in (measured.LARGE, measured.XL):
            for rows in measured.rows_measured(model):
                assert 0.2 < measured.added_s(model, rows) / measured.over_half_s(model, rows) < 0.35
        saved, sums = measured._spared("gpt2-xl"), 2 * measured.shape(measured.XL).n_layer
        few = measured.reduce_rows()[0]
        assert sums * measured.sum_s("in one kernel", few) < saved < sums * measured.sum_s("nccl and norm", few)

    def test_two_shot_is_faster_on_two_ranks_with_many_rows(self, measured: ModuleType) -> None:
        for rows in measured.reduce_rows()[-2:]:
            assert measured.reduce_s("two-shot", rows) < 0.95 * measured.reduce_s("one-shot", rows)

    def test_with_equal_rows_few_are_for_a_split_model_and_many_for_replicas(self, measured: ModuleType) -> None:
        for model in (measured.LARGE, measured.XL):
            split, both = zip(*((measured.step_s(model, 2, n), measured.between_s(model, n / 2)) for n in (8, 64, 256)),
                              strict=True)  # fmt: skip
            assert split[0] < both[0]
            assert 0.97 < split[1] / both[1] < 1.03
            assert split[2] > both[2]
        assert measured.step_s(measured.XL, 2, 8) < measured.step_s(measured.XL, 1, 1)

    def test_at_64_rows_the_smaller_model_gains_more_against_the_formula(self, measured: ModuleType) -> None:
        assert measured.gain(measured.LARGE, 64) > measured.gain(measured.XL, 64)
        for all_halves in (False, True):
            assert measured.predicted(measured.LARGE, 64, all_halves) < measured.predicted(measured.XL, 64, all_halves)

    def test_a_small_model_loses_by_the_formula(self, measured: ModuleType) -> None:
        """Section 17: gpt2's sums take longer than the bytes that a rank need not read."""
        gpt2 = measured.PRESETS["gpt2"]
        spared = measured.limit_s(gpt2, 1, 1, 512) - measured.limit_s(gpt2, 2, 1, 512)
        assert 2 * gpt2.n_layer * measured.sum_s("in one kernel", measured.reduce_rows()[0]) > spared

    def test_two_engines_give_less_than_twice_the_tokens(self, measured: ModuleType) -> None:
        fast, slow = measured.replicas("h200"), measured.replicas("h100")
        assert list(fast) == list(slow) == [1000, 4000]
        assert 1.6 < fast[1000] < slow[1000] < fast[4000] < slow[4000] < 2

    def test_two_models_give_more_tokens_and_longer_waits(self, measured: ModuleType) -> None:
        for model in (measured.LARGE, measured.XL):
            for rows in measured.rows_measured(model):
                split, both = measured.tokens_per_s(model, 2, rows), 2 * measured.tokens_per_s(model, 1, rows)
                assert both > 1.3 * split
                assert measured.step_s(model, 1, rows) > measured.step_s(model, 2, rows)


class TestNotebook:
    def test_cuts_by_hand_and_breaks_it(self) -> None:
        pytest.importorskip("jupytext")
        from nanobook.notebooks import made

        cells = [cell.source for cell in made(ROOT / "notebooks" / "08-parallel.py").cells if cell.cell_type == "code"]
        broken = [source for source in cells if 'guess = "..."' in source]
        assert len(broken) >= 4
        assert all(re.search(r"run\.(BiasEverywhere|CutStraight|OwnNumbers)|one_shot\(5, 1\)", one) for one in broken)


class TestPage:
    def test_length(self, text: str) -> None:
        assert 3000 <= words(text) <= 6000

    def test_two_sittings(self, text: str) -> None:
        assert re.findall(r"^# (.+)$", without_code(text), re.M)[1:] == [
            "First sitting: one model on two GPUs",
            "Second sitting: more engines",
        ]

    def test_each_section_shows_and_asks(self, sections: dict[str, str]) -> None:
        """Something printed, drawn or listed comes before any code; and a question at the end, but for the last."""
        assert [int(title.split(".")[0]) for title in sections] == list(range(1, len(sections) + 1))
        for title, body in list(sections.items())[:-1]:
            first = re.search(r"\[\[\[cog (\w+)|\| what ", body)
            assert first, title
            assert first[1] in ("printed", "figure", None), title
            ends_with_a_question(title, body)

    def test_sections_say_where_the_code_is(self, sections: dict[str, str]) -> None:
        assert [title for title, body in sections.items() if "In the engine:" not in body] == [[*sections][-1]]

    @pytest.mark.skipif(not EXERCISES, reason="no exercises")
    def test_every_exercise_has_its_section(self, text: str, sections: dict[str, str]) -> None:
        exercises_have_their_sections(8, text, sections)

    @pytest.mark.skipif(not EXERCISES, reason="no exercises")
    def test_links_lead_somewhere(self, text: str) -> None:
        links_lead_somewhere(CHAPTER, text)

    def test_names_in_links_exist(self, text: str) -> None:
        linked_names_exist(text, least=18)

    def test_pictures_have_words(self, text: str) -> None:
        pictures_have_words(text)

    def test_every_printed_block_and_excerpt_can_be_made(self, text: str, example: ModuleType) -> None:
        blocks_can_be_made(CHAPTER / "README.md", text, example)

    @pytest.mark.skipif(not EXERCISES, reason="no exercises")
    def test_ten_questions(self) -> None:
        has_ten_questions(CHAPTER)
