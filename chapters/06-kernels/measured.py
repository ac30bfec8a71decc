"""Chapter 6's numbers from results files: where a step of chapter 4 spends its time, and what chapter 6 makes of it.

`python -m bench timeline` and `one-kernel`, each with `--out bench/results/h200-NAME.json`, make the files; `python -m
nanobook prose` then fills the numbers into the text.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median

from nanobench.micro.one_kernel_records import OneKernelReport
from nanobench.micro.step_breakdown import NONE, Part, breakdown
from nanobench.micro.timeline import StepTimeline
from nanobench.report.values import factor, seconds, share
from nanobook.examples import load, only, results

four = load(Path(__file__).parents[1] / "04-cuda-graphs" / "measured.py")
NAME = "h200-one-kernel"


def report(more: str = "") -> OneKernelReport:
    """The results. more: "-texts" for those of whole texts alone. ValueError with the command that makes them."""
    return results(OneKernelReport, f"h200-one-kernel{more}", "one-kernel --texts" if more else "one-kernel")


def matrix() -> list[tuple[int, float]]:
    """Rows and seconds of a product with a layer's widest matrix."""
    return [(one.rows, one.seconds.median) for one in report().matrix]


def matrix_floor() -> float:
    """Seconds that its weights take at the speed at which the device copies memory."""
    return report().matrix[0].weight_bytes / report().copy_bytes_per_s


def nodes() -> None:
    """A kernel that does nothing, in a graph of many."""
    for one in report().nodes:
        print(f"{'launched early' if one.early else 'as chapter 4 has it':22}{seconds(one.seconds.median):>10} a node")


def exchanges() -> None:
    """What it takes until every program has the sum of all programs' numbers."""
    programs = report().exchanges[0].programs
    print(f"{programs} programs, an exchange of a number each:")
    for one in report().exchanges:
        print(f"{WAYS[one.kind]:52}{seconds(one.seconds.median):>10}")


WAYS = {
    "counter": "a barrier by one counter, then the loads",
    "flags": "a barrier by a flag of each program, then the loads",
    "words": "a word of each program",
}


def exchange(kind: str) -> float:
    """Seconds of one."""
    return only(report().exchanges, kind=kind).seconds.median


def steps() -> None:
    """One row's token by each way, whole texts replayed from one graph."""
    print(f"{'':38}{'a token':>10}{'tokens/s':>11}{'of the limit':>14}{'sampled':>10}")
    for one in report().steps:
        if not one.sampled:
            greedy, sampled = one.seconds.median, token(one.arm, sampled=True)
            cells = f"{1 / greedy:>11,.0f}{share(limit() / greedy):>14}{seconds(sampled):>10}"
            print(f"{one.arm:38}{seconds(greedy):>10}{cells}")


def limit() -> float:
    """Seconds of a token by its bytes: all weights, and the keys and values of half a text of so many tokens."""
    least: dict[str, float] = four.floors()
    context = report().new_tokens / 2 / four.timeline().context
    return sum(least.values()) + (context - 1) * least["attention"]


def token(arm: str, sampled: bool = False) -> float:
    """Seconds of a token."""
    return only(report().steps, arm=arm, sampled=sampled).seconds.median


def generated() -> None:
    """Whole texts by rows: of chapter 4's engine, and of the two that keep the fastest way that they have."""
    print(f"{'rows':>5}{'paged-graph':>13}{'fused':>10}{'persistent':>12}{'':>7}{'sampled / greedy':>19}")
    before, fused = ({rows: greedy for rows, (greedy, _) in whole_texts(engine).items()} for engine in OTHERS)
    for rows, (greedy, sampled) in whole_texts().items():
        cells = f"{before[rows]:>13,.0f}{fused[rows]:>10,.0f}{greedy:>12,.0f}{factor(greedy / before[rows]):>7}"
        print(f"{rows:>5}{cells}{share(sampled / greedy):>19}")


OTHERS = ("paged-graph", "fused")


def whole_texts(engine: str = "persistent") -> dict[int, tuple[float, float]]:
    """Tokens a second by rows, greedy and sampled; 0 where no sampled ones were measured."""
    found = {
        (one.rows, one.sampled): one.tokens_per_s.median
        for one in report("-texts").generated
        if (one.engine, one.prompt_tokens) == (engine, 1)
    }
    return {rows: (found[rows, False], found.get((rows, True), 0.0)) for rows in sorted({rows for rows, _ in found})}


def gains() -> dict[int, float]:
    """Of whole texts by rows: tokens a second of `fused` over those of chapter 4's engine."""
    before, fused = (whole_texts(engine) for engine in OTHERS)
    return {rows: fused[rows][0] / before[rows][0] for rows in fused}


def timed() -> None:
    """What the engine has timed before it chose, of steps without filters."""
    ways = ("persistent", "fused", "streamed", "op by op")
    print(f"{'rows':>5}", *(f"{way:>12}" for way in ways), sep="")
    for rows in (1, 4, 16, 64, 256):
        found = report("-texts").timed[f"decode of {rows} rows, unfiltered"]
        print(f"{rows:>5}", *(f"{seconds(found[way]) if way in found else '':>12}" for way in ways), sep="")


def way(rows: int, name: str) -> float:
    """Seconds of a step by one of these."""
    return float(report("-texts").timed[f"decode of {rows} rows, unfiltered"][name])


def long_prompts(engine: str) -> float:
    """Greedy tokens a second of 64 rows behind prompts of 512 tokens."""
    asked = {"engine": engine, "rows": 64, "prompt_tokens": 512, "sampled": False}
    return only(report("-texts").generated, **asked).tokens_per_s.median


def checked(arm: str) -> tuple[int, float]:
    """Of a greedy text: tokens that are float32's own, and how far the worst one falls short, of the largest logit."""
    found = only(report().steps, arm=arm, sampled=False)
    assert found.same is not None
    assert found.short is not None
    return found.same, found.short


def step() -> StepTimeline:
    """A replayed step of one row."""
    found: StepTimeline = four.step_of("paged-graph")
    return found


def parts() -> list[Part]:
    """What it spends its time on."""
    return breakdown(step())


def hundred() -> None:
    """Kernels and time by what they are for, and what a kernel takes on average."""
    print(f"{'':17}{'kernels':>8}{'time':>11}{'a kernel':>11}{'its bytes alone':>18}")
    least = four.floors()
    for part in parts():
        each = seconds(part.seconds / part.kernels) if part.kernels else ""
        alone = seconds(least[part.name]) if part.name in least else ""
        count = part.kernels or ""
        print(f"{part.name:17}{count:>8}{seconds(part.seconds):>11}{each:>11}{alone:>18}".rstrip())
    print(f"{'all':17}{kernels():>8}{seconds(total()):>11}{'':11}{seconds(sum(least.values())):>18}")


def gaps() -> None:
    """How long kernels of that step are, and what stands between two, as the profiler saw them."""
    found = sorted(step().kernels, key=lambda kernel: kernel.start_us)
    lengths = sorted(kernel.duration_us for kernel in found)
    between = sorted(
        max(0.0, after.start_us - before.start_us - before.duration_us) for before, after in pairwise(found)
    )
    print(f"{'':22}{'shortest':>10}{'median':>10}{'longest':>10}{'in all':>10}")
    for name, values in (("a kernel", lengths), ("the gap after it", between)):
        cells = (values[0], median(values), values[-1], sum(values))
        print(f"{name:22}" + "".join(f"{seconds(us / 1e6):>10}" for us in cells))


def kernels() -> int:
    """Of a step."""
    return sum(part.kernels for part in parts())


def total() -> float:
    """Seconds of a step."""
    return sum(part.seconds for part in parts())


def part(name: str) -> Part:
    """One part of a step."""
    return only(parts(), name=name)


NUMBERS: dict[str, Callable[[], str]] = {
    "kernels": lambda: str(kernels()),
    "sampled least": lambda: share(min(sampled / greedy for greedy, sampled in whole_texts().values())),
    "sampled most": lambda: share(max(sampled / greedy for greedy, sampled in whole_texts().values())),
    "step": lambda: seconds(total()),
    "floor": lambda: seconds(sum(four.floors().values())),
    "share": lambda: share(sum(four.floors().values()) / total()),
    "nothing": lambda: share(part(NONE).share),
    "between": lambda: seconds(part(NONE).seconds / kernels()),
    "rows for one": lambda: factor(dict(matrix())[16] / dict(matrix())[1]),
    "many for one": lambda: factor(dict(matrix())[256] / dict(matrix())[1]),
    "over its bytes": lambda: factor(dict(matrix())[1] / matrix_floor()),
    "context": lambda: str(four.timeline().context),
    "fused rows": lambda: factor(way(16, "fused") / way(1, "fused")),
    "half step": lambda: seconds(way(1, "op by op")),
    "plain rows": lambda: factor(way(16, "op by op") / way(1, "op by op")),
    "more rows": lambda: seconds(way(16, "fused") - way(1, "fused")),
    "paged token": lambda: seconds(token("paged-graph")),
    "fused sampled": lambda: seconds(token("fused", sampled=True)),
    "token sampled": lambda: seconds(token("one kernel", sampled=True)),
    "new": lambda: str(report().new_tokens),
    "of a text": lambda: seconds(1 / whole_texts()[1][0]),
    "texts over fused": lambda: factor(whole_texts()[1][0] / whole_texts("fused")[1][0]),
    "long fused": lambda: f"{long_prompts('fused'):,.0f}",
    "long persistent": lambda: f"{long_prompts('persistent'):,.0f}",
    "long paged": lambda: f"{long_prompts('paged-graph'):,.0f}",
    "same": lambda: str(checked("one kernel")[0]),
    "worst": lambda: f"{100 * checked('one kernel')[1]:.2g}%",
    "fused same": lambda: str(checked("fused")[0]),
    "fused worst": lambda: f"{100 * checked('fused')[1]:.2g}%",
    "fused share": lambda: share(limit() / token("fused")),
    "fused gain 1": lambda: factor(gains()[1]),
    "fused gain 16": lambda: factor(gains()[16]),
    "fused gain 256": lambda: factor(gains()[256]),
    "none early": lambda: seconds(token("fused, none early")),
    "fused token": lambda: seconds(token("fused")),
    "one over fused": lambda: factor(token("fused") / token("one kernel")),
    "token": lambda: seconds(token("one kernel")),
}
