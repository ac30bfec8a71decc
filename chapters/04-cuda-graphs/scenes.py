"""How the exercises of chapter 4 are played: a scene calls a learner's function where a step is recorded and replayed.

A graph knows tensors by their addresses, and a tensor that crosses from process to process has another one there. So
scenes run beside the learner's function. Without a GPU a stand-in records: `nanoinfer.engine.fake_graph`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from nanocourse.exercises.chapters import run_file
from nanoinfer.engine.fake_graph import record

# Read now: where work is graded, a worker may read no file once it has a learner's code in it.
MARKING = run_file(Path(__file__).parent / "lies" / "loading.py", "nanoinfer_ch04_loading").lies("marking")
Tensors = dict[str, Tensor]
INPUTS = ("token_ids", "positions", "row", "starts", "logits_at", "logits_row")
OF_A_ROW = ("token", "position", "seed", "temperature", "live")
LARGE = 1e6  # no live row's mean is larger
RUNS = 3  # of a step in a warm-up: PyTorch's own examples do so many


def on_the_host(scene: Callable[..., Any]) -> Callable[..., Any]:
    """Scenes are played on a CPU, with the stand-in, wherever the numbers come from."""

    @wraps(scene)
    def played(answer: Callable[..., Any], *args: Any) -> Any:
        return scene(answer, *tree_map_only(Tensor, Tensor.cpu, args))

    return played


@on_the_host
def decoded(
    answer: Callable[..., Any],
    weights: Tensor,
    batch: Tensor,
    room: int,
    script: Sequence[dict[str, Any]],
    tells: bool = True,
) -> dict[str, Any]:
    """Tokens and positions after every step, by a dict of graphs whose key is what the answer calls one; and its sort.

    weights (V,) int64. batch (5, N) int64: token, position, seed, temperature and live of each row, at the start. room:
    slots of a row's cache. script: of each step its rows, read and sampled, and the rows that are admitted before it.
    tells: whether the sort is told.
    """
    device: Tensors = dict(zip(OF_A_ROW, batch.clone(), strict=True))
    device |= {"weights": weights, "cache": torch.zeros(batch.shape[1], room, dtype=torch.int64)}
    device |= {name: torch.zeros((), dtype=torch.int64) for name in ("rows", "read", "sampled")}
    given = dict(device)
    graphs: dict[str, tuple[Any, Tensor]] = {}
    kinds: dict[str, str] = {}
    tokens, positions = [], []
    for now in script:
        shape = {name: now[name] for name in ("rows", "read", "sampled")}
        for row, *values in now["admitted"]:
            for name, value in zip(OF_A_ROW, values, strict=True):
                given[name][row] = value
        for name, value in shape.items():
            given[name].fill_(value)
        host = {name: given[name].tolist() for name in OF_A_ROW} | shape | {"stride": 3, "vocab": len(weights)}
        known = graphs.get(_key(kinds, host)) if kinds else None
        if known is None:
            graph, (result, kinds) = record(partial(answer, host, device))
            known = graphs[_key(kinds, host)] = graph, result
        known[0].replay()
        tokens.append(known[1].tolist())
        positions.append(given["position"][: now["rows"]].tolist())
    return {"tokens": tokens, "positions": positions} | ({"kinds": dict(kinds)} if tells else {})


def _key(kinds: dict[str, str], host: dict[str, Any]) -> str:
    """The values that are sorted as the key's, and have one on the host."""
    return repr([host[name] for name in sorted(kinds) if kinds[name] == "key" and name in host])


@on_the_host
def fed(answer: Callable[..., Any], rows: int, tokens: int, nobody: int, batches: Sequence[Tensors]) -> list[Tensors]:
    """What a recorded step of so many tokens and rows, and one of padding, finds in its inputs, batch after batch."""
    lengths = (tokens, tokens, tokens, rows + 2, rows, rows)
    static = {name: torch.zeros(length, dtype=torch.int64) for name, length in zip(INPUTS, lengths, strict=True)}
    static["row"].fill_(nobody)
    static["logits_row"].fill_(nobody)
    static["starts"][-1] = tokens
    inputs = dict(static)
    graph, found = record(lambda: {name: tensor + 0 for name, tensor in inputs.items()})
    seen = []
    for new in batches:
        answer(static, new, nobody)
        graph.replay()
        seen.append({name: tensor.clone() for name, tensor in found.items()})
    return seen


@on_the_host
def attended(
    answer: Callable[..., Any], pool: Tensor, null: int, batches: Sequence[Tensors], width: int
) -> dict[str, Any]:
    """What live rows get from a recorded step, batch after batch, and what is in the pool at last, block null aside.

    pool (blocks, block_size) float32. batches: x, position and live (B,), tables (B, width). In the step every row
    writes its x into its slot, and takes the mean of its text; then all are scaled by the largest, where that is a very
    large one, so that what is infinite or NaN in one row shows in all.
    """
    pool, size = pool.clone(), pool.shape[1]
    state = {name: tensor.clone() for name, tensor in batches[0].items()}

    def step() -> Tensor:
        slots, lengths, tables = answer(state["position"], state["live"], state["tables"], null, size)
        pool.view(-1)[slots] = state["x"]
        text = pool[tables].flatten(1)  # (B, width * size)
        inside = torch.arange(width * size) < lengths[:, None]
        mean = text.masked_fill(~inside, 0.0).sum(1) / lengths
        return mean / (mean.abs().amax().clamp(min=LARGE) / LARGE)

    graph, found = record(step)
    out = []
    for batch in batches:
        for name, tensor in state.items():
            tensor.copy_(batch[name])
        graph.replay()
        out.append(found[batch["live"].bool()])
    pool[null] = 0
    return {"rows": out, "pool": pool}


@on_the_host
def captured(answer: Callable[..., Any], state: Tensor, cache: Tensor, fails: str, replays: int = 3) -> dict[str, Any]:
    """What a capture leaves behind, and the tokens of some replays after it.

    state (3, N) int64: token, position, live. cache (N + 1, room) int64, the last row for padding. A step writes each
    row's token at its position, one row's slots behind the other's, and advances all rows. fails: at which of "warm"
    and "record" the step raises, if at any.
    """
    state, cache, (spare, room) = state.clone(), cache.clone(), (len(cache) - 1, cache.shape[1])
    asked: list[str] = []
    compiled: list[int] = []
    row = torch.arange(spare)

    def step() -> None:
        token, position, live = state
        cache.view(-1)[torch.where(live > 0, row, spare) * room + position] = token
        seen = torch.arange(room) <= position[:, None]
        token.copy_(((cache[:spare] * seen).sum(1) * 5 + position) % 97 * live)
        position.add_(live)
        compiled.append(1)
        if asked[-1:] == [fails]:
            raise MemoryError("out of memory")

    def warm(step: Callable[[], object]) -> None:
        asked.append("warm")
        for _ in range(RUNS):
            step()

    def recorded(step: Callable[[], object]) -> Any:
        asked.append("record")
        if not compiled:
            raise MemoryError("a kernel would be compiled within the capture")
        return record(step)[0]

    try:
        graph, error = answer(step, state, warm, recorded), ""
    except MemoryError as problem:
        graph, error = None, str(problem)
    left = {"asked": list(asked), "error": error, "state": state.clone(), "cache": cache[:spare].clone()}
    return left | {"tokens": [_token_after(graph, state) for _ in range(0 if error else replays)]}


def _token_after(graph: Any, state: Tensor) -> list[int]:
    graph.replay()
    return state[0].tolist()


@on_the_host
def kept(answer: Callable[..., Any], start: Tensor, count: int, every: int) -> dict[str, Any]:
    """Every step's tokens, looked at after one replay more, and how many replays the answer has asked for.

    The tokens are every entry of the recorded result, or every second, or third one.
    """
    state, replays = start.clone(), []
    graph, tokens = record(lambda: state.mul_(5).add_(torch.arange(len(state)) + 3).remainder_(1009)[::every])

    def replay() -> None:
        replays.append(1)
        graph.replay()

    found = answer(replay, tokens, count)
    asked = len(replays)
    graph.replay()
    return {"tokens": [[int(token) for token in step] for step in found], "replays": asked}


class NotBegun(BaseException):
    """A test that was not written yet: no engine broke down, and no mistake of one was found."""


class RightEngineFailed(Exception):
    """A test says of an engine that is right that it is wrong: of which one, and where in the test."""


def marked(answer: Callable[..., None], names: Sequence[str]) -> dict[str, str]:
    """What a test of engines makes of these: "passes" or "fails"; each engine is tried once.

    An error at the first right engine that it fails: a slip in the test does that, too, and has to be found.
    """
    errors: list[Exception] = []

    def test(make: Callable[..., Any]) -> None:
        try:
            answer(make)
        except NotImplementedError as error:
            raise NotBegun(*error.args) from None
        except Exception as error:
            errors.append(error)
            raise

    known = answer.__dict__.setdefault("marks", {})
    try:
        for name in names:
            if name not in known:
                told = MARKING.verdict(test, name)
                known[name] = "fails" if told else "passes"
                if told and name in MARKING.RIGHT:
                    known[name] = error = errors[-1]
                    if isinstance(error, AssertionError):
                        known[name] = RightEngineFailed(f"{name}: {told}").with_traceback(error.__traceback__)
            if isinstance(known[name], Exception):
                raise known[name]
    except NotBegun as error:
        raise NotImplementedError(*error.args) from None
    return {name: known[name] for name in names}
