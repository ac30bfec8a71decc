"""Exercise 7.3: a token for each place of a step, each with its own noise and its own counts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from nanocourse.exercises import IMPORTS, Call, Case, Check, Function, Places, Spec, call
from nanoinfer.engine.sampling import gumbel
from nanoinfer.engine.state import BatchState
from nanoinfer.model.batch import Batch
from nanoinfer.speculate import verify
from nanoinfer.speculate.drafts import NONE


def choose(logits: Tensor, run: Tensor, offset: Tensor, rows: dict[str, Tensor], drafts: Tensor) -> Tensor:
    """The token of each place of a step, (K,) int64.

    logits: (K, V) float32, of K places of R rows, in any order. run: (K,) int64, which row each place belongs to.
    offset: (K,) int64, which of the row's places in this step it is, from 0 on; the model has read the row's first
    `offset` drafts there. drafts: (R, k) int64, -1 on the right of rows that have fewer; k may be 0. No place stands
    after more drafts than its row has, but a row need not have all of its places here.
    rows: of the rows as they are ahead of the step, "seed" and "step", (R,) int64, where step is how many new tokens
    the row has; "temperature" and "penalty", (R,) float32; "counts", (R, V) int64, how often each id is among the row's
    new tokens.
    A place's token is what plain decoding would choose there if the drafts ahead of it were the row's new tokens.
    Subtract from each logit the row's penalty times the number of times that the id is among the new tokens then.
    Divide what is left by the temperature, and add the noise of the row's seed, the number of new tokens then, and the
    id: gumbel(seed, step, V) gives it for tensors (K,), as (K, V). The token is the id of the highest sum. Where the
    temperature is 0 nothing is divided and no noise is added. All in float32; the tensors that are handed over stay as
    they are.
    """
    counts = rows["counts"][run]  # (K, V), a copy
    ahead = torch.arange(drafts.shape[1], device=offset.device) < offset[:, None]  # (K, k)
    counts = counts.scatter_add(1, drafts[run].clamp(min=0), ahead.long())
    scores = logits - rows["penalty"][run, None] * counts
    warm = rows["temperature"][run, None]
    noise = gumbel(rows["seed"][run], rows["step"][run] + offset, logits.shape[1])
    return torch.where(warm > 0, scores / torch.where(warm > 0, warm, 1.0) + noise, scores).argmax(-1)


def swap(mine: Function) -> Places:
    """It chooses for rows of a step with drafts that do not filter; none of these is penalised."""
    lay_out, original = verify.lay_out, verify.choose_each
    drafts: list[Tensor] = []  # of the step

    def note_drafts(state: BatchState, own: Tensor, *rest: Any) -> Batch:
        drafts[:] = [own]
        return lay_out(state, own, *rest)

    def choose_each(logits: Tensor, rows: BatchState, sampler: Any) -> Tensor:
        tokens, own = original(logits, rows, sampler), drafts[0]
        given = {
            "seed": rows.seed, "step": rows.step, "temperature": rows.temperature,
            "counts": torch.zeros(len(own), logits.shape[1], dtype=torch.int64), "penalty": torch.zeros(len(own)),
        }  # fmt: skip
        run, offset = functional.pad(own != NONE, (1, 0), value=True).nonzero().T
        plain = ((rows.temperature == 0) | ((rows.top_k == 0) & (rows.top_p == 1)))[run]
        chosen = mine(logits.view(*tokens.shape, -1)[run, offset].float(), run, offset, given, own)
        tokens[run, offset] = torch.where(plain, chosen, tokens[run, offset])
        return tokens

    step = "nanoinfer.speculate.verify"
    return {f"{step}:lay_out": note_drafts, f"{step}:choose_each": choose_each}


NAMES = ("seed", "step", "temperature", "penalty", "counts")


def _example() -> Call:
    rows = {
        "seed": torch.tensor([1, 1]), "step": torch.tensor([4, 9]), "temperature": torch.tensor([0.0, 1.0]),
        "penalty": torch.tensor([2.0, 0.0]), "counts": torch.tensor([[0, 0, 1], [3, 3, 3]]),
    }  # fmt: skip
    logits = torch.tensor([[1.0, 3.0, 4.0]] * 3 + [[0.0, 0.0, 0.0]])
    run, offset = torch.tensor([0, 0, 0, 1]), torch.tensor([0, 1, 2, 1])
    return call(logits, run, offset, rows, torch.tensor([[1, 1], [0, -1]]))


EXERCISE = Spec(
    reference=choose,
    lines=8,
    example=_example,
    swap=swap,
    section="Noise by position",
    axes=("place",),
    typed=True,
    imports=(*IMPORTS, "", "from nanoinfer.engine.sampling import gumbel"),
    refuse=("nanoinfer.speculate.verify:choose_each", "nanoinfer.engine.sampling:noisy"),
)


def _step(
    case: Case, warm: list[bool], lengths: list[int], vocab: int, *, penalty: float = 0.0, shuffle: bool = False,
    scale: float = 1.0, low: float = 0.0,
) -> list[Any]:  # fmt: skip
    """Rows with so many drafts each, all of whose places are in the step, in order or not."""
    count = len(lengths)
    drafts = case.ints("drafts", 0, vocab - 1, count, max(lengths))
    for row, length in enumerate(lengths):
        drafts[row, length:] = -1
    places = [(row, at) for row, length in enumerate(lengths) for at in range(length + 1)]
    if shuffle:
        order = case.permutation("order", len(places)).tolist()
        places = [places[at] for at in order][: max(1, len(places) - 2)]
    run, offset = torch.tensor(places).T
    own = {
        "seed": case.ints("seed", 0, 2**40, count), "step": case.ints("step", 0, 9, count),
        "temperature": torch.tensor([case.choice(f"warm {row}", (0.5, 0.75, 2.0)) if on else 0.0
                                     for row, on in enumerate(warm)]),
        "penalty": torch.tensor([penalty * case.choice(f"penalty {row}", (0.5, 0.75, 1.0)) for row in range(count)]),
        "counts": case.ints("counts", 0, 2, count, vocab),
    }  # fmt: skip
    names = case.turn((NAMES, NAMES, NAMES[::-1])) if shuffle else NAMES
    rows = {name: own[name] for name in names}
    return [case.floats("logits", len(places), vocab, scale=scale) + low, run, offset, rows, drafts]


def its_own_noise(case: Case) -> Call:
    """Each place has the noise of its row's seed and of the number of new tokens that the row has there."""
    rows, k = case.size("rows", 1, 3), case.size("drafts", 1, 4)
    return call(*_step(case, [True] * rows, [k] * rows, case.size("vocabulary", 9, 40), scale=0.1))


def its_own_counts(case: Case) -> Call:
    """Counted are the row's new tokens and the drafts ahead of the place, each as often as it stands there."""
    k = case.size("drafts", 2, 5)
    return call(*_step(case, [False] * 2, [k, k], case.size("vocabulary", 3, 4), penalty=2.0, scale=0.5))


def warm_and_greedy(case: Case) -> Call:
    """Penalties come first, temperature next and noise last; a row of temperature 0 has neither of the last two."""
    return call(*_step(case, [True, False, True], [1] * 3, 6, penalty=2.0, scale=2.0))


def in_any_order(case: Case) -> Call:
    """Rows have their own numbers of drafts, and places stand in any order; not all need be there."""
    lengths = [case.choice(f"drafts {row}", range(5)) for row in range(case.size("rows", 2, 4))]
    lengths[0] = 3
    return call(*_step(case, [False] * len(lengths), lengths, 5, penalty=1.0, shuffle=True))


KINDS = ("one", "no draft", "far", "low", "ties", "zeros", "equal rows", "late", "long", "large ids", "many")


def any_step(case: Case) -> Call:
    """One place, no draft, many rows, long runs, equal rows, late steps, many ids; logits far from 0 and all equal."""
    kind = case.turn(KINDS)
    if kind == "one":
        return call(*_step(case, [True], [0], case.choice("ids", (1, 9))))
    if kind == "no draft":
        return call(*_step(case, [True, False, True], [0, 0, 0], 7, penalty=1.0))
    if kind in ("ties", "zeros"):
        logits, run, offset, rows, drafts = _step(case, [False] * 2, [2, 1], 5, penalty=float(kind == "ties"))
        rows["penalty"] = rows["penalty"].sign()
        return call(torch.full_like(logits, 3.0) if kind == "ties" else logits * 0, run, offset, rows, drafts)
    if kind == "large ids":
        logits, run, offset, rows, drafts = _step(case, [True, False], [2, 1], 70_000, penalty=1.0)
        return call(logits + 30.0 * (torch.arange(70_000) > 65_990), run, offset, rows, drafts + 0)
    if kind == "equal rows":
        logits, run, offset, rows, drafts = _step(case, [True] * 3, [2] * 3, 9, penalty=1.0)
        rows = {name: values[:1].repeat(3, *[1] * (values.dim() - 1)) for name, values in rows.items()}
        return call(logits[:3].repeat(3, 1), run, offset, rows, drafts[:1].repeat(3, 1))
    lengths = case.ints("lengths", 0, 4, 70 if kind == "many" else 4).tolist()
    lengths[0], lengths[-1] = 0, 0
    lengths[1] = 70 if kind == "long" else 4
    warm = [case.choice(f"on {row}", (True, False)) for row in range(len(lengths))]
    low = {"far": 300.0, "low": -(2.0**31)}.get(kind, 0.0)
    made = _step(case, warm, lengths, 8, penalty=1.0, shuffle=kind != "late", low=low)
    if kind == "late":
        made[3]["step"] = made[3]["step"] + 2**33
    return call(*made)


CHECKS = (
    Check(any_step, len(KINDS), wide=True), Check(its_own_noise, 4), Check(its_own_counts, 4),
    Check(warm_and_greedy, 4), Check(in_any_order, 4),
)  # fmt: skip
