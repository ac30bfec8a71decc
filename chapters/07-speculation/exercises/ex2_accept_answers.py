"""Exercise 7.2: wrong answers and where they come from, correct variants, mutants that are none, an edition."""

from __future__ import annotations

import torch
from torch import Tensor

from nanocourse.exercises.exercise import Edition, Right, Wrong

Answer = tuple[Tensor, Tensor]


def by_probability(scores: Tensor, noise: Tensor, drafts: Tensor) -> Answer:
    """A draft is kept if the model finds it probable enough."""
    tokens = (scores + noise).argmax(-1)
    probability = scores[:, :-1].softmax(-1).gather(-1, drafts.clamp(min=0)[..., None])[..., 0]
    kept = ((probability >= 0.2) & (drafts >= 0)).long().cumprod(1).sum(1)
    places = torch.arange(tokens.shape[1])
    told = torch.cat([drafts, tokens[:, -1:]], 1)
    told = torch.where(places == kept[:, None], tokens, told)
    return torch.where(places < kept[:, None] + 1, told, -1), kept + 1


def by_a_coin(scores: Tensor, noise: Tensor, drafts: Tensor) -> Answer:
    """A draft is kept with the probability that the model gives it, by a coin that the noise is made of."""
    tokens = (scores + noise).argmax(-1)
    ids = drafts.clamp(min=0)[..., None]
    probability = scores[:, :-1].softmax(-1).gather(-1, ids)[..., 0]
    coin = torch.exp(-torch.exp(-noise[:, :-1].gather(-1, ids)[..., 0]))
    kept = ((coin <= probability) & (drafts >= 0)).long().cumprod(1).sum(1)
    places = torch.arange(tokens.shape[1])
    told = torch.where(places < kept[:, None], torch.cat([drafts, tokens[:, -1:]], 1), tokens)
    return torch.where(places < kept[:, None] + 1, told, -1), kept + 1


TOKENS = "(scores + noise).argmax(-1)"
RUN = "(tokens[:, :-1] == drafts).long().cumprod(1).sum(1)"
RETURN = "return torch.where(places < counts[:, None], tokens, -1), counts"
WRONG = (
    Wrong.patch(
        "bonus-forgotten", "A row goes on by the drafts that were right.", f"{RUN} + 1", RUN,
        "an author's own slip: without a right draft a row stands still",
    ),
    Wrong.patch(
        "none-behind-all", "Where all drafts are right, nothing has to be put right, and no token comes after them.",
        f"{RUN} + 1", f"({RUN} + 1).minimum((drafts >= 0).sum(1).clamp(min=1))",
        "vllm-project/vllm#4212: bonus tokens were off, since a draft model's cache could not follow",
    ),
    Wrong.patch(
        "none-in-place", "The first wrong draft is dropped, and the next step chooses anew.", f"{RUN} + 1",
        f"{RUN} + ((tokens[:, :-1] == drafts) | (drafts < 0)).all(1)",
        "an author's own slip: the model has chosen already, and the text ahead of that place is right",
    ),
    Wrong.patch(
        "token-thrown-away", "A wrong draft is replaced by what the model chose after it.", RETURN,
        "tokens = tokens.scatter(1, counts[:, None] - 1, tokens.gather(1, counts[:, None].clamp("
        "max=tokens.shape[1] - 1)))\n    " + RETURN,
        "openvinotoolkit/openvino.genai#4190: the right token was drawn, thrown away, and its successor kept",
    ),
    Wrong.patch(
        "each-for-itself", "All drafts that are right are kept.", ".cumprod(1)", "",
        "an author's own slip: after a wrong draft the model has read another text",
    ),
    Wrong.patch(
        "first-one-unseen", "The first draft follows the newest token, so it needs no check.",
        "(tokens[:, :-1] == drafts)",
        "((tokens[:, :-1] == drafts) | ((torch.arange(drafts.shape[1]) == 0) & (drafts >= 0)))",
        "ohdearquant/lattice#243: the first draft was never held against what the model chose",
    ),
    Wrong.patch(
        "one-place-late", "A draft is held against what the model chose after reading it.", "tokens[:, :-1] == drafts",
        "tokens[:, 1:] == drafts", "an author's own slip: logits after a token are about the next one",
    ),
    Wrong.patch(
        "wrong-one-stays", "The run ends with the first draft that is wrong.", RETURN,
        "told = torch.cat([torch.where(drafts < 0, tokens[:, :-1], drafts), tokens[:, -1:]], 1)\n"
        "    return torch.where(places < counts[:, None], told, -1), counts",
        "an author's own slip: drafts handed on in place of tokens, which agree but for the last one",
    ),
    Wrong.patch(
        "all-or-nothing", "A guess is right if all of it is.", RUN,
        "((tokens[:, :-1] == drafts) | (drafts < 0)).all(1) * (drafts >= 0).sum(1)",
        "a plausible slip: one verdict for the whole guess",
    ),
    Wrong.patch(
        "shortest-for-all", "All rows go on by as many tokens as the one with the shortest run.",
        f"counts = {RUN} + 1", f"counts = ({RUN} + 1).amin().expand(len(tokens))",
        "batched generation whose cache is a rectangle, so that all rows must stay equally long",
    ),
    Wrong.patch(
        "no-draft-is-right", "Where there is no draft nothing was wrong.", "(tokens[:, :-1] == drafts)",
        "((tokens[:, :-1] == drafts) | (drafts < 0))",
        "an author's own slip: padding that is accepted, and garbage after it",
    ),
    Wrong.patch(
        "no-draft-is-id-0", "The padding of drafts is an id that the model can read.", "tokens[:, :-1] == drafts",
        "tokens[:, :-1] == drafts.clamp(min=0)",
        "a captured step feeds 0 where there is no draft: there it must not be compared",
    ),
    Wrong(by_probability, "typical acceptance (Cai et al. 2024, Medusa): another text than plain decoding's"),
    Wrong(by_a_coin, "Leviathan et al. 2023, by half: the distribution is kept by the corrected second draw alone"),
    Wrong.patch(
        "greedy-test", "A draft is right if the model finds it the most probable.",
        "(tokens[:, :-1] == drafts)", "(scores[:, :-1].argmax(-1) == drafts)",
        "engines whose speculation knew greedy rows alone: sampled rows then keep tokens that they would not choose",
    ),
    Wrong.patch(
        "one-noise-for-all", "A step has one noise.", TOKENS, "(scores + noise[:, :1]).argmax(-1)",
        "an author's own slip: noise by the step of the row, where each place has its own",
    ),
    Wrong.patch(
        "last-of-equals", "Among equals the highest id is as good.", TOKENS,
        "scores.shape[-1] - 1 - (scores + noise).flip(-1).argmax(-1)",
        "an author's own slip: two ways to choose that part at ties, unseen by tests without any",
    ),
    Wrong.patch(
        "count-of-drafts", "What is counted is drafts that were accepted.",
        "tokens, -1), counts", "tokens, -1), counts - 1",
        "servers that print accepted drafts as tokens a step; vllm-project/vllm#56101 is its counterpart",
    ),
    Wrong.patch(
        "not-cut", "Whoever reads the tokens knows from the counts which of them count.",
        "torch.where(places < counts[:, None], tokens, -1)", "tokens",
        "an author's own slip: the caller may, but the contract says -1",
    ),
)  # fmt: skip


def row_by_row(scores: Tensor, noise: Tensor, drafts: Tensor) -> Answer:
    """Two plain loops that stop."""
    told = torch.full((drafts.shape[0], drafts.shape[1] + 1), -1)
    counts = []
    for row in range(len(drafts)):
        place = 0
        while True:
            sums = scores[row, place] + noise[row, place]
            told[row, place] = int((sums == sums.max()).nonzero()[0])
            place += 1
            if place > drafts.shape[1] or drafts[row, place - 1] != told[row, place - 1]:
                break
        counts.append(place)
    return told, torch.tensor(counts)


def first_unequal(scores: Tensor, noise: Tensor, drafts: Tensor) -> Answer:
    """The first place where they part, by an argmax over unequal places; the last place parts always."""
    total = scores.clone()
    total += noise
    chosen = torch.max(total, dim=2).indices
    other = torch.nn.functional.pad(drafts, (0, 1), value=-2) != chosen
    last = other.byte().argmax(1, keepdim=True)
    columns = torch.arange(chosen.size(1)).expand_as(chosen)
    return chosen.masked_fill(columns > last, -1), last.squeeze(1) + 1


def place_by_place(scores: Tensor, noise: Tensor, drafts: Tensor) -> Answer:
    """All rows together, one place after the other, with those that still go on."""
    going = torch.ones(len(drafts), dtype=torch.bool)
    columns, counts = [], torch.zeros(len(drafts), dtype=torch.int64)
    for place in range(scores.size(1)):
        mine = (scores[:, place] + noise[:, place]).argmax(1)
        columns.append(torch.where(going, mine, torch.tensor(-1)))
        counts = counts + going.long()
        if place < drafts.size(1):
            going = going & (mine == drafts[:, place])
    return torch.stack(columns, dim=1), counts


RIGHT = (Right(row_by_row), Right(first_unequal), Right(place_by_place))
EQUIVALENT: dict[str, str] = {}


def by_place(scores: Tensor, noise: Tensor, drafts: Tensor) -> dict[str, Tensor]:
    """Under "counts", (R,) int64, by how many tokens each row goes on, and under "tokens" these, (k + 1, R) int64.

    Places are lines here, and rows are columns. drafts: (k, R) int64, what somebody has guessed for the next k places
    of each row's text; -1 stands for no draft, at the bottom of rows that have fewer; k may be 0, and R is at least 1.
    scores: (k + 1, R, V) float32, what the model says of each place, where it has read the row's text and all of its
    drafts ahead of that place. noise: (k + 1, R, V) float32, each place's own noise: that which plain decoding would
    use in this place of this row; it is 0 where a row is greedy. The token of a place is the id whose score plus noise,
    added in float32, is highest; among equals the lowest id.
    A draft is kept if it is the token of its place, and all drafts before it are kept. A row goes on by the drafts that
    are kept and by one token more: that of the place after them; below that its column has -1. A row with n drafts
    has n + 1 places; what stands after these in scores and noise may be anything, NaN too.
    """
    tokens = (scores + noise).argmax(-1)
    counts = (tokens[:-1] == drafts).long().cumprod(0).sum(0) + 1
    below = torch.arange(len(tokens), device=tokens.device)[:, None] >= counts
    return {"tokens": tokens.masked_fill(below, -1), "counts": counts}


def _turned(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Places for rows, and rows for places."""
    return tuple(tensor.transpose(0, 1).contiguous() for tensor in tensors)


EDITIONS = (
    Edition(
        "by-place", "places are lines and rows are columns, and the answer is a dict", by_place, args=_turned,
        back=_turned, result=lambda result, *plain: {"tokens": result[0].T.contiguous(), "counts": result[1]},
        axes=("place", "row"),
    ),
)  # fmt: skip
