"""The commands that measure one thing each: `python -m bench attention`, `kernels`, `memory` and so on.

Each is the function `measure` of a module in `micro`. Its options stand there; the module, and torch with it, is
imported once the command is used.
"""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand

from nanobench.errors import Commands

MEASURES = {  # by name: the module, and what the command says of itself
    "attention": ("attention", "Which SDPA backend runs, with and without a mask; and what the dense cache's read"
                  " length costs."),
    "kernels": ("paged_kernel", "The paged kernel alone, against SDPA on a dense cache and FlashInfer's: cold L2,"
                " inside a graph."),
    "ragged": ("ragged", "Short prompts beside a long one, a row that runs while a prompt arrives, and the ragged"
               " kernel alone."),
    "queue": ("queue", "Requests that arrive while others run: a burst, arrivals, shared prefixes, a pool too small"
              " for all rows."),
    "speculation": ("speculation", "Drafts of which a known share is right, against plain decoding: what a step of"
                    " several tokens brings."),
    "speculation-texts": ("speculation_texts", "Drafts for what a model really writes, against plain decoding:"
                          " stories, and text that repeats itself."),
    "ranks": ("ranks", "One model on one GPU and on several: tokens/s, time of a step, of a sum over ranks."),
    "replicas": ("replicas", "Several engines behind one queue beside one: tokens/s of many requests at once."),
    "sampling": ("sampling", "Choosing tokens alone: the kernel against a sort, torch.topk and rejection, in a graph;"
                 " or what a CPU does."),
    "one-kernel": ("one_kernel", "Chapter 6: a matrix over rows, a graph's node, three kinds of exchange, and a token"
                   " by each way."),
    "graphs": ("graphs", "Chapter 4's costs and gains: the ladder, its start-up, a batch that drains, TTFT by length,"
               " sampling."),
    "timeline": ("timeline", "One decode step of each engine, by torch's profiler: the host's operators and launches,"
                 " the GPU's kernels."),
    "memory": ("kv_usage", "KV usage of dense and paged caches; many short requests in a fixed pool that is too small"
               " for dense rows."),
    "recompiles": ("recompiles", "Kernels that Triton compiles over 512 steps of growing contexts and 1 to 32 rows:"
                   " none after the first."),
    "sanitize": ("sanitize", "compute-sanitizer's memcheck and racecheck over every kernel, and over a planted overrun"
                 " that it must catch."),
    "turns": ("turns", "Two checkouts by turns: how fast generation is after a change, over what it was."),
}  # fmt: skip


class Measure(TyperCommand):
    """A command of the table."""

    @cached_property
    def real(self) -> Any:
        """The command that its module's `measure` makes."""
        app, (module, text) = typer.Typer(add_completion=False), MEASURES[str(self.name)]
        app.command(self.name, help=text)(import_module(f"nanobench.micro.{module}").measure)
        return typer.main.get_command(app)

    def get_params(self, ctx: Any) -> Any:
        return self.real.get_params(ctx)

    def make_context(self, *arguments: Any, **more: Any) -> Any:
        return self.real.make_context(*arguments, **more)


class Bench(Commands):
    """The commands of `cli.py`, then those of the table."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *MEASURES]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in MEASURES:
            return Measure(cmd_name, help=MEASURES[cmd_name][1])
        return super().get_command(ctx, cmd_name)
