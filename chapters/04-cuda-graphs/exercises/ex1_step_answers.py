"""Exercise 4.1: correct variants, mutants that are none, an edition."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nanocourse.exercises.exercise import Function, edition
from nanocourse.exercises.scene import Formed

Result = tuple[Tensor, dict[str, str]]


def with_masks(host: dict[str, Any], device: dict[str, Tensor]) -> Result:
    """A mask for the write too, over all slots that are read; all padding rows masked at the end."""
    n = host["rows"]
    position = device["position"].narrow(0, 0, n)
    slots = torch.arange(host["read"])[None]
    text = device["cache"][:n, : host["read"]]
    text.copy_(torch.where(slots == position[:, None], device["token"][:n, None], text))
    score = position * host["stride"] + torch.where(slots <= position[:, None], text, 0).sum(-1)
    if host["sampled"] == 1:
        score += (device["seed"][:n] + position).remainder(7) * device["temperature"][:n]
    new = device["weights"].index_select(0, score.remainder(host["vocab"]))
    device["token"][:n] = new.masked_fill(device["live"][:n] == 0, 0)
    device["position"][:n] += device["live"][:n]
    kinds = {"rows": "key", "read": "key", "sampled": "key"}
    for name in ("weights", "stride", "vocab"):
        kinds[name] = "baked"
    for name in ("token", "position", "seed", "temperature", "live", "cache"):
        kinds[name] = "moving"
    return device["token"][:n], kinds


def row_by_row(host: dict[str, Any], device: dict[str, Tensor]) -> Result:
    """A loop over rows, whose number is baked; every index is a tensor."""
    slots = torch.arange(host["read"])
    for row in range(host["rows"]):
        at, token = device["position"][row], device["token"][row]
        device["cache"][row].index_copy_(0, at.view(1), token.view(1))
        score = (device["cache"][row, : host["read"]] * (slots <= at)).sum() + at * host["stride"]
        if host["sampled"]:
            score = score + device["temperature"][row] * ((device["seed"][row] + at) % 7)
        token.copy_(device["weights"].take(score % host["vocab"]) * device["live"][row])
        at += device["live"][row]
    kinds = dict.fromkeys(device, "moving") | dict.fromkeys(("weights", "stride", "vocab"), "baked")
    return device["token"][: host["rows"]], kinds | dict.fromkeys(("rows", "read", "sampled"), "key")


def _by_slots(host: dict[str, Any], device: dict[str, Tensor]) -> tuple[Any, ...]:
    return host, device | {"cache": device["cache"].T}


def _by_name(found: tuple[dict[str, list[str]], Tensor], *args: object) -> Result:
    sort, token = found
    kinds = {name: kind for kind, names in sort.items() for name in names}
    if len(kinds) != sum(map(len, sort.values())):
        raise TypeError("each of the values is one of three, and none is two of them")
    return token, kinds


def _sorted_by_kind(answer: Function) -> Function:
    return Formed(answer, _by_slots, _by_name)


@edition(
    "a-column-a-row",
    "the cache is stored the other way round, a column a row: (room, N); and the sort comes first, by kinds: a "
    "list of names for each of the three",
    played=_sorted_by_kind,
)
def sorted_step(host: dict[str, Any], device: dict[str, Tensor]) -> tuple[dict[str, list[str]], Tensor]:
    """For each of "baked", "moving" and "key" which of the twelve values it is; and the next token of rows 0..rows-1.

    host: what Python knows when this is called: lists token, position, seed, temperature, live (an entry a row), and
    rows, read, sampled, stride, vocab. device: tensors token, position, seed, temperature, live (N,), weights (V,),
    cache (room, N), a column a row, and rows, read, sampled (no dimension), all int64 and right before every replay. N
    is 128 at most, V and room a thousand; tokens, seeds, temperatures, weights and the stride are any numbers, negative
    ones too, of which int64 holds all sums and products. This function is called once for each key that it says there
    is, and recorded; after that the recording alone runs. The first `read` lines of the cache are read; whether to
    sample is a branch. The tokens (rows,) are left in token, and the positions advanced by live, for the next step; all
    else stays as it is. A row whose live is 0 is padding: its token becomes 0, its position stays.
    """
    rows, read = host["rows"], host["read"]
    token, position, live = (device[name][:rows] for name in ("token", "position", "live"))
    place = torch.arange(read)[:, None]  # (read, 1)
    text = device["cache"][:read, :rows]
    text.copy_(torch.where(place == position, token, text))
    score = host["stride"] * position + text.masked_fill(place > position, 0).sum(0)
    if host["sampled"]:
        score = score + device["temperature"][:rows] * ((device["seed"][:rows] + position) % 7)
    token.copy_(live * device["weights"][score % host["vocab"]])
    position.add_(live)
    moving = ["token", "position", "seed", "temperature", "live", "cache"]
    return {"baked": ["weights", "stride", "vocab"], "moving": moving, "key": ["rows", "read", "sampled"]}, token
