"""The running example of chapter 1, and the mistakes that its text makes on purpose.

Two prompts of three tokens and of two, `Once upon a` and `The fox`, through the small model that ships. It is computed
in float64, so that every machine prints the same digits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nanobook.running import decode, encode, model
from nanoinfer.cache.none import NoCache, forward_logits
from nanoinfer.model.batch import Batch
from nanoinfer.model.ops import TorchOps

PROMPTS = ("Once upon a", "The fox")
LAYER, HEAD = 7, 3  # of the attention that is shown: nearly all of it goes to one token


def rows() -> list[list[int]]:
    """The token ids of the two prompts."""
    return list(map(encode, PROMPTS))


def batch(padding: int = 0) -> tuple[Tensor, list[int]]:
    """The two prompts as a rectangle (2, 3), the shorter one filled up, and the number of tokens of each."""
    ids, lengths = rows(), [len(row) for row in rows()]
    return torch.tensor([[*row, *[padding] * (max(lengths) - len(row))] for row in ids]), lengths


def packed(*texts: Sequence[int]) -> Batch:
    """One step that brings these texts whole; the two prompts unless given."""
    work: Any = [(SimpleNamespace(tokens=ids, row=at), 0, len(ids)) for at, ids in enumerate(texts or rows())]
    return Batch.of(work, torch.device("cpu"))


def logits(ids: Tensor) -> Tensor:
    """(B, T, V), after every token."""
    return forward_logits(model(), ids)


def probs(row: int) -> Tensor:
    """(V,) of the token after one of the two prompts."""
    return logits(torch.tensor([rows()[row]]))[0, -1].softmax(-1)


class NoMask(NoCache):
    """A mistake: every query reads every key of its row, the later ones too. For one row."""

    def attend(self, plan: Batch, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))  # (H, T, D)
        return F.scaled_dot_product_attention(q, k, v, self.mask(q)).transpose(0, 1)

    def mask(self, q: Tensor) -> Tensor | None:
        """(T, T), true where a query reads a key; None for everywhere."""
        return None


class HiddenSelf(NoMask):
    """A mistake: a query reads the keys before it, and not its own. The first has nothing else to read."""

    def mask(self, q: Tensor) -> Tensor:
        mask = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).tril(-1)
        mask[0, 0] = True
        return mask


class OwnValue(NoCache):
    """A mistake: no attention at all, every token takes its own value."""

    def attend(self, plan: Batch, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return v


class Watch(NoCache):
    """No mistake: keeps the scores and weights (H, T, T) of one row and layer."""

    def __init__(self, row: int, layer: int) -> None:
        self.row, self.layer = row, layer

    def attend(self, plan: Batch, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if layer == self.layer:
            own = plan.row == self.row
            self.scores = torch.einsum("qhd,khd->hqk", q[own], k[own]) / q.shape[-1] ** 0.5
            later = torch.ones_like(self.scores, dtype=torch.bool).triu(1)
            self.weights = self.scores.masked_fill(later, -torch.inf).softmax(-1)
        return super().attend(plan, layer, q, k, v)


class StreamNormalised(TorchOps):
    """A mistake: LayerNorm's result takes the place of the residual stream."""

    def add_norm(self, x: Tensor, update: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        _, h = super().add_norm(x, update, weight, bias, eps)
        return h, h


def greedy_ids(
    prompt: str,
    new_tokens: int,
    *,
    reads: NoCache | None = None,
    ops: TorchOps | None = None,
    positions: Callable[[int], Tensor] = torch.arange,
    seen: int | None = None,
) -> list[int]:
    """Greedy ids, the prompt's first. positions: of T tokens. seen: how many of the newest tokens a step is given."""
    ids, net = encode(prompt), model()
    kept, net.ops = net.ops, ops or net.ops
    try:
        with torch.inference_mode():
            for _ in range(new_tokens):
                fed = packed(ids[-seen:] if seen else ids)
                fed = replace(fed, positions=positions(len(fed.positions)))
                ids = [*ids, int(net(fed, reads or NoCache()).argmax())]
    finally:
        net.ops = kept
    return ids


def continued(prompt: str, new_tokens: int = 18, **wrong: Any) -> str:
    """Greedy text, the prompt's own included."""
    return decode(greedy_ids(prompt, new_tokens, **wrong))


def watched() -> Watch:
    """Attention of row 0 in the layer that is shown."""
    watch = Watch(0, LAYER)
    with torch.inference_mode():
        model()(packed(), watch)
    return watch


class Sizes(TorchOps):
    """No mistake: keeps the root mean square of the residual stream each time that it has grown."""

    def __init__(self) -> None:
        self.found: list[float] = []

    def add_norm(self, x: Tensor, update: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        x, h = super().add_norm(x, update, weight, bias, eps)
        self.found.append(float(x.square().mean().sqrt()))
        return x, h


def stream_sizes() -> list[float]:
    """Root mean square of the stream as it enters blocks 0 to 11, and at the end, for row 0's three tokens."""
    ops = Sizes()
    greedy_ids(PROMPTS[0], 1, ops=ops)
    return ops.found[::2]


@dataclass(frozen=True)
class Candidate:
    """A token on its way through temperature, top-k and top-p."""

    token_id: int
    logit: float
    plain: float  # probability at temperature 1
    cooled: float  # at the example's temperature
    in_k: bool
    after_k: float  # among the k
    before: float  # of all tokens ahead of it, among the k
    kept: bool  # by top-p


TEMPERATURE, TOP_K, TOP_P = 0.8, 8, 0.7


def candidates(shown: int = 11) -> list[Candidate]:
    """The most probable tokens after row 1, best first."""
    scores = logits(torch.tensor([rows()[1]]))[0, -1].double()  # (V,)
    top = scores.topk(shown).indices
    plain, cooled = scores.softmax(-1)[top], (scores / TEMPERATURE).softmax(-1)[top]
    after_k = (scores / TEMPERATURE)[top[:TOP_K]].softmax(-1)
    before = after_k.cumsum(-1) - after_k
    lines = []
    for at, token_id in enumerate(top.tolist()):
        p, ahead = (float(after_k[at]), float(before[at])) if at < TOP_K else (0.0, 1.0)
        numbers = (float(scores[token_id]), float(plain[at]), float(cooled[at]))
        lines.append(Candidate(token_id, *numbers, at < TOP_K, p, ahead, at < TOP_K and ahead < TOP_P))
    return lines


def by_generator(prompts: Sequence[str], new_tokens: int = 14) -> str:
    """Row 0's text where one random generator serves all rows in turn; temperature 0.8 among the 50 best."""
    generator = torch.Generator().manual_seed(7)
    texts = list(map(encode, prompts))
    for _ in range(new_tokens):
        for at, ids in enumerate(texts):
            top = (logits(torch.tensor([ids]))[0, -1].double() / TEMPERATURE).topk(50)
            drawn = torch.rand((), dtype=torch.float64, generator=generator)
            rank = int((top.values.softmax(-1).cumsum(-1) < drawn).sum())
            texts[at] = [*ids, int(top.indices[rank])]
    return decode(texts[0])
