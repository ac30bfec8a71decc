"""Two runs of the same prompts side by side, the learner's and the reference's: time, memory and tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nanoinfer.requests import Completion, SamplingParams

if TYPE_CHECKING:
    from nanoinfer.llm import LLM


def side_by_side(done: Sequence[Completion], reference: Sequence[Completion], sizes: Sequence[int]) -> list[str]:
    """Lines of a small table. sizes: bytes of each run, as `last_token_bytes` counts them, or none."""
    rows: list[tuple[str, ...]] = [("", "yours", "reference")]
    rows += zip(("TTFT", "speed"), _times(done), _times(reference), strict=True)
    rows += [("memory", *(f"{size / 1e6:.2f} MB" for size in sizes))] if sizes else []
    table = ["".join((f"{name:<8}", *(f"{value:>18}" for value in values))) for name, *values in rows]
    return [*table, f"text    {_first_difference(done, reference)}"]


def _times(done: Sequence[Completion]) -> tuple[str, str]:
    """Time to the first token, and tokens a second of all texts together."""
    tokens, seconds = sum(len(one.token_ids) for one in done), max(one.metrics.total_s for one in done)
    return f"{1000 * min(one.metrics.ttft_s for one in done):.1f} ms", f"{tokens / seconds:.1f} tokens/s"


def _first_difference(done: Sequence[Completion], reference: Sequence[Completion]) -> str:
    """Where the learner's tokens begin to differ from the reference's, if they do."""
    for one, other in zip(done, reference, strict=True):
        mine, theirs = one.token_ids, other.token_ids
        if mine != theirs:
            same = (at for at, pair in enumerate(zip(mine, theirs, strict=False)) if pair[0] != pair[1])
            at = next(same, min(len(mine), len(theirs)))
            return f"other tokens: text {one.index + 1}, from new token {at + 1} on"
    return "the same tokens"


def last_token_bytes(llm: LLM, done: Completion) -> int:
    """The most bytes in tensors while the last token of a text is computed once more."""
    text = [*done.prompt_token_ids, *done.token_ids[:-1]]
    requests = llm.requests([text], SamplingParams(max_tokens=1, temperature=0))
    steps = llm.core.generate(requests)
    size: int = llm.loop.worker.submit(peak_bytes, lambda: list(steps)).result()  # where the engine runs, and in turn
    return size


def peak_bytes(run: Callable[[], object]) -> int:
    """The most bytes at one time in tensors that were made while `run` ran; tensors from before are not counted."""
    with _Tensors() as tensors:
        run()
    return int(tensors.peak)


class _Tensors(TorchDispatchMode):  # type: ignore[misc, no-untyped-call]
    """Follows the storage of every tensor that an operation returns, as long as it lives."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self.before: set[int] = set()
        self.peak: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.alive = {key: one for key, one in self.alive.items() if not one[0].expired()}  # type: ignore[no-untyped-call]
        given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        self.before |= given - self.alive.keys()
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self.before and storage._cdata not in self.alive:
                    reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
                    self.alive[storage._cdata] = (reference, storage.nbytes())
        self.peak = max(self.peak, sum(size for _, size in self.alive.values()))
        return out
