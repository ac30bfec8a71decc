"""Exercise 4.6: warm up, then capture, while rows are live."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nanocourse.exercises import Call, Case, Check, Function, Places, Spec, beside, call
from nanoinfer.engine.graphs import CapturedStep

scenes = beside(__file__, "scenes.py")
places = beside(__file__, "places.py")


def capture(
    step: Callable[[], object],
    state: Tensor,
    warm: Callable[[Callable[[], object]], None],
    record: Callable[[Callable[[], object]], Any],
) -> Any:
    """A recording of `step`, made in the middle of a generation: no live row notices.

    step: one decode step, no arguments. It reads state and the cache, and writes into both. state (3, N) int64, which
    may be a part of a larger tensor: token, position and live of each row; a row whose live is 0 is padding: it writes
    its key and value where nobody looks, and any token and position into state. warm(step): runs it a few times, so
    that kernels are compiled and workspaces are there. record(step): gives the recording, an object of any kind, and
    executes nothing; it fails where the step was not warmed. Whatever either raises, of any class, goes on to the
    caller, itself and no copy; then, too, state and cache are as they were found, in the memory where they were found.
    """
    saved = state.clone()
    state.zero_()
    try:
        warm(step)
        return record(step)
    finally:
        state.copy_(saved)


def swap(mine: Function) -> Places:
    """The runner makes every capture by it, each by itself."""

    @torch.inference_mode()
    def captured(self: Any, keys: Any, on_capture: Any = None) -> None:
        state, recorder = self.state, self.recorder
        numbers = torch.arange(len(state.row), device=state.row.device)

        def told(call: Callable[..., Any], *step: Any) -> Any:
            """Call it, with each row that is not live sent to the dummy row: the exercise has no line for that."""
            state.row.copy_(torch.where(state.live > 0, numbers, state.dummy))
            return call(*step)

        for done, key in enumerate(keys, start=1):
            run, *tensors = self._step(key)
            arguments = run, state.integers[:4], partial(told, recorder.warm), partial(told, recorder.record)
            graph = self._try(key, partial(mine, *arguments))
            told(int)
            if graph is not None:
                self.graphs[key] = CapturedStep(graph, *tensors)
                self.stats.captures += 1
            if on_capture:
                on_capture(done, len(keys))

    return places.RECORDED | {"nanoinfer.engine.graphs:GraphEngine._capture": captured}


def _example() -> Call:
    return call(torch.tensor([[7, 0], [2, 0], [1, 0]]), torch.tensor([[5, 6, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]), "")


EXERCISE = Spec(
    reference=capture,
    lines=7,
    example=_example,
    section="Warm up, then capture",
    axes=("row", "slot"),
    tolerance=1e-9,
    imports=("import torch", "from torch import Tensor"),
    swap=swap,
    pure=False,  # what it is handed is written to
    scene=scenes.captured,
)


def _case(case: Case, fails: str, at_the_end: bool = False, error: str = "MemoryError") -> Call:
    """Rows in the middle of their texts, or one of them at the last slot of its row; all, some or none are live."""
    rows, room = case.turn((1, 2, 3, 300)), 8
    position = case.ints("position", 0, room - 6, rows)
    if at_the_end:
        position[int(case.ints("which", 0, rows - 1))] = room - 1
    live = case.ints("live", 0, 1, rows) if at_the_end else torch.full((rows,), case.choice("nobody", (1, 1, 1, 0)))
    token = case.ints("token", -96, 96, rows) + case.turn((0, 2**54, 0))
    state = torch.stack([token, position, live])
    if case.turn((True, True, False, True, True)):  # one more row, of padding
        state = torch.cat([state, torch.tensor([[55], [1], [0]])], 1).roll(int(case.ints("padding", 0, rows)), 1)
    cache = case.ints("cache", 1, 96, state.shape[1] + 1, room)
    gives = [] if fails else case.turn(([], [[]], [], [(3, 4)], [], [None], [], [""], [], [0]))
    return call(state, cache, fails, 1 if at_the_end else 3, error, case.turn((False, True)), gives)


def live_rows(case: Case) -> Call:
    """A capture changes no state, cache or next token, and hands the recording on, also one that is an empty list."""
    return _case(case, "", case.turn((False, True, False, False, False, True)))


def a_failure(case: Case) -> Call:
    """A warm-up or a recording that fails says so, and leaves all as it was, also after Ctrl-C, an exit or the like."""
    error = case.turn([error for error in scenes.CROSSING for _ in range(2)])
    return _case(case, case.turn(("warm", "record")), error=error)


CHECKS = (Check(live_rows, 10), Check(a_failure, 16, wide=True))
