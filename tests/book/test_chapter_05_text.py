"""Chapter 5's text: small.py is right, the examples and figures show what the text says."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

from nanobook.examples import EXAMPLE, load
from nanoinfer import LLM, SamplingParams
from nanoinfer.cache.blocks import BlockManager
from nanoinfer.serve.completions import EVENTS_PER_S
from nanoinfer.text.tokenizer import gpt2_tokenizer
from tests.book.chapter_pages import (
    blocks_can_be_made,
    ends_with_a_question,
    exercises_have_their_sections,
    has_ten_questions,
    linked_names_exist,
    links_lead_somewhere,
    numbered_sections,
    pictures_have_words,
    without_code,
    words,
)

ROOT = Path(__file__).parents[2]
CHAPTER = ROOT / "chapters" / "05-queue"
RESULTS = ROOT / "bench" / "results"

pytestmark = pytest.mark.skipif(not (CHAPTER / "README.md").is_file(), reason="not a checkout")


@pytest.fixture(scope="module")
def small() -> ModuleType:
    return load(CHAPTER / "small.py")


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return load(CHAPTER / EXAMPLE)


@pytest.fixture(scope="module")
def clock() -> ModuleType:
    return load(CHAPTER / "clock.py")


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
        source = (CHAPTER / "small.py").read_text(encoding="utf-8")
        assert len(source.splitlines()) <= 80
        nodes = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Import | ast.ImportFrom)]
        names = {a.name for n in nodes if isinstance(n, ast.Import) for a in n.names}
        names |= {n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)}
        assert {name.split(".")[0] for name in names} - sys.stdlib_module_names == {"torch", "tiktoken"}

    @pytest.mark.parametrize("static", [False, True])
    def test_tokens_are_those_of_each_text_alone(self, example: ModuleType, static: bool) -> None:
        """Whoever arrives beside whom, and in how many chunks; a row that is used again has the new text's alone."""
        _, found = example.five(static)
        with LLM(engine="dense", device="cpu", dtype="float32", max_batch=1) as llm:
            for ids, (prompt, length) in zip(found, example.FIVE, strict=True):
                new = length - len(gpt2_tokenizer().encode(prompt))
                (alone,) = llm.generate([prompt], SamplingParams(max_tokens=new, temperature=0))
                assert ids == [*alone.prompt_token_ids, *alone.token_ids]

    def test_steps_are_within_the_budget_and_feed_each_token_once(self, small: ModuleType, example: ModuleType) -> None:
        for static, count in ((False, 27), (True, 46)):
            log, texts = example.five(static)
            assert len(log) == count
            assert f"{count}" in (CHAPTER / "README.md").read_text(encoding="utf-8")
            assert max(sum(fed.values()) for fed in log) <= small.BUDGET
            for row, ids in enumerate(texts):
                assert sum(fed[row] for fed in log) == len(ids) - 1
                assert not any(fed[row] for fed in log[: 3 * row])  # nobody begins before they arrive

    def test_rows_decode_beside_a_prompt_in_chunks(self, example: ModuleType) -> None:
        """What section 2 says of steps 6, 7 and 9."""
        log, _ = example.five()
        assert list(log[6].values()) == [1, 1, 6, 0, 0]
        assert log[7][2] == 5
        assert log[8][3] == 0 < log[9][3]

    def test_in_a_static_batch_nobody_begins_beside_a_row_that_decodes(self, example: ModuleType) -> None:
        log, _ = example.five(True)
        assert not any(any(list(fed.values())[1:]) for fed in log[:24])

    def test_runs_as_a_program(self) -> None:
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(CHAPTER / "small.py")]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        assert done.stdout.startswith("step  0   4   .   .   .   .\n")
        assert "The fox was a very good dog" in done.stdout


class TestClock:
    def test_it_runs_what_the_scheduler_plans(self, clock: ModuleType) -> None:
        """All tokens, each once, and the time that they take by the rule."""
        asks = clock.poisson(100, 40, lambda draws: (draws.randint(1, 90), draws.randint(1, 30)))
        made = clock.run(asks, clock.engine(4, 64))
        fed = sum(sum(tokens.values()) for *_, tokens in made.steps)
        assert fed == sum(ask.prompt + ask.new - 1 for ask in asks)
        assert [len(row.token_ids) for row in made.rows] == [ask.new for ask in asks]
        took = sum(end - start for start, end, _ in made.steps)
        assert took == pytest.approx(len(made.steps) * clock.STEP_S + fed * clock.TOKEN_S)
        assert min(made.waits) > clock.STEP_S

    def test_static_batches_do_not_overlap(self, clock: ModuleType) -> None:
        asks = [clock.Ask(0.0, 4, new) for new in (3, 9, 5, 4, 2, 7)]
        made = clock.run(asks, clock.engine(2), static=True)
        begins = [min(at for at, (*_, fed) in enumerate(made.steps) if row in fed) for row in range(6)]
        assert begins == [0, 0, 9, 9, 14, 14]

    def test_a_lane_has_one_request_at_a_time(self, clock: ModuleType, example: ModuleType) -> None:
        for static in (False, True):
            found = sorted((lane, start, end) for _, lane, start, end in clock.lanes(example.twelve(static)))
            assert len(found) == len(example.NEW)
            assert max(lane for lane, *_ in found) < 4
            for (lane, _, end), (after, start, _) in pairwise(found):
                assert after > lane or start >= end - 1e-9

    def test_quantiles(self, clock: ModuleType) -> None:
        assert [clock.quantile(range(1, 101), q) for q in (0.5, 0.9, 0.99)] == [50, 90, 99]
        assert clock.quantile([7.0], 0.99) == 7.0


class TestExamples:
    def test_static_is_worse_for_everybody(self) -> None:
        static, continuous = (numbers("static_or_not", line) for line in (1, 2))
        assert all(a > 1.5 * b for a, b in zip(static, continuous, strict=True))

    def test_a_budget_trades_gaps_against_first_tokens(self) -> None:
        rows = [numbers("long_prompt", line) for line in range(1, 5)]
        assert [row[0] for row in rows] == sorted((row[0] for row in rows), reverse=True)
        assert [row[1] for row in rows] == sorted((row[1] for row in rows), reverse=True)
        assert [row[2] for row in rows] == sorted(row[2] for row in rows)

    def test_prompts_first_starve_the_row(self) -> None:
        first, turns, mixed = (numbers("who_first", line)[-2] for line in (1, 2, 3))
        assert first > 20 * turns > 20 * mixed

    def test_the_large_one_waits_where_whoever_fits_begins(self) -> None:
        order, fits = (numbers("head_of_line", line) for line in (1, 2))
        assert fits[0] > 5 * order[0]
        assert fits[1] < order[1] / 5

    def test_a_request_that_never_fits_is_told_so(self) -> None:
        assert shown("never_fits")[0].startswith("ValueError: prompt 3 may grow to 160 tokens, which 8 blocks of 16")

    def test_what_is_wrong_differs_from_what_is_right(self, running: ModuleType) -> None:
        for name, right, wrong in (
            ("names", "by all before it", "by its own tokens"),
            ("not_written", "found once written", "found once reserved"),
            ("preempted", "a large pool", "noise from 0 again"),
        ):
            found = told(name)
            assert found[right] != found[wrong], name
        found = told("preempted")
        assert found["a large pool"] == found["a small one"]
        both = told("not_full")
        assert both["row 0: its own block"] != list(both.values())[1]

    def test_the_right_texts_are_the_oracles(self, running: ModuleType) -> None:
        text = f"{running.FINE}{running.DAYS}. The"
        oracle = running.told(LLM(running.model(), engine="naive"), [text])[0][len(text) :]
        assert told("names")["by all before it"] == '"' + oracle.replace("\n", "\\n") + '"'

    def test_the_wrong_name_brings_another_texts_matter(self) -> None:
        """Of the king, of whom the text itself says nothing."""
        assert "king" in told("names")["by its own tokens"]
        assert "king" not in told("names")["by all before it"]

    def test_blocks_of_sixteen(self, running: ModuleType) -> None:
        """The texts that stand for blocks are just that long."""
        for text in (running.KING, running.FINE, running.DAYS, running.SHIP, running.THEN, running.STORM):
            assert len(gpt2_tokenizer().encode(text)) == 16
        assert [numbers("found_twice", line)[1] for line in range(3)] == [0, 32, 32]

    def test_p99_explodes_before_throughput_saturates(self, example: ModuleType) -> None:
        rows = {int(row[0]): row for row in (numbers("explodes", line) for line in range(1, 8))}
        assert rows[80][5] > 10 * rows[20][5]
        assert rows[80][4] < 2 * rows[20][4]  # the median has seen nothing
        assert all(abs(row[1] - asked) <= 2 for asked, row in rows.items() if asked < 100)
        assert rows[20][2] > 3 * rows[20][3]  # busy is no utilisation
        assert float(example.NUMBERS["rows in a step"]()) == pytest.approx(8 * rows[20][3] / 100, abs=0.1)

    def test_how_far_it_explodes_is_a_range(self, example: ModuleType) -> None:
        """The block's own factor lies in it."""
        low, high = map(float, example.p99_growth().removesuffix("×").split(" to "))
        assert 5 < low < numbers("explodes", 4)[5] / numbers("explodes", 1)[5] < high

    def test_littles_law_holds(self, example: ModuleType) -> None:
        for line in (1, 2, 3):
            *_, product, there = numbers("little", line)
            assert product == pytest.approx(there, rel=0.03)

    def test_the_first_client_sees_nothing(self) -> None:
        """And those whose clocks start when a request is due see the same."""
        closed, due, open_loop = (re.findall(r"([\d,.]+) ms", line) for line in shown("omission")[1:])
        assert closed[:3] == ["10.0"] * 3
        assert due == open_loop
        assert float(due[2]) > 90 * float(closed[2])

    def test_the_first_client_sends_all_and_many_late(self, example: ModuleType) -> None:
        """So its list lacks no request, and is mended by the clock alone: each is late by what the answer says."""
        closed, late, scheduled = example.clients()
        assert len(closed) == len(late) == len(scheduled) == 500
        lateness = [b - a for a, b in zip(closed, late, strict=True) if b > a]
        assert len(lateness) == int(example.NUMBERS["sent late"]())
        assert lateness == pytest.approx([0.99 - 0.01 * n for n in range(len(lateness))])

    def test_the_scheduler_that_lets_in_whoever_fits_keeps_the_pool(self, clock: ModuleType) -> None:
        asks = [clock.Ask(0.0, 16, 16 * n) for n in (1, 5, 2, 4, 3)]
        blocks = BlockManager(8, 16, 4)
        clock.run(asks, clock.engine(4, 64, blocks, clock.FirstThatFits))
        assert blocks.available == 7


@pytest.mark.skipif(not (RESULTS / "h200-queue.json").is_file(), reason="no results")
class TestMeasured:
    """Sentences of the text about figures, held to the results files: a later run must show the same."""

    def test_what_is_missing_names_its_command(
        self, measured: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(measured, "RESULTS", tmp_path)
        measured.queue.cache_clear()
        with pytest.raises(ValueError, match=r"no results file h200-queue\.json: `python -m bench queue --out"):
            measured.queue()

    def test_every_number_is_one(self, example: ModuleType) -> None:
        for name, number in example.measured.NUMBERS.items():
            assert re.fullmatch(r"\d[\d,]*(\.\d+)?( ?(µs|ms|s|%|×|tok/s))?", number()), name

    def test_chunks_gain_little_and_cost_first_tokens(self, measured: ModuleType) -> None:
        """They save hardly more than what two runs differ by in which nothing differs."""
        whole, chunks = measured.budget_of(2048), measured.budget_of(256)
        saved, noise = (
            measured.longest_gap(one) - measured.longest_gap(other)
            for one, other in ((whole.beside, chunks.beside), (whole.alone, chunks.alone))
        )
        assert measured.longest_gap(whole.beside) < 2 * whole.alone.itl.p50  # "less time than two steps"
        assert saved == pytest.approx(0.25e-3, abs=0.05e-3)  # "a quarter of a millisecond"
        assert 0.5 * saved < noise < saved
        assert chunks.ttft.p50 > 1.5 * whole.ttft.p50
        assert 0.01 < measured.feeding(whole.beside) < 0.02 < 2 * measured.feeding(whole.beside)
        assert measured.feeding(chunks.beside) > 4 * measured.feeding(whole.beside)
        assert whole.beside.bin_s == pytest.approx(1 / whole.asked_per_s, rel=0.2)  # a prompt in a stretch

    def test_shared_prompts_pay_where_prompts_cost(self, measured: ModuleType) -> None:
        large, little = (measured.prefix_of(f"random:{name}") for name in ("gpt2-xl", "gpt2"))
        assert large.gain > 2 * little.gain > 2
        assert large.computed_share == pytest.approx(1 - large.shared_share, abs=0.01)

    def test_preemption_gains_and_costs(self, measured: ModuleType) -> None:
        on, off = measured.pool(True), measured.pool(False)
        assert min(run.tokens_per_s for run in on) > max(run.tokens_per_s for run in off)
        assert max(run.ttft.p99 for run in on) < min(run.ttft.p99 for run in off)
        assert all(run.counted.preemptions for run in on)
        assert not any(run.counted.preemptions for run in off)
        assert min(run.itl.p50 for run in on) > 1.2 * max(run.itl.p50 for run in off)  # everyone notices
        assert min(run.itl.longest for run in on) > 10 * max(run.itl.longest for run in off)
        assert all(run.counted.preemptions < 0.01 * run.itl.count for run in on)  # so p99 hides them

    def test_past_the_knee_the_same_work_is_too_late(self, measured: ModuleType) -> None:
        *below, knee, top = measured.rates("serve")
        assert top.tokens_per_s == pytest.approx(knee.tokens_per_s, rel=0.05)
        assert top.ttft.p99 > 2 * knee.ttft.p99 > 4 * max(run.ttft.p99 for run in below)
        assert top.goodput_per_s < 0.6 * knee.goodput_per_s
        assert any(run.off for run in measured.rates("engine"))
        assert not any(run.off for run in measured.rates("serve"))

    def test_nobody_was_refused_and_done_counts_the_drain(self, measured: ModuleType) -> None:
        served = measured.rates("serve")
        assert "--queue 4000" in measured.load().targets["serve"]
        assert not any(run.refused for run in served)
        for run in served:
            arriving = run.plan.requests / run.plan.per_second
            assert arriving == pytest.approx(5, rel=0.01)
            assert arriving < run.seconds
        rate = float(measured.NUMBERS["burst rate"]())
        assert [round(run.plan.per_second / rate, 2) for run in served] == [0.5, 0.8, 0.95, 1.3, 1.8]
        assert rate < served[-1].requests_per_s

    def test_tokens_of_an_event_come_together(self, measured: ModuleType) -> None:
        *_, top = measured.rates("serve")
        assert top.itl.p50 == 0 < 20 * top.mean_itl.p50 < top.itl.p99
        assert top.pieces / top.seconds == pytest.approx(EVENTS_PER_S, rel=0.05)


class TestNotebook:
    def test_walks_a_step_and_breaks_the_engine(self) -> None:
        pytest.importorskip("jupytext")
        from nanobook.notebooks import made

        cells = [cell.source for cell in made(ROOT / "notebooks" / "05-queue.py").cells if cell.cell_type == "code"]
        broken = [at for at, source in enumerate(cells) if re.search(r"^with run\.\w+\(\)", source, re.M)]
        assert len(broken) >= 3
        for at in broken:  # a guess before
            assert 'guess = "..."' in cells[at]
        assert any('results("h200-load")' in source for source in cells)


class TestPage:
    def test_length(self, text: str) -> None:
        assert 3000 <= words(text) <= 6000

    def test_two_sittings(self, text: str) -> None:
        assert re.findall(r"^# (.+)$", without_code(text), re.M)[1:] == [
            "First sitting: who is in the next step",
            "Second sitting: how long one waits",
        ]

    def test_each_section_shows_and_asks(self, sections: dict[str, str]) -> None:
        """Something printed, drawn or measured comes before any code; and a question at the end, but for the last."""
        assert [int(title.split(".")[0]) for title in sections] == list(range(1, len(sections) + 1))
        for title, body in list(sections.items())[:-1]:
            first = re.search(r"\[\[\[cog (\w+)|<!--(=)|(\]\(recordings/|\| what )", body)
            assert first, title
            assert first[1] in ("printed", "figure", None), title
            ends_with_a_question(title, body)

    def test_sections_say_where_the_code_is(self, sections: dict[str, str]) -> None:
        without = {re.sub(r"^\d+\. ", "", title) for title, body in sections.items() if "In the engine:" not in body}
        assert without == {
            "The whole of it in one file", "The knee of your own machine", "What will the next step do?",
            "Where this is elsewhere",
        }  # fmt: skip

    def test_every_exercise_has_its_section(self, text: str, sections: dict[str, str]) -> None:
        exercises_have_their_sections(5, text, sections)

    def test_links_lead_somewhere(self, text: str) -> None:
        links_lead_somewhere(CHAPTER, text)

    def test_names_in_links_exist(self, text: str) -> None:
        linked_names_exist(text, least=18)

    def test_pictures_have_words(self, text: str) -> None:
        pictures_have_words(text)

    def test_every_printed_block_and_excerpt_can_be_made(self, text: str, example: ModuleType) -> None:
        blocks_can_be_made(CHAPTER / "README.md", text, example)

    def test_recordings_have_a_still_a_link_and_three_stops(self, sections: dict[str, str]) -> None:
        (body,) = [body for title, body in sections.items() if "What will the next step do?" in title]
        for name in ("long-prompt", "preemption"):
            assert f"(recordings/{name}.html)" in body
            assert (CHAPTER / "recordings" / f"{name}.html").is_file()
        assert len(re.findall(r"^\d\. ", body, re.M)) == 6

    def test_ten_questions(self) -> None:
        has_ten_questions(CHAPTER)
