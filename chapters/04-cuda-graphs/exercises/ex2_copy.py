"""Exercise 4.2: the inputs of a recorded step overwritten by those of the next one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nanocourse.exercises.cases import Call, Case, call
from nanocourse.exercises.chapters import run_file
from nanocourse.exercises.exercise import Check, Function, Spec
from nanocourse.exercises.swap import replaced

scenes = run_file(Path(__file__).parents[1] / "scenes.py", "nanoinfer_ch04_scenes")
places = run_file(Path(__file__).parent / "places.py", "nanoinfer_ch04_places")


def copy_from(static: dict[str, Tensor], new: dict[str, Tensor], nobody: int) -> None:
    """Let a recorded prefill find the prompts `new` in its inputs `static`, at its next replay.

    Both have token_ids, last and rows, int64. static: token_ids (B, T), last (B,), rows (B,), the tensors that were
    recorded; what an earlier call has put there is there still. new: token_ids (b, t), last (b,), rows (b,), with
    b <= B and t <= T. What is left of static is padding: token 0; last -1, which is no column, in padding rows; and
    row `nobody`. Of `new` nothing may be needed after the call.
    """
    b, t = new["token_ids"].shape
    static["token_ids"].zero_()
    static["token_ids"][:b, :t] = new["token_ids"]
    static["last"].fill_(-1)
    static["last"][:b] = new["last"]
    static["rows"].fill_(nobody)
    static["rows"][:b] = new["rows"]


@contextmanager
def swap(mine: Function) -> Iterator[None]:
    """A captured prefill gets its prompts by it."""

    def copy_prompts(recorded: Any, prompts: Any, dummy: int) -> None:
        (B, T), names = prompts.token_ids.shape, ("token_ids", "last", "rows")
        static, new = ({name: getattr(step, name) for name in names} for step in (recorded, prompts))
        mine(static, new, dummy)
        if not prompts.fresh:
            recorded.positions[:B, :T] = prompts.positions

    with places.recorded(), replaced("nanoinfer.engine.graphs:copy_prompts", copy_prompts):
        yield


def _example() -> Call:
    prompts = {"token_ids": torch.tensor([[5, 6, 7]]), "last": torch.tensor([2]), "rows": torch.tensor([1])}
    return call(2, 4, 9, [prompts])


EXERCISE = Spec(
    title="Copy into what was recorded",
    reference=copy_from,
    task=(
        "A prefill was recorded with inputs of B rows and T columns. Before each replay the prompts that are to be\n"
        "run have to be found there. The checks record a step that reads the inputs, and replay it batch after batch:\n"
        "`fed` in the chapter's scenes.py."
    ),
    invariants=(
        "the recording reads the tensors that it was made with, wherever their names point today",
        "after the call the inputs are as if they had been made for these prompts alone",
        "padding has no column that is real, and no row that is anybody's",
    ),
    lines=7,
    example=_example,
    section="Why the address matters",
    axes=("batch", "row", "column"),
    tolerance=1e-9,
    imports=("import torch", "from torch import Tensor"),
    swap=swap,
    scene=scenes.fed,
    hints=(
        "Invariant: `data_ptr()` of each of the three tensors in static is the same before and after the call; only\n"
        "what lies there is another.",
        "Place: an equals sign behind a name, or behind a dict's entry, moves a label. An equals sign behind a tensor\n"
        "with an index in brackets writes numbers. And ask what still stands where the new prompts do not reach.",
        "Pseudocode:\n"
        "  for each of the three: first the padding everywhere, in place\n"
        "  then the new numbers over it, in its first rows, and of ids in its first columns",
    ),
)


def _prompts(case: Case, name: str, rows: int, columns: int) -> dict[str, Tensor]:
    """Prompts of different lengths, the longest of `columns` tokens, for rows of the batch in any order."""
    last = case.ints(f"{name} last", 0, columns - 1, rows)
    last[int(case.ints(f"{name} longest", 0, rows - 1))] = columns - 1
    ids = case.ints(f"{name} ids", 1, 60, rows, columns)
    rows_of = case.permutation(f"{name} rows", 9)[:rows]
    return {"token_ids": ids.where(torch.arange(columns) <= last[:, None], 0), "last": last, "rows": rows_of}


def fewer_rows(case: Case) -> Call:
    """A batch of fewer prompts than the last one leaves none of that one's rows behind."""
    rows, columns = case.size("rows", 2, 5), case.size("columns", 2, 5)
    first = _prompts(case, "first", rows, columns)
    return call(rows, columns, 9, [first, _prompts(case, "second", case.size("left", 1, rows - 1), columns)])


def fewer_columns(case: Case) -> Call:
    """Shorter prompts than the last ones leave none of their tokens behind, and longer ones are whole again."""
    rows, columns = case.size("rows", 1, 3), case.size("columns", 3, 6)
    lengths = columns, case.size("left", 1, columns - 1), columns
    return call(rows, columns, 9, [_prompts(case, f"batch {n}", rows, t) for n, t in enumerate(lengths)])


CHECKS = (Check(fewer_rows, 4), Check(fewer_columns, 3))
