"""Helpers for the chapters' notebooks: a tensor drawn, a layer's queries, a guess compared, a results file, the quiz.

They need matplotlib, which the package itself does not: it is imported when something is drawn.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import math
from functools import partial
from typing import Any

from torch import Tensor

from nanocourse.exercises import chapters
from nanoinfer.model.batch import Batch
from nanoinfer.model.gpt2 import GPT2, Cache

CELL, HEAD = (0.62, 0.34), 0.75  # inches: of one number, and around the tables
WIDEST = 11.0


def show(title: str, tensor: Tensor) -> None:
    """Print the shape of a tensor (rows, columns) or (tables, rows, columns), and draw its numbers, shaded by size."""
    import matplotlib.pyplot as plt

    print(f"{title}: {tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}")
    tables = (tensor if tensor.dim() == 3 else tensor[None]).detach().cpu()
    count, rows, columns = tables.shape
    size = (min(WIDEST, HEAD + CELL[0] * columns * count), HEAD + CELL[1] * rows)
    figure, axes = plt.subplots(1, count, figsize=size, squeeze=False)
    finite = tables[tables.isfinite()].double().abs()
    limit = max(1e-9, float(finite.max())) if finite.numel() else 1.0
    for at, (ax, table) in enumerate(zip(axes[0], tables.tolist(), strict=True)):
        shades = [[value if abs(value) <= limit else math.nan for value in row] for row in table]
        ax.set_facecolor("0.85")  # for infinite numbers
        ax.imshow(shades, cmap="RdBu", vmin=-2 * limit, vmax=2 * limit, aspect="auto")
        for y, row in enumerate(table):
            for x, value in enumerate(row):
                text = f"{value:.2f}" if tensor.is_floating_point() else str(value)
                ax.text(x, y, text, ha="center", va="center", fontsize=8)
        ax.set_xticks(range(columns))
        ax.set_yticks(range(rows))
        ax.tick_params(length=0, labelsize=8)
        if count > 1:
            ax.set_title(f"[{at}]", fontsize=9, loc="left")
    figure.tight_layout()
    plt.show()


def watch(model: GPT2, batch: Batch, cache: Cache) -> tuple[Tensor, list[tuple[Tensor, Tensor, Tensor]]]:
    """Run a step; return its logits (B, V), and the queries, keys and values (N, H, D) of each layer."""
    attend, layers = partial(cache.attend, cache.plan(batch)), []

    def watched(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        layers.append((q, k, v))
        return attend(layer, q, k, v)

    hidden = model.hidden(batch, watched)  # (N, C)
    return model.head(batch.last(hidden)), layers


def compare(guesses: dict[str, bool], name: str, guess: object, result: object) -> None:
    """Print a guess beside the result, and keep in `guesses` whether it was right."""
    guesses[name] = guess == result
    print(f"your guess: {guess}   result: {result}")


def source(thing: Any) -> None:
    """Print the code of a function or class, as it is installed here."""
    print(inspect.getsource(thing))


def results(name: str) -> dict[str, Any]:
    """A results file of the benchmark, `h200-gpu`. ValueError if this installation has none of that name."""
    path = chapters.root() / "bench" / "results" / f"{name}.json"
    if not path.is_file():
        raise ValueError(f"this installation has no results file {name}.json")
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data


def quiz(chapter: int) -> None:
    """Show the chapter's quiz: with buttons if jupyterquiz is installed, otherwise as plain text."""
    questions = json.loads((chapters.chapter(chapter).exercises / "quiz.json").read_text(encoding="utf-8"))
    if importlib.util.find_spec("jupyterquiz") is not None:
        importlib.import_module("jupyterquiz").display_quiz(questions)
        return
    for at, question in enumerate(questions, 1):
        print(f"{at}. {question['question']}")
        for answer in question.get("answers", ()):
            print(f"   - {answer.get('answer', '')}")
        print()
