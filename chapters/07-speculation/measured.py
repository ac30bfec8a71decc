"""Chapter 7's numbers from the results files of `python -m bench speculation` and `speculation-texts`.

`python -m bench speculation --out bench/results/h200-speculation.json` makes the first, and the other command the other
one likewise; `python -m nanobook prose` then fills the numbers into the text. In the first acceptance is forced by a
seeded coin, so that it is known beforehand; the second is of what the small model writes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import log
from random import Random
from statistics import fmean, median, stdev
from types import SimpleNamespace
from typing import Any

from nanobench.micro.speculation import Forced, SpeculationReport
from nanobench.micro.speculation_texts import Drafted, SpeculationTextsReport
from nanobench.report.values import factor
from nanobook.examples import results
from nanoinfer.speculate.pays import FIRST, GAIN, LOSS, PRICE, RATE, Pays

XL, GPT2 = "random:gpt2-xl", "random:gpt2"
TEXTS = ("repeating", 0.0), ("story", 0.0), ("story", 0.8)  # and their temperatures


def report() -> SpeculationReport:
    """The results. ValueError with the command that makes them."""
    return results(SpeculationReport, "h200-speculation", "speculation")


def texts_report() -> SpeculationTextsReport:
    """Those of real texts."""
    return results(SpeculationTextsReport, "h200-speculation-texts", "speculation-texts")


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
    """Time of a step by how many tokens each sequence is fed, over a plain step's."""
    fewest, most = rows_measured()[0], rows_measured()[-1]
    print(f"{'tokens of each sequence':26}{1:>9}", *(f"{1 + k:>9}" for k in drafts_measured()), sep="")
    for model, rows in ((XL, fewest), (XL, most), (GPT2, fewest), (GPT2, most)):
        name = f"{model.removeprefix('random:')}, {rows} sequence{'s' * (rows > 1)}"
        costs = [factor(step_cost(model, rows, k)) for k in drafts_measured()]
        print(f"{name:26}{factor(1):>9}", *(f"{cost:>9}" for cost in costs), sep="")


def loses() -> None:
    """Speed over plain decoding, by rows, for the best and the worst drafts that were measured."""
    alphas = alphas_measured()
    titles = [f"{f'{alpha:.0%} right, {k} drafts':>22}" for alpha, k in _corners(alphas)]
    print(f"{'':10}{'sequences':>10}", *titles, sep="")
    for model in (XL, GPT2):
        for rows in rows_measured():
            gains = [factor(case(model, rows, alpha, k).gain) for alpha, k in _corners(alphas)]
            print(f"{model.removeprefix('random:'):10}{rows:>10}", *(f"{gain:>22}" for gain in gains), sep="")


def _corners(alphas: list[float]) -> list[tuple[float, int]]:
    few, *_, many = drafts_measured()
    return [(alphas[-1], many), (alphas[0], few), (alphas[0], many)]


def adaptive() -> None:
    """The same drafts, all of them brought and as many as pay."""
    alpha, most = alphas_measured()[0], drafts_measured()[-1]
    title = f"{most} drafts, always"
    print(f"{f'{alpha:.0%} right':10}{'sequences':>10}{title:>22}{'as many as pay':>18}{'tokens a step':>18}")
    for model in (XL, GPT2):
        for rows in rows_measured():
            always, fewer = (case(model, rows, alpha, most, adapts) for adapts in (False, True))
            print(f"{model.removeprefix('random:'):10}{rows:>10}{factor(always.gain):>22}{factor(fewer.gain):>18}"
                  f"{fewer.tokens_a_step:>18.2f}")  # fmt: skip


def texts() -> None:
    """Prompt lookup for what the small model writes, over plain decoding, and a peer's over the peer's own."""
    print(f"{'':24}{'sequences':>10}{'as many as pay':>18}{'tokens a step':>16}{'transformers':>15}")
    for kind, temperature in TEXTS:
        for one in written(kind, temperature):
            name = f"{one.text}, {'sampled' if temperature else 'greedy'}"
            peers = [each.gain for each in texts_report().cases if each.system == "transformers"
                     and (each.text, each.temperature, each.rows) == (kind, temperature, one.rows)]  # fmt: skip
            peer = factor(peers[0]) if peers else "-"
            print(f"{name:24}{one.rows:>10}{factor(one.gain):>18}{one.tokens_a_step:>16.2f}{peer:>15}")


def written(kind: str, temperature: float) -> list[Drafted]:
    """The engine's cases of a text, by rows."""
    return [one for one in texts_report().cases if (one.system, one.drafts) == ("nanoinfer", "lookup")
            and (one.text, one.temperature) == (kind, temperature)]  # fmt: skip


def lowest(adapts: bool) -> str:
    """The worst case of all."""
    return factor(min(one.gain for one in report().cases if one.adaptive == adapts))


@cache
def simulated(alpha: float, most: int, adapts: bool, texts: int = 1000) -> list[float]:
    """Tokens a step of texts as long as the measured ones, by a coin alone. adapts: by a row's rule of how many pay."""
    coin, new, found = Random(1), report().new_tokens, []
    row: Any = SimpleNamespace(share=FIRST)
    for _ in range(texts):
        rule, written, steps = Pays(), 1, 0  # the first token is the prompt's
        while written < new:
            limit = min(most, new - written - 1)
            drafts = rule.most(row, limit) if adapts else limit
            right = next((n for n in range(drafts) if coin.random() >= alpha), drafts)
            if drafts:
                rule.note(row, drafts, right)
            written, steps = written + right + 1, steps + 1
        found.append((new - 1) / steps)
    return found


def most_at(alpha: float) -> int:
    """Drafts that the row's rule brings where it knows alpha."""
    return int(log(PRICE, alpha))


def break_even(cost: float) -> float:
    """The alpha at which two drafts, 1 + alpha + alpha ** 2 tokens, are worth a step of this cost."""
    return float(((4 * cost - 3) ** 0.5 - 1) / 2)


NUMBERS: dict[str, Callable[[], str]] = {
    "nine at one": lambda: factor(step_cost(XL, 1, 8)),
    "nine at most": lambda: factor(step_cost(GPT2, rows_measured()[-1], 8)),
    "best gain": lambda: factor(max(one.gain for one in report().cases)),
    "gain": lambda: factor(case(XL, 1, 0.8, 4).gain),
    "gain tokens": lambda: f"{case(XL, 1, 0.8, 4).tokens_a_step:.2f}",
    "gain cost": lambda: factor(case(XL, 1, 0.8, 4).step_cost),
    "lowest": lambda: lowest(False),
    "lowest adaptive": lambda: lowest(True),
    "two at most": lambda: factor(step_cost(GPT2, rows_measured()[-1], 2)),
    "break even": lambda: f"{break_even(step_cost(GPT2, rows_measured()[-1], 2)):.2f}",
    "scatter": lambda: f"{stdev(simulated(0.9, 8, False)) / case(XL, 1, 0.9, 8).formula:.0%}",
    "new tokens": lambda: str(report().new_tokens),
    "price": lambda: str(PRICE),
    "rate": lambda: f"{RATE:.0%}",
    "loss": lambda: f"{LOSS:.0%}",
    "at the price": lambda: str(most_at(0.6)),
    "fourth": lambda: f"{0.6**4:.2f}",
    "ceiling": lambda: f"{sum(0.6**n for n in range(1 + most_at(0.6))):.2f}",
    "rule alone": lambda: f"{fmean(simulated(0.6, 8, True)):.2f}",
    "rule measured": lambda: f"{case(XL, 1, 0.6, 8, True).tokens_a_step:.2f}",
    "all eight": lambda: f"{case(XL, 1, 0.6, 8).tokens_a_step:.2f}",
    "draft at one": lambda: f"{(step_cost(XL, 1, 8) - 1) / 8:.3f}",
    "draft at most": lambda: f"{(step_cost(GPT2, rows_measured()[-1], 2) - 1) / 2:.2f}",
    "least": lambda: str(GAIN),
    "texts best": lambda: factor(written("repeating", 0.0)[0].gain),
    "texts lowest": lambda: factor(min(one.gain for one in texts_report().cases)),
    "texts turns": lambda: str(len(texts_report().cases[0].plain.samples)),
    "texts same": lambda: f"{min(one.same_share for one in texts_report().cases):.0%}",
}
