"""Exercise 4.6: wrong answers and where they come from, correct variants, mutants that are none, an edition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from nanocourse.exercises.exercise import Edition, Function, Right, Wrong
from nanocourse.exercises.scene import Formed

Step = Callable[[], object]
Warm = Callable[[Step], None]
Record = Callable[[Step], Any]


def not_put_back_after_a_failure(step: Step, state: Tensor, warm: Warm, record: Record) -> Any:
    """What fails ends the program, so nothing has to be put back."""
    saved = state.clone()
    state[2].zero_()
    warm(step)
    graph = record(step)
    state.copy_(saved)
    return graph


def failures_swallowed(step: Step, state: Tensor, warm: Warm, record: Record) -> Any:
    """A capture that fails gives no graph, and that is all there is to say."""
    saved = state.clone()
    state.zero_()
    try:
        warm(step)
        return record(step)
    except Exception:
        return None
    finally:
        state.copy_(saved)


TRY = """    saved = state.clone()
    state.zero_()
    try:
        warm(step)
        return record(step)
    finally:
        state.copy_(saved)
"""
WRONG = (
    Wrong.patch(
        "straight", "A warm-up writes nothing.", TRY, "    warm(step)\n    return record(step)\n",
        "ROCm/ATOM#2267: a capture after a wake-up ran with the last batch's slots, and erased live keys",
    ),
    Wrong.patch(
        "capture-alone", "A step that has run before needs no warm-up.", "        warm(step)\n", "",
        "pytorch/pytorch#99397, triton-lang/triton#10596: the first product, or the first compilation, in a capture",
    ),
    Wrong.patch(
        "another-step-is-warmed", "A warm-up warms the device, so any work will do.",
        "        warm(step)\n", "        warm(lambda: state.clone().mul_(1))\n",
        "mstar-project/mstar#55: warmed elsewhere, and the workspace came within the capture",
    ),
    Wrong.patch(
        "rebound", "What was saved is put back.", "state.copy_(saved)", "state = saved",
        "pytorch/pytorch#114844: a name bound anew is seen by nobody else",
    ),
    Wrong.patch(
        "memory-exchanged", "The engine's tensor gets the saved one's memory: that is faster than a copy.",
        "state.copy_(saved)", "state.set_(saved)", "infinigence/ApxInf#89: a reset that gave tensors other memory",
        unnamed="rebound",
    ),
    Wrong.patch(
        "put-back-is-enough", "What the warm-up changes is put back, so it may run with live rows.",
        "    state.zero_()\n", "",
        "vllm-project/vllm#38719: state was put back, and what was written into the cache stayed",
    ),
    Wrong.patch(
        "positions-alone", "Only positions are advanced, so only they are put back.",
        "state.copy_(saved)", "state[1:].copy_(saved[1:])", "an author's own slip: the newest token is another, too",
    ),
    Wrong.patch(
        "tokens-and-positions", "Tokens and positions are put back; who is live has not changed.",
        "state.copy_(saved)", "state[:2].copy_(saved[:2])",
        "an author's own slip: the rows were made padding for the warm-up, and stay so",
    ),
    Wrong.patch(
        "positions-zeroed", "At position 0 a row does no harm.", "state.zero_()", "state[1].zero_()",
        "NVIDIA/TensorRT-LLM#16072 among others: a dummy step over somebody's first token",
    ),
    Wrong.patch(
        "warmed-twice", "A warm-up after the state is put back makes the first replay fast.",
        "        state.copy_(saved)\n", "        state.copy_(saved)\n        warm(step)\n",
        "mstar-project/mstar#55: a warm-up in the wrong place",
    ),
    Wrong(not_put_back_after_a_failure, "this engine's own first version: a failed key cost the batch its rows"),
    Wrong(failures_swallowed, "vllm-project/vllm#37865: eager ever after, and nobody was told"),
    Wrong.patch(
        "all-but-an-exit", "A capture is ended by an error, or by Ctrl-C.",
        TRY[TRY.index("    try") :],
        "    try:\n        warm(step)\n        found = record(step)\n    except (Exception, KeyboardInterrupt):\n"
        "        state.copy_(saved)\n        raise\n    state.copy_(saved)\n    return found\n",
        "written to pass all checks that there were, and it did: a thread that is told to go raises SystemExit",
        unnamed="not-put-back-after-a-failure",
    ),
    Wrong.patch(
        "except-exception", "An error is an Exception.",
        "    try:\n"
        "        warm(step)\n"
        "        return record(step)\n"
        "    finally:\n"
        "        state.copy_(saved)\n",
        "    try:\n"
        "        warm(step)\n"
        "        found = record(step)\n"
        "    except Exception:\n"
        "        state.copy_(saved)\n"
        "        raise\n"
        "    state.copy_(saved)\n"
        "    return found\n",
        "a try of somebody who saw stub and text alone, which passed", unnamed="not-put-back-after-a-failure",
    ),
    Wrong.patch(
        "saved-in-32-bits", "Tokens fit into 32 bits.", "saved = state.clone()", "saved = state.int()",
        "a reader who saw stub and text alone",
    ),
    Wrong.patch(
        "nobody-could-notice", "Where no row is live, nothing has to be put back.",
        '    saved = state.clone()\n',
        '    if not state[2].any():\n        warm(step)\n        return record(step)\n    saved = state.clone()\n',
        "a try of somebody who saw stub and text alone, which passed", unnamed="not-put-back-after-a-failure",
    ),
    Wrong.patch(
        "a-copy-is-cleared", 'A tensor laid end to end is the same tensor.',
        '    state.zero_()\n',
        '    state.contiguous().zero_()\n',
        "a fourth reader who saw stub and text alone; it passed", unnamed="put-back-is-enough",
    ),
    Wrong.patch(
        "all-kinds-named", 'An exception is one of four.',
        '    try:\n        warm(step)\n        return record(step)\n    finally:\n        state.copy_(saved)\n',
        "    try:\n"
        "        warm(step)\n"
        "        found = record(step)\n"
        "    except (Exception, KeyboardInterrupt, SystemExit, GeneratorExit):\n"
        "        state.copy_(saved)\n"
        "        raise\n"
        "    state.copy_(saved)\n"
        "    return found\n",
        "a fourth reader who saw stub and text alone; it passed", unnamed="not-put-back-after-a-failure",
    ),
    Wrong.patch(
        "another-error", "An error of the same kind says the same.", TRY[TRY.index("    try") :],
        "    problem = found = None\n    try:\n        warm(step)\n        found = record(step)\n"
        "    except BaseException as error:\n        problem = error\n    state.copy_(saved)\n"
        "    if problem is not None:\n        raise type(problem)(*problem.args)\n    return found\n",
        "a fifth reader who saw stub and text alone; it passed",
    ),
    Wrong.patch(
        "no-empty-recording", "What is empty was not recorded.",
        "return record(step)", "return record(step) or None", "a fifth reader who saw stub and text alone; it passed",
    ),
    Wrong.patch(
        "every-kind-named", "An exception is one of five.", TRY[TRY.index("    try") :],
        "    from asyncio import CancelledError\n\n    try:\n        warm(step)\n        found = record(step)\n"
        "    except (Exception, KeyboardInterrupt, SystemExit, GeneratorExit, CancelledError):\n"
        "        state.copy_(saved)\n        raise\n    state.copy_(saved)\n    return found\n",
        "written to pass all checks that there were, and it did", unnamed="not-put-back-after-a-failure",
    ),
    Wrong.patch(
        "padding-needs-nothing", "Rows of nobody are restored to nothing.", "saved = state.clone()",
        "saved = state.clone()\n    saved[0].masked_fill_(saved[2] == 0, 0)",
        "written to pass all checks that there were, and it did",
    ),
    Wrong.patch(
        "runs-as-a-generator", "What a generator raises is what its caller gets.", TRY[TRY.index("    try") :],
        "    def run():\n        try:\n            warm(step)\n            yield record(step)\n"
        "        finally:\n            state.copy_(saved)\n\n    return next(run())\n",
        "written to pass all checks that there were, and it did", unnamed="another-error",
    ),
    Wrong.patch(
        "first-of-two", "A tuple is a graph and its result.", "return record(step)",
        "found = record(step)\n        return found[0] if isinstance(found, tuple) else found",
        "written to pass all checks that there were, and it did",
    ),
    Wrong.patch(
        "padding-stays-where-it-is", "A row of nobody does not advance, so its position need not be put back.",
        TRY, TRY.replace("state.zero_()", "state[2] = 0").replace("state.copy_(saved)", "state[::2] = saved[::2]"),
        "a reader who saw stub and text alone; it passed",
    ),
)  # fmt: skip


def only_live(step: Step, state: Tensor, warm: Warm, record: Record) -> Any:
    """Only `live` is cleared, which makes a row padding; everything is put back, row by row."""
    before = [row.clone() for row in state]
    state[2] = 0
    try:
        warm(step)
        graph = record(step)
    finally:
        for row, old in zip(state, before, strict=True):
            row[:] = old
    return graph


def failures_told_on(step: Step, state: Tensor, warm: Warm, record: Record) -> Any:
    """No finally: an error is caught, everything is put back, and it is raised again."""
    before = state.tolist()

    def put_back() -> None:
        state.copy_(state.new_tensor(before))

    state.fill_(0)
    try:
        warm(step)
        graph = record(step)
    except BaseException:
        put_back()
        raise
    put_back()
    return graph


def by_multiplying(step: Step, state: Tensor, warm: Warm, record: Record) -> Any:
    """Cleared by multiplying with 0; added back at the end, between the warm-up and the recording as well."""
    before = state + 0
    try:
        state.mul_(0)
        warm(step)
        state.mul_(0).add_(before)
        state.mul_(0)
        return record(step)
    finally:
        state.mul_(0).add_(before)


RIGHT = (Right(only_live), Right(failures_told_on), Right(by_multiplying))

EQUIVALENT: dict[str, str] = {}


def capture_rows(
    step: Step, token: Tensor, position: Tensor, live: Tensor, warm: Warm, record: Record
) -> tuple[list[int], Any]:
    """The numbers of the live rows, and a recording of `step`, made in the middle of their generation; none notices.

    step: one decode step, no arguments. It reads token, position, live and the cache, and writes into all but live.
    token, position, live (N,) int64: of each row; a row whose live is 0 is padding: it writes its key and value where
    nobody looks. warm(step): runs it a few times, so that kernels are compiled and workspaces are there. record(step):
    gives the recording, an object of any kind, and executes nothing; it fails where the step was not warmed. Whatever
    either raises, of any class, goes on to the caller, itself and no copy; then, too, the three tensors and the cache
    are as they were found, in the memory where they were found.
    """
    saved = [(tensor, tensor.clone()) for tensor in (token, position, live)]
    rows = [row for row, lives in enumerate(live.tolist()) if lives]
    live.fill_(0)
    try:
        warm(step)
        return rows, record(step)
    finally:
        for tensor, found in saved:
            tensor.copy_(found)


def _apart(step: Step, state: Tensor, warm: Warm, record: Record) -> tuple[Any, ...]:
    return step, *state, warm, record


def _recording(found: tuple[list[int], Any], step: Step, state: Tensor, *args: object) -> Any:
    rows, graph = found
    if rows != state[2].nonzero().flatten().tolist():
        raise TypeError(f"the live rows are others than {rows!r:.60}")
    return graph


def _of_three(answer: Function) -> Function:
    return Formed(answer, _apart, _recording)


EDITIONS = (
    Edition(
        "three-tensors",
        "token, position and live are three tensors, and the numbers of the live rows come before the recording",
        capture_rows, played=_of_three,
    ),
)  # fmt: skip
