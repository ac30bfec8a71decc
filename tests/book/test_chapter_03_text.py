"""Chapter 3's text: small.py and small_kernel.py are right, the examples show what the text says of them."""

from __future__ import annotations

import ast
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from nanobench.micro.ragged_variants import CASES
from nanobook.examples import EXAMPLE, load, printed
from nanobook.text.page_blocks import Place, excerpt
from nanoinfer import LLM, SamplingParams
from nanoinfer.cache.naive import FullContext, Plan
from nanoinfer.cache.paged import choose_splits
from nanoinfer.devices import has_triton
from nanoinfer.kernels import paged_attention_torch
from nanoinfer.model.batch import Batch, Chunk, Layout, pack, unpack
from nanoinfer.text.tokenizer import gpt2_tokenizer
from tests.book.chapter_pages import (
    blocks_can_be_made,
    ends_with_a_question,
    has_ten_questions,
    linked_names_exist,
    links_lead_somewhere,
    numbered_sections,
    without_code,
    words,
)

ROOT = Path(__file__).parents[2]
CHAPTER = ROOT / "chapters" / "03-paged-attention"
PROMPTS = ("Once upon a time", "The fox", "Where are you going?", " ")

pytestmark = pytest.mark.skipif(not (CHAPTER / "README.md").is_file(), reason="not a checkout")
triton = pytest.mark.skipif(not has_triton(), reason="there are no wheels of Triton here")


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
    return numbered_sections(without_code(text))


def whole_text(token_ids: list[int]) -> Batch:
    """One row that brings all its tokens."""
    chunks = [Chunk(0, 0, token_ids)]
    return unpack(pack([], chunks, Layout.of([], chunks), dummy=1), Layout.of([], chunks))


class TestSmall:
    def test_is_short_and_stands_alone(self) -> None:
        source = (CHAPTER / "small.py").read_text(encoding="utf-8")
        assert len(source.splitlines()) <= 80
        nodes = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Import | ast.ImportFrom)]
        names = {a.name for n in nodes if isinstance(n, ast.Import) for a in n.names}
        names |= {n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)}
        assert {name.split(".")[0] for name in names} - sys.stdlib_module_names == {"torch", "tiktoken"}

    def test_tokens_are_the_engines(self, small: ModuleType) -> None:
        """Four rows side by side, over several blocks, in a pool with no block to spare."""
        weights, shape = small.load(small.DATA / "small")
        llm, params = LLM(engine="paged", device="cpu"), SamplingParams(max_tokens=40, temperature=0)
        told = llm.generate(list(PROMPTS), params)
        rows = [list(one.prompt_token_ids) for one in told]
        needed = sum(-(-(len(row) + 39) // small.BLOCK) for row in rows)
        assert small.generate(rows, 40, needed, weights, shape) <= needed
        assert rows == [[*one.prompt_token_ids, *one.token_ids] for one in told]

    def test_blocks_come_back(self, small: ModuleType) -> None:
        """A row that ends gives its block to one that grows: three blocks are enough for both, and four without it."""
        weights, shape = small.load(small.DATA / "small")
        first, second = gpt2_tokenizer().encode("The fox"), gpt2_tokenizer().encode("Once upon a time")
        rows = [[*first], [*second]]
        small.generate(rows, 40, 16, weights, shape)
        end = next(at for at in range(len(first), 12) if rows[0][at] not in rows[1])
        stop, small.END = small.END, rows[0][end]
        try:
            ended = [[*first], [*second]]
            assert small.generate(ended, 40, 3, weights, shape) == 3
        finally:
            small.END = stop
        assert ended == [rows[0][: end + 1], rows[1]]

    def test_too_few_blocks_are_an_error(self, small: ModuleType) -> None:
        with pytest.raises(IndexError):
            small.generate([gpt2_tokenizer().encode("The fox")], 40, 2, *small.load(small.DATA / "small"))

    def test_runs_as_a_program(self) -> None:
        command = [sys.executable, str(CHAPTER / "small.py"), "The fox", "Once upon a time"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.startswith("The fox was a very good dog")
        assert "\n---\nOnce upon a time, the king's son" in done.stdout


KERNEL = """
import torch
from nanoinfer.kernels import paged_attention_torch
from nanobook.examples import load
from pathlib import Path
import sys
small = load(Path(sys.argv[1]))
generator = torch.Generator().manual_seed(0)
for lengths, H, D, block, scale in (([7, 4, 0, 9], 2, 16, 4, 5), ([33, 1], 1, 32, 16, 200)):
    pools = torch.full((2, 14, H, block, D), float("nan"))
    width = -(-max(lengths) // block) + 1
    order = (torch.randperm(13, generator=generator) + 1).tolist()
    tables = torch.zeros(len(lengths), width, dtype=torch.int32)
    for row, length in enumerate(lengths):
        for at in range(-(-length // block)):
            tables[row, at] = order.pop()
            real = min(block, length - at * block)
            pools[:, tables[row, at], :, :real] = torch.randn(2, H, real, D, generator=generator)
    q = torch.randn(len(lengths), H, D, generator=generator) * scale
    asked = (q, *pools, tables, torch.tensor(lengths))
    out, right = small.attend(*asked), paged_attention_torch.attend_pages(*asked, tables)
    assert bool(out.isfinite().all()) and torch.allclose(out, right, atol=1e-5), (out - right).abs().max()
    wrong = small.attend(q, *pools, tables.flip(0), torch.tensor(lengths))
    assert not torch.allclose(wrong, right, atol=1e-2)
print("right")
"""


@triton
class TestSmallKernel:
    def test_it_runs_as_a_program(self) -> None:
        """And prints what a softmax gives."""
        lines = printed(CHAPTER / EXAMPLE, "smallest")
        assert len(lines) == 3
        for line in lines[1:]:
            *_, first, second, third, fourth = line.split()
            assert (first, second) == (third, fourth)

    def test_equals_the_reference_in_the_interpreter(self) -> None:
        environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-W", "ignore", "-c", KERNEL, str(CHAPTER / "small_kernel.py")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.stdout == "right\n", done.stderr[-2000:]

    @pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="interpreted kernels cannot be compiled")
    def test_compiles(self) -> None:
        from nanocourse.exercises.kernels import compiled

        kernel, types = load(CHAPTER / "small_kernel.py").attend_kernel, load(CHAPTER / "launch_attend.py").TYPES
        assert compiled(kernel, types, {"H": 12, "D": 64, "PAGE": 16}) == "it compiles"

    @pytest.mark.gpu
    def test_equals_the_reference_on_a_gpu(self) -> None:
        generator = torch.Generator().manual_seed(0)
        pools = torch.randn(2, 14, 2, 16, 64, generator=generator).cuda()
        tables = (torch.randperm(13, generator=generator) + 1)[:12].view(3, 4).int().cuda()
        q, lengths = torch.randn(3, 2, 64, generator=generator).cuda(), torch.tensor([64, 33, 1]).cuda()
        out = load(CHAPTER / "small_kernel.py").attend(q, *pools, tables, lengths)
        right = paged_attention_torch.attend_pages(q, *pools, tables, lengths, tables)
        torch.testing.assert_close(out, right, rtol=1e-4, atol=1e-4)


FIRST = """
import sys, torch
from pathlib import Path
from nanobook.examples import load
first = load(Path(sys.argv[1]))
x = torch.randn(5, 13, generator=torch.Generator().manual_seed(0))
for block in (1, 4, 16):
    sums, lanes = first.row_sums(x, block)
    assert torch.allclose(sums, x.sum(1), atol=1e-5), block
    assert torch.allclose(lanes[:, 0], x[:, ::block].sum(1), atol=1e-5), block
x = -x[:, :8].abs().contiguous()
rows, columns, best = x.new_empty(8), x.new_empty(8), x.new_empty(1)
first.sum_both[(1,)](x, rows, columns, best, 5, ROWS=8, C=8)
assert torch.allclose(rows[:5], x.sum(1)) and bool((rows[5:] == -torch.inf).all())
assert torch.allclose(columns, x.sum(0)) and torch.allclose(best, x.sum(1).max())
print("right")
"""


@triton
class TestFirstKernels:
    """The page for those who have never written a kernel."""

    def test_rows_are_summed_in_the_interpreter(self) -> None:
        environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-W", "ignore", "-c", FIRST, str(CHAPTER / "first_kernel.py")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.stdout == "right\n", done.stderr[-2000:]

    def test_the_mask_is_what_saves_the_neighbours(self) -> None:
        before, without, masked = (line.split()[-2:] for line in printed(CHAPTER / EXAMPLE, "masked"))
        assert before == masked == ["-1", "-1"]
        assert without == ["-2", "-2"]

    @pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="interpreted kernels cannot be compiled")
    def test_compiles(self) -> None:
        from nanocourse.exercises.kernels import compiled

        types = {"x": "*fp32", "lanes": "*fp32", "out": "*fp32", "C": "i32"}
        first = load(CHAPTER / "first_kernel.py")
        assert compiled(first.sum_rows, types, {"BLOCK": 4}) == "it compiles"
        types = {"x": "*fp32", "rows": "*fp32", "columns": "*fp32", "best": "*fp32", "N": "i32"}
        assert compiled(first.sum_both, types, {"ROWS": 4, "C": 4}) == "it compiles"

    def test_the_page_asks_and_answers(self) -> None:
        page = (CHAPTER / "triton.md").read_text(encoding="utf-8")
        for title, body in numbered_sections(without_code(page)).items():
            ends_with_a_question(title, body)


class TestRunningExample:
    def test_tables_are_mixed_and_hold_the_texts(self, running: ModuleType) -> None:
        held = running.pool()
        for row, (table, ids) in enumerate(zip(held.tables, held.texts, strict=True)):
            assert len(table) == -(-len(ids) // running.BLOCK)
            assert held.cache.tables[row, : len(table)].tolist() == table
        owned = [block for table in held.tables for block in table]
        assert len(set(owned)) == len(owned)
        assert 0 not in owned
        assert any(b != a + 1 for table in held.tables for a, b in itertools.pairwise(table))

    def test_the_head_that_is_shown_is_the_models(self, running: ModuleType) -> None:
        """Its keys are those that a plain pass over the text has in that layer and head."""
        seen: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        batch = whole_text(running.pool().texts[running.ROW])
        plain = FullContext()

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            seen[layer] = q, k
            return plain.attend(Plan(batch), layer, q, k, v)

        with torch.inference_mode():
            running.model().hidden(batch, attend)
        q, keys, _ = running.head_of(running.ROW)
        plain_q, plain_k = seen[running.LAYER]
        assert torch.allclose(keys, plain_k[:, running.HEAD], atol=1e-4)
        assert torch.allclose(q, plain_q[-1, running.HEAD], atol=1e-4)

    def test_blocks_print_the_same_twice(self) -> None:
        for name in ("tables", "online", "joined", "reservations"):
            assert printed(CHAPTER / EXAMPLE, name) == printed(CHAPTER / EXAMPLE, name)

    def test_what_is_said_of_the_examples(self) -> None:
        """Sentences of the text that no marker holds."""
        shown = {name: "\n".join(printed(CHAPTER / EXAMPLE, name)) for name in ("online", "joined", "masks", "room")}
        factors = re.findall(r"= (\d\.\d{3})$", shown["online"], re.M)
        assert [factor == "1.000" for factor in factors] == [False, False, True]  # it rises at page 1, not at page 2
        results = re.search(r"= (-?\d\.\d+)   softmax over all at once: (-?\d\.\d+)", shown["online"])
        assert results is not None
        assert results[1] == results[2]
        assert f"then added: {results[1]}" in shown["joined"]
        assert shown["masks"].count("nan") == 2
        late = printed(CHAPTER / EXAMPLE, "late_by_one")
        rows = [" ".join(late[at : at + 2]).split('"', 1)[1] for at in (0, 2, 4, 6)]
        assert rows[0] != rows[1]
        assert rows[2] == rows[3]

    def test_the_star_is_what_the_formula_says(self) -> None:
        """The splits that were measured as the engine's choice are those that it chooses."""
        measured = load(CHAPTER / "measured.py")
        starred = [t for t in measured.kernels().times if t.chosen and t.context == 1024]
        assert len(starred) >= 4
        for time in starred:
            assert measured.splits_of(time) == choose_splits(time.batch, 12, 1024)

    @triton
    def test_the_work_list_is_what_is_said_of_it(self) -> None:
        """Each token of the step is in one tile, with tokens of its own row alone, and one tile is too many."""
        lines = [line.split() for line in printed(CHAPTER / EXAMPLE, "work")[1:-1]]
        assert lines.pop() == [str(len(lines)), "-"]
        tokens = {0: range(40), 1: range(40, 60), 2: range(60, 61)}
        seen: list[int] = []
        for _, row, first, *rest in lines:
            last = rest[1] if rest[0] == "to" else first
            tile = range(int(first), int(last) + 1)
            assert len(tile) <= 16
            assert set(tile) <= set(tokens[int(row)])
            seen += tile
        assert seen == list(range(61))
        assert printed(CHAPTER / EXAMPLE, "work")[-1].endswith(f"= {len(lines) + 1} tiles")

    def test_a_rectangle_costs_what_the_engine_does_not_compute(self) -> None:
        """The tokens of the first line are those that a step of these prompts brings."""
        chunks = [Chunk(row, 0, range(n)) for row, n in enumerate([10] * 31 + [900])]
        layout = Layout.of([], chunks)
        (first, *_) = printed(CHAPTER / EXAMPLE, "rectangles")
        assert f"{layout.tokens:,} tokens; as a rectangle {layout.rows * layout.max_new:,} " in first


class TestMeasured:
    def test_what_is_missing_names_its_command(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        measured = load(CHAPTER / "measured.py")
        monkeypatch.setattr(measured, "RESULTS", tmp_path)
        with pytest.raises(ValueError, match=r"no results file h200-memory\.json: `python -m bench memory --out"):
            measured.kv_usage()

    def test_every_number_is_one(self) -> None:
        """A number and its unit, as a marker in the text takes it."""
        for name, number in load(CHAPTER / EXAMPLE).NUMBERS.items():
            assert re.fullmatch(r"\d[\d,]*(\.\d+)?( ?(µs|ms|s|kB|MB|GB|%|×))?", number()), name

    def test_the_walk_is_what_the_kernel_reads(self) -> None:
        measured = load(CHAPTER / "measured.py")
        found = json.loads((ROOT / "bench" / "results" / "h200-kernels.json").read_text(encoding="utf-8"))
        (walk,) = [
            t["seconds"]["median"]
            for t in found["times"]
            if (t["batch"], t["context"], t["arm"]) == (1, 1024, "paged, block 16, splits 1")
        ]
        fits = walk * found["copy_bytes_per_s"] / (2 * 1024 * 64 * 2)
        assert measured.NUMBERS["walk programs"]() == f"{fits:,.0f}"

    def test_what_is_said_of_the_ragged_kernel(self) -> None:
        """SDPA is faster for a long prompt, the kernel where rows are ragged; gathering is the slowest everywhere."""
        measured = load(CHAPTER / "measured.py")
        cases = list(dict.fromkeys(t.case for t in measured.ragged().attention))
        kernel, padded, gathered = (
            {case: measured.ragged_time(case, variant) for case in cases}
            for variant in ("ragged kernel", "sdpa, padded", "sdpa, pages gathered")
        )
        assert padded["one prompt of 1024"] < kernel["one prompt of 1024"]
        ragged = [case for case in cases if not case.startswith("one prompt")]
        assert len(ragged) >= 2
        assert list(CASES)[: len(cases)] == cases
        assert all(kernel[case] < padded[case] for case in ragged)
        assert all(gathered[case] > max(kernel[case], padded[case]) for case in cases)

    def test_what_is_said_of_equal_rows(self) -> None:
        """At 256 rows of 512 tokens SDPA without a mask is the faster one."""
        measured = load(CHAPTER / "measured.py")
        sdpa, kernel = (measured.time_of(256, 512, variant) for variant in ("sdpa", "chosen"))
        assert sdpa.seconds.p90 < kernel.seconds.p10


class TestPage:
    def test_length(self, text: str) -> None:
        assert 3000 <= words(text) <= 4500

    def test_two_sittings(self, text: str) -> None:
        assert re.findall(r"^# (.+)$", without_code(text), re.M)[1:] == [
            "First sitting: blocks and tables",
            "Second sitting: the kernel",
        ]

    def test_each_section_shows_and_asks(self, sections: dict[str, str]) -> None:
        """Something printed, drawn or measured comes before any code; and a question at the end, but for the last."""
        assert [int(title.split(".")[0]) for title in sections] == list(range(1, len(sections) + 1))
        for title, body in list(sections.items())[:-1]:
            first = re.search(r"\[\[\[cog (\w+)|<!--(=)", body)
            assert first, title
            assert first[1] in ("printed", "figure", "table", None), title
            ends_with_a_question(title, body)

    def test_links_lead_somewhere(self, text: str) -> None:
        links_lead_somewhere(CHAPTER, text)

    def test_names_in_the_table_exist(self, text: str) -> None:
        linked_names_exist(text, least=7)

    def test_every_printed_block_and_excerpt_can_be_made(self, text: str) -> None:
        """What needs a results file may lack it; everything else must come out."""
        blocks_can_be_made(CHAPTER / "README.md", text, load(CHAPTER / EXAMPLE))

    def test_the_kernel_is_shown_whole(self, text: str) -> None:
        """Every line of the engine's kernel between its first and its last statement stands in the text."""
        place = Place(CHAPTER / "README.md", ROOT)
        whole = excerpt(place, "nanoinfer.kernels.paged_attention:_attend_kernel", doc=False)[1:-1]
        body = {line.strip() for line in whole[whole.index("):  # fmt: skip") + 1 :] if line.strip()}
        shown = set()
        for call in re.findall(
            r'\[\[\[cog excerpt\("nanoinfer.kernels.paged_attention:_attend_kernel", (.+?)\) \]\]\]', text
        ):
            arguments = ast.parse(f"f({call})", mode="eval").body
            assert isinstance(arguments, ast.Call)
            options = {k.arg or "": ast.literal_eval(k.value) for k in arguments.keywords}
            lines = excerpt(place, "nanoinfer.kernels.paged_attention:_attend_kernel", **options)
            shown |= {line.strip() for line in lines}
        known = ("n = ", "joins = True", "if joins:", "result", "tl.store(out")  # the last lines, told in words
        assert not {line for line in body - shown if not line.startswith(known)}

    def test_the_ragged_kernel_is_told_from_its_source(self, text: str) -> None:
        """Scores, mask and sums of its loop, the list of its work, and its reference."""
        shown = re.findall(r'excerpt\("nanoinfer.kernels.ragged_attention:(\w+)"', text)
        assert shown == ["_ragged_kernel", "work_list"]
        assert "scores = tl.where(token[None, :] <= position[:, None], scores" in text
        assert "[`attend_ragged`](../../nanoinfer/kernels/paged_attention_torch.py)" in text

    def test_ten_questions(self) -> None:
        has_ten_questions(CHAPTER)
