"""What an exercise promises beyond its checks: of several calls, of the engine, and of what a learner is told."""

from __future__ import annotations

import inspect
import random
import re
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from nanocourse.exercises import answers, chapters, sources
from nanocourse.exercises.cases import Case
from nanocourse.exercises.exercise import Check, Exercise
from nanoinfer.cache.naive import FullContext
from nanoinfer.kernels import persistent_torch as phases
from nanoinfer.model.batch import Chunk, Layout, pack, unpack
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.weights import random_model
from nanoinfer.parallel.shard import Shard
from tests.course.learner_files import Keep, checked


def wide(id: str) -> tuple[Exercise, Check]:
    """An exercise, and the check that combines what its rules demand."""
    exercise = chapters.exercise(id)
    return exercise, next(check for check in exercise.checks if check.wide)


class Operations(TorchDispatchMode):
    """Counts operations that make numbers; views and index ranges do not."""

    FREE = ("view", "unbind", "transpose", "expand", "slice", "select", "t.", "arange", "detach", "alias", "unsqueeze")

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
        name = str(func).removeprefix("aten.").removeprefix("_unsafe_")
        self.count += not name.startswith(self.FREE)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("length", [1, 9])
def test_1_7_counts_what_the_engine_does(length: int) -> None:
    """Against torch's own counter of operations, and against the operations themselves."""
    config = ModelConfig(n_layer=3, n_head=2, n_embd=32, n_positions=40, vocab_size=128)
    model = random_model(config, seed=0)
    layout = Layout.of([], chunks := [Chunk(0, 0, range(length))])
    batch = unpack(pack([], chunks, layout, dummy=1), layout)
    counted = answers.reference("1.7")({"n_layer": 3, "n_embd": 32, "vocab_size": 128}, length, 4)
    plain = sdpa_kernel(SDPBackend.MATH)  # the counter does not know a CPU's fused kernel
    with torch.no_grad(), plain, FlopCounterMode(display=False) as flops:
        model(batch, FullContext())
    assert flops.get_total_flops() == counted["flops"]
    with torch.no_grad(), Operations() as operations:
        model(batch, FullContext())
    assert operations.count == counted["launches"]  # attention on a CPU is one operation
    unused = (config.n_positions - length) * config.n_embd
    assert counted["bytes"] == (config.parameters - unused) * 4


# What is planted in a right answer of chapter 4, the words that the learner sees, and a word that stays hidden.
MESSAGES = [
    ("4.1", 'host["read"]\n', 'device["read"].tolist()\n', r"expected a result, got CaptureRefused: .*", "moving"),
    ("4.1", ', "live", "cache")', ', "live")', r"at kinds expected .*, live, cache, got .*", "moving"),
    ("4.8", "engine.admit(word", "engine.admitt(word", r".*AttributeError: .* \(line \d+: engine\.admitt.*", ""),
    ("4.8", "assert told[0] == told[1]", "assert told[0] != told[1]",
     r".*RightEngineFailed: engine: AssertionError \(line \d+: assert .*\)", ""),
]  # fmt: skip


@pytest.mark.parametrize("id, old, new, says, hidden", MESSAGES, ids=range(4))
def test_what_breaks_down_is_told_without_the_answer(
    keep: Keep, tmp_path: Path, id: str, old: str, new: str, says: str, hidden: str
) -> None:
    exercise = chapters.exercise(id)
    right = sources.function_source(exercise.function)
    assert right.count(old) == 1
    source = sources.whole_file(exercise, exercise.function, right.replace(old, new))
    told = next(check.failure for check in checked(exercise, source, tmp_path, keep).checks if check.failure)
    place = f"at {told.where} " if told.where else ""
    assert re.fullmatch(says, f"{place}expected {told.expected}, got {told.got}", re.S)
    assert not hidden or hidden not in repr(told)


def test_5_1_reads_each_prompt_once_and_starves_none() -> None:
    plan, draw = answers.reference("5.1"), random.Random(5)
    prompts, computed = [draw.randint(1, 30) for _ in range(9)], [0] * 9
    for _ in range(40):
        step = plan(prompts, computed, 11, 6)
        assert sum(tokens for _, tokens, _ in step) <= 11
        assert {at for at in range(9) if computed[at] >= prompts[at]} <= {at for at, _, _ in step}
        for at, tokens, follows in step:
            assert follows == (computed[at] + tokens >= prompts[at])
            computed[at] += tokens
    assert all(done > length for done, length in zip(computed, prompts, strict=True))


def test_5_4_loses_no_block_and_holds_none_twice() -> None:
    exercise, check = wide("5.4")
    for at in range(24):
        pool, history = exercise.call(check, Case(f"history/{at}")).args
        ends = [("end", row, "done") for what, row, _ in history if what == "begin"]
        assert exercise.function(pool, [*history, *ends])[1] == [0] * pool


def played(pool: int, mistake: str = "") -> tuple[list[list[int]], int]:
    """5.5: what is sent of four sequences of ten new tokens, in so many blocks of two, and how often it preempts."""
    step = answers.wrong("5.5", mistake) if mistake else answers.reference("5.5")
    rows: list[dict[str, Any]] = [{"prompt": [at] * (at + 1), "new": [], "seed": at, "blocks": 0} for at in range(4)]
    free, preemptions, left = pool, 0, rows

    def next_token(text: list[int], seed: int, at: int) -> int:
        return (sum(place * one for place, one in enumerate(text, 1)) + 31 * seed + 7 * at * at) % 97

    sent: list[list[int]] = [[] for _ in rows]
    for _ in range(200):
        held, free, preempted, tokens = step(left, free, 2, next_token)
        preemptions += len(preempted)
        for row, blocks in zip(left, held, strict=True):
            row["blocks"] = blocks
        for place, token in tokens:
            left[place]["new"] = [*left[place]["new"], token]
            sent[left[place]["seed"]].append(token)
        free += sum(row["blocks"] for row in left if len(sent[row["seed"]]) >= 10)
        left = [row for row in left if len(sent[row["seed"]]) < 10]
        if not left:
            return sent, preemptions
    raise AssertionError("some sequence never ends")


def test_5_5_gives_preempted_sequences_the_tokens_of_a_large_pool() -> None:
    assert played(9)[0] == played(200)[0]
    assert played(9)[1] > 0 == played(200)[1]
    for mistake in ("noise-begins-anew", "prompt-alone", "all-is-generated-again"):
        assert played(9, mistake)[0] != played(200, mistake)[0], mistake


def test_5_6_gives_percentiles_that_rise() -> None:
    exercise = chapters.exercise("5.6")
    for check in exercise.checks:
        due, log, _ = exercise.call(check, Case("rising/0")).args
        ranked = exercise.function(due, log, list(range(1, 101)))[1]
        assert all(one <= other for one, other in pairwise(ranked))


def test_6_6_counts_in_the_engines_words() -> None:
    values = torch.tensor([0.1, -0.1, 3.0, torch.nan, torch.inf, -torch.inf, 1e30, 2.0**-31, -1.7, -0.0])
    scene: Any = inspect.unwrap(chapters.exercise("6.6").spec.scene).__globals__  # type: ignore[arg-type]
    assert [scene["_units"](value) for value in values.tolist()] == phases.fixed(values).tolist()


def test_6_7_is_a_layer_norm_and_a_product() -> None:
    x, gain, shift = torch.randn(3, 24).unbind()
    weight, bias = torch.randn(7, 24), torch.randn(7)
    halves = [weight[:, part] @ (gain * x)[part] for part in (slice(12), slice(12, 24))]
    got = answers.reference("6.7")(x, torch.stack(halves), weight @ gain, weight @ shift + bias, 1e-5)
    torch.testing.assert_close(got, weight @ F.layer_norm(x, x.shape, gain, shift, 1e-5) + bias)


def test_7_1_is_the_mean_of_coins() -> None:
    draw, given = random.Random(7), 0
    for _ in range(20_000):
        given += 1 + next((at for at in range(4) if draw.random() >= 0.7), 4)
    (mean,), _ = answers.reference("7.1")([0.7], [4], 1.0, 1.0)
    assert given / 20_000 == pytest.approx(mean, rel=0.02)


def test_7_2_lets_drafts_decide_how_many_tokens_come_and_never_which() -> None:
    accept, generator = answers.reference("7.2"), torch.Generator().manual_seed(7)
    scores, noise = torch.randn(2, 1, 5, 9, generator=generator)
    plain = (scores + noise).argmax(-1)
    for _ in range(50):
        other = torch.randint(0, 9, (1, 4), generator=generator)
        drafts = torch.where(torch.rand(1, 4, generator=generator) < 0.7, plain[:, :-1], other)
        tokens, counts = accept(scores, noise, drafts)
        assert tokens[0, : int(counts)].tolist() == plain[0, : int(counts)].tolist()


def test_7_6_ends_alike_wherever_a_run_is_cut() -> None:
    exercise, check = wide("7.6")
    for at in range(24):
        run, row, params = exercise.call(check, Case(f"promise/{at}")).args
        whole = exercise.function(run, row, params)
        for cut in range(1, len(run)):
            count, why, text = exercise.function(run[:cut], row, params)
            if not why:
                after = {"new": row["new"] + cut, "length": row["length"] + cut, "text": text}
                more, why, text = exercise.function(run[cut:], after, params)
                count += more
            assert (count, why, text) == whole


def test_7_7_loses_no_block() -> None:
    exercise = chapters.exercise("7.7")
    for check in exercise.checks:
        for at in range(12):
            rows, wishes, right, free, size = exercise.call(check, Case(f"promise/{at}")).args
            _, held, kept, after = exercise.function(rows, wishes, right, free, size)
            before = sum(-(-written // size) for written, _ in rows)
            assert after + sum(kept) == free + before
            assert all(one <= more for one, more in zip(kept, held, strict=True))
            lacking = sum(max(0, mine - own) for own, (_, mine) in zip(held, rows, strict=True))
            assert free + before - sum(held) >= lacking


def test_8_1_cuts_as_the_engine_does() -> None:
    """Where the engine does not cut at multiples of 64 columns."""
    config = ModelConfig(n_layer=1, n_head=5, n_embd=10, n_positions=4, vocab_size=30)
    cut = answers.reference("8.1")
    shapes = {"attn.c_attn.weight": (10, 30), "attn.c_proj.weight": (10, 10), "mlp.c_fc.bias": (40,)}
    for kind, shape in shapes.items():
        whole = torch.randn(shape)
        for rank in range(3):
            index = Shard(rank, 3).pieces(f"h.0.{kind}", config)
            mine = torch.cat([whole[one] for one in index], -1)
            assert cut(f"h.0.{kind}", whole, 5, rank, 3).equal(mine)


def test_8_2_makes_the_block_of_exercise_1_2_of_parts() -> None:
    cut, layer, block = (answers.reference(id) for id in ("8.1", "8.2", "1.2"))
    one, generator = chapters.exercise("1.2"), torch.Generator().manual_seed(8)
    shapes = inspect.unwrap(one.spec.example).__globals__["SHAPES"]  # in multiples of the width
    whole = {name: torch.randn([10 * n for n in shape], generator=generator) for name, shape in shapes.items()}
    x = torch.randn(4, 10, generator=generator)
    ranks = []
    for rank, heads in enumerate((2, 2, 1)):
        part = {name: cut(f"h.0.{name}", tensor, 5, rank, 3) for name, tensor in whole.items()}
        part |= {name: whole[name] for name in ("attn.c_proj.bias", "mlp.c_proj.bias")}  # whole on every rank
        ranks.append(layer(rank, x, heads, part))
    terms = [next(rank) for rank in ranks]
    terms = [rank.send(torch.stack(terms).sum(0)) for rank in ranks]
    expected = block(x, whole, 5, inspect.unwrap(one.spec.example).__globals__["causal"])
    for rank in ranks:
        with pytest.raises(StopIteration) as ended:
            rank.send(torch.stack(terms).sum(0))
        torch.testing.assert_close(ended.value.value, expected, rtol=1e-4, atol=1e-4)


def test_8_4_gives_tokens_that_do_not_depend_on_where_the_vocabulary_is_cut() -> None:
    exercise, check = wide("8.4")
    for at in range(16):
        logits, firsts, vocab, rows = exercise.call(check, Case(f"promise/{at}")).args
        whole = torch.cat([logits[rank] for rank in sorted(range(len(firsts)), key=firsts.__getitem__)], 1)
        one = exercise.oracle([whole], [0], vocab, rows)
        assert all(tokens.equal(one[0]) for tokens in exercise.oracle(logits, firsts, vocab, rows))


def test_8_6_loses_no_request_and_sends_none_to_two() -> None:
    exercise = chapters.exercise("8.6")
    for check in exercise.checks:
        for at in range(check.cases):
            replicas, block, worth, history = exercise.call(check, Case(f"promise/{at}")).args
            sent, rows, failed = exercise.function(replicas, block, worth, history)
            asked = {event[1]: event for event in history if event[0] == "ask"}
            assert {row for _, row, *_ in sent} | set(failed) == set(asked)
            assert len(set(failed)) == len(failed)
            for _, row, text, new, limit in sent:
                assert text[: len(text) - new] == asked[row][2]
                assert new < limit == asked[row][3]
            ended = {event[1] for event in history if event[0] == "end"}
            assert sum(count for _, count in rows) <= len(set(asked) - set(failed) - ended)


def test_8_7_gives_results_that_do_not_depend_on_how_the_work_is_cut() -> None:
    exercise, lines = chapters.exercise("8.7"), [(f"q{at}", f"prompt {at}") for at in range(7)]
    texts = []
    for shard, runs in (
        (3, [("a", None)]),
        (7, [("a", ("write", 1, 5)), ("b", None)]),
        (1, [("a", None), ("b", None)]),
    ):
        files = exercise.oracle(lines, 5, shard, runs, {}, [1] * len(runs))
        texts.append("".join(files.values()))
    assert len(set(texts)) == 1
    assert texts[0].count("\n") == 7
    seed = zlib.crc32(b"5 q0")
    assert texts[0].split()[:2] == ["q0", f"{zlib.crc32(f'prompt 0 {seed}'.encode()):08x}"]
