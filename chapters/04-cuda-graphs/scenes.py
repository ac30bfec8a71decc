"""How the exercises of chapter 4 are played: a scene calls a learner's function where a step is recorded and replayed.

A learner's function is in a process of its own; a scene is not. What the function writes into tensors that it was given
is written here, and what it did in a recorded step comes as a list of operations, which is replayed here: see
`nanocourse.exercises.scene`. Without a GPU a stand-in records: `nanoinfer.engine.fake_graph`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nanocourse.exercises.chapters import run_folder
from nanocourse.exercises.scene import CROSSING, Lent, NoVerdict, kept_of, nothing, record

MARKING = run_folder(Path(__file__).parent / "lies")("marking")
Tensors = dict[str, Tensor]
INPUTS = ("token_ids", "positions", "row", "starts", "logits_at", "logits_row")
OF_A_ROW = ("token", "position", "seed", "temperature", "live")
LARGE = 1e6  # no live row's mean is larger
METHODS, VALUES = ("admit", "release", "reset", "step", "run", "texts"), ("missed", "k")  # of an engine, for its test
RUNS = 3  # of a step in a warm-up: PyTorch's own examples do so many


def decoded(
    answer: Callable[..., Any],
    weights: Tensor,
    batch: Tensor,
    room: int,
    script: Sequence[dict[str, Any]],
    tells: bool = True,
    stride: int = 3,
) -> dict[str, Any]:
    """Tokens and all rows' positions after every step, by a dict of graphs whose key is what the answer calls one; and
    what is left on the device at last.

    weights (V,) int64. batch (5, N) int64: token, position, seed, temperature and live of each row, at the start. room:
    slots of a row's cache. script: of each step its rows, read and sampled, and the rows that are admitted before it.
    tells: whether the sort is told, too.
    """
    device: Tensors = dict(zip(OF_A_ROW, batch.clone(), strict=True))
    device |= {"weights": weights, "cache": torch.zeros(batch.shape[1], room, dtype=torch.int64)}
    device |= {name: torch.zeros((), dtype=torch.int64) for name in ("rows", "read", "sampled")}
    graphs: dict[str, tuple[Any, Tensor]] = {}
    kinds: dict[str, str] = {}
    tokens, positions = [], []
    for now in script:
        shape = {name: now[name] for name in ("rows", "read", "sampled")}
        for row, *values in now["admitted"]:
            for name, value in zip(OF_A_ROW, values, strict=True):
                device[name][row] = value
        for name, value in shape.items():
            device[name].fill_(value)
        host = {name: device[name].tolist() for name in OF_A_ROW} | shape | {"stride": stride, "vocab": len(weights)}
        known = graphs.get(_key(kinds, host)) if kinds else None
        if known is None:
            graph, (result, kinds) = record(answer, host, dict(device))  # what it binds there ends with the call
            known = graphs[_key(kinds, host)] = graph, result
        known[0].replay()
        tokens.append(known[1].tolist())
        positions.append(device["position"].tolist())
    return {"tokens": tokens, "positions": positions, "left": device} | ({"kinds": dict(kinds)} if tells else {})


def _key(kinds: dict[str, str], host: dict[str, Any]) -> str:
    """The values that are sorted as the key's, and have one on the host."""
    return repr([host[name] for name in sorted(kinds) if kinds[name] == "key" and name in host])


def fed(
    answer: Callable[..., Any],
    rows: int,
    tokens: int,
    nobody: int,
    batches: Sequence[Tensors],
    recordings: int = 1,
    choices: int = 0,
    left: bool = False,
) -> list[Tensors]:
    """What a recorded step of so many tokens and rows, and one of padding, finds in its inputs, batch after batch.

    recordings: how many of them there are, which take the batches in turn; each has inputs of its own. choices:
    room for so many, or for as many as rows. nobody: of the first batch; of each other one the number behind. left:
    whether any numbers stand in the inputs before each call, some of them those that padding has then; these inputs
    are parts of larger tensors, and nobody is the same for all batches.
    """
    made, seen = [_recorded_inputs(rows, tokens, nobody, choices or rows, 1 + left) for _ in range(recordings)], []
    for number, new in enumerate(batches):
        static, graph, found = made[number % recordings]
        given = {name: tensor.clone() for name, tensor in new.items()}
        padding = nobody + number * (not left)
        if left:
            _leave(static, [0, padding, len(new["token_ids"])], number)
        nothing(answer({name: tensor.detach() for name, tensor in static.items()}, given, padding))
        for tensor in given.values():
            tensor.fill_(-1)  # of it nothing may be needed after the call
        graph.replay()
        seen.append({name: tensor.clone() for name, tensor in found.items()})
    return seen


def _recorded_inputs(rows: int, tokens: int, nobody: int, choices: int, every: int) -> tuple[Tensors, Any, Tensors]:
    lengths = (tokens, tokens, tokens, rows + 2, choices, choices)
    static = {
        name: torch.zeros(length * every, dtype=torch.int64)[::every]
        for name, length in zip(INPUTS, lengths, strict=True)
    }
    static["row"].fill_(nobody)
    static["logits_row"].fill_(nobody)
    static["starts"][-1] = tokens
    inputs = dict(static)
    graph, found = record(lambda: {name: tensor + 0 for name, tensor in inputs.items()})
    return static, graph, found


def _leave(static: Tensors, padding: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for at, tensor in enumerate(static.values(), seed):
        others = torch.randint(2**40, tensor.shape, generator=generator)
        known = torch.tensor(padding)[others % len(padding)]
        tensor.copy_(torch.where(others % 2 > 0, known, others - 2**39))
        if at % 4 == 0:
            tensor.fill_(padding[seed % len(padding)])


def attended(
    answer: Callable[..., Any], pool: Tensor, null: int, batches: Sequence[Tensors], width: int, first: int = 0
) -> dict[str, Any]:
    """What live rows get, batch after batch, and what is in the pool at last, block null aside. The answer is recorded.

    pool (blocks, block_size) float32. batches: x, position and live (B,), tables (B, width). In the step every row
    writes its x into its slot, and takes the mean of its text; then all are scaled by the largest, where that is a very
    large one, so that what is infinite or NaN in one row shows in all. first: the number by which the answer knows the
    pool's first block, as if many others stood before it. "reads": whether each row reads a token, and none behind its
    table, and whether what the answer was given is as it was. "shapes": of what it gives.
    """
    pool, size = pool.clone(), pool.shape[1]
    state = {name: tensor.clone() for name, tensor in batches[0].items()}
    named = state["tables"] + first

    def step() -> Tensor:
        pool.view(-1)[slots.long() - first * size] = state["x"]
        text = pool[tables.long() - first].flatten(1)  # (B, width * size)
        inside = torch.arange(width * size) < lengths[:, None]
        mean = text.masked_fill(~inside, 0.0).sum(1) / lengths
        return mean / (mean.abs().amax().clamp(min=LARGE) / LARGE)

    graph, (slots, lengths, tables) = record(answer, state["position"], state["live"], named, null + first, size)
    out, reads = [], []
    for batch in batches:
        for name, tensor in state.items():
            tensor.copy_(batch[name])
        named.copy_(state["tables"] + first)
        graph.replay()
        same = all(tensor.equal(batch[name]) for name, tensor in state.items())
        same &= named.equal(state["tables"] + first)
        reads.append([bool(((lengths > 0) & (lengths <= width * size)).all()), same])
        out.append(step()[batch["live"].bool()])
    pool[null] = 0
    return {"rows": out, "pool": pool, "reads": reads, "shapes": [list(one.shape) for one in (slots, lengths, tables)]}


def captured(
    answer: Callable[..., Any],
    state: Tensor,
    cache: Tensor,
    fails: str,
    replays: int = 3,
    error: str = "MemoryError",
    part: bool = False,
    gives: Sequence[Any] = (),
) -> dict[str, Any]:
    """What a capture leaves behind, and the tokens of some replays after it.

    state (3, N) int64: token, position, live. cache (N + 1, room) int64, the last row for padding. A step writes each
    row's token at its position, one row's slots behind the other's, and advances all rows, those of padding in a
    circle. fails: at which of "warm" and "record" the step raises, if at any. error: which of CROSSING. part: state is
    every second number of a larger tensor, a column of it a row. gives: the one object that `record` gives in place of
    the recording, if any. "handed on": whether that, or what was raised, came out as the object that it was.
    """
    found, cache, (spare, room) = state, cache.clone(), (len(cache) - 1, cache.shape[1])
    around = torch.full((2 * state.shape[1], 4 if part else 3), -1)
    state = around[::2, :3].T if part else state.clone()
    state.copy_(found)
    asked: list[str] = []
    compiled: list[int] = []
    made: list[Any] = []  # the recording, or what was raised
    row = torch.arange(spare)

    def step() -> None:
        token, position, live = state
        cache.view(-1)[torch.where(live > 0, row, spare) * room + position] = token
        seen = torch.arange(room) <= position[:, None]
        token.copy_(((cache[:spare] * seen).sum(1) * 5 + position) % 97 * live)
        position.copy_(torch.where(live > 0, position + 1, (position + 1) % room))
        compiled.append(1)
        if asked[-1:] == [fails]:
            made.append(CROSSING[error](error))
            raise made[-1]

    def warm(step: Callable[[], object]) -> None:
        asked.append("warm")
        for _ in range(RUNS):
            step()

    def recorded(step: Callable[[], object]) -> Any:
        asked.append("record")
        if not compiled:
            raise MemoryError("a kernel would be compiled within the capture")
        made.append(record(step)[0])
        return gives[0] if gives else made[-1]

    try:
        result, told = answer(step, state, warm, recorded), ""
        same = type(result) is type(gives[0]) and result == gives[0] if gives else result in made
    except (Exception, *CROSSING.values()) as problem:
        told = type(problem).__name__
        if told not in CROSSING or not problem.args:
            raise
        same = getattr(problem, "lent", problem) in made
    left = {"asked": list(asked), "error": told, "state": state.clone(), "cache": cache[:spare].clone()}
    left["around"] = [around[1::2].clone(), around[:, 3:].clone()]
    tokens = [_token_after(made[-1], state) for _ in range(0 if told or not made else replays)]
    return left | {"handed on": same, "tokens": tokens}


def _token_after(graph: Any, state: Tensor) -> list[int]:
    graph.replay()
    return state[0].tolist()


def kept(
    answer: Callable[..., Any], start: Tensor, count: int, every: int, below: int = 99_991, more: int = 2
) -> dict[str, Any]:
    """Every step's tokens of some calls, looked at after one replay more, and how many replays the answer asked for.

    The tokens are every entry of the recorded result, or every second, or third one, all of them below `below`, or
    above where that is negative. more: calls behind the first one, of two steps each, or fewer where count is less.
    kinds: whether all gave a list, and of what each step's are.
    """
    state, replays = start.clone(), []
    graph, tokens = record(lambda: state.mul_(5).add_(torch.arange(len(state)) + 3).remainder_(below)[::every])

    def replay() -> None:
        replays.append(1)
        graph.replay()

    calls = [answer(replay, tokens, steps) for steps in [count, *[min(count, 2)] * more]]
    found = [step for one in calls for step in one]
    asked = len(replays)
    graph.replay()
    kinds = ["a list" if all(isinstance(one, list) for one in calls) else "no list", *map(_kind, found)]
    return {"tokens": [[int(token) for token in step] for step in found], "kinds": kinds, "replays": asked}


def _kind(step: Any) -> str:
    if not isinstance(step, Tensor):
        return type(step).__name__
    return f"a {step.dim()}-dimensional tensor of {'floats' if step.is_floating_point() else 'whole numbers'}"


class RightEngineFailed(Exception):
    """A test says of an engine that is right that it is wrong: of which one, and where in the test."""

    def __init__(self, told: str, where: str) -> None:
        super().__init__(told)
        self.where = where


def marked(answer: Callable[..., None], names: Sequence[str]) -> dict[str, str]:
    """What a test of engines makes of these: "passes" or "fails"; each engine is tried once.

    An error at the first right engine that it fails: a slip in the test does that, too, and has to be found.
    """
    errors: list[Exception] = []

    def test(make: Callable[..., Any]) -> None:
        def lent(**options: Any) -> Lent:
            return Lent(make(**options), METHODS, VALUES)

        try:
            told = answer(lent)
        except Exception as error:
            if type(error).__name__ == "NotImplementedError":
                raise NoVerdict(error) from None
            errors.append(error)
            raise
        try:
            nothing(told)
        except TypeError as error:
            raise NoVerdict(error) from None

    known = kept_of(answer)
    try:
        for name in names:
            if name not in known:
                told = MARKING.verdict(test, name)
                known[name] = "fails" if told else "passes"
                if told and name in MARKING.RIGHT:
                    known[name] = error = errors[-1]
                    if type(error).__name__ == "AssertionError":
                        known[name] = RightEngineFailed(f"{name}: {told}", getattr(error, "where", ""))
            if isinstance(known[name], Exception):
                raise known[name]
    except NoVerdict as error:
        raise error.args[0] from None
    return {name: known[name] for name in names}
