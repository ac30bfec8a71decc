"""Exercise 2.2: wrong answers and where they come from, correct variants, mutants that are none, an edition."""

from __future__ import annotations

import torch
from torch import Tensor

from nanocourse.exercises.exercise import Edition, Right, Wrong


def writes_nothing(
    keys: Tensor, values: Tensor, layer: int, k: Tensor, v: Tensor, positions: Tensor, rows: Tensor, real: Tensor
) -> tuple[Tensor, Tensor]:
    """Rows that an index tensor has picked are the cache's own, and writing into them writes into the cache."""
    places = torch.where(real, rows, keys.shape[1] - 1)
    keys[layer][places, positions].copy_(k)
    values[layer][places, positions].copy_(v)
    return keys[:, :-1], values[:, :-1]


def appended(
    keys: Tensor, values: Tensor, layer: int, k: Tensor, v: Tensor, positions: Tensor, rows: Tensor, real: Tensor
) -> tuple[Tensor, Tensor]:
    """A cache is a queue: new tokens go to its end, and the oldest fall out at its beginning."""
    for n in real.nonzero()[:, 0].tolist():
        for held, new in ((keys, k), (values, v)):
            held[layer, rows[n]] = torch.cat([held[layer, rows[n], 1:], new[n : n + 1]])
    return keys[:, :-1], values[:, :-1]


def stride_of_the_step(
    keys: Tensor, values: Tensor, layer: int, k: Tensor, v: Tensor, positions: Tensor, rows: Tensor, real: Tensor
) -> tuple[Tensor, Tensor]:
    """Rows lie end to end, as far as this step's positions go."""
    places = torch.where(real, rows, keys.shape[1] - 1)
    slots = places * (int(positions.max()) + 1) + positions
    keys[layer].flatten(0, 1).index_copy_(0, slots, k)
    values[layer].flatten(0, 1).index_copy_(0, slots, v)
    return keys[:, :-1], values[:, :-1]


PLACES = "places = torch.where(real, rows, keys.shape[1] - 1)  # (N,) rows of the cache"
WHERE = "real, rows, keys.shape[1] - 1"
KEYS = "keys[layer, places, positions] = k"
VALUES = "values[layer, places, positions] = v"
BOTH = f"{KEYS}\n    {VALUES}"


def by_a_product(
    keys: Tensor, values: Tensor, layer: int, k: Tensor, v: Tensor, positions: Tensor, rows: Tensor, real: Tensor
) -> tuple[Tensor, Tensor]:
    """Tokens are put into their slots by a product with ones and zeros."""
    R, S = keys.shape[1] - 1, keys.shape[2]
    here = real[:, None] & ((rows * S + positions)[:, None] == torch.arange(R * S))
    written = here.any(0).view(R, S, 1, 1)
    for held, new in ((keys, k), (values, v)):
        clean = torch.where(real[:, None, None], new, 0)
        placed = torch.einsum("ns,nhd->shd", here.to(new.dtype), clean).view(R, S, *new.shape[1:])
        held[layer, :R] = torch.where(written, placed, held[layer, :R])
    return keys[:, :R], values[:, :R]


def old_times_zero(
    keys: Tensor, values: Tensor, layer: int, k: Tensor, v: Tensor, positions: Tensor, rows: Tensor, real: Tensor
) -> tuple[Tensor, Tensor]:
    """What a slot held goes away when it is multiplied by zero."""
    slots = (rows * keys.shape[2] + positions)[real]
    for cache, new in ((keys, k), (values, v)):
        flat = cache[layer].flatten(0, 1)
        hit = flat.new_zeros(len(flat), 1, 1).index_fill_(0, slots, 1)
        flat.copy_(flat * (1 - hit) + torch.zeros_like(flat).index_copy_(0, slots, new[real]))
    return keys[:, :-1], values[:, :-1]


WRONG = (
    Wrong(writes_nothing, "an author's own slip: an index tensor makes a copy, a slice a view"),
    Wrong(appended, "tenstorrent/tt-forge-onnx#422: appended at the end, behind the padding"),
    Wrong(stride_of_the_step, "an author's own slip: right where the step reaches the cache's last slot"),
    Wrong.patch(
        "slot-0-only", "The newest token's slot is the first one.", BOTH, BOTH.replace("positions", "positions * 0"),
        "vllm-project/vllm-metal#144: an offset that stays 0",
    ),
    Wrong.patch(
        "column-is-slot", "A token's slot is its number among those that its row brings.", BOTH,
        BOTH.replace("positions", "column").replace(
            KEYS[:4], "counts = rows.unique_consecutive(return_counts=True)[1].tolist()\n"
            "    column = torch.cat([torch.arange(count, device=k.device) for count in counts])\n    keys", 1,
        ),
        "huggingface/transformers#43082: positions of the chunk alone",
    ),
    Wrong.patch(
        "number-in-the-step", "A token's slot is its number in the step.", BOTH,
        BOTH.replace("positions", "torch.arange(len(k), device=k.device)"),
        "an author's own slip: right for one prompt alone, and for nothing else",
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
        "rows-of-the-step", "The step's first row is the cache's first row.", PLACES,
        PLACES.replace("real, rows", "real, rows.unique_consecutive(return_inverse=True)[1]"),
        "gittensor-ai-lab/sparkinfer#289, tenstorrent/tt-metal#52808",
    ),
    Wrong.patch(
        "one-row-for-all", "All tokens of a step belong to its first row.", WHERE,
        "real, rows[0], keys.shape[1] - 1", "an author's own slip: right for one row alone",
    ),
    Wrong.patch(
        "padding-stored", "Padding is written like all else: the mask will hide it.", PLACES, "places = rows",
        "ml-explore/mlx-lm#439: padded tokens are still being stored",
    ),
    Wrong.patch(
        "padding-as-zeros", "Padding is written as zeros, and zeros say nothing.", BOTH,
        BOTH.replace("places", "rows").replace("= k", "= k * real[:, None, None]").replace(
            "= v", "= v * real[:, None, None]"
        ),
        "huggingface/transformers#30414: zeros that are not masked take part in the softmax",
    ),
    Wrong.patch(
        "padding-to-slot-0", "Padding goes to slot 0 of its row.", BOTH,
        BOTH.replace("places, positions", "rows, positions * real"),
        "vllm-project/vllm#38719: what runs beside the rows writes garbage to slot 0",
    ),
    Wrong.patch(
        "dummy-row-by-minus-one-slot", "Padding goes to slot -1, which no token has.",
        BOTH, BOTH.replace("places, positions", "rows, torch.where(real, positions, -1)"),
        "vllm-project/vllm#43810: slot -1 is the last one, and somebody's",
    ),
    Wrong.patch(
        "padding-to-row-0", "Row 0 is the one that belongs to nobody.", WHERE, "real, rows, 0",
        "sgl-project/sglang#32477: padding in the first place, which other engines keep free and this one does not",
    ),
    Wrong.patch(
        "padding-at-the-end", "The real tokens come first, and padding stands behind them.", PLACES,
        PLACES.replace("real,", "torch.arange(len(k), device=k.device) < real.sum(),"),
        "an author's own slip: true of padding on the right, and of one row alone",
    ),
    Wrong.patch(
        "offset-counted-twice", "Positions say where the step begins, and its tokens are counted from there.", BOTH,
        BOTH.replace("positions", "(positions + torch.arange(len(k), device=k.device)).clamp(max=keys.shape[2] - 1)"),
        "skyzh/tiny-llm#46: the offset advances twice",
    ),
    Wrong.patch(
        "slices", "A row's tokens go into one slice, from the first one's slot on.",
        "    keys[layer, places, positions] = k\n"
        "    values[layer, places, positions] = v\n",
        "    for row in rows[real].unique().tolist():\n"
        "        own = (rows == row) & real\n"
        "        first, n = int(positions[own][0]), int(own.sum())\n"
        "        keys[layer, row, first : first + n] = k[own]\n"
        "        values[layer, row, first : first + n] = v[own]\n",
        "written to pass all checks that there were, and it did",
    ),
    Wrong(by_a_product, "a reader who saw stub and text alone"),
    Wrong.patch(
        "slots-of-a-byte", "A slot's number fits in a byte.",
        "places = torch.where",
        "positions = positions.to(torch.uint8).long()\n"
        "    places = torch.where",
        "written to pass all checks that there were, and it did",
    ),
    Wrong(old_times_zero, "a third reader who saw stub and text alone; it passed"),
    Wrong.patch(
        "slots-in-15-bits", "A slot fits in 15 bits.",
        'keys[layer, places, positions] = k',
        'keys[layer, places, positions % 2**15] = k',
        "written to pass all checks that there were, and it did", unnamed="slots-of-a-byte",
    ),
    Wrong.patch(
        "new-ones-lie-end-to-end", "A step's keys and values lie as the cache does.", BOTH,
        "numbers = torch.arange(keys[0].numel()).view(keys.shape[1:])[places, positions].flatten()\n"
        "    keys[layer].view(-1)[numbers] = k.view(-1)\n    values[layer].view(-1)[numbers] = v.view(-1)",
        "a reader who saw stub and text alone; it passed",
    ),
    Wrong.patch(
        "a-copy-lies-end-to-end", "A clone lies end to end, whatever it is a clone of.", BOTH,
        "for held, new in ((keys, k), (values, v)):\n"
        "        held[layer, places, positions] = new.clone().view(-1).view(new.shape)",
        "written to pass all checks that there were, and it did", unnamed="new-ones-lie-end-to-end",
    ),
)  # fmt: skip


def token_by_token(
    keys: Tensor, values: Tensor, layer: int, k: Tensor, v: Tensor, positions: Tensor, rows: Tensor, real: Tensor
) -> tuple[Tensor, Tensor]:
    """A loop; padding is left out, and the dummy row is never touched."""
    for n, (row, slot) in enumerate(zip(rows.tolist(), positions.tolist(), strict=True)):
        if real[n]:
            keys[layer, row, slot] = k[n]
            values[layer, row, slot] = v[n]
    return keys[:, :-1], values[:, :-1]


def end_to_end(
    keys: Tensor, values: Tensor, layer: int, k: Tensor, v: Tensor, positions: Tensor, rows: Tensor, real: Tensor
) -> tuple[Tensor, Tensor]:
    """As the engine does it: rows end to end, one number a slot, index_copy_."""
    R, S = keys.shape[1:3]
    slots = torch.add(positions, rows.masked_fill(~real, R - 1), alpha=S)
    for held, new in ((keys, k), (values, v)):
        held[layer].view(R * S, *k.shape[1:]).index_copy_(0, slots, new)
    return keys.narrow(1, 0, R - 1), values.narrow(1, 0, R - 1)


def new_tensors(
    keys: Tensor, values: Tensor, layer: int, k: Tensor, v: Tensor, positions: Tensor, rows: Tensor, real: Tensor
) -> tuple[Tensor, Tensor]:
    """Not in place, in float64, the real ones picked by a boolean mask."""
    keys, values = keys.double()[:, :-1].clone(), values.double()[:, :-1].clone()
    at = torch.full_like(rows[real], layer), rows[real], positions[real]
    return keys.index_put(at, k[real].double()), values.index_put(at, v[real].double())


RIGHT = (Right(token_by_token), Right(end_to_end), Right(new_tensors))

EQUIVALENT: dict[str, str] = {}


def write(
    keys: Tensor, values: Tensor, layer: int, k: Tensor, v: Tensor, positions: Tensor, rows: Tensor, real: Tensor
) -> tuple[Tensor, Tensor]:
    """Put a step's keys and values of one layer into the cache; returns it without the dummy row, keys and values.

    keys, values (R + 1, L, H, S, D): first a dummy row for padding, then R rows; in each layer and head S slots.
    k, v (N, H, D): of this step's tokens, each row's side by side. positions (N,) int64: where each stands in its own
    text, below S. rows (N,) int64: which row of the cache, the dummy row not counted, each belongs to.
    real (N,) bool: False for padding, which may name any row and any position, and may stand anywhere in the step.
    """
    places = torch.where(real, rows + 1, 0)
    keys[places, layer, :, positions] = k
    values[places, layer, :, positions] = v
    return keys[1:], values[1:]


def _there(
    keys: Tensor, values: Tensor, layer: int, k: Tensor, v: Tensor, positions: Tensor, rows: Tensor, real: Tensor
) -> tuple[Tensor | int, ...]:
    turned = (held.roll(1, 1).permute(1, 0, 3, 2, 4).clone() for held in (keys, values))
    return *turned, layer, k, v, positions, rows, real


def _back(
    keys: Tensor, values: Tensor, layer: int, k: Tensor, v: Tensor, positions: Tensor, rows: Tensor, real: Tensor
) -> tuple[Tensor | int, ...]:
    turned = (held.permute(1, 0, 3, 2, 4).roll(-1, 1).clone() for held in (keys, values))
    return *turned, layer, k, v, positions, rows, real


EDITIONS = (
    Edition(
        "row-first", "the dummy row is the first, and heads stand before slots", write, args=_there, back=_back,
        result=lambda written, *args: tuple(held.permute(1, 0, 3, 2, 4) for held in written),
        axes=("of keys, values: number", "row", "layer", "head", "slot", "channel"),
    ),
)  # fmt: skip
