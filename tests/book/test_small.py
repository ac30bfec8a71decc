"""Each chapter's small.py: short, standing alone, a program, and with the tokens of the naive engine."""

from __future__ import annotations

import ast
import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from types import ModuleType
from typing import Any

import pytest
import torch

from nanoinfer.engine import fake_graph
from nanoinfer.text.tokenizer import gpt2_tokenizer
from tests.book.chapter_pages import FOLDERS, ROOT, checkout, greedy, module

LINES = {1: 60, 2: 60, 3: 80, 4: 61, 5: 80, 6: 210, 7: 60, 8: 80}
FOX = "The fox was a very good dog"
PROGRAMS = {
    1: (["The", "fox"], [FOX]),
    2: (["The", "fox"], [FOX]),
    3: (["The fox", "Once upon a time"], [FOX, "\n---\nOnce upon a time, the king's son"]),
    4: (["The fox"], [FOX]),
    5: ([], ["step  0   4   .   .   .   .\n", FOX]),
    7: ([], ["the same text: True", "| he was very fond of| the fox, and he|"]),
}
Texts = list[list[int]]  # as token ids
PROMPTS = ["Once upon a time", "The fox", "Where are you going?", " "]

pytestmark = checkout
on_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU it replays real graphs")


def encode(text: str) -> list[int]:
    return gpt2_tokenizer().encode(text)


@pytest.fixture(scope="module")
def oracle() -> Texts:
    """The prompts and 40 tokens each, by the naive engine."""
    return greedy(PROMPTS, 40)


@pytest.fixture(scope="module")
def weights() -> tuple[dict[str, torch.Tensor], dict[str, int]]:
    """What the small.py files of chapters 1 to 3 take, and the model's shape."""
    small = module(1, "small")
    loaded: tuple[dict[str, torch.Tensor], dict[str, int]] = small.load(small.DATA / "small")
    return loaded


@pytest.mark.parametrize("chapter", FOLDERS)
def test_is_short_and_stands_alone(chapter: int) -> None:
    source = (FOLDERS[chapter] / "small.py").read_text(encoding="utf-8")
    assert len(source.splitlines()) <= LINES[chapter]
    nodes = list(ast.walk(ast.parse(source)))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} - sys.stdlib_module_names <= {"torch", "tiktoken"}


@on_cpu
@pytest.mark.parametrize("chapter", PROGRAMS)
def test_runs_as_a_program(chapter: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words, expected = PROGRAMS[chapter]
    monkeypatch.setattr(sys, "argv", ["small.py", *words])
    runpy.run_path(str(FOLDERS[chapter] / "small.py"), run_name="__main__")
    out, err = capsys.readouterr()
    assert out.startswith(expected[0]) or chapter == 7
    assert all(part in out for part in expected)
    assert bool(err) == (chapter == 4)


@on_cpu
def test_a_recorded_step_is_shown_by_the_command_that_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["small.py", "The fox"])
    runpy.run_path(str(FOLDERS[4] / "small.py"), run_name="__main__")
    _, program, *words = capsys.readouterr().err.split("`")[1].split()
    monkeypatch.setattr(sys, "argv", [program, *words])
    runpy.run_path(str(ROOT / program), run_name="__main__")
    assert "copied into the old one" in capsys.readouterr().out


@pytest.mark.parametrize("chapter", [1, 2])
def test_tokens_of_chapters_1_and_2_are_the_engines(chapter: int, weights: Any, oracle: Texts) -> None:
    for prompt, whole in zip(PROMPTS, oracle, strict=True):
        assert module(chapter, "small").generate(encode(prompt), 24, *weights) == whole[:-16]


class TestPaged:
    @pytest.fixture
    def small(self) -> ModuleType:
        return module(3, "small")

    def test_tokens_are_the_engines(self, small: ModuleType, weights: Any, oracle: Texts) -> None:
        """Four rows side by side, over several blocks, in a pool with no block to spare."""
        rows = [encode(prompt) for prompt in PROMPTS]
        needed = sum(-(-(len(row) + 39) // small.BLOCK) for row in rows)
        assert small.generate(rows, 40, needed, *weights) <= needed
        assert rows == oracle

    def test_blocks_come_back(
        self, small: ModuleType, weights: Any, oracle: Texts, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A row that ends gives its block to one that grows: three blocks are enough for both, and four without it."""
        second, first = oracle[:2]
        start = len(encode(PROMPTS[1]))
        end = next(at for at in range(start, 12) if first[at] not in second)
        monkeypatch.setattr(small, "END", first[end])
        rows = [encode(PROMPTS[1]), encode(PROMPTS[0])]
        assert small.generate(rows, 40, 3, *weights) == 3
        assert rows == [first[: end + 1], second]


class TestGraphs:
    @pytest.fixture
    def small(self) -> Iterator[ModuleType]:
        small = module(4, "small")
        yield small
        small.graphs.clear()

    @on_cpu
    @pytest.mark.parametrize("count", [1, 3])
    def test_tokens_are_the_engines(self, small: ModuleType, oracle: Texts, count: int) -> None:
        """Ragged rows, and with three of them a padding row."""
        expected = [ids[:24] for ids in oracle[:count]]
        assert small.generate([encode(prompt) for prompt in PROMPTS[:count]], 24) == expected

    @on_cpu
    @pytest.mark.parametrize("lies", [False, True])
    def test_a_recording_of_its_step_is_its_step(
        self, small: ModuleType, oracle: Texts, monkeypatch: pytest.MonkeyPatch, lies: bool
    ) -> None:
        """By a fake graph: nothing in the step comes from Python but its size. A number for the position is seen."""
        plain, position = small.step, small.position

        def lying(rows: int) -> None:
            small.position = torch.full((1,), 5)
            plain(rows)
            small.position = position

        position.zero_()
        graph, _ = fake_graph.record(lambda: (lying if lies else plain)(2))
        monkeypatch.setattr(small, "step", lambda rows: graph.replay())
        right = [ids[:12] for ids in oracle[:2]]
        assert (small.generate([encode(prompt) for prompt in PROMPTS[:2]], 12) == right) == (not lies)
        small.generate([encode(prompt) for prompt in PROMPTS[2:]], 12)
        again = small.generate([encode(prompt) for prompt in PROMPTS[:2]], 12)  # over what others have left
        assert (again == right) == (not lies)

    @pytest.mark.gpu
    def test_real_graphs_make_the_engines_tokens(self, small: ModuleType) -> None:
        """Two sizes, each captured once and used twice, the second time after the other."""
        assert small.DEVICE == "cuda"
        one, three = ([encode(text) for text in PROMPTS[:count]] for count in (1, 3))
        first = small.generate(one, 40), small.generate(three, 40)
        again = small.generate(one, 40), small.generate(three, 40)
        assert sorted(small.graphs) == [1, 4]
        assert first == again
        settings: dict[str, Any] = {"engine": "dense-graph", "device": "cuda", "max_batch": 4, "fused": False}
        eager, graph = (greedy(PROMPTS[:3], 40, **settings, **more) for more in ({"max_graph_batch": 0}, {}))
        assert first[1] == [ids[:40] for ids in eager] == [ids[:40] for ids in graph]
        assert first[0] == [eager[0][:40]]


class TestQueue:
    @pytest.mark.parametrize("static", [False, True])
    def test_tokens_are_those_of_each_text_alone(self, static: bool) -> None:
        """Whoever arrives beside whom; steps are within the budget, feed each token once, and none before it arrives.

        In a static batch none begins beside a row that decodes.
        """
        small, example = module(5, "small"), module(5)
        log, found = example.five(static)
        prompts, lengths = zip(*example.FIVE, strict=True)
        alone = greedy(list(prompts), max(lengths))
        assert found == [ids[:length] for ids, length in zip(alone, lengths, strict=True)]
        assert max(sum(fed.values()) for fed in log) <= small.BUDGET
        for row, ids in enumerate(found):
            assert sum(fed[row] for fed in log) == len(ids) - 1
            assert not any(fed[row] for fed in log[: 3 * row])
        begins = [next(at for at, fed in enumerate(log) if fed[row]) for row in range(len(found))]
        ends = [max(at for at, fed in enumerate(log) if fed[row]) for row in range(len(found))]
        assert (begins[1] > ends[0]) == static


def flat(parts: Sequence[Sequence[int]]) -> list[int]:
    return [token for part in parts for token in part]


class TestSpeculation:
    @pytest.fixture
    def small(self) -> ModuleType:
        return module(7, "small")

    def test_greedy_tokens_are_the_engines(self, small: ModuleType) -> None:
        prompt = "Once upon a time there was a fox. Once upon"
        (alone,) = greedy([prompt], 40)
        for drafts in (0, 4):
            assert flat(small.generate(encode(prompt), 40, drafts, 0.0)) == alone

    def test_any_drafts_give_the_same_sampled_tokens(self, small: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        """Right ones, wrong ones, and as many as there may be: not as many as one more."""
        plain = flat(small.generate(encode("The fox"), 30, 0, 1.0))
        steps: list[int] = []
        for wrong_at in range(5):

            def guess(text: Sequence[int], most: int, wrong_at: int = wrong_at) -> list[int]:
                known = list(plain[len(text) : len(text) + most])
                assert len(text) + most < len(plain)
                return [*known[:wrong_at], *[0] * (len(known) - wrong_at)]

            monkeypatch.setattr(small, "guess", guess)
            parts = small.generate(encode("The fox"), 30, 4, 1.0)
            assert flat(parts) == plain
            steps.append(len(parts) - 1)
        assert steps == [30, 15, 10, 8, 6]


def on_ring(size: int, run: Callable[[Any], Any]) -> list[Any]:
    """What run(rank) returns on each rank of chapter 8's ring, which are threads here. One that fails ends all."""
    pipes = [Pipe(duplex=False) for _ in range(size)]
    ranks = [module(8, "small").Rank(n, size, pipes[n - 1][0], pipes[n][1]) for n in range(size)]

    def guarded(rank: Any) -> Any:
        try:
            return run(rank)
        except BaseException:
            rank.right.close()
            raise

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(guarded, ranks))


class TestRanks:
    @pytest.mark.parametrize("size", [1, 2, 3])
    def test_tokens_are_the_engines_on_every_rank(self, oracle: Texts, size: int) -> None:
        ids = encode(PROMPTS[0])
        for text in on_ring(size, lambda rank: rank.generate(ids, 12)):
            assert text == oracle[0][: len(ids) + 12]

    @pytest.mark.parametrize("size", [1, 2, 3, 4])
    @pytest.mark.parametrize("shape", [(1,), (3, 160)])
    def test_the_sum_is_the_sum_and_has_the_same_bits(self, size: int, shape: tuple[int, ...]) -> None:
        """With fewer numbers than ranks, too."""
        x = torch.randn(size, *shape, generator=torch.Generator().manual_seed(1))
        sums = on_ring(size, lambda rank: (rank.all_reduce(x[rank.rank]), rank.messages))
        for got, messages in sums:
            torch.testing.assert_close(got, x.sum(0))
            assert torch.equal(got, sums[0][0])
            assert messages == 2 * (size - 1)

    def test_runs_as_a_program(self) -> None:
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(FOLDERS[8] / "small.py")]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        for rank, heads in enumerate(("[0, 1, 2]", "[3, 4]")):
            assert f"rank {rank}: heads {heads}, 2000 messages, 'Once upon a time, the king" in done.stdout


@pytest.mark.parametrize("name", ["Flags", "Barrier", "Words"])
@pytest.mark.parametrize("layers", [1, 2])
def test_chapter_6s_right_ways_end_right(name: str, layers: int) -> None:
    """In all interleavings, and in a sample of them; test_lies.py has wrong ways."""
    small = module(6, "small")
    points, ended, lost = small.search(*small.grid(getattr(small, name)(), layers))
    fewer, _, none = small.search(*small.grid(getattr(small, name)(), layers), most=5)
    assert lost == none == []
    assert fewer < points
    assert ended > 1000
