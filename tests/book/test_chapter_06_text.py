"""Chapter 6's text: small.py's machine is right, the examples and figures show what the text says."""

from __future__ import annotations

import ast
import itertools
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from nanobook.examples import EXAMPLE, load
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
CHAPTER = ROOT / "chapters" / "06-kernels"

pytestmark = pytest.mark.skipif(not (CHAPTER / "README.md").is_file(), reason="not a checkout")
Program = Iterator[Any]


@pytest.fixture(scope="module")
def small() -> ModuleType:
    return load(CHAPTER / "small.py")


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return load(CHAPTER / EXAMPLE)


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


def stores(*accesses: tuple[Any, ...]) -> Callable[[], Any]:
    """A program that does these accesses, and returns what it was told."""

    def program() -> Any:
        told = []
        for access in accesses:
            told.append((yield access))
        return told

    return program


class TestSmall:
    def test_is_short_and_stands_alone(self) -> None:
        source = (CHAPTER / "small.py").read_text(encoding="utf-8")
        assert len(source.splitlines()) <= 210
        machine = source.partition("def half(")[0]
        assert len([line for line in machine.splitlines() if line.strip()]) <= 90
        nodes = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Import | ast.ImportFrom)]
        names = {a.name for n in nodes if isinstance(n, ast.Import) for a in n.names}
        names |= {n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)}
        assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names

    def test_a_store_overtakes_others_and_not_its_own_address(self, small: ModuleType) -> None:
        """All outcomes of two readings: the second address may be new while the first is old; never back in time."""
        writer = stores(("store", "a", 1), ("store", "b", 1), ("store", "a", 2))

        def reads(*at: str) -> set[tuple[int, ...]]:
            reader = stores(*(("load", one) for one in at))
            return {
                values
                for values in itertools.product((0, 1, 2), repeat=len(at))
                if _ends_with(small, [writer, reader], 1, list(values))
            }

        assert reads("b", "a") == {(b, a) for b in (0, 1) for a in (0, 1, 2)}
        assert reads("a", "a") == {(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)}

    def test_a_fence_keeps_the_order(self, small: ModuleType) -> None:
        writer = stores(("store", "a", 1), ("fence",), ("store", "b", 1))
        reader = stores(("load", "b"), ("load", "a"))
        assert not _ends_with(small, [writer, reader], 1, [1, 0])
        assert _ends_with(small, [writer, reader], 1, [1, 1])

    def test_a_program_sees_its_own_stores_at_once(self, small: ModuleType) -> None:
        program = stores(("store", "a", 1), ("load", "a"))
        assert small.search([program], [[None, 1]])[2] == []

    def test_additions_lose_nothing(self, small: ModuleType) -> None:
        adds = [stores(("add", "n", 1)) for _ in range(3)]
        last = stores(("wait", "n", lambda n: n == 3))
        assert small.search([*adds, last], [[0], [1], [2], [3]])[2]  # who comes first is not said
        for order in itertools.permutations(range(3)):
            assert _ends_with(small, [*adds, last], 3, [3]), order

    def test_counts_all_interleavings_of_independent_programs(self, small: ModuleType) -> None:
        """Loads of two programs, m and n of them, can be interleaved in (m + n)! / (m! n!) ways."""
        programs = [stores(*[("load", "a")] * 3), stores(*[("load", "a")] * 4)]
        assert small.search(programs, [[0] * 3, [0] * 4])[1] == 35

    def test_the_shortest_is_found_first(self, small: ModuleType) -> None:
        writer = stores(*[("store", f"other{n}", 1) for n in range(4)], ("store", "flag", 1))
        reader = stores(("load", "flag"))
        lost = small.search([writer, reader], [[None] * 5, [0]])[2]
        arrivals = [line for line in lost if "arrives" in line]
        assert arrivals == ["0's store arrives: flag = 1"]

    def test_fewer_resident_programs_wait_for_ever_or_take_turns(self, small: ModuleType) -> None:
        waits, stands = stores(("wait", "flag", lambda flag: flag == 1)), stores(("store", "flag", 1))
        assert small.search([waits, stands], [[1], [None]], resident=1)[2][-1] == "[0, 1] wait for ever"
        assert small.search([stands, waits], [[None], [1]], resident=1)[2] == []
        assert small.search([waits, stands], [[1], [None]], resident=2)[2] == []

    def test_memory_is_found_as_it_is(self, small: ModuleType) -> None:
        assert small.search([stores(("load", "a"))], [[5]], memory={"a": 5})[2] == []

    def test_a_sample_goes_on_where_there_are_too_many_points(self, small: ModuleType) -> None:
        all_points, _, none = small.search(*small.grid(small.Flags()))
        fewer, _, lost = small.search(*small.grid(small.Flags()), most=5)
        assert none == lost == []
        assert fewer < all_points
        assert small.search(*small.grid(small.Flags()), most=5, seed=1)[:2] == small.search(
            *small.grid(small.Flags()), most=5, seed=1
        )[:2]  # fmt: skip

    @pytest.mark.parametrize("name", ["Flags", "Barrier", "Words"])
    @pytest.mark.parametrize("layers", [1, 2, 3])
    def test_the_right_ways_end_right(self, small: ModuleType, name: str, layers: int) -> None:
        _, ended, lost = small.search(*small.grid(getattr(small, name)(), layers))
        assert lost == []
        assert ended > 1000

    def test_the_half_block_is_cut_without_loss(self, small: ModuleType) -> None:
        """No share is nothing, and both are needed."""
        _, (right, _) = small.grid(small.Words(), layers=2)
        shares = [small.half(small.X, who) for who in range(small.G)]
        assert all(any(share) for share in shares)
        assert right != small.X


def _ends_with(small: ModuleType, programs: list[Callable[[], Program]], n: int, value: list[Any]) -> bool:
    """Whether program n can return that, in some order: the search loses against a value that it must not return."""

    class Unless(list[Any]):
        __hash__ = None  # type: ignore[assignment]

        def __ne__(self, other: object) -> bool:
            return other == value

        def __eq__(self, other: object) -> bool:
            return other != value

    class Anything(list[Any]):
        __hash__ = None  # type: ignore[assignment]

        def __ne__(self, other: object) -> bool:
            return False

    right: list[Any] = [Anything() for _ in programs]
    right[n] = Unless()
    return bool(small.search(programs, right)[2])


class TestShown:
    def test_the_step_is_far_from_its_bytes(self, example: ModuleType) -> None:
        parts = {part.name: part for part in example.measured.parts()}
        least = example.measured.four.floors()
        assert parts["the head"].seconds < 1.25 * least["the head"]
        assert parts["matrices"].seconds > 4 * least["matrices"]
        assert least["matrices"] == pytest.approx(2 * least["the head"], rel=0.15)
        assert parts["matrices"].kernels == 48
        assert "48 kernels" in (CHAPTER / "README.md").read_text(encoding="utf-8")

    def test_operations_grow_with_rows_and_bytes_hardly_do(self) -> None:
        a_byte = [float(line.split()[-1]) for line in shown("intensity")[1:]]
        assert a_byte[0] == 1.0
        assert all(1.5 < after / before < 4.1 for before, after in itertools.pairwise(a_byte))

    def test_five_kernels_a_layer(self) -> None:
        lines = shown("kernels")
        assert lines[0] == "embed_kernel"
        assert [line.split()[0] for line in lines[2:7]] == [
            "qkv_kernel", "attend_kernel", "update_kernel", "up_kernel", "update_kernel"
        ]  # fmt: skip
        assert "63 kernels a step" in lines[-1]

    def test_every_number_is_one(self, example: ModuleType) -> None:
        for name, number in example.NUMBERS.items():
            assert re.fullmatch(r"\d[\d,]*(\.\d+)? ?(%|×|µs)?", number()), name

    def test_without_a_fence_the_flag_arrives_alone(self) -> None:
        assert [line for line in shown("no_fence") if "arrives" in line] == ["1's store arrives: flag[1] = 1"]

    def test_a_cut_mlp_is_the_whole_one(self) -> None:
        assert shown("by_hand")[0].split()[1:] == shown("by_hand")[-1].split()[2:]

    def test_parts_join_to_the_whole(self) -> None:
        joined, whole = (line.split()[1:] for line in shown("in_parts")[-2:])
        assert joined == whole

    def test_only_fixed_point_has_no_order(self) -> None:
        floats, wholes = zip(*(line.split()[-2:] for line in shown("orders")[1:]), strict=True)
        assert len(set(floats)) == 3
        assert len(set(wholes)) == 1

    def test_layer_norm_behind_the_product(self) -> None:
        assert shown("folded")[0].split()[-1] == shown("folded")[-1].split()[-1]

    def test_counts_of_the_proofs(self) -> None:
        """The list of section 19 against the tests that it tells of."""
        source = (ROOT / "tests" / "gpu" / "test_persistent.py").read_text(encoding="utf-8")
        assert 'parametrize("prompt", [1, 37])' in source
        assert "for first in range(10)" in source
        assert "tokens_of(row, kernel, 1000" in source
        assert "assert worst < 0.01" in source
        assert "for _ in range(1000)" in source


@pytest.mark.skipif(not (ROOT / "bench" / "results" / "h200-one-kernel.json").is_file(), reason="no results")
class TestMeasured:
    """Sentences of the text about figures, held to the results file: a later run must show the same."""

    @pytest.fixture
    def measured(self, example: ModuleType) -> ModuleType:
        found: ModuleType = example.measured
        return found

    def test_what_is_missing_names_its_command(
        self, measured: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        measured.report.cache_clear()
        monkeypatch.setattr(measured, "RESULTS", tmp_path)
        with pytest.raises(ValueError, match=r"no results file h200-one-kernel\.json: `python -m bench one-kernel"):
            measured.report()

    def test_time_is_flat_and_then_is_not(self, measured: ModuleType) -> None:
        times = dict(measured.matrix())
        assert times[16] < 1.1 * times[1]
        assert times[max(times)] > 1.3 * times[1]
        assert times[1] > 1.5 * measured.matrix_floor()

    def test_a_node_is_not_free_and_early_ones_cost_less(self, measured: ModuleType) -> None:
        plain, early = (
            next(one.seconds.median for one in measured.report().nodes if one.early == kind) for kind in (False, True)
        )
        assert 0 < early < plain

    def test_words_are_no_faster_where_everybody_needs_all(self, measured: ModuleType) -> None:
        times = {one.kind: one.seconds.median for one in measured.report().exchanges}
        assert set(times) == set(measured.WAYS)
        assert times["words"] > 0.9 * times["counter"]

    def test_each_step_of_the_chapter_gains(self, measured: ModuleType) -> None:
        arms = ("paged-graph", "fused, none early", "fused", "one kernel", "one kernel, nobody waits")
        times = [measured.token(arm) for arm in arms]
        assert times == sorted(times, reverse=True)
        assert measured.token("one kernel, nobody waits") > 0.8 * measured.token("one kernel")
        for other in ("nothing asked for ahead", "words side by side", "120 programs"):
            assert measured.token(f"one kernel, {other}") > measured.token("one kernel")

    def test_the_engine_keeps_what_the_chapter_built(self, measured: ModuleType) -> None:
        fastest = {
            rows: min(found, key=found.get)  # type: ignore[arg-type]
            for rows in (1, 4, 16, 64)
            for found in [measured.report("-texts").timed[f"decode of {rows} rows, unfiltered"]]
        }
        assert fastest == {1: "persistent", 4: "fused", 16: "fused", 64: "streamed"}

    def test_one_kernel_is_for_one_row(self, measured: ModuleType) -> None:
        """There it is faster than the first sitting's kernels, every run of it; with more rows nobody asks for it."""
        found = measured.report("-texts")
        for key, ways in found.timed.items():
            assert ("persistent" in ways) == key.startswith("decode of 1 rows"), key
        samples: dict[tuple[int, str], tuple[float, ...]] = {
            (one.prompt_tokens, one.engine): one.tokens_per_s.samples
            for one in found.generated
            if one.rows == 1 and not one.sampled
        }
        for prompt in {prompt for prompt, _ in samples}:
            assert min(samples[prompt, "persistent"]) > max(samples[prompt, "fused"])

    def test_many_rows_behind_long_prompts_gain_nothing(self, measured: ModuleType) -> None:
        """What section 20 says: the ranges of the two engines overlap there, and nowhere in its table."""
        found: dict[tuple[int, int], list[tuple[float, ...]]] = {}
        for one in measured.report("-texts").generated:
            if one.engine != "fused" and not one.sampled:
                found.setdefault((one.prompt_tokens, one.rows), []).append(one.tokens_per_s.samples)
        for (prompt, rows), (before, after) in found.items():
            assert (min(after) < max(before)) == (prompt >= 512 and rows == 64), (prompt, rows)

    def test_the_kernels_of_this_chapter_are_not_flat(self, example: ModuleType, measured: ModuleType) -> None:
        """Up to sixteen rows, the library's nearly are; and what is added is more than the contexts' bytes."""
        fused, plain = ([measured.way(rows, name) for rows in (1, 16)] for name in ("fused", "op by op"))
        assert fused[1] / fused[0] > 1.5 > plain[1] / plain[0]
        assert fused[1] - fused[0] > 2 * (example.contexts(16) - example.contexts(1))
        weights, again = (int(cell.replace(",", "")) for cell in shown("reread")[-1].split()[1:3])
        assert again > weights

    def test_late_programs_cost_less_than_exchanges_may(self, example: ModuleType, measured: ModuleType) -> None:
        saved = measured.token("one kernel") - measured.token("one kernel, nobody waits")
        assert saved < 0.1 * measured.token("one kernel") < example.exchanged()

    def test_the_loss_behind_long_prompts_is_of_fused_alone(self, measured: ModuleType) -> None:
        fused, persistent, paged = map(measured.long_prompts, ("fused", "persistent", "paged-graph"))
        assert fused < 0.8 * persistent < persistent < paged

    def test_greedy_tokens_were_held_against_float32(self, measured: ModuleType) -> None:
        checked = [one for one in measured.report().steps if not one.sampled and "nobody" not in one.arm]
        assert len(checked) >= 5
        assert all(one.short is not None and one.short < 0.01 for one in checked)


class TestPage:
    def test_length(self, text: str) -> None:
        assert 3000 <= words(text) <= 6000

    def test_two_sittings(self, text: str) -> None:
        assert re.findall(r"^# (.+)$", without_code(text), re.M)[1:] == [
            "First sitting: fewer kernels, few rows",
            "Second sitting: one kernel a token",
        ]

    def test_each_section_shows_and_asks(self, sections: dict[str, str]) -> None:
        """Something printed, drawn or measured comes before any code; and a question at the end, but for the last."""
        assert [int(title.split(".")[0]) for title in sections] == list(range(1, len(sections) + 1))
        for title, body in list(sections.items())[:-1]:
            first = re.search(r"\[\[\[cog (\w+)|\| what ", body)
            if not title.endswith(("The whole of it in one file", "Which thread holds what")):
                assert first, title
                assert first[1] in ("printed", "figure", None), title
            ends_with_a_question(title, body)

    def test_sections_say_where_the_code_is(self, sections: dict[str, str]) -> None:
        without = {re.sub(r"^\d+\. ", "", title) for title, body in sections.items() if "In the engine:" not in body}
        assert without == {"The whole of it in one file", "Where this is elsewhere"}

    def test_every_exercise_has_its_section(self, text: str, sections: dict[str, str]) -> None:
        exercises_have_their_sections(6, text, sections)

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


class TestNotebook:
    def test_runs_programs_by_hand_and_breaks_them(self) -> None:
        pytest.importorskip("jupytext")
        from nanobook.notebooks import made

        cells = [cell.source for cell in made(ROOT / "notebooks" / "06-kernels.py").cells if cell.cell_type == "code"]
        broken = [source for source in cells if 'guess = "..."' in source]
        assert len(broken) >= 3
        assert all("assert lost" in source for source in broken)
        assert any('results("h200-timeline")' in source for source in cells)
