"""The requests of `bench load`: drawn by a seed, arriving by a pattern, or read from a trace."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from nanobench.load.measure import Schedule, table
from nanobench.load.records import Plan
from nanobench.load.requests import Mix, Source, poisson
from nanobench.micro.queue_load import drawn

MIX = Mix(requests=40, prompt=(2, 9), new=(1, 5), vocab=100)


def test_a_seed_gives_the_same_everywhere() -> None:
    source = Source.of(MIX, None)
    first, later = source.asks([0.0] * 40), source.asks([0.0] * 40, turn=1)
    prompts, new = drawn(40, (2, 9), (1, 5), 100)
    assert [(list(a.prompt), a.max_tokens) for a in first] == list(zip(prompts, new, strict=True))
    assert [len(a.prompt) for a in first] == [len(a.prompt) for a in later]
    assert sum(a.prompt == b.prompt for a, b in zip(first, later, strict=True)) < 4


def test_some_begin_with_a_system_prompt() -> None:
    mix = MIX.model_copy(update={"shared_share": 0.5, "shared_tokens": 20, "shared_prompts": 2})
    found = [ask.prompt for ask in Source.of(mix, None).asks([0.0] * 40)]
    long = [prompt[:20] for prompt in found if len(prompt) > 20]
    assert 12 <= len(long) <= 28
    assert len(set(long)) == 2


def test_arrivals_keep_their_pattern_at_every_rate() -> None:
    slow, fast = poisson(10, 1000, 7), poisson(40, 1000, 7)
    assert slow == pytest.approx([4 * due for due in fast])
    assert slow == sorted(slow)
    assert 97 < slow[-1] < 100
    gaps = [b - a for a, b in pairwise(slow)]
    assert sum(gap > 0.1 for gap in gaps) == pytest.approx(1000 * 0.368, rel=0.15)  # exp(-1): no metronome
    bursts = poisson(10, 1000, 7, group=50)
    assert len(set(bursts)) == 20
    assert bursts[:50] == [bursts[0]] * 50


def test_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(
        '{"arrival_s": 2, "prompt_tokens": 6, "max_tokens": 3, "prefix": "a", "prefix_tokens": 4}\n\n'
        '{"arrival_s": 1.5, "prompt": [5, 6, 7], "max_tokens": 1, "user": "x"}\n'
        '{"arrival_s": 3, "prompt_tokens": 9, "max_tokens": 2, "prefix": "a", "prefix_tokens": 5}\n'
    )
    source = Source.of(MIX, path)
    plans = list(Schedule().plans(source, lambda: 0.0))
    assert plans == [Plan(how="trace", requests=3)]
    found = source.asks(table(plans[0], source))
    assert [(a.due, len(a.prompt), a.max_tokens) for a in found] == [(1.5, 3, 1), (2.0, 6, 3), (3.0, 9, 2)]
    assert found[0].prompt == (5, 6, 7)
    assert found[1].prompt[:4] == found[2].prompt[:4]
    assert found[1].prompt[4:] != found[2].prompt[4:6]
    assert source.asks([0.0] * 3) != source.asks([0.0] * 3, turn=1)


@pytest.mark.parametrize(
    "line, said",
    [
        ("{", "line 1: Invalid JSON"), ('{"max_tokens": 2}', "either prompt_tokens or prompt"),
        ('{"prompt": [1], "max_tokens": 0}', "line 1: max_tokens: Input should be greater than 0"),
        ('{"prompt": [1], "max_tokens": true}', "max_tokens"), ('{"prompt": [], "max_tokens": 1}', "prompt"),
        ('{"prompt_tokens": 3, "max_tokens": 1, "prefix": 1}', "prefix and prefix_tokens"),
        ('{"prompt_tokens": 3, "max_tokens": 1, "prefix": 1, "prefix_tokens": 4}', "at most prompt_tokens"),
        ('{"prompt": [1], "max_tokens": 1, "arrival_s": 1}\n{"prompt": [1], "max_tokens": 1}', "arrival_s"),
        ('{"prompt": [1], "max_tokens": 1, "arrival_s": -1}', "arrival_s"), ("", "holds no requests"),
    ],
)  # fmt: skip
def test_a_trace_that_is_none(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(line)
    with pytest.raises(ValueError, match=said):
        Source.of(MIX, path)
