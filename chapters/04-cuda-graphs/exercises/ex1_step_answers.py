"""Exercise 4.1: wrong answers and where they come from, correct variants, mutants that are none, an edition."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nanocourse.exercises.exercise import Edition, Function, Right, Wrong
from nanocourse.exercises.scene import Formed

Result = tuple[Tensor, dict[str, str]]
MOVING = '("token", "position", "seed", "temperature", "live", "cache")'
KEYS = '("rows", "read", "sampled")'
NUMBERS = "torch.stack([torch.full((), value) for value in host[{}][:rows]])"
WRONG = (
    Wrong.patch(
        "position-as-number", "The position is a Python number: it is there when the function is called.",
        'device["position"][:rows]', NUMBERS.format('"position"'),
        "the nanoGPT-inference series of posts, whose published graph takes the position as a Python integer: as fast, "
        "and wrong text; pytorch/pytorch#114844",
    ),
    Wrong.patch(
        "token-as-number", "The newest token is known on the host, so it is fed from there.",
        'device["token"][:rows]', NUMBERS.format('"token"'), "vllm-project/vllm#53915: an input that is a new tensor",
    ),
    Wrong.patch(
        "seed-baked", "A seed is a number, drawn once.", 'device["seed"][:rows]', NUMBERS.format('"seed"'),
        "sgl-project/sglang-omni#419, NVIDIA/Megatron-LM#5697: each replay drew the same noise",
    ),
    Wrong.patch(
        "temperature-baked", "A temperature does not change while a text is written.",
        'device["temperature"][:rows]', NUMBERS.format('"temperature"'), "mstar-project/mstar#199, sglang-omni#272",
    ),
    Wrong.patch(
        "live-baked", "Which rows are live is known before the step.",
        'device["live"][:rows]', NUMBERS.format('"live"'), "InternLM/lmdeploy#4569: rows of an earlier batch",
    ),
    Wrong.patch(
        "tokens-rebound", "A name that is bound to the new tokens holds them for the next step.",
        'token.copy_(device["weights"][score % host["vocab"]] * live)',
        'token = device["token"] = device["weights"][score % host["vocab"]] * live',
        "pytorch/pytorch#114844: an attribute that a replay does not bind again",
    ),
    Wrong.patch(
        "positions-rebound", "position = position + live advances the positions.",
        "position.add_(live)", 'position = device["position"] = position + live',
        "pytorch/pytorch#114844; right wherever Python runs the step",
    ),
    Wrong.patch(
        "mended-in-python", "Python counts the positions on, once a step.", "position.add_(live)",
        'host["position"][:rows] = [at + 1 for at in host["position"][:rows]]',
        "an author's own slip: replay runs no Python, so nobody counts", unnamed="positions-rebound",
    ),
    Wrong.patch(
        "padding-lives", "A padding row may produce what it likes.", 'score % host["vocab"]] * live)',
        'score % host["vocab"]])', "GeeeekExplorer/nano-vllm#190: tail rows that nobody makes anew",
    ),
    Wrong.patch(
        "nobody-moves-on", "Where a padding row stands is of no interest.", "position.add_(live)", "position.add_(1)",
        "a reader's answer, which passed all checks that there were: step by step it leaves its row of the cache",
    ),
    Wrong.patch(
        "asks-the-device", "A number that is needed stands in a tensor, so it is read there.",
        'rows, read = host["rows"], host["read"]', 'rows, read = int(device["rows"]), int(device["read"])',
        "pytorch/pytorch, its notes on CUDA graphs: what waits for the device ends a capture",
    ),
    Wrong.patch(
        "read-not-in-the-key", "How far a context is read depends on the text, not on the graph.",
        KEYS + ', "key")', '("rows", "sampled"), "key") | {"read": "baked"}',
        "huggingface/transformers#45323, ikawrakow/ik_llama.cpp#2096: a length frozen in the graph, missing in its key",
    ),
    Wrong.patch(
        "rows-not-in-the-key", "A graph takes as many rows as there are.",
        KEYS + ', "key")', '("read", "sampled"), "key") | {"rows": "moving"}',
        "vllm-project/vllm#21228: a batch of another size than the captured one",
    ),
    Wrong.patch(
        "sampled-not-in-the-key", "Greedy and sampled rows go through the same step.",
        KEYS + ', "key")', '("rows", "read"), "key") | {"sampled": "baked"}',
        "huggingface/text-generation-inference#2180: a branch that the warm-up did not take",
    ),
    Wrong.patch(
        "temperature-in-the-key", "A graph for every temperature is safe.",
        MOVING + ', "moving")', '("token", "position", "seed", "live", "cache"), "moving") | {"temperature": "key"}',
        "an author's own slip: right, and as many captures as there are numbers",
    ),
    Wrong.patch(
        "weights-move", "Weights are tensors, so they move.", '("weights", "stride", "vocab"), "baked")',
        '("stride", "vocab"), "baked") | {"weights": "moving"}',
        "the same word for where a tensor is and for what lies there: nobody writes weights while an engine lives",
    ),
    Wrong.patch(
        "cache-baked", "The cache stays where it is, so it is baked.", MOVING + ', "moving")',
        '("token", "position", "seed", "temperature", "live"), "moving") | {"cache": "baked"}',
        "a reader's answer, and this exercise's own first one: its address is baked, and each step writes into it",
    ),
    Wrong.patch(
        "no-further-than-there-is-room", "A position never leaves its row.",
        "position.add_(live)", "position.copy_((position + live).clamp(max=device['cache'].shape[1] - 1))",
        "a reader who saw stub and text alone",
    ),
    Wrong.patch(
        "remainder-of-c", "A remainder has the sign of what is divided.",
        '(device["seed"][:rows] + position) % 7', '(device["seed"][:rows] + position).fmod(7)',
        "a reader who saw stub and text alone",
    ),
    Wrong.patch(
        "padding-writes-to-0", "A padding row writes to slot 0.",
        "text.scatter_(1, position[:, None], token[:, None])",
        "text.scatter_(1, (position * live)[:, None], token[:, None])",
        "a reader who saw stub and text alone",
    ),
    Wrong.patch(
        "greedy-where-all-are-cold", "Where all temperatures are 0 there is no noise to be computed.",
        'if host["sampled"]:',
        'if host["sampled"] and any(host["temperature"][:rows]):',
        "a try of somebody who saw stub and text alone, which passed", unnamed="temperature-baked",
    ),
    Wrong.patch(
        "all-rows-advance", "All rows of the device are the step's.",
        'position.add_(live)',
        'device["position"].add_(device["live"])',
        "a fourth reader who saw stub and text alone; it passed",
    ),
    Wrong.patch(
        "one-position-for-equal-rows", 'Rows that stand at one position stand at one position.',
        '(torch.arange(read) <= position[:, None])',
        '(torch.arange(read) <= (position[:1, None] if len(set(host["position"][:rows])) == 1 else position[:, None]))',
        "a fourth reader who saw stub and text alone; it passed",
    ),
    Wrong.patch(
        "sums-as-floats", "float64 holds every whole number.",
        "score = (text * (torch.arange(read) <= position[:, None])).sum(1) +",
        "score = (text.double() * (torch.arange(read) <= position[:, None])).sum(1).long() +",
        "a fifth reader who saw stub and text alone; it passed",
    ),
    Wrong.patch(
        "no-negative-score", "A remainder is that of the number without its sign.",
        'score % host["vocab"]', 'score.abs() % host["vocab"]', "a fifth reader who saw stub and text alone; it passed",
    ),
    Wrong.patch(
        "stride-as-float", "A stride is a number, and float64 holds every whole one.",
        'host["stride"] * position', '(float(host["stride"]) * position.double()).long()',
        "written to pass all checks that there were, and it did",
    ),
    Wrong.patch(
        "slots-of-8-bits", "Numbers of slots are small.", "(torch.arange(read) <= position[:, None])",
        "(torch.arange(read) % 256 <= position[:, None])", "written to pass all checks that there were, and it did",
    ),
    Wrong.patch(
        "leaves-no-sample", "What a step has used nobody needs.", "position.add_(live)",
        'position.add_(live)\n    device["sampled"].fill_(0)', "written to pass all checks that there were, and it did",
    ),
)  # fmt: skip


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


def in_products(host: dict[str, Any], device: dict[str, Tensor]) -> Result:
    """A product with a mask, summed by columns; a result of its own."""
    rows, read = host["rows"], host["read"]
    token, position, seed, heat, live = (
        device[name][:rows] for name in ("token", "position", "seed", "temperature", "live")
    )
    device["cache"].view(-1).index_copy_(0, torch.arange(rows) * device["cache"].shape[1] + position, token)
    seen = (torch.arange(read)[:, None] <= position).long()  # (read, rows)
    score = (device["cache"][:rows, :read].T * seen).sum(0) + position * host["stride"]
    score = score + heat * ((seed + position) % 7) * host["sampled"]
    device["token"][:rows].copy_(live * device["weights"][score % host["vocab"]])
    device["position"][:rows].copy_(position + live)
    sort = {
        "baked": ("weights", "stride", "vocab"),
        "moving": ("token", "position", "seed", "temperature", "live", "cache"),
        "key": ("rows", "read", "sampled"),
    }
    return token.clone(), {name: kind for kind, names in sort.items() for name in names}


RIGHT = (Right(with_masks), Right(row_by_row), Right(in_products))

_ORDER = "the order in which values are sorted says nothing"
_KINDS = "return (token, kinds | dict.fromkeys({}, 'moving'))"
EQUIVALENT = {
    "kinds = dict.fromkeys(('stride', 'weights', 'vocab'), 'baked')": _ORDER,
    "kinds = dict.fromkeys(('weights', 'vocab', 'stride'), 'baked')": _ORDER,
    "kinds |= dict.fromkeys(('read', 'rows', 'sampled'), 'key')": _ORDER,
    "kinds |= dict.fromkeys(('rows', 'sampled', 'read'), 'key')": _ORDER,
    _KINDS.format("('position', 'token', 'seed', 'temperature', 'live', 'cache')"): _ORDER,
    _KINDS.format("('token', 'position', 'seed', 'live', 'temperature', 'cache')"): _ORDER,
    _KINDS.format("('token', 'position', 'seed', 'temperature', 'cache', 'live')"): _ORDER,
    _KINDS.format("('token', 'position', 'temperature', 'seed', 'live', 'cache')"): _ORDER,
    _KINDS.format("('token', 'seed', 'position', 'temperature', 'live', 'cache')"): _ORDER,
}


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


EDITIONS = (
    Edition(
        "a-column-a-row",
        "the cache is stored the other way round, a column a row: (room, N); and the sort comes first, by kinds: a "
        "list of names for each of the three", sorted_step, played=_sorted_by_kind,
    ),
)  # fmt: skip
