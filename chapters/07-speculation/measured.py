"""Chapter 7's numbers from the results file of `python -m bench speculation`: steps with drafts beside plain ones.

`python -m bench speculation --out bench/results/h200-speculation.json` makes it; `python -m nanobook prose` then fills
the numbers into the text. Acceptance is forced there by a seeded coin, so that it is known beforehand.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import median

from nanobench.micro.speculation import Forced, SpeculationReport
from nanobench.report.values import factor

RESULTS = Path(__file__).resolve().parents[2] / "bench" / "results"
NAME = "h200-speculation"
XL, GPT2 = "random:gpt2-xl", "random:gpt2"


@cache
def report() -> SpeculationReport:
    """The results. ValueError with the command that makes them."""
    path = RESULTS / f"{NAME}.json"
    if not path.is_file():
        raise ValueError(f"no results file {NAME}.json: `python -m bench speculation --out bench/results/{NAME}.json`")
    return SpeculationReport.load(path)


def cases(model: str, adaptive: bool = False) -> list[Forced]:
    """All cases of a model, with as many drafts as may be or with as many as pay."""
    return [one for one in report().cases if one.model == model and one.adaptive == adaptive]


def case(model: str, rows: int, alpha: float, drafts: int, adaptive: bool = False) -> Forced:
    """One case."""
    wanted = (rows, alpha, drafts)
    (found,) = [one for one in cases(model, adaptive) if (one.rows, one.alpha, one.draft_tokens) == wanted]
    return found


def values(of: Callable[[Forced], float]) -> list[float]:
    """What the file has of a quantity, in order."""
    return sorted({of(one) for one in report().cases})


def rows_measured() -> list[int]:
    """Numbers of rows, from the fewest."""
    return [int(value) for value in values(lambda one: one.rows)]


def drafts_measured() -> list[int]:
    """Most drafts of a row in a step, from the fewest."""
    return [int(value) for value in values(lambda one: one.draft_tokens)]


def alphas_measured() -> list[float]:
    """Forced acceptance, from the lowest."""
    return values(lambda one: one.alpha)


def step_cost(model: str, rows: int, drafts: int) -> float:
    """Time of a step with so many drafts a row over that of a plain step; the median over what was accepted."""
    return median(one.step_cost for one in cases(model) if (one.rows, one.draft_tokens) == (rows, drafts))


def room() -> None:
    """What a step takes whose rows bring their drafts besides."""
    fewest, most = rows_measured()[0], rows_measured()[-1]
    print(f"{'tokens that a row brings':26}{1:>9}", *(f"{1 + k:>9}" for k in drafts_measured()), sep="")
    for model, rows in ((XL, fewest), (XL, most), (GPT2, fewest), (GPT2, most)):
        name = f"{model.removeprefix('random:')}, {rows} row{'s' * (rows > 1)}"
        costs = [factor(step_cost(model, rows, k)) for k in drafts_measured()]
        print(f"{name:26}{factor(1):>9}", *(f"{cost:>9}" for cost in costs), sep="")


def loses() -> None:
    """Speed over plain decoding, by rows, for the best and the worst drafts that were measured."""
    alphas = alphas_measured()
    print(f"{'':10}{'rows':>5}", *(f"{f'{alpha:.0%} right, {k} drafts':>22}" for alpha, k in _corners(alphas)), sep="")
    for model in (XL, GPT2):
        for rows in rows_measured():
            gains = [factor(case(model, rows, alpha, k).gain) for alpha, k in _corners(alphas)]
            print(f"{model.removeprefix('random:'):10}{rows:>5}", *(f"{gain:>22}" for gain in gains), sep="")


def _corners(alphas: list[float]) -> list[tuple[float, int]]:
    few, *_, many = drafts_measured()
    return [(alphas[-1], many), (alphas[0], few), (alphas[0], many)]


def adaptive() -> None:
    """The same drafts, all of them brought and as many as pay."""
    alpha, most = alphas_measured()[0], drafts_measured()[-1]
    title = f"{most} drafts, always"
    print(f"{f'{alpha:.0%} right':10}{'rows':>5}{title:>22}{'as many as pay':>18}{'tokens a step':>18}")
    for model in (XL, GPT2):
        for rows in rows_measured():
            always, fewer = (case(model, rows, alpha, most, adapts) for adapts in (False, True))
            print(f"{model.removeprefix('random:'):10}{rows:>5}{factor(always.gain):>22}{factor(fewer.gain):>18}"
                  f"{fewer.tokens_a_step:>18.2f}")  # fmt: skip


def lowest(adapts: bool) -> str:
    """The worst case of all."""
    return factor(min(one.gain for one in report().cases if one.adaptive == adapts))


NUMBERS: dict[str, Callable[[], str]] = {
    "nine at one": lambda: factor(step_cost(XL, 1, 8)),
    "nine at most": lambda: factor(step_cost(GPT2, rows_measured()[-1], 8)),
    "best gain": lambda: factor(max(one.gain for one in report().cases)),
    "gain": lambda: factor(case(XL, 1, 0.8, 4).gain),
    "gain tokens": lambda: f"{case(XL, 1, 0.8, 4).tokens_a_step:.2f}",
    "gain cost": lambda: factor(case(XL, 1, 0.8, 4).step_cost),
    "lowest": lambda: lowest(False),
    "lowest adaptive": lambda: lowest(True),
}
