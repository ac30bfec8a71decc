"""The examples of chapters 5 to 8 do what their pages say: tokens are the engine's, simulations obey their laws."""

from __future__ import annotations

import re
from types import ModuleType

import pytest

from nanobook.running import model
from nanoinfer import LLM, SamplingParams
from tests.book.chapter_pages import checkout, module, numbers, shown, told

pytestmark = checkout


def rows_of(chapter: int, block: str, first: int = 1) -> list[list[float]]:
    """The numbers of a block's lines from that one on."""
    return [numbers(line) for line in shown(chapter, block)[first:]]


class TestChapter5:
    def test_a_static_batch_is_worse_for_everybody(self) -> None:
        static, continuous = rows_of(5, "static_or_not")
        assert all(one > other for one, other in zip(static, continuous, strict=True))

    def test_a_budget_trades_gaps_against_first_tokens(self) -> None:
        budgets, gaps, firsts = zip(*rows_of(5, "long_prompt"), strict=True)
        assert list(budgets) == sorted(budgets, reverse=True)
        assert list(gaps) == sorted(gaps, reverse=True)
        assert list(firsts) == sorted(firsts)

    def test_who_is_first_decides_who_waits(self) -> None:
        """Prompts first starve the row that decodes; letting in whoever fits starves the large request."""
        first, turns, mixed = (row[-2] for row in rows_of(5, "who_first"))
        assert first > turns > mixed
        order, fits = rows_of(5, "head_of_line")
        assert fits[0] > order[0]
        assert fits[1] < order[1]

    def test_the_right_text_is_the_oracles(self) -> None:
        running = module(5, "running")
        text = f"{running.FINE}{running.DAYS}. The"
        oracle = running.told(LLM(running.model(), engine="naive"), [text])[0][len(text) :]
        assert told(5, "names")["by all before it"] == ['"' + oracle.replace("\n", "\\n") + '"']

    def test_chunks_change_no_token_unless_each_is_a_text_of_its_own(self) -> None:
        running, texts = module(5, "running"), told(5, "chunks")
        naive = LLM(running.model(), engine="naive")
        (oracle,) = running.told(naive, [module(5, "example").LONG], SamplingParams(max_tokens=14, temperature=0))
        assert texts["in chunks of 8"] == ['"' + oracle.replace("\n", "\\n") + '"']
        assert texts["each chunk by itself"] != texts["in chunks of 8"]

    def test_a_client_that_waits_for_answers_sees_no_delay(self) -> None:
        """And is mended by a clock that starts when a request is due."""
        closed, due, open_loop = (re.findall(r"([\d,.]+) ms", line) for line in shown(5, "omission")[1:])
        assert closed[0] == closed[2]
        assert due == open_loop
        assert float(due[2]) > float(closed[2])


class TestChapter6:
    def test_one_kernel_computes_what_three_operations_do(self) -> None:
        three, one, same = shown(6, "smallest")
        assert numbers(three.replace("...", "")) == numbers(one.replace("...", ""))
        assert same.endswith("True")

    def test_stale_weights_have_other_tokens(self) -> None:
        found = told(6, "proof")
        assert " tokens equal" in found["fused"][0]
        assert "the oracle chooses" in found["without refresh"][0]

    @pytest.mark.parametrize(
        "block, line, other, columns",
        [("by_hand", 0, -1, 2), ("in_parts", -2, -1, 1), ("folded", 0, -1, -1)],
        ids=["a cut MLP", "attention in parts", "LayerNorm after the product"],
    )
    def test_parts_join_to_the_whole(self, block: str, line: int, other: int, columns: int) -> None:
        one, whole = shown(6, block)[line].split(), shown(6, block)[other].split()
        assert one[1 if columns > 0 else columns :] == whole[columns:]

    def test_only_fixed_point_has_no_order(self) -> None:
        floats, wholes = zip(*(line.split()[-2:] for line in shown(6, "orders")[1:]), strict=True)
        assert len(set(floats)) > 1
        assert len(set(wholes)) == 1


class TestChapter7:
    @pytest.fixture
    def example(self) -> ModuleType:
        return module(7)

    @pytest.fixture
    def running(self) -> ModuleType:
        return module(7, "running")

    def test_the_loop_that_is_broken_has_the_engines_tokens(self, example: ModuleType, running: ModuleType) -> None:
        heat = running.HEAT
        made, plain = example.text(heat=heat), example.text("Plain", heat)
        with running.llm("naive") as llm:
            params = SamplingParams(temperature=heat, max_tokens=example.NEW, seed=running.SEED, ignore_eos=True)
            (done,) = llm.generate([running.FOX], params)
        assert tuple(made.ids) == (*done.prompt_token_ids, *done.token_ids) == tuple(plain.ids)
        assert len(made.steps) < len(plain.steps)

    def test_chi_square_tells_right_rules_from_the_wrong_one(self, example: ModuleType) -> None:
        for name, (tokens, _) in example.rules().items():
            wrong = name.strip() == "and once rejected, from p"
            assert (example.statistic(tokens) > example.LIMIT) == wrong, name

    def test_drafts_are_accepted_as_often_as_the_formulas_say(self, example: ModuleType) -> None:
        p, q = example.pair()
        formulas = {"equal, the same noise": example.shared, "textbook rejection sampling": example.textbook}
        for rule, formula in formulas.items():
            _, accepted = example.rules()[rule]
            assert float(accepted.double().mean()) == pytest.approx(formula(p, q), abs=0.004)

    def test_whoever_drafts_the_tokens_are_the_same(self, example: ModuleType, running: ModuleType) -> None:
        """The model itself is always right, and a deeper part of it more often than a shallower one."""
        by = [example.drafted(who, example.STORY, running.HEAT) for who in ("itself", "11", "8", "lookup")]
        assert len({tokens for tokens, *_ in by}) == 1
        share = [accepted / brought for _, brought, accepted, *_ in by]
        assert share[0] == 1
        assert share == sorted(share, reverse=True)
        assert by[1][-1] > share[1]  # alpha does not count what follows a wrong draft


class TestChapter8:
    @pytest.fixture
    def example(self) -> ModuleType:
        return module(8)

    @pytest.fixture
    def running(self) -> ModuleType:
        return module(8, "running")

    def test_tokens_are_those_of_one_device(self, running: ModuleType) -> None:
        params = SamplingParams(temperature=0.8, max_tokens=running.NEW, seed=running.SEED, ignore_eos=True)
        with LLM(model(), engine="naive") as llm:
            (done,) = llm.generate([running.PROMPT], params)
        assert running.texts(running.Part, 0.8) == [running.PROMPT + done.text] * 2

    def test_who_wins_is_the_best_of_both_and_the_lower_id(self) -> None:
        for line in shown(8, "joined")[1:]:
            (first, at), (second, there) = (map(int, found) for found in re.findall(r"(-?\d+) by (\d+)", line))
            assert int(line.split()[-1]) == (at if first >= second else there)

    def test_one_buffer_is_overwritten_and_two_are_not(self, example: ModuleType) -> None:
        quick, late = example.one_shot(5, 1)
        assert quick == [11, 22, 33, 44, 55]
        assert late[:-1] == [12, 23, 34, 45]
        assert example.one_shot(5, 2) == [quick, quick]
