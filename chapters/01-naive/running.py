"""The running example of chapter 1, and the mistakes that its text makes on purpose.

A batch of two rows and three tokens, `Once upon a` and `The fox` with one column of padding, through the small model
that ships. It is computed in float64, so that every machine prints the same digits.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nanoinfer.cache.naive import FullContext, forward_logits
from nanoinfer.model.batch import Step
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.ops import TorchOps
from nanoinfer.model.weights import load_model
from nanoinfer.text.tokenizer import gpt2_tokenizer

PROMPTS = ("Once upon a", "The fox")
PADDING = 0  # the id that fills row 1 up; which one it is makes no difference
LAYER, HEAD = 7, 3  # of the attention that is shown: nearly all of it goes to one token


@cache
def model() -> GPT2:
    """The small model, in float64."""
    return load_model("small", torch.device("cpu"), torch.float64)


def batch(padding: int = PADDING) -> tuple[Tensor, list[int]]:
    """Token ids (2, 3) and the number of real tokens of each row."""
    rows = [gpt2_tokenizer().encode(prompt) for prompt in PROMPTS]
    T = max(map(len, rows))
    return torch.tensor([[*row, *[padding] * (T - len(row))] for row in rows]), [len(row) for row in rows]


def word(token_id: int) -> str:
    """A token in quotation marks, so that a space before it is seen."""
    return f'"{gpt2_tokenizer().decode([token_id])}"'.replace("\n", "\\n")


def logits(ids: Tensor) -> Tensor:
    """(B, T, V), after every token."""
    return forward_logits(model(), ids)


class NoMask(FullContext):
    """A mistake: every query reads every key, the later ones too."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)


class OwnValue(FullContext):
    """A mistake: no attention at all, every token takes its own value."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return v


class HiddenSelf(FullContext):
    """A mistake: a query reads the keys before it, and not its own. The first has nothing else to read."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        mask = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril(-1)
        mask[0, 0] = True
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)


class Watch(FullContext):
    """No mistake: keeps the scores and weights (H, T, T) of one row and layer."""

    def __init__(self, row: int, layer: int) -> None:
        self.row, self.layer = row, layer

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if layer == self.layer:
            self.scores = torch.einsum("qhd,khd->hqk", q[self.row], k[self.row]) / q.shape[-1] ** 0.5
            later = torch.ones_like(self.scores, dtype=torch.bool).triu(1)
            self.weights = self.scores.masked_fill(later, -torch.inf).softmax(-1)
        return super().attend(layer, q, k, v)


class StreamNormalised(TorchOps):
    """A mistake: LayerNorm's result takes the place of the residual stream."""

    def add_norm(self, x: Tensor, update: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        _, h = super().add_norm(x, update, weight, bias, eps)
        return h, h


def greedy_ids(
    prompt: str,
    new_tokens: int,
    *,
    memory: FullContext | None = None,
    ops: TorchOps | None = None,
    positions: Callable[[int], Tensor] = torch.arange,
    seen: int | None = None,
) -> list[int]:
    """Greedy ids, the prompt's first. positions: of T tokens. seen: how many of the newest tokens a step is given."""
    ids, net = gpt2_tokenizer().encode(prompt), model()
    kept, net.ops = net.ops, ops or net.ops
    try:
        with torch.inference_mode():
            for _ in range(new_tokens):
                fed = torch.tensor([ids[-seen:] if seen else ids])  # (1, T)
                T = fed.shape[1]
                step = Step(fed, positions(T)[None], torch.tensor([T - 1]), slice(0, 1), longest=T)
                ids = [*ids, int(net(step, memory or FullContext()).argmax())]
    finally:
        net.ops = kept
    return ids


def continued(prompt: str, new_tokens: int = 18, **wrong: Any) -> str:
    """Greedy text, the prompt's own included."""
    return gpt2_tokenizer().decode(greedy_ids(prompt, new_tokens, **wrong))


def show(label: str, text: str) -> None:
    """A label and a text in quotation marks, wrapped."""
    text = '"' + text.replace("\n", "\\n") + '"'
    print(textwrap.fill(text, 100, initial_indent=f"{label:24}", subsequent_indent=" " * 24))


def watched() -> tuple[Watch, Tensor]:
    """Attention of row 0 in the layer that is shown, and the row's token ids."""
    watch, (ids, lengths) = Watch(0, LAYER), batch()
    step = Step(ids, torch.arange(3).expand(2, 3), torch.tensor(lengths) - 1, slice(0, 2), longest=3)
    with torch.inference_mode():
        model()(step, watch)
    return watch, ids[0]


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
    scores = logits(batch()[0])[1, 1].double()  # (V,)
    best = scores.topk(shown).indices
    plain, cooled = scores.softmax(-1)[best], (scores / TEMPERATURE).softmax(-1)[best]
    after_k = (scores / TEMPERATURE)[best[:TOP_K]].softmax(-1)
    before = after_k.cumsum(-1) - after_k
    lines = []
    for at, token_id in enumerate(best.tolist()):
        p, ahead = (float(after_k[at]), float(before[at])) if at < TOP_K else (0.0, 1.0)
        numbers = (float(scores[token_id]), float(plain[at]), float(cooled[at]))
        lines.append(Candidate(token_id, *numbers, at < TOP_K, p, ahead, at < TOP_K and ahead < TOP_P))
    return lines


def by_generator(prompts: Sequence[str], new_tokens: int = 14) -> str:
    """Row 0's text where one random generator serves all rows in turn; temperature 0.8 among the 50 best."""
    generator = torch.Generator().manual_seed(7)
    rows = [gpt2_tokenizer().encode(prompt) for prompt in prompts]
    for _ in range(new_tokens):
        for at, ids in enumerate(rows):
            best = (logits(torch.tensor([ids]))[0, -1].double() / TEMPERATURE).topk(50)
            drawn = torch.rand((), dtype=torch.float64, generator=generator)
            rank = int((best.values.softmax(-1).cumsum(-1) < drawn).sum())
            rows[at] = [*ids, int(best.indices[rank])]
    return gpt2_tokenizer().decode(rows[0])
