"""Exercise 2.2: wrong answers and where they come from, correct variants, mutants that are none, an edition."""

from __future__ import annotations

import torch
from torch import Tensor

from nanocourse.exercises.exercise import Edition, Right, Wrong


def writes_nothing(
    keys: Tensor, values: Tensor, layer: int, k: Tensor, v: Tensor, positions: Tensor, last: Tensor, rows: Tensor
) -> tuple[Tensor, Tensor]:
    """Rows that an index tensor has picked are the cache's own, and writing into them writes into the cache."""
    T = k.shape[1]
    real = torch.arange(T, device=k.device) <= last[:, None]
    places = torch.where(real, rows[:, None], keys.shape[1] - 1)
    keys[layer][places, positions].copy_(k)
    values[layer][places, positions].copy_(v)
    return keys[:, :-1], values[:, :-1]


def appended(
    keys: Tensor, values: Tensor, layer: int, k: Tensor, v: Tensor, positions: Tensor, last: Tensor, rows: Tensor
) -> tuple[Tensor, Tensor]:
    """A cache is a queue: new tokens go to its end, and the oldest fall out at its beginning."""
    T = k.shape[1]
    for row, at, end in zip(rows.tolist(), range(len(k)), last.tolist(), strict=True):
        if end >= 0:
            for held, new in ((keys, k), (values, v)):
                held[layer, row] = torch.cat([held[layer, row, T:], new[at]])[-held.shape[2] :]
    return keys[:, :-1], values[:, :-1]


PLACES = "places = torch.where(real, rows[:, None], keys.shape[1] - 1)  # (B, T) rows of the cache"
REAL = "<= last[:, None]"
KEYS = "keys[layer, places, positions] = k"
VALUES = "values[layer, places, positions] = v"
BOTH = f"{KEYS}\n    {VALUES}"
WRONG = (
    Wrong(writes_nothing, "an author's own slip: an index tensor makes a copy, a slice a view"),
    Wrong(appended, "tenstorrent/tt-forge-onnx#422: appended at the end, behind the padding"),
    Wrong.patch(
        "slot-0-only", "The newest token's slot is the first one.", BOTH, BOTH.replace("positions", "positions * 0"),
        "vllm-project/vllm-metal#144: an offset that stays 0",
    ),
    Wrong.patch(
        "column-is-slot", "The number of the column, or of the step, is the slot.", BOTH,
        BOTH.replace("positions", "torch.arange(T, device=k.device)"),
        "huggingface/transformers#43082: positions of the chunk alone",
    ),
    Wrong.patch(
        "keys-and-values-swapped", "Which of two tensors of one shape comes first does not matter.", BOTH,
        BOTH.replace("= k", "= w").replace("= v", "= k").replace("= w", "= v"),
        "huggingface/transformers#34232: key_cache where value_cache was meant",
    ),
    Wrong.patch(
        "one-cache-for-all-layers", "One cache serves all layers.", BOTH, BOTH.replace("layer,", "0,"),
        "EfficientMoE/MoE-Infinity#195: layer_idx is taken and ignored",
    ),
    Wrong.patch(
        "all-layers-at-once", "A token is the same token in every layer, so it is written into all.", BOTH,
        BOTH.replace("layer,", ":,"), "an author's own slip: a colon where the layer's number belongs",
    ),
    Wrong.patch(
        "rows-of-the-step", "Row i of the step is row i of the cache.", PLACES,
        PLACES.replace("rows[:, None]", "torch.arange(len(k), device=k.device)[:, None]"),
        "gittensor-ai-lab/sparkinfer#289, tenstorrent/tt-metal#52808",
    ),
    Wrong.patch(
        "padding-stored", "Padding is written like all else: the mask will hide it.", PLACES,
        "places = rows[:, None].expand(len(k), T)",
        "ml-explore/mlx-lm#439: padded tokens are still being stored",
    ),
    Wrong.patch(
        "spare-row-by-minus-one-slot", "Padding goes to slot -1, which no token has.",
        BOTH, BOTH.replace("places, positions", "rows[:, None], torch.where(real, positions, -1)"),
        "vllm-project/vllm#43810: slot -1 is the last one, and somebody's",
    ),
    Wrong.patch(
        "last-left-out", "`last` is where the padding begins.", REAL, REAL.replace("<=", "<"),
        "pytorch/executorch#2689: off by one in the cache's own position",
    ),
    Wrong.patch(
        "one-column-of-padding", "`last` counts the real tokens, so there is one column more.", REAL,
        "<= last[:, None] + 1", "the same slip on the other side",
    ),
    Wrong.patch(
        "longest-rows-last", "All rows are as long as the longest.", REAL, "<= last.max()",
        "Blaizzy/mlx-vlm#1946: a row that depends on its neighbour's length",
    ),
    Wrong.patch(
        "first-rows-positions", "One row of positions serves the batch.", BOTH,
        BOTH.replace("positions", "positions[:1]"), "rasbt/reasoning-from-scratch#33, unslothai/unsloth#3803",
    ),
    Wrong.patch(
        "offset-counted-twice", "Positions say where the step begins, and columns are counted from there.", BOTH,
        BOTH.replace("positions", "(positions + torch.arange(T, device=k.device)).clamp(max=keys.shape[2] - 1)"),
        "skyzh/tiny-llm#46: the offset advances twice",
    ),
)  # fmt: skip


def token_by_token(
    keys: Tensor, values: Tensor, layer: int, k: Tensor, v: Tensor, positions: Tensor, last: Tensor, rows: Tensor
) -> tuple[Tensor, Tensor]:
    """Loops; padding is left out, and the dummy row is never touched."""
    for b, (row, end) in enumerate(zip(rows.tolist(), last.tolist(), strict=True)):
        for column in range(end + 1):
            slot = int(positions[b, column])
            keys[layer, row, slot] = k[b, column]
            values[layer, row, slot] = v[b, column]
    return keys[:, :-1], values[:, :-1]


def end_to_end(
    keys: Tensor, values: Tensor, layer: int, k: Tensor, v: Tensor, positions: Tensor, last: Tensor, rows: Tensor
) -> tuple[Tensor, Tensor]:
    """As the engine does it: rows end to end, one number a slot, index_copy_."""
    R, S = keys.shape[1:3]
    columns = torch.arange(k.shape[1], device=k.device)
    row = torch.where(columns[None] > last[:, None], torch.full_like(positions, R - 1), rows[:, None])
    slots = (row * S + positions).flatten()
    for held, new in ((keys, k), (values, v)):
        held[layer].view(R * S, *k.shape[2:]).index_copy_(0, slots, new.flatten(0, 1))
    return keys.narrow(1, 0, R - 1), values.narrow(1, 0, R - 1)


def new_tensors(
    keys: Tensor, values: Tensor, layer: int, k: Tensor, v: Tensor, positions: Tensor, last: Tensor, rows: Tensor
) -> tuple[Tensor, Tensor]:
    """Not in place, in float64, the real ones picked by a boolean mask."""
    keys, values = keys.double()[:, :-1].clone(), values.double()[:, :-1].clone()
    b, t = (torch.arange(k.shape[1], device=k.device)[None] <= last[:, None]).nonzero(as_tuple=True)
    at = torch.full_like(b, layer), rows[b], positions[b, t]
    return keys.index_put(at, k[b, t].double()), values.index_put(at, v[b, t].double())


RIGHT = (Right(token_by_token), Right(end_to_end), Right(new_tensors))

EQUIVALENT: dict[str, str] = {}


def write(
    keys: Tensor, values: Tensor, layer: int, k: Tensor, v: Tensor, positions: Tensor, last: Tensor, rows: Tensor
) -> tuple[Tensor, Tensor]:
    """Put a step's keys and values of one layer into the cache; returns it without the dummy row, keys and values.

    keys, values (R + 1, L, H, S, D): first a dummy row for padding, then R rows; in each layer and head S slots.
    k, v (B, T, H, D): of this step's tokens. positions (B, T) int64: where each stands in its own text, below S.
    last (B,) int64: the column of each row's last real token; columns behind it are padding, and with -1 all are.
    rows (B,) int64: which row of the cache, the dummy row not counted, each row of the step is; padding rows (last
    -1) name any.
    """
    T = k.shape[1]
    real = torch.arange(T, device=k.device) <= last[:, None]
    places = torch.where(real, rows[:, None] + 1, 0)
    keys[places, layer, :, positions] = k
    values[places, layer, :, positions] = v
    return keys[1:], values[1:]


def _there(
    keys: Tensor, values: Tensor, layer: int, k: Tensor, v: Tensor, positions: Tensor, last: Tensor, rows: Tensor
) -> tuple[Tensor | int, ...]:
    turned = (held.roll(1, 1).permute(1, 0, 3, 2, 4).clone() for held in (keys, values))
    return *turned, layer, k, v, positions, last, rows


def _back(
    keys: Tensor, values: Tensor, layer: int, k: Tensor, v: Tensor, positions: Tensor, last: Tensor, rows: Tensor
) -> tuple[Tensor | int, ...]:
    turned = (held.permute(1, 0, 3, 2, 4).roll(-1, 1).clone() for held in (keys, values))
    return *turned, layer, k, v, positions, last, rows


EDITIONS = (
    Edition(
        "row-first", "the dummy row is the first, and heads stand before slots", write, args=_there, back=_back,
        result=lambda written, *args: tuple(held.permute(1, 0, 3, 2, 4) for held in written),
        axes=("of keys, values: number", "row", "layer", "head", "slot", "channel"),
    ),
)  # fmt: skip
