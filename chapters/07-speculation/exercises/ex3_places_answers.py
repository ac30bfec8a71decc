"""Exercise 7.3: correct variants, mutants that are none, an edition."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nanocourse.exercises.exercise import edition
from nanoinfer.engine.sampling import gumbel

Rows = dict[str, Tensor]


def place_by_place(logits: Tensor, run: Tensor, offset: Tensor, rows: Rows, drafts: Tensor) -> Tensor:
    """A loop over places, each like a plain step of one row."""
    chosen = []
    for place, (row, at) in enumerate(zip(run.tolist(), offset.tolist(), strict=True)):
        scores = logits[place].clone()
        counts = rows["counts"][row].clone()
        for draft in drafts[row, :at].tolist():
            counts[draft] += 1
        scores -= rows["penalty"][row] * counts
        if float(rows["temperature"][row]) > 0:
            noise = gumbel(rows["seed"][row : row + 1], rows["step"][row : row + 1] + at, len(scores))
            scores = scores / rows["temperature"][row] + noise[0]
        chosen.append(int(scores.argmax()))
    return torch.tensor(chosen)


def by_one_hot(logits: Tensor, run: Tensor, offset: Tensor, rows: Rows, drafts: Tensor) -> Tensor:
    """Running totals of one-hot drafts, looked up by row and offset."""
    V = logits.size(1)
    hot = torch.cat([rows["counts"][:, None], torch.nn.functional.one_hot(drafts.clamp(min=0), V)], 1)
    totals = hot.cumsum(1)[run, offset]
    temperature = rows["temperature"].index_select(0, run).unsqueeze(1)
    scores = logits - totals.float() * rows["penalty"].index_select(0, run).unsqueeze(1)
    warm = scores / temperature.masked_fill(temperature == 0, 1.0)
    warm = warm + gumbel(rows["seed"].index_select(0, run), offset + rows["step"].index_select(0, run), V)
    return torch.argmax(torch.where(temperature == 0, scores, warm), dim=-1)


_GREEDY = "a greedy row takes the other branch, whatever it is divided by"
EQUIVALENT = {
    "return torch.where(warm > 0, scores / torch.where(warm > -1, warm, 1.0) + noise, scores).argmax(-1)": _GREEDY,
    "return torch.where(warm > 0, scores / torch.where(warm > 0, warm, 0.5) + noise, scores).argmax(-1)": _GREEDY,
    "return torch.where(warm > 0, scores / torch.where(warm > 0, warm, 2.0) + noise, scores).argmax(-1)": _GREEDY,
    "return torch.where(warm > 0, scores / torch.where(warm >= 0, warm, 1.0) + noise, scores).argmax(-1)": _GREEDY,
}


def _by_place(logits: Tensor, run: Tensor, offset: Tensor, rows: Rows, drafts: Tensor) -> tuple[Any, ...]:
    places = [(row, drafts[row, :at].tolist()) for row, at in zip(run.tolist(), offset.tolist(), strict=True)]
    own = [
        {
            "seed": int(rows["seed"][row]), "temperature": float(rows["temperature"][row]),
            "penalty": float(rows["penalty"][row]), "new": int(rows["step"][row]), "counts": rows["counts"][row],
        }
        for row in range(len(drafts))
    ]  # fmt: skip
    return logits, places, own


def _by_row(logits: Tensor, places: list[tuple[int, list[int]]], rows: list[dict[str, Any]]) -> tuple[Any, ...]:
    longest = [max((ahead for row, ahead in places if row == at), key=len, default=[]) for at in range(len(rows))]
    k = max(map(len, longest))
    drafts = torch.tensor([[*own, *[-1] * (k - len(own))] for own in longest], dtype=torch.int64).view(len(rows), k)
    state = {
        "seed": torch.tensor([row["seed"] for row in rows]), "step": torch.tensor([row["new"] for row in rows]),
        "temperature": torch.tensor([row["temperature"] for row in rows]),
        "penalty": torch.tensor([row["penalty"] for row in rows]),
        "counts": torch.stack([row["counts"] for row in rows]),
    }  # fmt: skip
    run, offset = torch.tensor([row for row, _ in places]), torch.tensor([len(ahead) for _, ahead in places])
    return logits, run, offset, state, drafts


@edition(
    "by-place",
    "each place comes with the drafts ahead of it, rows are dicts, and the answer is a list",
    args=_by_place,
    back=_by_row,
    result=lambda result, *plain: result.tolist(),
    axes=("place",),
)
def next_ids(logits: Tensor, places: list[tuple[int, list[int]]], rows: list[dict[str, Any]]) -> list[int]:
    """The token of each place of a step.

    places: of each place its row, and the drafts ahead of it, which the model has read there; in any order. logits:
    (K, V) float32, a line for each of these K places.
    rows: of each row as it is ahead of the step its "seed", its "temperature" and its "penalty"; "new", how many new
    tokens it has; and "counts", (V,) int64, how often each id is among them.
    A place's token is what plain decoding would choose there if the drafts ahead of it were the row's new tokens.
    Subtract from each logit the row's penalty times the number of times that the id is among the new tokens then.
    Divide what is left by the temperature, and add the noise of the row's seed, the number of new tokens then, and the
    id: gumbel(seed, step, V) gives it for tensors (K,), as (K, V). The token is the id of the highest sum. Where the
    temperature is 0 nothing is divided and no noise is added. All in float32; the tensors that are handed over stay as
    they are.
    """
    told = []
    for mine, (row, ahead) in zip(logits, places, strict=True):
        own = rows[row]
        counts = own["counts"] + torch.bincount(torch.tensor(ahead, dtype=torch.int64), minlength=len(mine))
        scores = mine - torch.tensor(own["penalty"]) * counts
        if own["temperature"] > 0:
            noise = gumbel(torch.tensor([own["seed"]]), torch.tensor([own["new"] + len(ahead)]), len(mine))[0]
            scores = scores / torch.tensor(own["temperature"]) + noise
        told.append(int(scores.argmax()))
    return told
