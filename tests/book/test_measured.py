"""What the pages claim of figures points where the results files do; no figure stands here, and none is needed."""

from __future__ import annotations

from itertools import pairwise

import pytest

from nanobench.micro.step_breakdown import HEAD, NONE, PARTS, SMALL, breakdown
from nanobench.micro.timeline import HostEvent, Kernel, StepTimeline
from tests.book.chapter_pages import ROOT, checkout, module

pytestmark = [
    checkout,
    pytest.mark.skipif(not (ROOT / "bench" / "results" / "h200-ladder.json").is_file(), reason="no results"),
]


def test_chapter_3_the_kernel_is_faster_where_rows_are_ragged() -> None:
    """SDPA for one long prompt; gathering the pages is the slowest everywhere."""
    measured = module(3, "measured")
    for case in {time.case for time in measured.ragged().attention}:
        kernel, padded, gathered = (
            measured.ragged_time(case, way) for way in ("ragged kernel", "sdpa, padded", "sdpa, pages gathered")
        )
        assert gathered > max(kernel, padded), case
        assert kernel < padded or case.startswith("one prompt"), case


def test_chapter_5_preemption_gains_tokens_and_costs_gaps() -> None:
    measured = module(5, "measured")
    on, off = measured.pool(True), measured.pool(False)
    assert min(run.tokens_per_s for run in on) > max(run.tokens_per_s for run in off)
    assert max(run.ttft.p99 for run in on) < min(run.ttft.p99 for run in off)
    assert min(run.itl.longest for run in on) > max(run.itl.longest for run in off)
    assert all(run.counted.preemptions for run in on)
    assert not any(run.counted.preemptions for run in off)


def test_chapter_5_past_the_knee_the_same_work_is_too_late() -> None:
    measured = module(5, "measured")
    served = measured.rates("serve")
    *below, knee, top = served
    assert top.ttft.p99 > knee.ttft.p99 > max(run.ttft.p99 for run in below)
    assert top.goodput_per_s < knee.goodput_per_s
    assert not any(run.refused for run in served)


def test_chapter_6_one_kernel_is_for_one_row() -> None:
    """There it is faster than five kernels a layer, every run of it; with more rows it is not run."""
    measured = module(6, "measured")
    found = measured.report("-texts")
    assert all(("persistent" in ways) == key.startswith("decode of 1 rows") for key, ways in found.timed.items())
    samples = {
        (one.prompt_tokens, one.engine): one.tokens_per_s.samples
        for one in found.generated
        if one.rows == 1 and not one.sampled
    }
    for prompt in {prompt for prompt, _ in samples}:
        assert min(samples[prompt, "persistent"]) > max(samples[prompt, "fused"])


def test_chapter_7_texts_that_repeat_themselves_gain_most_and_few_rows_more_than_many() -> None:
    measured = module(7, "measured")
    repeating, story = (measured.written(kind, 0.0) for kind in ("repeating", "story"))
    for one, other in zip(repeating, story, strict=True):
        assert one.gain > other.gain
    assert all(few.gain > many.gain for kind in (repeating, story) for few, many in pairwise(kind))


def test_chapter_7_more_drafts_lose_with_many_rows() -> None:
    measured = module(7, "measured")
    few, many = measured.rows_measured()[0], measured.rows_measured()[-1]
    assert measured.case(measured.XL, few, 0.6, 8).gain > measured.case(measured.XL, few, 0.6, 2).gain
    assert measured.case(measured.XL, many, 0.6, 8).gain < measured.case(measured.XL, many, 0.6, 2).gain
    for model in (measured.XL, measured.GPT2):
        assert measured.step_cost(model, many, 8) > measured.step_cost(model, few, 8)


def test_chapter_8_two_gpus_gain_with_rows_and_never_twice() -> None:
    """A split model answers sooner, two models give more tokens."""
    measured = module(8, "measured")
    for model in measured.models():
        gains = [measured.gain(model, rows) for rows in measured.rows_measured(model)]
        assert all(1 < gain < 2 for gain in gains)
        assert gains[-1] > gains[0]


def test_chapter_8_with_equal_rows_few_are_for_a_split_model_and_many_for_replicas() -> None:
    measured = module(8, "measured")
    assert measured.step_s(measured.XL, 2, 8) < measured.between_s(measured.XL, 4)
    assert measured.step_s(measured.XL, 2, 256) > measured.between_s(measured.XL, 128)


def test_parts_of_a_step() -> None:
    """On a time line made by hand. What overlaps counts once, and a CPU has no kernels."""
    names = ("_linear_kernel", "_linear_kernel", "_attend_kernel", "nvjet_tst_64x8", "fill", "_add_norm_kernel")
    kernels = [Kernel(name=name, start_us=10.0 * at, duration_us=8.0) for at, name in enumerate(names)]
    kernels.append(Kernel(name="fill", start_us=52.0, duration_us=8.0))  # six of it within the kernel before
    host = (HostEvent(name="cudaGraphLaunch", kind="launch", start_us=0, duration_us=5),)
    step = StepTimeline(engine="paged-graph", duration_us=80, unprofiled_us=40, host=host, kernels=tuple(kernels))
    found = {part.name: part for part in breakdown(step)}
    assert tuple(found) == PARTS
    assert sum(part.share for part in found.values()) == pytest.approx(1)
    shares = [found[name].share for name in ("matrices", SMALL, NONE)]
    assert shares == pytest.approx([16 / 80, (8 + 2) / 80, (80 - 50) / 80])
    assert found[HEAD].kernels == 1
    assert found["attention"].seconds == pytest.approx(4e-6)  # its share of the step without the profiler
    with pytest.raises(ValueError, match="a time line of a CPU has no kernels"):
        breakdown(step.model_copy(update={"kernels": ()}))
