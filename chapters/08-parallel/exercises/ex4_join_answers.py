"""Exercise 8.4: wrong answers and where they come from, correct variants, mutants that are none, an edition."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor

from nanocourse.exercises.exercise import Edition, Function, Right, Wrong
from nanocourse.exercises.scene import Formed
from nanoinfer.engine.sampling import gumbel

Program = Generator[Any, Any, Any]
Rows = dict[str, Tensor]

NOISE = 'noise = gumbel(rows["seed"], rows["step"], first + logits.shape[1])[:, first:]'
SCORES = 'scores[warm] = logits[warm] / rows["temperature"][warm, None] + noise[warm]'
MASK = "scores = scores.masked_fill(ids >= vocab, -torch.inf)"
BEST = "best = scores.argmax(1)"
PAIRS = "pairs = torch.stack([scores.amax(1).double(), ids[best].double()], 1)"
EVERY = "every = torch.stack((yield pairs))"
WINNER = "return every[..., 1].masked_fill(every[..., 0] < top, torch.inf).amin(0).long()"
WRONG = (
    Wrong.patch(
        "padding-may-win", "Padding has weights of zero, and says nothing.", MASK, "pass",
        "mirage-project/mirage#751: a row of zeros wins where all true logits are below 0",
    ),
    Wrong.patch(
        "padding-is-zero", "A score of 0 is no score.", MASK, "scores = scores.masked_fill(ids >= vocab, 0.0)",
        "mirage-project/mirage#751, as above: GPT-2's logits lie between -34 and -103",
    ),
    Wrong.patch(
        "padding-is-low", "No logit is as low as -10,000.", MASK, "scores = scores.masked_fill(ids >= vocab, -1e4)",
        "mirage-project/mirage#755: padding rows filled with -10,000, which some logits are below",
        unnamed="padding-is-zero",
    ),
    Wrong.patch(
        "padding-by-product", "Padding is taken out by a factor of 0.", MASK, "scores = scores * (ids < vocab)",
        "tenstorrent/tt-metal#47021: padding weights are no mask; and NaN times 0 is NaN",
    ),
    Wrong.patch(
        "masked-too-late", "A best id that does not exist loses.", MASK + "\n    " + BEST + "\n    " + PAIRS,
        BEST + "\n    " + PAIRS + "\n    pairs[ids[best] >= vocab, 0] = -torch.inf",
        "from the stub alone, by the author: the rank's second best would have been the token",
    ),
    Wrong.patch(
        "not-so-cold", "A temperature is at least 0.01.", SCORES,
        'scores[warm] = logits[warm] / rows["temperature"][warm, None].clamp(min=0.01) + noise[warm]',
        "from the stub alone, by the author: against division by zero", unnamed="noise-is-warmed",
    ),
    Wrong.patch(
        "warm-together", "Where one row is sampled, all are.", SCORES,
        'if warm.any():\n        scores = logits / rows["temperature"].clamp(min=1e-9)[:, None] + noise',
        "from the stub alone, by the author: right for rows that are warm, and nearly so for the others",
        unnamed="noise-on-greedy",
    ),
    Wrong.patch(
        "everybody-has-some", "Each rank has ids that exist.", MASK,
        "scores = scores.masked_fill((ids >= vocab) & (first < vocab), -torch.inf)",
        "vllm-project/vllm#578, of the same family: with 16 ranks the last ones have padding alone",
        unnamed="padding-may-win",
    ),
    Wrong.patch(
        "one-id-less", "Ids up to the vocabulary exist.", MASK, "scores = scores.masked_fill(ids > vocab, -torch.inf)",
        "an author's own slip: the first id that does not exist",
    ),
    Wrong.patch(
        "place-for-id", "The token is the place where the best score stands.", PAIRS,
        PAIRS.replace("ids[best]", "best"), "an author's own slip: right on the rank that has the first ids",
    ),
    Wrong.patch(
        "ids-by-rank", "Rank r has the r-th run of ids.", "torch.arange(first, first + logits.shape[1])",
        "torch.arange(rank * logits.shape[1], (rank + 1) * logits.shape[1])",
        "an author's own slip: right where widths are equal, and runs in the order of ranks",
    ),
    Wrong.patch(
        "noise-by-place", "The n-th column has the n-th noise.", NOISE,
        'noise = gumbel(rows["seed"], rows["step"], logits.shape[1])',
        "an author's own slip: ids of different ranks share their noise, and no token is the single device's",
    ),
    Wrong.patch(
        "seed-by-rank", "Each rank draws for itself.", NOISE, NOISE.replace('rows["seed"]', 'rows["seed"] + rank'),
        "NVIDIA/FasterTransformer#390: random seeds that differed by process",
    ),
    Wrong.patch(
        "noise-of-the-best", "Noise comes when the candidates are known.", SCORES,
        'scores[warm] = logits[warm] / rows["temperature"][warm, None]',
        "an author's own slip: the highest logit of a rank, and not the highest score",
    ),
    Wrong.patch(
        "noise-on-greedy", "Every row has its noise.", SCORES,
        SCORES + "\n    scores[~warm] = logits[~warm] + noise[~warm]",
        "chapter 1: greedy rows have none",
    ),
    Wrong.patch(
        "noise-is-warmed", "Temperature is for what is drawn.", SCORES,
        'scores[warm] = (logits[warm] + noise[warm]) / rows["temperature"][warm, None]',
        "chapter 1: the logit is divided, and not its noise",
    ),
    Wrong.patch(
        "one-temperature", "A batch has one temperature.", SCORES,
        'scores[warm] = logits[warm] / rows["temperature"].max() + noise[warm]', "chapter 1: parameters belong to rows",
    ),
    Wrong.patch(
        "each-for-itself", "A rank's best is its token.", WINNER, "return ids[best]",
        "openai/gpt-oss#270, of the same family: each rank drew for itself, and fed another token to the next step",
    ),
    Wrong.patch(
        "first-rank-of-equals", "Among equals the first rank wins.", WINNER,
        "return every[..., 1].gather(0, every[..., 0].argmax(0, keepdim=True))[0].long()",
        "an author's own slip: right as long as runs stand in the order of ranks",
    ),
    Wrong.patch(
        "highest-of-equals", "The highest pair of score and id wins.", WINNER,
        "return every[..., 1].masked_fill(every[..., 0] < top, -torch.inf).amax(0).long()",
        "an author's own slip: max() over tuples, which looks at ids last",
    ),
    Wrong.patch(
        "probabilities", "What is compared are probabilities.", BEST,
        "scores = scores.softmax(1)\n    best = scores.argmax(1)",
        "an author's own slip: a softmax over some ids says nothing about the others",
    ),
    Wrong.patch(
        "in-16-bits", "What is sent is a logit and an id.", EVERY,
        "every = torch.stack((yield pairs.bfloat16())).double()",
        "an author's own slip: bfloat16 counts to 256, and then by twos",
    ),
    Wrong.patch(
        "rounded-scores", "Scores are compared to four places.", EVERY,
        "every = torch.stack((yield pairs.mul(1e4).round().div(1e4)))",
        "an author's own slip: what ranks compare must be what they have computed",
        unnamed="in-16-bits",
    ),
    Wrong.patch(
        "all-logits", "All logits come together, and then it is as ever.", EVERY,
        "every = torch.stack((yield scores))\n    every = torch.stack((yield pairs))",
        "what filters and logprobs cost; greedy and unfiltered rows need not pay it",
    ),
    Wrong.patch(
        "one-number", "Score and id fit into one number.", EVERY,
        "every = torch.stack((yield (pairs[:, 0] * 2.0**20).floor() * 2.0**20 + (2.0**20 - 1 - pairs[:, 1])))\n"
        "    every = torch.stack([(every / 2.0**20).floor(), 2.0**20 - 1 - every % 2.0**20], -1)",
        "an author's own slip: float64 has 53 bits for both, and a large score needs more",
    ),
)  # fmt: skip


def scores_then_ids(rank: int, logits: Tensor, first: int, vocab: int, rows: Rows) -> Program:
    """Two gathers: the scores; then, of those who hold the highest, their ids."""
    exist = max(0, min(logits.shape[1], vocab - first))
    B = len(logits)
    mine = torch.full((B,), -torch.inf)
    id = torch.full((B,), 2**62)
    for row in range(B):
        if exist:
            score = logits[row, :exist].clone()
            if float(rows["temperature"][row]) > 0:
                score = score / rows["temperature"][row]
                score = (
                    score + gumbel(rows["seed"][row : row + 1], rows["step"][row : row + 1], vocab)[0, first:][:exist]
                )
            mine[row], at = score.max(0)
            id[row] = first + (score == score.max()).nonzero()[0, 0]
            del at
    every = yield mine
    highest = torch.stack(every).max(0).values
    id[mine != highest] = 2**62
    every = yield id
    return torch.stack(every).min(0).values


def by_sorting(rank: int, logits: Tensor, first: int, vocab: int, rows: Rows) -> Program:
    """Pairs are sorted in Python, by score down and id up."""
    V = first + logits.size(1)
    own = torch.full((logits.size(0), V), -torch.inf)
    own[:, first:] = logits
    hot = rows["temperature"] > 0
    own[hot] = own[hot] / rows["temperature"][hot, None] + gumbel(rows["seed"][hot], rows["step"][hot], V)
    own[:, vocab:] = -torch.inf
    own[:, :first] = -torch.inf
    best = [max(range(first, V), key=lambda at, row=row: (row[at], -at)) for row in own.tolist()]
    given = torch.tensor([[float(own[row, at]), at] for row, at in enumerate(best)], dtype=torch.float64)
    tables = yield given
    chosen = []
    for row in range(len(best)):
        chosen.append(sorted((-table[row, 0].item(), int(table[row, 1])) for table in tables)[0][1])
    return torch.tensor(chosen)


def negated_ids(rank: int, logits: Tensor, first: int, vocab: int, rows: Rows) -> Program:
    """One tensor of float32 holds scores and ids; the join goes rank by rank."""
    width = logits.shape[-1]
    noise = gumbel(rows["seed"], rows["step"], max(vocab, first + width))[:, first : first + width]
    warm = rows["temperature"].unsqueeze(1)
    scores = logits.clone()
    scores = torch.where(warm > 0, scores.div(warm.clamp(min=1e-30)).add(noise), scores)
    exists = (torch.arange(width) + first < vocab).expand_as(scores)
    scores = torch.where(exists, scores, torch.tensor(float("-inf")))
    best, at = scores.max(1)
    every = yield torch.stack((best, (at + first).float()))
    score, id = every[0].clone()
    for other in every[1:]:
        wins = (other[0] > score) | ((other[0] == score) & (other[1] < id))
        score, id = torch.where(wins, other, torch.stack((score, id)))
    return id.to(torch.int64)


RIGHT = (Right(scores_then_ids), Right(by_sorting), Right(negated_ids))
EQUIVALENT: dict[str, str] = {}


def choose_by_columns(number: int, columns: Tensor, ids: list[int], vocab: int, rows: list[Rows]) -> Program:
    """A rank's program for a head that is cut by vocabulary: it returns the next tokens, (B,) int64, on every rank.

    number: the rank's, from 1. columns: (width, B) float32: logits of the ids from ids[0] to ids[1] - 1, each of B
    rows; at least one row and one id. Each rank has its own width, and a run of ids of its own; runs do not overlap,
    and stand in any order: rank 1 need not have the lowest ids. Ids from 0 to vocab - 1 exist, each on one rank. Ids
    from `vocab` on do not: their logits are anything at all, and they are never chosen; a rank may have no others. Of
    ids that exist logits are finite, or -inf where an id is forbidden; each row has a finite one.
    rows: of each row a dict with "temperature", float32, "seed" and "step", int64, each (1,); the same on all ranks.
    A row's token is the id that exists with the highest score, among equal ones the lowest id. Where the temperature is
    0 the score is the logit. Elsewhere it is the logit over the temperature, and on it the noise of the row's seed,
    its step and the id: gumbel(seed, step, V) gives it for tensors (B,) and ids 0 to V - 1, (B, V). All in float32.
    A rank is a generator. each = yield tensor is an all-gather: it takes a tensor from every rank, all of the same
    shape and dtype, and gives each of them the list of all, in the order of ranks. Of each row a rank may give away two
    numbers in all, in one tensor or two. What a rank is given stays as it is, also what is gathered.
    """
    first, end = ids
    pairs = []
    for at, row in enumerate(rows):
        scores = columns[:, at]
        if float(row["temperature"]) > 0:
            scores = scores / row["temperature"] + gumbel(row["seed"], row["step"], end)[0, first:]
        scores = scores.masked_fill(torch.arange(first, end) >= vocab, -torch.inf)
        best = scores.argmax()
        pairs.append(torch.stack([scores[best].double(), first + best.double()]))
    every = torch.stack((yield torch.stack(pairs)))
    top = every[..., 0].amax(0)
    return every[..., 1].masked_fill(every[..., 0] < top, torch.inf).amin(0).long()


def _columns(rank: int, logits: Tensor, first: int, vocab: int, rows: Rows) -> tuple[Any, ...]:
    each = [{name: own[at : at + 1] for name, own in rows.items()} for at in range(len(logits))]
    return rank + 1, logits.mT, [first, first + logits.shape[1]], vocab, each


def _played(answer: Function) -> Function:
    return Formed(answer, _columns, lambda program, *args: program)


EDITIONS = (
    Edition(
        "by-columns", "logits stand in columns, rows come one by one, and ranks are counted from 1", choose_by_columns,
        played=_played,
    ),
)  # fmt: skip
