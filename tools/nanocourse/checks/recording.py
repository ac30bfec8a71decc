"""A recorded step as it crosses from the process that runs an answer to the one that replays it: operations, as data.

In the worker: `told`. In the grader: `Recording`, which accepts operations on numbers alone, of bounded size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from nanocourse.checks.memory import MOST_NUMBERS, Shared
from nanocourse.checks.wire import BROKEN, WireError
from nanoinfer.engine import fake_graph

MOST_OPERATIONS = 4096
LENT = "lent"  # in place of an operation's name: a function of the grader's was called here
KINDS = {str(one): one for one in vars(torch).values() if isinstance(one, torch.dtype | torch.layout)} | {
    str(one): one for one in (torch.contiguous_format, torch.preserve_format, torch.device("cpu"))
}
# Operations that are neither "core" nor "pointwise" by PyTorch's tags, and work on the numbers that they are given.
OTHERS = (
    "_log_softmax", "_reshape_alias", "_softmax", "_to_copy", "_unsafe_view", "addmv", "alias", "all", "amax",
    "amin", "aminmax", "any", "arange", "argmax", "argmin", "argsort", "baddbmm", "bitwise_left_shift_",
    "bucketize", "clone", "copy_", "count_nonzero", "cummax", "cummin", "cumprod", "cumsum_", "detach", "diff",
    "dot", "eye", "fill_", "flip", "floor_divide", "floor_divide_", "full", "full_like", "gather", "index_add_",
    "index_copy_", "index_fill", "index_fill_", "index_put_", "index_select", "isin", "kthvalue", "lift",
    "lift_fresh", "lift_fresh_copy", "linspace", "logcumsumexp", "logsumexp", "masked_fill_", "masked_scatter",
    "mean", "median", "mode", "mv", "new_empty", "new_full", "new_ones", "new_zeros", "one_hot", "ones",
    "ones_like", "outer", "prod", "remainder_", "repeat_interleave", "roll", "scalar_tensor", "scatter_",
    "scatter_add_", "scatter_reduce_", "searchsorted", "sort", "squeeze_", "stack", "std", "sum", "t_", "take",
    "take_along_dim", "topk", "transpose_", "tril", "tril_indices", "triu", "triu_indices", "unfold",
    "unfold_copy", "unsqueeze_", "var", "view", "where", "zero_", "zeros", "zeros_like",
)  # fmt: skip
MOVES = ("resize_", "resize", "set_", "resize_as_")  # other memory, which nobody shares


class NotReplayed(RuntimeError):
    """A step does what is not replayed elsewhere."""


def told(function: Callable[[], Any], shared: Shared) -> tuple[list[list[Any]], Any]:
    """What a step did, one entry an operation; and its result."""
    graph, result = fake_graph.record(function)
    if len(graph._calls) > MOST_OPERATIONS:
        raise NotReplayed(f"a step of more than {MOST_OPERATIONS} operations is not replayed")
    return [_entry(call, shared) for call in graph._calls], result


def note_lent(number: int) -> bool:
    """Note a call of a function of the grader's in the recording that is running; False if none is."""
    recorder = fake_graph._recorder()
    if recorder is not None:
        recorder.graph._note(LENT, partial(note_lent, number))
    return recorder is not None


def _entry(call: Any, shared: Shared) -> list[Any]:
    if call.func is note_lent:
        return [LENT, call.args[0]]
    again = call.args[0] if call.func is fake_graph._run_again else None
    if again is None or not isinstance(again.func, torch._ops.OpOverload):
        raise NotReplayed("random numbers and kernels of Triton are not replayed")
    packed = tree_map(partial(_packed, shared), [list(again.args), again.keywords, list(call.args[1])])
    return [str(again.func), *packed]


def _packed(shared: Shared, value: Any) -> Any:
    if isinstance(value, Tensor):
        place = shared.refer(value)
        return {"M": place} if place else {"E": [str(value.dtype), list(value.shape)]}
    if value is None or type(value) in (bool, int, float, str):
        return value if type(value) is not float or value - value == 0 else {"f": repr(value)}
    if isinstance(value, torch.Size):
        return list(value)
    if str(value) not in KINDS:
        raise NotReplayed(f"an operation on a value of type {type(value).__name__} is not replayed")
    return {"x": str(value)}


class Recording:
    """Operations, run on this side's copy of the memory. lent: functions by number, recorded when they were called."""

    def __init__(self, entries: Any, shared: Shared, lent: Sequence[Callable[[], object]]) -> None:
        """WireError for what no answer does: the entries come from a process that runs anybody's code."""
        waiting = list(lent)
        self._calls: list[Callable[[], object]] = []
        try:
            if not isinstance(entries, list) or len(entries) > MOST_OPERATIONS:
                raise WireError("it recorded too much")
            for entry in entries:
                self._calls.append(waiting.pop(0) if entry[0] == LENT else _operation(entry, shared))
        except BROKEN as error:
            raise WireError("it recorded what cannot be replayed") from error

    @torch.no_grad()
    def replay(self) -> None:
        """Run it once."""
        for call in self._calls:
            call()


def _operation(entry: Any, shared: Shared) -> Callable[[], object]:
    name, *rest = entry
    function = _known(name)
    args, kwargs, places = (_unpacked(shared, one) for one in rest)
    made = function(*_meta(args), **_meta(kwargs))  # shapes alone
    if any(leaf.numel() > MOST_NUMBERS for leaf in tree_leaves(made) if isinstance(leaf, Tensor)):
        raise WireError(f"{name} makes too many numbers")

    def run() -> None:
        for leaf, place in zip(tree_leaves(function(*args, **kwargs)), places, strict=True):
            if place is not None:
                place.copy_(leaf)

    return run


def _known(name: str) -> Any:
    """The operation of that name. WireError if it is none that works on numbers alone."""
    space, base, overload = str(name).split(".", 2) if str(name).count(".") == 2 else ("", "", "")
    plain = base.rstrip("_") if not base.startswith("_") else base
    overloads = [
        getattr(packet, one)
        for packet in (getattr(torch.ops.aten, each, None) for each in (base, plain))
        if packet is not None
        for one in packet.overloads()
    ]
    tagged = any({torch.Tag.core, torch.Tag.pointwise} & set(one.tags) for one in overloads)
    if space != "aten" or base in MOVES or not (tagged or base in OTHERS or plain in OTHERS):
        raise WireError(f"the operation {str(name)[:80]} is none that is replayed")
    return getattr(getattr(torch.ops.aten, base), overload)


def _unpacked(shared: Shared, value: Any) -> Any:  # noqa: PLR0911  one for each kind of value
    if isinstance(value, list):
        return [_unpacked(shared, one) for one in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"M"}:
        return shared.tensor(value["M"])
    if set(value) == {"E"}:
        if 0 not in value["E"][1]:
            raise WireError("a tensor without a place has numbers")
        return torch.empty(value["E"][1], dtype=KINDS[value["E"][0]])  # type: ignore[arg-type]
    if set(value) == {"f"}:
        return float(value["f"])
    if set(value) == {"x"}:
        return KINDS[value["x"]]
    return {str(key): _unpacked(shared, one) for key, one in value.items()}


def _meta(value: Any) -> Any:
    """The same without numbers."""
    meta = torch.device("meta")
    value = tree_map_only(Tensor, lambda t: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=meta), value)
    return tree_map_only(torch.device, lambda _: meta, value)
