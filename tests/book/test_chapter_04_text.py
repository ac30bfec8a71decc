"""Chapter 4's text: small.py is right, the examples and figures show what the text says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from nanobench.micro.step_breakdown import HEAD, NONE, PARTS, SMALL, breakdown
from nanobench.micro.timeline import HostEvent, Kernel, StepTimeline
from nanobook.examples import EXAMPLE, load, printed
from nanocourse.exercises import chapters
from nanoinfer import LLM, SamplingParams
from nanoinfer.engine import fake_graph
from nanoinfer.engine.graphs import ladder
from tests.book.chapter_pages import (
    blocks_can_be_made,
    ends_with_a_question,
    has_ten_questions,
    is_short_and_stands_alone,
    linked_names_exist,
    numbered_sections,
    without_code,
    words,
)

ROOT = Path(__file__).parents[2]
CHAPTER = ROOT / "chapters" / "04-cuda-graphs"
RESULTS = ROOT / "bench" / "results"
PROMPTS = ("Once upon a time", "The fox", "Where are you going?", " ")

pytestmark = pytest.mark.skipif(not (CHAPTER / "README.md").is_file(), reason="not a checkout")

eager = pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU it replays real graphs")


@pytest.fixture
def small() -> Iterator[ModuleType]:
    module = load(CHAPTER / "small.py")
    yield module
    module.graphs.clear()


@pytest.fixture(scope="module")
def running() -> ModuleType:
    return load(CHAPTER / "running.py")


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return load(CHAPTER / EXAMPLE)


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


def told(name: str) -> dict[str, list[str]]:
    """Texts of a block by their labels, each as one line."""
    found: dict[str, list[str]] = {}
    last = ""
    for line in shown(name):
        label, part = line[:24].strip(), line[24:]
        if label:
            found.setdefault(label, []).append(part)
            last = label
        else:
            found[last][-1] += " " + part
    return found


def engine_tokens(engine: str, device: str, rows: tuple[str, ...], length: int, **settings: Any) -> list[list[int]]:
    """Prompt and new tokens of each row, up to `length` in all."""
    with LLM(engine=engine, device=device, dtype="float32", max_batch=4, **settings) as llm:
        counts = [length - len(llm.tokenizer.encode(row)) for row in rows]
        params = [SamplingParams(max_tokens=count, temperature=0, ignore_eos=True) for count in counts]
        return [[*one.prompt_token_ids, *one.token_ids] for one in llm.generate(list(rows), params)]


class TestSmall:
    def test_is_short_and_stands_alone(self) -> None:
        is_short_and_stands_alone(CHAPTER / "small.py")

    @eager
    @pytest.mark.parametrize("count", [1, 3])
    def test_tokens_are_the_engines(self, small: ModuleType, count: int) -> None:
        """Ragged rows, and with three of them a padding row."""
        right = engine_tokens("dense-graph", "cpu", PROMPTS[:count], 24)
        prompts = [[*ids[: len(ids)]] for ids in (small_ids(text) for text in PROMPTS[:count])]
        assert small.generate(prompts, 24) == right

    @eager
    def test_a_recording_of_its_step_is_its_step(self, small: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        """By a fake graph: nothing in the step comes from Python but its size."""
        right = small.generate([small_ids(text) for text in PROMPTS[:2]], 12)
        small.position.zero_()
        graph, _ = fake_graph.record(lambda: small.step(2))
        monkeypatch.setattr(small, "step", lambda rows: graph.replay())
        assert small.generate([small_ids(text) for text in PROMPTS[:2]], 12) == right
        small.generate([small_ids(text) for text in PROMPTS[2:]], 12)
        assert small.generate([small_ids(text) for text in PROMPTS[:2]], 12) == right  # over what others have left

    @eager
    def test_a_number_for_the_position_would_be_seen(self, small: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        """The test above can fail: a step that is recorded with a position of its own."""
        right = small.generate([small_ids(PROMPTS[0])], 12)
        plain, position = small.step, small.position

        def lying(rows: int) -> None:
            small.position = torch.full((1,), 5)
            plain(rows)
            small.position = position

        graph, _ = fake_graph.record(lambda: lying(1))
        monkeypatch.setattr(small, "step", lambda rows: graph.replay())
        assert small.generate([small_ids(PROMPTS[0])], 12) != right

    def test_more_rows_than_its_largest_graph_are_an_error(self, small: ModuleType) -> None:
        with pytest.raises(ValueError):
            small.generate([[1]] * 5, 4)

    def test_runs_as_a_program(self) -> None:
        """And says what it does without a GPU."""
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(CHAPTER / "small.py"), "The fox"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        assert done.stdout.startswith("The fox was a very good dog")
        assert done.stderr == "no GPU here: every step runs eagerly\n"

    @pytest.mark.gpu
    def test_real_graphs_make_the_engines_tokens(self, small: ModuleType) -> None:
        """Two sizes, each captured once and used twice, the second time after the other."""
        assert small.DEVICE == "cuda"
        one, three = ([small_ids(text) for text in PROMPTS[:count]] for count in (1, 3))
        first = small.generate(one, 40), small.generate(three, 40)
        again = small.generate(one, 40), small.generate(three, 40)
        assert sorted(small.graphs) == [1, 4]
        assert first == again
        eager = engine_tokens("dense-graph", "cuda", PROMPTS[:3], 40, max_graph_batch=0, fused=False)
        graph = engine_tokens("dense-graph", "cuda", PROMPTS[:3], 40, fused=False)
        assert first[1] == eager == graph
        assert first[0] == eager[:1]


def small_ids(text: str) -> list[int]:
    from nanoinfer.text.tokenizer import gpt2_tokenizer

    return gpt2_tokenizer().encode(text)


class TestExamples:
    def test_what_is_wrong_differs_from_what_is_right(self) -> None:
        """Every pair of texts that the page sets against each other; and one that is right by chance, as it says."""
        for name, wrong in (("escaped", "attention escaped"), ("key_too_short", "key without the length"),
                            ("noise_baked", "noise baked"), ("warmed", "in the middle")):  # fmt: skip
            found = told(name)
            right = found.get("right") or found["captured before"]
            assert found[wrong][0] != right[0], name
        found = told("position_baked")
        assert [a == b for a, b in zip(found["right"], found["position is a number"], strict=True)] == [False, True]

    def test_the_right_texts_are_the_oracle_s(self, running: ModuleType, example: ModuleType) -> None:
        oracle = running.told(LLM(running.model(), engine="naive"))
        assert example.right()[1] == oracle
        assert running.told(running.llm("dense-graph", read_multiple=16)) == oracle
        assert told("warmed")["captured before"][0].strip('"').startswith(oracle[0].split("\n")[0])

    def test_an_escaped_attention_leaves_fewer_operations(self) -> None:
        assert re.search(r"about [1-6] in 10", shown("escaped")[-1])

    def test_python_does_not_run(self) -> None:
        lines = shown("python_runs")
        assert "[3.0, 3.0]" in lines[1]
        assert "[15.0, 15.0]" in lines[2]
        assert lines[3].startswith("calls: 1;")
        assert lines[3].endswith("[0.0, 0.0]")

    def test_a_new_tensor_is_not_read(self) -> None:
        rows = [re.findall(r'"([^"]+)"', line) for line in shown("addresses")[1:]]
        assert all(fed == copied for fed, _, _, copied, _ in rows)
        assert all(fed != read for fed, read, _, _, _ in rows)
        assert [read for _, read, _, _, _ in rows[1:]] == [answer for _, _, answer, _, _ in rows[:-1]]
        assert len({row[4] for row in rows}) == len(rows)

    def test_all_four_are_refused(self) -> None:
        assert len(shown("refused")) == 4

    def test_a_padding_row_is_as_the_text_says(self) -> None:
        rows = [line.split('"') for line in shown("nobody")[1:]]
        live, _, places, kept, *_ = rows[3]
        assert live.split() == ["3", "0"]
        assert places.split() == ["0", "0", "1"]
        assert kept == rows[3][1] == "!"  # token 0
        assert all(int(row[2].split()[1]) >= 16 for row in rows[:3])  # live rows write to blocks of their own

    def test_padding_rows_that_move_on_fail_in_the_second_call(self) -> None:
        lines = told("nobody_moves_on")
        assert lines["first generation"][0].startswith('"Once upon a time, the king')
        assert "out of bounds" in lines["second generation"][0]

    def test_every_decode_step_was_replayed(self) -> None:
        """39 steps after the first token of the longest row; the prefill is one more."""
        counts = [(line.split()[1], int(line.split()[-1])) for line in shown("keys")[1:]]
        assert sum(n for columns, n in counts if columns == "1") == 39
        assert sum(n for columns, n in counts if columns != "1") == 1

    def test_a_result_that_is_kept_changes(self) -> None:
        (first, copied), (second, still) = (re.findall(r'"([^"]+)"', line) for line in shown("kept"))
        assert first == copied == still != second

    def test_the_ladders_are_what_is_said_of_them(self, example: ModuleType) -> None:
        rows = {line[:24].strip(): line[24:].split() for line in shown("ladders")[2:]}
        assert [rows[name][4] for name in example.LADDERS] == ["100", "64", "96", "96", "100"]
        ours = [float(rows["this engine's"][at].rstrip("%")) for at in (1, 3)]
        assert all(7 <= share < 10 for share in ours)  # "less than a tenth"
        assert min(size for size in example.LADDERS["powers of two"](64) if size >= 33) == 64
        assert [int(rows["this engine's"][at]) for at in (0, 2)] == [len(ladder(64)), len(ladder(256))]

    def test_each_test_finds_more_lies(self) -> None:
        """The table of section 17: a staircase, in which the last test finds all and a run without error none."""
        rows = [line[22:].split() for line in shown("found")[1:]]
        assert len(rows) == 4
        counts = [sum(row[at] == "finds" for row in rows) for at in range(5)]
        assert counts == [0, 1, 2, 3, 4]

    def test_blocks_print_the_same_twice(self) -> None:
        for name in ("addresses", "kept", "python_runs", "refused"):
            assert printed(CHAPTER / EXAMPLE, name) == printed(CHAPTER / EXAMPLE, name) == shown(name)


@pytest.mark.skipif(not (RESULTS / "h200-ladder.json").is_file(), reason="no results")
class TestMeasured:
    """Sentences of the text about figures, held to the results files: a later run must show the same."""

    def test_what_is_missing_names_its_command(
        self, measured: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(measured, "RESULTS", tmp_path)
        measured.graphs.cache_clear()
        with pytest.raises(ValueError, match=r"no results file h200-ladder\.json: `python -m bench graphs --out"):
            measured.graphs()

    def test_every_number_is_one(self, example: ModuleType) -> None:
        for name, number in example.NUMBERS.items():
            assert re.fullmatch(r"\d[\d,]*(\.\d+)?( ?(µs|ms|s|kB|MB|GB|%|×))?", number()), name

    def test_the_gpu_waits_before_and_works_after(self, measured: ModuleType) -> None:
        busy = {engine: measured.busy(measured.step_of(engine)) for engine in ("naive", "dense", "paged")}
        assert max(busy.values()) < 0.25
        assert all(measured.busy(measured.step_of(engine)) > 0.7 for engine in ("dense-graph", "paged-graph"))
        launches = [measured._launches(engine) for engine in ("naive", "dense", "paged", "dense-graph", "paged-graph")]
        assert min(launches[:3]) > 100  # "well over a hundred kernels"
        assert max(launches[3:]) < 12

    def test_when_a_prefill_graph_pays(self, measured: ModuleType) -> None:
        """Flat while the host decides; the graph is faster wherever there is one; the jump where there is none."""
        eager = [measured.prefill_of(1, tokens, "eager").ttft_s.median for tokens in (16, 64, 128, 256, 512)]
        assert max(eager) < 1.25 * min(eager)
        for p in measured.graphs().prefills:
            if p.bare_s is not None:
                assert p.ttft_s.median < 0.8 * measured.prefill_of(p.batch, p.tokens, "eager").ttft_s.median
        assert measured.prefill_of(8, 256, "graph").bare_s is not None
        assert measured.prefill_of(8, 512, "graph").bare_s is None
        jump = [measured.prefill_of(8, tokens, "graph, fused").ttft_s.median for tokens in (256, 512)]
        assert jump[1] > 2 * jump[0]
        fused, plain = (measured.prefill_of(8, 512, variant).ttft_s for variant in ("graph, fused", "graph"))
        assert fused.p90 > plain.p10  # "fusing them gains nothing there"

    def test_the_draining_batch_is_what_the_ladder_says(self, measured: ModuleType) -> None:
        found = measured.drain()
        assert found.replayed == found.steps
        assert not found.fallbacks
        assert found.padding_share == pytest.approx(found.predicted_share)
        assert found.rows == 64

    def test_the_table_counts_padding_as_the_engine_does(self, measured: ModuleType) -> None:
        """Of all rows computed: a batch that drains has every size as often, but for the last."""
        (ours,) = (line.split() for line in shown("ladders") if line.startswith("this engine's"))
        assert float(ours[3].rstrip("%")) == pytest.approx(100 * measured.drain().padding_share, abs=0.1)

    def test_a_graph_without_its_attention_is_faster(self, measured: ModuleType) -> None:
        found = [float(measured.replayed_story(side).removesuffix(" µs")) for side in ("wrong", "right")]
        assert found[0] < 0.8 * found[1]

    def test_start_up(self, measured: ModuleType, example: ModuleType) -> None:
        """The first line has compilation in it; captures take milliseconds after it; memory does not add up."""
        first, *rest = measured.graphs().ladders
        assert (first.engine, first.rows) == ("paged-graph", 64)
        assert first.seconds / first.captures > 2 * rest[0].seconds / rest[0].captures
        assert all(1e-3 < one.seconds / one.captures < 0.1 for one in rest)
        few, many = measured.ladder_of("paged-graph", 256), measured.ladder_of("paged-graph", 512)
        assert many.driver_bytes < 1.5 * few.driver_bytes
        assert measured.ladder_of("dense-graph", 512).captures > 3 * many.captures
        assert example.captures_today(512) > many.captures
        assert sum(measured.recompiles().runs[-1].kernels.values()) == 0

    def test_what_is_gained(self, measured: ModuleType) -> None:
        """More at 64 rows than at 512; by hand faster than by the compiler, which needs seconds first."""
        from nanobook.text.marker_values import value

        gain = {batch: value(f"rungs paged-graph-unfused/paged B={batch} tok/s", RESULTS) for batch in (1, 64, 512)}
        by = {batch: float(found.rstrip("×")) for batch, found in gain.items()}
        assert min(by[1], by[64]) > 3 > by[512] > 1
        report = json.loads((RESULTS / "h200-compile.json").read_text(encoding="utf-8"))
        of = {r["case"]["engine"]: r for r in report["results"] if r["case"]["batch"] == 1}
        hand, compiled = of["dense-graph"], of["dense-compile-reduce-overhead"]
        assert hand["tokens_per_s"] > compiled["tokens_per_s"]
        assert compiled["first_s"] > 1

    def test_what_is_still_missing(self, measured: ModuleType) -> None:
        """Matrices first, and far from their bytes; the head near its own; what moves little still takes its time."""
        least = measured.floors()
        found = {part.name: part.seconds for part in breakdown(measured.step_of("paged-graph"))}
        assert max(found, key=lambda name: found[name]) == "matrices"
        assert found["matrices"] > 2.5 * least["matrices"]
        assert found[HEAD] < 1.6 * least[HEAD]
        assert found["attention"] > 20 * least["attention"]
        assert sum(found.values()) == pytest.approx(measured.step_of("paged-graph").unprofiled_us / 1e6)
        floor = sum(least.values())
        assert floor < 0.25 * sum(found.values())
        whole = measured.whole().find(engine="paged-graph", batch=1)[0]
        assert floor == pytest.approx(whole.floor_share / whole.tokens_per_s, rel=0.1)  # the benchmark's own floor

    def test_what_the_files_are_drawn_as(self, measured: ModuleType) -> None:
        """And what lacks its part is left out: a CPU's time line, a file of ladders alone."""
        from nanobench.report.figures.prefill import prefill
        from nanobench.report.figures.step_breakdown import step_breakdown
        from nanobench.report.plot import drawings

        drawn = {d.name for name in ("timeline", "ladder") for d in drawings(RESULTS / f"h200-{name}.json")}
        assert drawn == {"h200-timeline-steps", "h200-timeline-breakdown", "h200-ladder-prefill"}
        assert prefill(measured.graphs().model_copy(update={"prefills": ()}), "some") is None
        steps = tuple(step.model_copy(update={"kernels": ()}) for step in measured.timeline().steps)
        assert step_breakdown(measured.timeline().model_copy(update={"steps": steps}), "some") is None
        told = step_breakdown(measured.timeline(), "some")
        assert told is not None
        assert [row[0] for row in told.rows] == ["dense-graph", "paged-graph"]
        assert "nothing runs" in told.alt

    def test_sampling_without_a_sort(self, measured: ModuleType) -> None:
        assert all(4 * measured._sampler("ours", batch) < measured._sampler("sort", batch) for batch in (1, 64))


class TestBreakdown:
    """The arithmetic of a step's parts, on a time line made by hand."""

    @pytest.fixture
    def step(self) -> StepTimeline:
        names = ("_linear_kernel", "_linear_kernel", "_attend_kernel", "nvjet_tst_64x8", "fill", "_add_norm_kernel")
        kernels = [Kernel(name=name, start_us=10.0 * at, duration_us=8.0) for at, name in enumerate(names)]
        kernels.append(Kernel(name="fill", start_us=52.0, duration_us=8.0))  # six of it within the kernel before
        host = (HostEvent(name="cudaGraphLaunch", kind="launch", start_us=0, duration_us=5),)
        return StepTimeline(
            engine="paged-graph", duration_us=80, unprofiled_us=40, host=host, kernels=tuple(kernels)
        )  # fmt: skip

    def test_shares(self, step: StepTimeline) -> None:
        found = {part.name: part for part in breakdown(step)}
        assert tuple(found) == PARTS
        assert sum(part.share for part in found.values()) == pytest.approx(1)
        assert found["matrices"].share == pytest.approx(16 / 80)
        assert found[HEAD].kernels == 1
        assert found[SMALL].share == pytest.approx((8 + 2) / 80)  # what overlaps counts once
        assert found[NONE].share == pytest.approx((80 - 50) / 80)
        assert found["attention"].seconds == pytest.approx(4e-6)  # its share of the step without the profiler

    def test_a_cpu_has_none(self, step: StepTimeline) -> None:
        with pytest.raises(ValueError, match="a time line of a CPU has no kernels"):
            breakdown(step.model_copy(update={"kernels": ()}))


class TestNotebook:
    def test_walks_a_step_and_breaks_the_engine(self) -> None:
        pytest.importorskip("jupytext")
        from nanobook.notebooks import made

        cells = [
            cell.source for cell in made(ROOT / "notebooks" / "04-cuda-graphs.py").cells if cell.cell_type == "code"
        ]
        assert sum("show(" in source for source in cells) >= 8
        broken = [at for at, source in enumerate(cells) if "with answers.mistake(" in source]
        assert len(broken) >= 3
        for at in broken:  # a guess before, a repair after
            assert 'guess = "..."' in cells[at]
            assert any("assert" in source and "answers.mistake" not in source for source in cells[at + 1 : at + 3])
        assert any('results("h200-ladder")' in source for source in cells)


class TestPage:
    def test_length(self, text: str) -> None:
        assert 3000 <= words(text) <= 4500

    def test_two_sittings(self, text: str) -> None:
        assert re.findall(r"^# (.+)$", without_code(text), re.M)[1:] == [
            "First sitting: one step, recorded",
            "Second sitting: a dict of them",
        ]

    def test_each_section_shows_and_asks(self, sections: dict[str, str]) -> None:
        """Something printed, drawn or measured comes before any code; and a question at the end, but for the last."""
        assert [int(title.split(".")[0]) for title in sections] == list(range(1, len(sections) + 1))
        for title, body in list(sections.items())[:-1]:
            first = re.search(r"\[\[\[cog (\w+)|<!--(=)", body)
            assert first, title
            assert first[1] in ("printed", "figure", "table", None), title
            ends_with_a_question(title, body)

    def test_sections_say_where_the_code_is(self, sections: dict[str, str]) -> None:
        """All but those that measure, and those that are about other code."""
        without = {title for title, body in sections.items() if "In the engine:" not in body}
        kinds = {re.sub(r"^\d+\. ", "", title) for title in without}
        assert kinds == {
            "Faster, and wrong", "What the GPU waits for", "The whole of it in one file", "What is gained",
            "Where this is elsewhere",
        }  # fmt: skip

    def test_every_exercise_has_its_section(self, text: str, sections: dict[str, str]) -> None:
        assert set(re.findall(r"exercise\s+(4\.\d)", text)) == {f"4.{n}" for n in range(1, 9)}
        titles = {re.sub(r"^\d+\. ", "", title) for title in sections}
        for exercise in chapters.exercises(chapters.chapter(4)):
            assert exercise.spec.section in titles, exercise.id

    def test_links_lead_somewhere(self, text: str) -> None:
        targets = [target for target in re.findall(r"\]\(([^)#]+)\)", text) if not target.startswith("http")]
        assert len(targets) > 20
        for target in targets:
            assert (CHAPTER / target).exists(), target

    def test_names_in_links_exist(self, text: str) -> None:
        linked_names_exist(text, least=20)

    def test_every_printed_block_and_excerpt_can_be_made(self, text: str, example: ModuleType) -> None:
        blocks_can_be_made(CHAPTER / "README.md", text, example)

    def test_threads_are_those_of_the_list_of_defects(self, text: str) -> None:
        """What the page cites is told in defects.md, under the repository's short name; a few are no defects."""
        known = (CHAPTER / "defects.md").read_text(encoding="utf-8")
        others = {"vllm#33538", "sglang#31487", "sglang#40253"}
        sources = text.split("## Sources")[1]
        owner = ""
        for name, number in re.findall(r"([\w.-]+/[\w.-]+)?#(\d+)", sources):
            owner = name.split("/")[-1] if name else owner
            assert f"{owner}#{number}" in known or f"{owner}#{number}" in others, (owner, number)

    def test_ten_questions(self) -> None:
        has_ten_questions(CHAPTER)
