"""Exercise 7.3: wrong answers and where they come from, correct variants, mutants that are none, an edition."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nanocourse.exercises.exercise import Edition, Right, Wrong
from nanoinfer.engine.sampling import gumbel

Rows = dict[str, Tensor]

STEP = 'rows["step"][run] + offset'
AHEAD = "torch.arange(drafts.shape[1], device=offset.device) < offset[:, None]"
ADDED = "counts = counts.scatter_add(1, drafts[run].clamp(min=0), ahead.long())"
PENALTY = 'rows["penalty"][run, None] * counts'
SCORES = f"scores = logits - {PENALTY}"
WARM = "torch.where(warm > 0, scores / torch.where(warm > 0, warm, 1.0) + noise, scores)"
WRONG = (
    Wrong.patch(
        "noise-by-step", "A step has one noise for each row.", STEP, 'rows["step"][run]',
        "an author's own slip: right for the first place, and each later one uses the first one's noise again",
    ),
    Wrong.patch(
        "noise-by-place", "A place's number in the step tells its noise.", STEP, "offset",
        "an author's own slip: the second step draws what the first one drew",
    ),
    Wrong.patch(
        "noise-by-logits", "The n-th logits of a step have the n-th noise.", STEP,
        'rows["step"][run] + torch.arange(len(run))',
        "vllm-project/vllm-ascend#13608, of the same family: what a row drew depended on its neighbours' drafts",
    ),
    Wrong.patch(
        "one-step-late", "The noise is that of the token which is then the newest.", STEP, f"{STEP} + 1",
        "an author's own slip: the first new token of a row has number 0",
    ),
    Wrong.patch(
        "noise-behind-drafts", "All places of a step are chosen once all drafts are read.", STEP,
        'rows["step"][run] + drafts.shape[1]', "an author's own slip: of a run, the last place alone is right",
    ),
    Wrong.patch(
        "seed-by-place", "Each place has a seed of its own.", f'gumbel(rows["seed"][run], {STEP},',
        'gumbel(rows["seed"][run] + offset, rows["step"][run],',
        "NVIDIA/TensorRT-LLM#17599 keeps offsets by decoding iteration: fine there, where no tokens must be equal",
    ),
    Wrong.patch(
        "one-seed", "A step has one seed.", 'gumbel(rows["seed"][run],', 'gumbel(rows["seed"][:1].expand(len(run)),',
        "vllm-project/vllm#6038, NVIDIA/TensorRT-LLM#17599: a request's own seed was not respected with drafts",
    ),
    Wrong.patch(
        "rows-of-equal-width", "Each row has k + 1 places, one row after the other.",
        'counts = rows["counts"][run]',
        'run = (torch.arange(len(run)) // (drafts.shape[1] + 1)).clamp(max=len(drafts) - 1)\n'
        '    counts = rows["counts"][run]',
        "vllm-project/vllm#29699, its review: per-row tables read by the numbers of places",
    ),
    Wrong.patch(
        "drafts-uncounted", "Counted is what the row has chosen.", "ahead.long()", "ahead.long() * 0",
        "NVIDIA/TensorRT-LLM#17701: penalties that speculation dropped without a word",
    ),
    Wrong.patch(
        "own-draft-counted", "A place's own draft is there, so it counts.", AHEAD,
        AHEAD.replace("<", "<="),
        "an author's own slip: each right draft is penalised as if it had been chosen before itself",
    ),
    Wrong.patch(
        "all-drafts-counted", "What a row brings is counted at all of its places.", AHEAD,
        "(drafts >= 0)[run]", "osaurus-ai/vmlx-swift#357: every proposed token was recorded, and accepted ones twice",
    ),
    Wrong.patch(
        "counted-once", "A draft is among the new tokens, or it is not.", ADDED,
        "counts = counts + counts.mul(0).scatter_add(1, drafts[run].clamp(min=0), ahead.long()).clamp(max=1)",
        "an author's own slip: two equal drafts written to the same cell, where they should be added",
    ),
    Wrong.patch(
        "last-draft-alone", "One place goes on by one token, so one token more is counted.", AHEAD,
        "torch.arange(drafts.shape[1]) == offset[:, None] - 1",
        "sgl-project/sglang#33643: of several tokens of a step, one entered the penalties' state",
    ),
    Wrong.patch(
        "drafts-alone", "What is counted is what this step brings.", 'rows["counts"][run]', 'rows["counts"][run] * 0',
        "an author's own slip: counts begun anew at each step",
    ),
    Wrong.patch(
        "presence", "An id that has been chosen is penalised, however often.", PENALTY, f"{PENALTY}.clamp(max=1)",
        "the other penalty of the same interface: presence and frequency",
    ),
    Wrong.patch(
        "penalty-after-temperature", "Penalties are taken off what is left of the logits.", WARM,
        f"torch.where(warm > 0, logits / torch.where(warm > 0, warm, 1.0) - {PENALTY} + noise, scores)",
        "an author's own slip: at high temperatures the penalty is stronger then",
    ),
    Wrong.patch(
        "noise-for-all", "A greedy row has a temperature of 1.", WARM,
        "scores / torch.where(warm > 0, warm, 1.0) + noise", "an author's own slip: temperature 0 is no division by 1",
    ),
    Wrong.patch(
        "noise-cooled", "Temperature is for all of the sum.", WARM,
        "torch.where(warm > 0, (scores + noise) / torch.where(warm > 0, warm, 1.0), scores)",
        "an author's own slip: a division of the whole sum changes no argmax, so temperature would do nothing",
    ),
)  # fmt: skip


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


def by_bincount(logits: Tensor, run: Tensor, offset: Tensor, rows: Rows, drafts: Tensor) -> Tensor:
    """Counts of drafts by bincount; greedy places and warm ones are chosen apart."""
    V = logits.shape[-1]
    told = torch.zeros(len(run), dtype=torch.int64)
    lines = []
    for row, at in torch.stack([run, offset], 1).tolist():
        lines.append(rows["counts"][row] + torch.bincount(drafts[row][:at], minlength=V))
    scores = logits - torch.stack(lines) * rows["penalty"][run][:, None]
    greedy = rows["temperature"][run] == 0
    told[greedy] = scores[greedy].argmax(1)
    some = run[~greedy]
    warm = scores[~greedy] / rows["temperature"][some][:, None]
    told[~greedy] = (warm + gumbel(rows["seed"][some], (rows["step"][run] + offset)[~greedy], V)).argmax(1)
    return told


RIGHT = (Right(place_by_place), Right(by_one_hot), Right(by_bincount))
_GREEDY = "a greedy row takes the other branch, whatever it is divided by"
EQUIVALENT = {
    "return torch.where(warm > 0, scores / torch.where(warm > -1, warm, 1.0) + noise, scores).argmax(-1)": _GREEDY,
    "return torch.where(warm > 0, scores / torch.where(warm > 0, warm, 0.5) + noise, scores).argmax(-1)": _GREEDY,
    "return torch.where(warm > 0, scores / torch.where(warm > 0, warm, 2.0) + noise, scores).argmax(-1)": _GREEDY,
    "return torch.where(warm > 0, scores / torch.where(warm >= 0, warm, 1.0) + noise, scores).argmax(-1)": _GREEDY,
}


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


EDITIONS = (
    Edition(
        "by-place", "each place comes with the drafts ahead of it, rows are dicts, and the answer is a list", next_ids,
        args=_by_place, back=_by_row, result=lambda result, *plain: result.tolist(), axes=("place",),
    ),
)  # fmt: skip
