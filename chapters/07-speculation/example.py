"""What the text of chapter 7 shows: each function prints one block of it, and NUMBERS gives its single numbers."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import mean
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor

from nanobook.examples import load, print_blocks
from nanobook.running import decode, encode, show, word
from nanoinfer import SamplingParams
from nanoinfer.cache.none import forward_logits
from nanoinfer.cli.guess import GuessedText
from nanoinfer.engine.sampling import gumbel
from nanoinfer.speculate.drafts import NONE

here = Path(__file__).parent
measured, run = load(here / "measured.py"), load(here / "running.py")
room, loses, adaptive, texts = measured.room, measured.loses, measured.adaptive, measured.texts
NEW = 48  # tokens of the running example
DRAWS = 200_000  # of each rule, over eight ids
LIMIT = 18.48  # of chi-square with seven degrees of freedom: above it once in a hundred runs of a right rule
STORY = "Once upon a time there was a king who had three sons. The eldest said to the king,"


@cache
def text(kind: str = "Text", heat: float = 0.0, **options: Any) -> Any:
    """The running example, run once: kind is a class of running.py."""
    return getattr(run, kind)(run.FOX, heat, **options).run(NEW)


def verified() -> None:
    """Two steps of the running example: in the first one all guesses are right, in the second the last one is not."""
    steps = [step for step in text(heat=run.HEAT).steps if len(step.drafts) > 2]
    best = max(steps, key=lambda step: len(step.kept))
    worse = next(step for step in steps if 1 < len(step.kept) < len(step.drafts))
    print(f"{'after':14}{'guessed':14}{'chosen':14}")
    for step in (best, worse):
        for at, token in enumerate(step.chosen):
            after = word(step.drafts[at - 1]) if at else "the newest"
            guess = word(step.drafts[at]) if at < len(step.drafts) else "-"
            note = "" if at < len(step.kept) else "   dropped"
            print(f"{after:14}{guess:14}{word(token):14}{note}".rstrip())
        print(f"{len(step.drafts)} guesses, {len(step.kept) - 1} right, {len(step.kept)} tokens\n")


def steps() -> None:
    """What small.py prints, cut short: a bar ahead of what each step gave."""
    small = load(here / "small.py")
    for heat, lines in ((0.0, 2), (0.8, 1)):
        plain, drafted = ([*map(decode, small.generate(encode("The fox"), 60, k, heat))] for k in (0, 4))
        same = "".join(plain) == "".join(drafted)
        print(f"{len(plain) - 1} steps, and {len(drafted) - 1} with guesses; the same text: {same}")
        print(*textwrap.wrap("|".join(drafted).replace("\n", "\\n"), 96)[:lines], sep="\n", end=" ...\n\n")


def heart() -> None:
    """Three rows with three, two and one drafts: what was chosen, and how far the drafts are that."""
    drafts = torch.tensor([[11, 12, 13], [21, 22, NONE], [31, NONE, NONE]])
    chosen = torch.tensor([[11, 19, 13, 14], [21, 22, 23, NONE], [39, 32, NONE, NONE]])
    equal = chosen[:, :3] == drafts
    run_of = equal.cumprod(1)
    print(f"{'drafts':16}{'chosen':20}{'equal':10}{'cumprod':10}{'sum':5}{'tokens'}")
    for row in range(3):
        accepted = int(run_of[row].sum())
        print(f"{_cells(drafts[row]):16}{_cells(chosen[row]):20}{_cells(equal[row].int()):10}{_cells(run_of[row]):10}"
              f"{accepted:<5}{_cells(chosen[row, : accepted + 1])}")  # fmt: skip


def _cells(row: Tensor) -> str:
    return " ".join("." if value == NONE else str(value) for value in row.tolist())


def same() -> None:
    """A sampled text, which is the same without drafts and with them, and one with drafts and the wrong noise."""
    plain, drafted = text("Plain", run.HEAT), text(heat=run.HEAT)
    assert str(plain) == str(drafted)
    show("without drafts or with", str(drafted))
    show("noise of the step", str(text("NoiseOfTheStep", run.HEAT)))
    print(f"{len(plain.steps)} steps without drafts, {len(drafted.steps)} with them")


def pair() -> tuple[Tensor, Tensor]:
    """(8,) each: what the model gives eight ids, and what the drafter does."""
    p = torch.tensor([0.30, 0.22, 0.16, 0.12, 0.08, 0.06, 0.04, 0.02], dtype=torch.float64)
    return p, torch.tensor([0.45, 0.10, 0.20, 0.05, 0.10, 0.02, 0.02, 0.06], dtype=torch.float64)


@cache
def rules() -> dict[str, tuple[Tensor, Tensor]]:
    """By rule: the token of each draw (DRAWS,), and whether the draft was accepted."""
    p, q = pair()
    random = torch.Generator().manual_seed(3)
    noise = gumbel(torch.full((DRAWS,), 7), torch.arange(DRAWS), 8).double()  # (DRAWS, 8): of the token's place
    own = torch.rand(DRAWS, 8, generator=random, dtype=torch.float64).log().neg().log().neg()  # of nobody else's
    chosen, drafts, strangers = (p.log() + noise).argmax(1), (q.log() + noise).argmax(1), (q.log() + own).argmax(1)
    coins = torch.rand(DRAWS, generator=random, dtype=torch.float64)
    taken = coins < (p / q)[strangers]
    left = (p - q).clamp(min=0)
    again = torch.multinomial(left / left.sum(), DRAWS, replacement=True, generator=random)
    careless = torch.multinomial(p, DRAWS, replacement=True, generator=random)
    return {
        "textbook rejection sampling": (torch.where(taken, strangers, again), taken),
        "  and once rejected, from p": (torch.where(taken, strangers, careless), taken),
        "equal, the same noise": (chosen, chosen == drafts),
        "equal, noise of its own": (chosen, chosen == strangers),
    }


def statistic(tokens: Tensor) -> float:
    """Chi-square of the tokens' counts against p: the squared distance from what is expected, over that."""
    expected = pair()[0] * len(tokens)
    return float(((torch.bincount(tokens, minlength=8) - expected) ** 2 / expected).sum())


def chi_square() -> None:
    """Each rule's tokens against the model's distribution, and against what plain sampling draws by the same noise."""
    plain = rules()["equal, the same noise"][0]
    for name, of in zip(("p, the model's", "q, the drafter's"), pair(), strict=True):
        print(f"{name:21}", *(f"{value:.2f}" for value in of.tolist()))
    print()
    print(f"{'the rule':30}{'accepted':>10}{'chi-square':>13}{'plain sampling drew the same token':>38}")
    for name, (tokens, accepted) in rules().items():
        alike = (tokens == plain).double().mean()
        print(f"{name:30}{accepted.double().mean():>10.3f}{statistic(tokens):>13,.1f}{alike:>38.1%}")


def textbook(p: Tensor, q: Tensor) -> float:
    """Probability that rejection sampling takes a draft from q: the sum of min(p, q)."""
    return float(torch.minimum(p, q).sum())


def shared(p: Tensor, q: Tensor) -> float:
    """Probability that p and q choose the same id by the same Gumbel noise.

    Id i is both's first choice where E_j >= E_i max(p_j / p_i, q_j / q_i) for all j, with exponential E: so with
    probability 1 / sum_j max(p_j / p_i, q_j / q_i).
    """
    ratio, order = (p / q).sort(descending=True)
    p, q = p[order], q[order]
    above = p.cumsum(0)  # those of a ratio at least as large, i itself included: there p decides
    below = q.sum() - q.cumsum(0)
    return float((p / (above + ratio * below)).sum())


@cache
def pairs(layers: int) -> list[tuple[Tensor, Tensor]]:
    """(V,) each: what the model and a shallow one give, after each token of a text, at the running temperature."""
    ids = text("Plain", run.HEAT).ids
    both = [forward_logits(model, torch.tensor([ids]))[0] for model in (run.model(), run.shallow(layers))]
    return list(zip(*((logits / run.HEAT).softmax(-1) for logits in both), strict=True))


def price() -> None:
    """How probable it is that a draft is accepted, on average over a text, by three rules."""
    print(f"{'the drafter':30}{'rejection':>10}{'same noise':>12}{'own noise':>11}{'same noise, at least':>23}")
    for layers in (11, 8):
        found = pairs(layers)
        rules = (textbook, shared, lambda p, q: float(p @ q), lambda p, q: textbook(p, q) / (2 - textbook(p, q)))
        best, alike, own, bound = (mean(rule(p, q) for p, q in found) for rule in rules)
        print(f"{f'the first {layers} of 12 layers':30}{best:>10.3f}{alike:>12.3f}{own:>11.3f}{bound:>23.3f}")
    point = [(p, q == q.max()) for p, q in pairs(10)]  # as a look-up: a token, and no distribution
    certain = mean(float(p[q].sum()) for p, q in point)
    print(f"{'the likeliest of ten layers':30}{certain:>10.3f}{certain:>12.3f}{certain:>11.3f}")


@cache
def drafted(who: str, prompt: str, heat: float) -> tuple[tuple[int, ...], int, int, int, float]:
    """The new tokens, how many drafts were brought and accepted, the steps after the prompt, and alpha."""
    seen: list[int] = []  # how many drafts were wrong, or came after a wrong one, up to each step
    drafter = {"lookup": "lookup", "itself": run.model()}.get(who) or run.shallow(int(who))
    with run.llm(speculate=drafter) as made:
        params = SamplingParams(temperature=heat, max_tokens=60, seed=run.SEED, ignore_eos=True)
        stats, core = made.stats, cast(Any, made.core)
        core.observer = SimpleNamespace(
            left=id, ended=id, stepped=lambda _: seen.append(stats.draft_tokens - stats.accepted_tokens)
        )
        (done,) = made.generate([prompt], params)
        alpha = stats.accepted_tokens / (stats.accepted_tokens + sum(a < b for a, b in pairwise(seen)))
        return done.token_ids, stats.draft_tokens, stats.accepted_tokens, stats.decode_steps, alpha


def drafter_table(lines: Sequence[tuple[str, str, str, float]]) -> None:
    """A line for each drafter: its name, who it is, the prompt and the temperature."""
    print(f"{'':38}{'drafts':>8}{'accepted':>10}{'alpha':>8}{'tokens a step':>15}")
    for name, who, prompt, heat in lines:
        tokens, brought, accepted, count, alpha = drafted(who, prompt, heat)
        print(f"{name:38}{brought:>8}{accepted / brought:>10.0%}{alpha:>8.2f}{(len(tokens) - 1) / count:>15.2f}")


def lookups() -> None:
    """Drafts from the row's own text."""
    drafter_table([
        ("greedy, of a text that repeats itself", "lookup", run.FOX, 0.0), ("sampled", "lookup", STORY, run.HEAT)
    ])  # fmt: skip


def models() -> None:
    """Drafts by the model itself, and by worse ones."""
    drafter_table([
        ("the model itself", "itself", STORY, run.HEAT), ("its first 11 of 12 layers", "11", STORY, run.HEAT),
        ("its first 8 of 12 layers", "8", STORY, run.HEAT),
    ])  # fmt: skip


def rejected() -> None:
    """The running example, and the same where rejected tokens stay in the cache."""
    show("overwritten", str(text()))
    show("left in the cache", str(text("RejectedKept")))


def without_gain(layers: int) -> float:
    """Speed over plain decoding with drafts by the first layers, if a step takes as long as its model has layers."""
    tokens, brought, _, count, _ = drafted(str(layers), STORY, run.HEAT)
    return (len(tokens) - 1) / (count + brought * layers / 12)


def stops() -> None:
    """A text that ends with a token from the middle of an accepted run."""
    stop = inside()
    print(f"the text ends with {word(stop)}")
    show("every token checked", str(text(stops=(stop,))))
    show("only a step's last", str(text("LastAlone", stops=(stop,))))


def inside() -> int:
    """The first token of the running example that stands in the middle of a run, and nowhere before."""
    seen: list[int] = []
    for step in text().steps:
        for token in step.kept[:-1]:
            if token not in seen and len(step.kept) > 2:
                return int(token)
            seen.append(token)
        seen.append(step.kept[-1])
    raise ValueError("no such token")


def guesses() -> None:
    """What `nanoinfer shell --draft me` shows: three turns of a person."""
    with run.llm(speculate="lookup", draft_tokens=16) as made, redirect_stderr(sys.stdout):
        params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
        begin = "The fox"
        print(f"> {begin}")
        told = GuessedText(made, encode(begin), params, begin)
        for guess in ("a very bad boy", "dog, and he was", "fond of the king"):
            print(f"> {guess}")
            told.turn(guess)


NUMBERS: dict[str, Callable[[], str]] = {
    **measured.NUMBERS,
    "heat": lambda: f"{run.HEAT}",
    "seed": lambda: f"{run.SEED}",
    "eleven layers": lambda: f"{without_gain(11):.2f}×",
    "eight layers": lambda: f"{without_gain(8):.2f}×",
}


if __name__ == "__main__":
    print_blocks(Path(__file__))
